//! Tests of request paths: the gateway forwards exactly the path that it has matched against the routes.

use crate::support::{Gateway, Upstream};

/// Starts a gateway whose rate limit allows one request per hour to `/o/client/register` and two other paths. It
/// forwards everything else without a limit.
fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "1/h"
        [[route]]
        name = "register"
        path = ["/o/client/register", "/api/v1/.+/profile-requests/.+", "/users/@me$"]
        limits = ["device"]
        [[route]]
        name = "rest"
        path = "/"
        "#,
    )
    .upstream(upstream)
    .start()
}

/// Uses the only token of the rate limit, so that the gateway rejects every further request to a limited path.
async fn use_token(gateway: &Gateway) {
    let response = gateway.client().get("/o/client/register").send().await;
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn every_spelling_of_a_limited_path_is_limited() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    use_token(&gateway).await;
    for path in [
        "/o/client/register",
        "//o/client/register",
        "/o//client///register",
        "/./o/client/register",
        "/o/./client/./register",
        "/x/../o/client/register",
        "/o/x/../client/register",
        "/../o/client/register",
        "/%6f/client/register",
        "/%6F/client/register",
        "/o/client/%72egister",
        "/o/%2e/client/register",
        "/o/x/%2e%2e/client/register",
        "/o/x/.%2E/client/register",
        "/o/client/register/",
        "/o/client/register;x=1",
        "/o/client/register?x=1",
        "/o/client/register?/../../other",
        "/o/client/register?a=%2F%5C%00",
        "/api/v1/x%0Ay/profile-requests/z",
        "/api/v1/x/profile-requests/%0A",
        "/api/v1/%FF/profile-requests/z",
        "/users/@me",
        "/users/%40me",
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            assert_eq!(client.get(path).send().await.status, 429, "{path}");
        }
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn other_paths_are_not_limited() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    use_token(&gateway).await;
    for path in [
        "/O/client/register",
        "/o/client/../register",
        "/o/client/regist",
        "/x/o/client/register",
        "/other?x=/o/client/register",
        "/?/o/client/register",
        "/%256f/client/register",
        "/users/@me/",
        "/users/%2540me",
    ] {
        let response = gateway.client().get(path).send().await;
        assert_eq!(response.status, 200, "{path}");
    }
}

#[tokio::test]
async fn upstream_gets_the_matched_path_and_the_unchanged_query() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for (requested, forwarded) in [
        ("/a", "/a"),
        ("/a/", "/a/"),
        ("//a//b", "/a/b"),
        ("/a/./b/../c", "/a/c"),
        ("/a/..", "/"),
        ("/..", "/"),
        ("/%61%2Db%7E", "/a-b~"),
        ("/a%20b%3Fc", "/a%20b%3Fc"),
        ("/a%2ab", "/a%2ab"),
        ("/%252e%252e/x", "/%252e%252e/x"),
        ("/a;x=1/b", "/a;x=1/b"),
        ("/a?b=/../c&d=%2F%2e%2e", "/a?b=/../c&d=%2F%2e%2e"),
        ("/x/../a?", "/a?"),
        ("//a?q=//", "/a?q=//"),
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.get(requested).send().await;
            assert_eq!(response.status, 200, "{requested}");
            assert_eq!(response.json()["target"], forwarded, "{requested}");
        }
    }
}

#[tokio::test]
async fn an_ambiguous_path_returns_400() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for path in [
        "/o%2Fclient/register",
        "/o%2fclient/register",
        "/o/client%5Cregister",
        "/o\\client\\register",
        "/a%00",
        "/a%",
        "/a%2",
        "/a%zz",
        "/..%2f..%2fetc",
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.get(path).send().await;
            assert_eq!(response.status, 400, "{path}");
            assert_eq!(response.problem(), "bad-request");
        }
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn methods_are_case_sensitive_and_cannot_be_overridden() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.none]
        rate = "1/h"
        [[route]]
        name = "posted"
        path = "/x"
        methods = ["POST"]
        limits = ["none"]
        [[route]]
        name = "got"
        path = "/x"
        methods = ["GET"]
        "#,
    )
    .upstream(&upstream)
    .start();
    let client = gateway.client();
    assert_eq!(client.request("post", "/x").send().await.status, 404);
    assert_eq!(client.post("/x").send().await.status, 200);
    assert_eq!(client.post("/x").send().await.status, 429);
    let overridden = client.post("/x").header("X-HTTP-Method-Override", "GET");
    assert_eq!(overridden.send().await.status, 429);
    let overridden = client.get("/x").header("X-HTTP-Method-Override", "POST");
    assert_eq!(overridden.send().await.status, 200);
    assert_eq!(upstream.last().method, "GET");
}

#[test]
fn a_pattern_that_is_too_large_is_rejected_with_its_location() {
    let config = "[upstream.api]\nservers = [\"http://127.0.0.1:9\"]\n\
                  [[route]]\nname = \"all\"\npath = \"/((a{0,1000}){0,1000}){0,1000}\"\n";
    let loaded = tidegate::config::parse(
        "test.toml",
        config,
        &tidegate::config::Environment::default(),
        &tidegate::config::Overrides::default(),
    );
    let errors = loaded
        .expect_err("the configuration should be rejected because of its path pattern")
        .to_string();
    assert!(errors.contains("test.toml:5:"), "{errors}");
}
