//! Compiled rule of a route: what each stage needs, prepared for one worker when the configuration is loaded.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::GatewayState;
use crate::idempotency::RouteKeys;
use crate::metrics::RouteMetrics;
use crate::request::EntryRule;
use crate::request::buffers::Buffers;
use crate::request::headers::IdentifyingHeaders;
use crate::request::route::Matcher;
use crate::scenario::{CountBy, ScenarioState};
use crate::throttle::RouteLimits;
use crate::upstream::{Forwarder, RouteTarget, Target};

#[derive(Debug)]
pub(super) struct RouteRule {
    pub(super) name: Arc<str>,
    pub(super) access_log: bool,
    pub(super) identifying_headers: IdentifyingHeaders,
    pub(super) limits: RouteLimits,
    /// `None` if the route only forwards idempotency keys.
    pub(super) keys: Option<Arc<RouteKeys>>,
    /// In bytes; 0 for none.
    pub(super) request_buffer: usize,
    pub(super) forwarder: Arc<Forwarder>,
    /// `None` if requests that pass the scenario get 200.
    pub(super) target: Option<RouteTarget>,
    pub(super) scenario: Option<Arc<ScenarioState>>,
    pub(super) metrics: Arc<RouteMetrics>,
}

impl EntryRule for Arc<RouteRule> {
    fn identifying_headers(&self) -> &IdentifyingHeaders {
        &self.identifying_headers
    }

    fn takes_test_ids(&self) -> bool {
        let scenario = self.scenario.as_ref();
        scenario.is_some_and(|state| state.scenario.by == CountBy::Test)
    }
}

/// By name.
pub(super) type Targets = BTreeMap<Arc<str>, Arc<Target>>;

/// `previous` are those before a reload.
pub(super) fn targets(shared: &GatewayState, worker: usize, previous: &Targets) -> Targets {
    let states = shared.upstream_states.iter();
    states
        .map(|state| {
            let name = &state.upstream.name;
            let counters = Arc::clone(shared.metrics[worker].upstream(name));
            let previous = previous.get(name);
            let target = Target::new(state, worker, counters, &shared.clock, previous);
            (Arc::clone(name), target)
        })
        .collect()
}

pub(super) fn compile(
    shared: &GatewayState,
    worker: usize,
    buffers: &Arc<Buffers>,
    targets: &Targets,
) -> Matcher<Arc<RouteRule>> {
    let (policy, clock) = (&shared.policy, &shared.clock);
    let metrics = &shared.metrics[worker];
    let forwarder = Arc::new(Forwarder::new(
        policy.headers.clone(),
        Arc::clone(buffers),
        Arc::clone(&shared.tunnels),
    ));
    policy.routes.map(|route| {
        let counters = metrics.route(&route.name);
        let dialect = policy.respond.rate_limit;
        let limits = route.limits.iter().map(|limit| shared.limit(&limit.name));
        Arc::new(RouteRule {
            name: Arc::clone(&route.name),
            access_log: route.access_log,
            identifying_headers: route.identifying_headers.clone(),
            limits: RouteLimits::new(
                limits.cloned(),
                route.cost,
                dialect,
                counters,
                metrics,
                clock.clone(),
            ),
            keys: route.idempotency.as_deref().map(|rule| {
                let hints = policy.respond.hints.clone();
                Arc::new(RouteKeys::new(rule.clone(), hints, Arc::clone(counters)))
            }),
            request_buffer: route.request_buffer,
            forwarder: Arc::clone(&forwarder),
            target: (route.upstream.as_ref())
                .map(|it| RouteTarget::new(&targets[&*it.upstream.name], it.timeouts)),
            scenario: route
                .scenario
                .as_ref()
                .and_then(|scenario| shared.scenarios.get(&scenario.name).cloned()),
            metrics: Arc::clone(counters),
        })
    })
}
