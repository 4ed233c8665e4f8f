//! The lines `upstream`, `retry` and `breaker` in the output of `tidegate explain`.

use http::Method;

use super::format_duration;
use crate::idempotency::{KeyRule, OnUnknown};
use crate::upstream::{FailureStatuses, OpensOn, RetrySettings, Server, Upstream};

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

/// `keyed` is the rule for the idempotency key of the request.
pub(super) fn retry(
    settings: Option<&RetrySettings>,
    method: &Method,
    keyed: Option<&KeyRule>,
) -> String {
    let Some(policy) = settings
        .map(|settings| settings.policy)
        .filter(|policy| policy.attempts.get() > 1)
    else {
        let resend = if method.is_idempotent() && keyed.is_none() {
            ", or a reused connection closed before the response"
        } else {
            ""
        };
        return format!("never, unless the request was provably not sent{resend}");
    };
    let bound = policy.deadline.map(format_duration);
    let bound = bound.map_or_else(String::new, |deadline| format!(" within {deadline}"));
    let (base, cap) = (policy.backoff.base, policy.backoff.cap);
    // The `cap` of a preset can be unlimited.
    let longest = policy
        .deadline
        .map_or(cap, |deadline| cap.min(deadline.max(base)));
    let upstream_handles_key =
        keyed.is_some_and(|rule| rule.settings.on_unknown == OnUnknown::Release);
    let condition = if method.is_idempotent() || upstream_handles_key {
        String::new()
    } else {
        format!("; {method} only if the request was provably not sent")
    };
    format!(
        "up to {} attempts{bound}, backoff {} to {}{condition}",
        policy.attempts,
        format_duration(base),
        format_duration(longest),
    )
}

pub(super) fn breaker(upstream: &Upstream) -> String {
    let settings = &upstream.breaker;
    let percent = |ratio: f64| format!("{}%", (ratio * 10_000.0).round() / 100.0);
    let (least, window) = (settings.min_requests, format_duration(settings.window));
    let of_window = format!("of at least {least} requests in {window}");
    let times = format!(
        "for {} to {}",
        format_duration(settings.open),
        format_duration(settings.open_max),
    );
    let in_a_row = settings.consecutive_failures;
    let ratio = percent(settings.failure_ratio);
    let mut failures: Vec<String> = if settings.failures == FailureStatuses::ALL {
        vec!["5xx".into()]
    } else {
        settings.failures.iter().map(|s| s.to_string()).collect()
    };
    failures.push("first-byte timeout".into());
    failures.push("lost connection".into());
    let failures = failures.join(", ");
    let what = match settings.opens_on {
        OpensOn::Nothing => return "off".into(),
        OpensOn::AllFailures => format!(
            "opens {times} after {in_a_row} failures in a row, or if {ratio} {of_window} fail; failures: connect \
             failure, {failures}"
        ),
        OpensOn::ConnectTimeouts => format!(
            "opens for at most 1s after {in_a_row} connect timeouts in a row, or if {ratio} {of_window} time out; \
             other failures never open it, because there is only one server"
        ),
        OpensOn::Outliers => format!(
            "opens for at most 1s after {in_a_row} connect failures in a row, or if {ratio} {of_window} fail to \
             connect; {times} if {ratio} {of_window} fail, or {least} in a row ({failures}), while every other server \
             stays below {} and at least one of them has {least} requests in {window}",
            percent(settings.failure_ratio / 2.0)
        ),
    };
    let fallback = match settings.fallback {
        Some(_) => "; requests get the fallback while all circuits are open",
        None => "",
    };
    format!("{what}{fallback}")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::{HeaderValue, Request};

    use crate::config::{self, Environment, Overrides};

    /// Returns the values of the lines `retry` and `breaker` for a request. `keys` are configuration lines of the
    /// upstream. `idempotency` is the value of the configuration key `idempotency` of the route.
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
        let shown = super::super::explain(&policy, request, Ipv4Addr::LOCALHOST.into()).to_string();
        assert!(shown.contains("upstream   api (https://a:1, http://b with weight 3)\n"));
        ["retry", "breaker"].map(|name| {
            let mut lines = shown.lines();
            let line = lines.find_map(|line| line.strip_prefix(name));
            line.expect("a line of that name").trim().to_owned()
        })
    }

    #[test]
    fn without_retries_a_lost_request_is_sent_again_only_if_idempotent_and_without_a_key() {
        let unsent = "never, unless the request was provably not sent";
        let reused = format!("{unsent}, or a reused connection closed before the response");
        for keys in ["", "retry = { attempts = 1 }"] {
            let [retry, _] = explained(keys, "{}", "GET");
            assert_eq!(retry, reused);
            let [retry, _] = explained(keys, "{}", "POST");
            assert_eq!(retry, unsent);
            let [retry, _] = explained(keys, "{ methods = \"PUT\" }", "PUT");
            assert_eq!(retry, unsent);
        }
    }

    #[test]
    fn retry_shows_attempts_deadline_and_backoff() {
        let keys = "retry = { attempts = 3, base = \"500ms\", cap = \"1m\", deadline = \"90s\" }";
        let [retry, _] = explained(keys, "{}", "PUT");
        assert_eq!(retry, "up to 3 attempts within 90s, backoff 500ms to 1m");
        let [retry, _] = explained(&keys.replace("1m", "1h"), "{}", "PUT");
        assert!(retry.ends_with("backoff 500ms to 90s"), "{retry}");
    }

    #[test]
    fn retry_shows_that_unsafe_requests_are_retried_only_if_not_sent() {
        let retries = |idempotency: &str, method: &str| {
            let [retry, _] = explained("retry = {}", idempotency, method);
            assert!(retry.starts_with("up to "), "{retry}");
            !retry.contains("only if the request was provably not sent")
        };
        for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"] {
            assert!(retries("{}", method), "{method}");
        }
        assert!(!retries("{}", "POST") && !retries("{ on_unknown = \"hold\" }", "PATCH"));
        assert!(retries("{ on_unknown = \"release\" }", "POST"));
        // `methods = "PATCH"` means that the gateway does not handle the idempotency keys of POST requests.
        let other = "{ on_unknown = \"release\", methods = \"PATCH\" }";
        assert!(!retries(other, "POST") && retries(other, "PATCH"));
    }

    #[test]
    fn breaker_shows_what_opens_the_circuit() {
        let [_, breaker] = explained("", "{}", "GET");
        assert_eq!(
            breaker,
            "opens for at most 1s after 5 connect failures in a row, or if 50% of at least 20 requests in 10s fail to \
             connect; for 1s to 1m if 50% of at least 20 requests in 10s fail, or 20 in a row (502, 503, 504, \
             first-byte timeout, lost connection), while every other server stays below 25% and at least one of them \
             has 20 requests in 10s"
        );
        let [_, breaker] = explained("breaker = {}", "{}", "GET");
        assert_eq!(
            breaker,
            "opens for 1s to 1m after 5 failures in a row, or if 50% of at least 20 requests in 10s fail; failures: \
             connect failure, 502, 503, 504, first-byte timeout, lost connection"
        );
        let keys = "breaker = { failure_ratio = 0.29, failures = \"5xx\", fallback = { body = \"Later.\" } }";
        let [_, breaker] = explained(keys, "{}", "GET");
        assert!(breaker.contains("or if 29% of"), "{breaker}");
        assert!(breaker.contains("connect failure, 5xx, first"), "{breaker}");
        assert!(
            breaker.ends_with("the fallback while all circuits are open"),
            "{breaker}"
        );
        let [_, breaker] = explained("breaker = { failures = [] }", "{}", "GET");
        assert!(breaker.contains("connect failure, first-byte"), "{breaker}");
        let [_, breaker] = explained("breaker = { enabled = false }", "{}", "GET");
        assert_eq!(breaker, "off");
    }
}
