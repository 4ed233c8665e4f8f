//! Tests of request paths: the gateway forwards a path as received, or rejects it if servers can read it as a path of
//! another route.

mod decoders;
mod servers;
mod spelling_grammar;
mod spellings;
mod targets;

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
    .admin()
    .upstream(upstream)
    .start()
}

/// Uses the only token of the rate limit, so that the gateway rejects every further request to a limited path.
async fn use_token(gateway: &Gateway) {
    let response = gateway.client().get("/o/client/register").send().await;
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn equivalent_spellings_of_a_limited_path_are_limited() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    use_token(&gateway).await;
    for path in [
        "/o/client/register",
        "/%6f/client/register",
        "/%6F/client/register",
        "/o/client/%72egister",
        "/o/client/register/",
        "/o/client/register;x=1",
        "/o/client/register//x",
        "/o/client/register/./x",
        "/o/client/register%2Fx",
        "/o/client/register?x=1",
        "/o/client/register?/../../other",
        "/o/client/register?a=%2F%5C%00",
        "/api/v1/x%0Ay/profile-requests/z",
        "/api/v1/x/profile-requests/y%0A",
        "/api/v1/x%FF/profile-requests/z",
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
        "/x%2Fo/client/register",
        "/other?x=/o/client/register",
        "/?/o/client/register",
        "/users/@me/",
    ] {
        let response = gateway.client().get(path).send().await;
        assert_eq!(response.status, 200, "{path}");
    }
}

#[tokio::test]
async fn upstream_gets_the_path_and_the_query_as_received() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for path in [
        "/a",
        "/a/",
        "//a//b",
        "/a/./b/../c",
        "/a/..",
        "/..",
        "/a%20b%3Fc",
        "/a%2Ab",
        "/%252e%252e/x",
        "/a;x=1/b",
        "/a\\b",
        "/@scope%2Fname",
        "/api/queues/%2F/",
        "/a?b=/../c&d=%2F..",
        "/x/../a?",
        "//a?q=//&r=%zz&s=%00",
        "/é?é",
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.get(path).send().await;
            assert_eq!(response.status, 200, "{path}");
            assert_eq!(response.json()["target"], path);
        }
    }
}

#[tokio::test]
async fn upstream_gets_equivalent_spellings_in_one_form() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for (requested, forwarded) in [
        ("/%61%2Db%7E", "/a-b~"),
        ("/a%2ab%c3%a9", "/a%2Ab%C3%A9"),
        ("/a{b}|c^d\"e", "/a%7Bb%7D%7Cc%5Ed%22e"),
        ("/a?d=%2f%2e%2e&e={f}|g", "/a?d=%2F..&e=%7Bf%7D%7Cg"),
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.get(requested).send().await;
            assert_eq!(response.status, 200, "{requested}");
            assert_eq!(response.json()["target"], forwarded, "{requested}");
        }
    }
}

#[tokio::test]
async fn an_invalid_or_ambiguous_path_returns_400() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for (path, detail) in [
        ("/o%2Fclient/register", "the route 'rest'"),
        ("/o//client/register", "the route 'register'"),
        ("/o/client%5Cregister", "ambiguous_paths"),
        ("/o\\client\\register", "ambiguous_paths"),
        ("///h/o/client/register", "the route 'register'"),
        ("/api/v1/x/profile-requests/%0A", "the route 'rest'"),
        ("/o/client/register/..", "the route 'register'"),
        ("/a%00", "NUL"),
        ("/a%2500", "NUL"),
        ("/a%", "the `%` at byte 2"),
        ("/ab%2", "the `%` at byte 3"),
        ("/a%zz", "Write `%25`"),
        ("/%2525252525252525252541", "more than 8 times"),
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.get(path).send().await;
            assert_eq!(response.status, 400, "{path}");
            assert_eq!(response.problem(), "bad-request");
            let found = response.json()["detail"].to_string();
            assert!(found.contains(detail), "{path}: {found}");
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
    let lower_case = client.request("post", "/x").send().await;
    assert_eq!(lower_case.status, 400);
    assert_eq!(lower_case.problem(), "bad-request");
    let unknown = client.request("PURGE", "/x").send().await;
    assert_eq!(unknown.status, 405);
    assert_eq!(unknown.problem(), "method-not-allowed");
    assert_eq!(unknown.header("allow"), "GET, POST");
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
