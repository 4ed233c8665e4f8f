use http::HeaderValue;

use super::*;
use crate::scenario::step::RetryAfterText;

fn valid(text: &str) -> Step {
    step(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Parses an invalid step. Returns the error, and the part of the text that it points to.
fn invalid(text: &str) -> (String, &str) {
    let error = step(text).expect_err(text);
    let part = error.part.clone().map_or("", |part| &text[part]);
    (error.to_string(), part)
}

#[test]
fn every_action_is_parsed() {
    let action = |text: &str| valid(text).action;
    assert_eq!(
        action("503"),
        StepAction::Respond(StatusCode::SERVICE_UNAVAILABLE)
    );
    assert_eq!(action("pass"), StepAction::Pass);
    assert_eq!(
        action("stall 10s"),
        StepAction::Stall(Duration::from_secs(10))
    );
    assert_eq!(action("reset"), StepAction::Reset);
    assert_eq!(action("truncate"), StepAction::Truncate);
    assert_eq!(action("executed-then-lost"), StepAction::ExecutedThenLost);
    assert_eq!(action("goaway"), StepAction::GoAway);
    assert_eq!(action("refused-stream"), StepAction::RefusedStream);
    assert_eq!(action("refuse"), StepAction::Refuse);
    assert_eq!(valid("delay 1s").delay, Duration::from_secs(1));
    assert_eq!(valid("slow 1KiB").rate, Some(1_024));
    assert_eq!(valid("slow 1KiB/s").rate, Some(1_024));
}

#[test]
fn actions_are_combined_with_plus() {
    let step = valid("delay 200ms + slow 2KiB + 429 retry-after=2");
    assert_eq!(step.delay, Duration::from_millis(200));
    assert_eq!(step.rate, Some(2_048));
    assert_eq!(
        step.action,
        StepAction::Respond(StatusCode::TOO_MANY_REQUESTS)
    );
    assert_eq!(valid("429 + delay 1s").delay, Duration::from_secs(1));
    assert_eq!(valid("delay 1s + reset").action, StepAction::Reset);
}

#[test]
fn every_option_is_parsed() {
    let step = valid(
        r#"truncate after=1KiB header="X-A: b c" header="X-D: e" body="a\n\"b\"   " times=3"#
            .replace("   ", &"x".repeat(2_000))
            .as_str(),
    );
    assert_eq!(step.after, Some(1_024));
    assert_eq!(step.headers.len(), 2);
    assert_eq!(step.headers[0].1, "b c");
    assert!(step.body.unwrap().starts_with(b"a\n\"b\"xx"));
    assert_eq!(step.extent, Extent::Times(NonZeroU32::new(3).unwrap()));
    let step = valid("503 for=20s chance=30%");
    assert_eq!(step.extent, Extent::For(Duration::from_secs(20)));
    assert!((step.chance - 0.3).abs() < 1e-9);
    assert_eq!(valid("refuse").extent, Extent::For(Duration::from_secs(1)));
    assert_eq!(
        valid("refuse for=5s").extent,
        Extent::For(Duration::from_secs(5))
    );
}

#[test]
fn retry_after_can_be_seconds_a_date_or_any_text() {
    let value = |text: &str| valid(text).retry_after.unwrap();
    let literal = |text| RetryAfterText::Literal(HeaderValue::from_static(text));
    assert_eq!(value("429 retry-after=2"), literal("2"));
    assert_eq!(value("429 retry-after=-1"), literal("-1"));
    assert_eq!(
        value("429 retry-after=\"in a minute\""),
        literal("in a minute")
    );
    let time = Duration::from_secs(10);
    assert_eq!(
        value("429 retry-after=http-date:+10s"),
        RetryAfterText::DateIn(time)
    );
    assert_eq!(
        value("429 retry-after=http-date:-10s"),
        RetryAfterText::DateBefore(time)
    );
}

#[test]
fn errors_point_to_the_wrong_word_and_contain_a_remedy() {
    let cases = [
        ("", "", "step is empty"),
        ("rest", "rest", "did you mean `reset`?"),
        ("700", "700", "from 200 to 599"),
        ("100", "100", "from 200 to 599"),
        (
            "429 retry-afer=2",
            "retry-afer=2",
            "did you mean `retry-after`?",
        ),
        ("429 503", "503", "join actions with `+`"),
        ("429 + 503", "503", "one outcome per step"),
        ("429 +", "+", "no action follows"),
        ("+ 429", "+", "does not follow an action"),
        ("times=2 429", "times=2", "precedes the action"),
        ("delay", "delay", "write `delay 200ms`"),
        ("delay soon", "soon", "not a duration"),
        ("slow 0", "0", "at least 1 byte"),
        ("503 times=0", "times=0", "at least 1"),
        ("503 times=2 times=3", "times=3", "twice"),
        ("delay 1s + delay 2s + 503", "delay", "twice"),
        ("503 chance=130%", "chance=130%", "from 0% to 100%"),
        ("503 chance=0.3", "chance=0.3", "chance=30%"),
        ("503 for=1s times=2", "times=2", "both given"),
        ("503 after=1KiB", "after=1KiB", "no effect on `503`"),
        (
            "reset retry-after=2",
            "retry-after=2",
            "no effect on `reset`",
        ),
        ("pass body=x", "body=x", "no effect on `pass`"),
        ("refuse times=2", "times=2", "no effect on `refuse`"),
        ("204 body=x", "body=x", "no effect on `204`"),
        ("truncate after=64KiB", "after=64KiB", "65536 bytes"),
        (
            "429 header=\"no colon\"",
            "header=\"no colon\"",
            "Name: value",
        ),
        (
            "429 header=\"Content-Length: 3\"",
            "header=\"Content-Length: 3\"",
            "cannot set",
        ),
        ("429 body=\"open", "\"open", "not closed"),
        (
            "429 retry-after=http-date:10s",
            "retry-after=http-date:10s",
            "http-date:+10s",
        ),
    ];
    for (text, part, message) in cases {
        let (error, found) = invalid(text);
        assert!(error.contains(message), "{text}: {error}");
        assert_eq!(found, part, "{text}: {error}");
    }
    assert!(invalid("truncate body=\"\"").0.contains("empty body"));
}
