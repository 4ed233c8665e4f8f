//! `[log]`.

use std::path::Path;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Deserialize;

use super::super::scalar::FilePath;

/// Log lines and access log.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogSettings {
    /// Format of log lines.
    #[schemars(extend("default" = "text"))]
    pub(crate) format: LogFormat,
    /// Least severe level that is logged. Access log lines have the level `info`. The environment variable `RUST_LOG`
    /// overrides this key. Libraries log errors only, unless `RUST_LOG` names them, as in `info,h2=debug`.
    #[schemars(extend("default" = "info"))]
    pub(crate) level: LogLevel,
    /// File to which lines are appended, instead of standard error. A reload opens it again, so that it can be rotated.
    #[schemars(extend("examples" = ["/var/log/tidegate/tidegate.log"]))]
    pub(in crate::config) file: Option<FilePath>,
    /// Whether requests are written to the access log. The key `access_log` of a route overrides this.
    #[schemars(extend("default" = true))]
    pub(crate) access: bool,
}

impl LogSettings {
    /// Warnings and errors as text on standard error.
    pub(crate) const WARNINGS: Self = Self {
        format: LogFormat::Text,
        level: LogLevel::Warn,
        file: None,
        access: false,
    };

    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|FilePath(path)| path.as_path())
    }
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
