//! Finds the route of a request: the first route in the configuration whose methods and patterns match.
//!
//! Each method has an automaton of the patterns of all its routes, in which earlier patterns have priority. It reads a
//! path once, regardless of the number of routes. A match is reported only when all earlier patterns have failed: if
//! `/api/.+/x` precedes `/api/`, the matcher has to read the complete path. A `RegexSet` is slower, because it cannot
//! drop later patterns early. A radix tree would be faster for literal prefixes, but cannot contain regular expressions.
//!
//! Patterns match the bytes of [a reading of the path](super::path), anchored at its start. A request is rejected if a
//! lenient reading has another route than the literal one; no route counts as another route. Otherwise a client could
//! evade the limits of a route, or reach a path of the upstream that no route publishes. A strict route rejects every
//! path with a lenient reading.

mod error;
mod path_set;
pub(crate) mod pattern;
mod pattern_set;
mod unmatchable;
pub(crate) mod unreachable;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use thiserror::Error;

use super::path::RequestPath;

pub(crate) use error::RouteError;
pub(crate) use pattern::{PatternError, check_pattern};
use pattern_set::PatternSet;
pub(crate) use unmatchable::{Unmatchable, check_matchable};
pub(crate) use unreachable::find_shadowed;

/// Conditions under which a request matches a route.
#[derive(Clone, Debug)]
pub struct RouteMatch {
    /// Name of the route, for error messages.
    pub name: Arc<str>,
    /// Regular expressions for the path, of which at least one must match. They are anchored at the start of the path.
    /// The list is never empty.
    pub patterns: Vec<String>,
    /// Methods that the route matches; `None` for all methods.
    pub methods: Option<Vec<Method>>,
    /// What happens to a request of the route whose path is ambiguous.
    pub ambiguous_paths: AmbiguousPaths,
    /// Whether paths of the route can have lenient readings.
    pub paths: PathMode,
}

/// Which paths are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PathMode {
    /// A path is accepted if all its readings match the same route.
    Compatible,
    /// A path that a server could read differently from how it is written gets 400.
    Strict,
}

#[derive(Clone, Copy, Debug)]
pub enum MatchBy<'a> {
    Method(&'a Method),
    /// Method that a CORS preflight asks about. A route that names OPTIONS takes the preflight instead, if it is the
    /// first that matches OPTIONS. Otherwise a client could choose the route of an OPTIONS request with a header.
    Preflight(&'a Method),
}

impl<'a> MatchBy<'a> {
    /// `requested` is the method that a preflight asks about.
    pub fn new(method: &'a Method, requested: Option<&'a Method>) -> Self {
        requested.map_or(Self::Method(method), Self::Preflight)
    }
}

impl<'a> From<&'a Method> for MatchBy<'a> {
    fn from(method: &'a Method) -> Self {
        Self::Method(method)
    }
}

/// What happens to a request of a route if a server can read its path as one that does not belong to this route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AmbiguousPaths {
    /// The request gets 400.
    Reject,
    /// The request is forwarded, and only the limits of this route apply.
    Allow,
}

impl RouteMatch {
    /// `None` stands for every method that no route names.
    fn matches_method(&self, method: Option<&Method>) -> bool {
        self.methods
            .as_ref()
            .is_none_or(|methods| method.is_some_and(|method| methods.contains(method)))
    }

    fn names_options(&self) -> bool {
        let methods = self.methods.as_ref();
        methods.is_some_and(|methods| methods.contains(&Method::OPTIONS))
    }
}

#[derive(Debug, Error)]
pub enum RoutesError {
    #[error("route {route:?} has an invalid path pattern {pattern:?}: {source}")]
    Pattern {
        route: Arc<str>,
        pattern: String,
        source: PatternError,
    },
    #[error(
        "the path patterns of all routes need more than {limit} bytes when compiled; use fewer or simpler patterns"
    )]
    TooLarge { limit: usize },
}

/// Compiled routes. Each route has a value, which `find` returns.
pub struct Matcher<T> {
    compiled: Arc<CompiledRoutes>,
    values: Vec<T>,
}

struct CompiledRoutes {
    routes: Vec<RouteMatch>,
    /// Methods whose routes differ from those of `default`, each with an index into `by_index`.
    by_method: Vec<(Method, usize)>,
    /// Index into `by_index` for all other methods.
    default: usize,
    by_index: Vec<MethodRoutes>,
}

impl<T> Matcher<T> {
    /// Compiles routes, each with its value. If several routes match a request, the first of them is selected.
    pub fn compile(routes: Vec<(RouteMatch, T)>) -> Result<Self, RoutesError> {
        let (matches, values): (Vec<_>, Vec<_>) = routes.into_iter().unzip();
        let compiled = Arc::new(CompiledRoutes::compile(&matches)?);
        Ok(Self { compiled, values })
    }

    /// Returns the value of the route of a request: the first route that matches its method and the literal reading of
    /// its path.
    pub fn select<'a>(
        &self,
        by: impl Into<MatchBy<'a>>,
        path: &RequestPath<'_>,
    ) -> Result<&T, RouteError> {
        let index = self.compiled.select(by.into(), path)?;
        Ok(&self.values[index])
    }

    /// Returns the value of the first route that matches the method and one reading of a path; `None` if no route
    /// matches.
    pub fn find<'a>(&self, by: impl Into<MatchBy<'a>>, path: &[u8]) -> Option<&T> {
        self.values.get(self.compiled.find(by.into(), path)?)
    }

    /// Returns a matcher with the same routes and other values. The two matchers share the compiled patterns.
    pub fn map<U>(&self, value: impl FnMut(&T) -> U) -> Matcher<U> {
        Matcher {
            compiled: Arc::clone(&self.compiled),
            values: self.values.iter().map(value).collect(),
        }
    }

    /// Returns what each route matches, in the order of the routes.
    #[cfg(feature = "gateway")]
    pub(crate) fn matches(&self) -> &[RouteMatch] {
        &self.compiled.routes
    }

    /// Returns the values of all routes, in the order of the routes.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns whether there are no routes.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl<'a, T> IntoIterator for &'a Matcher<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for Matcher<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(&self.values).finish()
    }
}

impl CompiledRoutes {
    fn compile(routes: &[RouteMatch]) -> Result<Self, RoutesError> {
        check_patterns(routes)?;
        let mut named: Vec<&Method> = routes
            .iter()
            .filter_map(|route| route.methods.as_ref())
            .flatten()
            .collect();
        named.sort_unstable_by_key(|method| method.as_str());
        named.dedup();

        let mut builder = MethodRoutesBuilder::default();
        let default = builder.routes_of(None, routes)?;
        let mut by_method = Vec::new();
        for method in named {
            let index = builder.routes_of(Some(method), routes)?;
            if index != default {
                by_method.push((method.clone(), index));
            }
        }
        Ok(Self {
            routes: routes.to_vec(),
            by_method,
            default,
            by_index: builder.built,
        })
    }

    fn find(&self, by: MatchBy<'_>, path: &[u8]) -> Option<usize> {
        match by {
            MatchBy::Method(method) => self.find_by_method(method, path),
            MatchBy::Preflight(requested) => self
                .find_by_method(&Method::OPTIONS, path)
                .filter(|&index| self.routes[index].names_options())
                .or_else(|| self.find_by_method(requested, path)),
        }
    }

    fn find_by_method(&self, method: &Method, path: &[u8]) -> Option<usize> {
        let index = self
            .by_method
            .iter()
            .find_map(|(named, index)| (named == method).then_some(*index))
            .unwrap_or(self.default);
        self.by_index[index].find(path)
    }

    fn select(&self, by: MatchBy<'_>, path: &RequestPath<'_>) -> Result<usize, RouteError> {
        let literal = self.find(by, path.literal());
        let name = |route: Option<usize>| route.map(|index| Arc::clone(&self.routes[index].name));
        let entry = literal.map(|index| &self.routes[index]);
        if let Some(RouteMatch { name, paths, .. }) = entry
            && *paths == PathMode::Strict
            && path.lenient() != Ok(Vec::new())
        {
            return Err(RouteError::NotStrict {
                route: Arc::clone(name),
            });
        }
        if entry.is_none_or(|entry| entry.ambiguous_paths == AmbiguousPaths::Reject) {
            let lenient = path.lenient().map_err(|_| RouteError::TooManyReadings {
                literal: name(literal),
            })?;
            let mut others = lenient.iter().map(|path| self.find(by, path));
            if let Some(other) = others.find(|other| *other != literal) {
                return Err(RouteError::Ambiguous {
                    literal: name(literal),
                    lenient: name(other),
                });
            }
        }
        literal.ok_or_else(|| self.unmatched(path.literal()))
    }

    fn unmatched(&self, path: &[u8]) -> RouteError {
        // Methods outside `by_method` match the routes without methods only. These match the method of the request,
        // too, so they do not match the path.
        let allowed: Vec<_> = self
            .by_method
            .iter()
            .filter(|(_, index)| self.by_index[*index].find(path).is_some())
            .map(|(method, _)| method.clone())
            .collect();
        if allowed.is_empty() {
            RouteError::NoRoute
        } else {
            RouteError::MethodNotAllowed { allowed }
        }
    }
}

fn check_patterns(routes: &[RouteMatch]) -> Result<(), RoutesError> {
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

struct MethodRoutes {
    patterns: PatternSet,
    /// For each pattern, the index of its route.
    owners: Vec<usize>,
}

impl MethodRoutes {
    fn new(indexes: &[usize], routes: &[RouteMatch]) -> Result<Self, RoutesError> {
        let (owners, patterns): (Vec<_>, Vec<_>) = indexes
            .iter()
            .flat_map(|&index| {
                let patterns = routes[index].patterns.iter();
                patterns.map(move |pattern| (index, pattern))
            })
            .unzip();
        let patterns = PatternSet::new(&patterns)
            .map_err(|pattern_set::TooLarge { limit }| RoutesError::TooLarge { limit })?;
        Ok(Self { patterns, owners })
    }

    fn find(&self, path: &[u8]) -> Option<usize> {
        self.patterns
            .first_match(path)
            .map(|pattern| self.owners[pattern])
    }
}

/// Methods that match the same routes share one automaton.
#[derive(Default)]
struct MethodRoutesBuilder {
    built: Vec<MethodRoutes>,
    /// From the indexes of routes to their automaton, an index into `built`.
    known: HashMap<Vec<usize>, usize>,
}

impl MethodRoutesBuilder {
    /// Returns an index into `built`.
    fn routes_of(
        &mut self,
        method: Option<&Method>,
        routes: &[RouteMatch],
    ) -> Result<usize, RoutesError> {
        let indexes = routes
            .iter()
            .enumerate()
            .filter(|(_, route)| route.matches_method(method))
            .map(|(index, _)| index)
            .collect();
        match self.known.entry(indexes) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                self.built.push(MethodRoutes::new(new.key(), routes)?);
                Ok(*new.insert(self.built.len() - 1))
            }
        }
    }
}

#[cfg(test)]
mod tests;
