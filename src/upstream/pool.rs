//! Pool of idle HTTP/1.1 connections to a server, one per worker and server.
//!
//! The most recently used connection is taken first. It returns only after a complete request and response, and is not
//! reused if the server no longer has its address. An idle connection is closed after `keep_alive`, or earlier if the
//! server has announced a shorter time with `Keep-Alive: timeout=N`.
//!
//! Many servers close idle connections without an announcement, uvicorn after 5 s and gunicorn after 2 s, and a request
//! that is sent at this moment is lost. So a request that must not be sent again uses only a connection that was idle
//! for less than [`RECENT`].
//!
//! One task per pool closes expired connections once a second, while there are idle ones. With a timer per connection,
//! each request would have to register a timer.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::header::HeaderMap;
use http::{HeaderValue, Version};
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

use super::body::{UploadProgress, UpstreamBody};
use super::connect::{ConnectError, Connector, ServerConnection};
use super::connection_auth;
use super::headers::KEEP_ALIVE;
use crate::request::context::ClientConnection;

/// The least recently used idle connections above this number are closed.
const MAX_IDLE: usize = 256;

pub(super) const RECENT: Duration = Duration::from_secs(1);

/// The gateway closes an idle connection this much earlier than the server does, so that no request meets the close.
const KEEP_ALIVE_MARGIN: Duration = Duration::from_secs(1);

const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Bound on the wait until hyper accepts a request on an idle connection, before that is closed.
const READY_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Pool {
    connector: Connector,
    keep_alive: Duration,
    idle: Mutex<IdleConnections>,
}

#[derive(Debug, Default)]
struct IdleConnections {
    /// The most recently used connection is last.
    connections: VecDeque<IdleConnection>,
    has_sweeper: bool,
}

#[derive(Debug)]
struct IdleConnection {
    connection: ServerConnection,
    since: Instant,
    expires: Instant,
}

#[derive(Debug)]
pub(super) enum ConnectionChoice<'a> {
    Fresh,
    /// Gives up after this time.
    FreshWithin(Duration),
    /// Idle for less than this time.
    Pooled(Duration),
    /// The client connection owns it.
    Owned(Box<ServerConnection>, &'a Arc<ClientConnection>),
}

/// [`finish`](Self::finish) returns the connection to its owner. Dropping the lease closes it.
#[derive(Debug)]
pub(crate) struct Lease {
    connection: ServerConnection,
    pool: Arc<Pool>,
    upload: Option<Arc<UploadProgress>>,
    /// After this response. `None` if the connection must not be reused.
    idle_time: Option<Duration>,
    /// The server can have closed a reused connection in the meantime.
    pub reused: bool,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    Pool,
    Client(Arc<ClientConnection>),
    /// The connection is closed.
    Nobody,
}

impl Pool {
    pub(crate) fn new(connector: Connector, keep_alive: Duration) -> Arc<Self> {
        Arc::new(Self {
            connector,
            keep_alive,
            idle: Mutex::default(),
        })
    }

    /// If the chosen connection is not usable, opens a new one.
    pub(super) async fn lease(
        self: &Arc<Self>,
        choice: ConnectionChoice<'_>,
    ) -> Result<Lease, ConnectError> {
        match choice {
            ConnectionChoice::Fresh => {}
            ConnectionChoice::FreshWithin(bound) => {
                let connected = Box::pin(timeout(bound, self.lease_fresh())).await;
                return connected.unwrap_or(Err(ConnectError::TimedOut(bound)));
            }
            ConnectionChoice::Pooled(max_idle) => {
                while let Some(mut connection) = self.take_idle(max_idle) {
                    if is_ready(connection.sender()).await {
                        return Ok(self.lend(connection, true));
                    }
                }
            }
            ConnectionChoice::Owned(mut connection, client) => {
                if is_ready(connection.sender()).await {
                    let mut lease = self.lend(*connection, true);
                    lease.bind(Some(client));
                    return Ok(lease);
                }
            }
        }
        self.lease_fresh().await
    }

    pub(crate) async fn lease_fresh(self: &Arc<Self>) -> Result<Lease, ConnectError> {
        // Boxed, because an unboxed connect future would enlarge the future of every request.
        let connection = Box::pin(self.connector.connect()).await?;
        Ok(self.lend(connection, false))
    }

    fn lend(self: &Arc<Self>, connection: ServerConnection, reused: bool) -> Lease {
        connection.begin_exchange();
        Lease {
            connection,
            pool: Arc::clone(self),
            upload: None,
            idle_time: None,
            reused,
            owner: Owner::Pool,
        }
    }

    fn take_idle(&self, max_idle: Duration) -> Option<ServerConnection> {
        let now = Instant::now();
        let connections = &mut self.idle.lock().connections;
        while let Some(newest) = connections.back()
            && now - newest.since < max_idle
        {
            let mut newest = connections.pop_back()?;
            if self.is_usable(&mut newest, now) {
                return Some(newest.connection);
            }
        }
        None
    }

    fn put_back(self: &Arc<Self>, connection: ServerConnection, idle_time: Duration) {
        if connection.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.connections.len() == MAX_IDLE {
            idle.connections.pop_front();
        }
        let since = Instant::now();
        idle.connections.push_back(IdleConnection {
            connection,
            since,
            expires: since + idle_time,
        });
        // Without a tokio runtime, the worker is shutting down and closes all of its connections.
        if !idle.has_sweeper
            && let Ok(runtime) = Handle::try_current()
        {
            idle.has_sweeper = true;
            runtime.spawn(sweep_repeatedly(Arc::downgrade(self)));
        }
    }

    fn is_usable(&self, idle: &mut IdleConnection, now: Instant) -> bool {
        now < idle.expires && self.is_open(&mut idle.connection)
    }

    /// Neither side has closed it, and its address still belongs to the server.
    pub(super) fn is_open(&self, connection: &mut ServerConnection) -> bool {
        !connection.is_closed() && self.connector.is_current(connection)
    }

    /// Returns whether idle connections remain.
    fn sweep(&self) -> bool {
        let now = Instant::now();
        let mut idle = self.idle.lock();
        (idle.connections).retain_mut(|idle| self.is_usable(idle, now));
        idle.has_sweeper = !idle.connections.is_empty();
        idle.has_sweeper
    }
}

/// Ends when the pool has no idle connections or is dropped.
async fn sweep_repeatedly(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let remaining = pool.upgrade().is_some_and(|pool| pool.sweep());
        if !remaining {
            return;
        }
    }
}

/// After a response, hyper needs a short time until it accepts the next request. It never does if the server has not
/// read the complete previous request.
async fn is_ready(sender: &mut SendRequest<UpstreamBody>) -> bool {
    if sender.is_ready() {
        return true;
    }
    let ready = timeout(READY_TIMEOUT, sender.ready()).await;
    matches!(ready, Ok(Ok(())))
}

impl Lease {
    pub(crate) fn sender(&mut self) -> &mut SendRequest<UpstreamBody> {
        self.connection.sender()
    }

    /// [`finish`](Self::finish) reuses the connection only if this body was sent completely.
    pub(crate) fn track_upload(&mut self, upload: Option<Arc<UploadProgress>>) {
        self.upload = upload;
    }

    /// Without a client, the connection is closed after its response.
    pub(super) fn bind(&mut self, client: Option<&Arc<ClientConnection>>) {
        self.owner = match client {
            Some(client) => Owner::Client(Arc::clone(client)),
            None => Owner::Nobody,
        };
    }

    pub(super) fn has_received(&self) -> bool {
        self.connection.has_received()
    }

    pub(crate) fn set_idle_time(&mut self, version: Version, headers: &HeaderMap) {
        self.idle_time = idle_time(version, headers, self.pool.keep_alive);
    }

    /// To be called when the response was read completely.
    pub(crate) fn finish(self) {
        let sent = |upload: &Arc<UploadProgress>| upload.is_sent();
        let Some(idle_time) = self
            .idle_time
            .filter(|_| self.upload.as_ref().is_none_or(sent))
        else {
            return;
        };
        match self.owner {
            Owner::Pool if idle_time.is_zero() => {}
            Owner::Pool => self.pool.put_back(self.connection, idle_time),
            Owner::Client(client) => connection_auth::give(&client, self.pool, self.connection),
            Owner::Nobody => {}
        }
    }
}

/// Zero: in no pool. `None`: no further request at all.
///
/// A connection with an HTTP/1.0 response is not reused, because hyper would send the next request as HTTP/1.0.
/// HTTP/1.0 has no chunked coding, so hyper would drop a request body without a declared length.
fn idle_time(version: Version, headers: &HeaderMap, keep_alive: Duration) -> Option<Duration> {
    if version != Version::HTTP_11 {
        return None;
    }
    let announced = headers
        .get_all(KEEP_ALIVE)
        .iter()
        .filter_map(announced_timeout)
        .min();
    let announced = announced.map(|announced| announced.saturating_sub(KEEP_ALIVE_MARGIN));
    Some(announced.map_or(keep_alive, |announced| announced.min(keep_alive)))
}

/// Parses a line such as `timeout=5, max=100` (RFC 2068, section 19.7.1).
fn announced_timeout(line: &HeaderValue) -> Option<Duration> {
    let mut parameters = line.to_str().ok()?.split(',');
    let seconds = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_timeout = name.trim().eq_ignore_ascii_case("timeout");
        is_timeout.then(|| value.trim().parse::<u32>().ok())?
    });
    seconds.map(|seconds| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};
    use std::num::NonZeroU32;

    use super::super::Server;
    use super::super::addresses::Addresses;
    use super::*;

    const KEEP_ALIVE_TIME: Duration = Duration::from_secs(30);

    /// Creates a pool with one idle connection for each of these idle times. Also returns the server's sockets of these
    /// connections.
    async fn pool_with(idle_times: &[Duration]) -> (Arc<Pool>, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        pool_to(&listener, addresses_of(&authority), idle_times).await
    }

    fn addresses_of(authority: &str) -> Arc<Addresses> {
        Arc::new(Addresses::of(&Server {
            tls: false,
            authority: authority.parse().unwrap(),
            weight: NonZeroU32::MIN,
        }))
    }

    async fn pool_to(
        listener: &TcpListener,
        addresses: Arc<Addresses>,
        idle_times: &[Duration],
    ) -> (Arc<Pool>, Vec<TcpStream>) {
        let connector = Connector::new(addresses, None, Duration::from_secs(5));
        let pool = Pool::new(connector, KEEP_ALIVE_TIME);
        let mut accepted = Vec::new();
        for idle_time in idle_times {
            let mut lease = pool.lease_fresh().await.unwrap();
            lease.idle_time = Some(*idle_time);
            lease.finish();
            accepted.push(listener.accept().unwrap().0);
        }
        (pool, accepted)
    }

    fn idle(pool: &Pool) -> usize {
        pool.idle.lock().connections.len()
    }

    #[tokio::test]
    async fn idle_connections_are_closed_after_their_idle_time() {
        let (pool, accepted) = pool_with(&[KEEP_ALIVE_TIME; 100]).await;
        assert_eq!(idle(&pool), 100);
        tokio::time::pause();
        tokio::time::sleep(KEEP_ALIVE_TIME.saturating_sub(SWEEP_INTERVAL)).await;
        assert_eq!(idle(&pool), 100);
        tokio::time::sleep(3 * SWEEP_INTERVAL).await;
        assert_eq!(idle(&pool), 0);
        assert!(
            !pool.idle.lock().has_sweeper,
            "the task ends with the last connection"
        );
        for mut stream in accepted {
            stream
                .set_read_timeout(Some(Duration::from_secs(5)))
                .unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn a_connection_to_an_address_that_the_server_no_longer_has_is_not_used() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let addresses = addresses_of("api.test:80");
        let other = "127.0.0.9:80".parse().unwrap();
        addresses.update(Ok(vec![address])).unwrap();
        let times = [KEEP_ALIVE_TIME; 3];
        let (pool, _accepted) = pool_to(&listener, Arc::clone(&addresses), &times).await;
        addresses.update(Ok(vec![other, address])).unwrap();
        let in_use = pool
            .lease(ConnectionChoice::Pooled(Duration::MAX))
            .await
            .unwrap();
        assert!(in_use.reused);
        addresses.update(Ok(vec![other])).unwrap();
        assert!(pool.take_idle(Duration::MAX).is_none());
        assert_eq!(idle(&pool), 0);
        pool.put_back(in_use.connection, KEEP_ALIVE_TIME);
        assert!(pool.take_idle(Duration::MAX).is_none());
    }

    #[tokio::test]
    async fn an_expired_connection_is_not_used_before_the_next_sweep() {
        let time = SWEEP_INTERVAL / 2;
        let (pool, _accepted) = pool_with(&[time; 2]).await;
        tokio::time::pause();
        tokio::time::advance(time).await;
        assert_eq!(idle(&pool), 2);
        assert!(pool.take_idle(Duration::MAX).is_none());
        assert_eq!(idle(&pool), 0);
    }

    #[tokio::test]
    async fn a_sweep_closes_only_expired_connections() {
        let (pool, _accepted) = pool_with(&[KEEP_ALIVE_TIME, Duration::from_secs(2)]).await;
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(idle(&pool), 1);
        assert!(pool.take_idle(Duration::MAX).is_some());
    }

    #[tokio::test]
    async fn a_request_that_must_not_be_sent_again_gets_a_recently_used_connection() {
        let (pool, _accepted) = pool_with(&[KEEP_ALIVE_TIME; 3]).await;
        tokio::time::pause();
        tokio::time::advance(RECENT.saturating_sub(Duration::from_millis(1))).await;
        assert!(
            pool.lease(ConnectionChoice::Pooled(RECENT))
                .await
                .unwrap()
                .reused
        );
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(pool.take_idle(RECENT).is_none());
        assert_eq!(
            idle(&pool),
            2,
            "the connections stay in the pool for other requests"
        );
        assert!(pool.take_idle(Duration::MAX).is_some());
    }

    #[tokio::test]
    async fn without_keep_alive_no_connection_is_pooled() {
        let (pool, _accepted) = pool_with(&[Duration::ZERO]).await;
        assert_eq!(idle(&pool), 0);
    }

    #[test]
    fn keep_alive_timeout_of_the_server_is_applied_with_a_margin() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (line, expected) in [
            ("timeout=5", seconds(4)),
            ("max=100, Timeout = 5", seconds(4)),
            ("timeout=5, max=100", seconds(4)),
            ("timeout=2", seconds(1)),
            ("timeout=1", seconds(0)),
            ("timeout=0", seconds(0)),
            ("timeout=600", seconds(30)),
            ("timeout=99999999999", seconds(30)),
            ("timeout=x", seconds(30)),
            ("timeout", seconds(30)),
            ("max=3", seconds(30)),
            ("", seconds(30)),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(KEEP_ALIVE, HeaderValue::from_static(line));
            assert_eq!(
                idle_time(Version::HTTP_11, &headers, KEEP_ALIVE_TIME),
                expected,
                "{line}"
            );
            assert_eq!(
                idle_time(Version::HTTP_10, &headers, KEEP_ALIVE_TIME),
                None,
                "{line}"
            );
        }
        let mut headers = HeaderMap::new();
        headers.append(KEEP_ALIVE, HeaderValue::from_static("timeout=9"));
        headers.append(KEEP_ALIVE, HeaderValue::from_static("timeout=5"));
        assert_eq!(
            idle_time(Version::HTTP_11, &headers, KEEP_ALIVE_TIME),
            seconds(4)
        );
    }
}
