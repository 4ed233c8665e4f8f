//! What a request about a key asks for.
//!
//! Read strictly: a parameter that is misspelt, or given twice, must not free another key than was meant.

use axum::http::Uri;

use super::super::problem::Problem;
use crate::idempotency::{IdempotencyKey, ScopeHash};

/// Where keys are.
const KEYS: &str = "/idempotency/keys/";

/// What a request about a key asks for.
#[derive(Debug)]
pub(super) struct Asked {
    /// The key.
    pub(super) key: IdempotencyKey<'static>,
    /// Whose it is, where only that one is meant.
    pub(super) scope: Option<ScopeHash>,
    /// Whether the answers are to be shown.
    pub(super) with_body: bool,
}

impl Asked {
    pub(super) fn of(uri: &Uri) -> Result<Self, Problem> {
        let encoded = uri.path().strip_prefix(KEYS).unwrap_or_default();
        let key = decode(encoded)
            .ok_or_else(|| Problem::bad_request("The path has a broken percent escape."))?;
        let key = IdempotencyKey::parse(&key)
            .map_err(Problem::key_invalid)?
            .into_owned();
        let (mut scope, mut body) = (None, None);
        let query = uri.query().unwrap_or_default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let repeated = match name {
                "scope" => scope
                    .replace(value.parse().map_err(|_| no_scope())?)
                    .is_some(),
                "body" => body.replace(flag(value)?).is_some(),
                _ => {
                    return Err(Problem::bad_request(
                        "The parameters are `scope` and `body`.",
                    ));
                }
            };
            if repeated {
                return Err(Problem::bad_request(format!("`{name}` is given twice.")));
            }
        }
        Ok(Self {
            key,
            scope,
            with_body: body.unwrap_or(false),
        })
    }
}

fn no_scope() -> Problem {
    Problem::bad_request("`scope` is 32 hexadecimal digits, as a look at the key shows it.")
}

fn flag(value: &str) -> Result<bool, Problem> {
    value
        .parse()
        .map_err(|_| Problem::bad_request("`body` is `true` or `false`."))
}

/// Undoes percent encoding, once; `None` where an escape is none.
fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high * 16 + low).expect("two digits")
            }
            byte => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: &str = "000102030405060708090a0b0c0d0e0f";

    fn asked(target: &str) -> Result<Asked, Problem> {
        Asked::of(&format!("{KEYS}{target}").parse().unwrap())
    }

    #[test]
    fn a_key_is_decoded_once_whatever_is_in_it() {
        for (spelt, key) in [
            ("order-1", "order-1"),
            ("a%2Fb", "a/b"),
            ("a/b", "a/b"),
            ("a//b/", "a//b/"),
            ("50%25", "50%"),
            ("%252F", "%2F"),
            ("%3Fscope", "?scope"),
            ("a+b", "a+b"),
            ("%22quoted%22", "quoted"),
            ("%22with%20a%20blank%22", "with a blank"),
        ] {
            assert_eq!(asked(spelt).unwrap().key.as_str(), key, "{spelt}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = "k".repeat(256);
        for spelt in [
            "", "%", "%4", "%zz", "%+1", "%0d%0a", "a%20b", "%22open", "%00", "%c3%a9", &long,
        ] {
            assert!(asked(spelt).is_err(), "{spelt}");
        }
    }

    #[test]
    fn parameters_are_taken_to_the_letter() {
        let plain = asked("k").unwrap();
        assert_eq!((plain.scope, plain.with_body), (None, false));
        let all = asked(&format!("k?body=true&scope={SCOPE}")).unwrap();
        assert_eq!(all.scope.unwrap().to_string(), SCOPE);
        assert!(all.with_body);
        assert!(!asked("k?body=false").unwrap().with_body);
        for wrong in [
            "body",
            "body=1",
            "body=true&body=true",
            "scope=",
            "scope=00",
            "scopes=x",
            "Body=true",
            &format!("scope={SCOPE}&scope={SCOPE}"),
            &format!("scope={SCOPE}00"),
            &format!("scope=+{}", &SCOPE[1..]),
        ] {
            assert!(asked(&format!("k?{wrong}")).is_err(), "{wrong}");
        }
    }
}
