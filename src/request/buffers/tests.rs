use std::net::{IpAddr, Ipv4Addr};

use super::*;

const REQUEST: Buffered = Buffered::Request;

fn buffers(total: usize, per_client: usize) -> Arc<Buffers> {
    Arc::new(Buffers::new(BufferBounds { total, per_client }))
}

fn client(number: u32) -> ClientId {
    ClientId::of(IpAddr::V4(Ipv4Addr::from_bits(number)), 64)
}

fn charged(buffers: &Arc<Buffers>, number: u32, bytes: usize) -> BufferCharge {
    let mut charge = buffers.charge(client(number), REQUEST);
    charge.grow(bytes).unwrap();
    charge
}

#[test]
fn the_total_bound_applies_to_all_clients_together() {
    let buffers = buffers(100, 100);
    let held: Vec<_> = (0..10)
        .map(|number| charged(&buffers, number, 10))
        .collect();
    assert_eq!(buffers.in_use(), 100);
    let mut another = buffers.charge(client(99), REQUEST);
    assert_eq!(another.grow(1), Err(Exceeded));
    assert_eq!(another.grow(usize::MAX), Err(Exceeded));
    drop(held);
    another.grow(100).unwrap();
    assert_eq!(another.grow(1), Err(Exceeded));
    assert_eq!(buffers.in_use(), 100);
}

#[test]
fn the_bound_per_client_applies_above_half_of_the_total() {
    let buffers = buffers(100, 10);
    let mut first = charged(&buffers, 1, 50);
    assert_eq!(first.grow(1), Err(Exceeded), "more than half is in use");
    assert_eq!(buffers.in_use(), 50);
    let mut second = charged(&buffers, 2, 10);
    assert_eq!(second.grow(1), Err(Exceeded));
    let mut same_client = buffers.charge(client(2), REQUEST);
    assert_eq!(same_client.grow(1), Err(Exceeded));
    let third = charged(&buffers, 3, 10);
    drop(first);
    assert_eq!(buffers.in_use(), 20);
    second.grow(20).unwrap();
    drop((second, third));
    assert_eq!(buffers.in_use(), 0);
}

#[test]
fn a_charge_that_fails_changes_nothing() {
    let buffers = buffers(100, 10);
    let _half = charged(&buffers, 1, 50);
    let mut charge = charged(&buffers, 2, 5);
    assert_eq!(charge.grow(6), Err(Exceeded));
    charge.grow(5).unwrap();
    assert_eq!(buffers.in_use(), 60);
    assert!(buffers.charge(client(3), REQUEST).grow(11).is_err());
    assert!(buffers.charge(client(4), REQUEST).grow(41).is_err());
    assert_eq!(buffers.0.clients.len(), 2);
}

#[test]
fn a_dropped_charge_is_released_and_its_client_removed() {
    let buffers = buffers(1_000, 1_000);
    for number in 0..1_000 {
        let mut first = charged(&buffers, number, 10);
        let second = charged(&buffers, number, 20);
        first.grow(0).unwrap();
        first.grow(5).unwrap();
        assert_eq!(buffers.in_use(), 35);
        drop(first);
        assert_eq!(buffers.0.clients.len(), 1);
        drop(second);
        drop(charged(&buffers, number, 0));
        assert_eq!(buffers.in_use(), 0);
        assert_eq!(buffers.0.clients.len(), 0);
    }
}

#[test]
fn held_bytes_are_charged_until_the_last_reference_is_dropped() {
    let buffers = buffers(100, 100);
    let held = charged(&buffers, 1, 4).hold(Bytes::from_static(b"body"));
    let mut copy = held.clone();
    assert_eq!(held, "body");
    drop(held);
    let part = copy.split_off(3);
    drop(copy);
    assert_eq!(buffers.in_use(), 4);
    assert_eq!(part, "y");
    drop(part);
    assert_eq!(buffers.in_use(), 0);
}

#[test]
fn reserved_capacity_is_charged_and_doubles_up_to_its_maximum() {
    let buffers = buffers(1_000, 1_000);
    let mut charge = buffers.charge(client(1), REQUEST);
    let mut body = Vec::new();
    for (length, capacity) in [(10, 10), (11, 20), (20, 20), (21, 40), (95, 95), (96, 100)] {
        let more = length - body.len();
        charge.reserve(&mut body, more, 100).unwrap();
        body.resize(length, b'x');
        assert_eq!(body.capacity(), capacity);
        assert_eq!(buffers.in_use(), capacity);
    }
    assert_eq!(charge.reserve(&mut body, 1_000, 2_000), Err(Exceeded));
    assert_eq!(body.capacity(), 100);
    assert_eq!(buffers.in_use(), 100);
}

#[test]
fn charges_that_exceed_a_bound_are_counted_by_kind() {
    let buffers = buffers(10, 10);
    for (times, kind) in (1..).zip(Buffered::ALL) {
        for _ in 0..times {
            let mut charge = buffers.charge(client(1), kind);
            charge.grow(10).unwrap();
            assert_eq!(charge.grow(1), Err(Exceeded));
        }
        assert_eq!(buffers.exceeded(kind), times);
    }
}

#[test]
fn concurrent_charges_never_exceed_the_total_and_are_all_released() {
    let buffers = buffers(1_000, 300);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let worker = Arc::new(Buffers::clone(&buffers));
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut held = Vec::new();
                for _ in 0..20_000 {
                    let mut charge = worker.charge(client(random.u32(0..4)), REQUEST);
                    if charge.grow(random.usize(1..200)).is_ok() {
                        held.push(charge);
                    }
                    assert!(worker.in_use() <= 1_000);
                    if !held.is_empty() && random.bool() {
                        drop(held.swap_remove(random.usize(..held.len())));
                    }
                }
            });
        }
    });
    assert!(buffers.exceeded(REQUEST) > 0);
    assert_eq!(buffers.in_use(), 0);
    assert_eq!(buffers.0.clients.len(), 0);
}

#[test]
fn a_body_is_charged_only_above_1_kib_and_then_for_all_its_bytes() {
    let buffers = Arc::new(Buffers::new(BufferBounds::default()));
    let mut charge = buffers.charge(client(1), REQUEST);
    charge.grow(1_000).unwrap();
    charge.grow(24).unwrap();
    assert_eq!(buffers.in_use(), 0);
    charge.grow(1).unwrap();
    assert_eq!(buffers.in_use(), 1_025);
    charge.grow(75).unwrap();
    assert_eq!(buffers.in_use(), 1_100);
    drop(charge);
    assert_eq!(buffers.in_use(), 0);
    assert_eq!(buffers.0.clients.len(), 0);
}
