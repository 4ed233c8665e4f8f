//! `[log]`.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Deserialize;

/// Log lines and access log.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogSettings {
    /// Format of log lines.
    #[schemars(extend("default" = "text"))]
    pub(crate) format: LogFormat,
    /// Least severe level that is logged. Access log lines have the level `info`. The environment variable `RUST_LOG`
    /// overrides this key. Libraries log errors only, unless `RUST_LOG` names them, as in `info,h2=debug`.
    #[schemars(extend("default" = "info"))]
    pub(crate) level: LogLevel,
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

/// Level of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// Errors.
    Error,
    /// Warnings and errors.
    Warn,
    /// Also starts, stops, changes of state, and the access log.
    Info,
    /// Also details for the search for an error.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
