//! Overrides of the configuration file: environment variables `TIDEGATE__SECTION__KEY`, and command-line flags.
//!
//! Overrides are written into the tree of TOML values before validation, so the same rules apply to them as to the
//! file. Each override is a separate source text, so a problem is shown in the variable or flag that caused it.
//!
//! A variable can set any configuration key of a section, and of an upstream, rate limit or route that the file
//! contains. A variable cannot create an upstream, rate limit or route. Otherwise a misspelt name would create a new
//! one instead of being reported.

mod single_underscores;

use std::borrow::Cow;
use std::net::SocketAddr;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::problem::Findings;
use super::source::Span;
use super::tree::{TomlNode, relocate, string, type_name};
use super::variables::Environment;
use super::{schema, suggest, validate};

const PREFIX: &str = "TIDEGATE__";

/// Command-line flags that override the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--listen`: addresses that replace `server.listen`. If empty, `server.listen` is not replaced.
    pub listen: Vec<SocketAddr>,
    /// `--upstream`: URL that replaces the servers of the only upstream. If the file has no upstream, one is created.
    /// If the file has several, an error is reported.
    pub upstream: Option<String>,
    /// `--admin`: address that replaces `admin.listen`.
    pub admin: Option<SocketAddr>,
    /// `--limit`: rate of the limit named `client`, such as `10/s`.
    pub limit: Option<String>,
    /// `--tls-cert` and `--tls-key`: files that replace `server.tls`.
    pub tls: Option<(String, String)>,
}

/// Writes the values of all environment variables that start with `TIDEGATE__` into the tree of TOML values. Warns about
/// variables that name a key with single underscores, because they have no effect.
pub(super) fn apply_environment<'i>(
    table: &mut DeTable<'i>,
    schema: &Value,
    env: &'i Environment,
    findings: &mut Findings,
) {
    single_underscores::warn(table, schema, env, findings);
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
            value,
            start: start + name.len() + 1,
            findings,
        };
        variable.write(table, "", schema, &segments);
    }
}

struct Segment<'i> {
    text: &'i str,
    span: Span,
}

/// Value of one environment variable. `start` is the offset of the value in the source texts.
struct EnvOverride<'i, 'f> {
    value: &'i str,
    start: usize,
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
            let node = self.read_value(property);
            table.remove(position.get_ref().as_ref());
            table.insert(position, node);
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

    /// Writes the value into one table of a list of tables, such as `[[route]]`. The first of the `segments` of the
    /// variable name is the `name` of this table.
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
                if let DeValue::Table(table) = items.as_mut()[index].get_mut() {
                    self.write(table, at, schema, rest);
                }
            }
            None => self.no_such_name(at, segments, items.iter().filter_map(name_of)),
        }
    }

    /// Returns the configuration key that a segment of the variable name refers to: a key of the schema, or a name in
    /// the file. If no such key exists, reports an error and returns `None`.
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

    /// Redacts the value of this variable, so that no problem report shows it. This function is called if the name of
    /// the variable is unknown: the name can be misspelt, and the value can be a secret.
    fn redact_value(&mut self) {
        let span = self.start..self.start + self.value.len();
        self.findings.sources.redact(&span);
    }

    /// Parses the value as TOML if the configuration key allows the resulting type. Otherwise returns the value as a
    /// string, so that strings need no quotes.
    fn read_value(&self, schema: &Value) -> TomlNode<'i> {
        let text = || string(self.start..self.start + self.value.len(), self.value.into());
        let Ok(node) = DeValue::parse(self.value) else {
            return text();
        };
        let found = type_name(node.get_ref());
        let fits = schema::accepts_type(schema, found) && found != "string";
        if fits || !schema::accepts_type(schema, "string") {
            relocate(node, self.start)
        } else {
            text()
        }
    }
}

fn name_of<'a>(item: &'a TomlNode<'_>) -> Option<&'a str> {
    item.get_ref().get("name")?.get_ref().as_str()
}

/// Converts a name to lower case, and replaces dashes, dots and spaces with `_`, because the name of an environment
/// variable cannot contain them.
fn normalise_name(name: &str) -> String {
    name.to_lowercase().replace(['-', '.', ' '], "_")
}

/// Writes the values of the command-line flags into the tree of TOML values.
pub(super) fn apply_flags(table: &mut DeTable<'_>, overrides: &Overrides, findings: &mut Findings) {
    if !overrides.listen.is_empty() {
        let addresses: Vec<_> = overrides.listen.iter().map(SocketAddr::to_string).collect();
        let text = addresses.join(" ");
        let start = findings.sources.add("--listen", text.as_str());
        let mut offset = start;
        let listen: DeArray<'_> = addresses
            .into_iter()
            .map(|address| {
                let span = offset..offset + address.len();
                offset = span.end + 1;
                string(span, address)
            })
            .collect();
        let span = start..start + text.len();
        if let Some(server) = section(table, "server", &span) {
            set(server, "listen", Spanned::new(span, DeValue::Array(listen)));
        }
    }
    if let Some((cert, key)) = &overrides.tls {
        let mut file = |flag, path: &String| {
            let start = findings.sources.add(flag, path.as_str());
            string(start..start + path.len(), path.clone())
        };
        let (cert, key) = (file("--tls-cert", cert), file("--tls-key", key));
        let span = cert.span();
        if let Some(server) = section(table, "server", &span) {
            let mut tls = DeTable::new();
            set(&mut tls, "cert", cert);
            set(&mut tls, "key", key);
            set(server, "tls", Spanned::new(span, DeValue::Table(tls)));
        }
    }
    if let Some(address) = overrides.admin {
        let address = address.to_string();
        let start = findings.sources.add("--admin", address.as_str());
        let span = start..start + address.len();
        if let Some(admin) = section(table, "admin", &span) {
            set(admin, "listen", string(span, address));
        }
    }
    if let Some(rate) = &overrides.limit {
        let start = findings.sources.add("--limit", rate.as_str());
        let span = start..start + rate.len();
        let limits = section(table, "limit", &span);
        if let Some(limit) = limits.and_then(|limits| section(limits, "client", &span)) {
            set(limit, "rate", string(span, rate.clone()));
        }
    }
    if let Some(url) = &overrides.upstream {
        let start = findings.sources.add("--upstream", url.as_str());
        let span = start..start + url.len();
        let Some(upstreams) = section(table, "upstream", &span) else {
            return;
        };
        let names: Vec<_> = upstreams.keys().map(ToString::to_string).collect();
        let name = match names.as_slice() {
            [] => "default",
            [only] => only,
            several => {
                findings.error(
                    &span,
                    format!(
                        "`--upstream` requires a configuration with at most one upstream, but this configuration has \
                         {}",
                        several.len()
                    ),
                    format!(
                        "remove `--upstream` and set TIDEGATE__UPSTREAM__NAME__SERVERS, where NAME is one of {}",
                        several.join(", ")
                    ),
                );
                return;
            }
        };
        if let Some(upstream) = section(upstreams, name, &span) {
            let servers = DeArray::from_iter([string(span.clone(), url.clone())]);
            set(
                upstream,
                "servers",
                Spanned::new(span, DeValue::Array(servers)),
            );
        }
    }
}

/// Returns the table `name` in `table`, and creates it if absent. Returns `None` if the value in the file is not a
/// table; validation reports this.
fn section<'t, 'i>(
    table: &'t mut DeTable<'i>,
    name: &str,
    span: &Span,
) -> Option<&'t mut DeTable<'i>> {
    let key = Spanned::new(span.clone(), Cow::Owned(name.to_owned()));
    let absent = || Spanned::new(span.clone(), DeValue::Table(DeTable::new()));
    match table.entry(key).or_insert_with(absent).get_mut() {
        DeValue::Table(section) => Some(section),
        _ => None,
    }
}

fn set<'i>(table: &mut DeTable<'i>, key: &'static str, value: TomlNode<'i>) {
    table.remove(key);
    table.insert(Spanned::new(value.span(), Cow::Borrowed(key)), value);
}
