//! Validates a TOML tree against the JSON Schema: known keys, types, ranges and formats.
//!
//! Invalid values are reported and removed, and missing values are set to the defaults in the schema. The resulting
//! tree can be decoded, so the checks after decoding run too, and the user sees all problems together. serde alone
//! would stop at the first error. A generic schema validator could not suggest a remedy.

mod messages;

use std::borrow::Cow;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::problem::Findings;
use super::scalar;
use super::schema::{
    NUMBERS, SCHEMA, accepts_type, allowed_words, known_keys, named_values, property, strings,
    types,
};
use super::source::{NOT_CONFIGURED, Span};
use super::suggest;
use super::tree::{TomlNode, default_value, type_name};

use messages::{describe, describe_type, example, named_section};

pub(super) use messages::{example_list, string_format};

pub(super) fn check(file: &mut Spanned<DeTable<'_>>, findings: &mut Findings) {
    let span = file.span();
    let item = None;
    SchemaValidator { findings, item }.table("", &span, file.get_mut(), &SCHEMA);
}

/// `table` is the path of the table, empty at the top level.
pub(super) fn unknown_key(
    findings: &mut Findings,
    span: &Span,
    key: &str,
    table: &str,
    schema: &Value,
) {
    let section = if table.is_empty() {
        "at the top level".into()
    } else {
        format!("in [{table}]")
    };
    findings.error(
        span,
        format!("unknown key `{key}` {section}"),
        suggest::remedy(key, known_keys(schema)),
    );
}

struct SchemaValidator<'f> {
    findings: &'f mut Findings,
    /// Table in a list that is being validated, as in [`indexed`].
    item: Option<(usize, usize)>,
}

impl SchemaValidator<'_> {
    fn table(&mut self, at: &str, span: &Span, table: &mut DeTable<'_>, schema: &Value) {
        self.check_required(at, span, table, schema);
        self.check_name(at, table, schema);
        let entries = std::mem::take(table).into_iter();
        *table = entries
            .filter_map(|(key, mut value)| {
                let fits = self.entry(at, &key, &mut value, schema);
                fits.then_some((key, value))
            })
            .collect();
        self.set_defaults(at, table, schema);
    }

    /// A missing key is not reported if the table has a similar unknown key.
    fn check_required(&mut self, at: &str, span: &Span, table: &DeTable<'_>, schema: &Value) {
        let is_misspelt = |key: &str| {
            let unknown = table.keys().map(|key| key.get_ref().as_ref());
            let mut unknown = unknown.filter(|key| property(schema, key).is_none());
            unknown.any(|word| suggest::closest(word, known_keys(schema)) == Some(key))
        };
        for key in strings(schema.get("required")) {
            let is_missing = !table.contains_key(key) && !is_misspelt(key);
            if is_missing
                && !self
                    .findings
                    .was_removed(&indexed(self.item, &join(at, key)))
            {
                let example = property(schema, key).map_or_else(String::new, |p| example(key, p));
                self.findings.error(
                    span,
                    format!("`{key}` is missing in [{at}]"),
                    format!("add it, for example {example}"),
                );
            }
        }
    }

    /// Reports `[limit]` instead of `[limit.NAME]`, and removes its keys.
    fn check_name(&mut self, at: &str, table: &mut DeTable<'_>, schema: &Value) {
        let Some(section) = named_values(schema).filter(|section| types(section) == ["object"])
        else {
            return;
        };
        let is_key = |key: &str, value: &TomlNode<'_>| {
            !matches!(value.get_ref(), DeValue::Table(_)) && property(section, key).is_some()
        };
        let mut keys = table.iter();
        let Some((key, _)) = keys.find(|(key, value)| is_key(key.get_ref(), value)) else {
            return;
        };
        self.findings.error(
            &key.span(),
            format!("`{}` is in [{at}], which has no name", key.get_ref()),
            format!("write {} above it", named_section(at)),
        );
        let entries = std::mem::take(table).into_iter();
        *table = entries
            .filter(|(key, value)| !is_key(key.get_ref(), value))
            .collect();
        self.remove(at);
    }

    fn set_defaults(&mut self, at: &str, table: &mut DeTable<'_>, schema: &Value) {
        for key in known_keys(schema) {
            let property = property(schema, key);
            if let Some(default) = property.and_then(|property| property.get("default"))
                && !table.contains_key(key)
            {
                let key = Spanned::new(NOT_CONFIGURED, Cow::Owned(key.to_owned()));
                let mut value = default_value(default, &NUMBERS);
                // Sets the defaults in a default that is a table.
                self.entry(at, &key, &mut value, schema);
                table.insert(key, value);
            }
        }
    }

    fn entry(
        &mut self,
        at: &str,
        key: &Spanned<DeString<'_>>,
        value: &mut TomlNode<'_>,
        schema: &Value,
    ) -> bool {
        let (span, key) = (key.span(), key.get_ref());
        let Some(property) = property(schema, key) else {
            unknown_key(self.findings, &span, key, at, schema);
            // The value probably belongs to the similar key.
            if let Some(similar) = suggest::closest(key, known_keys(schema)) {
                self.remove(&join(at, similar));
            }
            return false;
        };
        let path = join(at, key);
        let is_valid = self.key(&span, key, schema) && self.node(&path, value, property);
        if !is_valid {
            self.remove(&path);
        }
        is_valid
    }

    fn remove(&mut self, path: &str) {
        self.findings.remove(&indexed(self.item, path));
    }

    /// Checks the `NAME` in `[limit.NAME]`. Other keys are fixed by the schema.
    fn key(&mut self, span: &Span, key: &str, schema: &Value) -> bool {
        match schema.get("propertyNames") {
            Some(names) => self.text(span, key, names),
            None => true,
        }
    }

    /// Returns `false` if the caller must remove the value from the tree.
    fn node(&mut self, at: &str, node: &mut TomlNode<'_>, schema: &Value) -> bool {
        let span = node.span();
        let found = type_name(node.get_ref());
        let choices = match schema.get("anyOf").and_then(Value::as_array) {
            Some(choices) => choices.as_slice(),
            None => std::slice::from_ref(schema),
        };
        let Some(schema) = choices.iter().find(|choice| accepts_type(choice, found)) else {
            self.report_wrong_type(at, &span, found, schema, schema);
            return false;
        };
        match node.get_mut() {
            DeValue::Table(table) => {
                self.table(at, &span, table, schema);
                true
            }
            DeValue::Array(items) => self.list(at, &span, items, schema),
            DeValue::Integer(number) => {
                let digits = number.as_str().replace('_', "");
                let whole = i128::from_str_radix(&digits, number.radix()).unwrap_or(i128::MAX);
                if types(schema).contains(&"integer") {
                    self.integer(at, &span, whole, schema)
                } else {
                    // A clamped number remains invalid, because the keys that allow decimals have a much smaller range
                    // than `i32`.
                    let clamped = i32::try_from(whole.clamp(i32::MIN.into(), i32::MAX.into()));
                    self.number(at, &span, clamped.map_or(f64::NAN, f64::from), schema)
                }
            }
            DeValue::Float(number) => {
                let digits = number.as_str().replace('_', "");
                self.number(at, &span, digits.parse().unwrap_or(f64::NAN), schema)
            }
            // Its missing environment variable was already reported.
            DeValue::String(_) if self.findings.has_any_within(&span) => false,
            DeValue::String(text) => self.text(&span, text, schema),
            _ => true,
        }
    }

    fn list(&mut self, at: &str, span: &Span, items: &mut DeArray<'_>, schema: &Value) -> bool {
        let bound = |name| schema.get(name).and_then(Value::as_u64);
        let count = items.len() as u64;
        let is_partial = self.findings.was_removed(&indexed(self.item, at));
        if bound("minItems").is_some_and(|least| count < least) && !is_partial {
            let example = example(last_segment(at), schema);
            self.findings.error(
                span,
                format!("`{at}` is an empty list"),
                format!("write at least one entry: {example}"),
            );
            return false;
        }
        if let Some(most) = bound("maxItems").filter(|most| count > *most) {
            let first_too_many = items.get(usize::try_from(most).unwrap_or(usize::MAX));
            let span = first_too_many.map_or_else(|| span.clone(), Spanned::span);
            self.findings.error(
                &span,
                format!("`{at}` has too many entries: {count}"),
                format!("write at most {most} entries"),
            );
            return false;
        }
        if let Some(entry) = schema.get("items") {
            let taken = std::mem::replace(items, DeArray::new());
            *items = taken
                .into_iter()
                .enumerate()
                .filter_map(|(index, mut item)| {
                    let found = type_name(item.get_ref());
                    let is_valid = if accepts_type(entry, found) {
                        let outer = self.item;
                        if found == "object" {
                            self.item = outer.or(Some((at.len(), index)));
                        }
                        let is_valid = self.node(at, &mut item, entry);
                        self.item = outer;
                        is_valid
                    } else {
                        self.report_wrong_type(at, &item.span(), found, entry, schema);
                        false
                    };
                    if !is_valid {
                        self.remove(at);
                    }
                    is_valid.then_some(item)
                })
                .collect();
        }
        true
    }

    fn integer(&mut self, at: &str, span: &Span, number: i128, schema: &Value) -> bool {
        let bound = |name| schema.get(name).and_then(Value::as_i64).map(i128::from);
        let least = bound("minimum").unwrap_or(i128::MIN);
        let most = bound("maximum").unwrap_or_else(|| type_maximum(schema));
        if (least..=most).contains(&number) {
            return true;
        }
        let help = if number < least {
            format!("write at least {least}")
        } else {
            format!("write at most {most}")
        };
        let size = if number < least { "small" } else { "large" };
        self.findings
            .error(span, format!("`{at}` is too {size}"), help);
        false
    }

    fn number(&mut self, at: &str, span: &Span, number: f64, schema: &Value) -> bool {
        let bound = |name| schema.get(name).and_then(Value::as_f64);
        let above = bound("exclusiveMinimum").filter(|bound| number <= *bound);
        let least = bound("minimum").filter(|least| number < *least);
        let most = bound("maximum").filter(|most| number > *most);
        let (state, help) = match (above, least, most) {
            _ if number.is_nan() => (
                "not a number",
                format!("write {}", example(last_segment(at), schema)),
            ),
            (Some(above), _, _) => ("too small", format!("write more than {above}")),
            (_, Some(least), _) => ("too small", format!("write at least {least}")),
            (_, _, Some(most)) => ("too large", format!("write at most {most}")),
            (None, None, None) => return true,
        };
        self.findings
            .error(span, format!("`{at}` is {state}"), help);
        false
    }

    fn text(&mut self, span: &Span, text: &str, schema: &Value) -> bool {
        let words = allowed_words(schema);
        if !words.is_empty() && !words.contains(&text) {
            self.findings.error(
                span,
                format!("`{text}` is not a valid value"),
                suggest::remedy(text, words.into_iter()),
            );
            return false;
        }
        let format = schema.get("format").and_then(Value::as_str);
        let checked = format.map_or(Ok(()), |format| scalar::check(format, text));
        match checked.and_then(|()| scalar::check_bounds(text, schema)) {
            Ok(()) => true,
            Err(error) => {
                let span = match error.part {
                    Some(part) => self.findings.sources.inside(span, text, part),
                    None => span.clone(),
                };
                self.findings.error(&span, error.title, error.help);
                false
            }
        }
    }

    /// The example in the help is made from `key`: for an entry of a list, the schema of the list.
    fn report_wrong_type(
        &mut self,
        at: &str,
        span: &Span,
        found: &str,
        schema: &Value,
        key: &Value,
    ) {
        // As in a section header.
        let name = match types(key).as_slice() {
            ["object"] => at,
            _ => last_segment(at),
        };
        let help = match types(schema).as_slice() {
            ["boolean"] => "write `true` or `false`, without quotes".into(),
            _ => format!("write {}", example(name, key)),
        };
        let wanted = describe(schema);
        let found = describe_type(found);
        self.findings
            .error(span, format!("`{at}` must be {wanted}, not {found}"), help);
    }
}

/// As in `route[0].path`. Messages show paths without the index. `item` is the length of the path of the list, and the
/// index of the table.
pub(super) fn indexed(item: Option<(usize, usize)>, path: &str) -> String {
    match item {
        Some((list, index)) if path.len() >= list => {
            format!("{}[{index}]{}", &path[..list], &path[list..])
        }
        _ => path.to_owned(),
    }
}

/// Of the Rust type that the schema was generated from.
fn type_maximum(schema: &Value) -> i128 {
    match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => u8::MAX.into(),
        Some("uint32") => u32::MAX.into(),
        _ => i64::MAX.into(),
    }
}

/// `at` is empty at the top level.
fn join(at: &str, key: &str) -> String {
    match at {
        "" => key.to_owned(),
        _ => format!("{at}.{key}"),
    }
}

fn last_segment(at: &str) -> &str {
    at.rsplit('.').next().unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        findings.sources.add("test.toml", text);
        let mut file = tree::parse(text);
        check(&mut file, &mut findings);
        let problems = findings.into_problems();
        let shown = problems
            .iter()
            .map(|p| format!("{}:{} {} / {}", p.line, p.column, p.title, p.help));
        shown.collect()
    }

    #[test]
    fn all_problems_of_a_file_are_reported() {
        let found = problems(
            "[server]\nlisen = \"x\"\nworkers = \"two\"\nidle_timeout = \"soon\"\n\
             [log]\nformat = \"txt\"\n",
        );
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(
            found[0].starts_with("2:1 unknown key `lisen` in [server] / did you mean `listen`?")
        );
        assert!(found[1].starts_with(
            "3:11 `server.workers` must be a whole number, not a string / write `workers = 0`"
        ));
        assert!(found[2].starts_with("4:16 `soon` is not a duration"));
        assert!(found[3].starts_with("6:10 `txt` is not a valid value / did you mean `text`?"));
    }

    #[test]
    fn invalid_values_are_replaced_by_the_default_and_valid_ones_remain() {
        let text = "[server]\nlisten = [\"127.0.0.1:80\", \"nowhere\"]\nworkers = -1\n";
        let mut findings = Findings::default();
        findings.sources.add("test.toml", text);
        let mut file = tree::parse(text);
        check(&mut file, &mut findings);
        let server = file.get_ref()["server"].get_ref();
        assert_eq!(
            server["listen"].get_ref().as_array().map(|l| l.len()),
            Some(1)
        );
        let workers = server["workers"].get_ref().as_integer();
        assert_eq!(workers.map(toml::de::DeInteger::as_str), Some("0"));
    }

    #[test]
    fn the_remedy_for_a_section_of_the_wrong_type_shows_the_brackets() {
        let found = problems("server = 3\n[route]\nname = \"a\"\n");
        assert!(found[0].contains("a `[server]` section"), "{found:#?}");
        assert!(
            found[1].contains("`[[route]]`, with two brackets"),
            "{found:#?}"
        );
    }

    #[test]
    fn integers_are_valid_decimals_and_both_have_bounds() {
        let ratio = |text: &str| {
            problems(&format!(
                "[upstream.a]\nservers = [\"http://a\"]\nbreaker = {{ failure_ratio = {text} }}\n"
            ))
        };
        for text in ["1", "1.0", "0.000_1", "1e-9", "0x1"] {
            assert!(ratio(text).is_empty(), "{text}: {:?}", ratio(text));
        }
        for (text, expected) in [
            ("0", "too small / write more than 0"),
            ("-0.0", "too small / write more than 0"),
            ("1.01", "too large / write at most 1"),
            ("2", "too large / write at most 1"),
            ("inf", "too large / write at most 1"),
            ("-inf", "too small / write more than 0"),
            ("nan", "not a number / write `failure_ratio = 0.5`"),
            ("\"0.5\"", "must be a decimal number, not a string"),
        ] {
            let found = ratio(text);
            assert!(found[0].contains(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn the_remedy_for_a_time_out_of_range_contains_the_bound() {
        let window = |text: &str| {
            problems(&format!(
                "[upstream.a]\nservers = [\"http://a\"]\nbreaker = {{ window = \"{text}\" }}\n"
            ))
        };
        assert!(window("1s").is_empty() && window("1h").is_empty());
        assert!(window("999ms")[0].ends_with("is too short / write at least \"1s\""));
        assert!(window("3601s")[0].ends_with("is too long / write at most \"1h\""));
        assert!(window("soon")[0].contains("is not a duration"));
    }

    #[test]
    fn a_redis_timeout_is_above_zero_and_at_most_10_s() {
        let timeout = |text: &str| problems(&format!("[store]\nlimits_timeout = \"{text}\"\n"));
        assert!(timeout("1ms").is_empty() && timeout("10s").is_empty());
        for text in ["0ms", "10001ms", "1m", "soon"] {
            assert_eq!(timeout(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_lease_is_from_1_s_to_1_h() {
        let lease = |text: &str| problems(&format!("[store]\nlease = \"{text}\"\n"));
        assert!(lease("1s").is_empty() && lease("60m").is_empty());
        for text in ["0s", "999ms", "3601s", "2h", "for ever"] {
            assert_eq!(lease(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_size_of_zero_is_invalid_in_every_form() {
        let size = |text: &str| problems(&format!("[server]\nmax_body = {text}\n"));
        assert!(size("1").is_empty() && size("\"1KiB\"").is_empty());
        assert!(size("0")[0].ends_with("write at least 1"));
        assert!(size("\"0KiB\"")[0].contains("write at least 1 byte"));
    }

    #[test]
    fn the_defaults_in_the_schema_are_valid() {
        assert_eq!(problems(""), [""; 0]);
        assert_eq!(
            problems("[upstream.a]\nservers = [\"http://a\"]\nretry = {}\nconcurrency = {}\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_number_too_large_for_any_type_is_reported() {
        let found = problems("[limit.a]\nrate = \"1/s\"\nburst = 99999999999999999999\n");
        assert!(found[0].contains("at most 2147483647"), "{found:#?}");
    }
}
