//! Comparison of a run with an earlier JSON report of the same client.
//!
//! "Not enough data" is never a regression, because a different number of requests causes it. The comparison reads only
//! the fields that it needs, so it accepts reports of other releases with the same schema.

use std::fmt;

use serde::Deserialize;
use serde_json::error::Category;
use thiserror::Error;

use super::document::{Document, SCHEMA};
use super::text::{printable, verdict_name};
use crate::lab::verdict::Verdict;

#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// In the order of the run.
    pub(crate) regressions: Vec<Regression>,
    /// Scenarios of the baseline that the run does not include.
    pub(crate) missing: Vec<String>,
    /// Number of rules that both the baseline and the run judge.
    pub(crate) compared: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Regression {
    scenario: String,
    rule: &'static str,
    old: Verdict,
    new: Verdict,
    summary: String,
}

impl fmt::Display for Regression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scenario,
            rule,
            summary,
            ..
        } = self;
        let (old, new) = (verdict_name(self.old), verdict_name(self.new));
        write!(
            formatter,
            "{scenario}: {rule} was {old} and is {new}: {summary}"
        )
    }
}

#[derive(Debug, Error)]
pub(crate) enum BaselineError {
    #[error("the baseline is truncated; run the lab with `--json` to write a new one")]
    Truncated,
    #[error("the baseline is not a JSON report of `tidegate lab --json`: {0}")]
    Malformed(#[source] serde_json::Error),
    #[error(
        "the baseline has the schema '{0}', but this version of tidegate reads '{SCHEMA}'; run the lab with `--json` \
         to write a new one"
    )]
    Schema(String),
}

#[derive(Deserialize)]
struct BaselineSchema {
    schema: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Baseline {
    scenarios: Vec<BaselineScenario>,
}

#[derive(Debug, Deserialize)]
struct BaselineScenario {
    name: String,
    rules: Vec<BaselineRule>,
}

#[derive(Debug, Deserialize)]
struct BaselineRule {
    id: String,
    verdict: Verdict,
}

impl Baseline {
    pub(crate) fn parse(text: &str) -> Result<Self, BaselineError> {
        // The schema is read first, because a document of another schema can have another structure.
        let BaselineSchema { schema } = parse(text)?;
        if schema != SCHEMA {
            return Err(BaselineError::Schema(printable(&schema)));
        }
        parse(text)
    }

    pub(crate) fn compare(&self, new: &Document) -> Comparison {
        let mut comparison = Comparison::default();
        for old in &self.scenarios {
            let Some(new) = new.scenarios.iter().find(|new| new.name == old.name) else {
                comparison.missing.push(printable(&old.name));
                continue;
            };
            for rule in &new.rules {
                let before = old.rules.iter().find(|before| before.id == rule.id);
                let Some(before) = before.map(|before| before.verdict) else {
                    continue;
                };
                comparison.compared += 1;
                if is_worse(before, rule.verdict) {
                    comparison.regressions.push(Regression {
                        scenario: new.name.clone(),
                        rule: rule.id,
                        old: before,
                        new: rule.verdict,
                        summary: rule.summary.clone(),
                    });
                }
            }
        }
        comparison
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, BaselineError> {
    serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Eof if !text.trim().is_empty() => BaselineError::Truncated,
        _ => BaselineError::Malformed(error),
    })
}

fn is_worse(old: Verdict, new: Verdict) -> bool {
    matches!(
        (old, new),
        (Verdict::Pass, Verdict::Warn | Verdict::Fail) | (Verdict::Warn, Verdict::Fail)
    )
}
