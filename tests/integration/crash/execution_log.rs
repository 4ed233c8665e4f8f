//! An upstream that writes every execution to a log on disk before it responds.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::support::{ClientResponse, Upstream, full};

/// Name of the request header with the idempotency key.
pub(crate) const KEY: &str = "idempotency-key";

/// Name of the response header with the number of the execution. Only the upstream sets it.
const EXECUTION: &str = "x-execution";

/// Maximum size of a response body, in bytes.
const MAX_BODY: usize = 64 << 10;

/// Maximum delay of a response, in milliseconds.
const MAX_DELAY_MILLIS: u64 = 20;

/// Statuses of the responses of the upstream. None of them makes the gateway release the idempotency key, and none is a
/// 5xx status, with which the gateway reports failures.
const STATUSES: [u16; 6] = [200, 201, 202, 400, 404, 422];

/// All executions of the upstream, in a file and in memory.
pub(crate) struct ExecutionLog {
    file: Mutex<File>,
    executions: Mutex<Executions>,
}

#[derive(Default)]
struct Executions {
    by_key: HashMap<String, Vec<ResponseDigest>>,
    count: u64,
}

/// Digest that identifies a response of the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseDigest {
    status: u16,
    execution: String,
    body: blake3::Hash,
}

impl ResponseDigest {
    /// Returns the digest of a response of the upstream. Returns `None` for a response that the gateway generated.
    pub(crate) fn of(response: &ClientResponse) -> Option<Self> {
        response.has(EXECUTION).then(|| Self {
            status: response.status,
            execution: response.header(EXECUTION),
            body: blake3::hash(&response.body),
        })
    }
}

impl ExecutionLog {
    pub(crate) fn at(path: &Path) -> Arc<Self> {
        Arc::new(Self {
            file: Mutex::new(File::create(path).unwrap()),
            executions: Mutex::default(),
        })
    }

    /// Returns how many requests with an idempotency key were executed.
    pub(crate) fn count_of(&self, key: &str) -> usize {
        let executions = self.executions.lock();
        executions.by_key.get(key).map_or(0, Vec::len)
    }

    /// Returns the digest of the response of the first execution with an idempotency key.
    pub(crate) fn digest(&self, key: &str) -> Option<ResponseDigest> {
        let executions = self.executions.lock();
        executions.by_key.get(key)?.first().cloned()
    }

    pub(crate) fn count(&self) -> u64 {
        self.executions.lock().count
    }

    /// Returns the idempotency keys with which more than one request was executed.
    pub(crate) fn repeated(&self) -> Vec<String> {
        let executions = self.executions.lock();
        let repeated = executions.by_key.iter().filter(|(_, all)| all.len() > 1);
        repeated.map(|(key, _)| key.clone()).collect()
    }

    /// Starts an upstream that logs its executions here. It responds differently to each request.
    pub(crate) fn upstream(self: &Arc<Self>, seed: u64) -> Upstream {
        self.gated_upstream(seed, "", &watch::channel(true).1)
    }

    /// Starts an upstream like [`Self::upstream`]. If the idempotency key of a request has the prefix `gated`, the
    /// upstream sends the response only when `gate` is `true`.
    pub(crate) fn gated_upstream(
        self: &Arc<Self>,
        seed: u64,
        gated: &'static str,
        gate: &watch::Receiver<bool>,
    ) -> Upstream {
        let (executions, gate) = (Arc::clone(self), gate.clone());
        Upstream::with(move |received| {
            let (executions, mut gate) = (Arc::clone(&executions), gate.clone());
            async move {
                let key = received.header(KEY);
                let is_gated = key.starts_with(gated);
                let written = tokio::task::spawn_blocking(move || executions.execute(&key, seed));
                let (status, number, body, delay) = written.await.unwrap();
                tokio::time::sleep(delay).await;
                // An error is ignored: it means that the sender of the gate was dropped, and then the response is sent.
                drop(gate.wait_for(|open| *open || !is_gated).await);
                let mut response = full(body);
                *response.status_mut() = status.try_into().unwrap();
                response.headers_mut().insert(EXECUTION, number.into());
                response
            }
        })
    }

    /// Executes a request. When this function returns, the execution is logged on disk.
    fn execute(&self, key: &str, seed: u64) -> (u16, u64, Bytes, Duration) {
        let number = {
            let mut executions = self.executions.lock();
            executions.count += 1;
            executions.count
        };
        let mut random = fastrand::Rng::with_seed(seed ^ number);
        let status = *random.choice(&STATUSES).unwrap_or(&200);
        // Most bodies have less than 1 KiB. The others have any size up to the maximum.
        let max_body = if random.u8(..) < 240 && !key.starts_with("large") {
            1 << 10
        } else {
            MAX_BODY
        };
        let mut body = format!("{number} {key} ").into_bytes();
        let more = random.usize(..max_body);
        body.extend(std::iter::repeat_with(|| random.u8(..)).take(more));
        let body = Bytes::from(body);
        {
            let mut file = self.file.lock();
            writeln!(file, "{number} {key}").unwrap();
            file.sync_data().unwrap();
        }
        let digest = ResponseDigest {
            status,
            execution: number.to_string(),
            body: blake3::hash(&body),
        };
        let mut executions = self.executions.lock();
        let all = executions.by_key.entry(key.to_owned()).or_default();
        all.push(digest);
        let delay = Duration::from_millis(random.u64(..=MAX_DELAY_MILLIS));
        (status, number, body, delay)
    }
}
