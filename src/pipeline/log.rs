//! Log output: structured events on standard error or in a file, one line per event.
//!
//! A queue passes the lines to a writer thread, so a slow terminal or disk never delays a request. If the queue is full,
//! new lines are dropped and counted.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use thiserror::Error;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::fmt::{self, FormatEvent};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::config::{LogFormat, LogLevel, LogSettings};

/// Target of access log lines, whose level is `info`.
pub(crate) const ACCESS_TARGET: &str = "tidegate::access";

/// Maximum number of lines in the queue.
const QUEUE_LINES: usize = 65_536;

/// Libraries log errors only, because a client could otherwise cause any number of lines: h2 warns about each PING
/// acknowledgement that it did not expect. The storage engine (`fjall`, `lsm_tree`) also logs warnings. Its batch and
/// journal modules would log every failed write on a full disk, and the Redis client every failure of Redis; the gateway
/// logs once instead that the store has failed.
const LIBRARY_FILTER: &str = "error,fjall=warn,fjall::batch=off,fjall::journal=off,fjall::journal::batch_reader=warn,\
                     lsm_tree=warn,redis=off";

static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    output: Arc<Mutex<Output>>,
    writer: NonBlocking,
    layer: reload::Handle<LogLayer, Registry>,
    settings: Mutex<LogSettings>,
}

type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;

type Output = Box<dyn Write + Send>;

struct OutputWriter(Arc<Mutex<Output>>);

/// Changed settings, whose file is open.
pub(crate) struct PreparedLog {
    settings: LogSettings,
    output: Output,
}

#[derive(Debug, Error)]
#[error("cannot open the file of [log], {}: {source}; check the path and its permissions", path.display())]
pub(crate) struct LogFileError {
    path: PathBuf,
    source: io::Error,
}

pub(crate) fn dropped_lines() -> u64 {
    let dropped = (LOG.get()).map_or(0, |log| log.writer.error_counter().dropped_lines());
    u64::try_from(dropped).unwrap_or(u64::MAX)
}

/// Starts logging. Dropping the returned guard writes the lines that are still queued, and stops the writer thread.
pub(crate) fn start(settings: LogSettings) -> Result<WorkerGuard, LogFileError> {
    start_with(settings, Format::default())
}

/// Starts logging like [`start`], with `text` as the format of lines that are not JSON.
pub(crate) fn start_with<F>(settings: LogSettings, text: F) -> Result<WorkerGuard, LogFileError>
where
    F: FormatEvent<Registry, DefaultFields> + Send + Sync + 'static,
{
    let output = Arc::new(Mutex::new(open(&settings)?));
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(QUEUE_LINES)
        .lossy(true)
        .finish(OutputWriter(Arc::clone(&output)));
    let (layer, handle) = reload::Layer::new(layer(&settings, text, writer.clone()));
    // Errors are ignored: they mean that the log was already started, which happens only in tests.
    let _ = Registry::default().with(layer).try_init();
    let _ = LOG.set(Log {
        output,
        writer,
        layer: handle,
        settings: Mutex::new(settings),
    });
    Ok(guard)
}

fn layer<F>(settings: &LogSettings, text: F, writer: NonBlocking) -> LogLayer
where
    F: FormatEvent<Registry, DefaultFields> + Send + Sync + 'static,
{
    let chosen = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let filter = filter(settings.level, &chosen);
    let lines = fmt::layer().with_writer(writer);
    match settings.format {
        LogFormat::Json => filter.and_then(lines.json().flatten_event(true)).boxed(),
        LogFormat::Text => {
            let is_coloured = settings.file().is_none() && io::stderr().is_terminal();
            let lines = lines.with_ansi(is_coloured).event_format(text);
            filter.and_then(lines).boxed()
        }
    }
}

pub(crate) fn prepare(settings: &LogSettings) -> Result<PreparedLog, LogFileError> {
    Ok(PreparedLog {
        output: open(settings)?,
        settings: settings.clone(),
    })
}

/// Opens the file of the log again, because it can have been renamed.
pub(crate) fn reopen() {
    let settings = LOG.get().map(|log| log.settings.lock().clone());
    match settings.as_ref().map(prepare) {
        Some(Ok(prepared)) => prepared.apply(),
        Some(Err(error)) => tracing::error!("{error}"),
        None => {}
    }
}

impl PreparedLog {
    pub(crate) fn apply(self) {
        let Some(log) = LOG.get() else { return };
        let mut settings = log.settings.lock();
        *log.output.lock() = self.output;
        if *settings != self.settings {
            let layer = layer(&self.settings, Format::default(), log.writer.clone());
            // An error means that the subscriber is gone, which happens only in tests.
            let _ = log.layer.reload(layer);
            *settings = self.settings;
        }
    }
}

fn open(settings: &LogSettings) -> Result<Output, LogFileError> {
    let Some(path) = settings.file() else {
        return Ok(Box::new(io::stderr()));
    };
    let mut options = File::options();
    // Lines contain addresses of clients.
    let options = options.create(true).append(true).mode(0o640);
    match options.open(path) {
        Ok(file) => Ok(Box::new(file)),
        Err(source) => Err(LogFileError {
            path: path.to_owned(),
            source,
        }),
    }
}

impl Write for OutputWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `chosen` is the value of `RUST_LOG`, which overrides the level unless it is empty. A level without a target applies to
/// the gateway only, except for `off`. A target overrides that of [`LIBRARY_FILTER`].
fn filter(level: LogLevel, chosen: &str) -> EnvFilter {
    let chosen = match chosen.trim() {
        "" => level.name(),
        chosen => chosen,
    };
    let mut filter = LIBRARY_FILTER.to_owned();
    let directives = chosen.split(',').map(str::trim);
    for directive in directives.filter(|directive| !directive.is_empty()) {
        filter += match directive.parse::<LevelFilter>() {
            Ok(LevelFilter::OFF) | Err(_) => ",",
            Ok(_) => ",tidegate=",
        };
        filter += directive;
    }
    EnvFilter::new(filter)
}

#[cfg(test)]
mod tests {
    use tracing::{Level, enabled};

    use super::*;

    #[test]
    fn the_level_limits_the_lines_unless_rust_log_is_set() {
        for (level, most_verbose) in [
            (LogLevel::Info, LevelFilter::INFO),
            (LogLevel::Debug, LevelFilter::DEBUG),
            (LogLevel::Trace, LevelFilter::TRACE),
        ] {
            let found = filter(level, " ").max_level_hint();
            assert_eq!(found, Some(most_verbose), "{level:?}");
        }
        // The storage engine logs warnings at every level.
        let error = filter(LogLevel::Error, "");
        assert_eq!(error.max_level_hint(), Some(LevelFilter::WARN));
        assert!(error.to_string().contains("error"), "{error}");
        let chosen = filter(LogLevel::Error, "debug");
        assert_eq!(chosen.max_level_hint(), Some(LevelFilter::DEBUG));
    }

    #[test]
    fn libraries_log_errors_only_unless_rust_log_names_them() {
        // Each row: `RUST_LOG`, and which of these are logged: a debug line of the gateway, its access log, a warning and
        // a debug line of h2, an error of rustls, an error of Redis.
        for (chosen, expected) in [
            ("", "access rustls"),
            ("info", "access rustls"),
            ("TRACE", "debug access rustls"),
            ("debug, tidegate::access=off,", "debug rustls"),
            ("error", "rustls"),
            ("off", ""),
            ("off,tidegate::access=info", "access"),
            ("info,h2=warn", "access h2_warn rustls"),
            ("h2=debug", "h2_warn h2_debug rustls"),
            ("info,redis=error", "access rustls redis"),
        ] {
            let subscriber = Registry::default().with(filter(LogLevel::Info, chosen));
            let logged = tracing::subscriber::with_default(subscriber, || {
                [
                    ("debug", enabled!(target: "tidegate::admin", Level::DEBUG)),
                    ("access", enabled!(target: ACCESS_TARGET, Level::INFO)),
                    ("h2_warn", enabled!(target: "h2::proto", Level::WARN)),
                    ("h2_debug", enabled!(target: "h2::proto", Level::DEBUG)),
                    ("rustls", enabled!(target: "rustls::server", Level::ERROR)),
                    ("redis", enabled!(target: "redis::client", Level::ERROR)),
                ]
            });
            let logged = logged.into_iter().filter(|(_, is_logged)| *is_logged);
            let names: Vec<_> = logged.map(|(name, _)| name).collect();
            assert_eq!(names.join(" "), expected, "{chosen}");
        }
    }
}
