//! Tests of circuit breakers without a `[breaker]` section. Connect failures open such a breaker, but of a sole server
//! only connect timeouts. Failed responses open it only if the server is the single outlier among several servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;

use super::{assert_rejected, endless};
use crate::support::{
    ClientRequest, FullBacklog, Gateway, Received, Reply, TEST_TIMEOUT, Upstream, empty,
    eventually, full,
};

/// Number of clients that send ordinary requests while another client makes the API fail.
const OTHERS: u8 = 10;

/// Upstream timeouts so short that a request for `/silent` exceeds them.
const SHORT_TIMEOUTS: &str = "first_byte_timeout = \"200ms\"\nidle_timeout = \"200ms\"";

/// Responds according to the path. `/status/N` gets the status N, `/silent` gets no response, and `/events` gets an
/// endless body. Every other path gets 200.
async fn as_requested(received: Received) -> Reply {
    if let Some(status) = received.target.strip_prefix("/status/") {
        return empty(status.parse().expect("the status is valid"));
    }
    match &*received.target {
        "/silent" => std::future::pending().await,
        "/events" => endless(),
        _ => full("ok"),
    }
}

/// Sends `times` concurrent requests and then six sequential ones for each target, all from one client. Meanwhile ten
/// other clients send requests for `/`. Asserts that all requests for `/` get 200.
async fn send_misuse(gateway: &Gateway, times: usize, targets: &[&str]) {
    let is_done = Arc::new(AtomicBool::new(false));
    let mut others = JoinSet::new();
    for number in 1..=OTHERS {
        let client = gateway.client().from(&format!("127.0.0.{number}"));
        let is_done = Arc::clone(&is_done);
        others.spawn(async move {
            let mut connection = client.keep_alive().await;
            let mut last = false;
            while !last {
                last = is_done.load(Ordering::SeqCst);
                let response = connection.send(client.get("/")).await;
                assert_eq!(response.status, 200, "{}", response.text());
            }
        });
    }
    let client = gateway.client().from("127.0.0.99");
    for target in targets {
        let sent: JoinSet<_> = (0..times)
            .map(|_| client.get(target))
            .map(ClientRequest::try_send)
            .collect();
        for response in sent.join_all().await {
            let status = response.ok().map(|response| response.status);
            assert_ne!(status, Some(200), "{target}");
        }
        // Failures of sequential requests can be consecutive. They must not open the circuit either.
        for _ in 0..6 {
            drop(client.get(target).try_send().await);
        }
    }
    is_done.store(true, Ordering::SeqCst);
    let ended = tokio::time::timeout(TEST_TIMEOUT, others.join_all()).await;
    ended.expect("the other clients get all their responses in time");
}

async fn assert_never_opened(gateway: &Gateway) {
    for server in gateway.servers().await {
        let circuit = &server["circuit"];
        assert_eq!(circuit["state"], "closed", "{circuit}");
        assert_eq!(circuit["openings"], 0, "{circuit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_makes_the_only_server_fail_causes_no_error_for_others() {
    let upstream = Upstream::with(as_requested);
    let gateway = Gateway::with_servers(1, SHORT_TIMEOUTS)
        .upstream(&upstream)
        .admin()
        .start();
    let targets = ["/status/500", "/status/502", "/status/503", "/silent"];
    send_misuse(&gateway, 100, &targets).await;
    assert_never_opened(&gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_streams_cut_by_a_timeout_cause_no_error_for_others() {
    // A stream cut by `idle_timeout` or `timeout` is not a failure of the server, with or without breaker settings.
    for breaker in ["", "breaker = { consecutive_failures = 1 }"] {
        for timeout in ["idle_timeout = \"200ms\"", "timeout = \"400ms\""] {
            let upstream = Upstream::with(as_requested);
            let gateway = Gateway::with_servers(1, &format!("{timeout}\n{breaker}"))
                .upstream(&upstream)
                .admin()
                .start();
            send_misuse(&gateway, 5, &["/events"]).await;
            assert_never_opened(&gateway).await;
            assert_eq!(gateway.circuit().await["window"]["failed"], 0);
        }
    }
}

#[tokio::test]
async fn connect_timeouts_open_the_circuit_of_a_sole_server_until_a_connection() {
    let unresponsive = FullBacklog::new();
    let gateway = Gateway::with_servers(1, "connect_timeout = \"50ms\"")
        .upstream_url(&unresponsive.url())
        .admin()
        .start();
    let client = gateway.client();
    for _ in 0..5 {
        assert_eq!(client.get("/").send().await.status, 504);
    }
    let rejected = client.get("/").send().await;
    assert_rejected(&rejected);
    assert_eq!(rejected.retry_after(), 1);
    // From now on the port accepts connections, but no response follows.
    unresponsive.accept();
    let mut probe = None;
    eventually("the circuit closes before a response", async || {
        let circuit = gateway.circuit().await;
        if circuit["state"] == "half_open" {
            probe.get_or_insert_with(|| tokio::spawn(client.get("/").try_send()));
        }
        circuit["state"] == "closed"
    })
    .await;
    let probe = probe.expect("the circuit was half-open");
    assert!(!probe.is_finished());
    probe.abort();
}

/// Sends 60 requests per server, which is three times the minimum for an outlier decision. Returns for each server why
/// its circuit opened, or `None` if it did not open.
async fn opened_by(servers: &[&Upstream]) -> Vec<Option<String>> {
    let mut builder = Gateway::with_servers(servers.len(), "").admin();
    for server in servers {
        builder = builder.upstream(server);
    }
    let gateway = builder.start();
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    for _ in 0..60 * servers.len() {
        connection.send(client.get("/")).await;
    }
    let circuits = gateway.servers().await.into_iter();
    let causes = circuits.map(|server| server["circuit"]["opened_by"].as_str().map(str::to_owned));
    causes.collect()
}

#[tokio::test]
async fn the_circuit_of_one_outlier_among_several_servers_opens() {
    let (healthy, other) = (Upstream::replying(200), Upstream::replying(404));
    let failing = Upstream::replying(503);
    let causes = opened_by(&[&healthy, &failing, &other]).await;
    assert_eq!(causes, [None, Some("outlier".into()), None]);
    let requests = failing.count();
    assert!(requests < 60, "the failing server got {requests} requests");
    let resetting = Upstream::resetting();
    let causes = opened_by(&[&healthy, &resetting]).await;
    assert_eq!(causes, [None, Some("outlier".into())]);
}

#[tokio::test]
async fn an_outlier_gets_requests_again_when_no_other_server_is_left() {
    let (healthy, failing) = (Upstream::replying(200), Upstream::replying(503));
    let gateway = Gateway::with_servers(2, "")
        .upstream(&healthy)
        .upstream(&failing)
        .admin()
        .start();
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    for _ in 0..120 {
        connection.send(client.get("/")).await;
    }
    assert_eq!(
        gateway.servers().await[1]["circuit"]["opened_by"],
        "outlier"
    );
    let open = format!("/admin/v1/upstreams/api/servers/{}/open", healthy.address());
    assert_eq!(gateway.admin().post(&open).send().await.status, 200);
    for _ in 0..20 {
        let response = connection.send(client.get("/")).await;
        assert_eq!((response.status, response.text().as_str()), (503, "ok"));
    }
    assert_eq!(gateway.servers().await[1]["circuit"]["state"], "closed");
}
