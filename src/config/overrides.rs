//! Overrides of the configuration file: environment variables `TIDEGATE__SECTION__KEY`, and command-line flags.
//!
//! They are written into the tree of TOML values before validation, so the same rules apply to them as to the file.
//! Each is a separate source text, so a problem is shown in the variable or flag that caused it.
//!
//! A variable cannot create an upstream, rate limit or route. Otherwise a misspelt name would create a new one instead
//! of being reported.

mod flags;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::problem::Findings;
use super::source::Span;
use super::tree::{TomlNode, relocate, string, type_name};
use super::variables::Environment;
use super::{scalar, schema, suggest, validate};

pub use flags::Overrides;
pub(super) use flags::apply_flags;

const PREFIX: &str = "TIDEGATE__";

pub(super) fn apply_environment<'i>(
    table: &mut DeTable<'i>,
    schema: &Value,
    env: &'i Environment,
    findings: &mut Findings,
) {
    warn_about_single_underscores(table, schema, env, findings);
    for (name, value) in env.starting_with(PREFIX) {
        let start = findings.sources.add(name, format!("{name}={value}"));
        let mut offset = start + PREFIX.len();
        let segments: Vec<_> = name[PREFIX.len()..]
            .split("__")
            .map(|text| {
                let span = offset..offset + text.len();
                offset = span.end + 2;
                Segment { text, span }
            })
            .collect();
        let mut variable = EnvOverride {
            name,
            value,
            start: start + name.len() + 1,
            item: None,
            findings,
        };
        variable.write(table, "", schema, &segments);
    }
}

/// Warns about variables such as `TIDEGATE_SERVER_LISTEN`, which have no effect, unless the file refers to them. Other
/// variables with this prefix are not ours: Kubernetes sets `TIDEGATE_SERVICE_HOST` for a service named `tidegate`.
fn warn_about_single_underscores(
    file: &DeTable<'_>,
    schema: &Value,
    env: &Environment,
    findings: &mut Findings,
) {
    for (variable, _) in env.starting_with("TIDEGATE_") {
        let name = variable["TIDEGATE_".len()..].to_lowercase();
        let Some((section, rest)) = name.split_once('_') else {
            continue;
        };
        let Some(property) = schema::property(schema, section) else {
            continue;
        };
        let names: Vec<String> = match file.get(section).map(Spanned::get_ref) {
            Some(DeValue::Table(table)) => table
                .keys()
                .map(|key| normalise_name(key.get_ref()))
                .collect(),
            Some(DeValue::Array(items)) => items
                .iter()
                .filter_map(name_of)
                .map(normalise_name)
                .collect(),
            _ => vec![],
        };
        let values = schema::named_values(property).or(property.get("items"));
        let correct = schema::known_keys(values.unwrap_or(property)).find_map(|key| {
            if values.is_none() {
                return (rest == key).then(|| format!("{section}__{key}"));
            }
            let name = rest.strip_suffix(key)?.strip_suffix('_')?;
            let is_in_file = names.iter().any(|known| known == name);
            is_in_file.then(|| format!("{section}__{name}__{key}"))
        });
        let text = findings.sources.text(&(0..usize::MAX));
        if let Some(correct) = correct.filter(|_| !text.contains(&format!("${{{variable}}}"))) {
            let start = findings.sources.add(variable, variable);
            findings.warning(
                &(start..start + variable.len()),
                format!("the environment variable `{variable}` has no effect"),
                format!(
                    "write `{PREFIX}{}`, with two underscores between the parts",
                    correct.to_uppercase()
                ),
            );
        }
    }
}

struct Segment<'i> {
    text: &'i str,
    span: Span,
}

/// `start` is the offset of the value in the source texts.
struct EnvOverride<'i, 'f> {
    name: &'i str,
    value: &'i str,
    start: usize,
    /// Table in a list that the variable changes, as in [`validate::indexed`].
    item: Option<(usize, usize)>,
    findings: &'f mut Findings,
}

impl<'i> EnvOverride<'i, '_> {
    fn write(
        &mut self,
        table: &mut DeTable<'i>,
        at: &str,
        schema: &Value,
        segments: &[Segment<'i>],
    ) {
        let [segment, rest @ ..] = segments else {
            return;
        };
        let Some(key) = self.find_key(table, at, schema, segment) else {
            return;
        };
        let Some(property) = schema::property(schema, &key) else {
            return;
        };
        let path = if at.is_empty() {
            key.clone()
        } else {
            format!("{at}.{key}")
        };
        let position = Spanned::new(segment.span.clone(), DeString::Owned(key));
        if rest.is_empty() {
            table.remove(position.get_ref().as_ref());
            match self.read_value(property) {
                Some(node) => drop(table.insert(position, node)),
                None => self.findings.remove(&validate::indexed(self.item, &path)),
            }
            return;
        }
        match schema::types(property).as_slice() {
            ["object"] => {
                let absent = || Spanned::new(segment.span.clone(), DeValue::Table(DeTable::new()));
                let node = table.entry(position).or_insert_with(absent);
                if let DeValue::Table(table) = node.get_mut() {
                    self.write(table, &path, property, rest);
                }
            }
            ["array"] => match table
                .get_mut(position.get_ref().as_ref())
                .map(Spanned::get_mut)
            {
                Some(DeValue::Array(items)) => self.write_item(items, &path, property, rest),
                _ => self.no_such_name(&path, rest, std::iter::empty()),
            },
            _ => {
                let excess = &rest[0];
                self.redact_value();
                self.findings.error(
                    &excess.span,
                    format!("`{path}` has no key `{}`", excess.text.to_lowercase()),
                    format!(
                        "remove `__{}` and the rest from the name of the variable",
                        excess.text
                    ),
                );
            }
        }
    }

    /// The first of the `segments` is the `name` of a table in the list, such as a `[[route]]`.
    fn write_item(
        &mut self,
        items: &mut DeArray<'i>,
        at: &str,
        schema: &Value,
        segments: &[Segment<'i>],
    ) {
        let Some(schema) = schema.get("items") else {
            return;
        };
        let [segment, rest @ ..] = segments else {
            return;
        };
        let found = items.iter().position(|item| {
            name_of(item).is_some_and(|name| normalise_name(name) == normalise_name(segment.text))
        });
        match found {
            Some(index) => {
                self.item = Some((at.len(), index));
                if let DeValue::Table(table) = items.as_mut()[index].get_mut() {
                    self.write(table, at, schema, rest);
                }
            }
            None => self.no_such_name(at, segments, items.iter().filter_map(name_of)),
        }
    }

    /// Finds a key of the schema or a name in the file; reports an error if there is none.
    fn find_key(
        &mut self,
        table: &DeTable<'i>,
        at: &str,
        schema: &Value,
        segment: &Segment<'i>,
    ) -> Option<String> {
        let matches = |key: &&str| normalise_name(key) == normalise_name(segment.text);
        if let Some(key) = schema::known_keys(schema).find(matches) {
            return Some(key.to_owned());
        }
        let names: Vec<&str> = table.keys().map(|key| key.get_ref().as_ref()).collect();
        if let Some(name) = names.iter().copied().find(matches) {
            return Some(name.to_owned());
        }
        if schema::named_values(schema).is_some() {
            self.no_such_name(at, std::slice::from_ref(segment), names.into_iter());
        } else {
            let key = segment.text.to_lowercase();
            self.redact_value();
            validate::unknown_key(self.findings, &segment.span, &key, at, schema);
        }
        None
    }

    fn no_such_name<'a>(
        &mut self,
        at: &str,
        segments: &[Segment<'_>],
        known: impl Iterator<Item = &'a str> + Clone,
    ) {
        let Some(segment) = segments.first() else {
            return;
        };
        let name = segment.text.to_lowercase();
        self.redact_value();
        self.findings.missing(
            at,
            &segment.span,
            format!("the configuration file has no {at} named `{name}`"),
            suggest::remedy(&name, known),
        );
    }

    /// Called if the name of the variable is unknown: it can be misspelt, and the value can be a secret.
    fn redact_value(&mut self) {
        let span = self.start..self.start + self.value.len();
        self.findings.sources.redact(&span);
    }

    /// Parses the value as TOML if the key allows the resulting type, else takes it as a string, so that strings need
    /// no quotes. Returns `None` after an error about the form of a list.
    fn read_value(&mut self, schema: &Value) -> Option<TomlNode<'i>> {
        let span = self.start..self.start + self.value.len();
        let parsed = DeValue::parse(self.value);
        if let Ok(node) = &parsed {
            let found = type_name(node.get_ref());
            if found != "string" && schema::accepts_type(schema, found) {
                return parsed.ok().map(|node| relocate(node, self.start));
            }
        }
        let format = validate::string_format(schema);
        let (is_like_list, is_valid) = match format {
            Some(format) => (
                self.value.starts_with('[') || self.value.contains(','),
                scalar::check(format, self.value).is_ok(),
            ),
            // A `path`, which can start with a set of characters: `[/a]` is a list without quotes, `[/]a` is not.
            None => (
                self.value.starts_with('['),
                self.value
                    .split_once(']')
                    .is_some_and(|(_, rest)| !rest.trim().is_empty()),
            ),
        };
        let is_one_value = schema::accepts_type(schema, "string") && (is_valid || !is_like_list);
        if schema::accepts_type(schema, "array") && !is_one_value {
            self.redact_value();
            self.findings.error(
                &span,
                "the value of the variable is not a list",
                format!(
                    "write a list as in TOML, for example {}='{}'",
                    self.name,
                    validate::example_list(schema)
                ),
            );
            return None;
        }
        match parsed {
            Ok(node) if !schema::accepts_type(schema, "string") => Some(relocate(node, self.start)),
            _ => Some(string(span, self.value.into())),
        }
    }
}

fn name_of<'a>(item: &'a TomlNode<'_>) -> Option<&'a str> {
    item.get_ref().get("name")?.get_ref().as_str()
}

/// The name of an environment variable cannot contain dashes, dots and spaces.
fn normalise_name(name: &str) -> String {
    name.to_lowercase().replace(['-', '.', ' '], "_")
}
