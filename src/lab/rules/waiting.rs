//! Rules `retry-after` and `long-retry-after`: a client waits for the time that a response states.

use std::time::Duration;

use super::{Finding, GroupedTrace, ObservedRetry, count, readable, readable_range};
use crate::lab::outcome::Outcome;
use crate::lab::stated::{Form, Stated, StatedTimes};
use crate::lab::verdict::Evidence;
use crate::scenario::trace::Attempt;

/// Least stated time that the rule `long-retry-after` judges. Shorter times belong to `retry-after`.
const LONG: Duration = Duration::from_mins(1);

struct Waited<'r, 'a> {
    retry: &'r ObservedRetry<'a>,
    stated: Stated,
    gap: Duration,
}

impl Waited<'_, '_> {
    fn is_early(&self, tolerance: Duration) -> bool {
        self.gap.saturating_add(tolerance) < self.stated.wait
    }

    fn early_by(&self) -> Duration {
        self.stated.wait.saturating_sub(self.gap)
    }

    fn evidence(&self) -> Evidence {
        let (header, wait) = (self.stated.header, readable(self.stated.wait));
        let form = self.stated.form.name();
        let gap = readable(self.gap);
        let early = match self.early_by() {
            Duration::ZERO => String::new(),
            early => format!(" ({} early)", readable(early)),
        };
        let text = format!("{header} ({form}) states {wait}, retried after {gap}{early}");
        self.retry.evidence(text)
    }
}

fn waited<'r, 'a>(trace: &'r GroupedTrace<'a>, is_long: bool) -> Vec<Waited<'r, 'a>> {
    let retries = trace.retries.iter();
    let waited = retries.filter(|retry| matches!(retry.outcome, Outcome::Retryable(_)));
    let waited = waited.filter_map(|retry| {
        let stated = retry.stated.shortest()?;
        ((stated.wait >= LONG) == is_long).then(|| Waited {
            retry,
            stated,
            gap: retry.gap(),
        })
    });
    waited.collect()
}

pub(super) fn retry_after(trace: &GroupedTrace<'_>) -> Finding {
    let waited = waited(trace, false);
    if waited.is_empty() {
        return Finding::not_enough_data("No response with a stated time was retried.");
    }
    let (early, in_time): (Vec<_>, Vec<_>) = waited
        .iter()
        .partition(|waited| waited.is_early(trace.tolerance));
    if let Some(earliest) = early.iter().max_by_key(|waited| waited.early_by()) {
        let summary = format!(
            "{} of {} arrived before the stated time, up to {} early.",
            early.len(),
            count(waited.len(), "retry", "retries"),
            readable(earliest.early_by()),
        );
        return Finding::fail(summary)
            .with(early.iter().map(|waited| waited.evidence()))
            .unless_separate(early.iter().map(|waited| waited.retry.next));
    }
    let obeyed = in_time.iter().filter_map(|waited| {
        let stated = waited.retry.stated.obeyed(waited.gap, trace.tolerance)?;
        Some(stated.form)
    });
    let mut forms: Vec<_> = obeyed.collect();
    forms.sort_unstable();
    forms.dedup();
    let forms: Vec<_> = forms.into_iter().map(Form::name).collect();
    let summary = format!(
        "{} waited for the stated time (form of the header: {}).",
        count(in_time.len(), "retry", "retries"),
        forms.join(", "),
    );
    Finding::pass(summary).with(in_time.iter().map(|waited| waited.evidence()))
}

pub(super) fn long_retry_after(trace: &GroupedTrace<'_>) -> Finding {
    let waited = waited(trace, true);
    let (early, in_time): (Vec<_>, Vec<_>) = waited
        .iter()
        .partition(|waited| waited.is_early(trace.tolerance));
    if !early.is_empty() {
        let gaps = early.iter().map(|waited| waited.gap);
        let summary = format!(
            "Retries early if the stated time is a minute or more: {} of {}, after {}. This is its apparent cap.",
            early.len(),
            count(waited.len(), "retry", "retries"),
            readable_range(gaps),
        );
        return Finding::fail(summary).with(early.iter().map(|waited| waited.evidence()));
    }
    if !in_time.is_empty() {
        let waits = in_time.iter().map(|waited| waited.stated.wait);
        let summary = format!("Waits for the stated time of {}.", readable_range(waits));
        return Finding::pass(summary).with(in_time.iter().map(|waited| waited.evidence()));
    }
    let unanswered = trace
        .operations
        .iter()
        .map(|operation| trace.last(operation));
    let given_up: Vec<_> = unanswered
        .filter_map(|(index, attempt)| Some((index, attempt, long_stated(trace, attempt)?)))
        .collect();
    if given_up.is_empty() {
        return Finding::not_enough_data("No response stated a time of a minute or more.");
    }
    let number = count(given_up.len(), "response", "responses");
    if !trace.has_ended {
        return Finding::not_enough_data(format!(
            "{number} stated a minute or more, and the trace ended before that time."
        ));
    }
    let evidence = given_up.iter().map(|(index, attempt, stated)| Evidence {
        attempt: Some(*index),
        text: format!(
            "{} at {}, {} states {}, not retried",
            Outcome::of(attempt),
            readable(attempt.arrived),
            stated.header,
            readable(stated.wait),
        ),
    });
    Finding::pass(format!(
        "Gives up if the stated time is a minute or more ({number} not retried)."
    ))
    .with(evidence)
}

fn long_stated(trace: &GroupedTrace<'_>, attempt: &Attempt) -> Option<Stated> {
    let response = attempt.response.as_ref()?;
    if !matches!(Outcome::of(attempt), Outcome::Retryable(_)) {
        return None;
    }
    let stated = StatedTimes::of(response, trace.started).shortest()?;
    (stated.wait >= LONG).then_some(stated)
}
