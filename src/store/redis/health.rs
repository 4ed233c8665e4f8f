//! Monitoring of Redis: a probe every second, and within 20 ms after a failed call.
//!
//! Only the monitor closes the [circuit breakers](StoreBreaker), after it has checked that Redis accepts writes and
//! evicts no idempotency records. It has its own thread, so slow requests do not delay a probe.

mod breaker;
mod probe;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::sleep;

use self::probe::{FORMAT, Probe, ServerInfo};
use super::client_state::ClientState;
use super::connection::RedisConnection;
use super::error::{CallError, is_lost};
use crate::request::hash_keys::Secret;
use crate::store::Part;
use crate::store::capacity_use::{Bound, UseSamples};

pub(super) use self::breaker::StoreBreaker;
pub(crate) use self::probe::UnusableServer;

/// Interval of probes while Redis works for both rate limits and idempotency records.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval after the first failed probe, ±20 %. It doubles with each further failed probe.
const RETRY_FIRST: Duration = Duration::from_millis(50);

/// Longest interval after a failed probe.
const RETRY_LONGEST: Duration = Duration::from_millis(500);

/// Pause before a probe after a failed call. So failed calls cause at most 50 probes per second.
const REQUESTED_PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Monitor {
    state: Arc<ClientState>,
    connection: Option<RedisConnection>,
    /// Run IDs of the servers; empty before the first successful probe.
    runs: Vec<Arc<str>>,
    /// Whether a probe has read or written the secret. Before that, Redis cannot have lost it.
    has_seen_secret: bool,
    use_samples: UseSamples,
    /// A reload can make this check necessary.
    has_checked_records: bool,
}

impl Monitor {
    pub(super) fn new(state: Arc<ClientState>) -> Self {
        Self {
            state,
            connection: None,
            runs: Vec::new(),
            has_seen_secret: false,
            use_samples: UseSamples::new(Bound::MaxMemory),
            has_checked_records: false,
        }
    }

    pub(super) async fn run(mut self, first: SyncSender<Result<(), UnusableServer>>) {
        let mut first = Some(first);
        let mut retry = RETRY_FIRST;
        loop {
            let works = self.check().await;
            if let Some(first) = first.take() {
                // A send error is ignored: the receiver stops waiting after 2 s.
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

    /// Returns whether Redis works for both rate limits and idempotency records. Fails if the gateway must not start
    /// with this Redis.
    async fn check(&mut self) -> Result<bool, UnusableServer> {
        let state = Arc::clone(&self.state);
        let (limits, records) = (state.breaker(Part::Limits), state.breaker(Part::Records));
        let checks_persistence = state.is_keyed() && !self.has_checked_records;
        let probe = match self.probe(checks_persistence).await {
            Ok(probe) => probe,
            Err(error) => {
                limits.open(&error);
                records.open(&error);
                return Ok(false);
            }
        };
        let (servers, is_keyed) = (&probe.servers, state.is_keyed());
        if let Some(unusable) = servers.iter().find_map(|it| it.check().err()) {
            limits.open(&unusable);
            records.open(&unusable);
            return match unusable {
                // A replica does not prevent the start of the gateway, because a failover can be in progress.
                UnusableServer::Replica => Ok(false),
                _ => Err(unusable),
            };
        }
        self.update_epoch(&probe);
        if checks_persistence {
            self.has_checked_records = true;
            warn_about_persistence(servers);
        }
        if is_keyed {
            let now = Duration::from_nanos(state.clock.now().as_nanos());
            let fullest = servers.iter().filter_map(ServerInfo::memory_use);
            let fullest =
                fullest.max_by_key(|(used, max)| u128::from(*used) * 1_000 / u128::from(*max));
            *state.memory_use.lock() =
                fullest.map(|(used, max)| self.use_samples.add(now, used, max));
        }

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
        let unusable = servers.iter().find_map(|it| it.check_for_records().err());
        let records_work = match (unusable, &probe.write) {
            (Some(unusable), _) if is_keyed => {
                records.open(&unusable);
                return Err(unusable);
            }
            _ if probe.secret.is_none() => {
                records.open(&"Redis has no fleet secret, and rejects the write of a new secret");
                false
            }
            _ if is_keyed && &*probe.format != FORMAT => {
                // Another record format does not prevent the start of the gateway, because rate limits do not depend on
                // records.
                records.open_permanently(&UnusableServer::Format(Arc::clone(&probe.format)));
                false
            }
            // The breaker closes even if Redis is out of memory, because replays still work. It stays open if Redis
            // rejects all writes, because Redis then cannot store claims.
            (_, Ok(_) | Err(CallError::Full(_))) => records.close(),
            (_, Err(error)) => {
                records.open(error);
                false
            }
        };
        Ok(limits_work && records_work)
    }

    /// Begins an epoch if a server was restarted or replaced. Takes over the secret of the fleet if it changed.
    fn update_epoch(&mut self, probe: &Probe) {
        let run_id = |server: &ServerInfo| Arc::clone(&server.run_id);
        let mut runs: Vec<_> = probe.servers.iter().map(run_id).collect();
        runs.sort();
        let has_new_secret = |secret: &Secret| secret.as_bytes() != self.state.secret().as_bytes();
        let new_secret = probe.secret.filter(has_new_secret);
        if self.runs.is_empty() {
            self.log_first_probe(probe);
        } else {
            let new_runs = runs.iter().filter(|run| !self.runs.contains(run));
            let new_runs: Vec<_> = new_runs.collect();
            if !new_runs.is_empty() {
                tracing::warn!(
                    run_ids = ?new_runs,
                    "Redis restarted or replaced by another server: rate limit buckets and idempotency records that \
                     Redis did not persist are lost, so a retry whose record is lost is executed again"
                );
                self.state.epoch.fetch_add(1, Ordering::AcqRel);
            }
            if self.has_seen_secret && (probe.has_stored_secret || new_secret.is_some()) {
                self.state.data_losses.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "Redis lost its data, for example by FLUSHALL: all idempotency keys are forgotten, so retries of \
                     earlier requests are executed again, and all rate limit buckets are full"
                );
            }
        }
        self.runs = runs;
        self.has_seen_secret |= probe.secret.is_some();
        if let Some(secret) = new_secret {
            self.state.set_secret(secret);
        }
    }

    fn log_first_probe(&self, probe: &Probe) {
        let (nodes, servers) = (&self.state.settings.nodes, &probe.servers);
        if let Some(server) = servers.first() {
            tracing::info!(%nodes, servers = servers.len(), "connected to Redis, {server}");
        }
        if !self.state.is_keyed() && servers.iter().any(ServerInfo::evicts) {
            tracing::warn!(
                "Redis can evict rate limit buckets when it is out of memory, so clients can exceed their rate limit: \
                 set `maxmemory-policy` of Redis to `noeviction`"
            );
        }
    }

    /// Uses the connection of the last probe, unless the server has closed it.
    async fn probe(&mut self, checks_persistence: bool) -> Result<Probe, CallError> {
        if let Some(mut connection) = self.connection.take() {
            match Probe::run(&self.state, &mut connection, checks_persistence).await {
                Err(error) if is_lost(&error) && !error.is_timeout() => {}
                Err(error) => return Err(error.into()),
                Ok(probe) => {
                    self.connection = Some(connection);
                    return Ok(probe);
                }
            }
        }
        let mut connection = self.state.endpoint.connect().await?;
        let probe = Probe::run(&self.state, &mut connection, checks_persistence).await?;
        self.connection = Some(connection);
        Ok(probe)
    }
}

fn warn_about_persistence(servers: &[ServerInfo]) {
    let is_durable = servers.iter().map(ServerInfo::is_durable);
    if is_durable.clone().any(|known| known == Some(false)) {
        tracing::warn!(
            "Redis can lose acknowledged idempotency records in a crash, so their requests can be executed again: \
             set `appendonly` of Redis to `yes` and `appendfsync` to `always` to prevent this"
        );
    } else if is_durable.into_iter().any(|known| known.is_none()) {
        tracing::warn!(
            "cannot check whether Redis can lose acknowledged idempotency records in a crash, because CONFIG \
             GET failed: check that `appendfsync` of Redis is `always`, or allow its user `+config|get`"
        );
    }
}
