//! Which route a request belongs to: the first whose pattern and methods match.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::Method;

use crate::throttle::Limit;
use crate::upstream::UpstreamId;

/// A route's place in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId(pub usize);

/// One `[[route]]` of the configuration.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its place in the policy.
    pub id: RouteId,
    /// The name a person gave it; also its name in metrics.
    pub name: Arc<str>,
    /// Patterns over the path, each anchored at its start and open at its end; never empty.
    pub patterns: Vec<String>,
    /// The methods it takes; `None` for all.
    pub methods: Option<Vec<Method>>,
    /// Where its requests go.
    pub upstream: UpstreamId,
    /// What its requests are held to, in the order they are shown to clients.
    pub limits: Vec<Arc<Limit>>,
    /// Tokens a request takes from each of its limits.
    pub cost: NonZeroU32,
    /// Whether its requests are written to the access log.
    pub access_log: bool,
}

/// All routes, ready to match.
#[derive(Debug)]
pub struct Routes {
    routes: Vec<Arc<Route>>,
}
