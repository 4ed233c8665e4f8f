//! Test of traces of a thousand clients at the same time.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;

use crate::support::Process;

const CLIENTS: usize = 1_000;

/// Number of requests of a client. It differs, so that a request in the wrong run changes the count.
fn requests(client: usize) -> usize {
    2 + client % 5
}

fn address(client: usize) -> String {
    format!("10.0.{}.{}", client / 250, client % 250)
}

#[tokio::test]
async fn a_thousand_clients_are_judged_separately_in_bounded_memory() {
    let gateway = Process::serving(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [client]\ntrusted_proxies = [\"127.0.0.0/8\"]\n[log]\naccess = false\n\
         [scenario.s]\nsteps = [\"503 body=\\\"x\\\"\"]\nat_end = \"repeat\"\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nscenario = \"s\"\n",
    )
    .start();
    let before = gateway.memory("VmRSS");
    let run = async |client: usize| {
        let mut connection = gateway.client().keep_alive().await;
        for _ in 0..requests(client) {
            let request = gateway.client().get("/items");
            let request = request.header("X-Forwarded-For", &address(client));
            assert_eq!(connection.send(request).await.status, 503);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    join_all((0..CLIENTS).map(run)).await;

    let list = gateway
        .admin()
        .get("/admin/v1/lab/runs")
        .send()
        .await
        .json();
    assert_eq!(list["runs"].as_array().map(Vec::len), Some(CLIENTS));
    for client in (0..CLIENTS).step_by(37) {
        let target = format!("/admin/v1/lab/runs/{}", address(client));
        let report = gateway.admin().get(&target).send().await.json();
        let scenario = &report["scenarios"][0];
        assert_eq!(scenario["clients"], 1, "{target}");
        assert_eq!(scenario["requests"], requests(client), "{target}");
        let operations = scenario["operations"].as_array();
        let mut operations = operations.expect("a list of operations").iter();
        let is_own = |operation: &Value| operation["client"] == address(client).as_str();
        assert!(operations.all(is_own), "{target}");
    }
    let bytes = gateway.metric("scenario_trace_bytes").await;
    let growth = gateway.memory("VmRSS") - before;
    println!("traces of {CLIENTS} clients: {bytes} bytes, process memory grew by {growth} KiB");
    assert!(bytes < 16 << 20, "{bytes} bytes");
    assert!(growth < 64 << 10, "{growth} KiB");
}
