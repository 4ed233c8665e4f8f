//! What all links to one Redis share.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use redis::RedisError;
use redis::aio::PubSubStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::breaker::Breaker;
use super::connection::{Client, Connection};
use super::settings::RedisSettings;
use crate::clock::Clock;
use crate::hash_keys::{HashKeySource, HashKeys, Secret};
use crate::store::Part;

/// What all links to one Redis share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) settings: RedisSettings,
    pub(super) clock: Clock,
    client: Client,
    limits: Breaker,
    records: Breaker,
    /// What names are made with; ours until Redis has told us the fleet's.
    names: Arc<RwLock<HashKeys>>,
    /// Goes up whenever Redis turns out to be another one: connections of an earlier epoch are not used.
    pub(super) epoch: AtomicU64,
    /// Somebody met trouble, and wants it looked into.
    pub(super) alarm: Notify,
    /// What goes on behind the requests runs here.
    background: Handle,
    /// Keeps account of what is to be ended before the process is.
    pub(super) loose_ends: TaskTracker,
}

impl Core {
    pub(super) fn new(
        settings: RedisSettings,
        client: Client,
        clock: Clock,
        background: Handle,
    ) -> Self {
        Self {
            client,
            limits: Breaker::new(Part::Limits, &settings.nodes),
            records: Breaker::new(Part::Records, &settings.nodes),
            settings,
            clock,
            names: Arc::new(RwLock::new(Secret::random().into())),
            epoch: AtomicU64::new(0),
            alarm: Notify::new(),
            background,
            loose_ends: TaskTracker::new(),
        }
    }

    pub(super) fn breaker(&self, part: Part) -> &Breaker {
        match part {
            Part::Limits => &self.limits,
            Part::Records => &self.records,
        }
    }

    /// How long an answer for `part` is waited for.
    pub(super) fn patience(&self, part: Part) -> Duration {
        match part {
            Part::Limits => self.settings.limits_timeout,
            Part::Records => self.settings.records_timeout,
        }
    }

    /// Connects; how long that may take is bounded, and whoever waits for it may have less time.
    pub(super) async fn connect(&self) -> Result<Connection, RedisError> {
        self.client.connect(self.settings.records_timeout).await
    }

    /// What is told on `channel`, for as long as the connection for it stands.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<PubSubStream, RedisError> {
        let subscribing = self.client.subscribe(channel);
        let within = self.settings.records_timeout;
        let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
        timeout(within, subscribing).await.unwrap_or_else(late)
    }

    pub(super) fn naming(&self) -> HashKeySource {
        HashKeySource::Shared(Arc::clone(&self.names))
    }

    pub(super) fn secret(&self) -> Secret {
        self.names.read().secret
    }

    /// Names are made with `secret` from now on.
    pub(super) fn adopt(&self, secret: Secret) {
        *self.names.write() = secret.into();
    }

    /// What the secret is called. It and the mark lie in one slot of a cluster, for one script.
    pub(super) fn secret_name(&self) -> String {
        format!("{}:{{fleet}}:secret", self.settings.prefix)
    }

    /// Returns the name of the record format, which is in the slot of the secret.
    pub(super) fn format_name(&self) -> String {
        format!("{}:{{fleet}}:format", self.settings.prefix)
    }

    /// What shows that somebody was there.
    pub(super) fn mark_name(&self) -> String {
        format!("{}:{{fleet}}:mark", self.settings.prefix)
    }

    /// Redis is another one: no connection made before is used any more.
    pub(super) fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Has the monitor look at Redis now.
    pub(super) fn sound_alarm(&self) {
        self.alarm.notify_one();
    }

    /// Has `work` done behind the requests; the process does not end without it, within reason.
    pub(super) fn finish_later(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.loose_ends.spawn_on(work, &self.background);
    }

    /// Has `work` done behind the requests for as long as there are any.
    pub(super) fn keep_doing(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(work);
    }
}
