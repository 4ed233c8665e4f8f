//! Tests of rate limits over HTTP, in real time.

use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, Upstream};

/// Worked example of a rate limit: when each request is sent, in milliseconds after the start, and whether it is
/// admitted.
const TABLE: [(u64, bool); 9] = [
    (0, true),
    (300, true),
    (600, true),
    (900, true),
    (1_200, true),
    (1_400, false),
    (1_600, false),
    (1_800, false),
    (2_100, true),
];

/// Maximum time between the planned time of a request and its response. A run with a later response is repeated,
/// because the result is not conclusive.
const MAX_DELAY: Duration = Duration::from_millis(80);

#[tokio::test]
async fn requests_are_admitted_exactly_as_in_the_worked_example() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/s\"\nburst = 3")
        .upstream(&upstream)
        .start();
    for device in 1..=20 {
        let client = gateway.client().from(&format!("127.0.1.{device}"));
        if let Some(responses) = run_table(&client).await {
            assert_eq!(responses, TABLE.map(|(_, admitted)| admitted));
            return;
        }
    }
    panic!("no run was conclusive, because the machine was too slow");
}

/// Sends the requests of [`TABLE`]. Returns whether each was admitted, or `None` if a response was later than
/// [`MAX_DELAY`].
async fn run_table(client: &Client) -> Option<Vec<bool>> {
    let start = Instant::now();
    let mut responses = Vec::new();
    for (at, _) in TABLE {
        let due = start + Duration::from_millis(at);
        tokio::time::sleep_until(due.into()).await;
        let response = client.get("/o/client/register").send().await;
        if due.elapsed() > MAX_DELAY {
            return None;
        }
        assert!([200, 429].contains(&response.status), "{response:?}");
        responses.push(response.status == 200);
    }
    Some(responses)
}

#[tokio::test]
async fn a_rejected_request_never_reaches_upstream() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::limited("rate = \"1/h\"\nburst = 1")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    for expected in [201, 201, 429, 429] {
        assert_eq!(client.post("/x").send().await.status, expected);
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn every_client_has_its_own_bucket() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream(&upstream)
        .start();
    for client in ["127.0.2.1", "127.0.2.2"] {
        let client = gateway.client().from(client);
        assert_eq!(client.get("/").send().await.status, 200);
        assert_eq!(client.get("/").send().await.status, 429);
    }
}

#[tokio::test]
async fn the_shipped_configuration_limits_exactly_the_client_endpoints() {
    let endpoints = [
        "/o/client/register",
        "/o/client/token",
        "/o/client/scopes",
        "/o/client/validate",
        "/api/v2/sessions/1",
        "/api/v1/tokens/usermetadata",
        "/api/v1/tokens/authn",
        "/api/v1/tokens/authz",
        "/api/v1/tokens/media",
        "/api/v1/config/REF30",
        "/api/v1/checkauthn",
        "/api/v1/logout",
        "/api/v1/authorize",
        "/api/v1/preauthorize",
        "/api/v1/mediatoken",
        "/api/v1/authenticate/freepreview",
        "/api/v1/authenticate/abc",
        "/api/v1/REF30/profile-requests/mvpd",
        "/api/v1/identities",
        "/reggie/v1/REF30/regcode",
        "/reggie/v1/REF30/regcode/ABCDEF",
    ];
    let upstream = Upstream::replying(200);
    let config = include_str!("../../../config/client-endpoints.toml")
        .replace("http://127.0.0.1:9000", "{upstream}");
    let gateway = Gateway::with(&config).upstream(&upstream).start();
    for (device, endpoint) in endpoints.iter().enumerate() {
        let device = format!("198.51.100.{device}");
        let send = |path: &str| {
            let request = gateway.client().get(path);
            request.header("X-Forwarded-For", &device).send()
        };
        let mut admitted = 0;
        // The bucket has four tokens. On a slow machine, more tokens are refilled during the loop, so more than four
        // requests can be admitted.
        while send(endpoint).await.status == 200 {
            admitted += 1;
            assert!(admitted < 30, "{endpoint} is not limited");
        }
        assert!(
            admitted >= 4,
            "only {admitted} requests to {endpoint} were admitted"
        );
        assert_eq!(send("/other").await.status, 200, "{endpoint}");
    }
    for _ in 0..30 {
        let response = gateway.client().get("/other").send().await;
        assert_eq!(response.status, 200);
        assert!(!response.has("ratelimit"));
    }
}

#[tokio::test]
async fn a_rejected_request_takes_no_token_from_any_limit() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.tight]
        rate = "1/h"
        [limit.wide]
        rate = "4/h"
        [[route]]
        name = "both"
        path = "/both"
        limits = ["wide", "tight"]
        [[route]]
        name = "wide"
        path = "/wide"
        limits = ["wide"]
        "#,
    )
    .upstream(&upstream)
    .start();
    let client = gateway.client();
    assert_eq!(client.get("/both").send().await.status, 200);
    for _ in 0..10 {
        let rejected = client.get("/both").send().await;
        assert_eq!(rejected.status, 429);
        assert!(rejected.header("ratelimit").contains(", \"wide\";r=3;"));
    }
    // The admitted request took one of the four tokens of `wide`. The ten rejected requests took none, so three tokens
    // are left.
    for expected in [200, 200, 200, 429] {
        assert_eq!(client.get("/wide").send().await.status, expected);
    }
}

#[tokio::test]
async fn a_request_takes_the_cost_of_its_route() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "1/h"
        burst = 6
        [[route]]
        name = "report"
        path = "/report"
        limits = ["device"]
        cost = 3
        [[route]]
        name = "rest"
        path = "/"
        limits = ["device"]
        "#,
    )
    .upstream(&upstream)
    .start();
    let client = gateway.client();
    let report = client.get("/report").send().await;
    assert_eq!((report.status, report.remaining_tokens()), (200, 4));
    let report = client.get("/report").send().await;
    assert_eq!((report.status, report.remaining_tokens()), (200, 1));
    // The wait is two hours, because two tokens are missing and each takes one hour to refill.
    let rejected = client.get("/report").send().await;
    assert_eq!((rejected.status, rejected.remaining_tokens()), (429, 1));
    assert!((7_100..=7_200).contains(&rejected.retry_after()));
    assert_eq!(client.get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_limit_of_two_routes_is_one_bucket() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "2/h"
        [[route]]
        name = "a"
        path = "/a"
        limits = ["device"]
        [[route]]
        name = "b"
        path = "/b"
        limits = ["device"]
        "#,
    )
    .upstream(&upstream)
    .start();
    let client = gateway.client();
    for (path, expected) in [("/a", 200), ("/b", 200), ("/a", 429), ("/b", 429)] {
        assert_eq!(client.get(path).send().await.status, expected, "{path}");
    }
}

#[tokio::test]
async fn an_exempt_client_is_never_limited_and_gets_no_ratelimit_headers() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        r#"
        [client]
        exempt = ["127.0.3.0/24"]
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "1/h"
        [[route]]
        name = "all"
        path = "/"
        limits = ["device"]
        "#,
    )
    .upstream(&upstream)
    .start();
    for _ in 0..5 {
        let response = gateway.client().from("127.0.3.7").get("/").send().await;
        assert_eq!(response.status, 200);
        assert!(!response.has("ratelimit"));
    }
    let other = gateway.client().from("127.0.4.7");
    assert_eq!(other.get("/").send().await.status, 200);
    assert_eq!(other.get("/").send().await.status, 429);
}

#[tokio::test]
async fn a_global_limit_is_one_bucket_for_all_clients() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"2/h\"\nkey = \"global\"")
        .upstream(&upstream)
        .start();
    for (client, expected) in [("127.0.5.1", 200), ("127.0.5.2", 200), ("127.0.5.3", 429)] {
        let response = gateway.client().from(client).get("/").send().await;
        assert_eq!(response.status, expected, "{client}");
    }
}

#[tokio::test]
async fn a_limit_by_header_uses_the_client_if_the_header_is_missing() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/h\"\nkey = \"header:X-Api-Key\"")
        .upstream(&upstream)
        .start();
    let status = async |from: &str, key: Option<&str>| {
        let request = gateway.client().from(from).get("/");
        let request = match key {
            Some(key) => request.header("x-api-key", key),
            None => request,
        };
        request.send().await.status
    };
    assert_eq!(status("127.0.6.1", Some("a")).await, 200);
    // Requests with the same `X-Api-Key` value share a rate limit bucket, even if they come from different clients.
    assert_eq!(status("127.0.6.2", Some("a")).await, 429);
    assert_eq!(status("127.0.6.1", Some("b")).await, 200);
    assert_eq!(status("127.0.6.1", None).await, 200);
    assert_eq!(status("127.0.6.1", None).await, 429);
    assert_eq!(status("127.0.6.2", None).await, 200);
}

#[tokio::test]
async fn a_limit_with_a_list_of_keys_counts_each_combination() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/h\"\nkey = [\"client\", \"header:X-Tenant\"]")
        .upstream(&upstream)
        .start();
    for (from, tenant, expected) in [
        ("127.0.7.1", "a", 200),
        ("127.0.7.1", "b", 200),
        ("127.0.7.2", "a", 200),
        ("127.0.7.1", "a", 429),
    ] {
        let request = gateway.client().from(from).get("/");
        let response = request.header("x-tenant", tenant).send().await;
        assert_eq!(response.status, expected, "{from} {tenant}");
    }
}

#[tokio::test]
async fn all_workers_share_the_buckets() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        r#"
        [server]
        workers = 8
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "20/h"
        [[route]]
        name = "all"
        path = "/"
        limits = ["device"]
        "#,
    )
    .upstream(&upstream)
    .start();
    let client = gateway.client();
    let pending = (0..60).map(|_| tokio::spawn(client.get("/").send()));
    let mut admitted = 0;
    for response in pending.collect::<Vec<_>>() {
        admitted += usize::from(
            response
                .await
                .expect("the request should get a response")
                .status
                == 200,
        );
    }
    assert_eq!(admitted, 20);
    assert_eq!(upstream.count(), 20);
}
