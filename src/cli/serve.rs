//! `tidegate serve`: runs the gateway until a signal ends it. SIGUSR1, SIGUSR2 and SIGALRM, whose default action ends a
//! process, are ignored: log rotation that is written for nginx sends SIGUSR1.

mod memory;
mod supervisor;
mod watch;

use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Poll;

use anyhow::{Context as _, bail};
use clap::ValueHint;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::config_file::ConfigFile;
use crate::admin::listener::Admin;
use crate::clock::Clock;
use crate::config::{self, ConfigErrors, Environment, Loaded, LogFormat, Overrides};
use crate::pipeline::{GatewayState, log};
use crate::server::reload::{Reloader, log_problems};
use crate::server::{Gateway, Inherited, ListenError, Stop};

const EXAMPLES: &str = "\
Examples:
  tidegate serve tidegate.toml
  tidegate serve tidegate.toml --listen 0.0.0.0:8080
  tidegate serve --upstream http://127.0.0.1:9000
  tidegate serve --upstream http://127.0.0.1:9000 --limit 10/s --burst 20
  tidegate serve --upstream http://127.0.0.1:9000 --tls-cert gateway.crt --tls-key gateway.key";

const USAGE: &str = "\
Run the gateway in one of these ways:
  tidegate serve FILE               from a configuration file
  tidegate serve --upstream URL     in front of one server, without a file; --limit 10/s limits each client
  tidegate demo                     with a built-in sample API

`tidegate init` writes a configuration to start from.";

/// Run the gateway from a configuration file or for one upstream URL.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// Address to listen on instead of `server.listen` in the configuration; can be repeated
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_listen)]
    listen: Vec<SocketAddr>,
    /// URL of the server to forward to, instead of the servers in FILE. Without FILE, all requests are forwarded to this
    /// server, and no default file is read
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Rate limit of each client, such as 10/s or 100/m; only without FILE. Default: no limit
    #[arg(long, value_name = "RATE", requires = "upstream", conflicts_with_all = ["file", "config"])]
    limit: Option<String>,
    /// Requests above the steady rate of --limit that a client can send at once. Default: the number in --limit, minus 1
    #[arg(long, value_name = "N", requires = "limit")]
    burst: Option<u32>,
    /// PEM file with the TLS certificate chain of the listeners. Replaces `server.tls` in the configuration
    #[arg(long, value_name = "FILE", requires = "tls_key", value_hint = ValueHint::FilePath)]
    tls_cert: Option<String>,
    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert", value_hint = ValueHint::FilePath)]
    tls_key: Option<String>,
    /// Reload the configuration when FILE changes
    #[arg(long, conflicts_with_all = ["limit", "burst"])]
    watch: bool,
    /// Format of log lines, instead of `log.format` in the configuration
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
}

/// Configuration that a gateway can load again.
pub(super) struct ConfigSource {
    /// `None` if the flags are the configuration.
    path: Option<PathBuf>,
    args: Args,
}

impl ConfigSource {
    fn load(&self) -> Result<Loaded, ConfigErrors> {
        let (args, env) = (&self.args, Environment::of_process());
        let overrides = Overrides {
            listen: args.listen.clone(),
            upstream: args.upstream.clone(),
            limit: args.limit.clone(),
            tls: args.tls_cert.clone().zip(args.tls_key.clone()),
            ..Overrides::default()
        };
        let mut loaded = match &self.path {
            None => config::policy_for_upstream(args.burst, &env, &overrides),
            Some(path) => config::load(path, &env, &overrides),
        }?;
        let log = &mut loaded.policy.log;
        log.format = args.log_format.unwrap_or(log.format);
        Ok(loaded)
    }

    fn name(&self) -> String {
        let path = self.path.as_ref();
        path.map_or_else(|| "--upstream".into(), |path| path.display().to_string())
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let source = ConfigSource {
        path: match (args.file.named(), &args.upstream) {
            (None, Some(_)) => None,
            _ => Some(args.file.find(USAGE)?),
        },
        args: args.clone(),
    };
    if args.watch && source.path.is_none() {
        bail!("`--watch` needs a configuration file\n\n{USAGE}");
    }
    let loaded = match source.load() {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let _log = log::start(loaded.policy.log.clone())?;
    log_problems(&loaded.warnings);
    memory::log_worst_case(&loaded.policy);
    let running = RunningGateway::start(loaded, Some(source))?;
    running.log_addresses();
    supervisor::report_ready();
    running.run_until_stopped()?;
    Ok(ExitCode::SUCCESS)
}

pub(super) struct RunningGateway {
    pub(super) gateway: Gateway,
    pub(super) admin: Option<Admin>,
}

impl RunningGateway {
    /// Handles signals from then on. SIGTERM, SIGINT and SIGQUIT start a drain, and a second one aborts the requests in
    /// flight. SIGHUP reloads the configuration from `source`, or has the effect of SIGTERM without a source.
    pub(super) fn start(loaded: Loaded, source: Option<ConfigSource>) -> anyhow::Result<Self> {
        #[cfg(feature = "failpoints")]
        crate::failpoint::arm();
        install_tls_provider();
        raise_file_limit();
        let Loaded { policy, hash, .. } = loaded;
        let inherited = Inherited::from_env().context("cannot use an inherited socket")?;
        let admin = policy.admin.as_ref().map(|admin| admin.listen);
        let configured: Vec<_> = policy.server.listen.iter().copied().chain(admin).collect();
        if let Some(address) = inherited.unused(&configured) {
            bail!(
                "the inherited socket on {address} is for no listener; add the address to `listen` of [server] or \
                 [admin], or remove it from the socket unit"
            );
        }
        let shared = GatewayState::open(Arc::new(policy), Clock::real())?;
        // Bound before the gateway starts: if it fails, no client request has been accepted yet.
        let admin = admin
            .map(|address| bind_admin(address, &inherited))
            .transpose()?;
        // The text of the error contains the cause, which `main` would print again.
        let gateway = Gateway::start_with(shared, &inherited)
            .map_err(|error| anyhow::Error::msg(error.to_string()))?;
        let reloader = match source {
            None => None,
            Some(source) => {
                let path = source.path.clone().filter(|_| source.args.watch);
                let (name, load) = (source.name(), move || source.load());
                let reloader = Reloader::new(&gateway, name, hash, load);
                if let Some(path) = path {
                    watch::start(&path, Arc::clone(&reloader))?;
                }
                Some(reloader)
            }
        };
        let admin = admin
            .map(|socket| Admin::start(socket, &gateway, reloader.clone()))
            .transpose()?;
        watch_signals(reloader, &gateway).context("cannot listen for signals")?;
        Ok(Self { gateway, admin })
    }

    fn log_addresses(&self) {
        let scheme = if self.gateway.shared().policy.server.tls.is_some() {
            "https"
        } else {
            "http"
        };
        for address in self.gateway.addresses() {
            tracing::info!(address = %format_args!("{scheme}://{address}"), "gateway listening");
        }
        if let Some(admin) = &self.admin {
            tracing::info!(address = %format_args!("http://{}", admin.address()), "admin listening");
        }
    }

    /// Waits until a signal has stopped the gateway.
    pub(super) fn run_until_stopped(self) -> anyhow::Result<()> {
        let store = self.gateway.shared().store.clone();
        self.gateway.join()?;
        // Dropping the store would not close it while a request to the admin listener has a reference.
        store.close();
        tracing::info!("shutdown complete, gateway stopped");
        Ok(())
    }
}

fn bind_admin(address: SocketAddr, inherited: &Inherited) -> anyhow::Result<TcpListener> {
    let socket = match inherited.find(address) {
        Some(socket) => socket.try_clone(),
        None => TcpListener::bind(address),
    };
    socket
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
                "cannot listen on {address}: the port is in use; stop the other process, or choose another port with \
                 `listen` in [admin], or --admin of `tidegate demo`"
            ),
            _ => anyhow::Error::msg(ListenError { address, source }.to_string()),
        })
        .context("cannot start the admin listener")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalEffect {
    Shutdown,
    Reload,
}

/// Signals, each with its name and its effect. `None` means that it is ignored.
pub(super) struct Signals(Vec<(Signal, &'static str, Option<SignalEffect>)>);

impl Signals {
    pub(super) fn new(on_hangup: SignalEffect) -> std::io::Result<Self> {
        let shutdown = Some(SignalEffect::Shutdown);
        let kinds = [
            (SignalKind::terminate(), "SIGTERM", shutdown),
            (SignalKind::interrupt(), "SIGINT", shutdown),
            (SignalKind::quit(), "SIGQUIT", shutdown),
            (SignalKind::hangup(), "SIGHUP", Some(on_hangup)),
            (SignalKind::user_defined1(), "SIGUSR1", None),
            (SignalKind::user_defined2(), "SIGUSR2", None),
            (SignalKind::alarm(), "SIGALRM", None),
        ];
        let signals = kinds.map(|(kind, name, effect)| Ok((signal(kind)?, name, effect)));
        signals.into_iter().collect::<Result<_, _>>().map(Self)
    }

    /// Waits for the next signal that is not ignored.
    pub(super) async fn next(&mut self) -> SignalEffect {
        loop {
            let received = poll_fn(|cx| {
                let mut signals = self.0.iter_mut();
                let received = signals.find_map(|(signal, name, effect)| {
                    let is_received = signal.poll_recv(cx).is_ready();
                    is_received.then_some((*name, *effect))
                });
                received.map_or(Poll::Pending, Poll::Ready)
            });
            match received.await {
                (_, Some(effect)) => return effect,
                (name, None) => tracing::warn!(signal = name, "signal ignored"),
            }
        }
    }
}

/// The thread is never joined, because it can wait for a signal. It ends with the process.
fn watch_signals(reloader: Option<Arc<Reloader>>, gateway: &Gateway) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let on_hangup = match reloader {
        Some(_) => SignalEffect::Reload,
        None => SignalEffect::Shutdown,
    };
    let mut signals = {
        let _entered = runtime.enter();
        Signals::new(on_hangup)?
    };
    let (stop, live) = (gateway.stopper(), Arc::downgrade(gateway.live()));
    let draining = stop.clone();
    std::thread::Builder::new()
        .name("tidegate-signals".into())
        .spawn(move || {
            runtime.spawn(supervisor::feed_watchdog(live));
            runtime.spawn(async move {
                draining.drained().await;
                supervisor::report_stopping();
            });
            runtime.block_on(handle_signals(&mut signals, reloader, &stop));
        })?;
    Ok(())
}

async fn handle_signals(signals: &mut Signals, reloader: Option<Arc<Reloader>>, stop: &Stop) {
    let mut is_second = false;
    loop {
        match (signals.next().await, &reloader) {
            (SignalEffect::Reload, Some(reloader)) => {
                let (reloader, stop) = (Arc::clone(reloader), stop.clone());
                // A shutdown does not wait for the files.
                tokio::task::spawn_blocking(move || {
                    supervisor::report_reloading();
                    // The reloader logs an error.
                    let _ = reloader.reload("SIGHUP");
                    if stop.is_draining() {
                        supervisor::report_stopping();
                    } else {
                        supervisor::report_ready();
                    }
                });
            }
            _ if is_second => break,
            _ => {
                tracing::info!(
                    "shutdown signal received, draining: waiting for `drain_delay`, then for requests in flight, at \
                     most `shutdown_grace`. A second signal aborts them"
                );
                is_second = true;
                stop.drain();
            }
        }
    }
    tracing::warn!("second shutdown signal received, aborting requests in flight");
    stop.halt();
}

pub(super) fn install_tls_provider() {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The usual soft limit of 1024 would not suffice for `max_connections`.
pub(super) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(
            %error,
            "cannot raise the limit on open files (RLIMIT_NOFILE), so the gateway can have fewer open connections"
        );
    }
}
