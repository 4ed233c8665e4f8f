//! State that all workers share, and what of it a reload of the configuration keeps.

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::{Backend, Policy};
use crate::http::connections::Connections;
use crate::metrics::Metrics;
use crate::request::buffers::Buffers;
use crate::request::client::unlisted_proxy::UnlistedProxy;
use crate::scenario::Scenarios;
use crate::store::{OpenError, OpenStore, RecordStore};
use crate::throttle::census::{Census, Rejections};
use crate::throttle::{Limit, LimitState};
use crate::upstream::tunnel::Tunnels;
use crate::upstream::{Upstream, UpstreamState};

/// State that all workers of the gateway share. A reload replaces the policy and the parts that it names.
#[derive(Clone, Debug)]
pub struct GatewayState {
    pub(crate) policy: Arc<Policy>,
    pub(crate) store: OpenStore,
    pub(crate) buffers: Buffers,
    pub(crate) connections: Arc<Connections>,
    pub(crate) tunnels: Arc<Tunnels>,
    pub(crate) limits: Arc<[LimitState]>,
    pub(crate) rejections: Rejections,
    pub(crate) unlisted_proxy: Arc<UnlistedProxy>,
    /// In the order of the configuration.
    pub(crate) upstream_states: Arc<[Arc<UpstreamState>]>,
    pub(crate) scenarios: Scenarios,
    /// Of each worker.
    pub(crate) metrics: Arc<[Arc<Metrics>]>,
    pub(crate) clock: Clock,
}

impl GatewayState {
    /// Creates the state for a policy, with the store that `[store]` of the configuration selects.
    pub fn open(policy: Arc<Policy>, clock: Clock) -> Result<Self, OpenError> {
        let max_clients = policy.max_clients;
        let store = match &policy.store.backend {
            Backend::Memory => return Ok(Self::new(policy, clock)),
            Backend::Disk { path } => {
                OpenStore::on_disk(path, max_clients, policy.store.capacity, clock.clone())?
            }
            Backend::Redis(settings) => {
                let mut routes = policy.routes.iter();
                let keyed = routes.any(|route| route.idempotency.is_some());
                OpenStore::in_redis(settings.clone(), keyed, max_clients, clock.clone())?
            }
        };
        Ok(Self::with_store(policy, store, clock))
    }

    /// With buckets and idempotency records in memory.
    pub(crate) fn new(policy: Arc<Policy>, clock: Clock) -> Self {
        let capacity = policy.store.capacity;
        let store = OpenStore::in_memory(policy.max_clients, capacity, clock.clone());
        Self::with_store(policy, store, clock)
    }

    fn with_store(policy: Arc<Policy>, store: OpenStore, clock: Clock) -> Self {
        let settings = &policy.server;
        let this = Self {
            store,
            buffers: Buffers::new(settings.buffers),
            connections: Connections::new(
                settings.limits.connections,
                settings.limits.connections_per_client,
            ),
            tunnels: Arc::new(Tunnels::new(settings.tunnels)),
            limits: Arc::default(),
            rejections: Rejections::default(),
            unlisted_proxy: Arc::default(),
            scenarios: Scenarios::default(),
            upstream_states: Arc::default(),
            metrics: (0..settings.workers).map(|_| Arc::default()).collect(),
            policy: Arc::clone(&policy),
            clock,
        };
        let state = this.renewed(policy);
        state.take_effect(&this);
        state
    }

    /// The state under another policy. What both policies name keeps its state.
    pub(crate) fn renewed(&self, policy: Arc<Policy>) -> Self {
        let limit = |limit: &Arc<Limit>| {
            let known = self.known_limit(&limit.name);
            let quota_since = known.map(|known| known.limit.quota_since.clone());
            let census = known.filter(|known| known.limit.key == limit.key);
            let census = census.and_then(|known| known.census.clone());
            LimitState {
                limit: Arc::new(Limit {
                    quota_since: quota_since.unwrap_or_default(),
                    ..Limit::clone(limit)
                }),
                census: census.or_else(|| Some(Arc::new(Census::new(self.rejections.clone())))),
            }
        };
        let upstream_state = |upstream: &Arc<Upstream>| {
            let routes = policy.routes.iter();
            let routes = routes.filter_map(|route| route.upstream.as_ref());
            let routes = routes.filter(|it| Arc::ptr_eq(&it.upstream, upstream));
            let first_byte = routes.map(|it| it.timeouts.first_byte).max();
            let first_byte = first_byte.unwrap_or(upstream.timeouts.first_byte);
            let mut known = self.upstream_states.iter();
            match known.find(|state| state.upstream.name == upstream.name) {
                Some(known) => known.renewed(upstream, first_byte, self.metrics.len()),
                None => Arc::new(UpstreamState::new(upstream, first_byte, self.metrics.len())),
            }
        };
        let metrics = |worker: &Arc<Metrics>| {
            let routes = policy.routes.iter();
            let limits = policy.routes.iter().flat_map(|route| {
                let limits = route.limits.iter();
                limits.map(move |limit| (&route.name, &limit.name))
            });
            Arc::new(worker.renewed(
                routes.map(|route| (&route.name, route.idempotency.is_some())),
                limits,
                policy.upstreams.iter().map(|upstream| &upstream.name),
            ))
        };
        Self {
            limits: policy.limits.iter().map(limit).collect(),
            upstream_states: policy.upstreams.iter().map(upstream_state).collect(),
            metrics: self.metrics.iter().map(metrics).collect(),
            scenarios: self.scenarios.renewed(&policy.scenarios, &self.clock),
            policy,
            ..self.clone()
        }
    }

    /// Changes the state that the new policy shares with the one before. Called directly before the policy is in force.
    pub(crate) fn take_effect(&self, before: &Self) {
        let OpenStore {
            buckets,
            records,
            redis,
            ..
        } = &self.store;
        let now = self.clock.now();
        for LimitState { limit, census } in &*self.limits {
            let known = before.known_limit(&limit.name).map(|known| &known.limit);
            if known.is_none_or(|it| (it.quota, it.exceed) != (limit.quota, limit.exceed)) {
                limit.quota_since.set(now);
            }
            if let Some(census) = census {
                census.resize(self.limits.len());
            }
        }
        let names: Vec<_> = self.limits.iter().map(|it| &*it.limit.name).collect();
        buckets.local().retain_limits(&names);
        let routes = self.policy.routes.iter();
        let key_rules = routes.filter_map(|route| route.idempotency.as_ref());
        let largest_response = key_rules.map(|rule| rule.max_response).max();
        if let (RecordStore::Disk(records), Some(largest)) = (records, largest_response) {
            records.set_max_response(largest as u64);
        }
        if let (Some(redis), Backend::Redis(settings)) = (redis, &self.policy.store.backend) {
            redis.reload(largest_response.is_some(), settings.lease);
        }
    }

    pub(crate) fn known_limit(&self, name: &str) -> Option<&LimitState> {
        self.limits.iter().find(|it| *it.limit.name == *name)
    }

    pub(super) fn limit(&self, name: &str) -> &LimitState {
        let found = self.known_limit(name);
        found.expect("every limit of a route is in the configuration")
    }
}
