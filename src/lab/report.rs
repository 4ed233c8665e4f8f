//! Reports on a client, for people and for programs.
//!
//! A [`Document`](document::Document) is the redacted form of a [`Report`]. All renderers read only the document, so none
//! of them can output a credential by mistake.

pub(crate) mod baseline;
pub(crate) mod document;
pub(crate) mod html;
pub(crate) mod junit;
pub(crate) mod markdown;
mod redact;
pub(crate) mod terminal;
mod text;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::notes;
use super::rules::judge;
use super::verdict::{Judgement, Verdict};
use crate::scenario::Scenario;
use crate::scenario::step::Step;
use crate::scenario::trace::Trace;

/// Result of a lab command: one or more scenarios, run in sequence.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Name of the client, from `--name`. Default: the name of the command.
    pub(crate) client: String,
    /// Version of the client, from `--client-version`.
    pub(crate) client_version: Option<String>,
    /// Time at which the first scenario started.
    pub(crate) started: SystemTime,
    /// Results in the order in which the scenarios ran.
    pub(crate) scenarios: Vec<ScenarioResult>,
    /// Whether the report includes credentials and bodies.
    pub(crate) include_secrets: bool,
}

/// Result of one scenario.
#[derive(Clone, Debug)]
pub(crate) struct ScenarioResult {
    /// Name of the scenario.
    pub(crate) name: String,
    /// What the scenario does, in one line.
    pub(crate) summary: String,
    pub(crate) steps: Vec<Arc<Step>>,
    /// Time from the start to the end of the command.
    pub(crate) duration: Duration,
    /// Requests that the gateway observed.
    pub(crate) trace: Trace,
    /// Verdicts on the requests.
    pub(crate) judgement: Judgement,
    /// Remarks on the run, such as "the command was terminated after 60 s".
    pub(crate) notes: Vec<String>,
    /// Why the scenario could not be judged; `None` if it was judged.
    pub(crate) failure: Option<String>,
}

impl Report {
    /// Returns the verdict on the whole run. A failed rule decides, then a scenario that could not be judged.
    pub(crate) fn verdict(&self) -> Verdict {
        let has = |verdict| self.scenarios.iter().any(|run| run.verdict() == verdict);
        if has(Verdict::Fail) {
            Verdict::Fail
        } else if self.scenarios.iter().any(|run| run.failure.is_some()) {
            Verdict::NotEnoughData
        } else if has(Verdict::Warn) {
            Verdict::Warn
        } else if has(Verdict::Pass) {
            Verdict::Pass
        } else {
            Verdict::NotEnoughData
        }
    }
}

impl ScenarioResult {
    /// Judges the trace of a run that has no command, and so no duration. `has_ended` means that the client
    /// sends no further requests.
    pub(crate) fn of(scenario: &Scenario, trace: Trace, has_ended: bool) -> Self {
        Self {
            name: scenario.name.to_string(),
            summary: scenario.summary.clone().unwrap_or_default(),
            steps: scenario.steps.clone(),
            duration: Duration::ZERO,
            judgement: judge(&trace, has_ended),
            notes: notes(&trace),
            trace,
            failure: None,
        }
    }

    /// Returns the verdict on the scenario. A rule that failed also counts if the scenario could not be judged
    /// completely.
    pub(crate) fn verdict(&self) -> Verdict {
        match self.judgement.verdict() {
            Verdict::Pass | Verdict::Warn if self.failure.is_some() => Verdict::NotEnoughData,
            verdict => verdict,
        }
    }
}

#[cfg(test)]
mod tests;
