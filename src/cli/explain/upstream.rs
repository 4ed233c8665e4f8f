//! Where a request goes, and what happens when that struggles, in words.

use http::Method;

use super::written;
use crate::idempotency::{KeyRule, OnUnknown};
use crate::upstream::{FailureStatuses, OpensOn, RetrySettings, Server, Upstream};

/// The upstream, and who shares its load.
pub(super) fn servers(upstream: &Upstream) -> String {
    let shown = |server: &Server| {
        let scheme = if server.tls { "https" } else { "http" };
        let weight = match server.weight.get() {
            1 => String::new(),
            weight => format!(" with weight {weight}"),
        };
        format!("{scheme}://{}{weight}", server.authority)
    };
    let servers: Vec<_> = upstream.servers.iter().map(shown).collect();
    format!("{} ({})", upstream.name, servers.join(", "))
}

/// When the request is sent once more; `keyed` is the rule of its key, where that holds it to one execution.
pub(super) fn retry(
    settings: Option<&RetrySettings>,
    method: &Method,
    keyed: Option<&KeyRule>,
) -> String {
    let Some(policy) = settings
        .map(|settings| settings.policy)
        .filter(|policy| policy.attempts.get() > 1)
    else {
        return "never, unless it was provably not sent".into();
    };
    let bound = policy.deadline.map(written);
    let bound = bound.map_or_else(String::new, |deadline| format!(" within {deadline}"));
    let (base, cap) = (policy.backoff.base, policy.backoff.cap);
    // No wait outlasts the deadline, and a preset's cap may be endless.
    let longest = policy
        .deadline
        .map_or(cap, |deadline| cap.min(deadline.max(base)));
    let settled = keyed.is_some_and(|rule| rule.settings.on_unknown == OnUnknown::Release);
    let unless = if method.is_idempotent() || settled {
        String::new()
    } else {
        format!("; a {method} only while it was provably not sent")
    };
    format!(
        "up to {} attempts{bound}, waits of {} to {}{unless}",
        policy.attempts,
        written(base),
        written(longest),
    )
}

/// Describes what opens the circuit of a server, and for how long.
pub(super) fn breaker(upstream: &Upstream) -> String {
    let settings = &upstream.breaker;
    let percent = |ratio: f64| format!("{}%", (ratio * 10_000.0).round() / 100.0);
    let (least, window) = (settings.min_requests, written(settings.window));
    let of_window = format!("of {least} or more requests in {window}");
    let opens = format!(
        "opens for {} to {} after {}",
        written(settings.open),
        written(settings.open_max),
        settings.consecutive_failures,
    );
    let ratio = percent(settings.failure_ratio);
    let mut failures: Vec<String> = if settings.failures == FailureStatuses::ALL {
        vec!["5xx".into()]
    } else {
        settings.failures.iter().map(|s| s.to_string()).collect()
    };
    failures.push("first-byte timeout or lost connection".into());
    let fails = failures.join(", ");
    let what = match settings.opens_on {
        OpensOn::Nothing => return "off".into(),
        OpensOn::AllFailures => {
            format!(
                "{opens} failures in a row, or {ratio} {of_window}; failures: connect failure, {fails}"
            )
        }
        OpensOn::Outliers => {
            let responses = if upstream.servers.len() == 1 {
                "; never because of the responses of the only server".into()
            } else {
                format!(
                    "; also if {ratio} {of_window} fail, or {least} in a row ({fails}), while every other server \
                     stays below {} and at least one of them has {least} requests in {window}",
                    percent(settings.failure_ratio / 2.0)
                )
            };
            format!("{opens} connect failures in a row, or {ratio} {of_window}{responses}")
        }
    };
    let fallback = match settings.fallback {
        Some(_) => "; the fallback while all are open",
        None => "",
    };
    format!("{what}{fallback}")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::{HeaderValue, Request};

    use crate::config::{self, Environment, Overrides};

    /// The lines called `retry` and `breaker` for a request to an upstream with these keys.
    fn explained(keys: &str, idempotency: &str, method: &str) -> [String; 2] {
        let text = format!(
            "[[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {idempotency}\n\
             [upstream.api]\nservers = [\"https://a:1\", {{ url = \"http://b\", weight = 3 }}]\n{keys}\n"
        );
        let loaded = config::parse(
            "test.toml",
            &text,
            &Environment::default(),
            &Overrides::default(),
        );
        let policy = loaded.unwrap_or_else(|errors| panic!("{errors}")).policy;
        let mut request = Request::new(());
        *request.method_mut() = method.parse().expect("a method");
        let key = HeaderValue::from_static("k");
        request.headers_mut().insert("idempotency-key", key);
        let shown = super::super::explain(&policy, request, Ipv4Addr::LOCALHOST.into());
        assert!(shown.contains("upstream   api (https://a:1, http://b with weight 3)\n"));
        ["retry", "breaker"].map(|name| {
            let mut lines = shown.lines();
            let line = lines.find_map(|line| line.strip_prefix(name));
            line.expect("a line of that name").trim().to_owned()
        })
    }

    #[test]
    fn retries_are_told_with_their_bounds() {
        let [retry, _] = explained("", "{}", "GET");
        assert_eq!(retry, "never, unless it was provably not sent");
        let [retry, _] = explained("retry = { attempts = 1 }", "{}", "GET");
        assert_eq!(retry, "never, unless it was provably not sent");
        let keys = "retry = { attempts = 3, base = \"500ms\", cap = \"1m\", deadline = \"90s\" }";
        let [retry, _] = explained(keys, "{}", "PUT");
        assert_eq!(retry, "up to 3 attempts within 90s, waits of 500ms to 1m");
        let [retry, _] = explained(&keys.replace("1m", "1h"), "{}", "PUT");
        assert!(retry.ends_with("waits of 500ms to 90s"), "{retry}");
    }

    #[test]
    fn what_could_be_done_twice_is_said_not_to_be() {
        let retries = |idempotency: &str, method: &str| {
            let [retry, _] = explained("retry = {}", idempotency, method);
            assert!(retry.starts_with("up to "), "{retry}");
            !retry.contains("only while it was provably not sent")
        };
        for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"] {
            assert!(retries("{}", method), "{method}");
        }
        assert!(!retries("{}", "POST") && !retries("{ on_unknown = \"hold\" }", "PATCH"));
        assert!(retries("{ on_unknown = \"release\" }", "POST"));
        // Here its key is not looked at.
        let other = "{ on_unknown = \"release\", methods = \"PATCH\" }";
        assert!(!retries(other, "POST") && retries(other, "PATCH"));
    }

    #[test]
    fn a_breaker_is_explained_by_what_opens_it() {
        let [_, breaker] = explained("", "{}", "GET");
        assert_eq!(
            breaker,
            "opens for 1s to 1m after 5 connect failures in a row, or 50% of 20 or more requests in 10s; also if \
             50% of 20 or more requests in 10s fail, or 20 in a row (502, 503, 504, first-byte timeout or lost \
             connection), while every other server stays below 25% and at least one of them has 20 requests in \
             10s"
        );
        let [_, breaker] = explained("breaker = {}", "{}", "GET");
        assert_eq!(
            breaker,
            "opens for 1s to 1m after 5 failures in a row, or 50% of 20 or more requests in 10s; failures: connect \
             failure, 502, 503, 504, first-byte timeout or lost connection"
        );
        let keys = "breaker = { failure_ratio = 0.29, failures = \"5xx\", fallback = { body = \"Later.\" } }";
        let [_, breaker] = explained(keys, "{}", "GET");
        assert!(breaker.contains("or 29% of"), "{breaker}");
        assert!(breaker.contains("connect failure, 5xx, first"), "{breaker}");
        assert!(
            breaker.ends_with("the fallback while all are open"),
            "{breaker}"
        );
        let [_, breaker] = explained("breaker = { failures = [] }", "{}", "GET");
        assert!(breaker.contains("connect failure, first-byte"), "{breaker}");
        let [_, breaker] = explained("breaker = { enabled = false }", "{}", "GET");
        assert_eq!(breaker, "off");
    }
}
