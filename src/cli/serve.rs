//! `tidegate serve`: runs the gateway until SIGTERM or SIGINT.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::listener::{Admin, AdminSources};
use crate::clock::Clock;
use crate::config::{self, Environment, Loaded, Overrides, Policy};
use crate::gateway::{Gateway, ListenError, Stop};
use crate::log;
use crate::log::LogFormat;
use crate::pipeline::Shared;

/// Run the gateway from a configuration file or for one upstream URL.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration file
    #[arg(long, required_unless_present = "upstream")]
    config: Option<PathBuf>,
    /// Address to listen on instead of those in the configuration; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<SocketAddr>,
    /// Server to forward to instead of those in the configuration; without --config, each client is limited to 1
    /// request per second with a burst of 3
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Format of log lines
    #[arg(long, value_enum)]
    log_format: Option<LogFormatArg>,
}

/// Value of `--log-format`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LogFormatArg {
    Text,
    Json,
}

impl From<LogFormatArg> for LogFormat {
    fn from(format: LogFormatArg) -> Self {
        match format {
            LogFormatArg::Text => Self::Text,
            LogFormatArg::Json => Self::Json,
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let env = Environment::of_process();
    let overrides = Overrides {
        listen: args.listen.clone(),
        upstream: args.upstream.clone(),
    };
    let loaded = match (&args.config, &args.upstream) {
        (Some(path), _) => config::load(path, &env, &overrides),
        (None, Some(url)) => config::policy_for_upstream(url, &env, &overrides),
        (None, None) => unreachable!("clap requires one of them"),
    };
    let Loaded { policy, warnings } = match loaded {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
    };
    for warning in &warnings {
        eprintln!("{warning}");
    }
    let _log = log::start(args.log_format.map_or(policy.log.format, Into::into));
    let running = RunningGateway::start(policy)?;
    running.log_addresses();
    running.run_until_signal()?;
    Ok(ExitCode::SUCCESS)
}

/// Running gateway with its admin listener.
pub(super) struct RunningGateway {
    pub(super) gateway: Gateway,
    pub(super) admin: Option<Admin>,
}

impl RunningGateway {
    pub(super) fn start(policy: Policy) -> anyhow::Result<Self> {
        #[cfg(feature = "failpoints")]
        crate::failpoint::arm();
        install_tls_provider();
        raise_file_limit();
        let shared = Shared::open(Arc::new(policy), Clock::real())?;
        // The admin listener is bound first, because the gateway accepts connections as soon as it is started.
        let bound = match &shared.policy.admin {
            None => None,
            Some(settings) => Some((bind_admin(settings.listen)?, settings)),
        };
        let gateway = Gateway::start(shared.clone())?;
        let admin = match bound {
            None => None,
            Some((socket, settings)) => {
                let sources = AdminSources::of(&shared, gateway.stopper());
                Some(Admin::start(socket, settings, sources)?)
            }
        };
        Ok(Self { gateway, admin })
    }

    /// Logs the address of each listener.
    fn log_addresses(&self) {
        let scheme = if self.gateway.shared().policy.server.tls.is_some() {
            "https"
        } else {
            "http"
        };
        for address in self.gateway.addresses() {
            tracing::info!(address = %format_args!("{scheme}://{address}"), "listening");
        }
        if let Some(admin) = &self.admin {
            tracing::info!(address = %format_args!("http://{}", admin.address()), "admin listening");
        }
    }

    /// Serves until SIGTERM or SIGINT, then drains. A second signal aborts the drain.
    pub(super) fn run_until_signal(self) -> anyhow::Result<()> {
        let stop = self.gateway.stopper();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot listen for signals")?;
        let _entered = runtime.enter();
        let mut signals = Signals::new().context("cannot listen for signals")?;
        let watching = stop.clone();
        let watcher = std::thread::Builder::new()
            .name("tidegate-signals".into())
            .spawn(move || runtime.block_on(handle_signals(&mut signals, &watching)))
            .context("cannot listen for signals")?;
        let redis = self.gateway.shared().redis.clone();
        self.gateway.join()?;
        // The admin listener has a reference too and runs until the process ends, so the connection is closed here.
        if let Some(redis) = redis {
            redis.close();
        }
        // The thread may wait for a second signal, so it is not joined. It ends with the process.
        drop(watcher);
        tracing::info!("gateway stopped");
        Ok(())
    }
}

fn bind_admin(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .map_err(|source| ListenError { address, source })
        .context("cannot start the admin listener")
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn handle_signals(signals: &mut Signals, stop: &Stop) {
    signals.next().await;
    tracing::info!("draining, a second signal aborts requests in flight");
    stop.drain();
    signals.next().await;
    tracing::warn!("second signal received, aborting requests in flight");
    stop.halt();
}

/// Installs the cryptography provider of rustls, once per process.
fn install_tls_provider() {
    // `Err` means that a provider is already installed.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Raises the soft limit on open files to the hard limit. Each connection uses a file descriptor, and the usual soft
/// limit is far below `max_connections`.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise limit on open files");
    }
}
