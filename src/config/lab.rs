//! Configuration of `tidegate lab`: one route with one scenario, and with the rate limit of the same name, if there is
//! one.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Findings;
use super::{ConfigErrors, Environment, Loaded, Overrides, Purpose, policy, syntax, tree};
use crate::scenario::Scenario;

pub(crate) const SHIPPED_SCENARIOS: &str = include_str!("scenarios.toml");

const USED_SECTIONS: [&str; 2] = ["scenario", "limit"];

#[derive(Clone, Copy, Debug)]
pub(crate) struct ScenarioFile<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LabOptions<'a> {
    /// Without it, requests that pass get 200.
    pub(crate) upstream: Option<&'a str>,
    /// Certificate and private key, in PEM format.
    pub(crate) tls: Option<(&'a Path, &'a Path)>,
}

impl ScenarioFile<'static> {
    pub(crate) fn shipped() -> Self {
        Self {
            name: "shipped scenarios",
            text: SHIPPED_SCENARIOS,
        }
    }
}

impl ScenarioFile<'_> {
    /// In the order of their names.
    pub(crate) fn scenarios(&self, env: &Environment) -> Result<Vec<Arc<Scenario>>, ConfigErrors> {
        let mut findings = Findings::default();
        findings.sources.add(self.name, self.text);
        let table = self.used_sections(&mut findings);
        let file = table.and_then(|table| super::decode(table, env, &mut findings));
        match file {
            Some(file) if !findings.has_errors() => {
                let scenarios = policy::scenarios::resolve(&file.scenario);
                Ok(scenarios.into_values().flatten().collect())
            }
            _ => Err(findings.into_errors()),
        }
    }

    pub(crate) fn policy(
        &self,
        scenario: &str,
        options: LabOptions<'_>,
        env: &Environment,
    ) -> Result<Loaded, ConfigErrors> {
        let mut findings = Findings::default();
        findings.sources.add(self.name, self.text);
        let Some(mut table) = self.used_sections(&mut findings) else {
            return Err(findings.into_errors());
        };
        let text = gateway(scenario, has_limit(table.get_ref(), scenario), options);
        let start = findings.sources.add("configuration of the lab", &*text);
        let (added, _) = DeTable::parse_recoverable(&text);
        let added = Spanned::new(added.span(), DeValue::Table(added.into_inner()));
        if let DeValue::Table(sections) = tree::relocate(added, start).into_inner() {
            table.get_mut().extend(sections);
        }
        let overrides = Overrides {
            upstream: options.upstream.map(str::to_owned),
            ..Overrides::default()
        };
        super::overrides::apply_flags(table.get_mut(), &overrides, &mut findings);
        let file = super::decode(table, env, &mut findings);
        let policy = file.and_then(|file| policy::resolve(&file, Purpose::Lab, &mut findings));
        super::loaded(policy, super::hash(self.text), findings)
    }

    fn used_sections(&self, findings: &mut Findings) -> Option<Spanned<DeTable<'_>>> {
        let mut table = syntax::parse(self.text, findings)?;
        tree::retain_sections(&mut table, &USED_SECTIONS);
        Some(table)
    }
}

fn has_limit(table: &DeTable<'_>, name: &str) -> bool {
    let limits = table.get("limit").map(Spanned::get_ref);
    matches!(limits, Some(DeValue::Table(limits)) if limits.contains_key(name))
}

/// Some clients end only when the server closes their idle connections, so `idle_timeout` is shorter than the time
/// limit of a command. It is longer than the time for which the rule on connection reuse expects a connection to stay
/// open. `json!` quotes strings in a form that TOML also accepts.
fn gateway(scenario: &str, has_limit: bool, options: LabOptions<'_>) -> String {
    let tls = options.tls.map(|(cert, key)| {
        let quoted = |path: &Path| json!(path.to_string_lossy());
        format!(
            "tls = {{ cert = {}, key = {} }}\n",
            quoted(cert),
            quoted(key)
        )
    });
    let limits = has_limit.then(|| format!("limits = [{}]\n", json!(scenario)));
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nshutdown_grace = \"0s\"\nidle_timeout = \"35s\"\n{}\
         [client]\ntrusted_proxies = [\"127.0.0.0/8\"]\n\
         [[route]]\nname = \"lab\"\npath = \"/\"\nscenario = {}\n{}",
        tls.unwrap_or_default(),
        json!(scenario),
        limits.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str, scenario: &str) -> Result<Loaded, ConfigErrors> {
        let file = ScenarioFile {
            name: "lab.toml",
            text,
        };
        file.policy(scenario, LabOptions::default(), &Environment::default())
    }

    #[test]
    fn a_file_with_only_scenarios_is_enough() {
        let loaded = policy("[scenario.a]\nsteps = [\"503\", \"refuse\"]\n", "a").unwrap();
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        let route = loaded.policy.routes.iter().next().unwrap();
        assert_eq!(&*route.scenario.as_ref().unwrap().name, "a");
        assert!(route.upstream.is_none() && route.limits.is_empty());
    }

    #[test]
    fn a_limit_with_the_name_of_the_scenario_applies_to_the_route() {
        let text = "[scenario.a]\nsteps = [\"pass\"]\n[limit.a]\nrate = \"2/s\"\n[limit.b]\nrate = \"1/s\"\n";
        let loaded = policy(text, "a").unwrap();
        let route = loaded.policy.routes.iter().next().unwrap();
        assert_eq!(route.limits.len(), 1);
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    }

    #[test]
    fn sections_that_the_lab_does_not_use_are_not_checked() {
        let text =
            "[server]\nlisten = \"0.0.0.0:80\"\nunknown = 1\n[scenario.a]\nsteps = [\"503\"]\n";
        let loaded = policy(text, "a").unwrap();
        assert!(loaded.policy.server.listen[0].ip().is_loopback());
    }

    #[test]
    fn a_malformed_step_is_located_in_the_file() {
        let errors = policy(
            "[scenario.a]\nsteps = [\"503\", \"429 retry-afer=2\"]\n",
            "a",
        )
        .unwrap_err();
        let problem = &errors.problems()[0];
        assert_eq!((problem.line, problem.column), (2, 22), "{errors}");
        assert!(problem.help.contains("`retry-after`"), "{errors}");
    }

    #[test]
    fn waits_of_any_length_have_a_sum() {
        let text = "[scenario.a]\nsteps = [\"delay 1s + 429 retry-after=18446744073709551615\", \"503 for=2s\"]\n";
        let file = ScenarioFile {
            name: "lab.toml",
            text,
        };
        let scenarios = file.scenarios(&Environment::default()).unwrap();
        assert_eq!(scenarios[0].longest_wait(), std::time::Duration::MAX);
    }

    #[test]
    fn an_unknown_scenario_is_an_error_with_a_suggestion() {
        let errors = policy("[scenario.flaky]\nsteps = [\"503\"]\n", "flakey").unwrap_err();
        assert!(
            errors.to_string().contains("did you mean `flaky`"),
            "{errors}"
        );
    }

    #[test]
    fn the_shipped_scenarios_are_valid_and_have_a_summary() {
        let file = ScenarioFile::shipped();
        let scenarios = file.scenarios(&Environment::default()).unwrap();
        assert!(scenarios.len() >= 10);
        for scenario in scenarios {
            assert!(scenario.summary.is_some(), "{}", scenario.name);
            let policy = file.policy(
                &scenario.name,
                LabOptions::default(),
                &Environment::default(),
            );
            policy.unwrap_or_else(|errors| panic!("{errors}"));
        }
    }
}
