//! Parser of admin requests about an idempotency key. The path contains the key, and the query can contain `scope` and
//! `body`.
//!
//! The parser rejects misspelt and repeated parameters, because otherwise a typing error could free the wrong key.

use axum::http::Uri;

use super::super::decode;
use super::super::problem::AdminProblem;
use crate::idempotency::{IdempotencyKey, ScopeHash};

/// Path prefix in front of the idempotency key.
const KEYS: &str = "/admin/v1/idempotency/keys/";

/// A parsed admin request about one idempotency key.
#[derive(Debug)]
pub(super) struct KeyRequest {
    pub(super) key: IdempotencyKey<'static>,
    /// The scope to search. `None` means all scopes.
    pub(super) scope: Option<ScopeHash>,
    /// Whether the admin response includes the headers and the body of each stored response (`?body=true`).
    pub(super) with_body: bool,
}

impl KeyRequest {
    pub(super) fn of(uri: &Uri) -> Result<Self, AdminProblem> {
        let encoded = uri.path().strip_prefix(KEYS).unwrap_or_default();
        let key = decode(encoded)
            .ok_or_else(|| {
                AdminProblem::bad_request(
                    "The path contains a `%` without two hexadecimal digits. Write `%25` for a percent sign.",
                )
            })?;
        let key = IdempotencyKey::parse(&key)
            .map_err(AdminProblem::key_invalid)?
            .into_owned();
        let (mut scope, mut body) = (None, None);
        let query = uri.query().unwrap_or_default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let repeated = match name {
                "scope" => scope
                    .replace(value.parse().map_err(|_| invalid_scope())?)
                    .is_some(),
                "body" => body.replace(flag(value)?).is_some(),
                _ => {
                    return Err(AdminProblem::bad_request(
                        "Unknown query parameter. Supported parameters: `scope`, `body`.",
                    ));
                }
            };
            if repeated {
                return Err(AdminProblem::bad_request(format!(
                    "The query parameter `{name}` is repeated. Send it once."
                )));
            }
        }
        Ok(Self {
            key,
            scope,
            with_body: body.unwrap_or(false),
        })
    }
}

fn invalid_scope() -> AdminProblem {
    AdminProblem::bad_request(
        "The parameter `scope` must be 32 hexadecimal digits. `GET /admin/v1/idempotency/keys/KEY` shows the scopes of a key.",
    )
}

fn flag(value: &str) -> Result<bool, AdminProblem> {
    value.parse().map_err(|_| {
        AdminProblem::bad_request("The query parameter `body` must be `true` or `false`.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: &str = "000102030405060708090a0b0c0d0e0f";

    fn parse(target: &str) -> Result<KeyRequest, AdminProblem> {
        KeyRequest::of(&format!("{KEYS}{target}").parse().unwrap())
    }

    #[test]
    fn percent_escapes_in_a_key_are_decoded_once() {
        for (spelling, key) in [
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
            assert_eq!(parse(spelling).unwrap().key.as_str(), key, "{spelling}");
        }
    }

    #[test]
    fn an_invalid_key_or_escape_is_rejected() {
        let long = "k".repeat(256);
        let escapes = ["%", "%4", "%zz", "%+1"]
            .map(|spelling| (spelling, "urn:tidegate:problem:bad-request"));
        let keys = ["", "%0d%0a", "a%20b", "%22open", "%00", "%c3%a9", &long];
        let keys = keys.map(|spelling| (spelling, "urn:tidegate:problem:idempotency-key-invalid"));
        for (spelling, kind) in escapes.into_iter().chain(keys) {
            let problem = serde_json::to_value(parse(spelling).unwrap_err()).unwrap();
            assert_eq!(
                (&problem["status"], &problem["type"]),
                (&400.into(), &kind.into()),
                "{spelling}"
            );
        }
    }

    #[test]
    fn unknown_repeated_and_malformed_parameters_are_rejected() {
        let plain = parse("k").unwrap();
        assert_eq!((plain.scope, plain.with_body), (None, false));
        let all = parse(&format!("k?body=true&scope={SCOPE}")).unwrap();
        assert_eq!(all.scope.unwrap().to_string(), SCOPE);
        assert!(all.with_body);
        assert!(!parse("k?body=false").unwrap().with_body);
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
            assert!(parse(&format!("k?{wrong}")).is_err(), "{wrong}");
        }
    }
}
