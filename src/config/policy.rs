//! Valid configuration, and its conversion from the decoded file: resolves names and compares values with each other.
//!
//! An invalid part is reported and omitted, so that the checks of the other parts can continue. The policy is used
//! only if no error was reported.

mod buffers;
mod files;
mod idempotency;
mod limits;
mod listener_conflicts;
mod paths;
mod respond;
mod route_table;
mod routes;
pub(super) mod scenarios;
pub(super) mod server;
mod store;
mod upstreams;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use super::file::{AdminSection, ClientSection, File};
use super::located::Located;
use super::problem::Findings;
use super::scalar::{Cidr, Listen, Size, TokenText};
use super::{LogSettings, Purpose};
use crate::idempotency::KeyRule;
use crate::request::client::{Trust, families_covered};
use crate::request::headers::{HeaderNames, IdentifyingHeaders};
use crate::request::methods::KnownMethods;
use crate::request::route::Matcher;
use crate::request::{EntryRule, EntrySettings};
use crate::respond::RespondSettings;
use crate::scenario::{CountBy, Scenario};
use crate::store::StoreCapacity;
use crate::store::redis::settings::{Password, RedisSettings};
use crate::throttle::Limit;
use crate::upstream::{Timeouts, Upstream};

use server::ServerSettings;

/// Valid configuration in the form that the gateway uses: names are resolved, and defaults are set.
#[derive(Debug)]
pub struct Policy {
    pub(crate) server: ServerSettings,
    /// `None` if `admin.listen` is not set, so there is no admin listener.
    pub(crate) admin: Option<AdminSettings>,
    pub(crate) trust: Trust,
    /// Over all rate limits.
    pub(crate) max_clients: usize,
    pub(crate) store: StoreSettings,
    pub(crate) respond: RespondSettings,
    pub(crate) log: LogSettings,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) limits: Vec<Arc<Limit>>,
    /// In the order of their names.
    pub(crate) scenarios: Vec<Arc<Scenario>>,
    /// In the order of the file. The first route that matches a request applies.
    pub(crate) routes: Matcher<RoutePolicy>,
    /// Request headers that some route reads: for the key of a rate limit, an idempotency scope or an idempotency key.
    pub(crate) headers: HeaderNames,
    /// Methods whose case is checked: the registered ones, and those in `methods` of routes and of `idempotency`.
    pub(crate) methods: KnownMethods,
}

/// One `[[route]]`, without `path` and `methods`, which are in the [`Matcher`].
#[derive(Clone, Debug)]
pub(crate) struct RoutePolicy {
    pub(crate) name: Arc<str>,
    /// `None` only for a route with a scenario: requests that pass the scenario then get 200.
    pub(crate) upstream: Option<RouteUpstream>,
    /// Responds before the upstream.
    pub(crate) scenario: Option<Arc<Scenario>>,
    pub(crate) limits: Vec<Arc<Limit>>,
    /// Tokens that a request takes from each rate limit.
    pub(crate) cost: NonZeroU32,
    /// `None` means that the gateway only forwards idempotency keys.
    pub(crate) idempotency: Option<Arc<KeyRule>>,
    /// In bytes; 0 for none.
    pub(crate) request_buffer: usize,
    pub(crate) access_log: bool,
    /// Those in the keys of the rate limits and in the idempotency scope.
    pub(crate) identifying_headers: IdentifyingHeaders,
}

impl EntryRule for RoutePolicy {
    fn identifying_headers(&self) -> &IdentifyingHeaders {
        &self.identifying_headers
    }

    fn takes_test_ids(&self) -> bool {
        let scenario = self.scenario.as_ref();
        scenario.is_some_and(|scenario| scenario.by == CountBy::Test)
    }
}

impl Policy {
    pub(crate) fn entry_settings<'a, R: EntryRule>(
        &'a self,
        routes: &'a Matcher<R>,
    ) -> EntrySettings<'a, R> {
        EntrySettings {
            max_body: self.server.limits.body_bytes,
            names: &self.headers,
            methods: &self.methods,
            trust: &self.trust,
            routes,
            responds_to_preflights: self.respond.cors.is_some(),
            takes_test_ids: self.scenarios.iter().any(|it| it.by == CountBy::Test),
        }
    }

    /// Keeps the values of `running` that only a restart can change, and returns the keys that differ.
    pub(crate) fn keep_until_restart(&mut self, running: &Self) -> Vec<&'static str> {
        let mut pending = Vec::new();
        macro_rules! keep {
            ($($key:literal: $($field:ident).+;)+) => {$(
                if self.$($field).+ != running.$($field).+ {
                    pending.push($key);
                    self.$($field).+.clone_from(&running.$($field).+);
                }
            )+};
        }
        keep! {
            "server.listen": server.listen;
            "server.workers": server.workers;
            "server.max_connections": server.limits.connections;
            "server.max_connections_per_client": server.limits.connections_per_client;
            "server.max_buffered": server.buffers.total;
            "server.max_buffered_per_client": server.buffers.per_client;
            "server.tunnel_timeout": server.tunnels.idle;
            "server.max_tunnels_per_client": server.tunnels.per_client;
            "store.max_clients": max_clients;
        }
        self.server.timeouts.tunnel = running.server.timeouts.tunnel;
        let mut store = running.store.clone();
        if let (Backend::Redis(kept), Backend::Redis(new)) =
            (&mut store.backend, &self.store.backend)
        {
            // By default, the lease follows the timeouts of the routes, which a reload changes.
            kept.lease = new.lease;
        }
        if self.store != store {
            pending.push("store");
            self.store = store;
        }
        let listen = |policy: &Self| policy.admin.as_ref().map(|admin| admin.listen);
        if listen(self) != listen(running) {
            pending.push("admin.listen");
            let token = self.admin.take().map(|admin| admin.token);
            self.admin.clone_from(&running.admin);
            if let (Some(admin), Some(token)) = (&mut self.admin, token) {
                admin.token = token;
            }
        }
        pending
    }
}

#[derive(Clone, Debug)]
pub(crate) struct RouteUpstream {
    pub(crate) upstream: Arc<Upstream>,
    /// Those of the upstream, or those that the route sets instead.
    pub(crate) timeouts: Timeouts,
}

#[derive(Clone, Debug)]
pub(crate) struct AdminSettings {
    pub(crate) listen: SocketAddr,
    /// Bearer token that requests must have, except those to `/`, `/livez` and `/readyz`. If `None`, requests need no
    /// token on a loopback address, and only `/livez` and `/readyz` are available on other addresses.
    pub(crate) token: Option<Password>,
}

/// Without `max_clients`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    pub(crate) backend: Backend,
    /// Bounds of a store in memory or on disk. Those of Redis are in [`RedisSettings`].
    pub(crate) capacity: StoreCapacity,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Backend {
    #[default]
    Memory,
    /// Rate limit buckets are in memory.
    Disk {
        /// Directory, which the store creates.
        path: PathBuf,
    },
    Redis(RedisSettings),
}

/// Returns `None` if any error was reported.
pub(super) fn resolve(file: &File, purpose: Purpose, findings: &mut Findings) -> Option<Policy> {
    listener_conflicts::check(file, findings);
    warn_about_networks(&file.client, findings);
    let buffers = buffers::resolve(&file.server, findings);
    let mut store = store::resolve(&file.store, purpose, findings);
    let admin = admin(&file.admin, purpose, findings);
    let respond = respond::resolve(&file.respond, findings);
    let upstreams = upstreams::resolve(&file.upstream, purpose, findings);
    let limits = limits::resolve(
        &file.limit,
        store::is_remote(&file.store, findings),
        findings,
    );
    let max_bytes = store::max_response_bytes(&store);
    let named = file.scenario.entries.keys().next();
    if let Some(name) = named.filter(|_| !cfg!(feature = "lab")) {
        findings.error(
            &name.span,
            "this binary was built without the feature `lab`, which scenarios need",
            "remove all [scenario] sections, or build with the feature `lab`",
        );
    }
    let scenarios = scenarios::resolve(&file.scenario);
    let known = routes::RouteNames {
        upstreams: &upstreams,
        limits: &limits,
        scenarios: &scenarios,
    };
    let mut routes = routes::resolve(file, purpose, known, max_bytes, buffers, findings);
    if purpose != Purpose::Lab && !findings.has_errors() {
        route_table::report_unused(file, &routes, findings);
    }
    route_table::report_shadowed(file, &routes, findings);
    store::resolve_lease(&mut store, file, &routes, findings);
    let tls = file.server.tls.as_ref();
    let tls = tls.and_then(|tls| files::read_listener_pair(tls, purpose, findings));
    if findings.has_errors() {
        return None;
    }
    let headers = route_table::resolve_headers(file, &mut routes);
    let methods = route_table::known_methods(&routes);
    Some(Policy {
        server: server::server(&file.server, buffers.value, tls),
        admin,
        trust: trust(&file.client),
        max_clients: file.store.max_clients,
        store,
        respond,
        log: file.log.clone(),
        upstreams,
        limits: limits.into_values().flatten().collect(),
        scenarios: scenarios.into_values().flatten().collect(),
        routes: route_table::compile(file, routes, findings)?,
        headers,
        methods,
    })
}

fn bytes(size: &Size) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

pub(super) fn admin(
    section: &AdminSection,
    purpose: Purpose,
    findings: &mut Findings,
) -> Option<AdminSettings> {
    let token = match (&section.token, &section.token_file) {
        (Some(token), Some(file)) => {
            findings
                .error(
                    &file.span,
                    "`token` and `token_file` are both set",
                    "remove `token` or `token_file`",
                )
                .note(&token.span, "`token` is set here");
            None
        }
        (Some(token), None) => Some(token.value.clone()),
        (None, Some(file)) => files::read_secret("token", file, purpose, findings),
        (None, None) => None,
    };
    let given = section.token.as_ref().map(|token| &token.span);
    let given = given.or(section.token_file.as_ref().map(|file| &file.span));
    let Some(Located { span, value }) = &section.listen else {
        if let Some(span) = given {
            findings.warning(
                span,
                "the admin token has no effect: `listen` is not set in [admin], so there is no admin listener",
                "add `listen = \"127.0.0.1:9090\"` to [admin], or remove the token",
            );
        }
        return None;
    };
    let Listen(listen) = value.clone();
    if given.is_none() && !listen.ip().is_loopback() {
        findings.warning(
            span,
            format!("the admin listener has no token, and other machines can reach its address {listen}"),
            "set `token` or `token_file` in [admin]; without a token, only /livez and /readyz are available on this \
             address",
        );
    }
    Some(AdminSettings {
        listen,
        token: token.map(|TokenText(token)| token),
    })
}

/// Warns about networks with host bits, such as `10.1.2.3/8`, and if a list contains all public IPv4 or all public IPv6
/// addresses.
fn warn_about_networks(section: &ClientSection, findings: &mut Findings) {
    for (key, networks, effect, help) in [
        (
            "exempt",
            &section.exempt,
            "no rate limit applies to these clients",
            "list only the networks of clients without rate limits; to disable a rate limit, set `mode = \"shadow\"`",
        ),
        (
            "trusted_proxies",
            &section.trusted_proxies,
            "any client can choose its own address with X-Forwarded-For, and so evade rate limits and idempotency \
             scopes",
            "list only the networks of your own proxies",
        ),
    ] {
        for Located { span, value } in networks {
            let (written, network) = (value.0, value.0.trunc());
            if written != network {
                findings.warning(
                    span,
                    format!("`{written}` has bits outside its prefix: it stands for the network `{network}`"),
                    format!("write \"{network}\", or \"{}\" for this address only", written.addr()),
                );
            }
        }
        let families = families_covered(networks.iter().map(|cidr| cidr.value.0.trunc()));
        let Some(first) = networks.first().filter(|_| !families.is_empty()) else {
            continue;
        };
        let unbounded = networks
            .iter()
            .find(|cidr| !families_covered(std::iter::once(cidr.value.0.trunc())).is_empty());
        findings.warning(
            &unbounded.unwrap_or(first).span,
            format!(
                "`{key}` contains every public {} address: {effect}",
                families.join(" and ")
            ),
            help,
        );
    }
}

fn trust(section: &ClientSection) -> Trust {
    let networks = |list: &[Located<Cidr>]| list.iter().map(|cidr| cidr.value.0.trunc()).collect();
    Trust::new(
        networks(&section.trusted_proxies),
        networks(&section.exempt),
        section.ipv6_prefix,
    )
}
