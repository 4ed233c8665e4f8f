//! `[[route]]`: path patterns, upstream, rate limits, cost and idempotency settings of each route.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use super::super::file::{File, RouteSection};
use super::super::located::Located;
use super::super::problem::Findings;
use super::super::scalar::Size;
use super::super::source::Span;
use super::super::suggest;
use super::super::{Purpose, RoutePolicy, RouteUpstream};
use super::buffers::Bounds;
use super::bytes;
use super::idempotency::{self, RouteContext};
use super::limits::Limits;
use super::paths;
use super::scenarios::ScenariosByName;
use super::upstreams::warn_about_first_byte_timeout;
use crate::request::headers::IdentifyingHeaders;
use crate::request::route::{AmbiguousPaths, PathMode, RouteMatch};
use crate::scenario::Scenario;
use crate::throttle::{KeyPart, Limit, Mode};
use crate::upstream::{Timeouts, Upstream};

#[derive(Clone, Copy)]
pub(super) struct RouteNames<'a> {
    pub(super) upstreams: &'a [Arc<Upstream>],
    pub(super) limits: &'a Limits<'a>,
    pub(super) scenarios: &'a ScenariosByName<'a>,
}

/// Returns the valid routes, in the order of the file.
pub(super) fn resolve(
    file: &File,
    purpose: Purpose,
    known: RouteNames<'_>,
    max_bytes: u64,
    buffers: Bounds<'_>,
    findings: &mut Findings,
) -> Vec<(RouteMatch, RoutePolicy)> {
    if file.route.is_empty() {
        findings.missing(
            "route",
            &(0..0),
            "the configuration has no route, so every request would get 404",
            "add a `[[route]]` with `name = \"all\"` and `path = \"/\"`",
        );
    }
    let mut resolver = Resolver {
        purpose,
        upstreams: known.upstreams,
        limits: known.limits,
        scenarios: known.scenarios,
        max_bytes,
        buffers,
        access_log: file.log.access,
        request_buffer: &file.server.request_buffer,
        paths: file.server.paths,
        names: BTreeMap::new(),
        findings,
        at: String::new(),
    };
    let mut routes = Vec::new();
    for (index, section) in file.route.iter().enumerate() {
        resolver.at = format!("route[{index}]");
        routes.extend(resolver.route(section));
    }
    routes
}

struct Resolver<'a> {
    purpose: Purpose,
    upstreams: &'a [Arc<Upstream>],
    limits: &'a Limits<'a>,
    scenarios: &'a ScenariosByName<'a>,
    max_bytes: u64,
    buffers: Bounds<'a>,
    access_log: bool,
    request_buffer: &'a Size,
    paths: PathMode,
    names: BTreeMap<&'a str, &'a Span>,
    findings: &'a mut Findings,
    /// Such as `route[0]`.
    at: String,
}

impl<'a> Resolver<'a> {
    fn was_removed(&self, key: &str) -> bool {
        self.findings.was_removed(&format!("{}.{key}", self.at))
    }

    fn route(&mut self, section: &'a Located<RouteSection>) -> Option<(RouteMatch, RoutePolicy)> {
        let Located { span, value: route } = section;
        let name = self.name(route);
        let scenario = self.scenario(route);
        let upstream = match (&route.scenario, &route.upstream, self.upstreams) {
            (Some(_), None, []) => None,
            _ => Some(self.upstream(route, span)),
        };
        let limits = self.limits(route);
        self.warn_if_evadable(route, &limits);
        let cost = self.cost(route, &limits);
        let methods = route.methods.as_ref().map(|methods| {
            let methods = methods.0.iter().map(|method| method.value.0.clone());
            methods.collect::<Vec<_>>()
        });
        let valid = self.patterns(route);
        let name: Arc<str> = name.unwrap_or_default().into();
        let matches = RouteMatch {
            name: Arc::clone(&name),
            patterns: valid.iter().map(|pattern| pattern.value.clone()).collect(),
            methods: methods.clone(),
            ambiguous_paths: route.ambiguous_paths,
            paths: self.path_mode(route),
        };
        paths::check_meaning(&valid, &matches, self.findings);
        if methods.as_ref().is_some_and(Vec::is_empty) {
            return None;
        }
        let context = RouteContext {
            methods: methods.as_deref(),
            max_bytes: self.max_bytes,
            buffers: self.buffers,
        };
        let rule = route
            .idempotency
            .as_ref()
            .and_then(|section| idempotency::resolve(section, context, self.findings));
        let is_complete = route.name.is_some()
            && route
                .path
                .as_ref()
                .is_some_and(|path| path.0.len() == valid.len());
        if !is_complete {
            return None;
        }
        let upstream = match upstream {
            Some(found) => Some(found?),
            None => None,
        };
        let policy = RoutePolicy {
            name,
            upstream: upstream.map(|upstream| RouteUpstream {
                timeouts: self.timeouts(route, &upstream),
                upstream,
            }),
            scenario,
            limits,
            cost: cost?,
            idempotency: rule.map(Arc::new),
            request_buffer: bytes(route.request_buffer.as_ref().unwrap_or(self.request_buffer)),
            access_log: route.access_log.unwrap_or(self.access_log),
            identifying_headers: IdentifyingHeaders::default(),
        };
        Some((matches, policy))
    }

    fn path_mode(&mut self, route: &RouteSection) -> PathMode {
        let allows = route.ambiguous_paths == AmbiguousPaths::Allow;
        match &route.paths {
            Some(Located { span, value }) => {
                if allows && *value == PathMode::Strict {
                    self.findings.error(
                        span,
                        "`paths = \"strict\"` rejects the paths that `ambiguous_paths = \"allow\"` accepts",
                        "remove `paths` or `ambiguous_paths` from this route",
                    );
                }
                *value
            }
            None if allows => PathMode::Compatible,
            None => self.paths,
        }
    }

    fn timeouts(&mut self, route: &RouteSection, upstream: &Upstream) -> Timeouts {
        let inherited = upstream.timeouts;
        if let Some(Located { span, value }) = &route.first_byte_timeout {
            let deadline = upstream.retry.and_then(|retry| retry.deadline());
            warn_about_first_byte_timeout(value.0, span, deadline, self.findings);
        }
        let first_byte = route.first_byte_timeout.as_ref();
        Timeouts {
            connect: inherited.connect,
            first_byte: first_byte.map_or(inherited.first_byte, |it| it.value.0),
            idle: route
                .idle_timeout
                .as_ref()
                .map_or(inherited.idle, |it| it.0),
            total: route.timeout.as_ref().map(|it| it.0).or(inherited.total),
        }
    }

    fn name(&mut self, route: &'a RouteSection) -> Option<&'a str> {
        let Located { span, value } = route.name.as_ref()?;
        let name = value.0.as_str();
        if let Some(earlier) = self.names.insert(name, span) {
            self.names.insert(name, earlier);
            self.findings
                .error(
                    span,
                    format!("two routes are named `{name}`"),
                    "give each route a different name",
                )
                .note(earlier, "the first route with this name");
        }
        Some(name)
    }

    fn patterns(&mut self, route: &'a RouteSection) -> Vec<&'a Located<String>> {
        let all = route.path.iter().flat_map(|path| &path.0);
        all.filter(|pattern| paths::check_syntax(pattern, self.findings))
            .collect()
    }

    fn upstream(&mut self, route: &'a RouteSection, header: &Span) -> Option<Arc<Upstream>> {
        let Some(wanted) = &route.upstream else {
            return self.only_upstream(header);
        };
        let mut upstreams = self.upstreams.iter();
        let Some(found) = upstreams.find(|known| *known.name == *wanted.value) else {
            let names = self.upstreams.iter().map(|upstream| &*upstream.name);
            self.unknown("upstream", "upstream", wanted, names);
            return None;
        };
        Some(Arc::clone(found))
    }

    fn only_upstream(&mut self, header: &Span) -> Option<Arc<Upstream>> {
        match self.upstreams {
            [only] => Some(Arc::clone(only)),
            [] => {
                self.findings.missing(
                    "upstream",
                    header,
                    "this route has no upstream: the configuration has no [upstream.NAME] section",
                    "add an `[upstream.api]` section with `servers = [\"http://127.0.0.1:9000\"]`",
                );
                None
            }
            _ if self.was_removed("upstream") => None,
            several => {
                let names: Vec<_> = several.iter().map(|upstream| &*upstream.name).collect();
                self.findings.error(
                    header,
                    "this route must name its `upstream`, because the configuration has several upstreams",
                    format!("add `upstream = …`, one of {}", names.join(", ")),
                );
                None
            }
        }
    }

    /// `what` is the name of the section in messages.
    fn unknown<'n>(
        &mut self,
        section: &str,
        what: &str,
        Located { span, value }: &Located<String>,
        known: impl Iterator<Item = &'n str> + Clone,
    ) {
        self.findings.missing(
            &format!("{section}.{value}"),
            span,
            format!("there is no {what} named `{value}`"),
            suggest::remedy(value, known),
        );
    }

    fn scenario(&mut self, route: &'a RouteSection) -> Option<Arc<Scenario>> {
        let named = route.scenario.as_ref()?;
        let Located { span, value } = named;
        let Some(found) = self.scenarios.get(value.as_str()) else {
            self.unknown(
                "scenario",
                "scenario",
                named,
                self.scenarios.keys().copied(),
            );
            return None;
        };
        let scenario = found.clone()?;
        if self.purpose == Purpose::Lab {
            return Some(scenario);
        }
        if scenario.refuses_connections() {
            self.findings.error(
                span,
                format!("the scenario `{value}` has the step `refuse`, which works only in `tidegate lab`"),
                "replace `refuse` by `reset`: a gateway cannot refuse the connections of one route",
            );
        }
        let beside = match (route.limits.first(), &route.idempotency) {
            (Some(_), _) => Some("rate limits"),
            (None, Some(_)) => Some("idempotency settings"),
            (None, None) => None,
        };
        if let Some(beside) = beside {
            self.findings.warning(
                span,
                format!("this route has a scenario and {beside}, so clients get responses of both"),
                format!("remove the {beside} of this route, unless the test requires them"),
            );
        }
        Some(scenario)
    }

    fn limits(&mut self, route: &'a RouteSection) -> Vec<Arc<Limit>> {
        let mut found: Vec<Arc<Limit>> = Vec::new();
        let mut seen = BTreeSet::new();
        for named in &route.limits {
            let Located { span, value } = named;
            match self.limits.get(value.as_str()) {
                None => self.unknown("limit", "rate limit", named, self.limits.keys().copied()),
                Some(_) if !seen.insert(value) => {
                    self.findings.error(
                        span,
                        format!("this route lists the rate limit `{value}` twice"),
                        "list each rate limit once; to take more than one token per request, set `cost`",
                    );
                }
                Some(limit) => {
                    found.extend(limit.clone());
                }
            }
        }
        found
    }

    /// Warns if every enforced rate limit has a header in its `key`: a client gets a new bucket with each new value of
    /// the header, even if "client" is another part of the key.
    fn warn_if_evadable(&mut self, route: &RouteSection, limits: &[Arc<Limit>]) {
        let mut enforced = limits
            .iter()
            .filter(|limit| limit.mode == Mode::Enforce)
            .peekable();
        let Some(first) = route.limits.first() else {
            return;
        };
        let has_header = |limit: &Arc<Limit>| {
            let mut parts = limit.key.iter();
            parts.any(|part| matches!(part, KeyPart::Header(_)))
        };
        if enforced.peek().is_some() && enforced.all(has_header) {
            self.findings.warning(
                &first.span,
                "clients can evade the rate limits of this route: each limit has a header in its `key`, so a client \
                 gets a new bucket with every new value of the header, also if \"client\" is part of the `key`",
                "add a rate limit with `key = \"client\"` or `key = \"global\"` to `limits` of this route",
            );
        }
    }

    fn cost(&mut self, route: &RouteSection, limits: &[Arc<Limit>]) -> Option<NonZeroU32> {
        let cost = route.cost.value;
        let tightest = limits.iter().min_by_key(|limit| limit.quota.capacity());
        let (Some(tightest), Some(span)) = (tightest, &route.cost.span) else {
            return Some(cost);
        };
        let capacity = tightest.quota.capacity();
        let name = &tightest.name;
        if cost > capacity && !self.findings.was_removed(&format!("limit.{name}.burst")) {
            self.findings.error(
                span,
                format!(
                    "this route rejects every request: `cost` is {cost}, but the rate limit `{name}` has at most \
                     {capacity} tokens"
                ),
                format!(
                    "lower `cost` to at most {capacity}, or raise `burst` in [limit.{name}] to {}",
                    cost.get() - 1
                ),
            );
            return None;
        }
        Some(cost)
    }
}
