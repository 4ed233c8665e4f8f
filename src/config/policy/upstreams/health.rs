//! `health` and `max_ejected` of `[upstream.NAME]`: active health checks.

use std::time::Duration;

use super::super::super::file::{HealthTable, UpstreamSection};
use super::super::super::problem::Findings;
use super::super::super::scalar::HumanDuration;
use super::super::{plain, timeout};
use crate::upstream::HealthSettings;

/// Default of `interval` in `health`.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

/// Default of `timeout` in `health`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// Default of `max_ejected`, a fraction of the servers.
const DEFAULT_MAX_EJECTED: f64 = 0.5;

/// Converts the settings of the health checks. Returns `None` if `health` is missing or invalid.
pub(super) fn resolve(
    section: &UpstreamSection,
    findings: &mut Findings,
) -> Option<HealthSettings> {
    let Some(table) = &section.health else {
        // `max_ejected` without `health` is an error. This error is not reported if there are other errors, because
        // validation has then possibly removed an invalid `health`.
        if let Some(part) = &section.max_ejected
            && !findings.has_errors()
        {
            findings.error(
                &part.span,
                "`max_ejected` has no effect: this upstream has no health checks",
                "add `health = { path = \"/healthz\" }`, or remove `max_ejected`",
            );
        }
        return None;
    };
    let (interval, timeout) = times(table, findings);
    Some(HealthSettings {
        path: table.path.as_ref()?.value.0.clone(),
        interval,
        timeout,
        max_ejected: plain(section.max_ejected.as_ref(), DEFAULT_MAX_EJECTED),
    })
}

/// Returns `interval` and `timeout`. Reports a `timeout` above `interval`, because a health check must end before the
/// next one starts.
fn times(table: &HealthTable, findings: &mut Findings) -> (Duration, Duration) {
    let given = table.interval.as_ref();
    let interval = given.map_or(DEFAULT_INTERVAL, |given| given.value.0);
    let longest = timeout(table.timeout.as_ref(), DEFAULT_TIMEOUT.min(interval));
    if let Some(configured) = &table.timeout
        && longest > interval
    {
        let every = HumanDuration(interval);
        findings.error(
            &configured.span,
            format!("`timeout` of `health` is longer than `interval`, which is {every}"),
            format!("set `timeout` to at most \"{every}\", or raise `interval`"),
        );
        if let Some(interval) = given {
            findings.note(&interval.span, "`interval` is set here");
        }
    }
    (interval, longest)
}
