//! Tests of the admin endpoints about limits, keys and clients.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::raw_http::RawClient;
use crate::support::redis::RedisServer;
use crate::support::{Client, Gateway, Upstream, eventually};

const API: &str = "/admin/v1";

/// A limit by client, one by header whose keys are shown, one by both, and one in shadow mode.
const LIMITS: &str = "\
[client]
trusted_proxies = [\"127.0.0.0/8\"]
[upstream.api]
servers = [\"{upstream}\"]
[limit.device]
rate = \"1/m\"
burst = 3
[limit.tenant]
key = \"header:X-Tenant\"
rate = \"1/m\"
log_key = true
[limit.both]
key = [\"client\", \"header:X-Tenant\"]
rate = \"10/m\"
[limit.trial]
rate = \"1/h\"
mode = \"shadow\"
[[route]]
name = \"tenants\"
path = \"/tenants\"
limits = [\"tenant\", \"both\"]
[[route]]
name = \"all\"
path = \"/\"
limits = [\"device\", \"trial\"]
";

async fn get(admin: &Client, path: &str) -> Value {
    let response = admin.get(&format!("{API}/{path}")).send().await;
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response.json()
}

async fn send(client: &Client, address: &str, times: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..times {
        let request = client.get("/").header("X-Forwarded-For", address);
        statuses.push(request.header("User-Agent", "poller/1").send().await.status);
    }
    statuses
}

fn limit<'a>(limits: &'a Value, name: &str) -> &'a Value {
    let limits = limits["limits"].as_array().expect("a list of limits");
    let found = limits.iter().find(|limit| limit["name"] == name);
    found.expect("the limit is listed")
}

#[tokio::test]
async fn limits_show_who_is_rejected_and_who_returns_early() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(LIMITS).upstream(&upstream).admin().start();
    let (client, admin) = (gateway.client(), gateway.admin());
    assert_eq!(
        send(&client, "192.0.2.7", 5).await,
        [200, 200, 200, 200, 429]
    );
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(send(&client, "192.0.2.7", 2).await, [429, 429]);
    assert_eq!(send(&client, "192.0.2.8", 4).await, [200; 4]);

    let limits = get(&admin, "limits").await;
    let device = limit(&limits, "device");
    assert_eq!(
        device["quota"],
        json!({"rate": "1/m", "burst": 3, "capacity": 4})
    );
    for (name, expected) in [("admitted", 8), ("rejected", 3), ("early", 2), ("near", 2)] {
        assert_eq!(device[name], expected, "{name}");
        assert_eq!(device["recent"][name], expected, "{name}");
    }
    assert!(device["used"]["max"].as_f64().unwrap() > 0.9);
    let trial = limit(&limits, "trial");
    assert_eq!(
        (&trial["mode"], &trial["shadow_rejected"]),
        (&json!("shadow"), &json!(9))
    );

    let top = get(&admin, "limits/device/top").await;
    let [key] = &top["keys"].as_array().unwrap()[..] else {
        panic!("one key is rejected: {top}");
    };
    for (name, expected) in [
        ("key", json!("192.0.2.7")),
        ("rejected", json!(3)),
        ("error", json!(0)),
        ("early", json!(2)),
        ("attempts_per_admission", json!(4.0)),
        ("user_agent", json!("poller/1")),
    ] {
        assert_eq!(key[name], expected, "{name}");
    }
    let near = get(&admin, "limits/device/top?by=near").await;
    assert_eq!(near["keys"][0]["key"], "192.0.2.8");
    assert_eq!(near["keys"].as_array().unwrap().len(), 1);
    let one = get(&admin, "limits/trial/top?max=1&window=1h").await;
    assert_eq!(
        (one["keys"].as_array().unwrap().len(), &one["left_out"]),
        (1, &json!(1))
    );

    // The same request stays visible to the operator: nothing was consumed.
    let asked =
        json!({"path": "/", "peer": "127.0.0.1", "headers": {"X-Forwarded-For": "192.0.2.7"}});
    let explain = admin
        .post(&format!("{API}/explain"))
        .body(asked.to_string());
    let explained = explain.send().await.json();
    assert_eq!(
        (&explained["route"], &explained["client"]),
        (&json!("all"), &json!("192.0.2.7"))
    );
    assert_eq!(explained["limits"][0]["admits"], false);
    let wait = explained["limits"][0]["wait"].as_f64().unwrap();
    assert!((50.0..60.0).contains(&wait), "{wait}");
    assert_eq!(limit(&get(&admin, "limits").await, "device")["rejected"], 3);

    let overview = get(&admin, "overview").await;
    assert_eq!(
        overview["totals"],
        json!({"admitted": 8, "delayed": 0, "replayed": 0, "upstream_errors": 0, "rejected": 3})
    );
}

#[tokio::test]
async fn a_refilled_bucket_admits_again_and_others_keep_theirs() {
    let redis = RedisServer::start();
    let stores = [
        String::new(),
        format!("[store]\nbackend = \"redis\"\nurl = \"{}\"\n", redis.url()),
    ];
    for store in stores {
        let upstream = Upstream::echo();
        let gateway = Gateway::with(&format!("{store}{LIMITS}"));
        let gateway = gateway.upstream(&upstream).admin().start();
        let (client, admin) = (gateway.client(), gateway.admin());
        for address in ["192.0.2.7", "192.0.2.8"] {
            send(&client, address, 5).await;
        }
        let key = format!("{API}/limits/device/keys/192.0.2.7");
        let drained = admin.get(&key).send().await.json();
        assert_eq!(
            (&drained["tokens"], &drained["capacity"]),
            (&json!(0), &json!(4))
        );
        assert_eq!(drained["recent"]["rejected"], 1);
        let full_in = drained["full_in"].as_f64().unwrap();
        assert!((230.0..=240.0).contains(&full_in), "{store}{full_in}");

        assert_eq!(admin.request("DELETE", &key).send().await.status, 204);
        assert_eq!(admin.get(&key).send().await.json()["tokens"], 4);
        assert_eq!(
            send(&client, "192.0.2.7", 5).await,
            [200, 200, 200, 200, 429]
        );
        assert_eq!(send(&client, "192.0.2.8", 1).await, [429]);
        let of_client = get(&admin, "clients/192.0.2.8").await;
        let limits = of_client["buckets"].as_array().unwrap();
        let names: Vec<_> = limits.iter().map(|bucket| &bucket["limit"]).collect();
        assert_eq!(names, ["device", "trial"]);
    }
}

#[tokio::test]
async fn a_key_is_looked_up_by_the_value_that_the_client_sent() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(LIMITS).upstream(&upstream).admin().start();
    let (client, admin) = (gateway.client(), gateway.admin());
    let hostile = "<b>\"x\"/y 100%&?";
    let request = client.get("/tenants").header("X-Tenant", hostile);
    let request = request.header("X-Forwarded-For", "192.0.2.7");
    assert_eq!(request.send().await.status, 200);
    let again = client.get("/tenants").header("X-Tenant", hostile);
    assert_eq!(again.send().await.status, 429);

    let encoded = "%3Cb%3E%22x%22%2Fy%20100%25%26%3F";
    let key = get(&admin, &format!("limits/tenant/keys/{encoded}")).await;
    assert_eq!((&key["key"], &key["tokens"]), (&json!(hostile), &json!(0)));
    let top = get(&admin, "limits/tenant/top").await;
    assert_eq!(top["keys"][0]["key"], hostile);
    // Another value has another bucket, and a limit without `log_key` shows a hash.
    assert_eq!(get(&admin, "limits/tenant/keys/other").await["tokens"], 1);
    let both = get(&admin, &format!("limits/both/keys/192.0.2.7/{encoded}")).await;
    assert_eq!(both["tokens"], 9);
    let hash = both["key"].as_str().unwrap();
    assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));

    for (path, status) in [
        ("limits/none/top", 404),
        ("limits/device/top?by=most", 400),
        ("limits/device/top?max=0", 400),
        ("limits/device/top?max=1001", 400),
        ("limits/device/top?page=1", 400),
        ("limits/device/keys/host.example", 400),
        ("limits/both/keys/192.0.2.7", 400),
        ("limits/tenant/keys/%zz", 400),
        ("limits/tenant/keys/%0a", 400),
        ("limits/tenant/keys/%ff%00", 400),
        ("limits/tenant/keys/%ff", 200),
        ("limits/%74enant/keys/x/keys/y", 200),
        ("limits/%ff/keys/x", 404),
        ("clients/nobody", 400),
    ] {
        let response = admin.get(&format!("{API}/{path}")).send().await;
        assert_eq!(response.status, status, "{path}");
        let is_problem = response.header("content-type") == "application/problem+json";
        assert_eq!(is_problem, status != 200, "{path}");
    }
    for body in [
        "",
        "{}",
        "[]",
        r#"{"path":"/","more":1}"#,
        r#"{"path":"a b"}"#,
    ] {
        let explain = admin.post(&format!("{API}/explain")).body(body.to_owned());
        assert_eq!(explain.send().await.status, 400, "{body}");
    }
}

#[tokio::test]
async fn a_proxy_that_is_not_trusted_is_reported_once() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    let (client, admin) = (gateway.client(), gateway.admin());
    for _ in 0..40 {
        let request = client.get("/").header("X-Forwarded-For", "203.0.113.9");
        request.send().await;
    }
    assert_eq!(get(&admin, "overview").await["warnings"], json!([]));
    for last in 0..130 {
        let address = format!("198.51.100.{last}");
        client
            .get("/")
            .header("X-Forwarded-For", &address)
            .send()
            .await;
    }
    let overview = get(&admin, "overview").await;
    let [warning] = &overview["warnings"].as_array().unwrap()[..] else {
        panic!("one warning: {overview}");
    };
    assert!(
        warning["text"]
            .as_str()
            .unwrap()
            .contains("127.0.0.1 is not in trusted_proxies")
    );
}

#[tokio::test]
async fn the_state_of_routes_and_the_time_series_are_shown() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(LIMITS).upstream(&upstream).admin().start();
    let admin = gateway.admin();
    let routes = get(&admin, "routes").await;
    assert_eq!(
        routes["routes"][0],
        json!({"name": "tenants", "path": ["/tenants"], "methods": null, "upstream": "api",
               "limits": ["tenant", "both"], "cost": 1, "idempotency": null, "scenario": null})
    );
    send(&gateway.client(), "192.0.2.7", 5).await;
    eventually("the plot has the requests", async || {
        let traffic = get(&admin, "overview").await["traffic"].clone();
        let sum = |name: &str| -> u64 {
            let counts = traffic[name].as_array().unwrap().iter();
            counts.filter_map(Value::as_u64).sum()
        };
        (sum("admitted"), sum("rejected")) == (4, 1)
    })
    .await;
}

#[tokio::test]
async fn events_report_rejections_and_have_few_subscribers() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(LIMITS).upstream(&upstream).admin().start();
    let mut streams: Vec<_> = Vec::new();
    for _ in 0..16 {
        let request = format!("GET {API}/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut stream = RawClient::connect(gateway.admin().address());
        stream.send(request).read_until(b"text/event-stream");
        streams.push(stream);
    }
    let refused = gateway.admin().get(&format!("{API}/events")).send().await;
    assert_eq!(refused.status, 503);
    send(&gateway.client(), "192.0.2.7", 5).await;
    let event = streams[0].read_until(b"\n\n");
    let event = String::from_utf8(event).unwrap();
    assert!(event.contains("event: rejected\n"), "{event}");
    let data = event.lines().find_map(|line| line.strip_prefix("data: "));
    let data: Value = serde_json::from_str(data.unwrap()).unwrap();
    assert_eq!(
        (&data["limit"], &data["route"], &data["key"], &data["early"]),
        (
            &json!("device"),
            &json!("all"),
            &json!("192.0.2.7"),
            &json!(false)
        )
    );
    // A subscriber that disconnects makes room for another.
    drop(streams.pop());
    eventually("the subscriber is gone", async || {
        get(&gateway.admin(), "overview").await["subscribers"] == 15
    })
    .await;
}
