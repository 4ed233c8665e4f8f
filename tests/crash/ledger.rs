//! The API behind the gateway, which writes down everything it does before it says so.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::harness::{Answer, Upstream, full};

/// The header that carries the key.
pub(crate) const KEY: &str = "idempotency-key";

/// The header that carries the number of an execution.
const EXECUTION: &str = "x-execution";

/// The largest answer.
const MOST_BYTES: usize = 64 << 10;

/// The longest an answer takes, in milliseconds.
const MOST_MILLIS: u64 = 20;

/// Answers of which none says "not done", and none that the gateway did not do its work.
const STATUSES: [u16; 6] = [200, 201, 202, 400, 404, 422];

/// Every execution there was, on disk and in memory.
pub(crate) struct Ledger {
    file: Mutex<File>,
    executions: Mutex<Executions>,
}

#[derive(Default)]
struct Executions {
    by_key: HashMap<String, Vec<Print>>,
    count: u64,
}

/// What tells one answer from any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Print {
    status: u16,
    execution: String,
    body: blake3::Hash,
}

impl Print {
    /// The print of an answer that came from the API; none if it is the gateway's own.
    pub(crate) fn of(answer: &Answer) -> Option<Self> {
        answer.has(EXECUTION).then(|| Self {
            status: answer.status,
            execution: answer.header(EXECUTION),
            body: blake3::hash(&answer.body),
        })
    }
}

impl Ledger {
    pub(crate) fn at(path: &Path) -> Arc<Self> {
        Arc::new(Self {
            file: Mutex::new(File::create(path).unwrap()),
            executions: Mutex::default(),
        })
    }

    /// How often a key was carried out.
    pub(crate) fn times(&self, key: &str) -> usize {
        let executions = self.executions.lock();
        executions.by_key.get(key).map_or(0, Vec::len)
    }

    /// The answer of the one execution of a key.
    pub(crate) fn print(&self, key: &str) -> Option<Print> {
        let executions = self.executions.lock();
        executions.by_key.get(key)?.first().cloned()
    }

    pub(crate) fn count(&self) -> u64 {
        self.executions.lock().count
    }

    /// Keys that were carried out more than once.
    pub(crate) fn repeated(&self) -> Vec<String> {
        let executions = self.executions.lock();
        let repeated = executions.by_key.iter().filter(|(_, all)| all.len() > 1);
        repeated.map(|(key, _)| key.clone()).collect()
    }

    /// An API that answers each request differently and keeps this ledger.
    pub(crate) fn upstream(self: &Arc<Self>, seed: u64) -> Upstream {
        self.gated_upstream(seed, "", &watch::channel(true).1)
    }

    /// The same, answering keys that begin with `gated` no sooner than `gate` is open.
    pub(crate) fn gated_upstream(
        self: &Arc<Self>,
        seed: u64,
        gated: &'static str,
        gate: &watch::Receiver<bool>,
    ) -> Upstream {
        let (ledger, gate) = (Arc::clone(self), gate.clone());
        Upstream::with(move |received| {
            let (ledger, mut gate) = (Arc::clone(&ledger), gate.clone());
            async move {
                let key = received.header(KEY);
                let is_gated = key.starts_with(gated);
                let written = tokio::task::spawn_blocking(move || ledger.execute(&key, seed));
                let (status, number, body, pause) = written.await.unwrap();
                tokio::time::sleep(pause).await;
                // Whoever drops the gate leaves it open.
                drop(gate.wait_for(|open| *open || !is_gated).await);
                let mut reply = full(body);
                *reply.status_mut() = status.try_into().unwrap();
                reply.headers_mut().insert(EXECUTION, number.into());
                reply
            }
        })
    }

    /// Carries a request out: it is on disk when this returns.
    fn execute(&self, key: &str, seed: u64) -> (u16, u64, Bytes, Duration) {
        let number = {
            let mut executions = self.executions.lock();
            executions.count += 1;
            executions.count
        };
        let mut random = fastrand::Rng::with_seed(seed ^ number);
        let status = *random.choice(&STATUSES).unwrap_or(&200);
        // Mostly small ones, as answers are; some of all sizes.
        let most = if random.u8(..) < 240 && !key.starts_with("large") {
            1 << 10
        } else {
            MOST_BYTES
        };
        let mut body = format!("{number} {key} ").into_bytes();
        let more = random.usize(..most);
        body.extend(std::iter::repeat_with(|| random.u8(..)).take(more));
        let body = Bytes::from(body);
        {
            let mut file = self.file.lock();
            writeln!(file, "{number} {key}").unwrap();
            file.sync_data().unwrap();
        }
        let print = Print {
            status,
            execution: number.to_string(),
            body: blake3::hash(&body),
        };
        let mut executions = self.executions.lock();
        let all = executions.by_key.entry(key.to_owned()).or_default();
        all.push(print);
        let pause = Duration::from_millis(random.u64(..=MOST_MILLIS));
        (status, number, body, pause)
    }
}
