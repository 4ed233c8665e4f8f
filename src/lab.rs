//! The retry lab: judges how a client retries, from the trace of a scenario. Its modules compute without I/O, so tests
//! use simulated clients in virtual time.

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
use crate::scenario::step::StepAction;
use crate::scenario::trace::Trace;

/// Actions that exist only on HTTP/2. On HTTP/1, they reset the connection.
const HTTP2_ACTIONS: [(StepAction, &str); 2] = [
    (StepAction::GoAway, "goaway"),
    (StepAction::RefusedStream, "refused-stream"),
];

fn notes(trace: &Trace) -> Vec<String> {
    let requests = |number| count(number, "request", "requests");
    let mut notes = Vec::new();
    for (action, name) in HTTP2_ACTIONS {
        let on_http1 = trace.attempts.iter().filter(|attempt| {
            let has_action = attempt.step.as_ref().is_some_and(|it| it.action == action);
            has_action && attempt.version <= Version::HTTP_11
        });
        match on_http1.count() {
            0 => {}
            number => notes.push(format!(
                "`{name}` acted as `reset` on {} with HTTP/1",
                requests(number)
            )),
        }
    }
    if trace.untraced > 0 {
        let number = usize::try_from(trace.untraced).unwrap_or(usize::MAX);
        notes.push(format!(
            "{} not judged, because the trace was full",
            requests(number)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::simulated::{attempt, client, step, trace_of};
    use super::*;
    use crate::scenario::trace::Attempt;

    fn on_http1(text: &str) -> Attempt {
        Attempt {
            step: Some(step(text)),
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
        let mut trace = trace_of(vec![once(), http2]);
        assert_eq!(
            notes(&trace),
            ["`goaway` acted as `reset` on 1 request with HTTP/1"]
        );
        trace.attempts.push(once());
        trace.untraced = 1;
        assert_eq!(
            notes(&trace),
            [
                "`goaway` acted as `reset` on 2 requests with HTTP/1",
                "1 request not judged, because the trace was full"
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
            assert_eq!(notes(&trace_of(vec![on_http1(step)])), [""; 0], "{step}");
        }
        let tabbed = on_http1("delay 1s +\tgoaway\ttimes=2");
        assert_eq!(notes(&trace_of(vec![tabbed])).len(), 1);
    }
}
