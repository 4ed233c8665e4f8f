//! Tests of rate limits over HTTP, in real time.

use crate::support::{Gateway, Upstream};

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
