//! The Prometheus text format 0.0.4, converted from the `OpenMetrics` text that `prometheus-client` writes.
//!
//! The formats differ in the names of counter families, which end with `_total` only in the Prometheus format, and in
//! the lines `# UNIT` and `# EOF`, which only `OpenMetrics` has.

use std::fmt::Write as _;

use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, HeaderValue};

pub(in crate::admin) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the client accepts `text/plain` and does not name `OpenMetrics`, which is the default.
pub(in crate::admin) fn is_preferred(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes);
    let accept = String::from_utf8_lossy(&lines.collect::<Vec<_>>().concat()).to_lowercase();
    let accepts = |range| accept.contains(range);
    accepts("text/plain") && !accepts("application/openmetrics-text")
}

pub(in crate::admin) fn from_openmetrics(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    let mut lines = openmetrics.lines().peekable();
    while let Some(line) = lines.next() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "EOF"] | ["#", "UNIT", ..] => {}
            ["#", kind @ ("HELP" | "TYPE"), name, rest] => {
                // The type follows the help.
                let of_type = if kind == "HELP" {
                    lines.peek()
                } else {
                    Some(&line)
                };
                let is_counter = of_type.is_some_and(|line| line.ends_with(" counter"));
                let suffix = if is_counter { "_total" } else { "" };
                writeln!(text, "# {kind} {name}{suffix} {rest}")
                    .expect("a String accepts all text");
            }
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_families_end_with_total_and_lines_of_openmetrics_are_removed() {
        let openmetrics = "\
            # HELP a_requests Requests, by route.\n\
            # TYPE a_requests counter\n\
            a_requests_total{route=\"# TYPE a counter\"} 3\n\
            # HELP a_wait_seconds The counter.\n\
            # TYPE a_wait_seconds histogram\n\
            # UNIT a_wait_seconds seconds\n\
            a_wait_seconds_count 0\n\
            # EOF\n";
        let text = "\
            # HELP a_requests_total Requests, by route.\n\
            # TYPE a_requests_total counter\n\
            a_requests_total{route=\"# TYPE a counter\"} 3\n\
            # HELP a_wait_seconds The counter.\n\
            # TYPE a_wait_seconds histogram\n\
            a_wait_seconds_count 0\n";
        assert_eq!(from_openmetrics(openmetrics), text);
    }

    #[test]
    fn openmetrics_is_the_default() {
        for (accept, expected) in [
            ("text/plain", true),
            ("Text/Plain;version=0.0.4;q=0.5, */*;q=0.1", true),
            ("*/*", false),
            ("text/html,application/xhtml+xml,*/*;q=0.8", false),
            (
                "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
                false,
            ),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            assert_eq!(is_preferred(&headers), expected, "{accept}");
        }
        assert!(!is_preferred(&HeaderMap::new()));
    }
}
