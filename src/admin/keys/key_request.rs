//! Parser of admin requests about an idempotency key. It rejects misspelt and repeated parameters, because a typing
//! error could free the wrong key.

use axum::extract::Query;
use axum::http::Uri;
use serde::Deserialize;

use super::super::decode;
use super::super::problem::AdminProblem;
use crate::idempotency::{IdempotencyKey, ScopeHash};

const KEYS: &str = "/admin/v1/idempotency/keys/";

#[derive(Debug)]
pub(super) struct KeyRequest {
    pub(super) key: IdempotencyKey<'static>,
    /// The scope to search. `None` means all scopes.
    pub(super) scope: Option<ScopeHash>,
    /// Whether the headers and the body of each stored response are shown.
    pub(super) with_body: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyQuery {
    scope: Option<String>,
    #[serde(default)]
    body: bool,
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
        let key = IdempotencyKey::parse(&key)?.into_owned();
        let Query(query) = Query::<KeyQuery>::try_from_uri(uri)?;
        let scope = query.scope.map(|scope| scope.parse()).transpose();
        let scope = scope.map_err(|_| {
            AdminProblem::bad_request(
                "The parameter `scope` must be 32 hexadecimal digits. `GET /admin/v1/idempotency/keys/KEY` shows the scopes of a key.",
            )
        })?;
        Ok(Self {
            key,
            scope,
            with_body: query.body,
        })
    }
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
