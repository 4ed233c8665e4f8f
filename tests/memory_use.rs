//! Test of the memory use of rate limits: ten million clients with `max_clients` of one million.
//!
//! The resident memory of the process must grow by at most `max_clients` times 110 bytes. A client that exceeded its
//! rate limit before the other clients arrive must still be throttled afterwards. Other clients must be served. The
//! memory is measured for the whole process, so this file contains a single test and uses the allocator of the gateway.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::{Duration, Instant, SystemTime};

use http::HeaderMap;
use mimalloc::MiMalloc;
use tidegate::clock::Clock;
use tidegate::internals::{BucketKind, ClientId, MemoryBuckets, Seed};
use tidegate::throttle::{
    BucketKey, Charge, ChargeOutcome, Exceed, KeyPart, Limit, Mode, OnStoreError, Quota,
    QuotaSince, RetryAfterForm,
};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const MAX_CLIENTS: usize = 1_000_000;
const BYTES_PER_CLIENT: usize = 110;

#[test]
fn ten_million_clients_neither_exhaust_memory_nor_reset_the_bucket_of_an_abuser() {
    let flood = Flood::new();

    // Each bucket takes minutes to refill. Only full buckets are evicted, so the first million clients keep their
    // buckets.
    let slow = limit(0, Duration::from_mins(1));
    let served = flood.run("slow refill", &slow, 10_000_000, Duration::ZERO);
    assert_eq!(flood.buckets.tracked(), MAX_CLIENTS);
    // The other nine million clients share 65,536 overflow buckets, so the number of their admitted requests is at most
    // the number of tokens in these buckets.
    let shared = 65_536 * u64::from(slow.quota.capacity().get());
    assert!(served >= MAX_CLIENTS as u64 + shared * 9 / 10);
    assert!(served <= MAX_CLIENTS as u64 + shared);

    // A bucket is full again after 0.9 s, and one million clients arrive per second. Thus at most 900,000 buckets are
    // not full, and there is space for one million. Full buckets are evicted, so every client gets its own bucket.
    flood.clock.advance(Duration::from_hours(1));
    let fast = limit(1, Duration::from_millis(900));
    let served = flood.run("fast refill", &fast, 3_000_000, Duration::from_micros(1));
    assert_eq!(served, 3_000_000);
}

struct Flood {
    clock: Clock,
    seed: Seed,
    resident_before: usize,
    buckets: MemoryBuckets,
}

impl Flood {
    fn new() -> Self {
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
        let resident_before = resident_bytes();
        Self {
            seed: Seed::random(),
            resident_before,
            buckets: MemoryBuckets::new(MAX_CLIENTS, clock.clone()),
            clock,
        }
    }

    /// Sends one request from each of `clients` clients, and advances the virtual clock by `step` after each request.
    /// Meanwhile an abuser sends as many requests as it can. Returns how many requests of the other clients were
    /// admitted.
    fn run(&self, phase: &str, limit: &Limit, clients: u32, step: Duration) -> u64 {
        let started = Instant::now();
        let mut served = 0;
        let mut abuse = self.drain(limit);
        for client in 0..clients {
            served += u64::from(self.admits(limit, Ipv4Addr::from_bits(client).into()));
            self.clock.advance(step);
            if client.is_multiple_of(100) {
                abuse += self.drain(limit);
            }
        }
        abuse += self.drain(limit);
        let refilled = (step * clients).as_nanos() / limit.quota.interval().as_nanos();
        let quota = u128::from(limit.quota.capacity().get()) + refilled;
        assert_eq!(abuse, quota, "{phase}: the abuser gets exactly its quota");
        assert!(self.buckets.tracked() <= MAX_CLIENTS);

        let grown = resident_bytes().saturating_sub(self.resident_before);
        println!(
            "{phase}: {clients} clients in {:.1?}, {served} served, {} tracked, \
             {:.1} bytes for each of {MAX_CLIENTS}",
            started.elapsed(),
            self.buckets.tracked(),
            to_f64(grown) / to_f64(MAX_CLIENTS),
        );
        assert!(grown <= MAX_CLIENTS * BYTES_PER_CLIENT, "{grown} bytes");
        served
    }

    /// Sends requests from the abuser's address until one is rejected. Returns the number of admitted requests.
    fn drain(&self, limit: &Limit) -> u128 {
        let abuser = IpAddr::V4(Ipv4Addr::BROADCAST);
        let mut taken = 0;
        while self.admits(limit, abuser) {
            taken += 1;
        }
        taken
    }

    fn admits(&self, limit: &Limit, address: IpAddr) -> bool {
        let client = ClientId::of(address, 64);
        let charge = Charge {
            limit,
            bucket: BucketKey::of(
                self.seed,
                limit,
                BucketKind::Main,
                client,
                &HeaderMap::new(),
            ),
            cost: NonZeroU32::MIN,
        };
        let decision = self.buckets.charge_now(&[charge]);
        matches!(decision.outcome, ChargeOutcome::Admitted { .. })
    }
}

/// Returns a rate limit of one request per `interval`, with a burst of three.
fn limit(id: u16, interval: Duration) -> Limit {
    Limit {
        name: format!("limit-{id}").into(),
        quota: Quota::new(NonZeroU32::MIN, interval, 3).unwrap(),
        quota_since: QuotaSince::default(),
        key: Box::new([KeyPart::Client]),
        exceed: Exceed::Reject,
        mode: Mode::Enforce,
        retry_after: RetryAfterForm::Seconds,
        on_store_error: OnStoreError::Local,
        log_key: false,
    }
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = resident.unwrap().trim().trim_end_matches(" kB");
    kibibytes.parse::<usize>().unwrap() * 1_024
}

#[expect(clippy::cast_precision_loss, reason = "the value is only printed")]
fn to_f64(count: usize) -> f64 {
    count as f64
}
