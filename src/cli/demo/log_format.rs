//! Format of the log of the demo: a short line per request with the few fields that explain the outcome, on which a
//! rejection or a replay is easy to notice.

use std::collections::BTreeMap;
use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::pipeline::log::ACCESS_TARGET;

const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

/// Writes access log events as short lines, and all other events in the usual format.
#[derive(Debug, Default)]
pub(super) struct DemoFormat(Format);

impl<S, N> FormatEvent<S, N> for DemoFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != ACCESS_TARGET {
            return self.0.format_event(context, writer, event);
        }
        let mut request = LoggedRequest::default();
        event.record(&mut request);
        let colour = writer.has_ansi_escapes();
        writeln!(writer, "{}", request.line(colour))
    }
}

/// Fields of an access log event, by name.
#[derive(Debug, Default)]
struct LoggedRequest(BTreeMap<&'static str, String>);

impl LoggedRequest {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    fn line(&self, colour: bool) -> String {
        let (outcome, code) = self.outcome();
        // The time of day, without the date and the microseconds.
        let time = self.text("time").get(11..19).unwrap_or_default();
        // A malformed request has no client.
        let client = self.get("client");
        let client = client.map_or_else(String::new, |client| format!("  client {client}"));
        let [status, method, path] = ["status", "method", "path"].map(|name| self.text(name));
        let request = format!("{status} {method:4} {path}{client}");
        let outcome = outcome.map_or_else(String::new, |outcome| format!("  <- {outcome}"));
        if colour {
            format!("{time} \u{1b}[{code}m{request}{outcome}\u{1b}[0m")
        } else {
            format!("{time} {request}{outcome}")
        }
    }

    fn outcome(&self) -> (Option<String>, &'static str) {
        if let Some(limit) = self.get("limit") {
            let wait = self.text("wait_ms");
            let outcome = format!("REJECTED by the limit '{limit}', retry in {wait} ms");
            return (Some(outcome), RED);
        }
        let colour = if self.text("status").starts_with(['4', '5']) {
            RED
        } else {
            GREEN
        };
        match (self.get("idempotency"), self.get("reason")) {
            (Some("replayed"), _) => (Some("REPLAYED, not executed again".into()), CYAN),
            (Some(other), None) => (Some(other.to_owned()), colour),
            (_, Some(reason)) => (Some(format!("REJECTED: {reason}")), colour),
            (None, None) if colour == RED => (Some("from the sample API".into()), colour),
            (None, None) => (None, colour),
        }
    }
}

impl Visit for LoggedRequest {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with further fields.
    fn request(status: &str, more: &[(&'static str, &str)]) -> LoggedRequest {
        let fields = [
            ("time", "2026-11-18T04:29:32.379368Z"),
            ("status", status),
            ("method", "GET"),
            ("path", "/o/client/register"),
            ("client", "127.0.0.1"),
        ];
        let fields = fields.iter().chain(more);
        LoggedRequest(
            fields
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn a_rejection_and_a_replay_are_named_at_the_end_of_the_line() {
        assert_eq!(
            request("200", &[]).line(false),
            "04:29:32 200 GET  /o/client/register  client 127.0.0.1"
        );
        let limited = [
            ("limit", "device"),
            ("wait_ms", "957"),
            ("reason", "rate-limited"),
        ];
        let rejected = request("429", &limited);
        assert_eq!(
            rejected.line(false),
            "04:29:32 429 GET  /o/client/register  client 127.0.0.1  <- REJECTED by the limit 'device', retry in 957 ms"
        );
        assert!(rejected.line(true).contains("\u{1b}[31m429"));
        let replayed = request("200", &[("idempotency", "replayed")]).line(false);
        assert!(replayed.ends_with("<- REPLAYED, not executed again"));
        let reused = request("422", &[("reason", "idempotency-key-reused")]).line(false);
        assert!(reused.ends_with("<- REJECTED: idempotency-key-reused"));
    }
}
