//! `[upstream.NAME.breaker]`: which failures open the circuit of a server, and how long the circuit stays open.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;

use super::super::super::file::{BreakerSection, FailuresEntry, FallbackTable};
use super::super::super::problem::Findings;
use super::super::super::scalar::HumanDuration;
use super::super::{count, plain};
use crate::problem::Fallback;
use crate::upstream::{BreakerSettings, FailureStatuses, OpensOn};

/// Default of `content_type` in `fallback`.
const DEFAULT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Converts a section to settings. A section with `enabled = false` is also checked, because a user can enable it
/// again.
pub(super) fn resolve(section: &BreakerSection, findings: &mut Findings) -> BreakerSettings {
    let default = BreakerSettings::default();
    let window = section.window.as_ref();
    let (open, open_max) = open_times(section, &default, findings);
    BreakerSettings {
        opens_on: if plain(section.enabled.as_ref(), true) {
            OpensOn::AllFailures
        } else {
            OpensOn::Nothing
        },
        consecutive_failures: count(
            section.consecutive_failures.as_ref(),
            default.consecutive_failures,
        ),
        failures: match &section.failures {
            Some(FailuresEntry::All) => FailureStatuses::ALL,
            Some(FailuresEntry::Statuses(statuses)) => statuses.iter().copied().collect(),
            None => default.failures,
        },
        failure_ratio: plain(section.failure_ratio.as_ref(), default.failure_ratio),
        window: window.map_or(default.window, |window| window.value.0),
        min_requests: count(section.min_requests.as_ref(), default.min_requests),
        open,
        open_max,
        fallback: section.fallback.as_ref().and_then(fallback),
    }
}

fn open_times(
    section: &BreakerSection,
    default: &BreakerSettings,
    findings: &mut Findings,
) -> (Duration, Duration) {
    let given = section.open.as_ref();
    let open = given.map_or(default.open, |open| open.value.0);
    let Some(most) = &section.open_max else {
        return (open, default.open_max.max(open));
    };
    if most.value.0 < open {
        let first = HumanDuration(open);
        findings.error(
            &most.span,
            format!("`open_max` is shorter than `open`, which is {first}"),
            format!("set `open_max` to at least \"{first}\", or set a shorter `open`"),
        );
        if let Some(open) = given {
            findings.note(&open.span, "`open` is set here");
        }
    }
    (open, most.value.0)
}

fn fallback(table: &FallbackTable) -> Option<Fallback> {
    let body = table.body.as_ref()?;
    Some(Fallback {
        body: Bytes::copy_from_slice(body.value.as_bytes()),
        content_type: match &table.content_type {
            Some(given) => given.value.0.clone(),
            None => DEFAULT_TYPE,
        },
    })
}
