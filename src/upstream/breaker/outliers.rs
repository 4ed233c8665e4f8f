//! Tests of breakers without a `[breaker]` section.

use super::*;

const NOW: Moment = Moment::from_nanos(5_000_000_000);

/// Three servers.
struct Servers([Breaker; 3]);

impl Servers {
    fn new() -> Self {
        let settings = BreakerSettings::default();
        Self([(); 3].map(|()| Breaker::new(&settings, Duration::from_secs(65), 1)))
    }

    fn report(&self, server: usize, result: Result<(), Failure>, now: Moment) -> Option<Change> {
        let breaker = &self.0[server];
        let ticket = breaker.admit(now).expect("admitted");
        let others = self.0.iter().filter(|other| !std::ptr::eq(*other, breaker));
        match result {
            Ok(()) => breaker.succeeded(ticket, 0, now),
            Err(failure) => {
                let random = &mut fastrand::Rng::with_seed(7);
                breaker.failed(ticket, failure, (0, now), random, others)
            }
        }
    }

    /// Reports successes, then response failures. Returns why the circuit opened, if it did.
    fn respond(&self, server: usize, succeeded: usize, failed: usize) -> Option<Cause> {
        for _ in 0..succeeded {
            self.report(server, Ok(()), NOW);
        }
        let report = |_| match self.report(server, Err(Failure::Response), NOW)? {
            Change::Opened { why, .. } => Some(why),
            Change::Closed => None,
        };
        (0..failed).find_map(report)
    }

    fn probe(&self, server: usize, now: Moment) -> Ticket {
        let ticket = self.0[server].admit(now).expect("a probe");
        assert!(ticket.is_probe());
        ticket
    }
}

/// A moment after the first open time, and after the window.
fn later() -> Moment {
    NOW.after(Duration::from_secs(11))
}

#[test]
fn the_responses_of_a_single_server_never_open_it() {
    let servers = Servers::new();
    assert_eq!(servers.respond(0, 0, 1_000), None);
    assert!(servers.0[0].is_closed());
    assert_eq!(servers.0[0].snapshot(NOW).failed, 1_000);
}

#[test]
fn an_outlier_is_one_server_at_the_ratio_with_the_others_below_half_of_it() {
    // Successes and failures of the other two, and whether the first one opens at 10 of 20.
    for (others, opens) in [
        ([(20, 0), (20, 0)], true),
        ([(16, 4), (16, 4)], true),
        ([(15, 5), (20, 0)], false),
        ([(10, 10), (20, 0)], false),
        // A server needs as many requests to be known as healthy, and fewer to be known as failing.
        ([(20, 0), (19, 0)], true),
        ([(20, 0), (4, 1)], true),
        ([(20, 0), (3, 1)], false),
        ([(19, 0), (19, 0)], false),
        ([(20, 0), (0, 0)], true),
        ([(0, 0), (0, 0)], false),
    ] {
        let servers = Servers::new();
        for (server, (succeeded, failed)) in (1..).zip(others) {
            servers.respond(server, 0, failed);
            servers.respond(server, succeeded, 0);
        }
        assert_eq!(servers.respond(0, 10, 9), None, "{others:?}");
        let expected = opens.then_some(Cause::Outlier);
        assert_eq!(servers.respond(0, 0, 1), expected, "{others:?}");
        assert_eq!(servers.0[0].is_outlier(), opens, "{others:?}");
    }
}

#[test]
fn a_row_of_response_failures_makes_an_outlier_despite_earlier_successes() {
    let servers = Servers::new();
    for server in 0..3 {
        servers.respond(server, 3_000, 0);
    }
    assert_eq!(servers.respond(0, 0, 19), None);
    // A success ends the row, and so does a connect failure.
    assert_eq!(servers.respond(0, 1, 19), None);
    assert_eq!(servers.report(0, Err(Failure::Connect), NOW), None);
    assert_eq!(servers.respond(0, 0, 19), None);
    assert_eq!(servers.0[0].snapshot(NOW).in_a_row, 19);
    assert_eq!(servers.respond(0, 0, 1), Some(Cause::Outlier));
}

#[test]
fn a_row_makes_no_outlier_while_the_last_result_of_another_server_is_a_failure() {
    for failure in [Failure::Response, Failure::Connect] {
        let servers = Servers::new();
        for server in 0..3 {
            servers.respond(server, 3_000, 0);
        }
        assert_eq!(servers.report(2, Err(failure), NOW), None);
        assert_eq!(servers.respond(0, 0, 100), None);
        servers.respond(2, 1, 0);
        assert_eq!(servers.respond(0, 0, 1), Some(Cause::Outlier));
    }
}

#[test]
fn servers_that_turn_bad_at_the_same_time_are_no_outliers() {
    let servers = Servers::new();
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
fn a_row_needs_its_requests_within_the_window() {
    let servers = Servers::new();
    servers.respond(0, 0, 19);
    for _ in 0..20 {
        servers.report(1, Ok(()), later());
    }
    assert_eq!(servers.report(0, Err(Failure::Response), later()), None);
    assert_eq!(servers.0[0].snapshot(later()).in_a_row, 20);
}

#[test]
fn at_most_one_server_is_an_outlier() {
    let servers = Servers::new();
    servers.respond(1, 60, 0);
    servers.respond(2, 60, 0);
    assert_eq!(servers.respond(0, 0, 20), Some(Cause::Outlier));
    assert_eq!(servers.respond(1, 0, 100), None);
    // A failed probe does not change that, nor does the end of the window.
    let probe = servers.probe(0, later());
    assert!(!probe.probes_connection());
    let failed = servers.0[0].failed(
        probe,
        Failure::Response,
        (0, later()),
        &mut fastrand::Rng::with_seed(7),
        std::iter::empty(),
    );
    assert!(matches!(failed, Some(Change::Opened { why, .. }) if why == Cause::FailedProbe));
    assert!(servers.0[0].is_outlier());
}

#[test]
fn a_server_that_is_down_is_no_evidence() {
    let servers = Servers::new();
    for _ in 0..5 {
        servers.report(1, Err(Failure::Connect), NOW);
    }
    assert!(!servers.0[1].is_closed() && !servers.0[1].is_outlier());
    servers.0[2].hold_open(NOW);
    assert_eq!(servers.respond(0, 0, 100), None);
    servers.0[2].close(NOW);
    servers.respond(2, 20, 0);
    assert_eq!(servers.respond(0, 0, 1), Some(Cause::Outlier));
}

#[test]
fn connect_failures_open_it_in_a_row_and_by_ratio() {
    let servers = Servers::new();
    let refused = |server| servers.report(server, Err(Failure::Connect), NOW);
    for _ in 0..4 {
        assert_eq!(refused(0), None);
    }
    // A response ends the row, even a response failure.
    assert_eq!(servers.respond(0, 0, 1), None);
    for _ in 0..4 {
        assert_eq!(refused(0), None);
    }
    let opened = refused(0);
    assert!(matches!(opened, Some(Change::Opened { why, .. }) if why == Cause::InARow));

    for _ in 0..9 {
        assert_eq!(refused(1), None);
        assert_eq!(servers.respond(1, 0, 1), None);
    }
    servers.respond(1, 1, 0);
    let opened = refused(1);
    assert!(matches!(opened, Some(Change::Opened { why, .. }) if why == Cause::Ratio));
}

#[test]
fn a_connection_is_all_that_a_probe_of_an_unreachable_server_has_to_establish() {
    let servers = Servers::new();
    for _ in 0..5 {
        servers.report(0, Err(Failure::Connect), NOW);
    }
    let probe = servers.probe(0, later());
    assert!(probe.probes_connection());
    drop(probe);
    let closed = servers.report(0, Err(Failure::Response), later());
    assert_eq!(closed, Some(Change::Closed));
}

#[test]
fn an_outlier_closes_when_it_is_the_last_server() {
    let servers = Servers::new();
    servers.respond(1, 20, 0);
    servers.respond(0, 0, 20);
    let [outlier, other, _] = &servers.0;
    assert_eq!(outlier.close_outlier(NOW), Some(Change::Closed));
    assert!(outlier.is_closed() && !outlier.is_outlier());
    assert_eq!(outlier.close_outlier(NOW), None);
    other.hold_open(NOW);
    assert_eq!(other.close_outlier(NOW), None);
    assert!(!other.is_closed());
}
