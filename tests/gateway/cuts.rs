//! Connections to servers that end at every byte of an exchange.
//!
//! Retries are configured as liberally as they can be. A POST without a key must all the same never reach
//! servers twice, unless nobody got a byte of it; a GET must get its answer in spite of all, as the other
//! server is well. Whether a connection that was closed before anything was read got the request cannot
//! always be known: there a POST may fail without having reached anybody, and that is not held against it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use parking_lot::Mutex;

use crate::harness::Gateway;
use crate::retries::{QUICK, before};
use crate::wire_raw::{Client, Conversation, End, Upstream, ok};

/// Where a connection ends, and how.
#[derive(Clone, Copy, Debug)]
struct Cut {
    at: At,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// As soon as it stands.
    Accepted,
    /// When so many bytes of the request were read.
    Request(usize),
    /// When so many bytes of the answer were sent.
    Answer(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Close,
    Reset,
    /// It does not end, and nothing more comes.
    Stall,
}

/// What a request is sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// A connection of its own.
    Fresh,
    /// One that carried a request before.
    KeptAlive,
}

impl Cut {
    /// Whether not a byte of the request is read, not even to be thrown away.
    fn leaves_all_unread(self) -> bool {
        self.at == At::Request(0) && self.how == How::Reset
    }
}

impl On {
    /// The head of the answer to every request.
    fn head(self) -> &'static str {
        match self {
            Self::Fresh => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n",
            Self::KeptAlive => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
        }
    }

    fn answer(self) -> String {
        format!("{}done", self.head())
    }

    /// Whether an answer that is cut here was begun: its head was passed on and cannot be taken back.
    fn is_begun(self, cut: Cut) -> bool {
        let body = self.head().len()..self.answer().len();
        matches!(cut.at, At::Answer(sent) if body.contains(&sent))
    }
}

/// Two servers, as they share it.
struct Stage {
    on: On,
    /// Awaits the next connection or request, whichever server gets it.
    cut: Mutex<Option<Cut>>,
    arrivals: Mutex<Vec<Arrival>>,
    /// Connections of each that wait for another request.
    waiting: [AtomicUsize; 2],
    /// Bytes of the last request that was read whole.
    request_len: AtomicUsize,
}

/// A request of which at least a byte was read.
struct Arrival {
    /// Which it was; `None` for those that only warm up a connection.
    case: Option<usize>,
    /// Whether its connection carried one before.
    reused: bool,
}

impl Stage {
    /// Serves one connection of a server.
    fn serve(&self, server: usize, conversation: &mut Conversation) {
        if let Some(cut) = self.take_if(|cut| cut.at == At::Accepted) {
            if half_close(conversation, cut.how)
                && let Some(case) = begins(conversation)
            {
                // It was sent all the same, to where somebody reads it.
                self.arrived(case, false);
                conversation.until_closed();
            }
            return;
        }
        let mut reused = false;
        while let Some(case) = begins(conversation) {
            if reused {
                self.waiting[server].fetch_sub(1, Ordering::SeqCst);
            }
            let cut = self.take_if(|_| true);
            if !cut.is_some_and(Cut::leaves_all_unread) {
                self.arrived(case, reused);
            }
            if let Some(cut) = cut {
                self.carry_out(cut, conversation);
                return;
            }
            if self.read(conversation).is_none() {
                return;
            }
            reused = true;
            self.waiting[server].fetch_add(1, Ordering::SeqCst);
            conversation.send(self.on.answer());
            if self.on == On::Fresh {
                self.waiting[server].fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
        if reused {
            self.waiting[server].fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn arrived(&self, case: Option<usize>, reused: bool) {
        self.arrivals.lock().push(Arrival { case, reused });
    }

    fn take_if(&self, wanted: impl FnOnce(&Cut) -> bool) -> Option<Cut> {
        self.cut.lock().take_if(|cut| wanted(cut))
    }

    /// Reads a request whole.
    fn read(&self, conversation: &mut Conversation) -> Option<()> {
        let request = conversation.request()?;
        let len = request.head.len() + request.body.len();
        self.request_len.store(len, Ordering::SeqCst);
        Some(())
    }

    fn carry_out(&self, cut: Cut, conversation: &mut Conversation) {
        match cut.at {
            At::Accepted => {}
            At::Request(bytes) => {
                let mut read = vec![0; bytes];
                let whole = conversation.stream.read_exact(&mut read);
                whole.expect("a request is sent whole");
            }
            At::Answer(bytes) => {
                self.read(conversation);
                conversation.send(&self.on.answer()[..bytes]);
            }
        }
        if half_close(conversation, cut.how) {
            conversation.until_closed();
        }
    }
}

/// Waits for a request to begin, without reading any of it, and says which it is.
fn begins(conversation: &Conversation) -> Option<Option<usize>> {
    let mut line = [0; 64];
    let length = conversation
        .stream
        .peek(&mut line)
        .ok()
        .filter(|&n| n > 0)?;
    let line = std::str::from_utf8(&line[..length]).expect("a request line");
    let target = line.split(' ').nth(1).expect("the head comes in one piece");
    Some(target.strip_prefix("/case/").map(|case| {
        let case = case.parse();
        case.expect("the number of a case")
    }))
}

/// Ends what is sent on a connection, and says whether to read on: to close with something unread would be to
/// reset.
fn half_close(conversation: &Conversation, how: How) -> bool {
    match how {
        How::Reset => conversation.will_reset(),
        How::Stall => {}
        How::Close => {
            // The gateway may have been faster.
            let _ = conversation.stream.shutdown(Shutdown::Write);
        }
    }
    how != How::Reset
}

/// A gateway before two servers that share a stage.
struct Lane {
    stage: Arc<Stage>,
    gateway: Gateway,
    _servers: [Upstream; 2],
}

/// What a client got.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    /// An answer that looks complete.
    Answer(u16, String),
    /// One that visibly is not, or none.
    Part,
}

impl Lane {
    /// With this patience for a head and between two parts of a body.
    fn start(on: On, patience: &str) -> Self {
        let stage = Arc::new(Stage {
            on,
            cut: Mutex::default(),
            arrivals: Mutex::default(),
            waiting: Default::default(),
            request_len: AtomicUsize::new(0),
        });
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

    fn ask(&self, method: &str, target: &str) -> Got {
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
    fn meet(&self, method: &str, case: usize, cut: Cut) -> Got {
        self.warm_up();
        *self.stage.cut.lock() = Some(cut);
        let got = self.ask(method, &format!("/case/{case:06}"));
        assert!(self.stage.cut.lock().is_none(), "{cut:?} was not met with");
        got
    }

    /// How many copies of each case arrived.
    fn copies(&self) -> BTreeMap<usize, usize> {
        let mut copies = BTreeMap::new();
        for arrival in self.stage.arrivals.lock().iter() {
            if let Some(case) = arrival.case {
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

/// Every place a connection can be cut at while it carries a request of this length.
fn cuts(on: On, request_len: usize) -> Vec<Cut> {
    let answer_len = on.answer().len();
    let accepted = (on == On::Fresh).then_some(At::Accepted);
    let ats = accepted
        .into_iter()
        .chain((0..=request_len).map(At::Request))
        .chain((0..=answer_len).map(At::Answer));
    let cuts = ats.flat_map(|at| [How::Close, How::Reset, How::Stall].map(|how| Cut { at, how }));
    // A server that stops reading a request that was sent is one that does not answer.
    cuts.filter(|cut| cut.how != How::Stall || matches!(cut.at, At::Answer(_)))
        .collect()
}

/// Has a request meet with every cut there is, on every kind of connection, and holds `check` against what came of
/// each: its cut, what its client got, and how many copies of it arrived.
fn everywhere(method: &str, check: impl Fn(On, Cut, &Got, usize) + Sync) {
    let check = &check;
    let lanes = [On::Fresh, On::KeptAlive].into_iter().flat_map(|on| {
        let probe = Lane::start(on, "20s");
        assert_eq!(
            probe.ask(method, "/case/000000"),
            Got::Answer(200, "done".into())
        );
        let request_len = probe.stage.request_len.load(Ordering::SeqCst);
        let (stalls, ends): (Vec<_>, Vec<_>) = cuts(on, request_len)
            .into_iter()
            .partition(|cut| cut.how == How::Stall);
        // What waits for a timeout is done many at once, what does not is not kept waiting by one.
        let stalls = split(stalls, 6)
            .into_iter()
            .map(move |cuts| (on, "300ms", cuts));
        let ends = split(ends, 2)
            .into_iter()
            .map(move |cuts| (on, "20s", cuts));
        stalls.chain(ends)
    });
    let lanes: Vec<_> = lanes.collect();
    let tried: usize = lanes.iter().map(|(_, _, cuts)| cuts.len()).sum();
    thread::scope(|scope| {
        for (on, patience, cuts) in lanes {
            scope.spawn(move || {
                let lane = Lane::start(on, patience);
                let cases = cuts.into_iter().enumerate();
                let cases: Vec<_> = cases
                    .map(|(case, cut)| (case, cut, lane.meet(method, case, cut)))
                    .collect();
                let copies = lane.copies();
                for (case, cut, got) in cases {
                    check(on, cut, &got, copies.get(&case).copied().unwrap_or(0));
                }
            });
        }
    });
    println!("{method}: cut at {tried} positions");
    assert!(tried > 500, "{tried}");
}

/// Deals out `cuts` to so many.
fn split(cuts: Vec<Cut>, hands: usize) -> Vec<Vec<Cut>> {
    let mut dealt = vec![Vec::new(); hands];
    for (number, cut) in cuts.into_iter().enumerate() {
        dealt[number % hands].push(cut);
    }
    dealt
}

#[test]
fn a_post_without_a_key_never_arrives_twice_wherever_its_connection_is_cut() {
    everywhere("POST", |on, cut, got, copies| {
        assert!(copies <= 1, "{copies} copies: {cut:?} on {on:?}");
        match got {
            Got::Answer(200, _) => assert_eq!(copies, 1, "{cut:?} on {on:?}"),
            Got::Answer(status, _) => assert!([502, 504].contains(status), "{got:?}: {cut:?}"),
            Got::Part => assert!(on.is_begun(cut), "{cut:?} on {on:?}"),
        }
        if let At::Request(1..) = cut.at {
            assert!(
                matches!(got, Got::Answer(502, _)),
                "{got:?}: {cut:?} on {on:?}"
            );
        }
    });
}

#[test]
fn a_get_is_answered_wherever_its_connection_is_cut() {
    let whole = Got::Answer(200, "done".into());
    everywhere("GET", |on, cut, got, _| {
        let is_cut_short = on.is_begun(cut) && *got == Got::Part;
        assert!(*got == whole || is_cut_short, "{got:?}: {cut:?} on {on:?}");
    });
}

/// A server that hands over a way to close each connection that waits for another request.
fn hanging_up(idle: &Arc<Mutex<Vec<TcpStream>>>) -> Upstream {
    let idle = Arc::clone(idle);
    Upstream::scripted(move |conversation| {
        while conversation.request().is_some() {
            let stream = conversation.stream.try_clone();
            idle.lock().push(stream.expect("an open socket"));
            conversation.send(ok("done"));
        }
    })
}

#[test]
fn a_post_that_crosses_with_the_end_of_its_connection_arrives_at_most_once() {
    let idle = Arc::default();
    let servers = [hanging_up(&idle), hanging_up(&idle)];
    let api = format!("{QUICK}attempts = 20");
    let gateway = before(&servers.each_ref().map(Upstream::url), &api)
        .and("[server]\nworkers = 1")
        .start();
    let mut client = Client::connect(gateway.address());
    let (mut done, mut lost) = (Vec::new(), Vec::new());
    for round in 0..500_u64 {
        client.send("GET /warm-up HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.answer().status, 200);
        let (go, is_time) = channel();
        let waiting = std::mem::take(&mut *idle.lock());
        let closing = thread::spawn(move || {
            is_time.recv().expect("a signal");
            // From well before the request to well after it.
            for _ in 0..round * 100 {
                std::hint::spin_loop();
            }
            for stream in waiting {
                match stream.shutdown(Shutdown::Write) {
                    Err(error) if error.kind() != ErrorKind::NotConnected => panic!("{error}"),
                    _ => {}
                }
            }
        });
        go.send(()).expect("a thread that waits");
        let line = format!("POST /round/{round} HTTP/1.1");
        client.send(format!(
            "{line}\r\nHost: a\r\nContent-Length: 4\r\n\r\nonce"
        ));
        let status = client.answer().status;
        closing.join().expect("no panic");
        match status {
            200 => done.push(line),
            502 => lost.push(line),
            other => panic!("round {round}: {other}"),
        }
    }
    drop(gateway);
    let received = servers.each_ref().map(Upstream::received).concat();
    let copies = |line: &String| received.matches(line.as_str()).count();
    assert!(done.iter().all(|line| copies(line) == 1));
    assert!(lost.iter().all(|line| copies(line) <= 1));
    let (done, lost) = (done.len(), lost.len());
    println!("of 500 posts {done} were carried out and {lost} crossed with a close");
}
