mod agreement;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::super::settings::OpensOn;
use super::*;

/// How long a probe without a result blocks other requests.
const PROBE: Duration = Duration::from_secs(35);

/// Settings of a section without keys, except that the open time is longer.
fn settings() -> BreakerSettings {
    BreakerSettings {
        opens_on: OpensOn::AllFailures,
        open: Duration::from_secs(5),
        ..BreakerSettings::default()
    }
}

fn breaker() -> Breaker {
    Breaker::new(&settings(), PROBE, 2)
}

#[test]
fn a_probe_that_says_nothing_is_not_waited_for_without_end() {
    let (breaker, end) = opened(at(0));
    let slow = breaker.admit(end).expect("the probe");
    let later = |wait: Duration| end.after(wait);
    let almost = later(PROBE.saturating_sub(Duration::from_nanos(1)));
    assert!(!breaker.may_admit(almost) && breaker.admit(almost).is_err());
    let second = breaker.admit(later(PROBE)).expect("another probe");
    assert!(second.is_probe());
    // The first is late now, and neither closes nor opens anything, nor gives up the place of the second.
    assert_eq!(breaker.succeeded(slow, 0, later(PROBE)), None);
    assert!(breaker.admit(later(PROBE)).is_err());
    assert_eq!(
        breaker.succeeded(second, 0, later(PROBE)),
        Some(Change::Closed)
    );
}

fn random() -> fastrand::Rng {
    fastrand::Rng::with_seed(7)
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn fail(breaker: &Breaker, now: Moment) -> Option<Change> {
    let ticket = breaker.admit(now).expect("admitted");
    report(breaker, ticket, now)
}

/// Reports a failure of a single server.
fn report(breaker: &Breaker, ticket: Ticket, now: Moment) -> Option<Change> {
    let others = std::iter::empty();
    breaker.failed(ticket, Failure::Response, (0, now), &mut random(), others)
}

fn succeed(breaker: &Breaker, now: Moment) -> Option<Change> {
    let ticket = breaker.admit(now).expect("admitted");
    breaker.succeeded(ticket, 0, now)
}

/// A breaker that was just opened by failures in a row, and when its open time ends.
fn opened(now: Moment) -> (Breaker, Moment) {
    let breaker = breaker();
    for _ in 0..4 {
        assert_eq!(fail(&breaker, now), None);
    }
    let Some(Change::Opened { for_, why }) = fail(&breaker, now) else {
        panic!("five failures in a row open it");
    };
    assert_eq!(why, Cause::InARow);
    (breaker, now.after(for_))
}

/// Whether an open time is this long, give or take a tenth.
fn is_about(for_: Duration, expected: Duration) -> bool {
    (expected.mul_f64(0.9)..=expected.mul_f64(1.1)).contains(&for_)
}

#[test]
fn a_row_of_failures_opens_it_and_a_success_ends_the_row() {
    let breaker = breaker();
    for _ in 0..3 {
        for _ in 0..4 {
            assert_eq!(fail(&breaker, at(0)), None);
        }
        assert_eq!(succeed(&breaker, at(0)), None);
        assert_eq!(breaker.snapshot(at(0)).in_a_row, 0);
    }
    let (breaker, until) = opened(at(0));
    assert!(!breaker.is_closed());
    let wait = until.since(at(1));
    assert!(is_about(until.since(at(0)), Duration::from_secs(5)));
    let refused = breaker.admit(at(1)).expect_err("it is open");
    assert_eq!(refused, Refused { wait: Some(wait) });
}

#[test]
fn the_ratio_opens_it_from_its_volume_on() {
    let breaker = breaker();
    for _ in 0..9 {
        assert_eq!(succeed(&breaker, at(0)), None);
        assert_eq!(fail(&breaker, at(0)), None);
    }
    assert_eq!(succeed(&breaker, at(0)), None);
    let Some(Change::Opened { why, .. }) = fail(&breaker, at(0)) else {
        panic!("ten of twenty are half");
    };
    assert_eq!(why, Cause::Ratio);
}

#[test]
fn failures_that_left_the_window_are_not_in_the_ratio() {
    let breaker = breaker();
    for _ in 0..9 {
        succeed(&breaker, at(0));
        fail(&breaker, at(0));
    }
    succeed(&breaker, at(10_000));
    assert_eq!(fail(&breaker, at(10_000)), None);
    let snapshot = breaker.snapshot(at(10_000));
    assert_eq!((snapshot.succeeded, snapshot.failed), (1, 1));
}

#[test]
fn after_its_time_one_probe_goes_and_its_success_closes_and_forgets() {
    let (breaker, until) = opened(at(0));
    assert!(!breaker.may_admit(at(1)));
    assert!(breaker.may_admit(until));
    let probe = breaker.admit(until).expect("its time is over");
    assert!(probe.is_probe());
    assert!(!breaker.may_admit(until));
    let refused = breaker.admit(until).expect_err("a probe is under way");
    assert_eq!(refused, Refused { wait: None });
    assert_eq!(breaker.recovered_at(), None);
    assert_eq!(breaker.succeeded(probe, 0, until), Some(Change::Closed));
    assert!(breaker.is_closed());
    assert_eq!(breaker.recovered_at(), Some(until));
    assert_eq!(
        breaker.snapshot(until),
        Snapshot {
            state: State::Closed,
            since: until,
            in_a_row: 0,
            openings: 1,
            why: Some(Cause::InARow),
            succeeded: 0,
            failed: 0,
        }
    );
}

#[test]
fn every_failed_probe_doubles_the_open_time_up_to_its_longest() {
    let (breaker, mut until) = opened(at(0));
    for expected in [10, 20, 40, 60, 60] {
        let Some(Change::Opened { for_, why }) = fail(&breaker, until) else {
            panic!("a failed probe opens it again");
        };
        assert_eq!(why, Cause::FailedProbe);
        assert!(is_about(for_, Duration::from_secs(expected)), "{for_:?}");
        until = until.after(for_);
    }
    assert_eq!(succeed(&breaker, until), Some(Change::Closed));
    for _ in 0..4 {
        fail(&breaker, until);
    }
    let Some(Change::Opened { for_, .. }) = fail(&breaker, until) else {
        panic!("it fails as before");
    };
    assert!(is_about(for_, Duration::from_secs(5)), "{for_:?}");
}

#[test]
fn open_times_are_spread_over_a_tenth_to_either_side() {
    let limits = breaker().rule;
    let mut random = random();
    let times: Vec<_> = (0..1_000)
        .map(|_| limits.open_time(0, &mut random))
        .collect();
    assert!(times.iter().all(|time| is_about(*time, limits.open)));
    assert!(times.iter().min() < Some(&limits.open.mul_f64(0.91)));
    assert!(times.iter().max() > Some(&limits.open.mul_f64(1.09)));
}

#[test]
fn results_of_requests_from_before_it_opened_change_nothing_afterwards() {
    let breaker = breaker();
    let [late_success, late_failure] = [(); 2].map(|()| breaker.admit(at(0)).expect("closed"));
    for _ in 0..5 {
        fail(&breaker, at(0));
    }
    let before = breaker.snapshot(at(1));
    assert_eq!(breaker.succeeded(late_success, 0, at(1)), None);
    assert_eq!(report(&breaker, late_failure, at(1)), None);
    assert_eq!(breaker.snapshot(at(1)), before);
}

#[test]
fn results_of_requests_from_before_it_opened_say_nothing_while_it_is_probed_or_closed_again() {
    let breaker = breaker();
    let mut late: Vec<_> = (0..8)
        .map(|_| breaker.admit(at(0)).expect("closed"))
        .collect();
    for _ in 0..5 {
        fail(&breaker, at(0));
    }
    let probe = breaker.admit(at(6_000)).expect("its time is over");
    let before = breaker.snapshot(at(6_000));
    assert_eq!(breaker.succeeded(late.remove(0), 1, at(6_000)), None);
    assert_eq!(report(&breaker, late.remove(0), at(6_000)), None);
    assert_eq!(breaker.snapshot(at(6_000)), before);
    breaker.succeeded(probe, 0, at(6_000));
    for ticket in late {
        assert_eq!(report(&breaker, ticket, at(6_000)), None);
    }
    let after = breaker.snapshot(at(6_000));
    assert_eq!((after.in_a_row, after.failed), (0, 0));
}

#[test]
fn the_place_of_a_probe_that_came_to_nothing_is_free_at_once() {
    let (breaker, until) = opened(at(0));
    drop(breaker.admit(until).expect("its time is over"));
    assert_eq!(breaker.snapshot(until).state, State::HalfOpen);
    drop(breaker.admit(until).expect("abandoned"));
    let probe = breaker.admit(until).expect("dropped");
    assert!(probe.is_probe());
    assert_eq!(breaker.succeeded(probe, 0, until), Some(Change::Closed));
}

#[test]
fn an_abandoned_request_of_a_closed_breaker_is_not_counted() {
    let breaker = breaker();
    drop(breaker.admit(at(0)).expect("closed"));
    let snapshot = breaker.snapshot(at(0));
    assert_eq!((snapshot.succeeded, snapshot.failed), (0, 0));
    assert!(breaker.is_closed());
}

#[test]
fn held_open_it_stays_so_until_it_is_closed_by_hand() {
    let breaker = breaker();
    let late = breaker.admit(at(0)).expect("closed");
    let by_hand = Change::Opened {
        for_: Duration::MAX,
        why: Cause::ByHand,
    };
    assert_eq!(breaker.hold_open(at(0)), Some(by_hand));
    assert_eq!(breaker.hold_open(at(1)), None);
    let years = Moment::from_nanos(u64::MAX);
    assert_eq!(breaker.admit(years).err(), Some(Refused { wait: None }));
    let held = State::Open {
        remaining: None,
        held: true,
    };
    assert_eq!(breaker.snapshot(years).state, held);
    assert_eq!(breaker.succeeded(late, 0, at(2)), None);
    assert_eq!(breaker.close(at(3)), Some(Change::Closed));
    assert_eq!(breaker.recovered_at(), Some(at(3)));
    assert!(breaker.is_closed());
}

#[test]
fn held_open_while_it_is_probed_it_does_not_care_for_the_probe() {
    let (breaker, until) = opened(at(0));
    let probe = breaker.admit(until).expect("its time is over");
    assert!(breaker.hold_open(until).is_some());
    assert_eq!(breaker.succeeded(probe, 0, until), None);
    assert!(!breaker.may_admit(until));
}

#[test]
fn closed_by_hand_while_it_is_closed_it_forgets_what_it_counted() {
    let breaker = breaker();
    for _ in 0..4 {
        fail(&breaker, at(0));
    }
    assert_eq!(breaker.close(at(0)), None);
    assert_eq!(breaker.recovered_at(), None);
    let snapshot = breaker.snapshot(at(0));
    assert_eq!((snapshot.in_a_row, snapshot.failed), (0, 0));
    assert_eq!(fail(&breaker, at(0)), None);
}

#[test]
fn disabled_it_changes_by_hand_only() {
    let settings = BreakerSettings {
        opens_on: OpensOn::Nothing,
        ..settings()
    };
    let breaker = Breaker::new(&settings, PROBE, 1);
    for _ in 0..1_000 {
        assert_eq!(fail(&breaker, at(0)), None);
    }
    assert!(breaker.is_closed());
    assert!(breaker.hold_open(at(0)).is_some());
    assert!(breaker.admit(at(0)).is_err());
    breaker.close(at(0));
    assert!(breaker.admit(at(0)).is_ok());
}

#[test]
fn it_is_half_open_from_the_end_of_its_time_whether_anybody_comes_or_not() {
    let (breaker, until) = opened(at(0));
    let later = until.after(Duration::from_hours(1));
    let idle = breaker.snapshot(later);
    assert_eq!((idle.state, idle.since), (State::HalfOpen, until));
    let _probe = breaker.admit(later).expect("its time is over");
    let probed = breaker.snapshot(later);
    assert_eq!((probed.state, probed.since), (State::HalfOpen, until));
}

#[test]
fn of_a_thousand_clients_that_come_when_its_time_is_over_one_is_the_probe() {
    let (breaker, until) = opened(at(0));
    let start = Barrier::new(1_000);
    let admitted = thread::scope(|scope| {
        let clients: Vec<_> = (0..1_000)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    breaker.admit(until)
                })
            })
            .collect();
        let answers = clients.into_iter().map(|client| client.join().unwrap());
        answers.filter_map(Result::ok).collect::<Vec<_>>()
    });
    assert_eq!(admitted.len(), 1);
    assert!(admitted[0].is_probe());
}

#[test]
fn two_who_come_in_the_same_instant_are_never_both_the_probe() {
    const ROUNDS: usize = 20_000;
    let (breaker, until) = opened(at(0));
    let arrived = AtomicUsize::new(0);
    let meet = |times: usize| {
        arrived.fetch_add(1, Ordering::SeqCst);
        while arrived.load(Ordering::SeqCst) < 2 * times {
            thread::yield_now();
        }
    };
    let come = || {
        let mut probes = 0;
        for round in 0..ROUNDS {
            meet(2 * round + 1);
            let probe = breaker.admit(until);
            probes += usize::from(probe.is_ok());
            meet(2 * round + 2);
            drop(probe);
        }
        probes
    };
    let probes = thread::scope(|scope| {
        let other = scope.spawn(come);
        come() + other.join().unwrap()
    });
    assert_eq!(probes, ROUNDS);
    assert!(breaker.may_admit(until));
}

#[test]
fn of_many_failures_at_once_one_opens_it() {
    let breaker = breaker();
    let tickets: Vec<_> = (0..64).map(|_| breaker.admit(at(0)).unwrap()).collect();
    let start = Barrier::new(tickets.len());
    let changes = thread::scope(|scope| {
        let failures: Vec<_> = tickets
            .into_iter()
            .map(|ticket| {
                scope.spawn(|| {
                    start.wait();
                    report(&breaker, ticket, at(0))
                })
            })
            .collect();
        let changes = failures.into_iter().map(|failure| failure.join().unwrap());
        changes.flatten().count()
    });
    assert_eq!(changes, 1);
    assert_eq!(breaker.snapshot(at(0)).openings, 1);
}
