//! Mixed traffic of 500 requests per second, which runs while a test reloads or restarts the gateway: HTTP/1 and HTTP/2,
//! without a limit, with a limit, and with idempotency keys that are each sent twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::support::{
    Client, ClientRequest, ClientResponse, PersistentConnection as Connection, TEST_TIMEOUT,
    Upstream, full, reply,
};

const RATE: u32 = 500;

/// Half of the clients use HTTP/1 and half use HTTP/2. Each has one connection.
const CLIENTS: u32 = 20;

/// Attempts of a client that retries.
const ATTEMPTS: u32 = 5;

/// Routes of the traffic. The route `limited` needs a limit `device`.
pub(crate) const ROUTES: &str = "\
[[route]]\nname = \"free\"\npath = \"/free\"\n\
[[route]]\nname = \"limited\"\npath = \"/limited\"\nlimits = [\"device\"]\n\
[[route]]\nname = \"pay\"\npath = \"/pay\"\nidempotency = { mode = \"required\", scope = \"shared\" }\n";

/// How often the upstream executed the request of each key.
#[derive(Clone, Default)]
pub(crate) struct Executions(Arc<Mutex<HashMap<String, u32>>>);

pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    clients: JoinSet<Tally>,
}

/// Responses to one or more clients.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: usize,
    /// Why requests did not get the expected response.
    pub(crate) failures: Vec<String>,
    /// Responses to requests to `/limited`.
    pub(crate) limited: Vec<Limited>,
    /// Number of keys that were sent twice.
    pub(crate) keys: usize,
}

/// Response to a request to `/limited`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limited {
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
    /// If the request was admitted, the capacity of the bucket that it was charged to.
    pub(crate) admitted_of: Option<f64>,
}

impl Executions {
    /// Creates an upstream that counts the executions of each key.
    pub(crate) fn upstream(&self) -> Upstream {
        let executions = self.clone();
        Upstream::with(move |received| {
            let key = received.header("idempotency-key");
            if !key.is_empty() {
                *executions.0.lock().entry(key.clone()).or_default() += 1;
            }
            async move {
                if key.is_empty() {
                    full("free")
                } else {
                    reply(201, format!("created {key}"))
                }
            }
        })
    }

    /// Returns the keys that were executed several times.
    pub(crate) fn repeated(&self) -> Vec<String> {
        let executions = self.0.lock();
        let repeated = executions.iter().filter(|(_, count)| **count > 1);
        repeated.map(|(key, _)| key.clone()).collect()
    }
}

impl Traffic {
    /// Starts the traffic. `retries` states whether clients send a request again on a new connection if they got no
    /// response. `keeps_keys` states whether the second request with a key must get the response to the first.
    pub(crate) fn start(client: &Client, retries: bool, keeps_keys: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let client = if number % 2 == 0 {
                client.clone()
            } else {
                client.clone().h2()
            };
            let sender = Sender {
                number,
                client,
                attempts: if retries { ATTEMPTS } else { 1 },
                keeps_keys,
                tally: Tally::default(),
            };
            clients.spawn(sender.run(Arc::clone(&stop)));
        }
        Self { stop, clients }
    }

    /// Ends the traffic. Asserts that all requests got the expected responses.
    pub(crate) async fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut total = Tally::default();
        for tally in self.clients.join_all().await {
            total.requests += tally.requests;
            total.failures.extend(tally.failures);
            total.limited.extend(tally.limited);
            total.keys += tally.keys;
        }
        let failures = &total.failures;
        let some: Vec<_> = failures.iter().take(10).collect();
        assert!(
            failures.is_empty(),
            "{} failures: {some:#?}",
            failures.len()
        );
        total.limited.sort_by_key(|limited| limited.sent);
        total
    }
}

struct Sender {
    number: u32,
    client: Client,
    attempts: u32,
    keeps_keys: bool,
    tally: Tally,
}

impl Sender {
    async fn run(mut self, stop: Arc<AtomicBool>) -> Tally {
        let mut connection = None;
        // The clients do not send in step, so that each kind of request is sent all the time.
        let start = Instant::now() + Duration::from_secs(1) * self.number / RATE;
        let mut ticks = interval_at(start, Duration::from_secs(1) * CLIENTS / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in self.number.. {
            ticks.tick().await;
            if stop.load(Ordering::Relaxed) {
                break;
            }
            match number % 10 {
                0..6 => self.free(&mut connection).await,
                6..9 => self.limited(&mut connection).await,
                // Both requests with a key count towards the rate.
                _ => {
                    let key = format!("{}-{number}", self.number);
                    self.keyed(&mut connection, &key, &mut ticks).await;
                }
            }
        }
        self.tally
    }

    async fn free(&mut self, connection: &mut Option<Connection>) {
        let request = |client: &Client| client.get("/free");
        if let Some(response) = self.send(connection, request).await
            && response.status != 200
        {
            self.fail(format!("free: {} {}", response.status, response.text()));
        }
    }

    async fn limited(&mut self, connection: &mut Option<Connection>) {
        let sent = Instant::now();
        let response = self.send(connection, |client| client.get("/limited")).await;
        let Some(response) = response else { return };
        let admitted_of = match response.status {
            200 => Some(capacity(&response)),
            429 => None,
            status => return self.fail(format!("limited: {status} {}", response.text())),
        };
        self.tally.limited.push(Limited {
            sent,
            received: Instant::now(),
            admitted_of,
        });
    }

    async fn keyed(
        &mut self,
        connection: &mut Option<Connection>,
        key: &str,
        ticks: &mut tokio::time::Interval,
    ) {
        let request = |client: &Client| client.post("/pay").key(key).body("{}");
        let expected = format!("created {key}");
        self.tally.keys += 1;
        for is_second in [false, true] {
            if is_second {
                ticks.tick().await;
            }
            let Some(response) = self.send(connection, request).await else {
                return;
            };
            if (response.status, &*response.text()) != (201, &expected) {
                self.fail(format!("keyed: {} {}", response.status, response.text()));
            } else if is_second && self.keeps_keys && !response.has("idempotent-replayed") {
                self.fail(format!("keyed: no replay of {key}"));
            }
        }
    }

    /// Sends a request on the connection, or on a new one if there is none. Records a failure if no attempt gets a
    /// response.
    async fn send(
        &mut self,
        connection: &mut Option<Connection>,
        request: impl Fn(&Client) -> ClientRequest,
    ) -> Option<ClientResponse> {
        self.tally.requests += 1;
        let mut failure = String::new();
        for _ in 0..self.attempts {
            let attempt = async {
                let open = match connection.take() {
                    Some(open) => connection.insert(open),
                    None => connection.insert(self.client.try_keep_alive().await?),
                };
                open.try_send(request(&self.client)).await
            };
            match timeout(TEST_TIMEOUT, attempt).await {
                Ok(Ok(response)) => {
                    if response.header("connection").contains("close") {
                        *connection = None;
                    }
                    return Some(response);
                }
                Ok(Err(error)) => failure = format!("{error:?}"),
                Err(_) => failure = "timed out".into(),
            }
            *connection = None;
        }
        self.fail(failure);
        None
    }

    fn fail(&mut self, failure: String) {
        self.tally.failures.push(failure);
    }
}

/// Returns the capacity in `RateLimit-Policy`.
fn capacity(response: &ClientResponse) -> f64 {
    let policy = response.header("ratelimit-policy");
    let capacity = policy.split(';').find_map(|it| it.strip_prefix("q="));
    let capacity = capacity.and_then(|it| it.parse().ok());
    capacity.unwrap_or_else(|| panic!("no capacity in {policy:?}"))
}
