//! Describes what the gateway would do with a request, for `tidegate explain` and the admin API.

mod idempotency;
mod upstream;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};

use self::idempotency::KeyEffect;
use crate::config::{Policy, RoutePolicy};
use crate::http::http1::target;
use crate::request::client::{Caller, ClientId};
use crate::request::headers::{HeaderNames, tokens};
use crate::request::path::{self, RequestPath};
use crate::request::route::{MatchBy, Matcher};
use crate::request::{Entered, enter};
use crate::respond::Problem;
use crate::respond::cors::preflight_method;
use crate::scenario::{AtEnd, CountBy, Scenario};
use crate::throttle::{Exceed, KeyPart, Limit, Mode};
use crate::upstream::Upstream;

/// What the gateway would do with a request.
#[derive(Debug)]
pub(crate) struct Explanation<'p> {
    /// Descriptions, each with a name such as `route`.
    pub(crate) lines: Vec<(&'static str, String)>,
    /// Client, as far as the request is valid.
    pub(crate) client: Option<ClientId>,
    pub(crate) route: Option<&'p RoutePolicy>,
    /// Whether the limits of the route are charged.
    pub(crate) is_charged: bool,
    /// Headers after the entry of the request.
    pub(crate) headers: HeaderMap,
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.lines.iter().enumerate() {
            let end = if index > 0 { "\n" } else { "" };
            write!(f, "{end}{name:<10} {value}")?;
        }
        Ok(())
    }
}

/// Creates the request that `explain` describes. Fails with what is wrong.
pub(crate) fn request(
    method: &str,
    path: &str,
    headers: HeaderMap,
) -> Result<Request<()>, &'static str> {
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| "method")?;
    let path = Bytes::copy_from_slice(path.as_bytes());
    let uri = target::parse(&method, &path, 0..path.len()).map_err(|_| "path")?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Describes how the gateway would handle a request, without handling it.
pub(crate) fn explain(policy: &Policy, mut request: Request<()>, peer: IpAddr) -> Explanation<'_> {
    let mut lines = Vec::new();
    let mut line = |name: &'static str, value: String| lines.push((name, value));

    // A `Host` header is added if `--header` does not contain one, because the gateway rejects requests without it.
    let host = HeaderValue::from_static("localhost");
    request.headers_mut().entry(HOST).or_insert(host);
    let sent = request.headers().clone();
    let entered = enter(&policy.entry_settings(&policy.routes), peer, &mut request);
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let (caller, route) = match &entered {
        Ok(Entered { caller, route, .. }) => (Some(caller), Some(*route)),
        Err(rejection) => rejection.found(),
    };
    if let Some(caller) = caller {
        line("client", describe_client(caller));
        let preflight = preflight_method(method, headers);
        let by = MatchBy::new(method, preflight.as_ref());
        if let Ok(path) = path::read(uri.path(), uri.query()) {
            line("path", path.forwarded().to_owned());
            for (name, reading) in readings(&policy.routes, by, &path) {
                line(name, reading);
            }
            if route.is_none() {
                line("route", "none".into());
            }
        }
    }
    let upstream = route.and_then(|route| route.upstream.as_ref());
    let upstream = upstream.map(|it| &it.upstream);
    if let Some(route) = route {
        line("route", route.name.to_string());
        for (name, text) in destination(route, upstream) {
            line(name, text);
        }
        if let Some(dropped) = dropped(&sent, headers, &policy.headers) {
            line("dropped", dropped);
        }
    }
    let client = caller.map(Caller::id);
    let Entered {
        caller,
        is_preflight,
        route,
        ..
    } = match entered {
        Ok(entered) => entered,
        Err(rejection) => {
            line("outcome", rejected(&(*rejection).into()));
            return Explanation {
                lines,
                client,
                route,
                is_charged: false,
                headers: HeaderMap::new(),
            };
        }
    };
    let is_charged = !caller.exempt() && !is_preflight;
    let rule = route.idempotency.as_deref();
    let keying = KeyEffect::of(rule, method, headers);
    let keyed = rule.filter(|_| matches!(keying, KeyEffect::Keyed { .. }));
    if let Some(upstream) = upstream {
        let retry = upstream::retry(upstream.retry.as_ref(), method, keyed);
        line("retry", retry);
        line("breaker", upstream::breaker(upstream));
    }
    for limit in &route.limits {
        line("limit", describe(limit, route, headers));
    }
    let outcome = outcome(policy, route, caller.exempt(), is_preflight);
    match keying {
        KeyEffect::PassThrough(reason) => {
            if let Some(reason) = reason {
                line("key", reason);
            }
            line("outcome", outcome);
        }
        KeyEffect::Keyed { owner, duplicate } => {
            line("key", owner);
            line("duplicate", duplicate);
            line("outcome", outcome);
        }
        KeyEffect::Rejected(problem) => {
            let status = problem.status.as_u16();
            line("key", format!("rejected: {}", problem.title));
            // The gateway checks rate limits before the idempotency key, so the request can also get 429.
            let limited = !caller.exempt() && enforced_limits(route).next().is_some();
            let unless = if limited {
                " (429 if a rate limit has no tokens left)"
            } else {
                ""
            };
            line("outcome", format!("{status}, {}{unless}", problem.detail));
        }
    }
    Explanation {
        lines,
        client,
        route: Some(route),
        is_charged,
        headers: request.into_parts().0.headers,
    }
}

fn describe_client(caller: &Caller) -> String {
    let reason = match (caller.peer_trusted(), caller.chain().len()) {
        (true, 1) => "the peer, a trusted proxy that names no client in X-Forwarded-For",
        (true, _) => "from X-Forwarded-For of a trusted proxy",
        (false, _) => "the peer, which is not a trusted proxy",
    };
    format!("{} ({reason})", caller.id())
}

/// Describes the scenario of a route and the servers of its upstream.
fn destination(
    route: &RoutePolicy,
    upstream: Option<&Arc<Upstream>>,
) -> Vec<(&'static str, String)> {
    let scenario = route.scenario.as_deref();
    let scenario = scenario.map(|scenario| ("scenario", describe_scenario(scenario)));
    let servers = match upstream {
        Some(upstream) => upstream::servers(upstream),
        None => "none: requests that pass the scenario get 200".into(),
    };
    scenario
        .into_iter()
        .chain([("upstream", servers)])
        .collect()
}

/// Describes the steps of a scenario, which requests count together, and what follows the last step.
fn describe_scenario(scenario: &Scenario) -> String {
    let steps: Vec<&str> = scenario.steps.iter().map(|step| &*step.text).collect();
    let at_end = match scenario.at_end {
        AtEnd::Pass => "then requests pass",
        AtEnd::Repeat => "then the last step repeats",
        AtEnd::Restart => "then the steps start again",
    };
    let by = match scenario.by {
        CountBy::Client => "client",
        CountBy::Key => "client and idempotency key",
        CountBy::Test => "test (X-Tidegate-Test or /t/ID/), or client without one",
    };
    let name = &scenario.name;
    format!("{name}: {}; {at_end}; counted by {by}", steps.join(", "))
}

fn rejected(problem: &Problem) -> String {
    format!("{}, {}", problem.status.as_u16(), problem.detail)
}

/// Describes the literal and the lenient readings of a path with their routes. Returns nothing if the path has no
/// reading that differs from the forwarded path.
fn readings(
    routes: &Matcher<RoutePolicy>,
    by: MatchBy<'_>,
    path: &RequestPath<'_>,
) -> Vec<(&'static str, String)> {
    let describe = |reading: &[u8]| {
        let route = routes.find(by, reading);
        let route = route.map_or("no route".into(), |route| format!("route {}", route.name));
        format!("{} ({route})", reading.escape_ascii())
    };
    let lenient = path.lenient().unwrap_or_default();
    let is_decoded = path.literal() != path.forwarded().as_bytes();
    let literal =
        (is_decoded || !lenient.is_empty()).then(|| ("literal", describe(path.literal())));
    let lenient = lenient.iter().map(|reading| ("lenient", describe(reading)));
    literal.into_iter().chain(lenient).collect()
}

/// Describes which request headers the gateway does not forward, and why. Returns `None` if the gateway forwards all
/// headers.
fn dropped(sent: &HeaderMap, left: &HeaderMap, names: &HeaderNames) -> Option<String> {
    // Other headers are missing too: those of an untrusted peer that limits would read.
    let listed: Vec<_> = tokens(sent, &CONNECTION).collect();
    let is_listed = |name: &HeaderName| {
        let mut listed = listed.iter();
        listed.any(|token| token.eq_ignore_ascii_case(name.as_str()))
    };
    let dropped: Vec<_> = sent
        .keys()
        .filter_map(|name| {
            if !left.contains_key(name) && is_listed(name) {
                Some(format!("{name}, named in Connection"))
            } else if !names.is_dropped(name) {
                None
            } else if names.is_lookalike(name) {
                Some(format!("{name}, which servers can read as another header"))
            } else if name.as_str().contains('_') {
                Some(format!("{name}, because of the underscore"))
            } else {
                Some(format!(
                    "{name}, which servers can read instead of the path"
                ))
            }
        })
        .collect();
    (!dropped.is_empty()).then(|| dropped.join("; "))
}

fn describe(limit: &Limit, route: &RoutePolicy, headers: &HeaderMap) -> String {
    let keys: Vec<_> = limit
        .key
        .iter()
        .map(|part| describe_key(part, headers))
        .collect();
    let cost = match route.cost.get() {
        1 => String::new(),
        cost => format!("; a request takes {cost} tokens"),
    };
    let exceed = match limit.exceed {
        Exceed::Reject => "requests above this are rejected".into(),
        Exceed::Delay { max } => format!("requests above this are delayed by up to {max:?}"),
    };
    let mode = match limit.mode {
        Mode::Enforce => "",
        Mode::Shadow => "; shadow mode: requests are only counted, never rejected or delayed",
    };
    format!(
        "{}: {} at once, then one every {:?}; {exceed}; counted by {}{cost}{mode}",
        limit.name,
        limit.quota.capacity(),
        limit.quota.interval(),
        keys.join(" and "),
    )
}

fn describe_key(part: &KeyPart, headers: &HeaderMap) -> String {
    match part {
        KeyPart::Client => "client".into(),
        KeyPart::Global => "global (one bucket for all requests)".into(),
        KeyPart::Header(name) if has_value(headers, name) => format!("header {name}"),
        KeyPart::Header(name) => format!("client, because header {name} is missing"),
        KeyPart::Function(_) => "function of the application".into(),
    }
}

/// Whether a header is present and not empty. An empty header is treated as missing.
fn has_value(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get(name).is_some_and(|value| !value.is_empty())
}

fn outcome(policy: &Policy, route: &RoutePolicy, exempt: bool, preflight: bool) -> String {
    let enforced = enforced_limits(route).next().is_some();
    let delays = enforced_limits(route).any(|limit| matches!(limit.exceed, Exceed::Delay { .. }));
    match (preflight, &policy.respond.cors) {
        (true, Some(_)) => "the gateway responds to the CORS preflight request itself".into(),
        (true, None) if enforced => {
            "forwarded; each rate limit counts CORS preflight requests in a separate bucket".into()
        }
        _ if route.scenario.is_some() && enforced && !exempt => {
            "decided by the scenario if every rate limit has tokens left, otherwise 429".into()
        }
        _ if route.scenario.is_some() => "decided by the next step of the scenario".into(),
        _ if exempt => "forwarded; this client is exempt from rate limits".into(),
        _ if delays => {
            "forwarded, after a delay if a rate limit has no tokens left; 429 if the delay would be too long"
                .into()
        }
        _ if enforced => "forwarded if every rate limit has tokens left, otherwise 429".into(),
        _ => "forwarded; no rate limit applies".into(),
    }
}

/// Returns the rate limits that can reject or delay a request of the route: those that are not in shadow mode.
fn enforced_limits(route: &RoutePolicy) -> impl Iterator<Item = &Limit> {
    let limits = route.limits.iter().map(AsRef::as_ref);
    limits.filter(|limit: &&Limit| limit.mode == Mode::Enforce)
}

/// Formats a duration as in a configuration file, such as `10s` or `24h`.
fn format_duration(duration: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    let seconds = duration.as_secs();
    match seconds {
        _ if duration.subsec_nanos() != 0 => format!("{}ms", duration.as_millis()),
        _ if seconds > DAY && seconds.is_multiple_of(DAY) => format!("{}d", seconds / DAY),
        _ if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::config::{self, Environment, Overrides};

    #[test]
    fn a_header_of_an_untrusted_peer_is_not_dropped_because_of_connection() {
        let text = "upstream.api.servers = [\"http://127.0.0.1:1\"]\n\
                    limit.a = { rate = \"1/s\", key = \"header:x-forwarded-host\" }\n\
                    [[route]]\nname = \"a\"\npath = \"/\"\nlimits = [\"a\"]\n";
        let (environment, overrides) = (Environment::default(), Overrides::default());
        let loaded = config::parse("a.toml", text, &environment, &overrides);
        let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let request = || Request::get("/").header("x-forwarded-host", "b.example");
        let explained = explain(&policy, request().body(()).unwrap(), peer).to_string();
        assert!(!explained.contains("dropped"), "{explained}");
        let listed = request().header(CONNECTION, "X-Forwarded-Host");
        let explained = explain(&policy, listed.body(()).unwrap(), peer).to_string();
        assert!(
            explained.contains("dropped    x-forwarded-host, named in Connection"),
            "{explained}"
        );
    }
}
