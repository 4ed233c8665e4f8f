//! The routes together: which of them no request can reach, names that none of them uses, and the matcher.

use super::super::file::{File, RouteSection};
use super::super::located::Located;
use super::super::problem::Findings;
use super::super::source::Span;
use super::RoutePolicy;
use crate::request::headers::HeaderNames;
use crate::request::methods::KnownMethods;
use crate::request::route::{Matcher, RouteMatch, find_shadowed};
use crate::throttle::Mode;

pub(super) fn report_shadowed(
    file: &File,
    routes: &[(RouteMatch, RoutePolicy)],
    findings: &mut Findings,
) {
    let matches: Vec<_> = routes.iter().map(|(matches, _)| matches.clone()).collect();
    for shadowed in find_shadowed(&matches) {
        let [earlier, later] = [shadowed.earlier, shadowed.later].map(|at| &*matches[at].name);
        let (Some(first), Some(second)) = (
            complete(file, earlier, findings),
            complete(file, later, findings),
        ) else {
            continue;
        };
        // Routes with equal names are reported already.
        if earlier != later {
            findings
                .error(
                    &second,
                    format!(
                        "no request can reach the route `{later}`: `{earlier}` matches all of its requests first"
                    ),
                    "the first route that matches a request applies: move this route above the other route, or remove \
                     this route",
                )
                .note(&first, "this route matches first");
        }
    }
}

/// Returns the location of a route. `None` if an invalid part of what it matches was removed.
fn complete(file: &File, name: &str, findings: &Findings) -> Option<Span> {
    let has_name = |section: &Located<RouteSection>| {
        let known = section.value.name.as_ref();
        known.is_some_and(|known| known.value.0 == name)
    };
    let index = file.route.iter().position(has_name)?;
    let was_removed = |key| findings.was_removed(&format!("route[{index}].{key}"));
    (!was_removed("path") && !was_removed("methods")).then(|| path_span(&file.route[index]))
}

/// Not called after an error, because an invalid route was possibly omitted.
pub(super) fn report_unused(
    file: &File,
    routes: &[(RouteMatch, RoutePolicy)],
    findings: &mut Findings,
) {
    let routes = || routes.iter().map(|(_, route)| route);
    let is_used = |what: &str, name: &str| match what {
        "scenario" => routes().any(|it| it.scenario.as_ref().is_some_and(|it| *it.name == *name)),
        "limit" => routes().any(|it| it.limits.iter().any(|it| *it.name == *name)),
        _ => routes().any(|it| {
            it.upstream
                .as_ref()
                .is_some_and(|it| *it.upstream.name == *name)
        }),
    };
    let scenarios = file.scenario.entries.keys().map(|name| ("scenario", name));
    let limits = file.limit.entries.keys().map(|name| ("limit", name));
    let upstreams = file.upstream.entries.keys().map(|name| ("upstream", name));
    for (what, name) in scenarios.chain(limits).chain(upstreams) {
        let Located { span, value: name } = name;
        if !is_used(what, name) {
            findings.warning(
                span,
                format!("no route uses the {what} `{name}`"),
                format!("use the {what} in a route, or remove `[{what}.{name}]`"),
            );
        }
    }
}

/// Sets `identifying_headers` of each route, and returns the names of all headers that the routes read.
pub(super) fn resolve_headers(
    file: &File,
    routes: &mut [(RouteMatch, RoutePolicy)],
) -> HeaderNames {
    let mut names = HeaderNames::default();
    names.allows_underscores = file.server.underscores_in_headers;
    for (_, route) in routes {
        let limit_headers = |mode| {
            let limits = route.limits.iter().filter(move |limit| limit.mode == mode);
            limits.flat_map(|limit| limit.headers())
        };
        let rule = route.idempotency.as_deref();
        let scope_headers = rule.into_iter().flat_map(|rule| rule.scope.headers());
        route.identifying_headers = names.add_route(
            limit_headers(Mode::Enforce).chain(scope_headers),
            limit_headers(Mode::Shadow),
            rule.map(|rule| &rule.header),
        );
    }
    names
}

pub(super) fn known_methods(routes: &[(RouteMatch, RoutePolicy)]) -> KnownMethods {
    KnownMethods::new(routes.iter().flat_map(|(matches, route)| {
        let matched = matches.methods.iter().flatten();
        let keyed = route.idempotency.iter().flat_map(|rule| &rule.methods);
        matched.chain(keyed)
    }))
}

/// Reports an error if the patterns are too large together.
pub(super) fn compile(
    file: &File,
    routes: Vec<(RouteMatch, RoutePolicy)>,
    findings: &mut Findings,
) -> Option<Matcher<RoutePolicy>> {
    match Matcher::compile(routes) {
        Ok(routes) => Some(routes),
        Err(error) => {
            let span = file.route.first().map_or(0..0, path_span);
            findings.error(
                &span,
                error.to_string(),
                "write shorter `path` patterns, or patterns with smaller repetition counts",
            );
            None
        }
    }
}

fn path_span(section: &Located<RouteSection>) -> Span {
    let path = section.value.path.as_ref();
    path.and_then(|path| path.0.first())
        .map_or_else(|| section.span.clone(), |first| first.span.clone())
}
