//! Tests of the admin API for upstreams: the state of each server, and manual control of circuit breakers.

use serde_json::{Value, json};

use crate::support::{ClientResponse, Gateway, TEST_TIMEOUT, Upstream, eventually};

/// Opens or closes the circuit breaker of `server`, a server of the upstream `api`. `how` is `open` or `close`.
async fn set_circuit(gateway: &Gateway, server: &Upstream, how: &str) -> ClientResponse {
    let target = format!("/admin/v1/upstreams/api/servers/{}/{how}", server.address());
    gateway.admin().post(&target).send().await
}

/// Returns the metric `name` with the labels of `server`, a server of the upstream `api`. `more` is empty or contains
/// further labels, with a comma before each.
fn series_of(server: &Upstream, name: &str, more: &str) -> String {
    let server = server.address();
    format!("{name}{{upstream=\"api\",server=\"{server}\"{more}}}")
}

#[tokio::test]
async fn the_overview_lists_every_upstream_with_its_servers() {
    let (one, other, third) = (
        Upstream::replying(200),
        Upstream::replying(200),
        Upstream::replying(200),
    );
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}", { url = "{upstream}", weight = 7 }]
        [upstream.files]
        servers = ["{upstream}"]
        retry = {}
        [[route]]
        name = "files"
        path = "/files"
        upstream = "files"
        [[route]]
        name = "all"
        path = "/"
        upstream = "api"
        "#,
    )
    .upstream(&one)
    .upstream(&other)
    .upstream(&third)
    .admin()
    .start();
    let overview = gateway.admin().get("/admin/v1/upstreams").send().await;
    assert_eq!(overview.status, 200);
    assert_eq!(overview.header("content-type"), "application/json");
    assert_eq!(overview.header("cache-control"), "no-store");
    let overview = overview.json();
    let upstreams = overview["upstreams"]
        .as_array()
        .expect("the member is a list");
    let names: Vec<_> = upstreams.iter().map(|upstream| &upstream["name"]).collect();
    assert_eq!(names, ["api", "files"]);
    assert_eq!(upstreams[0]["retries"], Value::Null);
    assert_eq!(
        upstreams[1]["retries"],
        json!({"requests": 0, "retries": 0, "refused": 0})
    );

    let shown = |server: &Value| {
        let fields = ["server", "weight", "in_flight", "ejected"];
        fields.map(|field| server[field].clone())
    };
    let servers = gateway.servers().await;
    assert_eq!(servers.len(), 2);
    let address = |server: &Upstream| json!(server.address().to_string());
    assert_eq!(
        shown(&servers[0]),
        [address(&one), json!(1), json!(0), json!(false)]
    );
    assert_eq!(
        shown(&servers[1]),
        [address(&other), json!(7), json!(0), json!(false)]
    );
    for server in &servers {
        let circuit = &server["circuit"];
        assert_eq!(circuit["state"], "closed");
        assert_eq!(circuit["held"], false);
        assert_eq!(circuit["openings"], 0);
        assert_eq!(circuit["window"], json!({"succeeded": 0, "failed": 0}));
        assert_eq!(circuit["remaining_seconds"], Value::Null);
        assert_eq!(circuit["opened_by"], Value::Null);
    }
}

#[tokio::test]
async fn responses_of_a_server_appear_in_the_admin_api_and_in_metrics() {
    let (upstream, switch) = Upstream::with_status_switch(200);
    let gateway = Gateway::with_servers(1, "breaker = { open = \"5s\" }")
        .upstream(&upstream)
        .admin()
        .start();
    let state = |state: &str| series_of(&upstream, "breaker_state", &format!(",state=\"{state}\""));
    let opened = series_of(&upstream, "breaker_opened_total", "");
    for status in [200, 500, 404, 503, 502] {
        switch.set_status(status);
        assert_eq!(gateway.client().get("/").send().await.status, status);
    }
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["window"], json!({"succeeded": 3, "failed": 2}));
    assert_eq!(circuit["failures_in_a_row"], 2);
    for (series, value) in [
        (state("closed"), 1),
        (state("open"), 0),
        (state("half_open"), 0),
        (opened.clone(), 0),
    ] {
        gateway.wait_for_metric(&series, value).await;
    }
    for _ in 0..3 {
        assert_eq!(gateway.client().get("/").send().await.status, 502);
    }
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["state"], "open");
    assert_eq!(circuit["openings"], 1);
    assert_eq!(circuit["opened_by"], "consecutive failures");
    let open = ["for_seconds", "remaining_seconds"].map(|field| circuit[field].as_f64());
    let open: f64 = open
        .iter()
        .map(|seconds| seconds.expect("the value is a number"))
        .sum();
    assert!(
        (4.45..=5.55).contains(&open),
        "unexpected state of the circuit breaker: {circuit}"
    );
    for (series, value) in [
        (state("closed"), 0),
        (state("open"), 1),
        (state("half_open"), 0),
        (opened, 1),
    ] {
        gateway.wait_for_metric(&series, value).await;
    }
}

#[tokio::test]
async fn requests_in_flight_appear_in_the_admin_api_and_in_metrics() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = Gateway::with_servers(1, "")
        .upstream(&upstream)
        .admin()
        .start();
    let in_flight = series_of(&upstream, "server_in_flight", "");
    let requests: Vec<_> = (0..3)
        .map(|_| tokio::spawn(gateway.client().get("/").send()))
        .collect();
    eventually("the upstream has received the requests", async || {
        upstream.count() == 3
    })
    .await;
    gateway.wait_for_metric(&in_flight, 3).await;
    assert_eq!(gateway.servers().await[0]["in_flight"], 3);
    permits.add_permits(3);
    for response in requests {
        assert_eq!(response.await.expect("a response arrives").status, 200);
    }
    gateway.wait_for_metric(&in_flight, 0).await;
}

#[tokio::test]
async fn a_manually_opened_circuit_stays_open_until_it_is_closed() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with_servers(1, "breaker = { open = \"50ms\", open_max = \"50ms\" }")
        .upstream(&upstream)
        .admin()
        .start();
    let send = || gateway.client().get("/").send();
    assert_eq!(send().await.status, 200);

    // The second iteration opens an open circuit, which has no effect.
    for _ in 0..2 {
        let opened = set_circuit(&gateway, &upstream, "open").await;
        assert_eq!(opened.status, 200, "{}", opened.text());
        let opened = opened.json();
        assert_eq!(opened["server"], upstream.address().to_string());
        let circuit = &opened["circuit"];
        assert_eq!(circuit["state"], "open");
        assert_eq!(circuit["held"], true);
        assert_eq!(circuit["opened_by"], "operator");
        assert_eq!(circuit["openings"], 1);
        assert_eq!(circuit["remaining_seconds"], Value::Null);
    }
    // The loop checks that the circuit stays open for more than 0.5 s, which is ten times the configured open time of
    // 50 ms. A circuit that became half-open by itself would fail these checks.
    let deadline = std::time::Instant::now() + TEST_TIMEOUT;
    loop {
        let rejected = send().await;
        assert_eq!(rejected.status, 503);
        assert_eq!(rejected.problem(), "circuit-open");
        assert!(rejected.retry_after() >= 1);
        let circuit = gateway.circuit().await;
        assert_eq!(circuit["state"], "open");
        if circuit["for_seconds"]
            .as_f64()
            .expect("the value is a number")
            > 0.5
        {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "the circuit breaker is not open for 0.5 s in time: {circuit}"
        );
    }
    assert_eq!(upstream.count(), 1);
    gateway
        .wait_for_metric(&series_of(&upstream, "breaker_opened_total", ""), 1)
        .await;

    for _ in 0..2 {
        let closed = set_circuit(&gateway, &upstream, "close").await;
        assert_eq!(closed.status, 200);
        assert_eq!(closed.json()["circuit"]["state"], "closed");
        assert_eq!(closed.json()["circuit"]["held"], false);
        assert_eq!(send().await.status, 200);
    }
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a_circuit_opened_by_failures_can_be_closed_and_opens_again() {
    let (upstream, switch) = Upstream::with_status_switch(502);
    let gateway = Gateway::with_servers(1, "breaker = { open = \"1m\" }")
        .upstream(&upstream)
        .admin()
        .start();
    let statuses = async |times: usize| {
        let mut statuses = Vec::new();
        for _ in 0..times {
            statuses.push(gateway.client().get("/").send().await.status);
        }
        statuses
    };
    assert_eq!(statuses(6).await, [502, 502, 502, 502, 502, 503]);
    let closed = set_circuit(&gateway, &upstream, "close").await.json();
    let window = &closed["circuit"]["window"];
    assert_eq!(*window, json!({"succeeded": 0, "failed": 0}));
    // Closing the circuit reset its failure count, so the circuit opens only after five more failures.
    assert_eq!(statuses(6).await, [502, 502, 502, 502, 502, 503]);
    set_circuit(&gateway, &upstream, "close").await;
    switch.set_status(200);
    assert_eq!(statuses(1).await, [200]);
    assert_eq!(gateway.circuit().await["openings"], 2);
}

#[tokio::test]
async fn unknown_names_return_404_with_the_existing_ones() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with_servers(1, "")
        .upstream(&upstream)
        .admin()
        .start();
    let server = upstream.address().to_string();
    for (method, target, named) in [
        ("GET", "/admin/v1/upstreams/apis".to_owned(), "api"),
        (
            "POST",
            format!("/admin/v1/upstreams/apis/servers/{server}/open"),
            "api",
        ),
        (
            "POST",
            "/admin/v1/upstreams/api/servers/127.0.0.1:1/open".to_owned(),
            &*server,
        ),
        (
            "POST",
            "/admin/v1/upstreams/api/servers/127.0.0.1:1/close".to_owned(),
            &*server,
        ),
    ] {
        let response = gateway.admin().request(method, &target).send().await;
        assert_eq!(response.status, 404, "{method} {target}");
        assert_eq!(response.header("content-type"), "application/problem+json");
        let detail = response.json()["detail"].to_string();
        assert!(
            detail.ends_with(&format!("Configured: {named}\"")),
            "unexpected problem detail for {target}: {detail}"
        );
    }
    for (method, target, allowed) in [
        (
            "GET",
            format!("/admin/v1/upstreams/api/servers/{server}/open"),
            "POST",
        ),
        ("POST", "/admin/v1/upstreams/api".to_owned(), "GET,HEAD"),
    ] {
        let response = gateway.admin().request(method, &target).send().await;
        assert_eq!(response.status, 405, "{method} {target}");
        assert_eq!(response.header("allow"), allowed);
    }
    assert_eq!(gateway.circuit().await["state"], "closed");
}
