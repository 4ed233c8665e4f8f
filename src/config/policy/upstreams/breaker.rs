//! `[upstream.NAME.breaker]`: which failures open the circuit of a server, and how long the circuit stays open.

use std::time::Duration;

use bytes::Bytes;

use super::super::super::file::{BreakerSection, FailuresEntry, FallbackTable};
use super::super::super::located::Setting;
use super::super::super::problem::Findings;
use super::super::super::scalar::display_duration;
use crate::respond::Fallback;
use crate::upstream::{BreakerSettings, FailureStatuses, OpensOn};

/// A section with `enabled = false` is also checked, because a user can enable it again.
pub(super) fn resolve(
    section: &Setting<BreakerSection>,
    servers: usize,
    findings: &mut Findings,
) -> BreakerSettings {
    let Setting { value: table, span } = section;
    let (open, open_max) = open_times(table, findings);
    BreakerSettings {
        opens_on: match span {
            None if servers == 1 => OpensOn::ConnectTimeouts,
            None => OpensOn::Outliers,
            Some(_) if table.enabled => OpensOn::AllFailures,
            Some(_) => OpensOn::Nothing,
        },
        consecutive_failures: table.consecutive_failures,
        failures: match &table.failures {
            FailuresEntry::All(_) => FailureStatuses::ALL,
            FailuresEntry::Statuses(statuses) => statuses.iter().copied().collect(),
        },
        failure_ratio: table.failure_ratio,
        window: table.window.0,
        min_requests: table.min_requests,
        open,
        open_max,
        fallback: table.fallback.as_ref().and_then(fallback),
    }
}

fn open_times(table: &BreakerSection, findings: &mut Findings) -> (Duration, Duration) {
    let open = table.open.value.0;
    let open_max = table.open_max.value.0;
    let Some(span) = &table.open_max.span else {
        return (open, open_max.max(open));
    };
    if open_max < open {
        let first = display_duration(open);
        findings.error(
            span,
            format!("`open_max` is shorter than `open`, which is {first}"),
            format!("set `open_max` to at least \"{first}\", or set a shorter `open`"),
        );
        if let Some(open) = &table.open.span {
            findings.note(open, "`open` is set here");
        }
    }
    (open, open_max)
}

fn fallback(table: &FallbackTable) -> Option<Fallback> {
    let body = table.body.as_ref()?;
    Some(Fallback {
        body: Bytes::copy_from_slice(body.as_bytes()),
        content_type: table.content_type.0.clone(),
    })
}
