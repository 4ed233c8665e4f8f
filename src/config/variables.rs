//! Environment variables, and `${VARIABLE}` in strings.
//!
//! References are replaced after the file is parsed, and only in strings, so the value of a variable cannot add TOML
//! syntax. References inside the value are not replaced.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::problem::Findings;
use super::source::Span;
use super::tree::TomlNode;

/// Environment variables by name. A variable whose name or value is not Unicode is treated as missing.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Returns the environment variables of this process.
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sorted by name.
    pub(super) fn starting_with(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter(move |(name, _)| name.starts_with(prefix))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let owned = |(name, value): (N, V)| (name.into(), value.into());
        Self(variables.into_iter().map(owned).collect())
    }
}

pub(super) fn interpolate(table: &mut DeTable<'_>, env: &Environment, findings: &mut Findings) {
    for (_, value) in table.iter_mut() {
        interpolate_node(value, env, findings);
    }
}

fn interpolate_node(node: &mut TomlNode<'_>, env: &Environment, findings: &mut Findings) {
    let span = node.span();
    match node.get_mut() {
        DeValue::String(text) if text.contains("${") => {
            let mut expansion = Expansion {
                span,
                env,
                findings,
            };
            *text = expansion.expand(text).into();
        }
        DeValue::Array(items) => {
            for item in items.iter_mut() {
                interpolate_node(item, env, findings);
            }
        }
        DeValue::Table(table) => interpolate(table, env, findings),
        _ => {}
    }
}

/// Other text in a reference can be a secret, such as the default in `${TOKEN:-s3cret}`.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

struct Expansion<'a> {
    span: Span,
    env: &'a Environment,
    findings: &'a mut Findings,
}

impl Expansion<'_> {
    fn expand(&mut self, text: &str) -> String {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            if let Some(before) = before.strip_suffix('$') {
                expanded.push_str(before);
                expanded.push_str("${");
                rest = &from[2..];
                continue;
            }
            expanded.push_str(before);
            let Some(end) = from.find('}') else {
                self.error(
                    from,
                    "`${` is not closed".into(),
                    "add the missing `}`, or write `$${` for a literal `${`",
                );
                return expanded;
            };
            let name = &from[2..end];
            match self.env.get(name) {
                Some(value) => expanded.push_str(value),
                None if !is_name(name) => self.error(
                    &from[..=end],
                    "a reference to an environment variable is not of the form `${NAME}`".into(),
                    "write only letters, digits and `_` in the braces, because defaults (`:-`) are not supported; write \
                     `$${` for a literal `${`",
                ),
                None => self.error(
                    &from[..=end],
                    format!("the environment variable `{name}` is not set"),
                    "set the variable, or write `$${` for a literal `${`",
                ),
            }
            rest = &from[end + 1..];
        }
        expanded.push_str(rest);
        expanded
    }

    fn error(&mut self, reference: &str, title: String, help: &str) {
        let written = self.findings.sources.text(&self.span);
        let span = match written.find(reference) {
            Some(at) => {
                let start = self.span.start + at;
                start..start + reference.len()
            }
            None => self.span.clone(),
        };
        self.findings.error(&span, title, help);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn expand(text: &str) -> Result<String, (String, String)> {
        let file = format!("a = \"{text}\"");
        let env: Environment = [("NAME", "tide"), ("NESTED", "${NAME}")]
            .into_iter()
            .collect();
        let mut findings = Findings::default();
        findings.sources.add("test.toml", file.as_str());
        let mut table = tree::parse(&file);
        interpolate(table.get_mut(), &env, &mut findings);
        match findings.into_problems().first() {
            None => Ok(table.get_ref()["a"]
                .get_ref()
                .as_str()
                .expect("text")
                .into()),
            Some(problem) => Err((problem.offending.clone(), problem.title.clone())),
        }
    }

    #[test]
    fn a_reference_in_the_value_of_a_variable_is_not_replaced() {
        assert_eq!(expand("x${NAME}-${NAME}y").as_deref(), Ok("xtide-tidey"));
        assert_eq!(expand("${NESTED}").as_deref(), Ok("${NAME}"));
    }

    #[test]
    fn a_doubled_dollar_is_a_literal_dollar() {
        assert_eq!(expand("$${NAME} ${NAME}").as_deref(), Ok("${NAME} tide"));
        assert_eq!(expand("/end$").as_deref(), Ok("/end$"));
    }

    #[test]
    fn a_missing_variable_is_reported_at_its_reference() {
        let (offending, title) = expand("http://${HOST}:80").expect_err("no such variable");
        assert_eq!(offending, "${HOST}");
        assert!(title.contains("`HOST`"));
        assert_eq!(expand("a ${NAME").expect_err("not closed").0, "${NAME");
    }
}
