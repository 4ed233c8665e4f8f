//! Monitoring of Redis. A monitor thread probes Redis every second, and within 20 ms after a failed call.
//!
//! Only the monitor closes the [circuit breakers](StoreBreaker). Before it closes one, it checks that Redis accepts
//! writes and evicts no idempotency records. A probe also reads the run ID of each server, the secret of the fleet and
//! the format of its records. The monitor has its own thread, so slow requests do not delay a probe.

mod breaker;
mod probe;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::sleep;

use self::probe::{FORMAT, Probe, ServerInfo};
use super::client::ClientState;
use super::connection::RedisConnection;
use super::error::{CallError, is_lost};
use crate::store::Part;
use crate::store::capacity_use::{Bound, UseSamples};

pub(super) use self::breaker::StoreBreaker;
pub(crate) use self::probe::UnusableServer;

/// Interval between two probes while Redis works for both rate limits and idempotency records.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval after the first failed probe, ±20 %. It doubles with each further failed probe.
const RETRY_FIRST: Duration = Duration::from_millis(50);

/// Longest interval after a failed probe.
const RETRY_LONGEST: Duration = Duration::from_millis(500);

/// Pause before a probe that is made because of a failed call. So failed calls cause at most 50 probes per second.
const REQUESTED_PAUSE: Duration = Duration::from_millis(20);

/// Probes Redis, and opens and closes the circuit breakers of rate limits and idempotency records.
pub(super) struct Monitor {
    state: Arc<ClientState>,
    connection: Option<RedisConnection>,
    /// Run IDs of the servers at the last probe; empty before the first probe.
    runs: Vec<Arc<str>>,
    use_samples: UseSamples,
    /// Whether the settings of Redis were checked for records, which a reload can make necessary.
    has_checked_records: bool,
}

impl Monitor {
    pub(super) fn new(state: Arc<ClientState>) -> Self {
        Self {
            state,
            connection: None,
            runs: Vec::new(),
            use_samples: UseSamples::new(Bound::MaxMemory),
            has_checked_records: false,
        }
    }

    /// Probes Redis until this future is dropped. Sends the result of the first probe to `first`.
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

    /// Probes Redis once, and opens or closes the circuit breakers. Returns whether Redis works for both rate limits
    /// and idempotency records. Fails if the gateway must not start with this Redis.
    async fn check(&mut self) -> Result<bool, UnusableServer> {
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
        if is_keyed && !self.has_checked_records {
            self.has_checked_records = true;
            self.warn_about_records(&probe);
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
        let new_runs = runs.iter().filter(|run| !self.runs.contains(run));
        let new_runs: Vec<_> = new_runs.collect();
        if self.runs.is_empty() {
            self.log_first_probe(probe);
        } else if !new_runs.is_empty() {
            tracing::warn!(
                run_ids = ?new_runs,
                "Redis restarted or replaced by another server: rate limit buckets and idempotency records that Redis \
                 did not persist are lost, so a retry whose record is lost is executed again"
            );
            self.state.begin_epoch();
        }
        self.runs = runs;
        if let Some(secret) = probe.secret
            && secret.as_bytes() != self.state.secret().as_bytes()
        {
            self.state.set_secret(secret);
        }
    }

    /// Logs the Redis servers after the first successful probe.
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

    /// Warns about settings with which Redis can lose records, or report their outcomes late.
    fn warn_about_records(&self, probe: &Probe) {
        if !probe.servers.iter().all(ServerInfo::is_durable) {
            tracing::warn!(
                "Redis can lose acknowledged idempotency records in a crash, so their requests can be executed again: \
                 set `appendonly` of Redis to `yes` and `appendfsync` to `always` to prevent this"
            );
        }
        if probe.denies_publish {
            let settings = &self.state.settings;
            let (user, prefix) = (settings.user_name().unwrap_or("default"), &settings.prefix);
            tracing::warn!(
                "Redis user `{user}` has no permission to publish on channels `{prefix}:*`: a duplicate request that \
                 waits on another gateway gets its response up to 250 ms later; run \
                 `ACL SETUSER {user} &{prefix}:* +@pubsub`"
            );
        }
    }

    /// Probes Redis on the connection of the last probe, or on a new connection if the server has closed that
    /// connection.
    async fn probe(&mut self) -> Result<Probe, CallError> {
        let is_first = self.runs.is_empty();
        if let Some(mut connection) = self.connection.take() {
            match Probe::run(&self.state, &mut connection, is_first).await {
                Err(error) if is_lost(&error) && !error.is_timeout() => {}
                Err(error) => return Err(error.into()),
                Ok(probe) => {
                    self.connection = Some(connection);
                    return Ok(probe);
                }
            }
        }
        let mut connection = self.state.endpoint.connect().await?;
        let probe = Probe::run(&self.state, &mut connection, is_first).await?;
        self.connection = Some(connection);
        Ok(probe)
    }
}
