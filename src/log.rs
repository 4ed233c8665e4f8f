//! Log output: writes structured events to standard error, one line per event.
//!
//! A queue passes the log lines to a writer thread, so a slow terminal or disk never delays a request. If the queue is
//! full, new lines are dropped. `RUST_LOG` sets the filter. Access log lines have the target `tidegate::access`.

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Deserialize;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Log lines and access log.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogSettings {
    /// Format of log lines.
    #[schemars(extend("default" = "text"))]
    pub(crate) format: LogFormat,
    /// Whether requests are written to the access log. The key `access_log` of a route overrides this.
    #[schemars(extend("default" = true))]
    pub(crate) access: bool,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// One line of plain text per message.
    Text,
    /// One JSON object per message, on one line.
    Json,
}

/// Maximum number of log lines in the queue. Further lines are dropped.
const QUEUE_LINES: usize = 65_536;

/// The log filter if `RUST_LOG` is not set. The storage engine of the disk store (`fjall`, `lsm_tree`) logs warnings
/// and errors. Its batch and journal modules log nothing, because on a full disk they would log every failed write. The
/// Redis client logs nothing, because it would log every failure of Redis. Instead, the gateway itself logs once that
/// the store has failed.
const DEFAULT_FILTER: &str = "info,fjall=warn,fjall::batch=off,fjall::journal=off,fjall::journal::batch_reader=warn,\
                     lsm_tree=warn,redis=off";

/// Starts logging. Keep the returned guard until the process exits: dropping it writes the lines that are still queued
/// and stops the writer thread.
pub(crate) fn start(settings: LogSettings) -> WorkerGuard {
    let (writer, guard): (NonBlocking, _) = NonBlockingBuilder::default()
        .buffered_lines_limit(QUEUE_LINES)
        .lossy(true)
        .finish(io::stderr());
    let chosen = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let filter = match chosen.trim() {
        "" => EnvFilter::new(DEFAULT_FILTER),
        chosen => EnvFilter::new(chosen),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    let started = match settings.format {
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
        LogFormat::Text => builder
            .with_ansi(io::stderr().is_terminal())
            .finish()
            .try_init(),
    };
    // An error is ignored: it means that a subscriber is already set, which happens only in tests.
    let _ = started;
    guard
}
