//! Decides when a connection without requests ends, and in which steps.
//!
//! ```text
//! Serving ─ stop, or idle_timeout ─→ Draining ─ header_timeout ─→ Close
//!    └───────────────────────────────────┴─ write_timeout ─────────↑
//! ```
//!
//! Only a check sees that a request is still in flight, so idle times are exact to the time between two checks.

use h2::Reason;
use tokio::time::Instant;

use crate::http::settings::ClientTimeouts;

#[derive(Debug)]
pub(super) struct Lifecycle<'a> {
    phase: Phase,
    /// When a request arrived, the connection was found busy, or it was drained because it was idle.
    last_active: Instant,
    timeouts: &'a ClientTimeouts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// GOAWAY is sent with a PING. Until the client acknowledges the PING, it can open streams.
    Draining,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// A stream has a task, or the socket is blocked, in which case its write timeout applies.
    Busy,
    /// No task serves the remaining streams: `h2` has queued bytes, and the client's flow-control windows are
    /// exhausted.
    Stalled,
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Wait,
    Drain,
    Close(Reason),
}

impl<'a> Lifecycle<'a> {
    pub(super) fn new(timeouts: &'a ClientTimeouts, now: Instant) -> Self {
        Self {
            phase: Phase::Serving,
            last_active: now,
            timeouts,
        }
    }

    pub(super) fn request(&mut self, now: Instant) {
        self.last_active = now;
    }

    pub(super) fn stop(&mut self) {
        self.phase = Phase::Draining;
    }

    pub(super) fn check(&mut self, usage: Usage, now: Instant) -> Action {
        if usage == Usage::Busy {
            self.last_active = now;
        }
        let inactive = now.saturating_duration_since(self.last_active);
        match (usage, self.phase) {
            (Usage::Stalled, _) if inactive >= self.timeouts.write => {
                Action::Close(Reason::ENHANCE_YOUR_CALM)
            }
            (Usage::Idle, Phase::Serving) if inactive >= self.timeouts.idle => {
                self.phase = Phase::Draining;
                self.last_active = now;
                Action::Drain
            }
            // The client has not acknowledged the PING in time.
            (Usage::Idle, Phase::Draining) if inactive >= self.timeouts.head => {
                Action::Close(Reason::NO_ERROR)
            }
            _ => Action::Wait,
        }
    }

    /// `now` is the time of the previous check or of the stop.
    pub(super) fn next_check(&self, now: Instant) -> Instant {
        let idle = match self.phase {
            Phase::Serving => self.timeouts.idle,
            Phase::Draining => self.timeouts.head,
        };
        now + idle.min(self.timeouts.write)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What changes on a connection. Its usage is `Idle` at first.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Request,
        Stop,
        Becomes(Usage),
    }

    use Action::{Close, Drain};
    use Event::{Becomes, Request, Stop};
    use Usage::{Busy, Idle, Stalled};

    const CALM: Reason = Reason::ENHANCE_YOUR_CALM;
    const NO_ERROR: Reason = Reason::NO_ERROR;

    /// Runs a connection until it closes, or for an hour. Events and actions have a time in seconds.
    fn run(timeouts: ClientTimeouts, events: &[(u64, Event)]) -> Vec<(u64, Action)> {
        let start = Instant::now();
        let mut lifecycle = Lifecycle::new(&timeouts, start);
        let (mut usage, mut actions) = (Idle, Vec::new());
        let (mut check, mut events) = (lifecycle.next_check(start), events.iter().peekable());
        while check < start + Duration::from_hours(1) {
            let at = |second| start + Duration::from_secs(second);
            if let Some((second, event)) = events.next_if(|(second, _)| at(*second) < check) {
                match event {
                    Request => lifecycle.request(at(*second)),
                    Becomes(next) => usage = *next,
                    Stop => {
                        lifecycle.stop();
                        check = lifecycle.next_check(at(*second));
                    }
                }
                continue;
            }
            let action = lifecycle.check(usage, check);
            if action != Action::Wait {
                actions.push(((check - start).as_secs(), action));
            }
            if matches!(action, Close(_)) {
                break;
            }
            check = lifecycle.next_check(check);
        }
        actions
    }

    /// One row of a table. The default timeouts are 75 s for an idle connection, 10 s for a head and 30 s for a write.
    #[track_caller]
    fn check(events: &[(u64, Event)], expected: &[(u64, Action)]) {
        assert_eq!(run(ClientTimeouts::default(), events), expected);
    }

    #[test]
    fn an_idle_connection_is_drained_and_then_closed() {
        check(&[], &[(90, Drain), (100, Close(NO_ERROR))]);
        let unseen = [(20, Request)];
        check(&unseen, &[(120, Drain), (130, Close(NO_ERROR))]);
        let seen = [(20, Request), (20, Becomes(Busy)), (50, Becomes(Idle))];
        check(&seen, &[(120, Drain), (130, Close(NO_ERROR))]);
    }

    #[test]
    fn a_busy_connection_is_never_closed() {
        check(&[(0, Becomes(Busy))], &[]);
        check(&[(0, Becomes(Busy)), (5, Stop)], &[]);
        check(&[(91, Becomes(Busy))], &[(90, Drain)]);
    }

    #[test]
    fn a_stalled_connection_is_closed_after_the_write_timeout() {
        check(&[(0, Becomes(Stalled))], &[(30, Close(CALM))]);
        let busy_before = [(0, Becomes(Busy)), (70, Becomes(Stalled))];
        check(&busy_before, &[(90, Close(CALM))]);
        let busy_again = [
            (20, Request),
            (20, Becomes(Stalled)),
            (35, Becomes(Busy)),
            (65, Becomes(Idle)),
        ];
        check(&busy_again, &[(150, Drain), (160, Close(NO_ERROR))]);
        let stopped = [(4, Request), (4, Becomes(Stalled)), (5, Stop)];
        check(&stopped, &[(35, Close(CALM))]);
        let drained = [(92, Request), (92, Becomes(Stalled))];
        check(&drained, &[(90, Drain), (130, Close(CALM))]);
    }

    #[test]
    fn a_stopped_connection_is_closed_when_it_was_idle_for_the_header_timeout() {
        check(&[(5, Stop)], &[(15, Close(NO_ERROR))]);
        check(&[(4, Request), (5, Stop)], &[(15, Close(NO_ERROR))]);
        check(&[(5, Stop), (6, Request)], &[(25, Close(NO_ERROR))]);
        let busy = [(0, Becomes(Busy)), (5, Stop), (50, Becomes(Idle))];
        check(&busy, &[(55, Close(NO_ERROR))]);
    }

    #[test]
    fn an_event_after_the_idle_drain_delays_the_close() {
        let request = [(92, Request), (92, Becomes(Busy)), (105, Becomes(Idle))];
        check(&request, &[(90, Drain), (110, Close(NO_ERROR))]);
        check(&[(95, Stop)], &[(90, Drain), (105, Close(NO_ERROR))]);
    }

    #[test]
    fn the_shorter_timeout_determines_the_next_check() {
        for ((idle, head, write), (drained, closed)) in [
            ((5, 10, 30), (5, 15)),
            ((5, 10, 2), (6, 16)),
            ((5, 3, 2), (6, 10)),
            ((60, 10, 60), (60, 70)),
        ] {
            let timeouts = ClientTimeouts {
                idle: Duration::from_secs(idle),
                head: Duration::from_secs(head),
                write: Duration::from_secs(write),
                ..ClientTimeouts::default()
            };
            let expected = [(drained, Drain), (closed, Close(NO_ERROR))];
            assert_eq!(run(timeouts, &[]), expected, "{timeouts:?}");
        }
    }
}
