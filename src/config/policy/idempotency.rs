//! `[route.idempotency]`.
//!
//! Contradictions are errors, also with `mode = "off"`, because a user can enable the table again. Warnings are
//! reported only if `mode` is not "off".

use std::num::NonZeroU32;

use http::header::COOKIE;
use http::{HeaderName, Method, StatusCode};

use super::super::file::{IdempotencySection, KeyMode, OnDuplicate};
use super::super::located::{Located, Many};
use super::super::problem::Findings;
use super::super::scalar::{ScopeEntry, ScopeText};
use super::buffers::Bounds;
use super::bytes;
use crate::idempotency::claim::RecordSettings;
use crate::idempotency::rule::ScopePart;
use crate::idempotency::{InFlightPolicy, KeyRule, Requirement, Scope};

#[derive(Clone, Copy)]
pub(super) struct RouteContext<'a> {
    /// `None` means all methods.
    pub(super) methods: Option<&'a [Method]>,
    /// Of all stored responses together.
    pub(super) max_bytes: u64,
    pub(super) buffers: Bounds<'a>,
}

/// Returns `None` if `mode` is "off".
pub(super) fn resolve(
    section: &Located<IdempotencySection>,
    context: RouteContext<'_>,
    findings: &mut Findings,
) -> Option<KeyRule> {
    let table = &section.value;
    let rule = rule(table, findings)?;
    let max_request = table.max_request.span.as_ref();
    let span = max_request.or(table.mode.span.as_ref());
    let span = span.unwrap_or(&section.span);
    context
        .buffers
        .check_request(rule.max_request, span, findings);
    warn(section, &rule, context, findings);
    Some(rule)
}

fn rule(table: &IdempotencySection, findings: &mut Findings) -> Option<KeyRule> {
    let header = table.header.0.clone();
    let scope = match &table.scope {
        Some(entries) => scope(entries, &header, findings),
        None => Scope::Credential,
    };
    let in_flight = in_flight(table, findings);
    let methods = table.methods.value.0.iter();
    let statuses = |given: &Vec<u16>| {
        let statuses = given
            .iter()
            .filter_map(|status| StatusCode::from_u16(*status).ok());
        statuses.collect()
    };
    Some(KeyRule {
        requirement: match table.mode.value {
            KeyMode::Off => return None,
            KeyMode::Optional => Requirement::Optional,
            KeyMode::Required => Requirement::Required,
        },
        methods: methods.map(|method| method.value.0.clone()).collect(),
        scope,
        header,
        body_field: table
            .body_field
            .as_ref()
            .map(|field| field.value.0.as_str().into()),
        settings: RecordSettings {
            ttl: table.ttl.0,
            on_unknown: table.on_unknown,
            max_keys_per_scope: table.max_keys_per_scope.unwrap_or(NonZeroU32::MAX),
        },
        in_flight,
        on_server_error: table.on_server_error,
        release_on: table.release_on.as_ref().map(statuses),
        max_request: bytes(&table.max_request.value),
        max_response: bytes(&table.max_response.value),
        exclude_headers: table
            .exclude_headers
            .iter()
            .map(|header| header.0.clone())
            .collect(),
    })
}

fn scope(words: &Many<ScopeText>, header: &HeaderName, findings: &mut Findings) -> Scope {
    let mut parts = Vec::new();
    for Located { span, value } in &words.0 {
        match &value.0 {
            ScopeEntry::Shared if words.0.len() > 1 => {
                findings.error(
                    span,
                    "\"shared\" means that all callers share their idempotency keys, so it cannot be combined with \
                     other entries",
                    "write `scope = \"shared\"` alone, or remove \"shared\" from the list",
                );
            }
            ScopeEntry::Shared => return Scope::Shared,
            ScopeEntry::By(ScopePart::Header(name)) if name == header => {
                findings.error(
                    span,
                    "the header that contains the idempotency key does not identify a caller: all callers would share \
                    their keys",
                    "name a header that identifies the caller, or write \"client\"",
                );
            }
            ScopeEntry::By(part) => parts.push(part.clone()),
        }
    }
    if parts.is_empty() {
        // All entries were invalid and are reported, so this scope is never used.
        return Scope::Credential;
    }
    Scope::Parts(parts.into())
}

fn in_flight(table: &IdempotencySection, findings: &mut Findings) -> InFlightPolicy {
    if table.in_flight == OnDuplicate::Wait {
        return InFlightPolicy::Wait(table.wait_timeout.value.0);
    }
    if let Some(span) = &table.wait_timeout.span {
        findings.error(
            span,
            "`wait_timeout` has no effect: with `in_flight = \"conflict\"`, a duplicate request gets 409 without a \
             wait",
            "write `in_flight = \"wait\"`, or remove `wait_timeout`",
        );
    }
    InFlightPolicy::Conflict
}

fn warn(
    section: &Located<IdempotencySection>,
    rule: &KeyRule,
    context: RouteContext<'_>,
    findings: &mut Findings,
) {
    let Located { span, value: table } = section;
    let of_mode = table.mode.span.as_ref().unwrap_or(span);
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
    let cookie = ScopeText(ScopeEntry::By(ScopePart::Header(COOKIE)));
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
    // If all entries were invalid, they are reported already.
    if !rule.methods.is_empty() && !rule.methods.iter().any(is_matched) {
        let names: Vec<_> = rule.methods.iter().map(Method::as_str).collect();
        let of_methods = table
            .methods
            .configured()
            .and_then(|(list, _)| list.0.first());
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
        findings.warning(
            table.max_response.span.as_ref().unwrap_or(of_mode),
            format!(
                "a response of {} bytes (`max_response`) cannot be stored: `max_bytes` of [store] is {} bytes",
                rule.max_response, context.max_bytes
            ),
            "lower `max_response`, or raise `max_bytes` in [store]",
        );
    } else if let Some(span) = &table.max_response.span
        && rule.max_response > context.buffers.value.total
    {
        findings.warning(
            span,
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
