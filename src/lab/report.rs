//! Reports on a client, for people and for programs.

use std::time::{Duration, SystemTime};

use super::verdict::Judgement;
use crate::scenario::observation::Observed;

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
    /// Steps of the scenario as text.
    pub(crate) steps: Vec<String>,
    /// Time from the start to the end of the command.
    pub(crate) duration: Duration,
    /// Requests that the gateway observed.
    pub(crate) observed: Observed,
    /// Verdicts on the requests.
    pub(crate) judgement: Judgement,
    /// Remarks on the run, such as "the command was terminated after 60 s".
    pub(crate) notes: Vec<String>,
    /// Why the scenario could not be judged; `None` if it was judged.
    pub(crate) failure: Option<String>,
}
