//! Tests of upstreams without a `[breaker]` section in the configuration: outliers, and servers that accept no
//! connection.

use super::super::settings::OpensOn;
use super::*;

const NOW: Moment = Moment::from_nanos(5_000_000_000);

/// The circuit breakers of the three servers of an upstream.
struct ThreeServers([Breaker; 3]);

impl ThreeServers {
    fn new() -> Self {
        let settings = BreakerSettings::default();
        Self([(); 3].map(|()| Breaker::new(&settings, Duration::from_secs(65))))
    }

    fn report(
        &self,
        server: usize,
        result: Result<(), ServerFailure>,
        now: Moment,
    ) -> Option<PhaseChange> {
        let breaker = &self.0[server];
        let permit = breaker.admit(now).expect("admitted");
        let others = self.0.iter().filter(|other| !std::ptr::eq(*other, breaker));
        match result {
            Ok(()) => breaker.succeeded(permit, now),
            Err(failure) => {
                let random = &mut fastrand::Rng::with_seed(7);
                breaker.failed(permit, failure, now, random, others)
            }
        }
    }

    /// Reports `succeeded` successes and then `failed` response failures of `server`. Returns why its circuit opened,
    /// or `None` if it stays closed.
    fn respond(&self, server: usize, succeeded: usize, failed: usize) -> Option<OpenCause> {
        for _ in 0..succeeded {
            self.report(server, Ok(()), NOW);
        }
        let report = |_| match self.report(server, Err(ServerFailure::Response), NOW)? {
            PhaseChange::Opened { why, .. } => Some(why),
            PhaseChange::Closed => None,
        };
        (0..failed).find_map(report)
    }

    fn probe(&self, server: usize, now: Moment) -> BreakerPermit {
        let permit = self.0[server].admit(now).expect("a probe");
        assert!(permit.is_probe());
        permit
    }
}

/// Returns a time at which the first open time is over and all results at `NOW` are outside of the window.
fn later() -> Moment {
    NOW.after(Duration::from_secs(11))
}

#[test]
fn response_failures_of_a_single_server_never_open_its_circuit() {
    let servers = ThreeServers::new();
    assert_eq!(servers.respond(0, 0, 1_000), None);
    assert!(servers.0[0].is_closed());
    assert_eq!(servers.0[0].snapshot(NOW).failed, 1_000);
}

#[test]
fn a_server_at_the_ratio_is_an_outlier_if_the_others_are_below_half_of_it() {
    // Each row: (successes, failures) of the second and the third server, and whether 10 failures of 20 requests open
    // the circuit of the first server.
    for (others, opens) in [
        ([(20, 0), (20, 0)], true),
        ([(16, 4), (16, 4)], true),
        ([(15, 5), (20, 0)], false),
        ([(10, 10), (20, 0)], false),
        // A server is known to be healthy only after 20 requests. It can be known to fail after fewer requests, if at
        // least 25 % of them failed (half of `failure_ratio`). The ratio is 20 % for (4, 1), and 25 % for (3, 1).
        ([(20, 0), (19, 0)], true),
        ([(20, 0), (4, 1)], true),
        ([(20, 0), (3, 1)], false),
        ([(19, 0), (19, 0)], false),
        ([(20, 0), (0, 0)], true),
        ([(0, 0), (0, 0)], false),
    ] {
        let servers = ThreeServers::new();
        for (server, (succeeded, failed)) in (1..).zip(others) {
            servers.respond(server, 0, failed);
            servers.respond(server, succeeded, 0);
        }
        assert_eq!(servers.respond(0, 10, 9), None, "{others:?}");
        let expected = opens.then_some(OpenCause::Outlier);
        assert_eq!(servers.respond(0, 0, 1), expected, "{others:?}");
        assert_eq!(servers.0[0].is_outlier(), opens, "{others:?}");
    }
}

#[test]
fn consecutive_response_failures_make_an_outlier_despite_earlier_successes() {
    let servers = ThreeServers::new();
    for server in 0..3 {
        servers.respond(server, 3_000, 0);
    }
    assert_eq!(servers.respond(0, 0, 19), None);
    // A success ends the streak of response failures, and so does a connect failure.
    assert_eq!(servers.respond(0, 1, 19), None);
    assert_eq!(servers.report(0, Err(ServerFailure::Connect), NOW), None);
    assert_eq!(servers.respond(0, 0, 19), None);
    assert_eq!(servers.0[0].snapshot(NOW).consecutive_failures, 19);
    assert_eq!(servers.respond(0, 0, 1), Some(OpenCause::Outlier));
}

#[test]
fn consecutive_failures_make_no_outlier_while_the_last_result_of_another_server_is_a_failure() {
    for failure in [ServerFailure::Response, ServerFailure::Connect] {
        let servers = ThreeServers::new();
        for server in 0..3 {
            servers.respond(server, 3_000, 0);
        }
        assert_eq!(servers.report(2, Err(failure), NOW), None);
        assert_eq!(servers.respond(0, 0, 100), None);
        servers.respond(2, 1, 0);
        assert_eq!(servers.respond(0, 0, 1), Some(OpenCause::Outlier));
    }
}

#[test]
fn servers_that_start_to_fail_at_the_same_time_are_no_outliers() {
    let servers = ThreeServers::new();
    for server in 0..3 {
        servers.respond(server, 3_000, 0);
    }
    for _ in 0..1_000 {
        for server in 0..3 {
            assert_eq!(servers.respond(server, 0, 1), None);
        }
    }
}

#[test]
fn connect_failures_open_the_circuit_consecutively_and_by_ratio() {
    let servers = ThreeServers::new();
    let refused = |server| servers.report(server, Err(ServerFailure::Connect), NOW);
    for _ in 0..4 {
        assert_eq!(refused(0), None);
    }
    // A response failure ends the streak of connect failures, because the connection was established.
    assert_eq!(servers.respond(0, 0, 1), None);
    for _ in 0..4 {
        assert_eq!(refused(0), None);
    }
    let opened = refused(0);
    assert!(
        matches!(opened, Some(PhaseChange::Opened { why, .. }) if why == OpenCause::ConsecutiveFailures)
    );

    for _ in 0..9 {
        assert_eq!(refused(1), None);
        assert_eq!(servers.respond(1, 0, 1), None);
    }
    servers.respond(1, 1, 0);
    let opened = refused(1);
    assert!(
        matches!(opened, Some(PhaseChange::Opened { why, .. }) if why == OpenCause::FailureRatio)
    );
}

/// Creates the breaker of a sole server.
fn sole() -> Breaker {
    let settings = BreakerSettings {
        opens_on: OpensOn::ConnectTimeouts,
        ..BreakerSettings::default()
    };
    Breaker::new(&settings, Duration::from_secs(65))
}

fn fail(
    breaker: &Breaker,
    permit: BreakerPermit,
    failure: ServerFailure,
    now: Moment,
) -> Option<PhaseChange> {
    let random = &mut fastrand::Rng::with_seed(7);
    breaker.failed(permit, failure, now, random, std::iter::empty())
}

/// Returns a breaker that five connect failures have opened, and the end of its open time.
fn opened(breaker: Breaker, failure: ServerFailure) -> (Breaker, Moment) {
    let mut results = (0..5).map(|_| fail(&breaker, breaker.admit(NOW).unwrap(), failure, NOW));
    let Some(Some(PhaseChange::Opened { open_time, .. })) = results.nth(4) else {
        panic!("five failures open the circuit");
    };
    drop(results);
    assert!(open_time < Duration::from_secs(1), "{open_time:?}");
    (breaker, NOW.after(open_time))
}

#[test]
fn only_connect_timeouts_open_the_circuit_of_a_sole_server() {
    for failure in [ServerFailure::Connect, ServerFailure::Response] {
        let breaker = sole();
        for _ in 0..1_000 {
            let permit = breaker.admit(NOW).unwrap();
            assert_eq!(fail(&breaker, permit, failure, NOW), None, "{failure:?}");
        }
        assert_eq!(breaker.snapshot(NOW).failed, 1_000);
    }
    // Refused connections end a streak of timeouts, and count for the ratio as other results do.
    let breaker = sole();
    for _ in 0..3 {
        for failure in [
            [ServerFailure::ConnectTimeout; 4],
            [ServerFailure::Connect; 4],
        ]
        .concat()
        {
            let permit = breaker.admit(NOW).unwrap();
            let change = fail(&breaker, permit, failure, NOW);
            let counts = breaker.shared.circuit.lock().counts(NOW);
            let opens =
                counts.all_failures() >= 20 && 2 * counts.uncompared >= counts.all_failures();
            assert_eq!(change.is_some(), opens, "{counts:?}");
            if opens {
                return;
            }
        }
    }
    panic!("half of 20 results are timeouts");
}

#[test]
fn without_a_section_probes_after_connect_failures_are_less_than_1_s_apart() {
    let several = || Breaker::new(&BreakerSettings::default(), Duration::from_secs(65));
    for (breaker, failure) in [
        (several(), ServerFailure::Connect),
        (several(), ServerFailure::ConnectTimeout),
        (sole(), ServerFailure::ConnectTimeout),
    ] {
        let (breaker, mut until) = opened(breaker, failure);
        for _ in 0..60 {
            let probe = breaker.admit(until).expect("a probe");
            let Some(PhaseChange::Opened { open_time, .. }) = fail(&breaker, probe, failure, until)
            else {
                panic!("a failed probe opens the circuit again");
            };
            assert!(open_time < Duration::from_secs(1), "{open_time:?}");
            until = until.after(open_time);
        }
        // Probes that time out do not block the next one.
        let first = breaker.admit(until).expect("a probe");
        let after = |millis| until.after(Duration::from_millis(millis));
        assert!(breaker.admit(after(899)).is_err());
        let second = breaker.admit(after(900)).expect("another probe");
        assert!(breaker.admit(after(901)).is_err());
        // The failure of the first comes too late, but its connection would not.
        let late = breaker.admit(after(1_800)).expect("a third probe");
        assert_eq!(fail(&breaker, first, failure, after(1_801)), None);
        assert_eq!(
            breaker.succeeded(second, after(1_802)),
            Some(PhaseChange::Closed)
        );
        assert_eq!(breaker.succeeded(late, after(1_803)), None);
    }
}

#[test]
fn a_probe_after_connect_failures_succeeds_with_a_connection() {
    let servers = ThreeServers::new();
    for _ in 0..5 {
        servers.report(0, Err(ServerFailure::Connect), NOW);
    }
    let probe = servers.probe(0, later());
    assert!(probe.probes_connection());
    drop(probe);
    let closed = servers.report(0, Err(ServerFailure::Response), later());
    assert_eq!(closed, Some(PhaseChange::Closed));
}

#[test]
fn refused_probes_of_an_outlier_do_not_lengthen_its_open_time() {
    let servers = ThreeServers::new();
    servers.respond(1, 20, 0);
    assert_eq!(servers.respond(0, 0, 20), Some(OpenCause::Outlier));
    let mut now = later();
    for _ in 0..10 {
        servers.report(0, Err(ServerFailure::Connect), now);
        now = now.after(Duration::from_secs(1));
    }
    let Some(PhaseChange::Opened { open_time, .. }) =
        servers.report(0, Err(ServerFailure::Response), now)
    else {
        panic!("a failed probe opens the circuit again");
    };
    // One failed probe doubles the open time, which varies by 10 %.
    let default = BreakerSettings::default().open;
    assert!(open_time <= default.mul_f64(2.2), "{open_time:?}");
}
