//! Tests of active health checks, which eject failing servers from load balancing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use crate::support::{Gateway, Received, StatusSwitch, Upstream, empty, eventually, full};

const INTERVAL: Duration = Duration::from_millis(100);
const HEALTH: &str =
    "health = { path = \"/healthz?full=1\", interval = \"100ms\", timeout = \"100ms\" }";

/// Server that responds to health checks with the status of `switch`, and to all other requests with 200.
struct CheckedServer {
    upstream: Upstream,
    switch: StatusSwitch,
}

impl CheckedServer {
    fn with_status(status: u16) -> Self {
        let (_, switch) = Upstream::with_status_switch(status);
        let handle = switch.clone();
        let upstream = Upstream::with(move |received| {
            std::future::ready(if is_check(&received) {
                handle.reply()
            } else {
                full("ok")
            })
        });
        Self { upstream, switch }
    }

    fn checks(&self) -> Vec<Received> {
        let mut checks = self.upstream.requests();
        checks.retain(is_check);
        checks
    }

    /// Returns the number of received requests that are not health checks.
    fn request_count(&self) -> usize {
        let requests = self.upstream.requests();
        requests.iter().filter(|request| !is_check(request)).count()
    }

    fn ejected(&self) -> String {
        let server = self.upstream.address();
        format!("server_ejected{{upstream=\"api\",server=\"{server}\"}}")
    }
}

fn is_check(received: &Received) -> bool {
    received.target == "/healthz?full=1"
}

fn gateway(servers: &[&CheckedServer], more: &str) -> Gateway {
    let api = format!("{HEALTH}\nslow_start = \"0s\"\n{more}");
    let mut builder = Gateway::with_servers(servers.len(), &api).admin();
    for server in servers {
        builder = builder.upstream(&server.upstream);
    }
    builder.start()
}

async fn send_requests(gateway: &Gateway, times: usize) {
    for _ in 0..times {
        assert_eq!(gateway.client().get("/").send().await.status, 200);
    }
}

#[tokio::test]
async fn an_ejected_server_gets_no_requests_until_it_passes_its_checks() {
    let (healthy, failing) = (
        CheckedServer::with_status(200),
        CheckedServer::with_status(503),
    );
    let gateway = gateway(&[&healthy, &failing], "");
    gateway.wait_for_metric(&failing.ejected(), 1).await;
    gateway.wait_for_metric(&healthy.ejected(), 0).await;
    let before = failing.request_count();
    send_requests(&gateway, 60).await;
    assert_eq!(
        failing.request_count(),
        before,
        "the ejected server got a request"
    );
    assert_eq!(gateway.servers().await[1]["ejected"], true);

    failing.switch.set_status(200);
    gateway.wait_for_metric(&failing.ejected(), 0).await;
    assert_eq!(gateway.servers().await[1]["ejected"], false);
    send_requests(&gateway, 60).await;
    assert!(
        failing.request_count() > before,
        "the server gets no requests although it passes its health checks again"
    );
}

#[tokio::test]
async fn two_consecutive_failed_checks_do_not_eject_a_server() {
    let healthy = CheckedServer::with_status(200);
    let count = AtomicUsize::new(0);
    let unsteady = Upstream::with(move |received| {
        let fails = is_check(&received) && count.fetch_add(1, Ordering::SeqCst) % 3 != 2;
        std::future::ready(empty(if fails { 503 } else { 204 }))
    });
    let gateway = Gateway::with_servers(2, HEALTH)
        .upstream(&healthy.upstream)
        .upstream(&unsteady)
        .admin()
        .start();
    while unsteady.count() < 12 {
        assert_eq!(gateway.servers().await[1]["ejected"], false);
        sleep(INTERVAL / 10).await;
    }
}

#[tokio::test]
async fn a_server_whose_check_times_out_is_ejected() {
    let healthy = CheckedServer::with_status(200);
    let silent = Upstream::with(|received| async move {
        if is_check(&received) {
            std::future::pending().await
        } else {
            full("ok")
        }
    });
    let gateway = Gateway::with_servers(2, HEALTH)
        .upstream(&healthy.upstream)
        .upstream(&silent)
        .admin()
        .start();
    let server = silent.address();
    let ejected = format!("server_ejected{{upstream=\"api\",server=\"{server}\"}}");
    gateway.wait_for_metric(&ejected, 1).await;
}

#[tokio::test]
async fn max_ejected_bounds_the_number_of_ejected_servers() {
    let (one, other) = (
        CheckedServer::with_status(500),
        CheckedServer::with_status(404),
    );
    let gateway = gateway(&[&one, &other], "max_ejected = 0.5");
    let ejected = async || {
        let servers = gateway.servers().await;
        let ejected = servers.iter().map(|server| server["ejected"] == true);
        ejected.collect::<Vec<_>>()
    };
    gateway.wait_for_metric(&one.ejected(), 1).await;
    let seen = other.checks().len();
    eventually("the servers fail six more health checks", async || {
        other.checks().len() > seen + 6
    })
    .await;
    assert_eq!(ejected().await, [true, false]);
    let before = one.request_count();
    send_requests(&gateway, 30).await;
    assert_eq!((one.request_count(), other.request_count()), (before, 30));

    // `max_ejected` allows one ejected server. When the first server is healthy again, the other one can be ejected.
    one.switch.set_status(200);
    gateway.wait_for_metric(&other.ejected(), 1).await;
    assert_eq!(ejected().await, [false, true]);
}

#[tokio::test]
async fn if_all_servers_are_ejected_they_get_requests_anyway() {
    let (one, other) = (
        CheckedServer::with_status(500),
        CheckedServer::with_status(500),
    );
    let gateway = gateway(&[&one, &other], "max_ejected = 1.0");
    gateway.wait_for_metric(&one.ejected(), 1).await;
    gateway.wait_for_metric(&other.ejected(), 1).await;
    let before = one.request_count() + other.request_count();
    send_requests(&gateway, 60).await;
    assert_eq!(one.request_count() + other.request_count(), before + 60);
    assert!(one.request_count() > 0 && other.request_count() > 0);
}

#[tokio::test]
async fn a_check_has_the_configured_host_and_the_user_agent_of_the_gateway() {
    let server = CheckedServer::with_status(200);
    let authority = server.upstream.address().to_string();
    for (host, expected) in [
        ("preserve", &*authority),
        ("server", &*authority),
        ("api.example", "api.example"),
    ] {
        let gateway = gateway(&[&server], &format!("host = \"{host}\""));
        let seen = server.checks().len();
        eventually("the server gets a health check", async || {
            server.checks().len() > seen
        })
        .await;
        drop(gateway);
        let check = server
            .checks()
            .pop()
            .expect("the server has received a health check");
        assert_eq!(check.method, "GET");
        assert_eq!(check.header("host"), expected, "host = {host}");
        assert_eq!(check.header("user-agent"), "tidegate-health");
    }
}
