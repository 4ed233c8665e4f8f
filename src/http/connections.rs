//! Open connections of a listener, and the bounds on them.
//!
//! At a bound, a new connection replaces the one on which no request has been in flight for the longest time, at least
//! [`MIN_IDLE`], be it silent, in its TLS handshake or in the middle of a request head. So a client that only holds
//! connections cannot keep others out. A connection with a request in flight is never replaced.
//!
//! A request changes one atomic of its connection, and nothing that connections share. The sorted lists of idle
//! connections can therefore be outdated: an entry is never later than the time since which its connection is idle. The
//! first entry is corrected before it is used. If a request is in flight, the entry is removed, and the end of the
//! request adds it again. So every correction follows a request, and a flood of new connections causes no scans.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::metrics::Count;

/// Flag of [`ConnectionEntry::activity`]: requests are in flight, and the lowest bits are their number. Without this
/// flag the state is the time since which the connection is idle, in microseconds since [`Connections::created`].
const BUSY: u64 = 1 << 63;

/// Flag beside [`BUSY`]: the connection is in no list of idle connections.
const UNLISTED: u64 = 1 << 62;

const REQUESTS: u64 = UNLISTED - 1;

/// Activity of a replaced connection. It never changes.
const REPLACED: u64 = u64::MAX;

/// Otherwise the connections that wait for a place would replace each other before they are served.
const MIN_IDLE: Duration = Duration::from_millis(500);

/// Connections of one listener, or of all listeners of a gateway.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) max: usize,
    max_per_client: usize,
    created: Instant,
    open: Mutex<OpenConnections>,
    /// Notified when a connection ends or can be replaced.
    changed: Notify,
    pub(crate) replaced: Count,
    /// Closed at once because their client had `max_per_client` connections with requests in flight.
    pub(crate) rejected: Count,
}

#[derive(Debug, Default)]
struct OpenConnections {
    all: ConnectionGroup,
    clients: HashMap<IpAddr, ConnectionGroup>,
    next: u64,
}

#[derive(Debug, Default)]
struct ConnectionGroup {
    open: usize,
    /// By the time since which they are idle, then by their number.
    idle: BTreeMap<(u64, u64), Arc<ConnectionEntry>>,
}

#[derive(Debug)]
struct ConnectionEntry {
    number: u64,
    client: Option<IpAddr>,
    activity: AtomicU64,
    /// Time in the lists of idle connections. It changes only under their lock.
    listed: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

/// Released when its last owner is dropped: the task of the connection, a request, or a tunnel that continues after the
/// HTTP connection has ended.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    connections: Arc<Connections>,
    state: Arc<ConnectionEntry>,
}

/// A request until the end of its response, or a tunnel. Its connection is not replaced.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<ConnectionPermit>);

/// At which no connection can be replaced.
enum AtBound {
    /// The time after which a connection can be replaced. `None` if no connection is idle.
    All(Option<Duration>),
    Client,
}

impl Connections {
    pub(crate) fn new(max: usize, max_per_client: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            max_per_client,
            created: Instant::now(),
            open: Mutex::default(),
            changed: Notify::new(),
            replaced: Count::default(),
            rejected: Count::default(),
        })
    }

    /// `client` identifies the client by its address or the first address of its network. It is `None` for a trusted
    /// proxy, whose connections belong to many clients.
    ///
    /// Waits while the maximum is reached and no connection can be replaced. Returns `None` if the client is at its own
    /// bound.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        client: Option<IpAddr>,
    ) -> Option<Arc<ConnectionPermit>> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // A change between the attempt and the wait is not lost.
            changed.as_mut().enable();
            match self.try_admit(client) {
                Ok(permit) => return Some(permit),
                Err(AtBound::All(wait)) => {
                    // A change wakes only one of several that wait, so none waits longer.
                    let _ = timeout(wait.unwrap_or(MIN_IDLE), changed).await;
                }
                Err(AtBound::Client) => {
                    self.rejected.inc();
                    return None;
                }
            }
        }
    }

    /// Whatever the bounds are.
    pub(crate) fn add(self: &Arc<Self>, client: Option<IpAddr>) -> Arc<ConnectionPermit> {
        self.insert(client, &mut self.open.lock())
    }

    pub(crate) fn count(&self) -> usize {
        self.open.lock().all.open
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.open.lock().next
    }

    fn try_admit(
        self: &Arc<Self>,
        client: Option<IpAddr>,
    ) -> Result<Arc<ConnectionPermit>, AtBound> {
        let mut open = self.open.lock();
        if let Some(id) = client
            && let Some(group) = open.clients.get(&id)
            && group.open >= self.max_per_client
        {
            self.replace_idle(client, &mut open)
                .map_err(|_| AtBound::Client)?;
        }
        if open.all.open >= self.max {
            self.replace_idle(None, &mut open).map_err(AtBound::All)?;
        }
        Ok(self.insert(client, &mut open))
    }

    fn insert(
        self: &Arc<Self>,
        client: Option<IpAddr>,
        open: &mut OpenConnections,
    ) -> Arc<ConnectionPermit> {
        let now = self.now();
        let state = Arc::new(ConnectionEntry {
            number: open.next,
            client,
            activity: AtomicU64::new(now),
            listed: AtomicU64::new(now),
            waker: Mutex::default(),
        });
        open.next += 1;
        for group in open.groups(client) {
            group.open += 1;
        }
        open.list(&state, now);
        Arc::new(ConnectionPermit {
            connections: Arc::clone(self),
            state,
        })
    }

    /// Called when the process has no free file descriptor.
    pub(crate) fn close_idle(&self) {
        let _ = self.replace_idle(None, &mut self.open.lock());
    }

    /// Closes the connection of `client`, or of all clients, that has been idle longest. The error is the time until it
    /// can be closed, or `None` if none is idle.
    fn replace_idle(
        &self,
        client: Option<IpAddr>,
        open: &mut OpenConnections,
    ) -> Result<(), Option<Duration>> {
        let now = self.now();
        loop {
            let group = match client {
                Some(client) => open.clients.get(&client).ok_or(None)?,
                None => &open.all,
            };
            let (&(listed, _), state) = group.idle.first_key_value().ok_or(None)?;
            let idle = Duration::from_micros(now.saturating_sub(listed));
            if let Some(wait) = MIN_IDLE.checked_sub(idle).filter(|wait| !wait.is_zero()) {
                return Err(Some(wait));
            }
            let state = Arc::clone(state);
            let exchanged = |from, to| {
                let exchanged =
                    state
                        .activity
                        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
                exchanged.err()
            };
            match exchanged(listed, REPLACED) {
                None => {
                    open.remove(&state);
                    self.replaced.inc();
                    let waker = state.waker.lock().take();
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                    return Ok(());
                }
                Some(busy) if busy & BUSY != 0 => {
                    // If a request has begun or ended meanwhile, the next round reads the state again.
                    if exchanged(busy, busy | UNLISTED).is_none() {
                        open.unlist(&state);
                    }
                }
                Some(since) => {
                    open.unlist(&state);
                    open.list(&state, since);
                }
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_micros()).map_or(REQUESTS, |now| now.min(REQUESTS))
    }
}

impl OpenConnections {
    fn groups(&mut self, client: Option<IpAddr>) -> impl Iterator<Item = &mut ConnectionGroup> {
        let client = client.map(|client| self.clients.entry(client).or_default());
        client.into_iter().chain([&mut self.all])
    }

    fn list(&mut self, state: &Arc<ConnectionEntry>, since: u64) {
        state.listed.store(since, Ordering::Relaxed);
        for group in self.groups(state.client) {
            group.idle.insert((since, state.number), Arc::clone(state));
        }
    }

    fn unlist(&mut self, state: &ConnectionEntry) {
        let listed = state.listed.load(Ordering::Relaxed);
        for group in self.groups(state.client) {
            group.idle.remove(&(listed, state.number));
        }
    }

    fn remove(&mut self, state: &ConnectionEntry) {
        self.unlist(state);
        for group in self.groups(state.client) {
            group.open -= 1;
        }
        if let Some(client) = state.client
            && self.clients.get(&client).is_some_and(|it| it.open == 0)
        {
            self.clients.remove(&client);
        }
    }
}

impl ConnectionPermit {
    /// Returns `None` if another connection has replaced this one.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<ActiveRequest> {
        let begun =
            self.state
                .activity
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
                    REPLACED => None,
                    busy if busy & BUSY != 0 => Some(busy + 1),
                    _idle_since => Some(BUSY | 1),
                });
        begun.ok().map(|_| ActiveRequest(Arc::clone(self)))
    }

    /// Only one task may wait, because the future stores only the waker of its first poll.
    pub(crate) fn replaced(&self) -> impl Future<Output = ()> {
        let mut is_registered = false;
        poll_fn(move |cx| {
            if !is_registered {
                *self.state.waker.lock() = Some(cx.waker().clone());
                is_registered = true;
            }
            match self.state.activity.load(Ordering::Acquire) {
                REPLACED => Poll::Ready(()),
                _ => Poll::Pending,
            }
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        if self.state.activity.load(Ordering::Acquire) != REPLACED {
            open.remove(&self.state);
        }
        drop(open);
        self.connections.changed.notify_one();
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let ConnectionPermit { connections, state } = &*self.0;
        let now = connections.now();
        let ended = |state| match state & REQUESTS {
            1 => now,
            _ => state - 1,
        };
        let before = state
            .activity
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |it| Some(ended(it)));
        let before = before.unwrap_or_else(|state| state);
        if before & REQUESTS == 1 && before & UNLISTED != 0 {
            connections.open.lock().list(state, now);
            connections.changed.notify_one();
        }
    }
}

#[cfg(test)]
impl ConnectionPermit {
    pub(crate) fn alone() -> Arc<Self> {
        Connections::new(1, 1).add(None)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    const A: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    const B: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));

    /// Opens a connection 1 ms after the previous one. Fails if it has to wait.
    async fn open(
        connections: &Arc<Connections>,
        client: Option<IpAddr>,
    ) -> Option<Arc<ConnectionPermit>> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let admitted = connections.admit(client).now_or_never();
        admitted.expect("the connection does not wait")
    }

    /// Waits until all idle connections can be replaced.
    async fn min_idle() {
        tokio::time::sleep(MIN_IDLE).await;
    }

    fn is_replaced(permit: &ConnectionPermit) -> bool {
        permit.replaced().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_maximum_the_connection_that_is_idle_longest_is_replaced() {
        let connections = Connections::new(4, 4);
        let mut permits = Vec::new();
        for _ in 0..4 {
            permits.push(open(&connections, A).await.unwrap());
        }
        // 0 is busy, 1 was used last, 2 has two requests of which one has ended, 3 has been silent.
        let held = permits[0].begin().unwrap();
        let first = permits[2].begin().unwrap();
        let second = permits[2].begin().unwrap();
        drop(first);
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(permits[1].begin().unwrap());
        let replaced = |permits: &[Arc<ConnectionPermit>]| -> Vec<bool> {
            permits.iter().map(|permit| is_replaced(permit)).collect()
        };
        min_idle().await;
        let _new = open(&connections, B).await.unwrap();
        assert_eq!(replaced(&permits), [false, false, false, true]);
        assert!(permits[3].begin().is_none());
        let _new = open(&connections, B).await.unwrap();
        assert_eq!(replaced(&permits), [false, true, false, true]);
        // A connection is idle again after its last request.
        drop((held, second));
        assert_eq!((connections.count(), connections.replaced.get()), (4, 2));
        permits.clear();
        assert_eq!(connections.count(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_until_one_is_idle_or_ends() {
        let connections = Connections::new(1, 4);
        let mut permit = open(&connections, A).await.unwrap();
        for ends in [false, true] {
            let request = permit.begin().unwrap();
            let waiting = tokio::spawn({
                let connections = Arc::clone(&connections);
                async move { connections.admit(B).await }
            });
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(!waiting.is_finished());
            drop(request);
            if ends {
                drop(permit);
            }
            permit = waiting.await.unwrap().unwrap();
            assert_eq!(connections.count(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_wait_do_not_replace_each_other_before_they_are_served() {
        let connections = Connections::new(1, 4);
        let busy = open(&connections, A).await.unwrap();
        let request = busy.begin().unwrap();
        let waiting: Vec<_> = (0..100)
            .map(|_| {
                let connections = Arc::clone(&connections);
                tokio::spawn(async move {
                    let permit = connections.admit(B).await.unwrap();
                    tokio::time::sleep(MIN_IDLE / 2).await;
                    permit.begin().is_some()
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop((request, busy));
        for waiting in waiting {
            assert!(waiting.await.unwrap());
        }
    }

    /// The connection that a first waiting one replaces stays open, and so does the first one.
    #[tokio::test(start_paused = true)]
    async fn a_second_waiting_connection_replaces_the_first_one_when_that_is_idle() {
        let connections = Connections::new(1, 4);
        let busy = open(&connections, A).await.unwrap();
        let request = busy.begin().unwrap();
        min_idle().await;
        let waiting = [(); 2].map(|()| {
            let connections = Arc::clone(&connections);
            tokio::spawn(async move { connections.admit(B).await })
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(request);
        let both = futures_util::future::join_all(waiting);
        let both = timeout(5 * MIN_IDLE, both).await;
        assert_eq!(both.expect("both are admitted").len(), 2);
        assert_eq!(connections.replaced.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_at_its_maximum_loses_its_own_idle_connection_or_the_new_one() {
        let connections = Connections::new(8, 2);
        let other = open(&connections, B).await.unwrap();
        let first = open(&connections, A).await.unwrap();
        let second = open(&connections, A).await.unwrap();
        min_idle().await;
        let third = open(&connections, A).await.unwrap();
        let replaced = [&other, &first, &second, &third].map(|permit| is_replaced(permit));
        assert_eq!(replaced, [false, true, false, false]);
        let requests = [second.begin().unwrap(), third.begin().unwrap()];
        assert!(open(&connections, A).await.is_none());
        assert_eq!(connections.rejected.get(), 1);
        drop((requests, other, first, second, third));
        let mut of_proxy = Vec::new();
        for _ in 0..8 {
            of_proxy.push(open(&connections, None).await.unwrap());
        }
        assert!(!of_proxy.iter().any(|permit| is_replaced(permit)));
        drop(of_proxy);
        assert_eq!(connections.count(), 0);
        assert!(connections.open.lock().clients.is_empty());
    }
}
