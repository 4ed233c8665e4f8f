//! Matches a request to a route: the first whose pattern and methods match.
//!
//! [`Matcher`] is generic over what a route means. Routes are tried in the order of the configuration. To try one after
//! the other would make the last of a thousand routes a thousand times as expensive as the first. So all patterns that
//! a method can match are one automaton, in which the earlier pattern has priority, and a path is read once whatever
//! the number of routes. The priority has a cost: a match is reported only when every earlier pattern has failed, so
//! `/api/.+/x` before `/api/` requires the whole path to be read.
//!
//! A `RegexSet` reports *all* patterns that match, which is more work: it cannot drop the later ones on the way. A radix
//! tree would be faster for literal prefixes, but cannot contain regular expressions.
//!
//! Patterns are matched on the bytes of [a normalised path](crate::path), anchored at its start and open at its end. The
//! method is compared case-sensitively; no header overrides it.

mod language;
pub(crate) mod pattern;
mod pattern_set;
pub(crate) mod shadow;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use http::Method;
use thiserror::Error;

pub(crate) use pattern::{PatternError, check_pattern};
use pattern_set::PatternSet;
pub(crate) use shadow::find_shadowed;

/// The requests that a route matches.
#[derive(Clone, Debug)]
pub struct RouteMatch {
    /// Name of the route, for errors.
    pub name: Arc<str>,
    /// Patterns over the path, each anchored at its start and open at its end; never empty.
    pub patterns: Vec<String>,
    /// The methods that match; `None` for all.
    pub methods: Option<Vec<Method>>,
}

impl RouteMatch {
    /// Whether requests of this method match; `None` stands for a method that no route names.
    fn takes(&self, method: Option<&Method>) -> bool {
        self.methods
            .as_ref()
            .is_none_or(|methods| method.is_some_and(|method| methods.contains(method)))
    }
}

/// Why routes cannot be compiled.
#[derive(Debug, Error)]
pub enum RoutesError {
    /// A pattern is not valid.
    #[error("route {route:?}: pattern {pattern:?}: {source}")]
    Pattern {
        /// Name of the route.
        route: Arc<str>,
        /// The pattern as written.
        pattern: String,
        /// The fault in the pattern.
        source: PatternError,
    },
    /// The patterns are valid, but too large together.
    #[error("the patterns of all routes together are too large: more than {limit} bytes")]
    TooLarge {
        /// The limit on the compiled patterns, in bytes.
        limit: usize,
    },
}

/// Routes with a value each, compiled for matching.
pub struct Matcher<T> {
    table: Arc<Table>,
    values: Vec<T>,
}

/// The compiled patterns. A match is the index of a route.
struct Table {
    /// Methods that can match other routes than most methods, each with an index into `views`.
    by_method: Vec<(Method, usize)>,
    /// Index into `views` for every other method.
    otherwise: usize,
    views: Vec<View>,
}

impl<T> Matcher<T> {
    /// Compiles routes. The first route that matches a request wins.
    pub fn compile(routes: Vec<(RouteMatch, T)>) -> Result<Self, RoutesError> {
        let (matches, values): (Vec<_>, Vec<_>) = routes.into_iter().unzip();
        let table = Arc::new(Table::compile(&matches)?);
        Ok(Self { table, values })
    }

    /// Returns the value of the first route that matches the method and a path given as
    /// [`matching`](crate::path::Normalised::matching) returns it.
    pub fn find(&self, method: &Method, path: &[u8]) -> Option<&T> {
        self.values.get(self.table.find(method, path)?)
    }

    /// Returns a matcher with the same routes and other values, which shares the compiled patterns.
    pub fn map<U>(&self, value: impl FnMut(&T) -> U) -> Matcher<U> {
        Matcher {
            table: Arc::clone(&self.table),
            values: self.values.iter().map(value).collect(),
        }
    }

    /// Returns the values in the order of the routes.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no routes.
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

impl Table {
    fn compile(routes: &[RouteMatch]) -> Result<Self, RoutesError> {
        check_patterns(routes)?;
        let mut named: Vec<&Method> = routes
            .iter()
            .filter_map(|route| route.methods.as_ref())
            .flatten()
            .collect();
        named.sort_unstable_by_key(|method| method.as_str());
        named.dedup();

        let mut views = Views::default();
        let otherwise = views.seen_by(None, routes)?;
        let mut by_method = Vec::new();
        for method in named {
            let view = views.seen_by(Some(method), routes)?;
            if view != otherwise {
                by_method.push((method.clone(), view));
            }
        }
        Ok(Self {
            by_method,
            otherwise,
            views: views.built,
        })
    }

    fn find(&self, method: &Method, path: &[u8]) -> Option<usize> {
        let view = self
            .by_method
            .iter()
            .find_map(|(named, view)| (named == method).then_some(*view))
            .unwrap_or(self.otherwise);
        self.views[view].find(path)
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

/// The routes that a method can match.
struct View {
    patterns: PatternSet,
    /// The route of each pattern, by index.
    owners: Vec<usize>,
}

impl View {
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

/// Views while they are built. Methods that match the same routes share one.
#[derive(Default)]
struct Views {
    built: Vec<View>,
    known: HashMap<Vec<usize>, usize>,
}

impl Views {
    fn seen_by(
        &mut self,
        method: Option<&Method>,
        routes: &[RouteMatch],
    ) -> Result<usize, RoutesError> {
        let indexes = routes
            .iter()
            .enumerate()
            .filter(|(_, route)| route.takes(method))
            .map(|(index, _)| index)
            .collect();
        match self.known.entry(indexes) {
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
