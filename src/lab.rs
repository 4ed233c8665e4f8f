//! The retry lab: judges how a client retries.
//!
//! The input is the record of a scenario ([`Observed`](crate::scenario::observation::Observed)). [`operation`] groups
//! the requests into operations, [`rules`] judges the operations by one rule at a time, and [`report`] renders the
//! result for people and for programs. All of this is pure computation without I/O, so tests use simulated clients.

pub(crate) mod operation;
mod outcome;
pub(crate) mod report;
pub(crate) mod rules;
#[cfg(test)]
mod simulated;
pub(crate) mod verdict;

use http::Version;

use crate::scenario::observation::Observed;

/// Actions that exist only on HTTP/2. On HTTP/1, they reset the connection.
const HTTP2_ACTIONS: [&str; 2] = ["goaway", "refused-stream"];

/// Returns remarks on a record that a reader of the verdicts needs.
pub(crate) fn notes(observed: &Observed) -> Vec<String> {
    let mut notes = Vec::new();
    for action in HTTP2_ACTIONS {
        let on_http1 = observed.attempts.iter().filter(|attempt| {
            let step = attempt.step.as_deref().unwrap_or_default();
            attempt.version <= Version::HTTP_11 && step.split(' ').any(|word| word == action)
        });
        let count = on_http1.count();
        if count > 0 {
            notes.push(format!(
                "`{action}` acted as `reset` on {count} requests, because they used HTTP/1"
            ));
        }
    }
    if observed.unrecorded > 0 {
        notes.push(format!(
            "{} requests are not judged, because the record was full",
            observed.unrecorded
        ));
    }
    notes
}
