//! Tests of the client that a layer identifies, and of the bucket that it charges.

use http::Method;
use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};

use super::*;

const PROXY: &str = "10.0.0.1:9";

/// Returns an application with a limit of one request per hour and client. Its layer trusts proxies in 10.0.0.0/8, and
/// 198.51.100.7 has no limit.
fn behind_a_proxy(bank: &Bank) -> Router {
    let trusted = vec!["10.0.0.0/8".parse().unwrap()];
    let exempt = vec!["198.51.100.7/32".parse().unwrap()];
    let embedded = Embedded::new().trust(Trust::new(trusted, exempt, 64));
    let layer = embedded.layer("payments", [hourly("hourly", 1)], None);
    app(layer.unwrap(), bank)
}

fn forwarded(peer: &str, addresses: &str) -> Request<Body> {
    let mut request = plain("/payments", peer);
    let addresses = addresses.parse().unwrap();
    request.headers_mut().insert("x-forwarded-for", addresses);
    request
}

#[tokio::test]
async fn a_trusted_peer_reports_the_client_in_x_forwarded_for() {
    let app = behind_a_proxy(&Bank::open());
    for (peer, addresses, expected) in [
        (PROXY, "192.0.2.1", 200),
        (PROXY, "192.0.2.1", 429),
        // The client controls the addresses left of its own.
        (PROXY, "192.0.2.9, 192.0.2.1, 10.0.0.2", 429),
        (PROXY, "192.0.2.2", 200),
        // A client without a limit.
        (PROXY, "198.51.100.7", 200),
        (PROXY, "198.51.100.7", 200),
        // A peer that is not trusted is the client.
        ("192.0.2.3:9", "192.0.2.4", 200),
        ("192.0.2.3:9", "198.51.100.7", 429),
        (PROXY, "192.0.2.4", 200),
    ] {
        let status = status(&app, forwarded(peer, addresses)).await;
        assert_eq!(status, expected, "{peer} {addresses}");
    }
}

#[tokio::test]
async fn too_many_addresses_in_x_forwarded_for_of_a_trusted_peer_get_400() {
    let bank = Bank::open();
    let app = behind_a_proxy(&bank);
    let addresses = vec!["192.0.2.1"; 257].join(",");
    // The header of a peer that is not trusted is not read.
    for (peer, expected, made) in [(PROXY, 400, 0), ("192.0.2.3:9", 200, 1)] {
        let status = status(&app, forwarded(peer, &addresses)).await;
        assert_eq!((status, bank.made()), (expected, made), "{peer}");
    }
}

#[tokio::test]
async fn a_cors_preflight_takes_no_token_from_the_request_that_follows_it() {
    let embedded = Embedded::new();
    let layer = embedded.layer("payments", [hourly("hourly", 1)], None);
    let app = app(layer.unwrap(), &Bank::open());
    let preflight = || {
        let mut request = plain("/payments", CLIENT);
        *request.method_mut() = Method::OPTIONS;
        let origin = HeaderValue::from_static("https://app.example");
        request.headers_mut().insert(ORIGIN, origin);
        let method = HeaderValue::from_static("POST");
        let headers = request.headers_mut();
        headers.insert(ACCESS_CONTROL_REQUEST_METHOD, method);
        request
    };
    // The application has no handler for OPTIONS.
    assert_eq!(status(&app, preflight()).await, 405);
    let request = || plain("/payments", CLIENT);
    assert_eq!(status(&app, request()).await, 200);
    // The bucket for preflights has the same quota.
    assert_eq!(status(&app, preflight()).await, 429);
    assert_eq!(status(&app, request()).await, 429);
}
