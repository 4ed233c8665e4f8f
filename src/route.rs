//! Which route a request belongs to: the first whose pattern and methods match.
//!
//! Routes are tried in the order they were written, as a person reads them. To ask one after the other
//! would make the last of a thousand routes a thousand times as dear as the first, so all patterns a
//! method can meet are one automaton, in which the earlier pattern has priority, and a path is read
//! once whatever the number of routes. That priority has a price: a match may not be reported before
//! every earlier pattern has failed, so `/api/.+/x` ahead of `/api/` has the whole path read.
//!
//! A `RegexSet` would tell *all* patterns that match, which is more work than to tell the first: it can
//! not drop the later ones on the way, and has to write its answer to memory. A radix tree would be
//! faster still for literal prefixes and can not hold the patterns people write.
//!
//! Patterns are matched on the bytes of [a normalised path](crate::path), anchored at its start and open
//! at its end. The wire method counts, and counts case-sensitively; no header overrides it.

mod language;
mod matcher;
pub mod pattern;
pub mod shadow;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderName, Method};
use thiserror::Error;

use crate::idempotency::rule::ScopePart;
use crate::idempotency::{self, Scope};
use crate::intake::headers::HeaderNames;
use crate::throttle::{KeyPart, Limit, Mode};
use crate::upstream::UpstreamId;

use matcher::Matcher;
pub use pattern::{PatternError, check_pattern};
pub use shadow::{Shadowed, find_shadowed};

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
    /// What its idempotency keys mean; `None` if they are not looked at.
    pub idempotency: Option<Arc<idempotency::Rule>>,
    /// Whether its requests are written to the access log.
    pub access_log: bool,
}

impl Route {
    /// Whether it takes requests of this method; `None` stands for a method no route names.
    fn takes(&self, method: Option<&Method>) -> bool {
        self.methods
            .as_ref()
            .is_none_or(|methods| method.is_some_and(|method| methods.contains(method)))
    }

    /// The headers that its limits of this mode are counted by.
    fn limit_headers(&self, mode: Mode) -> impl Iterator<Item = &HeaderName> {
        let limits = self.limits.iter().filter(move |limit| limit.mode == mode);
        limits
            .flat_map(|limit| &limit.key)
            .filter_map(|part| match part {
                KeyPart::Header(name) => Some(name),
                KeyPart::Client | KeyPart::Global => None,
            })
    }

    /// The headers that the scope of its idempotency keys is read from.
    fn scope_headers(&self) -> impl Iterator<Item = &HeaderName> {
        let scope = self.idempotency.as_ref().map(|rule| &rule.scope);
        let parts = match scope {
            Some(Scope::Parts(parts)) => &**parts,
            Some(Scope::Credential | Scope::Shared) | None => &[],
        };
        let credential = matches!(scope, Some(Scope::Credential)).then_some(&AUTHORIZATION);
        let headers = parts.iter().filter_map(|part| match part {
            ScopePart::Header(name) => Some(name),
            // `Cookie` lines are joined before anything is read from them.
            ScopePart::Cookie(_) | ScopePart::Client => None,
        });
        credential.into_iter().chain(headers)
    }
}

/// Why routes can not be matched on.
#[derive(Debug, Error)]
pub enum RoutesError {
    /// One pattern is wrong by itself.
    #[error("route {route:?}: pattern {pattern:?}: {source}")]
    Pattern {
        /// The route's name.
        route: Arc<str>,
        /// The pattern as it was written.
        pattern: String,
        /// What is wrong with it.
        source: PatternError,
    },
    /// Every pattern is fine, and there is too much of them.
    #[error("the patterns of all routes together are too large: more than {limit} bytes")]
    TooLarge {
        /// The most they may take, compiled.
        limit: usize,
    },
}

/// All routes, ready to match.
pub struct Routes {
    all: Vec<Arc<Route>>,
    /// What methods see that do not see what most see; an index into `views`.
    by_method: Vec<(Method, usize)>,
    /// What every other method sees; an index into `views`.
    otherwise: usize,
    views: Vec<View>,
    headers: HeaderNames,
}

impl Routes {
    /// Makes routes ready to match, the first of them first; each one's id is its place.
    pub fn compile(routes: Vec<Route>) -> Result<Self, RoutesError> {
        debug_assert!(
            routes
                .iter()
                .enumerate()
                .all(|(place, route)| route.id.0 == place)
        );
        check_patterns(&routes)?;

        let mut named: Vec<&Method> = routes
            .iter()
            .filter_map(|route| route.methods.as_ref())
            .flatten()
            .collect();
        named.sort_unstable_by_key(|method| method.as_str());
        named.dedup();

        let mut views = Views::default();
        let otherwise = views.seen_by(None, &routes)?;
        let mut by_method = Vec::new();
        for method in named {
            let view = views.seen_by(Some(method), &routes)?;
            if view != otherwise {
                by_method.push((method.clone(), view));
            }
        }
        let mut headers = HeaderNames::default();
        for route in &routes {
            headers.add_route(
                route
                    .limit_headers(Mode::Enforce)
                    .chain(route.scope_headers()),
                route.limit_headers(Mode::Shadow),
                route.idempotency.as_ref().map(|rule| &rule.header),
            );
        }
        Ok(Self {
            headers,
            by_method,
            otherwise,
            views: views.built,
            all: routes.into_iter().map(Arc::new).collect(),
        })
    }

    /// The first route that takes the method and a path given as
    /// [`matching`](crate::path::Normalised::matching) gives it.
    pub fn find(&self, method: &Method, path: &[u8]) -> Option<&Arc<Route>> {
        let view = self
            .by_method
            .iter()
            .find_map(|(named, view)| (named == method).then_some(*view))
            .unwrap_or(self.otherwise);
        self.views[view].find(path).and_then(|id| self.get(id))
    }

    /// The route of this id.
    pub fn get(&self, id: RouteId) -> Option<&Arc<Route>> {
        self.all.get(id.0)
    }

    /// All routes, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<Route>> {
        self.all.iter()
    }

    /// The names of the headers that limits, scopes and keys are read from.
    pub fn headers(&self) -> &HeaderNames {
        &self.headers
    }

    /// How many routes there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is no route at all.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl<'a> IntoIterator for &'a Routes {
    type Item = &'a Arc<Route>;
    type IntoIter = std::slice::Iter<'a, Arc<Route>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(&self.all).finish()
    }
}

fn check_patterns(routes: &[Route]) -> Result<(), RoutesError> {
    for route in routes {
        for pattern in &route.patterns {
            check_pattern(pattern).map_err(|source| RoutesError::Pattern {
                route: Arc::clone(&route.name),
                pattern: pattern.clone(),
                source,
            })?;
        }
    }
    Ok(())
}

/// The routes a method can meet.
struct View {
    matcher: Matcher,
    /// The route of each of the matcher's patterns.
    owners: Vec<RouteId>,
}

impl View {
    fn new(ids: &[RouteId], routes: &[Route]) -> Result<Self, RoutesError> {
        let (owners, patterns): (Vec<_>, Vec<_>) = ids
            .iter()
            .flat_map(|&id| {
                routes[id.0]
                    .patterns
                    .iter()
                    .map(move |pattern| (id, pattern))
            })
            .unzip();
        let matcher = Matcher::new(&patterns)
            .map_err(|matcher::TooLarge { limit }| RoutesError::TooLarge { limit })?;
        Ok(Self { matcher, owners })
    }

    fn find(&self, path: &[u8]) -> Option<RouteId> {
        self.matcher
            .first_match(path)
            .map(|pattern| self.owners[pattern])
    }
}

/// Views as they are built: methods that meet the same routes share one.
#[derive(Default)]
struct Views {
    built: Vec<View>,
    known: HashMap<Vec<RouteId>, usize>,
}

impl Views {
    fn seen_by(&mut self, method: Option<&Method>, routes: &[Route]) -> Result<usize, RoutesError> {
        let ids = routes
            .iter()
            .enumerate()
            .filter(|(_, route)| route.takes(method))
            .map(|(place, _)| RouteId(place))
            .collect();
        match self.known.entry(ids) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                self.built.push(View::new(new.key(), routes)?);
                Ok(*new.insert(self.built.len() - 1))
            }
        }
    }
}

#[cfg(test)]
mod tests;
