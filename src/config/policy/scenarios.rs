//! `[scenario.NAME]`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::file::ScenarioSection;
use super::super::located::Named;
use super::super::scalar::Label;
use crate::scenario::Scenario;
use crate::scenario::respond::default_body;

/// `None` marks an invalid scenario, whose error was reported.
pub(in super::super) type ScenariosByName<'f> = BTreeMap<&'f str, Option<Arc<Scenario>>>;

pub(in super::super) fn resolve(sections: &Named<Label, ScenarioSection>) -> ScenariosByName<'_> {
    let entries = sections.entries.iter();
    entries
        .map(|(name, section)| {
            let scenario = scenario(&name.value, &section.value);
            (name.value.as_str(), scenario.map(Arc::new))
        })
        .collect()
}

fn scenario(name: &str, section: &ScenarioSection) -> Option<Scenario> {
    let steps = section.steps.as_ref().filter(|steps| !steps.is_empty())?;
    Some(Scenario {
        name: name.into(),
        summary: section.summary.as_ref().map(|summary| summary.0.clone()),
        steps: steps
            .iter()
            .map(|step| {
                let mut step = step.value.0.clone();
                if step.body.is_none() {
                    // Built once, and not for each response.
                    step.body = Some(default_body(&step));
                }
                Arc::new(step)
            })
            .collect(),
        at_end: section.at_end,
        by: section.by,
        seed: section.seed,
    })
}
