//! Reports on a client, for people and for programs.
//!
//! A [`Document`](document::Document) is the redacted form of a [`Report`]. All renderers read only the document, so
//! none of them can output a credential by mistake.

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

/// Result of a lab command: scenarios that ran in sequence.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) client: String,
    pub(crate) client_version: Option<String>,
    pub(crate) started: SystemTime,
    pub(crate) scenarios: Vec<ScenarioResult>,
    pub(crate) include_secrets: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ScenarioResult {
    pub(crate) name: String,
    pub(crate) summary: String,
    pub(crate) steps: Vec<Arc<Step>>,
    /// Time from the start to the end of the command.
    pub(crate) duration: Duration,
    pub(crate) trace: Trace,
    pub(crate) judgement: Judgement,
    pub(crate) notes: Vec<String>,
    /// Why the scenario could not be judged.
    pub(crate) failure: Option<String>,
}

impl Report {
    /// A failed rule decides, then a scenario that could not be judged.
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
    /// `has_ended` means that the client sends no further requests.
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

    /// A rule that failed also counts if the scenario could not be judged completely.
    pub(crate) fn verdict(&self) -> Verdict {
        match self.judgement.verdict() {
            Verdict::Pass | Verdict::Warn if self.failure.is_some() => Verdict::NotEnoughData,
            verdict => verdict,
        }
    }
}

#[cfg(test)]
mod tests;
