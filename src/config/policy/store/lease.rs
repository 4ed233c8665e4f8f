//! How long a claim on Redis holds: longer than what it is made for can take.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::RoutePolicy;
use super::super::super::file::File;
use super::super::super::located::Located;
use super::super::super::problem::Findings;
use super::super::super::scalar::{HumanDuration, LONGEST_LEASE, Lease};
use super::super::super::{Backend, StoreSettings};
use crate::route::RouteMatch;
use crate::upstream::{Timeouts, Upstream};

/// How much longer than any execution a claim holds where nothing is said.
pub(super) const MARGIN: Duration = Duration::from_secs(30);

/// Sets the lease once it is known what keys are for.
pub(in super::super) fn set_lease(
    store: &mut StoreSettings,
    file: &File,
    upstreams: &[Arc<Upstream>],
    routes: &[(RouteMatch, RoutePolicy)],
    findings: &mut Findings,
) {
    let Backend::Redis(redis) = &mut store.backend else {
        return;
    };
    // A fault elsewhere may have taken out the deadline that counts.
    if findings.has_errors() {
        return;
    }
    let routes = routes.iter().map(|(_, route)| route);
    let keyed = routes.filter(|route| route.idempotency.is_some());
    let slowest = keyed
        .map(|route| &upstreams[route.upstream.0])
        .max_by_key(|upstream| whole(upstream).0);
    let (deadline, reason) = slowest.map_or((Duration::ZERO, ""), |upstream| whole(upstream));
    let enough = (deadline + MARGIN).min(LONGEST_LEASE);
    let given = file.store.lease.as_ref();
    redis.lease = given.map_or(enough, |given| given.value.0);

    let (
        Some(Located {
            span,
            value: Lease(lease),
        }),
        Some(slowest),
    ) = (given, slowest)
    else {
        return;
    };
    if *lease > deadline {
        return;
    }
    let name = &slowest.name;
    let longest = HumanDuration(deadline);
    let help = if enough > deadline {
        let enough = HumanDuration(enough);
        format!("set `lease` to more than \"{longest}\", such as \"{enough}\", or leave it out")
    } else {
        let most = HumanDuration(LONGEST_LEASE);
        format!("set a `timeout` under \"{most}\" in [upstream.{name}], or leave `lease` out")
    };
    findings.error(
        span,
        format!(
            "a claim must outlive what it was made for, and a request with a key to `{name}` may take {longest}"
        ),
        help,
    );
    if let Some((upstream, _)) = file.upstream.0.iter().nth(slowest.id.0) {
        findings.note(&upstream.span, reason);
    }
}

/// How long a request may take altogether, or at least until its answer begins, and what says so.
fn whole(upstream: &Upstream) -> (Duration, &'static str) {
    let Timeouts {
        connect,
        first_byte,
        total,
        ..
    } = upstream.timeouts;
    let attempts = upstream.retry.and_then(|retry| retry.deadline());
    // A server that cannot be reached is passed over for the next.
    let servers = u32::try_from(upstream.servers.len()).unwrap_or(u32::MAX);
    let once = (
        connect.saturating_mul(servers) + first_byte,
        "`connect_timeout` of each of its servers, and `first_byte_timeout`",
    );
    let all = attempts.map(|deadline| (deadline, "`deadline` of its retries"));
    let bound = total.map(|total| (total, "its `timeout`"));
    bound.or(all).unwrap_or(once)
}
