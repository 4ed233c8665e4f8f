mod model_comparison;

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::super::settings::OpensOn;
use super::*;

/// How long a probe without a result blocks other requests.
const PROBE: Duration = Duration::from_secs(35);

/// Returns the settings of an empty `[breaker]` section, but with an open time of 5 s.
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
fn a_probe_without_a_result_is_replaced_after_its_timeout() {
    let (breaker, end) = opened(at(0));
    let slow = breaker.admit(end).expect("the probe");
    let later = |wait: Duration| end.after(wait);
    let almost = later(PROBE.saturating_sub(Duration::from_nanos(1)));
    assert!(!breaker.may_admit(almost) && breaker.admit(almost).is_err());
    let second = breaker.admit(later(PROBE)).expect("another probe");
    assert!(second.is_probe());
    // The result of the first probe is late: it neither closes the circuit nor ends the second probe.
    assert_eq!(breaker.succeeded(slow, 0, later(PROBE)), None);
    assert!(breaker.admit(later(PROBE)).is_err());
    assert_eq!(
        breaker.succeeded(second, 0, later(PROBE)),
        Some(PhaseChange::Closed)
    );
}

fn random() -> fastrand::Rng {
    fastrand::Rng::with_seed(7)
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn fail(breaker: &Breaker, now: Moment) -> Option<PhaseChange> {
    let permit = breaker.admit(now).expect("admitted");
    report(breaker, permit, now)
}

/// Reports a response failure of a server that is alone in its upstream.
fn report(breaker: &Breaker, permit: BreakerPermit, now: Moment) -> Option<PhaseChange> {
    let others = std::iter::empty();
    breaker.failed(
        permit,
        ServerFailure::Response,
        (0, now),
        &mut random(),
        others,
    )
}

fn succeed(breaker: &Breaker, now: Moment) -> Option<PhaseChange> {
    let permit = breaker.admit(now).expect("admitted");
    breaker.succeeded(permit, 0, now)
}

/// Returns a breaker that five consecutive failures have opened at `now`, and the end of its open time.
fn opened(now: Moment) -> (Breaker, Moment) {
    let breaker = breaker();
    for _ in 0..4 {
        assert_eq!(fail(&breaker, now), None);
    }
    let Some(PhaseChange::Opened { open_time, why }) = fail(&breaker, now) else {
        panic!("five consecutive failures open the circuit");
    };
    assert_eq!(why, OpenCause::ConsecutiveFailures);
    (breaker, now.after(open_time))
}

/// Whether an open time differs from `expected` by at most 10 %.
fn is_about(open_time: Duration, expected: Duration) -> bool {
    (expected.mul_f64(0.9)..=expected.mul_f64(1.1)).contains(&open_time)
}

#[test]
fn consecutive_failures_open_the_circuit_and_a_success_resets_the_count() {
    let breaker = breaker();
    for _ in 0..3 {
        for _ in 0..4 {
            assert_eq!(fail(&breaker, at(0)), None);
        }
        assert_eq!(succeed(&breaker, at(0)), None);
        assert_eq!(breaker.snapshot(at(0)).consecutive_failures, 0);
    }
    let (breaker, until) = opened(at(0));
    assert!(!breaker.is_closed());
    let wait = until.since(at(1));
    assert!(is_about(until.since(at(0)), Duration::from_secs(5)));
    let not_admitted = breaker.admit(at(1)).expect_err("the circuit is open");
    assert_eq!(not_admitted, NotAdmitted { wait: Some(wait) });
}

#[test]
fn failure_ratio_opens_the_circuit_from_min_requests_on() {
    let breaker = breaker();
    for _ in 0..9 {
        assert_eq!(succeed(&breaker, at(0)), None);
        assert_eq!(fail(&breaker, at(0)), None);
    }
    assert_eq!(succeed(&breaker, at(0)), None);
    let Some(PhaseChange::Opened { why, .. }) = fail(&breaker, at(0)) else {
        panic!("10 of 20 requests reach the ratio of 0.5");
    };
    assert_eq!(why, OpenCause::FailureRatio);
}

#[test]
fn failures_before_the_window_do_not_count() {
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
fn after_the_open_time_one_successful_probe_closes_the_circuit_and_resets_the_counts() {
    let (breaker, until) = opened(at(0));
    assert!(!breaker.may_admit(at(1)));
    assert!(breaker.may_admit(until));
    let probe = breaker.admit(until).expect("the open time is over");
    assert!(probe.is_probe());
    assert!(!breaker.may_admit(until));
    let not_admitted = breaker.admit(until).expect_err("a probe is in flight");
    assert_eq!(not_admitted, NotAdmitted { wait: None });
    assert_eq!(breaker.recovered_at(), None);
    assert_eq!(
        breaker.succeeded(probe, 0, until),
        Some(PhaseChange::Closed)
    );
    assert!(breaker.is_closed());
    assert_eq!(breaker.recovered_at(), Some(until));
    assert_eq!(
        breaker.snapshot(until),
        BreakerSnapshot {
            state: BreakerState::Closed,
            since: until,
            consecutive_failures: 0,
            openings: 1,
            why: Some(OpenCause::ConsecutiveFailures),
            succeeded: 0,
            failed: 0,
        }
    );
}

#[test]
fn each_failed_probe_doubles_the_open_time_up_to_open_max() {
    let (breaker, mut until) = opened(at(0));
    for expected in [10, 20, 40, 60, 60] {
        let Some(PhaseChange::Opened { open_time, why }) = fail(&breaker, until) else {
            panic!("a failed probe opens the circuit again");
        };
        assert_eq!(why, OpenCause::FailedProbe);
        assert!(
            is_about(open_time, Duration::from_secs(expected)),
            "{open_time:?}"
        );
        until = until.after(open_time);
    }
    assert_eq!(succeed(&breaker, until), Some(PhaseChange::Closed));
    for _ in 0..4 {
        fail(&breaker, until);
    }
    let Some(PhaseChange::Opened { open_time, .. }) = fail(&breaker, until) else {
        panic!("five consecutive failures open the circuit");
    };
    assert!(is_about(open_time, Duration::from_secs(5)), "{open_time:?}");
}

#[test]
fn open_times_vary_by_10_percent_in_both_directions() {
    let rule = breaker().rule;
    let mut random = random();
    let times: Vec<_> = (0..1_000)
        .map(|_| rule.open_time(ServerFailure::Response, 0, &mut random))
        .collect();
    assert!(times.iter().all(|time| is_about(*time, rule.open)));
    assert!(times.iter().min() < Some(&rule.open.mul_f64(0.91)));
    assert!(times.iter().max() > Some(&rule.open.mul_f64(1.09)));
}

#[test]
fn results_of_requests_sent_before_the_opening_are_ignored_while_open() {
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
fn results_of_requests_sent_before_the_opening_are_ignored_during_the_probe_and_after_it() {
    let breaker = breaker();
    let mut late: Vec<_> = (0..8)
        .map(|_| breaker.admit(at(0)).expect("closed"))
        .collect();
    for _ in 0..5 {
        fail(&breaker, at(0));
    }
    let probe = breaker.admit(at(6_000)).expect("the open time is over");
    let before = breaker.snapshot(at(6_000));
    assert_eq!(breaker.succeeded(late.remove(0), 1, at(6_000)), None);
    assert_eq!(report(&breaker, late.remove(0), at(6_000)), None);
    assert_eq!(breaker.snapshot(at(6_000)), before);
    breaker.succeeded(probe, 0, at(6_000));
    for permit in late {
        assert_eq!(report(&breaker, permit, at(6_000)), None);
    }
    let after = breaker.snapshot(at(6_000));
    assert_eq!((after.consecutive_failures, after.failed), (0, 0));
}

#[test]
fn a_dropped_probe_frees_its_slot_immediately() {
    let (breaker, until) = opened(at(0));
    drop(breaker.admit(until).expect("the open time is over"));
    assert_eq!(breaker.snapshot(until).state, BreakerState::HalfOpen);
    drop(breaker.admit(until).expect("the first probe was dropped"));
    let probe = breaker.admit(until).expect("the second probe was dropped");
    assert!(probe.is_probe());
    assert_eq!(
        breaker.succeeded(probe, 0, until),
        Some(PhaseChange::Closed)
    );
}

#[test]
fn a_dropped_permit_of_a_closed_circuit_is_not_counted() {
    let breaker = breaker();
    drop(breaker.admit(at(0)).expect("closed"));
    let snapshot = breaker.snapshot(at(0));
    assert_eq!((snapshot.succeeded, snapshot.failed), (0, 0));
    assert!(breaker.is_closed());
}

#[test]
fn a_circuit_held_open_by_an_operator_stays_open_until_the_operator_closes_it() {
    let breaker = breaker();
    let late = breaker.admit(at(0)).expect("closed");
    let opened = PhaseChange::Opened {
        open_time: Duration::MAX,
        why: OpenCause::Operator,
    };
    assert_eq!(breaker.hold_open(at(0)), Some(opened));
    assert_eq!(breaker.hold_open(at(1)), None);
    let years = Moment::from_nanos(u64::MAX);
    assert_eq!(breaker.admit(years).err(), Some(NotAdmitted { wait: None }));
    let held = BreakerState::Open {
        remaining: None,
        held: true,
    };
    assert_eq!(breaker.snapshot(years).state, held);
    assert_eq!(breaker.succeeded(late, 0, at(2)), None);
    assert_eq!(breaker.close(at(3)), Some(PhaseChange::Closed));
    assert_eq!(breaker.recovered_at(), Some(at(3)));
    assert!(breaker.is_closed());
}

#[test]
fn a_circuit_held_open_during_a_probe_ignores_the_probe() {
    let (breaker, until) = opened(at(0));
    let probe = breaker.admit(until).expect("the open time is over");
    assert!(breaker.hold_open(until).is_some());
    assert_eq!(breaker.succeeded(probe, 0, until), None);
    assert!(!breaker.may_admit(until));
}

#[test]
fn closing_a_closed_circuit_resets_the_counts() {
    let breaker = breaker();
    for _ in 0..4 {
        fail(&breaker, at(0));
    }
    assert_eq!(breaker.close(at(0)), None);
    assert_eq!(breaker.recovered_at(), None);
    let snapshot = breaker.snapshot(at(0));
    assert_eq!((snapshot.consecutive_failures, snapshot.failed), (0, 0));
    assert_eq!(fail(&breaker, at(0)), None);
}

#[test]
fn a_disabled_breaker_is_opened_and_closed_only_by_an_operator() {
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
fn a_circuit_is_half_open_after_its_open_time_even_without_requests() {
    let (breaker, until) = opened(at(0));
    let later = until.after(Duration::from_hours(1));
    let idle = breaker.snapshot(later);
    assert_eq!((idle.state, idle.since), (BreakerState::HalfOpen, until));
    let _probe = breaker.admit(later).expect("the open time is over");
    let probed = breaker.snapshot(later);
    assert_eq!(
        (probed.state, probed.since),
        (BreakerState::HalfOpen, until)
    );
}

#[test]
fn of_a_thousand_concurrent_requests_after_the_open_time_one_is_the_probe() {
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
        let admissions = clients.into_iter().map(|client| client.join().unwrap());
        admissions.filter_map(Result::ok).collect::<Vec<_>>()
    });
    assert_eq!(admitted.len(), 1);
    assert!(admitted[0].is_probe());
}

#[test]
fn two_simultaneous_requests_are_never_both_the_probe() {
    const ROUNDS: usize = 20_000;
    let (breaker, until) = opened(at(0));
    let arrived = AtomicUsize::new(0);
    let meet = |times: usize| {
        arrived.fetch_add(1, Ordering::SeqCst);
        while arrived.load(Ordering::SeqCst) < 2 * times {
            thread::yield_now();
        }
    };
    let admit_repeatedly = || {
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
        let other = scope.spawn(admit_repeatedly);
        admit_repeatedly() + other.join().unwrap()
    });
    assert_eq!(probes, ROUNDS);
    assert!(breaker.may_admit(until));
}

#[test]
fn of_many_concurrent_failures_one_opens_the_circuit() {
    let breaker = breaker();
    let permits: Vec<_> = (0..64).map(|_| breaker.admit(at(0)).unwrap()).collect();
    let start = Barrier::new(permits.len());
    let changes = thread::scope(|scope| {
        let failures: Vec<_> = permits
            .into_iter()
            .map(|permit| {
                scope.spawn(|| {
                    start.wait();
                    report(&breaker, permit, at(0))
                })
            })
            .collect();
        let changes = failures.into_iter().map(|failure| failure.join().unwrap());
        changes.flatten().count()
    });
    assert_eq!(changes, 1);
    assert_eq!(breaker.snapshot(at(0)).openings, 1);
}
