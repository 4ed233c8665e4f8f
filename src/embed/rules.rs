use std::num::NonZeroU32;
use std::sync::Arc;

use thiserror::Error;

use crate::clock::Clock;
use crate::idempotency::{KeyRule, Scope};
use crate::metrics::{LimitMetrics, Metrics, RouteMetrics};
use crate::request::headers::{HeaderNames, IdentifyingHeaders};
use crate::respond::Dialect;
use crate::throttle::{Limit, LimitState, Mode, RouteLimits, is_limit_name};

/// Why a layer cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RuleError {
    /// A name has characters that are not allowed in headers and metrics.
    #[error(
        "`{0}` is not a valid name of a rule or limit; write 1 to 64 characters: letters, digits, dots, dashes and \
         underscores"
    )]
    InvalidName(String),
    /// Another rule has the same name.
    #[error("the rule `{0}` has a layer already; clone this layer, or choose another name")]
    RepeatedRule(String),
    /// The rule contains two limits with the same name.
    #[error("the rule contains the limit `{0}` twice; remove one of them, or choose another name")]
    RepeatedLimit(String),
    /// Another rule contains the limit with other settings.
    #[error(
        "the limit `{0}` has other settings in another rule; clone one `Limit` for both rules, or choose another name"
    )]
    ConflictingLimit(String),
    /// The key of the limit has no parts.
    #[error(
        "the limit `{0}` has an empty key; use `KeyPart::Global` for one bucket for all clients"
    )]
    EmptyKey(String),
    /// The scope has no parts, so callers would get each other's responses.
    #[error(
        "the rule `{0}` has an empty scope; use `Scope::Shared` for one key space for all callers"
    )]
    EmptyScope(String),
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    limits: Vec<Arc<Limit>>,
    metrics: Metrics,
    /// In bytes.
    pub(super) max_response: u64,
}

impl Rules {
    /// Adds nothing if the rule is invalid.
    pub(super) fn add(
        &mut self,
        name: &str,
        limits: Vec<Limit>,
        keys: Option<&KeyRule>,
    ) -> Result<Vec<Arc<Limit>>, RuleError> {
        if !is_limit_name(name) {
            return Err(RuleError::InvalidName(name.into()));
        }
        if self.metrics.routes.iter().any(|rule| *rule.name == *name) {
            return Err(RuleError::RepeatedRule(name.into()));
        }
        if let Some(Scope::Parts(parts)) = keys.map(|keys| &keys.scope)
            && parts.is_empty()
        {
            return Err(RuleError::EmptyScope(name.into()));
        }
        let mut all = self.limits.clone();
        let mut of_rule: Vec<Arc<Limit>> = Vec::new();
        for limit in limits {
            if of_rule.iter().any(|other| other.name == limit.name) {
                return Err(RuleError::RepeatedLimit(limit.name.to_string()));
            }
            of_rule.push(identify(&mut all, limit)?);
        }
        self.limits = all;
        let rule = RouteMetrics::new(name.into(), keys.is_some());
        let counters = of_rule.iter();
        let counters = counters.map(|limit| LimitMetrics::new(&rule.name, &limit.name));
        self.metrics.limits.extend(counters);
        self.metrics.routes.push(rule);
        if let Some(keys) = keys {
            self.max_response = self.max_response.max(keys.max_response as u64);
        }
        Ok(of_rule)
    }

    /// Of the rule that was added last.
    pub(super) fn newest(&self) -> Arc<RouteMetrics> {
        let newest = self.metrics.routes.last();
        Arc::clone(newest.expect("a rule was added"))
    }

    /// For the rule that was added last.
    pub(super) fn prepare(
        &self,
        limits: &[Arc<Limit>],
        dialect: Dialect,
        clock: &Clock,
    ) -> RouteLimits {
        let cost = NonZeroU32::MIN;
        let rule = self.newest();
        let limits = limits.iter().map(|limit| LimitState {
            limit: Arc::clone(limit),
            census: None,
        });
        RouteLimits::new(limits, cost, dialect, &rule, &self.metrics, clock.clone())
    }

    /// Shared with the rules.
    pub(super) fn metrics(&self) -> Metrics {
        Metrics {
            routes: self.metrics.routes.clone(),
            limits: self.metrics.limits.clone(),
            ..Metrics::default()
        }
    }
}

/// Returns the equal limit in `all`, or adds `limit`.
fn identify(all: &mut Vec<Arc<Limit>>, limit: Limit) -> Result<Arc<Limit>, RuleError> {
    let name = || limit.name.to_string();
    if !is_limit_name(&limit.name) {
        return Err(RuleError::InvalidName(name()));
    }
    if limit.key.is_empty() {
        return Err(RuleError::EmptyKey(name()));
    }
    if let Some(known) = all.iter().find(|known| known.name == limit.name) {
        return if **known == limit {
            Ok(Arc::clone(known))
        } else {
            Err(RuleError::ConflictingLimit(name()))
        };
    }
    let limit = Arc::new(limit);
    all.push(Arc::clone(&limit));
    Ok(limit)
}

#[derive(Debug)]
pub(super) struct HeaderChecks {
    pub(super) names: HeaderNames,
    pub(super) identifying: IdentifyingHeaders,
}

impl HeaderChecks {
    pub(super) fn new(limits: &[Arc<Limit>], keys: Option<&KeyRule>) -> Self {
        let mut names = HeaderNames::default();
        let headers_of = |mode| {
            let limits = limits.iter().filter(move |limit| limit.mode == mode);
            limits.flat_map(|limit| limit.headers())
        };
        let scope = keys.into_iter().flat_map(|keys| keys.scope.headers());
        let identifying = names.add_route(
            headers_of(Mode::Enforce).chain(scope),
            headers_of(Mode::Shadow),
            keys.map(|keys| &keys.header),
        );
        Self { names, identifying }
    }
}
