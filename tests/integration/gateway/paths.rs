//! Request paths over HTTP/1 and HTTP/2, and campaigns with many spellings. `request::path::tests` and
//! `pipeline::tests::entry` have the tables of decisions.

mod decoders;
mod servers;
mod spelling_grammar;
mod spellings;
mod targets;

use crate::support::{Gateway, Upstream};

/// Starts a gateway whose rate limit allows one request per hour to `/o/client/register`. It forwards everything else
/// without a limit.
fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "1/h"
        [[route]]
        name = "register"
        path = "/o/client/register"
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

#[tokio::test]
async fn spellings_of_a_path_are_limited_forwarded_or_rejected_in_both_http_versions() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    let first = gateway.client().get("/o/client/register").send().await;
    assert_eq!(first.status, 200);
    for (path, expected) in [
        ("/%6f/client/register;x=1?/../../other", Err(429)),
        ("/o/client/register%2Fx", Err(429)),
        ("/x/o/client/register", Ok("/x/o/client/register")),
        (
            "/other?x=/o/client/register",
            Ok("/other?x=/o/client/register"),
        ),
        ("//a/./b/../c", Ok("//a/./b/../c")),
        ("/a;x=1/b\\c", Ok("/a;x=1/b\\c")),
        ("/%252e%252e/%2F", Ok("/%252e%252e/%2F")),
        ("//a?q=//&r=%zz&s=%00", Ok("//a?q=//&r=%zz&s=%00")),
        ("/é?é", Ok("/é?é")),
        ("/a{%62}?d=%2f%2e&e={f}", Ok("/a%7Bb%7D?d=%2F.&e=%7Bf%7D")),
        ("/o%2Fclient/register", Err(400)),
        ("///h/o/client/register", Err(400)),
        ("/a%2500", Err(400)),
        ("/ab%2", Err(400)),
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.get(path).send().await;
            match expected {
                Ok(forwarded) => assert_eq!(response.json()["target"], forwarded),
                Err(status) => assert_eq!(response.status, status, "{path}"),
            }
        }
    }
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
