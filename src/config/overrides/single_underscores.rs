//! Environment variables with single underscores, such as `TIDEGATE_SERVER_LISTEN` instead of
//! `TIDEGATE__SERVER__LISTEN`.

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::problem::Findings;
use super::super::schema;
use super::super::variables::Environment;
use super::{PREFIX, name_of, normalise_name};

/// Start of the names of variables that possibly have one underscore where two are required.
const SHORT_PREFIX: &str = "TIDEGATE_";

/// Warns about variables that name a key of the configuration with single underscores, because they have no effect.
pub(super) fn warn(
    table: &DeTable<'_>,
    schema: &Value,
    env: &Environment,
    findings: &mut Findings,
) {
    for (name, _) in env.starting_with(SHORT_PREFIX) {
        let rest = &name[SHORT_PREFIX.len()..];
        // A variable that the file refers to has an effect.
        if rest.starts_with('_') || is_referenced(table, &format!("${{{name}}}")) {
            continue;
        }
        if let Some(key) = key_with_single_underscores(rest, Some(table), schema) {
            let start = findings.sources.add(name, name);
            findings.warning(
                &(start..start + name.len()),
                format!("the environment variable `{name}` has no effect"),
                format!("write `{PREFIX}{key}`, with two underscores between the parts"),
            );
        }
    }
}

/// Whether a string in the table contains `reference`.
fn is_referenced(table: &DeTable<'_>, reference: &str) -> bool {
    fn contains(value: &DeValue<'_>, reference: &str) -> bool {
        match value {
            DeValue::String(text) => text.contains(reference),
            DeValue::Array(items) => items.iter().any(|item| contains(item.get_ref(), reference)),
            DeValue::Table(table) => is_referenced(table, reference),
            _ => false,
        }
    }
    table
        .values()
        .any(|value| contains(value.get_ref(), reference))
}

/// Returns the name of the key that `name` spells with single underscores, with two underscores between its parts.
/// `None` if there is no such key. `table` is the table in the file that has this schema.
fn key_with_single_underscores(
    name: &str,
    table: Option<&DeTable<'_>>,
    schema: &Value,
) -> Option<String> {
    let names = table.into_iter().flat_map(DeTable::keys);
    let names = names.map(|key| key.get_ref().as_ref());
    schema::known_keys(schema).chain(names).find_map(|key| {
        let property = schema::property(schema, key)?;
        let rest = strip_name(name, key)?;
        let Some(rest) = rest.strip_prefix('_') else {
            let is_value = schema::types(property) != ["object"];
            return (rest.is_empty() && is_value).then(|| name.to_owned());
        };
        let node = table.and_then(|table| table.get(key)).map(Spanned::get_ref);
        let below = match node {
            Some(DeValue::Array(items)) => items.iter().find_map(|item| {
                let after_name = strip_name(rest, name_of(item)?)?.strip_prefix('_')?;
                let DeValue::Table(table) = item.get_ref() else {
                    return None;
                };
                let key =
                    key_with_single_underscores(after_name, Some(table), property.get("items")?)?;
                Some(format!(
                    "{}__{key}",
                    &rest[..rest.len() - after_name.len() - 1]
                ))
            }),
            Some(DeValue::Table(table)) => key_with_single_underscores(rest, Some(table), property),
            _ => key_with_single_underscores(rest, None, property),
        };
        let start = &name[..name.len() - rest.len() - 1];
        below.map(|below| format!("{start}__{below}"))
    })
}

/// Returns the rest of the name of a variable after the name of a key.
fn strip_name<'a>(name: &'a str, key: &str) -> Option<&'a str> {
    let (start, rest) = name.split_at_checked(key.len())?;
    (normalise_name(start) == normalise_name(key)).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::super::super::schema::SCHEMA;
    use super::super::super::tree;
    use super::*;

    fn warnings(file: &str, variable: &str) -> Vec<String> {
        let env: Environment = [(variable, "secret")].into_iter().collect();
        let mut findings = Findings::default();
        findings.sources.add("test.toml", file);
        let table = tree::parse(file);
        warn(table.get_ref(), &SCHEMA, &env, &mut findings);
        let problems = findings.into_problems().into_iter();
        problems.map(|problem| problem.to_string()).collect()
    }

    #[test]
    fn a_variable_with_single_underscores_causes_a_warning_with_the_correct_name() {
        let file = "[limit.per-user]\nrate = \"1/s\"\n[[route]]\nname = \"all\"\npath = \"/\"\n";
        for (variable, correct) in [
            ("TIDEGATE_SERVER_LISTEN", "TIDEGATE__SERVER__LISTEN"),
            (
                "TIDEGATE_SERVER_IDLE_TIMEOUT",
                "TIDEGATE__SERVER__IDLE_TIMEOUT",
            ),
            ("TIDEGATE_SERVER_TLS_CERT", "TIDEGATE__SERVER__TLS__CERT"),
            ("TIDEGATE_ADMIN_TOKEN", "TIDEGATE__ADMIN__TOKEN"),
            (
                "TIDEGATE_LIMIT_PER_USER_RATE",
                "TIDEGATE__LIMIT__PER_USER__RATE",
            ),
            ("TIDEGATE_ROUTE_ALL_PATH", "TIDEGATE__ROUTE__ALL__PATH"),
        ] {
            let found = warnings(file, variable);
            assert_eq!(found.len(), 1, "{variable}: {found:?}");
            assert!(found[0].contains(&format!("`{correct}`")), "{}", found[0]);
            assert!(!found[0].contains("secret"), "{}", found[0]);
        }
    }

    #[test]
    fn a_variable_of_another_program_causes_no_warning() {
        for variable in [
            "TIDEGATE_URL",
            "TIDEGATE_CA_FILE",
            "TIDEGATE_SERVICE_HOST",
            "TIDEGATE_PORT_80_TCP",
            "TIDEGATE_SERVER",
            "TIDEGATE_LIMIT_OTHER_RATE",
            "TIDEGATEWAY_SERVER_LISTEN",
        ] {
            assert_eq!(warnings("", variable), [""; 0], "{variable}");
        }
        let file = "[admin]\ntoken = \"${TIDEGATE_ADMIN_TOKEN}\"\n";
        assert_eq!(warnings(file, "TIDEGATE_ADMIN_TOKEN"), [""; 0]);
    }
}
