//! Health of Redis: a monitor probes it every second, and at once after a failed call.
//!
//! Only the monitor closes the [circuit breakers](StoreBreaker). Before it does, it checks that Redis accepts writes
//! and evicts no keys, and learns which run of the server this is, the secret of the fleet and the format of its
//! records. It runs on its own thread, so slow requests do not delay a probe.

mod breaker;
mod probe;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::sleep;

use self::probe::{FORMAT, Probe, ServerInfo};
use super::client::ClientState;
use super::connection::Connection;
use super::error::{CallError, is_lost};
use crate::store::Part;

pub(super) use self::breaker::StoreBreaker;
pub(crate) use self::probe::Unfit;

/// Interval between two probes while all parts of the store work.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval after the first failed probe, ±20 %. It doubles with each further one.
const RETRY_FIRST: Duration = Duration::from_millis(50);

/// Upper bound of the interval after a failed probe.
const RETRY_LONGEST: Duration = Duration::from_millis(500);

/// Pause before a requested probe, so that requests cannot cause more than 50 probes per second.
const REQUESTED_PAUSE: Duration = Duration::from_millis(20);

/// Probes Redis, and opens and closes the circuit breakers.
pub(super) struct Monitor {
    state: Arc<ClientState>,
    /// Whether Redis stores idempotency keys.
    keyed: bool,
    connection: Option<Connection>,
    /// Run IDs of the servers at the last probe; empty before the first one.
    runs: Vec<Arc<str>>,
}

impl Monitor {
    pub(super) fn new(state: Arc<ClientState>, keyed: bool) -> Self {
        Self {
            state,
            keyed,
            connection: None,
            runs: Vec::new(),
        }
    }

    /// Probes Redis until it is dropped. Sends the first result to `first`.
    pub(super) async fn watch(mut self, first: SyncSender<Result<(), Unfit>>) {
        let mut first = Some(first);
        let mut retry = RETRY_FIRST;
        loop {
            let works = self.check().await;
            if let Some(first) = first.take() {
                // The receiver stops waiting after 2 s.
                let _ = first.try_send(works.clone().map(|_| ()));
            }
            let next = if matches!(works, Ok(true)) {
                retry = RETRY_FIRST;
                INTERVAL
            } else {
                let next = retry.mul_f64(0.8 + 0.4 * fastrand::f64());
                retry = (retry * 2).min(RETRY_LONGEST);
                next
            };
            tokio::select! {
                () = sleep(next) => {}
                () = self.state.probe_requested.notified() => sleep(REQUESTED_PAUSE).await,
            }
        }
    }

    /// Probes Redis once, and sets the breakers. Returns whether all parts of the store work, or an error if the
    /// gateway cannot start with this Redis.
    async fn check(&mut self) -> Result<bool, Unfit> {
        let state = Arc::clone(&self.state);
        let (limits, records) = (state.breaker(Part::Limits), state.breaker(Part::Records));
        let probe = match self.probe().await {
            Ok(probe) => probe,
            Err(error) => {
                limits.open(&error);
                records.open(&error);
                return Ok(false);
            }
        };
        let servers = &probe.servers;
        if let Some(unfit) = servers.iter().find_map(|it| it.check().err()) {
            limits.open(&unfit);
            records.open(&unfit);
            return match unfit {
                // A failover may be in progress.
                Unfit::Replica => Ok(false),
                _ => Err(unfit),
            };
        }
        self.recognise(&probe);

        let limits_work = match &probe.write {
            Ok(took) if *took <= state.timeout(Part::Limits) => limits.close(),
            Ok(took) => {
                limits.open(&CallError::Timeout(*took));
                false
            }
            Err(error) => {
                limits.open(error);
                false
            }
        };
        let unfit = servers.iter().find_map(|it| it.check_for_records().err());
        let records_work = match (unfit, &probe.write) {
            (Some(unfit), _) if self.keyed => {
                records.open(&unfit);
                return Err(unfit);
            }
            _ if probe.secret.is_none() => {
                records.open(&"it keeps no secret of the fleet, and takes none");
                false
            }
            _ if self.keyed && &*probe.format != FORMAT => {
                // The gateway starts without its records: the limits do not depend on them.
                records.open_permanently(&Unfit::Format(Arc::clone(&probe.format)));
                false
            }
            // A full Redis still serves replays. One that accepts no writes cannot store claims.
            (_, Ok(_) | Err(CallError::Full(_))) => records.close(),
            (_, Err(error)) => {
                records.open(error);
                false
            }
        };
        Ok(limits_work && records_work)
    }

    /// Begins an epoch if a server was restarted or replaced, and adopts the secret of the fleet.
    fn recognise(&mut self, probe: &Probe) {
        let run_id = |server: &ServerInfo| Arc::clone(&server.run_id);
        let mut runs: Vec<_> = probe.servers.iter().map(run_id).collect();
        runs.sort();
        let others = runs.iter().filter(|run| !self.runs.contains(run));
        let others: Vec<_> = others.collect();
        if self.runs.is_empty() {
            self.log_first_probe(probe);
        } else if !others.is_empty() {
            tracing::warn!(
                runs = ?others,
                "Redis was restarted, or another one took its place: what it had not kept of limits and \
                 idempotency keys is gone, and a request whose key is gone is carried out again"
            );
            self.state.begin_epoch();
        }
        self.runs = runs;
        if let Some(secret) = probe.secret
            && secret.as_bytes() != self.state.secret().as_bytes()
        {
            self.state.adopt(secret);
        }
    }

    /// Logs a Redis that is reached for the first time, with warnings about its configuration.
    fn log_first_probe(&self, probe: &Probe) {
        let settings = &self.state.settings;
        let (nodes, servers) = (&settings.nodes, &probe.servers);
        if let Some(server) = servers.first() {
            tracing::info!(%nodes, servers = servers.len(), "the store is Redis, {server}");
        }
        if !self.keyed && servers.iter().any(ServerInfo::evicts) {
            tracing::warn!(
                "Redis may drop buckets when it is full, and their clients get a fresh burst then: set its \
                 `maxmemory-policy` to `noeviction`"
            );
        }
        if self.keyed && !servers.iter().all(ServerInfo::is_durable) {
            tracing::warn!(
                "Redis may lose idempotency keys when it is killed, and their requests be carried out again: \
                 set its `appendonly` to `yes` and its `appendfsync` to `always` where that must not be"
            );
        }
        if self.keyed && probe.denies_publish {
            let (user, prefix) = (settings.login().unwrap_or("default"), &settings.prefix);
            tracing::warn!(
                "Redis user `{user}` may not publish on `{prefix}:*`: duplicates that wait on another gateway poll \
                 every 250 ms; to notify them, run `ACL SETUSER {user} &{prefix}:* +@pubsub`"
            );
        }
    }

    /// Probes Redis on the connection of the last probe, and on a new one if that is lost: servers close connections
    /// for many reasons.
    async fn probe(&mut self) -> Result<Probe, CallError> {
        let is_new = self.runs.is_empty();
        if let Some(mut connection) = self.connection.take() {
            match Probe::run(&self.state, &mut connection, is_new).await {
                Err(error) if is_lost(&error) && !error.is_timeout() => {}
                Err(error) => return Err(error.into()),
                Ok(probe) => {
                    self.connection = Some(connection);
                    return Ok(probe);
                }
            }
        }
        let mut connection = self.state.endpoint.connect().await?;
        let probe = Probe::run(&self.state, &mut connection, is_new).await?;
        self.connection = Some(connection);
        Ok(probe)
    }
}
