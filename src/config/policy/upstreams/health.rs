//! `health` and `max_ejected` of `[upstream.NAME]`: active health checks.

use std::time::Duration;

use super::super::super::file::{HealthTable, UpstreamSection};
use super::super::super::problem::Findings;
use super::super::super::scalar::display_duration;
use crate::upstream::HealthSettings;

/// Returns `None` if `health` is missing or invalid.
pub(super) fn resolve(
    name: &str,
    section: &UpstreamSection,
    findings: &mut Findings,
) -> Option<HealthSettings> {
    let Some(table) = &section.health else {
        if let Some(span) = &section.max_ejected.span
            && !findings.was_removed(&format!("upstream.{name}.health"))
        {
            findings.error(
                span,
                "`max_ejected` has no effect: this upstream has no health checks",
                "add `health = { path = \"/healthz\" }`, or remove `max_ejected`",
            );
        }
        return None;
    };
    let is_interval_known = !findings.was_removed(&format!("upstream.{name}.health.interval"));
    let (interval, timeout) = times(table, is_interval_known, findings);
    Some(HealthSettings {
        path: table.path.as_ref()?.0.clone(),
        interval,
        timeout,
        max_ejected: section.max_ejected.value,
    })
}

/// A health check must end before the next one starts. `is_interval_known` is false if an invalid `interval` was
/// removed.
fn times(
    table: &HealthTable,
    is_interval_known: bool,
    findings: &mut Findings,
) -> (Duration, Duration) {
    let interval = table.interval.value.0;
    let timeout = table.timeout.value.0;
    let Some(span) = &table.timeout.span else {
        return (interval, timeout.min(interval));
    };
    if timeout > interval && is_interval_known {
        let every = display_duration(interval);
        findings.error(
            span,
            format!("`timeout` of `health` is longer than `interval`, which is {every}"),
            format!("set `timeout` to at most \"{every}\", or raise `interval`"),
        );
        if let Some(interval) = &table.interval.span {
            findings.note(interval, "`interval` is set here");
        }
    }
    (interval, timeout)
}
