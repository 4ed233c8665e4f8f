//! Scenarios: scripted responses and faults, with which the retries of a client are tested.
//!
//! The stage runs after the rate limits and before the idempotency stage. The module `lab` judges the traces. All state
//! that a client can create is bounded: the runs of a scenario, the positions of a run, and the bytes of all traces
//! together.

mod position;
pub(crate) mod respond;
mod runs;
mod state;
pub(crate) mod step;
mod timer_delay;
pub(crate) mod trace;
mod traced_attempt;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use self::step::{Extent, Step, StepAction};

pub(crate) use position::Position;
pub(crate) use state::{RunInfo, ScenarioState, Scenarios};
pub(crate) use traced_attempt::TracedAttempt;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) name: Arc<str>,
    pub(crate) summary: Option<String>,
    /// At least one.
    pub(crate) steps: Vec<Arc<Step>>,
    pub(crate) at_end: AtEnd,
    pub(crate) by: CountBy,
    /// Of the choices of `chance`.
    pub(crate) seed: u64,
}

/// What happens to requests after the last step of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AtEnd {
    /// Requests go to the upstream. Without an upstream, they get 200.
    Pass,
    /// The last step applies to all further requests.
    Repeat,
    /// The scenario starts again with its first step.
    Restart,
}

/// Which requests count together through the steps of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CountBy {
    /// The requests of a client.
    Client,
    /// The requests of a client with the same `Idempotency-Key`.
    Key,
    /// The requests with the same id in the header `X-Tidegate-Test` or in a path prefix `/t/ID/`. Requests without an
    /// id count by client.
    Test,
}

impl Scenario {
    /// Only the listener of the lab can refuse connections.
    pub(crate) fn refuses_connections(&self) -> bool {
        self.steps
            .iter()
            .any(|step| step.action == StepAction::Refuse)
    }

    /// Sum of all delays, stalls, outages and stated waits. A client that obeys them takes this long.
    pub(crate) fn longest_wait(&self) -> Duration {
        let waits = self.steps.iter().map(|step| {
            let stall = match step.action {
                StepAction::Stall(time) => time,
                _ => Duration::ZERO,
            };
            // A step can state a wait of any length.
            let parts = [step.delay, stall, step.stated_wait(), step.transfer_time()];
            let once = parts
                .into_iter()
                .fold(Duration::ZERO, Duration::saturating_add);
            match step.extent {
                Extent::Times(times) => once.saturating_mul(times.get()),
                Extent::For(time) => once.saturating_add(time),
            }
        });
        waits.fold(Duration::ZERO, Duration::saturating_add)
    }
}

impl Step {
    fn stated_wait(&self) -> Duration {
        use step::RetryAfterText;
        let seconds = |text: &str| text.parse().ok().map(Duration::from_secs);
        let in_headers = self.headers.iter().filter_map(|(name, value)| {
            let text = value.to_str().ok()?;
            match name.as_str() {
                "retry-after" => seconds(text),
                "retry-after-ms" | "x-amz-retry-after" => {
                    text.parse().ok().map(Duration::from_millis)
                }
                _ => None,
            }
        });
        let in_headers = in_headers.max().unwrap_or_default();
        in_headers.max(match &self.retry_after {
            Some(RetryAfterText::Literal(value)) => {
                value.to_str().ok().and_then(seconds).unwrap_or_default()
            }
            Some(RetryAfterText::DateIn(time)) => time.saturating_add(Duration::from_secs(1)),
            Some(RetryAfterText::DateBefore(_)) | None => Duration::ZERO,
        })
    }

    fn transfer_time(&self) -> Duration {
        let length = self
            .body
            .as_ref()
            .map_or(respond::DEFAULT_BODY, |body| body.len() as u64);
        match self.rate {
            Some(rate) => Duration::from_secs(length / rate.max(1)),
            None => Duration::ZERO,
        }
    }
}
