//! Tests that the upstream receives a header field with the value that the gateway used for its rate limits and
//! idempotency scopes. If the gateway ignored the header field, the upstream does not receive it.

use crate::support::{Gateway, Upstream};

const RULES: &str = "[upstream.api]\nservers = [\"{upstream}\"]\n\
    [limit.tenant]\nkey = \"header:X-Tenant\"\nrate = \"1000/s\"\n\
    [limit.odd]\nkey = \"header:X_Odd\"\nrate = \"1000/s\"\n\
    [[route]]\nname = \"limited\"\npath = \"/limited\"\nlimits = [\"tenant\", \"odd\"]\n\
    [[route]]\nname = \"keyed\"\npath = \"/keyed\"\n\
    idempotency = { header = \"X-Once\", scope = \"header:X-Api-Key\" }\n\
    [[route]]\nname = \"open\"\npath = \"/\"\n";

#[tokio::test]
async fn headers_similar_to_a_configured_header_are_removed_on_every_route() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(RULES).upstream(&upstream).start();
    let similar_names = [
        "X_Tenant",
        "x_tenant",
        "X_Api_Key",
        "X-Api_Key",
        "x_api-key",
        "X.Api.Key",
        "X_Once",
        "X-Odd",
        "X_Forwarded_For",
        "Idempotency_Key",
        "Transfer_Encoding",
    ];
    for path in ["/limited", "/keyed", "/open"] {
        for client in [gateway.client(), gateway.client().h2()] {
            let mut request = client.get(path);
            for name in similar_names {
                request = request.header(name, "forged");
            }
            for name in ["X-Tenant", "X-Api-Key", "X-Once", "X_Odd"] {
                request = request.header(name, "real");
            }
            let response = request.header("other_name", "dropped").send().await;
            assert_eq!(response.status, 200, "{path}");
            let received = upstream.last();
            for name in similar_names {
                assert!(
                    !received.has(name),
                    "the upstream received {name} from {path}"
                );
            }
            for name in ["X-Tenant", "X-Api-Key", "X-Once", "X_Odd"] {
                assert_eq!(received.header(name), "real", "{name} on {path}");
            }
            assert!(!received.has("other_name"));
        }
    }
}

#[tokio::test]
async fn a_counted_header_named_in_connection_is_not_forwarded_and_the_others_are() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(RULES).upstream(&upstream).start();
    let request = gateway.client().get("/limited");
    let request = request
        .header("Connection", "X-Tenant, X-Once, Cookie, X-Api-Key, Host")
        .header("X-Tenant", "a")
        .header("X-Tenant", "b")
        .header("X-Api-Key", "k")
        .header("X-Once", "once")
        .header("Cookie", "a=1")
        .header("Host", "a.example");
    assert_eq!(request.send().await.status, 200);
    let received = upstream.last();
    assert!(!received.has("x-tenant") && !received.has("x-api-key"));
    assert_eq!(received.header("x-once"), "once");
    assert_eq!(received.header("cookie"), "a=1");
    assert_eq!(received.header("host"), "a.example");
}

#[tokio::test]
async fn a_header_that_is_not_counted_can_be_repeated() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(RULES).upstream(&upstream).start();
    for path in ["/open", "/keyed"] {
        let request = gateway.client().get(path).header("X-Tenant", "a");
        assert_eq!(request.header("X-Tenant", "b").send().await.status, 200);
        assert_eq!(upstream.last().header("x-tenant"), "a, b");
    }
}

/// HTTP trims only spaces and tabs at the ends of a value. Bytes that are white space in another character set, such as
/// 0xA0, belong to the value.
#[tokio::test]
async fn non_ascii_bytes_and_inner_white_space_are_forwarded_unchanged() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(RULES).upstream(&upstream).start();
    for value in [
        &b"\xa0real"[..],
        b"real\xa0",
        b"\x85real",
        b"re\tal",
        b"re  al",
        b"voil\xc3\xa0",
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let request = client.get("/limited").header_bytes("X-Tenant", value);
            assert_eq!(request.send().await.status, 200);
            let received = upstream.last();
            assert_eq!(received.headers["x-tenant"].as_bytes(), value);
        }
    }
}

#[tokio::test]
async fn cookie_lines_are_joined_for_upstream() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(RULES).upstream(&upstream).start();
    for client in [gateway.client(), gateway.client().h2()] {
        let request = client.get("/").header("Cookie", "a=1").header("Cookie", "");
        let response = request.header("Cookie", "b=2; c=3").send().await;
        assert_eq!(response.status, 200);
        let received = upstream.last();
        let lines: Vec<_> = received.headers.get_all("cookie").iter().collect();
        assert_eq!(lines, ["a=1; b=2; c=3"]);
    }
}
