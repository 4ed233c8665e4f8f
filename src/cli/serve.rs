//! `tidegate serve`: runs a configuration until it is told to stop.

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

/// Run a configuration, or just stand in front of one upstream.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration file
    #[arg(long, required_unless_present = "upstream")]
    config: Option<PathBuf>,
    /// Listen here instead; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<SocketAddr>,
    /// Forward to this server instead; without --config every client gets 1 request a second, burst 3
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// How log lines are written
    #[arg(long, value_enum)]
    log_format: Option<Format>,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Format {
    Text,
    Json,
}

impl From<Format> for LogFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
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
        (None, None) => unreachable!("clap asks for one of them"),
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
    let running = Running::start(policy)?;
    running.announce();
    running.until_signalled()?;
    Ok(ExitCode::SUCCESS)
}

/// A gateway and its admin listener.
pub(super) struct Running {
    pub(super) gateway: Gateway,
    pub(super) admin: Option<Admin>,
}

impl Running {
    pub(super) fn start(policy: Policy) -> anyhow::Result<Self> {
        #[cfg(feature = "failpoints")]
        crate::failpoint::arm();
        install_tls_provider();
        raise_file_limit();
        let shared = Shared::open(Arc::new(policy), Clock::real())?;
        // Before the gateway: once that is started, it takes traffic.
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

    /// One line for each address, where whoever started it will look.
    fn announce(&self) {
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

    /// Serves until SIGTERM or SIGINT, then drains; a second one ends it at once.
    pub(super) fn until_signalled(self) -> anyhow::Result<()> {
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
            .spawn(move || runtime.block_on(watch(&mut signals, &watching)))
            .context("cannot listen for signals")?;
        let redis = self.gateway.shared().redis.clone();
        self.gateway.join()?;
        // The admin listener has one, too, and goes on to the end of the process.
        if let Some(redis) = redis {
            redis.close();
        }
        // The watcher ends with the process; only its first half is waited for.
        drop(watcher);
        tracing::info!("stopped");
        Ok(())
    }
}

fn bind_admin(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .map_err(|source| ListenError { address, source })
        .context("the admin listener")
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

async fn watch(signals: &mut Signals, stop: &Stop) {
    signals.next().await;
    tracing::info!("draining; a second signal ends it at once");
    stop.drain();
    signals.next().await;
    tracing::warn!("ended at once");
    stop.halt();
}

/// rustls needs to be told once which cryptography it uses.
fn install_tls_provider() {
    // Err means that it has been told before.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Every connection takes a file descriptor, and the usual soft limit is far below what the gateway
/// may be asked to hold.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit on open files cannot be raised");
    }
}
