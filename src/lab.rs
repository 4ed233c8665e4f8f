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
mod stated;
pub(crate) mod verdict;

use http::Version;

use self::rules::count;
use crate::scenario::observation::{Attempt, Observed};

/// Actions that exist only on HTTP/2. On HTTP/1, they reset the connection.
const HTTP2_ACTIONS: [&str; 2] = ["goaway", "refused-stream"];

/// Returns remarks on a record that a reader of the verdicts needs.
pub(crate) fn notes(observed: &Observed) -> Vec<String> {
    let requests = |number| count(number, "request", "requests");
    let mut notes = Vec::new();
    for action in HTTP2_ACTIONS {
        let on_http1 = observed
            .attempts
            .iter()
            .filter(|attempt| attempt.version <= Version::HTTP_11 && has_action(attempt, action));
        match on_http1.count() {
            0 => {}
            number => notes.push(format!(
                "`{action}` acted as `reset` on {} with HTTP/1",
                requests(number)
            )),
        }
    }
    if observed.unrecorded > 0 {
        let number = usize::try_from(observed.unrecorded).unwrap_or(usize::MAX);
        notes.push(format!(
            "{} not judged, because the record was full",
            requests(number)
        ));
    }
    notes
}

/// Whether the step that determined a response has this action. The values of options are not searched, because they
/// can contain any text.
fn has_action(attempt: &Attempt, action: &str) -> bool {
    let step = attempt.step.as_deref().unwrap_or_default();
    let mut is_quoted = false;
    let mut is_escaped = false;
    let mut words = step.split(|character| {
        is_quoted ^= character == '"' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        character == ' ' && !is_quoted
    });
    words.any(|word| word == action)
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::simulated::{attempt, client, observed};
    use super::*;

    /// Returns a request with HTTP/1.1 that this step determined.
    fn on_http1(step: &str) -> Attempt {
        Attempt {
            step: Some(step.into()),
            ..attempt(client(1), std::time::Duration::ZERO, Method::GET, "/")
        }
    }

    #[test]
    fn notes_count_the_requests_on_which_an_action_had_another_effect() {
        let once = || on_http1("delay 1s + goaway times=2");
        let http2 = Attempt {
            version: Version::HTTP_2,
            ..once()
        };
        let mut record = observed(vec![once(), http2]);
        assert_eq!(
            notes(&record),
            ["`goaway` acted as `reset` on 1 request with HTTP/1"]
        );
        record.attempts.push(once());
        record.unrecorded = 1;
        assert_eq!(
            notes(&record),
            [
                "`goaway` acted as `reset` on 2 requests with HTTP/1",
                "1 request not judged, because the record was full"
            ]
        );
    }

    #[test]
    fn the_text_of_a_body_is_not_an_action() {
        for step in [
            r#"200 body="a goaway b""#,
            r#"200 body="a \" goaway b" header="A: goaway""#,
            r#"200 body="\\" retry-after=goaway"#,
        ] {
            assert_eq!(notes(&observed(vec![on_http1(step)])), [""; 0], "{step}");
        }
        let quoted = on_http1(r#"goaway body="a b""#);
        assert_eq!(notes(&observed(vec![quoted])).len(), 1);
    }
}
