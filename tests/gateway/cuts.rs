//! Connections to servers that end at every byte of an exchange.
//!
//! Retries are configured as liberally as they can be. A POST without a key must all the same never reach
//! servers twice, unless nobody got a byte of it; a GET must get its answer in spite of all, as the other
//! server is well. Whether a connection that was closed before anything was read got the request cannot
//! always be known: there a POST may fail without having reached anybody, and that is not held against it.

mod crossing;
mod lane;
mod stage;

use std::sync::atomic::Ordering;
use std::thread;

use lane::{Got, Lane};
use stage::{At, Cut, How, On};

/// Every place a connection can be cut at while it carries a request of this length.
fn cuts(on: On, request_len: usize) -> Vec<Cut> {
    let answer_len = on.answer().len();
    let accepted = (on == On::Fresh).then_some(At::Accepted);
    let ats = accepted
        .into_iter()
        .chain((0..=request_len).map(At::Request))
        .chain((0..=answer_len).map(At::Answer));
    let cuts = ats.flat_map(|at| [How::Close, How::Reset, How::Stall].map(|how| Cut { at, how }));
    // A server that stops reading a request that was sent is one that does not answer.
    cuts.filter(|cut| cut.how != How::Stall || matches!(cut.at, At::Answer(_)))
        .collect()
}

/// Has a request meet with every cut there is, on every kind of connection, and holds `check` against what came of
/// each: its cut, what its client got, and how many copies of it arrived.
fn everywhere(method: &str, check: impl Fn(On, Cut, &Got, usize) + Sync) {
    let check = &check;
    let lanes = [On::Fresh, On::KeptAlive].into_iter().flat_map(|on| {
        let probe = Lane::start(on, "20s");
        assert_eq!(
            probe.ask(method, "/case/000000"),
            Got::Answer(200, "done".into())
        );
        let request_len = probe.stage.request_len.load(Ordering::SeqCst);
        let (stalls, ends): (Vec<_>, Vec<_>) = cuts(on, request_len)
            .into_iter()
            .partition(|cut| cut.how == How::Stall);
        // What waits for a timeout is done many at once, what does not is not kept waiting by one.
        let stalls = split(stalls, 12)
            .into_iter()
            .map(move |cuts| (on, "1s", cuts));
        let ends = split(ends, 2)
            .into_iter()
            .map(move |cuts| (on, "20s", cuts));
        stalls.chain(ends)
    });
    let lanes: Vec<_> = lanes.collect();
    let tried: usize = lanes.iter().map(|(_, _, cuts)| cuts.len()).sum();
    thread::scope(|scope| {
        for (on, patience, cuts) in lanes {
            scope.spawn(move || {
                let lane = Lane::start(on, patience);
                let cases = cuts.into_iter().enumerate();
                let cases: Vec<_> = cases
                    .map(|(case, cut)| (case, cut, lane.meet(method, case, cut)))
                    .collect();
                let copies = lane.copies();
                for (case, cut, got) in cases {
                    check(on, cut, &got, copies.get(&case).copied().unwrap_or(0));
                }
            });
        }
    });
    println!("{method}: cut at {tried} positions");
    assert!(tried > 500, "{tried}");
}

/// Deals out `cuts` to so many.
fn split(cuts: Vec<Cut>, hands: usize) -> Vec<Vec<Cut>> {
    let mut dealt = vec![Vec::new(); hands];
    for (number, cut) in cuts.into_iter().enumerate() {
        dealt[number % hands].push(cut);
    }
    dealt
}

#[test]
fn a_post_without_a_key_never_arrives_twice_wherever_its_connection_is_cut() {
    everywhere("POST", |on, cut, got, copies| {
        assert!(copies <= 1, "{copies} copies: {cut:?} on {on:?}");
        match got {
            Got::Answer(200, _) => assert_eq!(copies, 1, "{cut:?} on {on:?}"),
            Got::Answer(status, _) => assert!([502, 504].contains(status), "{got:?}: {cut:?}"),
            Got::Part => assert!(on.is_begun(cut), "{cut:?} on {on:?}"),
        }
        if let At::Request(1..) = cut.at {
            assert!(
                matches!(got, Got::Answer(502, _)),
                "{got:?}: {cut:?} on {on:?}"
            );
        }
    });
}

#[test]
fn a_get_is_answered_wherever_its_connection_is_cut() {
    let whole = Got::Answer(200, "done".into());
    everywhere("GET", |on, cut, got, _| {
        let is_cut_short = on.is_begun(cut) && *got == Got::Part;
        assert!(*got == whole || is_cut_short, "{got:?}: {cut:?} on {on:?}");
    });
}
