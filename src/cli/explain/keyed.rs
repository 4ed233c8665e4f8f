//! What idempotency would do for a request, in words.
//!
//! The words are about the request and never quote it: a key, a token or any other value a scope is made
//! from may be somebody's secret, and what is explained gets pasted into tickets.

use http::header::{AUTHORIZATION, CONTENT_LENGTH, UPGRADE};
use http::{HeaderMap, HeaderName, Method};

use super::{has_value, written};
use crate::idempotency::body_key;
use crate::idempotency::credentials::{cookie_values, is_signed};
use crate::idempotency::key::IDEMPOTENCY_KEY;
use crate::idempotency::rule::ScopePart;
use crate::idempotency::{
    IdempotencyError, IdempotencyKey, InFlightPolicy, KeyRule, OnServerError, OnUnknown,
    Requirement, Scope,
};
use crate::problem::Problem;

/// What idempotency would do for a request.
pub(super) enum Keying {
    /// Nothing, for this reason; there may be none worth telling.
    Passes(Option<String>),
    /// It would refuse it.
    Refused(Problem),
    /// It would carry it out once.
    Keyed {
        /// Whose key it is.
        owner: String,
        /// What a duplicate gets.
        duplicate: String,
    },
}

impl Keying {
    /// Describes the effect of a route's rule, if it has one, on a request with this head.
    pub(super) fn of(rule: Option<&KeyRule>, method: &Method, headers: &HeaderMap) -> Self {
        let Some(rule) = rule else {
            let idle = headers.contains_key(IDEMPOTENCY_KEY);
            let reason = "only forwarded, as the route has no idempotency";
            return Self::Passes(idle.then(|| reason.into()));
        };
        let header = &rule.header;
        if !rule.methods.contains(method) {
            let names: Vec<_> = rule.methods.iter().map(Method::as_str).collect();
            let names = names.join(" and ");
            return Self::Passes(Some(format!(
                "not looked at, as only {names} requests are keyed"
            )));
        }
        let mut source = format!("valid, in {header}");
        match IdempotencyKey::of(&headers.get_all(header)) {
            Ok(Some(_)) if headers.contains_key(UPGRADE) => {
                return Self::Refused(Problem::bad_request(
                    "A request with an idempotency key cannot switch protocols.",
                ));
            }
            Ok(Some(_)) => {}
            Ok(None) if let Some(field) = searched(rule, headers) => {
                let without = match rule.requirement {
                    Requirement::Optional => "executed without a key",
                    Requirement::Required => "400",
                };
                source = format!("in member '{field}' of the JSON body (if missing, {without})");
            }
            Ok(None) if rule.requirement == Requirement::Optional => {
                return Self::Passes(Some(format!(
                    "none in {header}, and none is required: each such request is carried out"
                )));
            }
            Ok(None) => {
                return Self::Refused(Problem::from(IdempotencyError::KeyMissing {
                    header: header.clone(),
                    field: rule.body_field.clone(),
                }));
            }
            Err(error) => {
                let header = header.clone();
                return Self::Refused(IdempotencyError::KeyInvalid { header, error }.into());
            }
        }
        if announced(headers).is_some_and(|bytes| bytes > rule.max_request as u64) {
            let limit = rule.max_request as u64;
            return Self::Refused(Problem::payload_too_large(limit));
        }
        Self::Keyed {
            owner: format!("{source}; belongs to {}", owner(rule, headers)),
            duplicate: duplicate(rule),
        }
    }
}

/// Returns the member of the body that can contain the key.
fn searched<'a>(rule: &'a KeyRule, headers: &HeaderMap) -> Option<&'a str> {
    let field = rule.body_field.as_deref();
    field.filter(|_| body_key::is_json(headers))
}

/// Returns the length of the body, if the request declares it.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Names the caller that the key belongs to.
fn owner(rule: &KeyRule, headers: &HeaderMap) -> String {
    let sender = |name: &HeaderName| {
        if has_value(headers, name) {
            format!("callers with this {name} header")
        } else {
            format!("this client, as header {name} is missing")
        }
    };
    match &rule.scope {
        Scope::Credential if is_signed(headers) => {
            "this client and the identity in its signed authorization header, which is not verified"
                .into()
        }
        Scope::Credential => sender(&AUTHORIZATION),
        Scope::Shared => "all callers together".into(),
        Scope::Parts(parts) => {
            let parts = parts.iter().map(|part| match part {
                ScopePart::Client => "this client".into(),
                ScopePart::Header(name) => sender(name),
                ScopePart::Cookie(name) if cookie_values(headers, name).next().is_some() => {
                    format!("callers with this cookie {name}")
                }
                ScopePart::Cookie(name) => format!("this client, as cookie {name} is missing"),
            });
            parts.collect::<Vec<_>>().join(" and ")
        }
    }
}

/// What a duplicate gets.
fn duplicate(rule: &KeyRule) -> String {
    let meanwhile = match rule.in_flight {
        InFlightPolicy::Wait(most) => format!(
            "waits up to {} for the first to end and gets its answer, else 409",
            written(most)
        ),
        InFlightPolicy::Conflict => "gets 409 while the first runs".into(),
    };
    let errors = match rule.on_server_error {
        OnServerError::Replay => "",
        OnServerError::Release => ", unless that was a server error",
    };
    let lost = match rule.settings.on_unknown {
        OnUnknown::Hold => "409",
        OnUnknown::Release => "carried out again",
    };
    format!(
        "{meanwhile}; for {} after, the same answer{errors}; if the answer was lost, {lost}; for another \
         request under this key, 422",
        written(rule.settings.ttl)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;

    use super::*;

    fn keying(rule: Option<&KeyRule>, method: &Method, lines: &[(&'static str, &str)]) -> String {
        let lines = lines.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).expect("a value");
            (HeaderName::from_static(name), value)
        });
        let mut headers = HeaderMap::new();
        lines.for_each(|(name, value)| {
            headers.append(name, value);
        });
        match Keying::of(rule, method, &headers) {
            Keying::Passes(reason) => format!("passes: {}", reason.unwrap_or_default()),
            Keying::Refused(problem) => format!("{}: {}", problem.status, problem.detail),
            Keying::Keyed { owner, duplicate } => format!("keyed: {owner} / {duplicate}"),
        }
    }

    #[test]
    fn a_request_without_a_use_for_its_key_passes() {
        let key = ("idempotency-key", "k");
        let rule = KeyRule::default();
        assert_eq!(keying(None, &Method::POST, &[]), "passes: ");
        assert!(keying(None, &Method::POST, &[key]).contains("only forwarded"));
        assert!(keying(Some(&rule), &Method::GET, &[key]).contains("only POST and PATCH"));
        assert!(keying(Some(&rule), &Method::POST, &[]).contains("none is required"));
    }

    #[test]
    fn a_key_that_is_missing_or_invalid_is_told_why() {
        let required = KeyRule {
            requirement: Requirement::Required,
            ..KeyRule::default()
        };
        let said = |lines: &[_]| keying(Some(&required), &Method::POST, lines);
        assert!(said(&[]).starts_with("400") && said(&[]).contains("must have"));
        let repeated = said(&[("idempotency-key", "k"), ("idempotency-key", "k")]);
        assert!(repeated.contains("more than once"), "{repeated}");
        assert!(said(&[("idempotency-key", "two words")]).contains("visible ASCII"));
        let upgrade = said(&[("idempotency-key", "k"), ("upgrade", "websocket")]);
        assert!(upgrade.starts_with("400"), "{upgrade}");
        let large = said(&[("idempotency-key", "k"), ("content-length", "1048577")]);
        assert!(large.starts_with("413"), "{large}");
    }

    #[test]
    fn a_json_body_can_have_the_key_in_its_member() {
        let json = ("content-type", "application/json; charset=utf-8");
        let mut rule = KeyRule {
            body_field: Some("requestId".into()),
            ..KeyRule::default()
        };
        let said = |rule: &KeyRule, lines: &[_]| keying(Some(rule), &Method::POST, lines);
        let optional = said(&rule, &[json]);
        assert!(
            optional.starts_with("keyed: in member 'requestId'"),
            "{optional}"
        );
        assert!(optional.contains("executed without a key"), "{optional}");
        assert!(said(&rule, &[]).contains("none is required"));
        let large = said(&rule, &[json, ("content-length", "1048577")]);
        assert!(large.starts_with("413"), "{large}");
        let both = said(&rule, &[json, ("idempotency-key", "k")]);
        assert!(
            both.starts_with("keyed: valid, in idempotency-key"),
            "{both}"
        );
        rule.requirement = Requirement::Required;
        assert!(said(&rule, &[json]).contains("if missing, 400"));
        let missing = said(&rule, &[("content-type", "text/plain")]);
        assert!(missing.starts_with("400"), "{missing}");
        assert!(missing.contains("idempotency-key") && missing.contains("requestId"));
    }

    #[test]
    fn no_value_of_a_request_is_ever_repeated() {
        let lines = [
            ("idempotency-key", "s3cret-key"),
            ("authorization", "Bearer s3cret"),
            ("x-api-key", "s3cret-too"),
        ];
        let part = |name| ScopePart::Header(HeaderName::from_static(name));
        for scope in [
            Scope::Credential,
            Scope::Shared,
            Scope::Parts(Box::new([part("x-api-key"), ScopePart::Client])),
        ] {
            let rule = KeyRule {
                scope,
                ..KeyRule::default()
            };
            let said = keying(Some(&rule), &Method::POST, &lines);
            assert!(
                said.starts_with("keyed") && !said.contains("s3cret"),
                "{said}"
            );
        }
    }

    #[test]
    fn what_a_duplicate_gets_follows_the_rule() {
        let key = ("idempotency-key", "k");
        let said = keying(Some(&KeyRule::default()), &Method::POST, &[key]);
        for part in [
            "this client, as header authorization is missing",
            "waits up to 10s",
            "for 24h after, the same answer;",
            "lost, 409",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        let mut rule = KeyRule {
            in_flight: InFlightPolicy::Conflict,
            on_server_error: OnServerError::Release,
            ..KeyRule::default()
        };
        rule.settings.on_unknown = OnUnknown::Release;
        let said = keying(Some(&rule), &Method::POST, &[key]);
        for part in ["409 while the first", "a server error", "carried out again"] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }

    #[test]
    fn durations_are_written_as_in_a_configuration() {
        for (millis, text) in [
            (250, "250ms"),
            (1_500, "1500ms"),
            (10_000, "10s"),
            (300_000, "5m"),
            (86_400_000, "24h"),
            (604_800_000, "7d"),
        ] {
            assert_eq!(written(Duration::from_millis(millis)), text);
        }
    }
}
