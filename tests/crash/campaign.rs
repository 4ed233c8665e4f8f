//! The gateway killed under load, again and again, on one directory.
//!
//! A round: a gateway is started, some tens of clients send requests with new keys and with keys that
//! were used before or are being used, and at a random instant the gateway is killed. Another is started
//! on what is left (now and then it is killed while it starts), and every key of the round is sent
//! again, with some of earlier rounds. What may be answered is in [`Book`]: what somebody was told is
//! replayed byte for byte, what was carried out and not recorded is unknown, and nothing is ever carried
//! out twice.
//!
//! `CRASH_ROUNDS` says how many rounds, `CRASH_SEED` which (the instants themselves are the machine's),
//! and `CRASH_TIDEGATE` whose gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::book::{Before, Book, Known, Phase};
use crate::harness::{Answer, Asking, Client, Process};
use crate::ledger::{KEY, Ledger};
use crate::scene::{Scene, kill};

const DEFAULT_ROUNDS: u64 = 25;

/// Clients at once.
const CLIENTS: usize = 48;

/// The longest a gateway is under load, in milliseconds.
const MOST_LOAD: u64 = 300;

/// The longest a gateway that is to die while it starts is left alone, in milliseconds.
const MOST_START: u64 = 40;

/// Keys of earlier rounds that are sent again in each.
const SAMPLE: usize = 300;

/// How long an answer may take; far more than the longest wait for another one's.
const HANG: Duration = Duration::from_secs(20);

/// Everything that outlives a gateway.
struct Campaign {
    scene: Scene,
    ledger: Arc<Ledger>,
    book: Arc<Mutex<Book>>,
}

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_at_any_instant_keeps_every_promise_it_made() {
    let rounds = number("CRASH_ROUNDS").unwrap_or(DEFAULT_ROUNDS);
    let seed = number("CRASH_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("crash: CRASH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);

    let files = tempfile::TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream = ledger.upstream(seed);
    let campaign = Campaign {
        scene: Scene::before(&upstream.url()),
        ledger,
        book: Arc::default(),
    };

    let mut process = campaign.scene.restart();
    let mut slowest = Duration::ZERO;
    let mut done = 0;
    for round in 1..=rounds {
        let before = campaign.book.lock().keys().len();
        campaign.load(&mut process, round, &mut random).await;
        if random.u8(..) < 50 {
            let mut doomed = campaign.scene.start(&[]);
            tokio::time::sleep(Duration::from_millis(random.u64(..MOST_START))).await;
            kill(&mut doomed);
        }
        let started = Instant::now();
        process = campaign.scene.restart();
        slowest = slowest.max(started.elapsed());
        campaign.review(&process, before, SAMPLE, &mut random).await;
        done = round;
        if !campaign.book.lock().violations.is_empty() {
            break;
        }
    }
    kill(&mut process);
    process = campaign.scene.restart();
    campaign.review(&process, 0, 0, &mut random).await;

    let repeated = campaign.ledger.repeated();
    let book = campaign.book.lock();
    println!(
        "crash: {done} rounds, {} requests, {} keys, {} executions, {} replays, {} unknowns, {} violations; slowest \
         start {} ms",
        book.requests,
        book.keys().len(),
        campaign.ledger.count(),
        book.replays,
        book.unknowns,
        book.violations.len() + repeated.len(),
        slowest.as_millis()
    );
    assert!(
        repeated.is_empty(),
        "carried out twice: {repeated:?}, seed {seed}"
    );
    assert!(
        book.violations.is_empty(),
        "seed {seed}: {:#?}",
        book.violations
    );
    // A campaign that found nothing to look at has shown nothing.
    assert!(book.replays > 0 && book.unknowns > 0);
}

impl Campaign {
    /// Puts a gateway under load until it is killed, at a random instant.
    async fn load(&self, process: &mut Process, round: u64, random: &mut fastrand::Rng) {
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let customer = Customer {
                client: process.client(),
                name: format!("{round}-{client}"),
                ledger: Arc::clone(&self.ledger),
                book: Arc::clone(&self.book),
                random: random.fork(),
            };
            clients.spawn(customer.ask_until(Arc::clone(&over)));
        }
        tokio::time::sleep(Duration::from_millis(random.u64(10..=MOST_LOAD))).await;
        kill(process);
        over.store(true, Ordering::Relaxed);
        clients.join_all().await;
    }

    /// Sends every key from the place `from` on once more, and a sample of those before.
    async fn review(
        &self,
        process: &Process,
        from: usize,
        sample: usize,
        random: &mut fastrand::Rng,
    ) {
        let mut keys = {
            let book = self.book.lock();
            let mut keys = book.keys()[from..].to_vec();
            let earlier = &book.keys()[..from];
            keys.extend((0..sample).filter_map(|_| random.choice(earlier).cloned()));
            keys
        };
        keys.sort();
        keys.dedup();
        random.shuffle(&mut keys);
        let mut reviewers = JoinSet::new();
        for keys in keys.chunks(keys.len().div_ceil(CLIENTS).max(1)) {
            let keys = keys.to_vec();
            let client = process.client();
            let (ledger, book) = (Arc::clone(&self.ledger), Arc::clone(&self.book));
            reviewers.spawn(async move {
                let mut connection = client.keep_alive().await;
                for key in keys {
                    let before = book.lock().send(&key, &ledger);
                    let asking = connection.try_send(asking(&client, &key));
                    match tokio::time::timeout(HANG, asking).await {
                        Ok(Ok(answer)) => {
                            let mut book = book.lock();
                            book.receive(&key, &before, &answer, Phase::Review, &ledger);
                        }
                        Ok(Err(error)) => {
                            let what = format!("no answer: {error}");
                            book.lock().violate(&key, Phase::Review, &what);
                            connection = client.keep_alive().await;
                        }
                        Err(_) => {
                            book.lock().violate(&key, Phase::Review, "hangs");
                            connection = client.keep_alive().await;
                        }
                    }
                }
            });
        }
        reviewers.join_all().await;
    }
}

/// A client under whose load the gateway dies.
struct Customer {
    client: Client,
    name: String,
    ledger: Arc<Ledger>,
    book: Arc<Mutex<Book>>,
    random: fastrand::Rng,
}

impl Customer {
    /// Sends one request after the other until the gateway is gone.
    async fn ask_until(mut self, over: Arc<AtomicBool>) {
        let Ok(mut connection) = self.client.try_keep_alive().await else {
            return;
        };
        for number in 0.. {
            let key = self.pick(number);
            let before = self.book.lock().send(&key, &self.ledger);
            let asking = connection.try_send(asking(&self.client, &key));
            match tokio::time::timeout(HANG, asking).await {
                Ok(Ok(answer)) => self.take(&key, &before, &answer),
                Ok(Err(_)) => return,
                Err(_) => {
                    let mut book = self.book.lock();
                    return book.violate(&key, Phase::Load, "hangs");
                }
            }
            if over.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn take(&self, key: &str, before: &Before, answer: &Answer) {
        let mut book = self.book.lock();
        book.receive(key, before, answer, Phase::Load, &self.ledger);
    }

    /// A new key, or one that somebody is using or has used.
    fn pick(&mut self, number: u64) -> String {
        let book = self.book.lock();
        let keys = book.keys();
        let known = match self.random.u8(..100) {
            0..15 => self
                .random
                .choice(&keys[keys.len().saturating_sub(CLIENTS)..]),
            15..25 => self.random.choice(keys),
            _ => None,
        };
        match known {
            Some(key) => key.clone(),
            None => format!("{}-{number}", self.name),
        }
    }
}

fn asking(client: &Client, key: &str) -> Asking {
    client.post("/work").header(KEY, key).body(key.to_owned())
}

/// In a build that anybody runs, naming a failpoint does nothing.
#[tokio::test]
#[ignore = "needs a release build in CRASH_TIDEGATE; `make crash` has one"]
async fn a_build_that_people_run_has_no_failpoints() {
    assert!(
        std::env::var_os("CRASH_TIDEGATE").is_some(),
        "CRASH_TIDEGATE must name a gateway built without the feature `failpoints`"
    );
    let files = tempfile::TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream = ledger.upstream(0);
    let scene = Scene::before(&upstream.url());
    let all = "before-claim=return;after-claim=return;mid-upstream=return;after-upstream=return;\
               after-commit=return;mid-reply=return";
    let mut process = scene.start(&[("FAILPOINTS", all)]);
    let client = process.client();
    let mut book = Book::default();
    for _ in 0..2 {
        let before = book.send("one", &ledger);
        let answer = asking(&client, "one").send().await;
        book.receive("one", &before, &answer, Phase::Load, &ledger);
    }
    assert_eq!(book.violations, [] as [String; 0]);
    assert!(matches!(book.known("one"), Some(Known::Answered(_))));
    assert_eq!(book.replays, 1);
    assert!(process.is_running());
}
