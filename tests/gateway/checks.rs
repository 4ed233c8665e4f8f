//! Servers that are asked whether they are well.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use crate::harness::{Gateway, Mood, Received, Upstream, empty, eventually, full};

const EVERY: Duration = Duration::from_millis(100);
const HEALTH: &str =
    "health = { path = \"/healthz?full=1\", interval = \"100ms\", timeout = \"100ms\" }";

/// A server whose checks are answered in its mood, and everything else with 200.
struct Checked {
    upstream: Upstream,
    mood: Mood,
}

impl Checked {
    fn answering(status: u16) -> Self {
        let (_, mood) = Upstream::moody(status);
        let its = mood.clone();
        let upstream = Upstream::with(move |received| {
            std::future::ready(if is_check(&received) {
                its.reply()
            } else {
                full("ok")
            })
        });
        Self { upstream, mood }
    }

    fn checks(&self) -> Vec<Received> {
        let mut checks = self.upstream.requests();
        checks.retain(is_check);
        checks
    }

    /// Requests besides checks.
    fn asked(&self) -> usize {
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

fn gateway(servers: &[&Checked], more: &str) -> Gateway {
    let api = format!("{HEALTH}\nslow_start = \"0s\"\n{more}");
    let mut plan = Gateway::before(servers.len(), &api).admin();
    for server in servers {
        plan = plan.upstream(&server.upstream);
    }
    plan.start()
}

async fn ask(gateway: &Gateway, times: usize) {
    for _ in 0..times {
        assert_eq!(gateway.client().get("/").send().await.status, 200);
    }
}

#[tokio::test]
async fn a_server_that_fails_its_checks_gets_no_requests_until_it_passes_them() {
    let (well, ill) = (Checked::answering(200), Checked::answering(503));
    let gateway = gateway(&[&well, &ill], "");
    gateway.comes_to(&ill.ejected(), 1).await;
    gateway.comes_to(&well.ejected(), 0).await;
    let before = ill.asked();
    ask(&gateway, 60).await;
    assert_eq!(ill.asked(), before, "it would have answered");
    assert_eq!(gateway.servers().await[1]["ejected"], true);

    ill.mood.becomes(200);
    gateway.comes_to(&ill.ejected(), 0).await;
    assert_eq!(gateway.servers().await[1]["ejected"], false);
    ask(&gateway, 60).await;
    assert!(ill.asked() > before, "it gets its share again");
}

#[tokio::test]
async fn two_failed_checks_in_a_row_do_not_take_a_server_out() {
    let well = Checked::answering(200);
    let count = AtomicUsize::new(0);
    let unsteady = Upstream::with(move |received| {
        let fails = is_check(&received) && count.fetch_add(1, Ordering::SeqCst) % 3 != 2;
        std::future::ready(empty(if fails { 503 } else { 204 }))
    });
    let gateway = Gateway::before(2, HEALTH)
        .upstream(&well.upstream)
        .upstream(&unsteady)
        .admin()
        .start();
    while unsteady.count() < 12 {
        assert_eq!(gateway.servers().await[1]["ejected"], false);
        sleep(EVERY / 10).await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_a_check_in_time_is_taken_out() {
    let well = Checked::answering(200);
    let silent = Upstream::with(|received| async move {
        if is_check(&received) {
            std::future::pending().await
        } else {
            full("ok")
        }
    });
    let gateway = Gateway::before(2, HEALTH)
        .upstream(&well.upstream)
        .upstream(&silent)
        .admin()
        .start();
    let server = silent.address();
    let ejected = format!("server_ejected{{upstream=\"api\",server=\"{server}\"}}");
    gateway.comes_to(&ejected, 1).await;
}

#[tokio::test]
async fn no_more_servers_are_taken_out_than_may_be() {
    let (one, other) = (Checked::answering(500), Checked::answering(404));
    let gateway = gateway(&[&one, &other], "max_ejected = 0.5");
    let out = async || {
        let servers = gateway.servers().await;
        let ejected = servers.iter().map(|server| server["ejected"] == true);
        ejected.collect::<Vec<_>>()
    };
    gateway.comes_to(&one.ejected(), 1).await;
    let seen = other.checks().len();
    eventually("both fail many more", || other.checks().len() > seen + 6).await;
    assert_eq!(out().await, [true, false]);
    let before = one.asked();
    ask(&gateway, 30).await;
    assert_eq!((one.asked(), other.asked()), (before, 30));

    // Its place goes to the other when it is well.
    one.mood.becomes(200);
    gateway.comes_to(&other.ejected(), 1).await;
    assert_eq!(out().await, [false, true]);
}

#[tokio::test]
async fn all_may_be_taken_out_and_are_then_asked_all_the_same() {
    let (one, other) = (Checked::answering(500), Checked::answering(500));
    let gateway = gateway(&[&one, &other], "max_ejected = 1.0");
    gateway.comes_to(&one.ejected(), 1).await;
    gateway.comes_to(&other.ejected(), 1).await;
    let before = one.asked() + other.asked();
    ask(&gateway, 60).await;
    assert_eq!(one.asked() + other.asked(), before + 60);
    assert!(one.asked() > 0 && other.asked() > 0);
}

#[tokio::test]
async fn a_check_says_whom_it_is_for_and_who_asks() {
    let server = Checked::answering(200);
    let authority = server.upstream.address().to_string();
    for (host, expected) in [
        ("preserve", &*authority),
        ("server", &*authority),
        ("api.example", "api.example"),
    ] {
        let gateway = gateway(&[&server], &format!("host = \"{host}\""));
        let seen = server.checks().len();
        eventually("it is asked", || server.checks().len() > seen).await;
        drop(gateway);
        let check = server.checks().pop().expect("a check");
        assert_eq!(check.method, "GET");
        assert_eq!(check.header("host"), expected, "host = {host}");
        assert_eq!(check.header("user-agent"), "tidegate-health");
    }
}

#[tokio::test]
async fn checks_end_with_the_gateway() {
    let server = Checked::answering(200);
    let gateway = gateway(&[&server], "");
    eventually("it is asked", || server.checks().len() > 2).await;
    drop(gateway);
    // What was on its way arrives; then there is silence, for many times as long as between two checks.
    sleep(5 * EVERY).await;
    let connections = server.upstream.connections();
    sleep(10 * EVERY).await;
    assert_eq!(server.upstream.connections(), connections);
}
