//! Converts the decoded configuration file to a [`Policy`].
//!
//! This step resolves names and compares values with each other. An invalid part is reported and omitted, so that the
//! checks of the other parts can continue. The policy is used only if no error was reported.

mod buffers;
mod files;
mod idempotency;
mod limits;
mod listener_conflicts;
mod paths;
mod respond;
mod routes;
pub(super) mod scenarios;
pub(super) mod server;
mod store;
mod upstreams;

use super::file::{AdminSection, ClientSection, File};
use super::located::Located;
use super::problem::Findings;
use super::scalar::{Cidr, Listen, Size, TokenText};
use super::{AdminSettings, Policy, Purpose};
use crate::request::client::{Trust, families_covered};

/// Converts a decoded configuration file to a policy. Returns `None` if any error was reported.
pub(super) fn resolve(file: &File, purpose: Purpose, findings: &mut Findings) -> Option<Policy> {
    listener_conflicts::check(file, findings);
    warn_about_unbounded_networks(&file.client, findings);
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
    store::resolve_lease(&mut store, file, &routes, findings);
    let tls = file.server.tls.as_ref();
    let tls = tls.and_then(|tls| files::read_listener_pair(tls, purpose, findings));
    if findings.has_errors() {
        return None;
    }
    let headers = routes::resolve_headers(file, &mut routes);
    let methods = routes::known_methods(&routes);
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
        routes: routes::compile(file, routes, findings)?,
        headers,
        methods,
    })
}

/// Returns a size in bytes as a size in memory.
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

/// Warns if `exempt` or `trusted_proxies` contains all public IPv4 or all public IPv6 addresses. If `exempt` contains
/// them, no rate limit applies to these clients. If `trusted_proxies` contains them, any client can choose its own
/// address.
fn warn_about_unbounded_networks(section: &ClientSection, findings: &mut Findings) {
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
        let addresses = || networks.iter().map(|cidr| cidr.value.0);
        let families = families_covered(addresses());
        let Some(first) = networks.first().filter(|_| !families.is_empty()) else {
            continue;
        };
        let unbounded = networks
            .iter()
            .find(|cidr| !families_covered(std::iter::once(cidr.value.0)).is_empty());
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
    let networks = |list: &[Located<Cidr>]| list.iter().map(|cidr| cidr.value.0).collect();
    Trust::new(
        networks(&section.trusted_proxies),
        networks(&section.exempt),
        section.ipv6_prefix,
    )
}
