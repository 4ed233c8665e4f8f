//! A gateway before two servers that cut connections, and its client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::stage::{Asked, Cut, On, Stage};
use crate::harness::Gateway;
use crate::retries::{QUICK, before};
use crate::wire_raw::{Client, End, Upstream};

/// A gateway before two servers that share a stage.
pub(super) struct Lane {
    pub(super) stage: Arc<Stage>,
    gateway: Gateway,
    _servers: [Upstream; 2],
}

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// An answer that looks complete.
    Answer(u16, String),
    /// One that visibly is not, or none.
    Part,
}

impl Lane {
    /// With this patience for a head and between two parts of a body.
    pub(super) fn start(on: On, patience: &str) -> Self {
        let stage = Arc::new(Stage::new(on));
        let servers = [0, 1].map(|server| {
            let stage = Arc::clone(&stage);
            Upstream::scripted(move |conversation| stage.serve(server, conversation))
        });
        let api = format!(
            "first_byte_timeout = \"{patience}\"\nidle_timeout = \"{patience}\"\n{QUICK}attempts = 20"
        );
        let gateway = before(&servers.each_ref().map(Upstream::url), &api)
            .and("[server]\nworkers = 1")
            .start();
        Self {
            stage,
            gateway,
            _servers: servers,
        }
    }

    /// Has both servers ready for a request, on connections as they are to be.
    fn warm_up(&self) {
        let is_cold = |waiting: &AtomicUsize| waiting.load(Ordering::SeqCst) == 0;
        while self.stage.on == On::KeptAlive && self.stage.waiting.iter().any(is_cold) {
            let got = self.ask("GET", "/warm-up");
            assert_eq!(got, Got::Answer(200, "done".into()));
        }
    }

    pub(super) fn ask(&self, method: &str, target: &str) -> Got {
        let mut client = Client::connect(self.gateway.address());
        let body = match method {
            "POST" => "Content-Length: 4\r\n\r\nonce",
            _ => "\r\n",
        };
        client.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}"
        ));
        let (bytes, end) = client.rest();
        let text = String::from_utf8(bytes).expect("text");
        match complete(&text) {
            Some((status, body)) if end == End::Closed => Got::Answer(status, body.to_owned()),
            _ => Got::Part,
        }
    }

    /// What a client gets whose request meets with `cut`.
    pub(super) fn meet(&self, method: &str, case: usize, cut: Cut) -> Got {
        self.warm_up();
        *self.stage.cut.lock() = Some(cut);
        let got = self.ask(method, &format!("/case/{case:06}"));
        assert!(self.stage.cut.lock().is_none(), "{cut:?} was not met with");
        got
    }

    /// How many copies of each case arrived.
    pub(super) fn copies(&self) -> BTreeMap<usize, usize> {
        let mut copies = BTreeMap::new();
        for arrival in self.stage.arrivals.lock().iter() {
            if let Asked::Case(case) = arrival.asked {
                *copies.entry(case).or_default() += 1;
                let is_first = copies[&case] == 1;
                let is_kept = self.stage.on == On::KeptAlive;
                assert!(!is_first || arrival.reused == is_kept, "case {case}");
            }
        }
        copies
    }
}

/// The status and the body of an answer, if all of it is there.
fn complete(text: &str) -> Option<(u16, &str)> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.get(9..12)?.parse().ok()?;
    let head = head.to_ascii_lowercase();
    let (_, length) = head.split_once("content-length: ")?;
    let length: usize = length.lines().next()?.parse().ok()?;
    (body.len() == length).then_some((status, body))
}
