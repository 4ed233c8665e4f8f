//! The gateway's log: structured, one line an event, on standard error.
//!
//! Lines go through a queue to a thread that writes them, so that a slow terminal or disk never holds a
//! request up. A queue that is full drops lines, and says so when it ends. `RUST_LOG` chooses what is
//! logged; access lines have the target `tidegate::access`.

use std::io::{self, IsTerminal as _};

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text for a terminal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Lines the queue holds.
const QUEUE: usize = 65_536;

/// The filter without `RUST_LOG`. Of the engine below the disk store, it passes warnings and errors, except those
/// of modules that also return their errors: they log each attempt on a full disk, and the store logs the failure
/// once. For the same reason it passes nothing of the Redis client.
const USUAL: &str = "info,fjall=warn,fjall::batch=off,fjall::journal=off,fjall::journal::batch_reader=warn,\
                     lsm_tree=warn,redis=off";

/// Starts logging; what is returned writes the last lines out when dropped.
pub(crate) fn start(format: LogFormat) -> WorkerGuard {
    let (writer, guard): (NonBlocking, _) = NonBlockingBuilder::default()
        .buffered_lines_limit(QUEUE)
        .lossy(true)
        .finish(io::stderr());
    let chosen = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let filter = match chosen.trim() {
        "" => EnvFilter::new(USUAL),
        chosen => EnvFilter::new(chosen),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    let started = match format {
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
        LogFormat::Text => builder
            .with_ansi(io::stderr().is_terminal())
            .finish()
            .try_init(),
    };
    // Only tests start it twice, and the first one serves them all.
    let _ = started;
    guard
}
