//! Requests that arrive at the moment when a real server closes its idle connections: uvicorn after 5 s, gunicorn after
//! 2 s, both without an announcement.
//!
//! `make idle` runs more rounds. `IDLE_TIDEGATE` is the gateway to test.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until};

use crate::gateway::python_servers::PythonServer;
use crate::support::{Process, env_number};

/// Requests of a round, each on its own idle connection.
const BURST: u32 = 50;

/// The requests of a round are sent from this long before the close to this long after it.
const AIM: Duration = Duration::from_millis(25);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Keyed,
}

async fn check(server: &PythonServer, close: Duration) {
    let gateway = Process::serving(&format!(
        "server = {{ listen = \"127.0.0.1:0\", workers = 1 }}\nadmin = {{ listen = \"127.0.0.1:0\" }}\n\
         log = {{ access = false }}\nupstream.api.servers = [\"{}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = {{ mode = \"optional\" }}\n",
        server.url()
    ));
    let gateway = gateway.binary_from_env("IDLE_TIDEGATE").start();
    let client = gateway.client();
    let mut failed = Vec::new();
    for round in 0..env_number("IDLE_ROUNDS").unwrap_or(2) {
        let warm_up = (0..BURST).map(|_| client.get("/warm-up").send());
        join_all(warm_up).await;
        let closes = Instant::now() + close;
        // A round has one kind of request, because keyed requests do not use the idle connections.
        let kind = if round % 2 == 0 {
            Kind::Get
        } else {
            Kind::Keyed
        };
        let responses = join_all((0..BURST).map(|number| {
            let client = client.clone();
            async move {
                sleep_until(closes - AIM + 2 * AIM * number / BURST).await;
                let path = format!("/{kind:?}/{round}/{number}");
                let request = match kind {
                    Kind::Get => client.get(&path),
                    Kind::Keyed => client.post(&path).key(&path).body("x"),
                };
                (path, request.send().await.status)
            }
        }));
        let responses = responses.await.into_iter();
        failed.extend(responses.filter(|(_, status)| *status != 200));
    }
    let executions = client.get("/counts").send().await.json();
    let executions: BTreeMap<String, u64> = serde_json::from_value(executions).unwrap();
    let twice = executions
        .iter()
        .filter(|(path, count)| path.starts_with("/Keyed") && **count > 1);
    assert_eq!(twice.count(), 0);
    assert_eq!(failed, []);
    let unknown = gateway
        .metric("idempotency_records{state=\"unknown\"}")
        .await;
    assert_eq!(unknown, 0);
    let resent = gateway
        .metric("upstream_resent_total{upstream=\"api\"}")
        .await;
    println!("{resent} requests met the close and were sent once more");
}

#[tokio::test]
async fn no_request_is_lost_when_uvicorn_closes_its_idle_connections() {
    check(
        &PythonServer::uvicorn("counting_app:asgi"),
        Duration::from_secs(5),
    )
    .await;
}

#[tokio::test]
async fn no_request_is_lost_when_gunicorn_closes_its_idle_connections() {
    let gunicorn = PythonServer::gunicorn("counting_app:wsgi", BURST as usize);
    check(&gunicorn, Duration::from_secs(2)).await;
}
