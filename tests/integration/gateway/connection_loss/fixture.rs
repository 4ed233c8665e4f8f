//! Gateway in front of two servers that end their connections, and a client of this gateway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::closing_servers::{ConnectionKind, Loss, ReceivedRequest, ServerPair};
use crate::gateway::retries::{QUICK, gateway_to};
use crate::support::Gateway;
use crate::support::raw_http::{End, RawClient, RawUpstream};

/// Gateway in front of two servers that end connections in the ways that the test sets.
pub(super) struct Fixture {
    pub(super) servers: Arc<ServerPair>,
    gateway: Gateway,
    _upstreams: [RawUpstream; 2],
}

/// Result of one request, as the client of the gateway sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientResult {
    /// A response whose body has its declared length: status and body.
    Complete(u16, String),
    /// No response, or a response that ends before its declared length or by a reset.
    Incomplete,
}

impl Fixture {
    /// Starts two servers and a gateway whose `first_byte_timeout` and `idle_timeout` are both `timeout`.
    pub(super) fn start(connection: ConnectionKind, timeout: &str) -> Self {
        let servers = Arc::new(ServerPair::new(connection));
        let upstreams = [0, 1].map(|server| {
            let servers = Arc::clone(&servers);
            RawUpstream::scripted(move |connection| servers.serve(server, connection))
        });
        let api = format!(
            "first_byte_timeout = \"{timeout}\"\nidle_timeout = \"{timeout}\"\n{QUICK}attempts = 20"
        );
        let gateway = gateway_to(&upstreams.each_ref().map(RawUpstream::url), &api)
            .with_section("[server]\nworkers = 1")
            .start();
        Self {
            servers,
            gateway,
            _upstreams: upstreams,
        }
    }

    /// Sends requests until each server has an idle connection to the gateway. Does nothing if the test uses
    /// [`ConnectionKind::Fresh`].
    fn warm_up(&self) {
        let servers = &self.servers;
        let has_no_idle = |waiting: &AtomicUsize| waiting.load(Ordering::SeqCst) == 0;
        let is_recent = |used: &Mutex<Option<Instant>>| {
            used.lock()
                .is_some_and(|used| used.elapsed() < Duration::from_millis(500))
        };
        while servers.connection_kind == ConnectionKind::Reused
            && (servers.waiting.iter().any(has_no_idle) || !servers.last_used.iter().all(is_recent))
        {
            let result = self.send("GET", "/warm-up");
            assert_eq!(result, ClientResult::Complete(200, "done".into()));
        }
    }

    pub(super) fn send(&self, method: &str, target: &str) -> ClientResult {
        let mut client = RawClient::connect(self.gateway.address());
        let body = match method {
            "POST" => "Content-Length: 4\r\n\r\nonce",
            _ => "\r\n",
        };
        client.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}"
        ));
        let (bytes, end) = client.read_to_end();
        let text = String::from_utf8(bytes).expect("the value is text");
        match parse_complete(&text) {
            Some((status, body)) if end == End::Closed => {
                ClientResult::Complete(status, body.to_owned())
            }
            _ => ClientResult::Incomplete,
        }
    }

    /// Sends the request with the number `case` while a server ends its connection in the way that `loss` states.
    /// Returns the client's result.
    pub(super) fn run(&self, method: &str, case: usize, loss: Loss) -> ClientResult {
        self.warm_up();
        *self.servers.loss.lock() = Some(loss);
        let result = self.send(method, &format!("/case/{case:06}"));
        assert!(
            self.servers.loss.lock().is_none(),
            "no server ended a connection by {loss:?}"
        );
        result
    }

    /// Returns for each case how many times the two servers have received the request of this case.
    pub(super) fn copies(&self) -> BTreeMap<usize, usize> {
        let mut copies = BTreeMap::new();
        let unread = self.servers.unread.lock();
        for arrival in self.servers.arrivals.lock().iter() {
            if let ReceivedRequest::Case(case) = arrival.request {
                *copies.entry(case).or_default() += 1;
                let is_first = copies[&case] == 1;
                let is_reused = self.servers.connection_kind == ConnectionKind::Reused;
                assert!(
                    !is_first || arrival.reused == is_reused || unread.contains(&arrival.request),
                    "case {case} did not arrive on the intended kind of connection"
                );
            }
        }
        copies
    }
}

/// Parses the status and the body of a response. Returns `None` if the body does not have its declared length.
fn parse_complete(text: &str) -> Option<(u16, &str)> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.get(9..12)?.parse().ok()?;
    let head = head.to_ascii_lowercase();
    let (_, length) = head.split_once("content-length: ")?;
    let length: usize = length.lines().next()?.parse().ok()?;
    (body.len() == length).then_some((status, body))
}
