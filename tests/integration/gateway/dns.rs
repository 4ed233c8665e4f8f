//! Tests of servers that are given by name. The gateway runs in a mount namespace with its own `/etc/hosts`, so that the
//! tests can change the addresses of a name and still use the resolver of the system.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::raw_http::{RawUpstream, ok};
use crate::support::{Process, TIDEGATE, eventually, wait_until};

/// Gateway whose upstream is `api.test`, with its configuration and `/etc/hosts`.
struct NamedGateway {
    process: Process,
    directory: TempDir,
}

impl NamedGateway {
    fn start(port: u16, hosts: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        fs::write(path("hosts"), hosts).unwrap();
        // Without DNS servers, a lookup of an unknown name fails at once.
        fs::write(path("nsswitch.conf"), "hosts: files\n").unwrap();
        let config = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [upstream.api]\nservers = [\"http://api.test:{port}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n"
        );
        fs::write(path("tidegate.toml"), config).unwrap();
        let script = "mount --bind \"$0\" /etc/hosts && mount --bind \"$1\" /etc/nsswitch.conf && shift && exec \"$@\"";
        let process = Process::with(&["--mount", "sh", "-c", script])
            .args(&[&path("hosts"), &path("nsswitch.conf"), TIDEGATE])
            .args(&["serve", "--config", &path("tidegate.toml")])
            .binary("unshare")
            .start();
        Self { process, directory }
    }

    /// Replaces the content of the gateway's `/etc/hosts`. The file stays the same, because it is mounted.
    fn set_hosts(&self, hosts: &str) {
        fs::write(self.directory.path().join("hosts"), hosts).unwrap();
    }
}

/// Starts a server that responds with its IP address. It responds to `/slow` when `is_released` is true.
fn server(address: SocketAddr, is_released: &Arc<AtomicBool>) -> RawUpstream {
    let is_released = Arc::clone(is_released);
    RawUpstream::scripted_on(address, move |connection| {
        let ip = connection.stream.local_addr().unwrap().ip().to_string();
        while let Some(request) = connection.request() {
            if request.line().contains("/slow") {
                wait_until("the test releases the response", || {
                    is_released.load(Ordering::SeqCst)
                });
            }
            connection.send(ok(&ip));
        }
    })
}

#[tokio::test]
async fn requests_follow_a_name_to_its_new_address_and_a_failed_lookup_keeps_it() {
    let is_released = Arc::new(AtomicBool::new(false));
    let old = server(([127, 0, 0, 1], 0).into(), &is_released);
    let port = old.address.port();
    let _new = server(([127, 0, 0, 2], port).into(), &is_released);
    let gateway = NamedGateway::start(port, "127.0.0.1 api.test\n");
    let client = gateway.process.client();
    let slow = tokio::spawn(client.get("/slow").send());
    eventually("the old server has the slow request", async || {
        old.received().contains("/slow")
    })
    .await;
    assert_eq!(client.get("/").send().await.text(), "127.0.0.1");

    gateway.set_hosts("127.0.0.2 api.test\n");
    // These requests reuse the pooled connection of the last one all the time, so it does not expire.
    eventually("requests reach the new address", async || {
        client.get("/").send().await.text() == "127.0.0.2"
    })
    .await;
    for _ in 0..20 {
        assert_eq!(client.get("/").send().await.text(), "127.0.0.2");
    }
    is_released.store(true, Ordering::SeqCst);
    let slow = slow.await.expect("the task does not panic");
    assert_eq!((slow.status, slow.text().as_str()), (200, "127.0.0.1"));

    gateway.set_hosts("");
    let failures =
        format!("server_lookup_failures_total{{upstream=\"api\",server=\"api.test:{port}\"}}");
    eventually("two lookups have failed", async || {
        assert_eq!(client.get("/").send().await.text(), "127.0.0.2");
        gateway.process.metric(&failures).await >= 2
    })
    .await;
    let failed = "cannot resolve upstream server";
    assert_eq!(gateway.process.count_lines(failed), 1);
}

#[tokio::test]
async fn a_sole_server_that_refuses_or_has_no_address_is_not_shut_off_until_its_new_address() {
    let is_released = Arc::default();
    let new = server(([127, 0, 0, 2], 0).into(), &is_released);
    for hosts in ["127.0.0.3 api.test\n", ""] {
        let gateway = NamedGateway::start(new.address.port(), hosts);
        let client = gateway.process.client();
        let outage = Instant::now();
        while outage.elapsed() < Duration::from_millis(500) {
            assert_eq!(
                client.get("/").send().await.problem(),
                "upstream-unavailable"
            );
        }
        gateway.set_hosts("127.0.0.2 api.test\n");
        eventually("the server is served", async || {
            let response = client.get("/").send().await;
            assert_ne!(response.status, 503);
            response.text() == "127.0.0.2"
        })
        .await;
    }
}
