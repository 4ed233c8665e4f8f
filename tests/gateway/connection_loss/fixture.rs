//! Gateway in front of two servers that end connections, and its client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::closing_servers::{ConnectionKind, Loss, ReceivedRequest, ServerPair};
use crate::harness::Gateway;
use crate::raw_http::{End, RawClient, RawUpstream};
use crate::retries::{QUICK, gateway_to};

/// Gateway in front of a pair of servers.
pub(super) struct Fixture {
    pub(super) servers: Arc<ServerPair>,
    gateway: Gateway,
    _upstreams: [RawUpstream; 2],
}

/// What the client received.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientResult {
    /// A response that looks complete.
    Complete(u16, String),
    /// No response, or one that is visibly incomplete.
    Incomplete,
}

impl Fixture {
    /// Starts the servers and a gateway with this `first_byte_timeout` and `idle_timeout`.
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

    /// Makes both servers hold an idle connection, if the test is about reused connections.
    fn warm_up(&self) {
        let has_no_idle = |waiting: &AtomicUsize| waiting.load(Ordering::SeqCst) == 0;
        while self.servers.connection_kind == ConnectionKind::Reused
            && self.servers.waiting.iter().any(has_no_idle)
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
        let text = String::from_utf8(bytes).expect("text");
        match parse_complete(&text) {
            Some((status, body)) if end == End::Closed => {
                ClientResult::Complete(status, body.to_owned())
            }
            _ => ClientResult::Incomplete,
        }
    }

    /// Sends a request that meets this loss, and returns the client's result.
    pub(super) fn run(&self, method: &str, case: usize, loss: Loss) -> ClientResult {
        self.warm_up();
        *self.servers.loss.lock() = Some(loss);
        let result = self.send(method, &format!("/case/{case:06}"));
        assert!(self.servers.loss.lock().is_none(), "{loss:?} did not occur");
        result
    }

    /// Returns the number of copies of each case that reached a server.
    pub(super) fn copies(&self) -> BTreeMap<usize, usize> {
        let mut copies = BTreeMap::new();
        for arrival in self.servers.arrivals.lock().iter() {
            if let ReceivedRequest::Case(case) = arrival.request {
                *copies.entry(case).or_default() += 1;
                let is_first = copies[&case] == 1;
                let is_reused = self.servers.connection_kind == ConnectionKind::Reused;
                assert!(!is_first || arrival.reused == is_reused, "case {case}");
            }
        }
        copies
    }
}

/// Returns the status and the body of a response if it is complete.
fn parse_complete(text: &str) -> Option<(u16, &str)> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.get(9..12)?.parse().ok()?;
    let head = head.to_ascii_lowercase();
    let (_, length) = head.split_once("content-length: ")?;
    let length: usize = length.lines().next()?.parse().ok()?;
    (body.len() == length).then_some((status, body))
}
