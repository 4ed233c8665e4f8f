//! Format of the log of the demo: a short line per request, on which a rejection or a replay is easy to notice.
//!
//! The access log of the gateway has about twenty fields per line. The demo shows the few that explain the outcome.

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

/// Fields of an access log event that explain the outcome of a request.
#[derive(Debug, Default)]
struct LoggedRequest {
    time: String,
    status: String,
    method: String,
    path: String,
    client: String,
    limit: Option<String>,
    wait_ms: Option<String>,
    idempotency: Option<String>,
    reason: Option<String>,
}

impl LoggedRequest {
    /// Returns the line of the log, with terminal colours if `colour` is set.
    fn line(&self, colour: bool) -> String {
        let (outcome, code) = self.outcome();
        // The time of day, without the date and the microseconds.
        let time = self.time.get(11..19).unwrap_or(&self.time);
        // A malformed request has no client.
        let client = match self.client.as_str() {
            "" => String::new(),
            client => format!("  client {client}"),
        };
        let request = format!("{} {:4} {}{client}", self.status, self.method, self.path);
        let outcome = outcome.map_or_else(String::new, |outcome| format!("  <- {outcome}"));
        if colour {
            format!("{time} \u{1b}[{code}m{request}{outcome}\u{1b}[0m")
        } else {
            format!("{time} {request}{outcome}")
        }
    }

    fn outcome(&self) -> (Option<String>, &'static str) {
        if let Some(limit) = &self.limit {
            let wait = self.wait_ms.as_deref().unwrap_or("0");
            let outcome = format!("REJECTED by the limit '{limit}', retry in {wait} ms");
            return (Some(outcome), RED);
        }
        let colour = if self.status.starts_with(['4', '5']) {
            RED
        } else {
            GREEN
        };
        match (self.idempotency.as_deref(), &self.reason) {
            (Some("replayed"), _) => (Some("REPLAYED, not executed again".into()), CYAN),
            (Some(other), None) => (Some(other.to_owned()), colour),
            (_, Some(reason)) => (Some(format!("REJECTED: {reason}")), colour),
            (None, None) if colour == RED => (Some("from the sample API".into()), colour),
            (None, None) => (None, colour),
        }
    }

    fn set(&mut self, field: &Field, value: String) {
        match field.name() {
            "time" => self.time = value,
            "status" => self.status = value,
            "method" => self.method = value,
            "path" => self.path = value,
            "client" => self.client = value,
            "limit" => self.limit = Some(value),
            "wait_ms" => self.wait_ms = Some(value),
            "idempotency" => self.idempotency = Some(value),
            "reason" => self.reason = Some(value),
            _ => {}
        }
    }
}

impl Visit for LoggedRequest {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> LoggedRequest {
        LoggedRequest {
            time: "2026-11-18T04:29:32.379368Z".into(),
            status: "200".into(),
            method: "GET".into(),
            path: "/o/client/register".into(),
            client: "127.0.0.1".into(),
            ..LoggedRequest::default()
        }
    }

    #[test]
    fn a_rejection_and_a_replay_are_named_at_the_end_of_the_line() {
        let plain = request();
        assert_eq!(
            plain.line(false),
            "04:29:32 200 GET  /o/client/register  client 127.0.0.1"
        );
        let rejected = LoggedRequest {
            status: "429".into(),
            limit: Some("device".into()),
            wait_ms: Some("957".into()),
            reason: Some("rate-limited".into()),
            ..request()
        };
        assert_eq!(
            rejected.line(false),
            "04:29:32 429 GET  /o/client/register  client 127.0.0.1  <- REJECTED by the limit 'device', retry in 957 ms"
        );
        assert!(rejected.line(true).contains("\u{1b}[31m429"));
        let replayed = LoggedRequest {
            idempotency: Some("replayed".into()),
            ..request()
        };
        assert!(
            replayed
                .line(false)
                .ends_with("<- REPLAYED, not executed again")
        );
        let reused = LoggedRequest {
            status: "422".into(),
            reason: Some("idempotency-key-reused".into()),
            ..request()
        };
        assert!(
            reused
                .line(false)
                .ends_with("<- REJECTED: idempotency-key-reused")
        );
    }
}
