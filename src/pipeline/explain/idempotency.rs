//! The lines `key` and `duplicate` in the output of `tidegate explain`. They contain no value of the request, which can
//! be a secret, because users paste the output into tickets.

use http::header::{AUTHORIZATION, CONTENT_LENGTH, UPGRADE};
use http::{HeaderMap, HeaderName, Method};

use super::{format_duration, has_value};
use crate::idempotency::credentials::{cookie_values, is_signed};
use crate::idempotency::key::IDEMPOTENCY_KEY;
use crate::idempotency::rule::ScopePart;
use crate::idempotency::{
    IdempotencyError, IdempotencyKey, InFlightPolicy, KeyRule, OnServerError, OnUnknown,
    Requirement, Scope, body_key,
};
use crate::respond::Problem;

pub(super) enum KeyEffect {
    /// The gateway does not handle the key, for this reason. `None` if there is neither a key nor a rule.
    PassThrough(Option<String>),
    Rejected(Problem),
    Keyed {
        /// Where the key is in the request, and which caller it belongs to.
        owner: String,
        /// What a duplicate request gets.
        duplicate: String,
    },
}

impl KeyEffect {
    pub(super) fn of(rule: Option<&KeyRule>, method: &Method, headers: &HeaderMap) -> Self {
        let Some(rule) = rule else {
            let has_key = headers.contains_key(IDEMPOTENCY_KEY);
            let reason = "only forwarded, because the route has no `idempotency`";
            return Self::PassThrough(has_key.then(|| reason.into()));
        };
        let header = &rule.header;
        if !rule.methods.contains(method) {
            let names: Vec<_> = rule.methods.iter().map(Method::as_str).collect();
            let names = names.join(" and ");
            return Self::PassThrough(Some(format!(
                "only forwarded, because only {names} requests have keys on this route"
            )));
        }
        let mut source = format!("valid, in {header}");
        match IdempotencyKey::of(&headers.get_all(header)) {
            Ok(Some(_)) if headers.contains_key(UPGRADE) => {
                return Self::Rejected(Problem::bad_request(
                    "A request with an idempotency key cannot switch protocols.",
                ));
            }
            Ok(Some(_)) => {}
            Ok(None) if let Some(field) = body_field(rule, headers) => {
                let without = match rule.requirement {
                    Requirement::Optional => "executed without a key",
                    Requirement::Required => "400",
                };
                source = format!("in member '{field}' of the JSON body (if missing, {without})");
            }
            Ok(None) if rule.requirement == Requirement::Optional => {
                return Self::PassThrough(Some(format!(
                    "none in {header}, and none is required: the request is executed without a key"
                )));
            }
            Ok(None) => {
                return Self::Rejected(Problem::from(IdempotencyError::KeyMissing {
                    header: header.clone(),
                    field: rule.body_field.clone(),
                }));
            }
            Err(error) => {
                let header = header.clone();
                return Self::Rejected(IdempotencyError::KeyInvalid { header, error }.into());
            }
        }
        if declared_length(headers).is_some_and(|bytes| bytes > rule.max_request as u64) {
            let limit = rule.max_request as u64;
            return Self::Rejected(Problem::payload_too_large(limit));
        }
        Self::Keyed {
            owner: format!("{source}; belongs to {}", owner(rule, headers)),
            duplicate: duplicate(rule),
        }
    }
}

fn body_field<'a>(rule: &'a KeyRule, headers: &HeaderMap) -> Option<&'a str> {
    let field = rule.body_field.as_deref();
    field.filter(|_| body_key::is_json(headers))
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn owner(rule: &KeyRule, headers: &HeaderMap) -> String {
    let sender = |name: &HeaderName| {
        if has_value(headers, name) {
            format!("callers with this {name} header")
        } else {
            format!("this client, because header {name} is missing")
        }
    };
    match &rule.scope {
        Scope::Credential if is_signed(headers) => {
            "this client and the identity in its signed authorization header, which is not verified"
                .into()
        }
        Scope::Credential | Scope::Function(_) => sender(&AUTHORIZATION),
        Scope::Shared => "all callers together".into(),
        Scope::Parts(parts) => {
            let parts = parts.iter().map(|part| match part {
                ScopePart::Client => "this client".into(),
                ScopePart::Header(name) => sender(name),
                ScopePart::Cookie(name) if cookie_values(headers, name).next().is_some() => {
                    format!("callers with this cookie {name}")
                }
                ScopePart::Cookie(name) => {
                    format!("this client, because cookie {name} is missing")
                }
            });
            parts.collect::<Vec<_>>().join(" and ")
        }
    }
}

fn duplicate(rule: &KeyRule) -> String {
    let in_flight = match rule.in_flight {
        InFlightPolicy::Wait(most) => format!(
            "waits up to {} for the response to the first request, then 409",
            format_duration(most)
        ),
        InFlightPolicy::Conflict => "409 while the first request is in flight".into(),
    };
    let errors = match rule.on_server_error {
        OnServerError::Replay => "",
        OnServerError::Release => " unless it was a server error",
    };
    let lost = match rule.settings.on_unknown {
        OnUnknown::Hold => "409",
        OnUnknown::Release => "executed again",
    };
    format!(
        "{in_flight}; for {} after the response, its replay{errors}; if the response was lost, {lost}; if the \
         request differs, 422",
        format_duration(rule.settings.ttl)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;

    use super::*;

    fn explained(
        rule: Option<&KeyRule>,
        method: &Method,
        lines: &[(&'static str, &str)],
    ) -> String {
        let lines = lines.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).expect("a value");
            (HeaderName::from_static(name), value)
        });
        let mut headers = HeaderMap::new();
        lines.for_each(|(name, value)| {
            headers.append(name, value);
        });
        match KeyEffect::of(rule, method, &headers) {
            KeyEffect::PassThrough(reason) => {
                format!("passes through: {}", reason.unwrap_or_default())
            }
            KeyEffect::Rejected(problem) => format!("{}: {}", problem.status, problem.detail),
            KeyEffect::Keyed { owner, duplicate } => format!("keyed: {owner} / {duplicate}"),
        }
    }

    #[test]
    fn a_request_without_an_applicable_rule_passes_through() {
        let key = ("idempotency-key", "k");
        let rule = KeyRule::default();
        assert_eq!(explained(None, &Method::POST, &[]), "passes through: ");
        assert!(explained(None, &Method::POST, &[key]).contains("only forwarded"));
        assert!(explained(Some(&rule), &Method::GET, &[key]).contains("only POST and PATCH"));
        assert!(explained(Some(&rule), &Method::POST, &[]).contains("none is required"));
    }

    #[test]
    fn a_missing_or_invalid_key_is_rejected_with_a_reason() {
        let required = KeyRule {
            requirement: Requirement::Required,
            ..KeyRule::default()
        };
        let text = |lines: &[_]| explained(Some(&required), &Method::POST, lines);
        assert!(text(&[]).starts_with("400") && text(&[]).contains("requires an idempotency key"));
        let repeated = text(&[("idempotency-key", "k"), ("idempotency-key", "k")]);
        assert!(repeated.contains("more than one header line"), "{repeated}");
        assert!(text(&[("idempotency-key", "two words")]).contains("visible ASCII"));
        let upgrade = text(&[("idempotency-key", "k"), ("upgrade", "websocket")]);
        assert!(upgrade.starts_with("400"), "{upgrade}");
        let large = text(&[("idempotency-key", "k"), ("content-length", "1048577")]);
        assert!(large.starts_with("413"), "{large}");
    }

    #[test]
    fn a_json_body_can_have_the_key_in_its_member() {
        let json = ("content-type", "application/json; charset=utf-8");
        let mut rule = KeyRule {
            body_field: Some("requestId".into()),
            ..KeyRule::default()
        };
        let text = |rule: &KeyRule, lines: &[_]| explained(Some(rule), &Method::POST, lines);
        let optional = text(&rule, &[json]);
        assert!(
            optional.starts_with("keyed: in member 'requestId'"),
            "{optional}"
        );
        assert!(optional.contains("executed without a key"), "{optional}");
        assert!(text(&rule, &[]).contains("none is required"));
        let large = text(&rule, &[json, ("content-length", "1048577")]);
        assert!(large.starts_with("413"), "{large}");
        let both = text(&rule, &[json, ("idempotency-key", "k")]);
        assert!(
            both.starts_with("keyed: valid, in idempotency-key"),
            "{both}"
        );
        rule.requirement = Requirement::Required;
        assert!(text(&rule, &[json]).contains("if missing, 400"));
        let missing = text(&rule, &[("content-type", "text/plain")]);
        assert!(missing.starts_with("400"), "{missing}");
        assert!(missing.contains("idempotency-key") && missing.contains("requestId"));
    }

    #[test]
    fn the_text_contains_no_value_of_the_request() {
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
            let text = explained(Some(&rule), &Method::POST, &lines);
            assert!(
                text.starts_with("keyed") && !text.contains("s3cret"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_owner_of_a_key_follows_the_scope() {
        let signed = "AWS4-HMAC-SHA256 Credential=s3cret/20261117/r/s/aws4_request, SignedHeaders=host, Signature=s3cret";
        let digest = "Digest username=\"s3cret\", realm=\"r\", response=\"s3cret\"";
        let identity = "the identity in its signed authorization header, which is not verified";
        let part = |part| Scope::Parts(Box::new([part]));
        let cookie = || part(ScopePart::Cookie("session".into()));
        let header = part(ScopePart::Header(AUTHORIZATION));
        let sent = "callers with this authorization header";
        for (scope, name, value, owner) in [
            (Scope::Credential, "authorization", signed, identity),
            (Scope::Credential, "authorization", digest, identity),
            (Scope::Credential, "authorization", "Bearer s3cret", sent),
            (header, "authorization", signed, sent),
            (
                cookie(),
                "cookie",
                "session=s3cret",
                "callers with this cookie session",
            ),
            (
                cookie(),
                "cookie",
                "other=1",
                "because cookie session is missing",
            ),
        ] {
            let rule = KeyRule {
                scope,
                ..KeyRule::default()
            };
            let lines = [("idempotency-key", "k"), (name, value)];
            let text = explained(Some(&rule), &Method::POST, &lines);
            assert!(text.contains(owner) && !text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn the_outcome_of_a_duplicate_follows_the_rule() {
        let key = ("idempotency-key", "k");
        let text = explained(Some(&KeyRule::default()), &Method::POST, &[key]);
        for part in [
            "this client, because header authorization is missing",
            "waits up to 10s",
            "for 24h after the response, its replay;",
            "lost, 409",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let mut rule = KeyRule {
            in_flight: InFlightPolicy::Conflict,
            on_server_error: OnServerError::Release,
            ..KeyRule::default()
        };
        rule.settings.on_unknown = OnUnknown::Release;
        let text = explained(Some(&rule), &Method::POST, &[key]);
        for part in ["409 while the first", "a server error", "executed again"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn durations_are_formatted_as_in_a_configuration() {
        for (millis, text) in [
            (250, "250ms"),
            (1_500, "1500ms"),
            (10_000, "10s"),
            (300_000, "5m"),
            (86_400_000, "24h"),
            (604_800_000, "7d"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
    }
}
