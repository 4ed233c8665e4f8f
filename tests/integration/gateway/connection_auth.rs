//! Tests with servers that authenticate the connection (NTLM, Negotiate): no other client gets an authenticated one.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use http::header::WWW_AUTHENTICATE;

use crate::support::raw_http::{RawClient, RawUpstream, UpstreamConnection, WireGateway, ok};
use crate::support::{Client, ClientResponse, wait_until};

const GET: &str = "GET /api HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";

const TRUST_LOOPBACK: &str = "[client]\ntrusted_proxies = [\"127.0.0.0/8\"]";

/// Responds like IIS: NTLM logs a connection in with two messages, Negotiate with one. All later requests on the
/// connection are those of the user. Counts open connections in `open`.
fn authenticate(connection: &mut UpstreamConnection, open: &AtomicUsize) {
    open.fetch_add(1, Ordering::SeqCst);
    let mut user = None;
    while let Some(request) = connection.request() {
        let authorization = request.head.split("\r\n").find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("authorization").then_some(value)
        });
        match authorization.and_then(|value| value.split_once(' ')) {
            Some(("NTLM", "hello")) => {
                connection.send(unauthorized("WWW-Authenticate: NTLM challenge\r\n"));
                continue;
            }
            Some(("NTLM" | "Negotiate", name)) => user = Some(name.to_owned()),
            _ => {}
        }
        match &user {
            Some(user) => connection.send(ok(&format!("{user} on {}", connection.number))),
            None => connection.send(unauthorized(
                "WWW-Authenticate: Negotiate\r\nWWW-Authenticate: NTLM\r\n",
            )),
        }
    }
    open.fetch_sub(1, Ordering::SeqCst);
}

fn unauthorized(challenges: &str) -> String {
    format!("HTTP/1.1 401 Unauthorized\r\n{challenges}Content-Length: 0\r\n\r\n")
}

fn authenticating_upstream() -> (RawUpstream, Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    let upstream = RawUpstream::scripted(move |connection| authenticate(connection, &counted));
    (upstream, open)
}

/// Sends a request with `Authorization`. Returns the status and the body of the response.
fn authorized(client: &mut RawClient, value: &str) -> (u16, String) {
    exchange(
        client,
        &format!("GET /api HTTP/1.1\r\nHost: a\r\nAuthorization: {value}\r\n\r\n"),
    )
}

fn exchange(client: &mut RawClient, request: &str) -> (u16, String) {
    let response = client.send(request).response();
    (response.status, String::from_utf8(response.body).unwrap())
}

#[test]
fn a_stranger_is_never_served_as_the_user_of_an_authenticated_connection() {
    for login in [&["NTLM hello", "NTLM alice"][..], &["Negotiate alice"]] {
        let (upstream, open) = authenticating_upstream();
        let gateway = WireGateway::forwarding_to(&upstream);
        let mut alice = gateway.client();
        assert_eq!(exchange(&mut alice, GET).0, 401);
        let [first_messages @ .., last] = login else {
            unreachable!()
        };
        for message in first_messages {
            assert_eq!(authorized(&mut alice, message).0, 401);
        }
        assert_eq!(authorized(&mut alice, last), (200, "alice on 0".into()));
        for number in 0..100 {
            let mut stranger = gateway.client();
            for request in [GET, POST] {
                assert_eq!(exchange(&mut stranger, request).0, 401, "stranger {number}");
            }
            assert_eq!(exchange(&mut alice, GET), (200, "alice on 0".into()));
        }
        drop(alice);
        wait_until("the connections of all clients are closed", || {
            open.load(Ordering::SeqCst) == 0
        });
        assert_eq!(exchange(&mut gateway.client(), GET).0, 401);
    }
}

#[test]
fn an_authenticated_connection_is_used_after_any_idle_time_and_by_any_method() {
    let (upstream, _) = authenticating_upstream();
    let gateway = WireGateway::with(upstream.address, "", "keep_alive = \"0s\"");
    let mut alice = gateway.client();
    assert_eq!(authorized(&mut alice, "Negotiate alice").0, 200);
    // Longer than the idle time after which a POST gets a new connection.
    thread::sleep(std::time::Duration::from_millis(1_100));
    assert_eq!(exchange(&mut alice, POST), (200, "alice on 0".into()));
}

#[test]
fn behind_a_trusted_proxy_an_authenticated_connection_is_closed_after_the_response() {
    let (upstream, open) = authenticating_upstream();
    let gateway = WireGateway::with(upstream.address, "", TRUST_LOOPBACK);
    let mut proxy = gateway.client();
    assert_eq!(authorized(&mut proxy, "Negotiate alice").0, 200);
    for _ in 0..10 {
        assert_eq!(exchange(&mut proxy, GET).0, 401);
    }
    wait_until("all connections to the server are closed", || {
        open.load(Ordering::SeqCst) == 0
    });
}

/// Sends a GET over HTTP/2 to a server that responds 401 with these challenges.
async fn challenged_over_http2(
    challenges: &'static str,
) -> Result<ClientResponse, Box<dyn Error + Send + Sync>> {
    let upstream = RawUpstream::scripted(move |connection| {
        while connection.request().is_some() {
            connection.send(unauthorized(challenges));
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let client = Client::of(gateway.address()).h2();
    client.get("/api").try_send().await
}

#[tokio::test]
async fn over_http2_a_challenge_for_the_connection_is_removed_or_requires_http_1() {
    let challenges = "WWW-Authenticate: NTLM\r\nWWW-Authenticate: Negotiate, Basic realm=\"a\"\r\n";
    let response = challenged_over_http2(challenges).await.unwrap();
    assert_eq!(response.status, 401);
    let left: Vec<_> = response.headers.get_all(WWW_AUTHENTICATE).iter().collect();
    assert_eq!(left, ["Basic realm=\"a\""]);

    let error = challenged_over_http2("WWW-Authenticate: Negotiate, NTLM\r\n")
        .await
        .unwrap_err();
    let error = error.downcast::<hyper::Error>().unwrap();
    let cause = error.source().unwrap();
    let reason = cause.downcast_ref::<h2::Error>().unwrap().reason();
    assert_eq!(reason, Some(h2::Reason::HTTP_1_1_REQUIRED));
}
