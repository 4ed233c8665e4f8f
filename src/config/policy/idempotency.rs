//! `[route.idempotency]`: converts the table to a [`KeyRule`].
//!
//! Omitted configuration keys have the values of [`KeyRule::default`]. Contradictions are errors, also with `mode =
//! "off"`, because a user can enable the table again. Warnings are reported only if `mode` is not "off".

use std::num::NonZeroU32;
use std::time::Duration;

use http::header::COOKIE;
use http::{HeaderName, Method, StatusCode};

use super::super::file::{
    IdempotencySection, IdempotencyWord, InFlightWord, OnServerErrorWord, OnUnknownWord,
};
use super::super::located::{Located, Many};
use super::super::problem::Findings;
use super::super::scalar::{ScopeText, Size};
use super::buffers::Bounds;
use super::timeout;
use crate::idempotency::claim::RecordSettings;
use crate::idempotency::rule::ScopePart;
use crate::idempotency::{InFlightPolicy, KeyRule, OnServerError, OnUnknown, Requirement, Scope};

/// Default of `wait_timeout`.
const DEFAULT_WAIT: Duration = Duration::from_secs(10);

/// Values outside the `idempotency` table that the checks of this table depend on.
#[derive(Clone, Copy)]
pub(super) struct RouteContext<'a> {
    /// Methods that the route matches. `None` means all methods.
    pub(super) methods: Option<&'a [Method]>,
    /// Maximum total size of the stored responses in the idempotency store, in bytes.
    pub(super) max_bytes: u64,
    /// Maximum size of bodies in memory.
    pub(super) buffers: Bounds<'a>,
}

/// Converts the table to a rule. Returns `None` if `mode` is "off": the gateway then only forwards idempotency keys.
pub(super) fn resolve(
    section: &Located<IdempotencySection>,
    context: RouteContext<'_>,
    findings: &mut Findings,
) -> Option<KeyRule> {
    let table = &section.value;
    let rule = rule(table, findings);
    let requirement = match table.mode.as_ref().map(|mode| mode.value) {
        Some(IdempotencyWord::Off) => return None,
        Some(IdempotencyWord::Optional) | None => Requirement::Optional,
        Some(IdempotencyWord::Required) => Requirement::Required,
    };
    let rule = KeyRule {
        requirement,
        ..rule
    };
    let span = match (&table.max_request, &table.mode) {
        (Some(max_request), _) => &max_request.span,
        (None, Some(mode)) => &mode.span,
        (None, None) => &section.span,
    };
    context
        .buffers
        .check_request(rule.max_request, span, findings);
    warn(section, &rule, context, findings);
    Some(rule)
}

fn rule(table: &IdempotencySection, findings: &mut Findings) -> KeyRule {
    let default = KeyRule::default();
    let header = match &table.header {
        Some(header) => header.value.name(),
        None => default.header,
    };
    KeyRule {
        requirement: default.requirement,
        methods: match &table.methods {
            Some(methods) => methods.0.iter().map(|m| m.value.0.clone()).collect(),
            None => default.methods,
        },
        scope: match &table.scope {
            Some(words) => scope(words, &header, findings),
            None => default.scope,
        },
        header,
        body_field: match &table.body_field {
            Some(field) => Some(field.value.0.as_str().into()),
            None => default.body_field,
        },
        settings: record_settings(table, default.settings),
        in_flight: in_flight(table, findings),
        on_server_error: match table.on_server_error.as_ref().map(|word| word.value) {
            Some(OnServerErrorWord::Replay) => OnServerError::Replay,
            Some(OnServerErrorWord::Release) => OnServerError::Release,
            None => default.on_server_error,
        },
        release_on: table.release_on.as_deref().map(statuses),
        max_request: bytes(table.max_request.as_ref(), default.max_request),
        max_response: bytes(table.max_response.as_ref(), default.max_response),
        exclude_headers: match &table.exclude_headers {
            Some(headers) => headers.iter().map(|header| header.value.name()).collect(),
            None => default.exclude_headers,
        },
    }
}

fn record_settings(table: &IdempotencySection, default: RecordSettings) -> RecordSettings {
    let keys = table.max_keys_per_scope.as_ref();
    RecordSettings {
        ttl: timeout(table.ttl.as_ref(), default.ttl),
        on_unknown: match table.on_unknown.as_ref().map(|word| word.value) {
            Some(OnUnknownWord::Hold) => OnUnknown::Hold,
            Some(OnUnknownWord::Release) => OnUnknown::Release,
            None => default.on_unknown,
        },
        max_keys_per_scope: keys
            .and_then(|keys| NonZeroU32::new(keys.value))
            .unwrap_or(default.max_keys_per_scope),
    }
}

fn scope(words: &Many<ScopeText>, header: &HeaderName, findings: &mut Findings) -> Scope {
    let mut parts = Vec::new();
    for Located { span, value } in &words.0 {
        match value {
            ScopeText::Shared if words.0.len() > 1 => {
                findings.error(
                    span,
                    "\"shared\" means that all callers share their idempotency keys, so it cannot be combined with \
                     other entries",
                    "write `scope = \"shared\"` alone, or remove \"shared\" from the list",
                );
            }
            ScopeText::Shared => return Scope::Shared,
            ScopeText::By(ScopePart::Header(name)) if name == header => {
                findings.error(
                    span,
                    "the header that contains the idempotency key does not identify a caller: all callers would share \
                    their keys",
                    "name a header that identifies the caller, or write \"client\"",
                );
            }
            ScopeText::By(part) => parts.push(part.clone()),
        }
    }
    if parts.is_empty() {
        // All entries were invalid, and errors were reported. The returned scope is never used.
        return Scope::Credential;
    }
    Scope::Parts(parts.into())
}

fn in_flight(table: &IdempotencySection, findings: &mut Findings) -> InFlightPolicy {
    let word = table.in_flight.as_ref().map(|word| word.value);
    if word != Some(InFlightWord::Conflict) {
        return InFlightPolicy::Wait(timeout(table.wait_timeout.as_ref(), DEFAULT_WAIT));
    }
    if let Some(wait) = &table.wait_timeout {
        findings.error(
            &wait.span,
            "`wait_timeout` has no effect: with `in_flight = \"conflict\"`, a duplicate request gets 409 without a \
             wait",
            "write `in_flight = \"wait\"`, or remove `wait_timeout`",
        );
    }
    InFlightPolicy::Conflict
}

fn statuses(given: &[Located<u16>]) -> Vec<StatusCode> {
    given
        .iter()
        .filter_map(|status| StatusCode::from_u16(status.value).ok())
        .collect()
}

fn bytes(given: Option<&Located<Size>>, default: usize) -> usize {
    given.map_or(default, |size| {
        usize::try_from(size.value.0).unwrap_or(usize::MAX)
    })
}

/// Warns about settings that are valid but probably not intended, such as a missing `scope`.
fn warn(
    section: &Located<IdempotencySection>,
    rule: &KeyRule,
    context: RouteContext<'_>,
    findings: &mut Findings,
) {
    let Located { span, value: table } = section;
    let of_mode = table.mode.as_ref().map_or(span, |mode| &mode.span);
    if table.scope.is_none() && !findings.has_any_within(span) {
        findings.warning(
            of_mode,
            "without `scope`, a retry with a refreshed token or from a new address is executed again. A request \
            signed with SigV4, OAuth 1, Digest, Hawk or HTTP signatures is identified by its client and the \
            identity in the signature, which is not verified",
            "set `scope` to what identifies a caller in all its retries, such as \"header:X-Api-Key\" or \
             \"cookie:session\"; \"header:Authorization\" separates by the whole header",
        );
    }
    let cookie = ScopeText::By(ScopePart::Header(COOKIE));
    let words = table.scope.iter().flat_map(|words| &words.0);
    if let Some(word) = words.into_iter().find(|word| word.value == cookie) {
        findings.warning(
            &word.span,
            "`scope` contains the whole Cookie header, so a retry is executed again if any cookie has changed, such as \
            that of a load balancer",
            "name the cookie that identifies the caller, such as \"cookie:session\"",
        );
    }
    if let Some(field) = &table.body_field
        && field.value.0.contains(['.', '/', '$', '['])
    {
        findings.warning(
            &field.span,
            "`body_field` looks like a path, but it is the name of a top-level member of the JSON body",
            "write the name of a top-level member, such as \"idempotency_key\"; nested objects are not searched",
        );
    }
    let is_matched = |method: &Method| {
        context
            .methods
            .is_none_or(|matched| matched.contains(method))
    };
    // `rule.methods` is empty if all entries were invalid. These errors were already reported, so no warning is added.
    if !rule.methods.is_empty() && !rule.methods.iter().any(is_matched) {
        let names: Vec<_> = rule.methods.iter().map(Method::as_str).collect();
        let of_methods = table.methods.as_ref().and_then(|methods| methods.0.first());
        findings.warning(
            of_methods.map_or(of_mode, |method| &method.span),
            format!(
                "`idempotency` has no effect: this route does not match {} requests",
                names.join(" or ")
            ),
            "add such a method to `methods` of the route, or remove `idempotency`",
        );
    }
    if rule.max_response as u64 > context.max_bytes {
        let largest = table.max_response.as_ref();
        findings.warning(
            largest.map_or(of_mode, |largest| &largest.span),
            format!(
                "a response of {} bytes (`max_response`) cannot be stored: `max_bytes` of [store] is {} bytes",
                rule.max_response, context.max_bytes
            ),
            "lower `max_response`, or raise `max_bytes` in [store]",
        );
    } else if let Some(largest) = &table.max_response
        && rule.max_response > context.buffers.value.total
    {
        findings.warning(
            &largest.span,
            format!(
                "a response of {} bytes (`max_response`) cannot be stored: `max_buffered` of [server] is {} bytes",
                rule.max_response, context.buffers.value.total
            ),
            "lower `max_response`, or raise `max_buffered` in [server]",
        );
    }
}

#[cfg(test)]
mod tests;
