//! Describes what the gateway would do with a request, for `tidegate explain` and the admin API.

mod idempotency;
mod upstream;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};

use self::idempotency::KeyEffect;
use crate::config::{Policy, RoutePolicy};
use crate::http::http1::target;
use crate::request::client::{Caller, ClientId};
use crate::request::headers::{HeaderNames, tokens};
use crate::request::path;
use crate::request::route::{MatchBy, Matcher};
use crate::request::{Entered, enter};
use crate::respond::Problem;
use crate::respond::cors::preflight_method;
use crate::scenario::{AtEnd, CountBy, Scenario};
use crate::throttle::{Exceed, KeyPart, Limit, Mode};

/// Descriptions, each with a name such as `route`.
type Lines = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(crate) struct Explanation<'p> {
    pub(crate) lines: Lines,
    /// `None` if the request is rejected before its client is known.
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

/// Fails with what is wrong.
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
    // A `Host` header is added if `--header` does not contain one, because the gateway rejects requests without it.
    let host = HeaderValue::from_static("localhost");
    request.headers_mut().entry(HOST).or_insert(host);
    let sent = request.headers().clone();
    let entered = enter(&policy.entry_settings(&policy.routes), peer, &mut request);
    let (caller, route) = match &entered {
        Ok(Entered { caller, route, .. }) => (Some(caller), Some(*route)),
        Err(rejection) => rejection.found(),
    };
    let mut lines = Vec::new();
    if let Some(caller) = caller {
        lines.push(("client", describe_client(caller)));
        describe_path(&policy.routes, &request, &mut lines);
        if route.is_none() && lines.len() > 1 {
            lines.push(("route", "none".into()));
        }
    }
    if let Some(route) = route {
        lines.push(("route", route.name.to_string()));
        lines.extend(destination(route));
        let dropped = dropped(&sent, request.headers(), &policy.headers);
        lines.extend(dropped.map(|dropped| ("dropped", dropped)));
    }
    let mut explanation = Explanation {
        lines,
        client: caller.map(Caller::id),
        route,
        is_charged: false,
        headers: HeaderMap::new(),
    };
    match entered {
        Err(rejection) => {
            let problem = Problem::from(*rejection);
            let outcome = format!("{}, {}", problem.status.as_u16(), problem.detail);
            explanation.lines.push(("outcome", outcome));
        }
        Ok(entered) => {
            describe_stages(policy, &entered, &request, &mut explanation.lines);
            explanation.is_charged = !entered.caller.exempt() && !entered.is_preflight;
            explanation.headers = request.into_parts().0.headers;
        }
    }
    explanation
}

/// Describes what the stages would do with a request that has entered, and the outcome.
fn describe_stages(
    policy: &Policy,
    entered: &Entered<'_, RoutePolicy>,
    request: &Request<()>,
    lines: &mut Lines,
) {
    let (route, exempt) = (entered.route, entered.caller.exempt());
    let (method, headers) = (request.method(), request.headers());
    let rule = route.idempotency.as_deref();
    let keying = KeyEffect::of(rule, method, headers);
    let keyed = rule.filter(|_| matches!(keying, KeyEffect::Keyed { .. }));
    if let Some(upstream) = &route.upstream {
        let upstream = &upstream.upstream;
        let retry = upstream::retry(upstream.retry.as_ref(), method, keyed);
        lines.push(("retry", retry));
        lines.push(("breaker", upstream::breaker(upstream)));
    }
    let limits = route.limits.iter();
    lines.extend(limits.map(|limit| ("limit", describe(limit, route, headers))));
    let mut outcome = outcome(policy, route, exempt, entered.is_preflight);
    match keying {
        KeyEffect::PassThrough(reason) => lines.extend(reason.map(|reason| ("key", reason))),
        KeyEffect::Keyed { owner, duplicate } => {
            lines.extend([("key", owner), ("duplicate", duplicate)]);
        }
        KeyEffect::Rejected(problem) => {
            lines.push(("key", format!("rejected: {}", problem.title)));
            outcome = format!("{}, {}", problem.status.as_u16(), problem.detail);
            // The gateway checks rate limits before the idempotency key, so the request can also get 429.
            if !exempt && enforced_limits(route).next().is_some() {
                outcome += " (429 if a rate limit has no tokens left)";
            }
        }
    }
    lines.push(("outcome", outcome));
}

fn describe_client(caller: &Caller) -> String {
    let reason = match (caller.peer_trusted(), caller.chain().len()) {
        (true, 1) => "the peer, a trusted proxy that names no client in X-Forwarded-For",
        (true, _) => "from X-Forwarded-For of a trusted proxy",
        (false, _) => "the peer, which is not a trusted proxy",
    };
    format!("{} ({reason})", caller.id())
}

fn destination(route: &RoutePolicy) -> Lines {
    let mut lines = Vec::new();
    if let Some(scenario) = &route.scenario {
        lines.push(("scenario", describe_scenario(scenario)));
    }
    let servers = match &route.upstream {
        Some(route) => upstream::servers(&route.upstream),
        None => "none: requests that pass the scenario get 200".into(),
    };
    lines.push(("upstream", servers));
    lines
}

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

/// Describes the path as it is forwarded, and its readings with their routes if one of them differs from it.
fn describe_path(routes: &Matcher<RoutePolicy>, request: &Request<()>, lines: &mut Lines) {
    let (method, uri) = (request.method(), request.uri());
    let preflight = preflight_method(method, request.headers());
    let by = MatchBy::new(method, preflight.as_ref());
    let Ok(path) = path::read(uri.path(), uri.query()) else {
        return;
    };
    lines.push(("path", path.forwarded().to_owned()));
    let describe = |reading: &[u8]| {
        let route = routes.find(by, reading);
        let route = route.map_or("no route".into(), |route| format!("route {}", route.name));
        format!("{} ({route})", reading.escape_ascii())
    };
    let lenient = path.lenient().unwrap_or_default();
    if path.literal() != path.forwarded().as_bytes() || !lenient.is_empty() {
        lines.push(("literal", describe(path.literal())));
    }
    lines.extend(lenient.iter().map(|reading| ("lenient", describe(reading))));
}

/// Describes which headers the gateway does not forward, and why.
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

/// An empty header is treated as missing.
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

/// The limits that can reject or delay a request.
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

    fn explained(config: &str, request: http::request::Builder) -> String {
        let (environment, overrides) = (Environment::default(), Overrides::default());
        let loaded = config::parse("a.toml", config, &environment, &overrides);
        let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        explain(&policy, request.body(()).unwrap(), peer).to_string()
    }

    #[test]
    fn the_scenario_of_a_route_and_what_follows_its_steps_are_shown() {
        let text = "[scenario.s]\nsteps = [\"503\", \"delay 1s + 200\"]\nby = \"test\"\nat_end = \"repeat\"\n\
                    [[route]]\nname = \"all\"\npath = \"/v1\"\nscenario = \"s\"\n";
        let explained = explained(text, Request::get("/t/run-1/v1"));
        for part in [
            "path       /v1\n",
            "s: 503, delay 1s + 200; then the last step repeats; counted by test",
            "upstream   none",
            "decided by the next step of the scenario",
        ] {
            assert!(explained.contains(part), "{part}: {explained}");
        }
    }

    #[test]
    fn a_header_of_an_untrusted_peer_is_not_dropped_because_of_connection() {
        let text = "upstream.api.servers = [\"http://127.0.0.1:1\"]\n\
                    limit.a = { rate = \"1/s\", key = \"header:x-forwarded-host\" }\n\
                    [[route]]\nname = \"a\"\npath = \"/\"\nlimits = [\"a\"]\n";
        let request = || Request::get("/").header("x-forwarded-host", "b.example");
        let plain = explained(text, request());
        assert!(!plain.contains("dropped"), "{plain}");
        let explained = explained(text, request().header(CONNECTION, "X-Forwarded-Host"));
        assert!(
            explained.contains("dropped    x-forwarded-host, named in Connection"),
            "{explained}"
        );
    }
}
