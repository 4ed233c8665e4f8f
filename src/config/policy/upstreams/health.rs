//! How servers are asked whether they are well.

use std::time::Duration;

use super::super::super::file::{HealthTable, UpstreamSection};
use super::super::super::problem::Findings;
use super::super::super::scalar::HumanDuration;
use super::super::{plain, timeout};
use crate::upstream::HealthSettings;

/// How often a server is asked where nothing is said.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);

/// How long its answer may take where nothing is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of the servers that may be taken out where nothing is said.
const DEFAULT_MAX_EJECTED: f64 = 0.5;

/// The settings; `None` if servers are not asked, or the table has a fault.
pub(super) fn resolve(
    section: &UpstreamSection,
    findings: &mut Findings,
) -> Option<HealthSettings> {
    let Some(table) = &section.health else {
        // The table may be gone for a fault of its own, which is to be mended first.
        if let Some(part) = &section.max_ejected
            && !findings.has_errors()
        {
            findings.error(
                &part.span,
                "`max_ejected` has no effect: servers are not asked whether they are well",
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

/// One question is answered or given up before the next is asked.
fn times(table: &HealthTable, findings: &mut Findings) -> (Duration, Duration) {
    let given = table.interval.as_ref();
    let interval = given.map_or(DEFAULT_INTERVAL, |given| given.value.0);
    let longest = timeout(table.timeout.as_ref(), DEFAULT_TIMEOUT.min(interval));
    if let Some(late) = &table.timeout
        && longest > interval
    {
        let every = HumanDuration(interval);
        findings.error(
            &late.span,
            format!("a server is asked every {every}, before its `timeout` is over"),
            format!("set `timeout` to at most \"{every}\", or raise `interval`"),
        );
        if let Some(interval) = given {
            findings.note(&interval.span, "how often it is asked");
        }
    }
    (interval, longest)
}
