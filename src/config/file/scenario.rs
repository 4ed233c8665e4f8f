//! `[scenario.NAME]` of the configuration file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::Located;
use super::super::scalar::{Label, StepText};
use crate::scenario::{AtEnd, CountBy};

/// Scripted responses and faults with which the retries of clients are tested.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScenarioSection {
    /// What the scenario does, in one line, for lists and reports.
    #[schemars(extend("examples" = ["Two rejections, then a success"]))]
    pub(crate) summary: Option<Label>,
    /// Steps. Each request uses the next step. A step is an action with options, such as `429 retry-after=2`. The page
    /// docs/lab.md lists all actions and options.
    #[schemars(required, length(min = 1, max = 1000), extend("examples" = [["429 retry-after=2", "503", "reset", "200"]]))]
    pub(crate) steps: Option<Vec<Located<StepText>>>,
    /// What happens to requests after the last step.
    #[schemars(extend("default" = "pass"))]
    pub(crate) at_end: AtEnd,
    /// Which requests count together through the steps.
    #[schemars(extend("default" = "client"))]
    pub(crate) by: CountBy,
    /// Seed of the random choices of `chance`.
    #[schemars(extend("default" = 1))]
    pub(crate) seed: u64,
}
