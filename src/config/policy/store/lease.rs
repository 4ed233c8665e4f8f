//! `lease` of `[store]`: duration of a claim on Redis, which must exceed the longest execution.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::RoutePolicy;
use super::super::super::file::File;
use super::super::super::located::Located;
use super::super::super::problem::Findings;
use super::super::super::scalar::{HumanDuration, LONGEST_LEASE, LeaseDuration};
use super::super::super::{Backend, StoreSettings};
use crate::route::RouteMatch;
use crate::upstream::{Timeouts, Upstream};

/// Difference between the default lease and the longest execution.
pub(super) const MARGIN: Duration = Duration::from_secs(30);

/// Resolves the lease. It depends on the upstreams of the routes with idempotency keys.
pub(in super::super) fn resolve_lease(
    store: &mut StoreSettings,
    file: &File,
    upstreams: &[Arc<Upstream>],
    routes: &[(RouteMatch, RoutePolicy)],
    findings: &mut Findings,
) {
    let Backend::Redis(redis) = &mut store.backend else {
        return;
    };
    // After an error, the relevant timeout may be missing because validation removed it.
    if findings.has_errors() {
        return;
    }
    let routes = routes.iter().map(|(_, route)| route);
    let keyed = routes.filter(|route| route.idempotency.is_some());
    let slowest = keyed
        .map(|route| &upstreams[route.upstream.0])
        .max_by_key(|upstream| longest_execution(upstream).0);
    let (deadline, reason) =
        slowest.map_or((Duration::ZERO, ""), |upstream| longest_execution(upstream));
    let enough = (deadline + MARGIN).min(LONGEST_LEASE);
    let given = file.store.lease.as_ref();
    redis.lease = given.map_or(enough, |given| given.value.0);

    let (
        Some(Located {
            span,
            value: LeaseDuration(lease),
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
        format!("set `lease` to more than \"{longest}\", such as \"{enough}\", or remove it")
    } else {
        let most = HumanDuration(LONGEST_LEASE);
        format!("set a `timeout` below \"{most}\" in [upstream.{name}], or remove `lease`")
    };
    findings.error(
        span,
        format!(
            "`lease` must be longer than the longest execution, and a request with a key to `{name}` can take {longest}"
        ),
        help,
    );
    if let Some((upstream, _)) = file.upstream.0.iter().nth(slowest.id.0) {
        findings.note(&upstream.span, reason);
    }
}

/// Returns the longest time of a request until its response is complete, or at least until its head arrives. Also
/// returns the name of the keys that determine it.
fn longest_execution(upstream: &Upstream) -> (Duration, &'static str) {
    let Timeouts {
        connect,
        first_byte,
        total,
        ..
    } = upstream.timeouts;
    let attempts = upstream.retry.and_then(|retry| retry.deadline());
    // If a connection attempt fails, the request goes to the next server (failover).
    let servers = u32::try_from(upstream.servers.len()).unwrap_or(u32::MAX);
    let one_attempt = (
        connect.saturating_mul(servers) + first_byte,
        "determined by `connect_timeout` for each server, and `first_byte_timeout`",
    );
    let all_attempts = attempts.map(|deadline| (deadline, "determined by `deadline` of `retry`"));
    let bound = total.map(|total| (total, "determined by `timeout`"));
    bound.or(all_attempts).unwrap_or(one_attempt)
}
