//! `lease` of `[store]`: how long an idempotency key stays claimed in Redis after the gateway of the request has
//! crashed. The lease must be longer than the longest possible execution of a request.

use std::time::Duration;

use super::super::super::RoutePolicy;
use super::super::super::file::{File, LONGEST_LEASE, RouteSection};
use super::super::super::located::Located;
use super::super::super::problem::Findings;
use super::super::super::scalar::{Timeout, display_duration};
use super::super::super::{Backend, RouteUpstream, StoreSettings};
use crate::request::route::RouteMatch;
use crate::upstream::{Timeouts, Upstream};

/// The default lease exceeds the longest execution by this time.
pub(super) const MARGIN: Duration = Duration::from_secs(30);

/// The default and the minimum depend on the timeouts of the routes that have idempotency keys.
pub(in super::super) fn resolve_lease(
    store: &mut StoreSettings,
    file: &File,
    routes: &[(RouteMatch, RoutePolicy)],
    findings: &mut Findings,
) {
    let Backend::Redis(redis) = &mut store.backend else {
        return;
    };
    // The removed value was possibly a timeout.
    if findings.has_removed() {
        return;
    }
    let section_of = |route: &RoutePolicy| {
        let mut sections = file.route.iter();
        sections.find(|section| {
            let name = section.value.name.as_ref();
            name.is_some_and(|name| *name.value.0 == *route.name)
        })
    };
    let routes = routes
        .iter()
        .filter_map(|(_, route)| Some((route, section_of(route)?)));
    let keyed = routes.filter(|(route, _)| route.idempotency.is_some());
    let slowest = keyed
        .filter_map(|(route, section)| {
            let RouteUpstream { upstream, timeouts } = route.upstream.as_ref()?;
            Some((upstream, section, longest_execution(upstream, timeouts)))
        })
        .max_by_key(|(_, _, (longest, _))| *longest);
    let deadline = slowest.map_or(Duration::ZERO, |(_, _, (longest, _))| longest);
    let enough = (deadline + MARGIN).min(LONGEST_LEASE);
    let given = file.store.lease.as_ref();
    redis.lease = given.map_or(enough, |given| given.value.0);

    let (
        Some(Located {
            span,
            value: Timeout(lease),
        }),
        Some((slowest, section, (_, reason))),
    ) = (given, slowest)
    else {
        return;
    };
    if *lease > deadline {
        return;
    }
    let name = &slowest.name;
    let longest = display_duration(deadline);
    let help = if enough > deadline {
        let enough = display_duration(enough);
        format!("set `lease` to more than \"{longest}\", such as \"{enough}\", or remove `lease`")
    } else {
        let most = display_duration(LONGEST_LEASE);
        format!("set a `timeout` below \"{most}\" in [upstream.{name}], or remove `lease`")
    };
    findings.error(
        span,
        format!(
            "`lease` is too short: a request with an idempotency key to the upstream `{name}` can take {longest}"
        ),
        help,
    );
    let RouteSection {
        first_byte_timeout,
        timeout,
        ..
    } = &section.value;
    if first_byte_timeout.is_some() || timeout.is_some() {
        findings.note(&section.span, reason);
    } else {
        let mut sections = file.upstream.entries.keys();
        if let Some(section) = sections.find(|section| *section.value == *slowest.name) {
            findings.note(&section.span, reason);
        }
    }
}

/// Time until the response is complete with `timeout`, else until its head arrives; and the keys that determine it.
fn longest_execution(upstream: &Upstream, timeouts: &Timeouts) -> (Duration, &'static str) {
    let Timeouts {
        connect,
        first_byte,
        total,
        ..
    } = *timeouts;
    let attempts = upstream.retry.and_then(|retry| retry.deadline());
    // A gateway that cannot connect tries the next server, so `connect_timeout` can pass once for each server.
    let servers = u32::try_from(upstream.servers.len()).unwrap_or(u32::MAX);
    let one_attempt = (
        connect.saturating_mul(servers) + first_byte,
        "the longest execution is `connect_timeout` for each server, plus `first_byte_timeout`",
    );
    let all_attempts =
        attempts.map(|deadline| (deadline, "the longest execution is `deadline` of `retry`"));
    let bound = total.map(|total| (total, "the longest execution is `timeout`"));
    bound.or(all_attempts).unwrap_or(one_attempt)
}
