//! State that all clients of one Redis share.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::connection::{Endpoint, RedisConnection, with_timeout};
use super::error::CallError;
use super::health::StoreBreaker;
use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::request::hash_keys::{HashKeySource, HashKeys, Secret};
use crate::store::{CapacityUse, Part};

#[derive(Debug)]
pub(super) struct ClientState {
    pub(super) settings: RedisSettings,
    is_keyed: AtomicBool,
    /// It follows the timeouts of the routes, but becomes shorter only by a restart: the renewal of claims could not
    /// follow.
    lease: Mutex<Duration>,
    pub(super) clock: Clock,
    pub(super) endpoint: Endpoint,
    limits: StoreBreaker,
    records: StoreBreaker,
    /// At the last probe; `None` if Redis has no `maxmemory`.
    pub(super) memory_use: Mutex<Option<CapacityUse>>,
    /// Derived from the secret of the fleet, or from a random secret until the first probe.
    hash_keys: Arc<RwLock<HashKeys>>,
    /// Number of detected restarts or replacements of Redis. Connections of an earlier epoch are replaced.
    pub(super) epoch: AtomicU64,
    /// How often Redis had lost the secret of the fleet.
    pub(super) data_losses: AtomicU64,
    /// Requests a probe within 20 ms.
    pub(super) probe_requested: Notify,
    /// The runtime of the monitor, for tasks that no request waits for.
    background: Handle,
    /// Tasks that shutdown waits for, up to 2 s.
    pub(super) tracked: TaskTracker,
}

impl ClientState {
    pub(super) fn new(
        settings: RedisSettings,
        is_keyed: bool,
        endpoint: Endpoint,
        clock: Clock,
        background: Handle,
    ) -> Self {
        Self {
            is_keyed: AtomicBool::new(is_keyed),
            lease: Mutex::new(settings.lease),
            endpoint,
            limits: StoreBreaker::new(Part::Limits, &settings.nodes),
            records: StoreBreaker::new(Part::Records, &settings.nodes),
            memory_use: Mutex::default(),
            settings,
            clock,
            hash_keys: Arc::new(RwLock::new(Secret::random().into())),
            epoch: AtomicU64::new(0),
            data_losses: AtomicU64::new(0),
            probe_requested: Notify::new(),
            background,
            tracked: TaskTracker::new(),
        }
    }

    pub(super) fn is_keyed(&self) -> bool {
        self.is_keyed.load(Ordering::Relaxed)
    }

    pub(super) fn lease(&self) -> Duration {
        *self.lease.lock()
    }

    /// A Redis that stored no records is used for them after the monitor has checked its settings.
    pub(super) fn reload(&self, is_keyed: bool, lease: Duration) {
        let mut longest = self.lease.lock();
        *longest = lease.max(*longest);
        drop(longest);
        if is_keyed && !self.is_keyed.swap(is_keyed, Ordering::Relaxed) {
            self.records
                .open(&"Redis is being checked for idempotency records");
            self.probe_requested.notify_one();
        }
    }

    pub(super) fn breaker(&self, part: Part) -> &StoreBreaker {
        match part {
            Part::Limits => &self.limits,
            Part::Records => &self.records,
        }
    }

    pub(super) fn timeout(&self, part: Part) -> Duration {
        match part {
            Part::Limits => self.settings.limits_timeout,
            Part::Records => self.settings.records_timeout,
        }
    }

    pub(super) fn hash_keys(&self) -> HashKeySource {
        HashKeySource::Shared(Arc::clone(&self.hash_keys))
    }

    pub(super) fn secret(&self) -> Secret {
        self.hash_keys.read().secret
    }

    pub(super) fn set_secret(&self, secret: Secret) {
        *self.hash_keys.write() = secret.into();
    }

    /// All these Redis keys are in one slot, so one script can use them.
    pub(super) fn fleet_key(&self, name: &str) -> String {
        format!("{}:{{fleet}}:{name}", self.settings.prefix)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Shutdown waits up to 2 s for `task`.
    pub(super) fn spawn_tracked(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracked.spawn_on(task, &self.background);
    }

    /// Shutdown cancels `task`.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(task);
    }

    /// Fails if Redis has another secret than the monitor has read. The monitor must then probe the server before
    /// requests use it.
    pub(super) async fn connect(&self) -> Result<RedisConnection, CallError> {
        let mut connection = self.endpoint.connect().await?;
        let mut get = redis::cmd("GET");
        get.arg(self.fleet_key("secret"));
        let stored = get.query_async(&mut connection);
        let stored: Option<Vec<u8>> = with_timeout(self.timeout(Part::Records), stored).await?;
        if stored.as_deref() != Some(self.secret().as_bytes()) {
            self.probe_requested.notify_one();
            let reason = "Redis has another fleet secret, so it lost its data or was replaced";
            return Err(CallError::ConnectionLost(reason.into()));
        }
        Ok(connection)
    }
}
