//! Reload: loads the configuration again and puts it in force. A configuration with errors changes nothing.

use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;
use thiserror::Error;

use super::live::Live;
use super::{Gateway, Stop};
use crate::config::{ConfigErrors, ConfigProblem, Loaded, Severity};
use crate::metrics::Count;
use crate::pipeline::log;

/// Loads the file and flags that the gateway was started with.
type Load = Box<dyn Fn() -> Result<Loaded, ConfigErrors> + Send + Sync>;

/// It does not keep the gateway alive.
pub(crate) struct Reloader {
    live: Weak<Live>,
    stop: Stop,
    load: Load,
    status: Mutex<ConfigStatus>,
    /// A reload that is requested meanwhile follows, because the file can have changed again.
    reloading: Mutex<()>,
    pub(crate) applied: Count,
    pub(crate) rejected: Count,
}

#[derive(Clone, Debug)]
pub(crate) struct ConfigStatus {
    pub(crate) source: String,
    /// SHA-256 of the file, in hexadecimal.
    pub(crate) hash: String,
    pub(crate) loaded_at: SystemTime,
    /// Keys whose new values need a restart.
    pub(crate) pending_restart: Vec<&'static str>,
    /// The error is `None` if the reload succeeded.
    pub(crate) last_reload: Option<(SystemTime, Option<String>)>,
}

#[derive(Debug, Error)]
pub(crate) enum ReloadError {
    #[error("the gateway is shutting down")]
    Draining,
    #[error("{0}")]
    Invalid(#[from] ConfigErrors),
    #[error("{0}")]
    Log(#[from] log::LogFileError),
}

impl Reloader {
    /// `hash` is that of the content of the file `source`.
    pub(crate) fn new(
        gateway: &Gateway,
        source: String,
        hash: String,
        load: impl Fn() -> Result<Loaded, ConfigErrors> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            live: Arc::downgrade(&gateway.live),
            stop: gateway.stopper(),
            load: Box::new(load),
            status: Mutex::new(ConfigStatus {
                source,
                hash,
                loaded_at: SystemTime::now(),
                pending_restart: Vec::new(),
                last_reload: None,
            }),
            reloading: Mutex::default(),
            applied: Count::default(),
            rejected: Count::default(),
        })
    }

    pub(crate) fn status(&self) -> ConfigStatus {
        self.status.lock().clone()
    }

    /// Blocks while the files are read.
    pub(crate) fn reload(&self, requested_by: &'static str) -> Result<ConfigStatus, ReloadError> {
        let _guard = self.reloading.lock();
        let applied = self.apply();
        if applied.is_err() {
            log::reopen();
        }
        let now = SystemTime::now();
        let mut status = self.status.lock();
        match &applied {
            Ok((hash, pending)) => {
                self.applied.inc();
                status.hash.clone_from(hash);
                status.loaded_at = now;
                status.pending_restart.clone_from(pending);
                let source = &*status.source;
                tracing::info!(requested_by, source, hash, "configuration reloaded");
                if !pending.is_empty() {
                    let keys = pending.join(", ");
                    tracing::warn!(keys, "new values of these keys need a restart");
                }
            }
            Err(error) => {
                self.rejected.inc();
                tracing::error!(
                    requested_by,
                    "configuration not reloaded, the previous one stays in force"
                );
                match error {
                    ReloadError::Invalid(errors) => log_problems(errors.problems()),
                    other => tracing::error!("{other}"),
                }
            }
        }
        let error = applied.as_ref().err().map(ToString::to_string);
        status.last_reload = Some((now, error));
        applied.map(|_| status.clone())
    }

    fn apply(&self) -> Result<(String, Vec<&'static str>), ReloadError> {
        let live = self.live.upgrade().filter(|_| !self.stop.is_draining());
        let live = live.ok_or(ReloadError::Draining)?;
        let loaded = (self.load)()?;
        log_problems(&loaded.warnings);
        let log = log::prepare(&loaded.policy.log)?;
        let pending = live.apply(loaded.policy);
        log.apply();
        Ok((loaded.hash, pending))
    }
}

pub(crate) fn log_problems(problems: &[ConfigProblem]) {
    for problem in problems {
        let location = match problem.line {
            0 => problem.file.clone(),
            line => format!("{}:{line}:{}", problem.file, problem.column),
        };
        let (title, help) = (&problem.title, &problem.help);
        match problem.severity {
            Severity::Error => tracing::error!(%location, help, "{title}"),
            Severity::Warning => tracing::warn!(%location, help, "{title}"),
        }
    }
}
