//! Is every key known, and every value of its kind?
//!
//! The tree is walked along the schema. Whatever does not fit is reported and taken out, so that what
//! remains decodes without error and can be checked for its meaning in the same run. serde alone
//! would stop at the first fault, and a schema validator would know no remedy.

mod sample;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::problem::Findings;
use super::source::Span;
use super::tree::{Node, type_name};
use super::{scalar, suggest};

use sample::{in_words, sample};

/// Checks a whole file and takes out what does not fit.
pub(super) fn check(file: &mut Spanned<DeTable<'_>>, schema: &Value, findings: &mut Findings) {
    let span = file.span();
    Walk { findings }.table("", &span, file.get_mut(), schema);
}

/// The keys a table may have, where they are fixed.
pub(super) fn known_keys(schema: &Value) -> impl Iterator<Item = &str> + Clone {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties
        .into_iter()
        .flat_map(|properties| properties.keys().map(String::as_str))
}

/// What a key holds, by the schema of its table.
pub(super) fn property<'s>(schema: &'s Value, key: &str) -> Option<&'s Value> {
    match schema.get("properties").and_then(|all| all.get(key)) {
        Some(property) => Some(property),
        None => free_values(schema),
    }
}

/// What the keys of a table hold, where a person may choose their names.
pub(super) fn free_values(schema: &Value) -> Option<&Value> {
    schema
        .get("additionalProperties")
        .filter(|values| values.is_object())
}

/// The types a value may have, as JSON Schema calls them.
pub(super) fn types(schema: &Value) -> Vec<&str> {
    if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
        return choices.iter().flat_map(types).collect();
    }
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => vec!["string"],
    }
}

/// Whether a value of a type may stand there; a whole number is a number, too.
pub(super) fn takes(schema: &Value, found: &str) -> bool {
    let found_in = |wanted: &str| wanted == found || (wanted, found) == ("number", "integer");
    types(schema).into_iter().any(found_in)
}

/// Reports a key that nothing is known of.
pub(super) fn unknown_key(
    findings: &mut Findings,
    span: &Span,
    key: &str,
    table: &str,
    schema: &Value,
) {
    let place = if table.is_empty() {
        "at the top".into()
    } else {
        format!("in [{table}]")
    };
    findings.error(
        span,
        format!("unknown key `{key}` {place}"),
        suggest::remedy(key, known_keys(schema)),
    );
}

struct Walk<'f> {
    findings: &'f mut Findings,
}

impl Walk<'_> {
    fn table(&mut self, at: &str, span: &Span, table: &mut DeTable<'_>, schema: &Value) {
        for key in strings(schema.get("required")) {
            if !table.contains_key(key) {
                let sample = property(schema, key).map_or_else(String::new, |p| sample(key, p));
                self.findings.error(
                    span,
                    format!("`{key}` is missing in [{at}]"),
                    format!("add {sample}"),
                );
            }
        }
        let entries = std::mem::take(table).into_iter();
        *table = entries
            .filter_map(|(key, mut value)| {
                let fits = self.entry(at, &key, &mut value, schema);
                fits.then_some((key, value))
            })
            .collect();
    }

    fn entry(
        &mut self,
        at: &str,
        key: &Spanned<DeString<'_>>,
        value: &mut Node<'_>,
        schema: &Value,
    ) -> bool {
        let (span, key) = (key.span(), key.get_ref());
        let Some(property) = property(schema, key) else {
            unknown_key(self.findings, &span, key, at, schema);
            return false;
        };
        let path = match at {
            "" => key.to_string(),
            _ => format!("{at}.{key}"),
        };
        self.key(&span, key, schema) && self.node(&path, value, property)
    }

    /// A name a person chose; fixed keys are known to be right.
    fn key(&mut self, span: &Span, key: &str, schema: &Value) -> bool {
        match schema.get("propertyNames") {
            Some(names) => self.text(span, key, names),
            None => true,
        }
    }

    /// Whether the value is to stay.
    fn node(&mut self, at: &str, node: &mut Node<'_>, schema: &Value) -> bool {
        let span = node.span();
        let found = type_name(node.get_ref());
        let choices = match schema.get("anyOf").and_then(Value::as_array) {
            Some(choices) => choices.as_slice(),
            None => std::slice::from_ref(schema),
        };
        let Some(schema) = choices.iter().find(|choice| takes(choice, found)) else {
            self.wrong_type(at, &span, found, schema, schema);
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
                    self.whole_number(at, &span, whole, schema)
                } else {
                    // Where decimals are allowed too, no bound is anywhere near.
                    let near = i32::try_from(whole.clamp(i32::MIN.into(), i32::MAX.into()));
                    self.number(at, &span, near.map_or(f64::NAN, f64::from), schema)
                }
            }
            DeValue::Float(number) => {
                let digits = number.as_str().replace('_', "");
                self.number(at, &span, digits.parse().unwrap_or(f64::NAN), schema)
            }
            // A string whose variable was missing is not what its author wrote.
            DeValue::String(_) if self.findings.has_any_within(&span) => false,
            DeValue::String(text) => self.text(&span, text, schema),
            _ => true,
        }
    }

    fn list(&mut self, at: &str, span: &Span, items: &mut DeArray<'_>, schema: &Value) -> bool {
        let bound = |name| schema.get(name).and_then(Value::as_u64);
        let count = items.len() as u64;
        if bound("minItems").is_some_and(|least| count < least) {
            let sample = sample(last(at), schema);
            self.findings.error(
                span,
                format!("`{at}` is an empty list"),
                format!("write at least one: {sample}"),
            );
            return false;
        }
        if let Some(most) = bound("maxItems").filter(|most| count > *most) {
            let first_too_many = items.get(usize::try_from(most).unwrap_or(usize::MAX));
            let span = first_too_many.map_or_else(|| span.clone(), Spanned::span);
            self.findings.error(
                &span,
                format!("`{at}` has {count} entries"),
                format!("write at most {most}"),
            );
            return false;
        }
        if let Some(entry) = schema.get("items") {
            let taken = std::mem::replace(items, DeArray::new());
            *items = taken
                .into_iter()
                .filter_map(|mut item| {
                    let found = type_name(item.get_ref());
                    if !takes(entry, found) {
                        self.wrong_type(at, &item.span(), found, entry, schema);
                        return None;
                    }
                    self.node(at, &mut item, entry).then_some(item)
                })
                .collect();
        }
        true
    }

    fn whole_number(&mut self, at: &str, span: &Span, number: i128, schema: &Value) -> bool {
        let bound = |name| schema.get(name).and_then(Value::as_i64).map(i128::from);
        let least = bound("minimum").unwrap_or(i128::MIN);
        let most = bound("maximum").unwrap_or_else(|| widest(schema));
        if (least..=most).contains(&number) {
            return true;
        }
        let help = if number < least {
            format!("write at least {least}")
        } else {
            format!("write at most {most}")
        };
        let fault = if number < least { "small" } else { "large" };
        self.findings
            .error(span, format!("`{at}` is too {fault}"), help);
        false
    }

    fn number(&mut self, at: &str, span: &Span, number: f64, schema: &Value) -> bool {
        let bound = |name| schema.get(name).and_then(Value::as_f64);
        let above = bound("exclusiveMinimum").filter(|bound| number <= *bound);
        let least = bound("minimum").filter(|least| number < *least);
        let most = bound("maximum").filter(|most| number > *most);
        let (fault, help) = match (above, least, most) {
            _ if number.is_nan() => ("no number", format!("write {}", sample(last(at), schema))),
            (Some(above), _, _) => ("too small", format!("write more than {above}")),
            (_, Some(least), _) => ("too small", format!("write at least {least}")),
            (_, _, Some(most)) => ("too large", format!("write at most {most}")),
            (None, None, None) => return true,
        };
        self.findings
            .error(span, format!("`{at}` is {fault}"), help);
        false
    }

    fn text(&mut self, span: &Span, text: &str, schema: &Value) -> bool {
        let words = words(schema);
        if !words.is_empty() && !words.contains(&text) {
            self.findings.error(
                span,
                format!("`{text}` is not a choice here"),
                suggest::remedy(text, words.into_iter()),
            );
            return false;
        }
        let format = schema.get("format").and_then(Value::as_str);
        match format.map_or(Ok(()), |format| scalar::check(format, text)) {
            Ok(()) => true,
            Err(fault) => {
                self.findings.error(span, fault.title, fault.help);
                false
            }
        }
    }

    /// Reports a value of a type that `schema` does not allow. `key` is the schema of the whole key: for an entry
    /// of a list, the list.
    fn wrong_type(&mut self, at: &str, span: &Span, found: &str, schema: &Value, key: &Value) {
        let wanted: Vec<_> = types(schema).into_iter().map(in_words).collect();
        // A section has its full name in the file, a key only the last part.
        let name = match types(key).as_slice() {
            ["object"] => at,
            _ => last(at),
        };
        self.findings.error(
            span,
            format!(
                "`{at}` must be {}, not {}",
                wanted.join(" or "),
                in_words(found)
            ),
            format!("write {}", sample(name, key)),
        );
    }
}

/// The words a string is one of, where it is one of a few.
fn words(schema: &Value) -> Vec<&str> {
    let choices = schema.get("oneOf").and_then(Value::as_array);
    let described = choices
        .into_iter()
        .flatten()
        .filter_map(|choice| choice.get("const")?.as_str());
    described.chain(strings(schema.get("enum"))).collect()
}

fn strings(list: Option<&Value>) -> impl Iterator<Item = &str> {
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// The largest number the type behind a schema can hold.
fn widest(schema: &Value) -> i128 {
    match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => u8::MAX.into(),
        Some("uint32") => u32::MAX.into(),
        _ => i64::MAX.into(),
    }
}

fn last(at: &str) -> &str {
    at.rsplit('.').next().unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::super::{schema, tree};
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        findings.sources.add("test.toml", text);
        let mut file = tree::read(text, &mut findings).expect("well-formed");
        check(&mut file, &schema(), &mut findings);
        let problems = findings.into_problems();
        let shown = problems
            .iter()
            .map(|p| format!("{}:{} {} / {}", p.line, p.column, p.title, p.help));
        shown.collect()
    }

    #[test]
    fn all_faults_are_found_in_one_walk() {
        let found = problems(
            "[server]\nlisen = \"x\"\nworkers = \"two\"\nidle_timeout = \"soon\"\n\
             [log]\nformat = \"txt\"\n",
        );
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(
            found[0].starts_with("2:1 unknown key `lisen` in [server] / did you mean `listen`?")
        );
        assert!(found[1].starts_with("3:11 `server.workers` must be a whole number, not a string"));
        assert!(found[2].starts_with("4:16 `soon` is not a duration"));
        assert!(found[3].starts_with("6:10 `txt` is not a choice here / did you mean `text`?"));
    }

    #[test]
    fn what_does_not_fit_is_taken_out_and_the_rest_stays() {
        let text = "[server]\nlisten = [\"127.0.0.1:80\", \"nowhere\"]\nworkers = -1\n";
        let mut findings = Findings::default();
        findings.sources.add("test.toml", text);
        let mut file = tree::read(text, &mut findings).expect("well-formed");
        check(&mut file, &schema(), &mut findings);
        let server = file.get_ref()["server"].get_ref();
        assert_eq!(
            server["listen"].get_ref().as_array().map(|l| l.len()),
            Some(1)
        );
        assert!(server.get("workers").is_none());
    }

    #[test]
    fn a_section_of_the_wrong_kind_is_told_its_brackets() {
        let found = problems("server = 3\n[route]\nname = \"a\"\n");
        assert!(found[0].contains("a `[server]` section"), "{found:#?}");
        assert!(
            found[1].contains("`[[route]]`, in two brackets"),
            "{found:#?}"
        );
    }

    #[test]
    fn a_whole_number_is_a_number_and_both_keep_to_their_bounds() {
        let ratio = |text: &str| {
            problems(&format!(
                "[upstream.a]\nservers = [\"http://a\"]\nbreaker = {{ failure_ratio = {text} }}\n"
            ))
        };
        for text in ["1", "1.0", "0.000_1", "1e-9", "0x1"] {
            assert!(ratio(text).is_empty(), "{text}: {:?}", ratio(text));
        }
        for (text, fault) in [
            ("0", "too small / write more than 0"),
            ("-0.0", "too small / write more than 0"),
            ("1.01", "too large / write at most 1"),
            ("2", "too large / write at most 1"),
            ("inf", "too large / write at most 1"),
            ("-inf", "too small / write more than 0"),
            ("nan", "no number / write `failure_ratio = 0.5`"),
            ("\"0.5\"", "must be a decimal number, not a string"),
        ] {
            let found = ratio(text);
            assert!(found[0].contains(fault), "{text}: {found:?}");
        }
    }

    #[test]
    fn numbers_too_large_for_any_type_are_faults_too() {
        let found = problems("[limit.a]\nrate = \"1/s\"\nburst = 99999999999999999999\n");
        assert!(found[0].contains("at most 2147483647"), "{found:#?}");
    }
}
