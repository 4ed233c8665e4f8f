mod model_comparison;

use std::thread;

use super::super::settings::OpensOn;
use super::super::tests::at_once;
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
    Breaker::new(&settings(), PROBE)
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
    assert_eq!(breaker.succeeded(slow, later(PROBE)), None);
    assert!(breaker.admit(later(PROBE)).is_err());
    assert_eq!(
        breaker.succeeded(second, later(PROBE)),
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
    breaker.failed(permit, ServerFailure::Response, now, &mut random(), others)
}

fn succeed(breaker: &Breaker, now: Moment) -> Option<PhaseChange> {
    let permit = breaker.admit(now).expect("admitted");
    breaker.succeeded(permit, now)
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
    assert_eq!(breaker.succeeded(probe, until), Some(PhaseChange::Closed));
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
    assert_eq!(breaker.succeeded(late, at(2)), None);
    assert_eq!(breaker.close(at(3)), Some(PhaseChange::Closed));
    assert_eq!(breaker.recovered_at(), Some(at(3)));
    assert!(breaker.is_closed());
}

#[test]
fn a_disabled_breaker_is_opened_and_closed_only_by_an_operator() {
    let settings = BreakerSettings {
        opens_on: OpensOn::Nothing,
        ..settings()
    };
    let breaker = Breaker::new(&settings, PROBE);
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
fn servers_that_fail_at_the_same_time_do_not_wait_for_each_other() {
    let settings = BreakerSettings {
        opens_on: OpensOn::Outliers,
        ..settings()
    };
    let breakers = [(); 2].map(|()| Breaker::new(&settings, PROBE));
    thread::scope(|scope| {
        for (breaker, other) in
            [(0, 1), (1, 0)].map(|(it, other)| (&breakers[it], &breakers[other]))
        {
            scope.spawn(move || {
                for _ in 0..10_000 {
                    let permit = breaker
                        .admit(at(0))
                        .expect("both fail, so none is an outlier");
                    let others = std::iter::once(other);
                    breaker.failed(
                        permit,
                        ServerFailure::Response,
                        at(0),
                        &mut random(),
                        others,
                    );
                }
            });
        }
    });
}

#[test]
fn of_concurrent_requests_after_the_open_time_one_is_the_probe() {
    for _ in 0..5_000 {
        let (breaker, until) = opened(at(0));
        let admitted = at_once([until; 2], |now| breaker.admit(now).ok());
        assert_eq!(admitted.len(), 1);
        assert!(admitted[0].is_probe());
    }
}

#[test]
fn of_concurrent_failures_one_opens_the_circuit() {
    for _ in 0..5_000 {
        let breaker = breaker();
        let permits = [(); 2].map(|()| breaker.admit(at(0)).unwrap());
        for _ in 0..4 {
            fail(&breaker, at(0));
        }
        let opened = at_once(permits, |permit| report(&breaker, permit, at(0)));
        assert_eq!(opened.len(), 1);
        assert_eq!(breaker.snapshot(at(0)).openings, 1);
    }
}
