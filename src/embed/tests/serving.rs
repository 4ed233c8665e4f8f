//! Tests with a real server, concurrent requests, and streamed responses.

use std::convert::Infallible;
use std::future::IntoFuture as _;

use bytes::Bytes;
use http_body_util::channel::{Channel, Sender};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::*;

#[tokio::test]
async fn a_served_application_limits_and_replays_requests_over_tcp() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let app = app(layer(&embedded), &bank);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let serving = tokio::spawn(serving.into_future());

    let stream = TcpStream::connect(address).await.unwrap();
    let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut client, connection) = connected.unwrap();
    let connection = tokio::spawn(connection);
    for expected in [Some(false), Some(true), Some(true), Some(true), None] {
        let request = Request::post("/payments")
            .header("host", address.to_string())
            .header("idempotency-key", "k")
            .body(Body::from("100"))
            .unwrap();
        let response = client.send_request(request).await.unwrap();
        let response = response.map(Body::new);
        let Some(replayed) = expected else {
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(response.headers()["retry-after"], "1");
            continue;
        };
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(is_replay(&response), replayed);
        assert_eq!(text(response).await, "payment 1");
    }
    drop(client);
    connection.await.unwrap().unwrap();
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    embedded.finish().await;
    assert_eq!(bank.made(), 1);
}

/// A service of a bounded pool must be free for other requests while a duplicate waits.
#[tokio::test]
async fn a_duplicate_that_waits_does_not_hold_the_service_of_the_application() {
    let (embedded, bank) = (Embedded::new(), Bank::default());
    let pool = Arc::new(());
    let application = {
        let (bank, member) = (bank.clone(), Arc::clone(&pool));
        tower::service_fn(move |_: Request<Body>| {
            let _ = &member;
            let bank = bank.clone();
            async move { Ok::<_, Infallible>(pay(State(bank)).await.into_response()) }
        })
    };
    let service = tower::ServiceBuilder::new()
        .layer(layer(&embedded))
        .service(application);
    let first = tokio::spawn(service.clone().oneshot(payment(CLIENT)));
    while bank.made() == 0 {
        tokio::task::yield_now().await;
    }
    let held = Arc::strong_count(&pool);
    let second = tokio::spawn(service.clone().oneshot(payment(CLIENT)));
    let waits = "tidegate_idempotency_requests_total{route=\"payments\",outcome=\"waited\"} 1";
    while !embedded.metrics().text().contains(waits) {
        tokio::task::yield_now().await;
    }
    assert_eq!(Arc::strong_count(&pool), held);
    bank.open.notify_one();
    for response in [first, second] {
        let response = response.await.unwrap().unwrap().map(Body::new);
        assert_eq!(text(response).await, "payment 1");
    }
}

/// Returns an application that responds once with a body of this type. The sender of the body is returned too.
fn streaming(
    embedded: &Embedded,
    content_type: &'static str,
) -> (Router, Sender<Bytes, std::io::Error>) {
    let (sender, body) = Channel::<Bytes, std::io::Error>::new(4);
    let body = Arc::new(Mutex::new(Some(Body::new(body))));
    let handler = move || async move {
        let body = body.lock().take().expect("the handler is called once");
        ([(CONTENT_TYPE, content_type)], body)
    };
    let app = Router::new().route("/payments", post(handler));
    (app.layer(layer(embedded)), sender)
}

async fn next_part(response: &mut Response) -> Option<Bytes> {
    let frame = response.body_mut().frame().await?;
    frame.unwrap().into_data().ok()
}

#[tokio::test]
async fn a_response_is_streamed_unless_it_is_stored() {
    for (content_type, request) in [
        ("text/plain", plain("/payments", CLIENT)),
        ("text/event-stream", payment(CLIENT)),
    ] {
        let embedded = Embedded::new();
        let (app, mut sender) = streaming(&embedded, content_type);
        // The first part arrives before the application sends the second part.
        let mut response = send(&app, request).await;
        for part in ["one", "two"] {
            sender.send_data(part.into()).await.unwrap();
            assert_eq!(next_part(&mut response).await, Some(part.into()));
        }
        drop(sender);
        assert_eq!(next_part(&mut response).await, None);
        if content_type == "text/event-stream" {
            let retry = send(&app, payment(CLIENT)).await;
            assert_eq!(retry.status(), StatusCode::CONFLICT);
            let problem = text(retry).await;
            assert!(problem.contains("response-not-retained"), "{problem}");
        }
    }
}

#[tokio::test]
async fn a_response_body_that_fails_leaves_the_key_unknown() {
    let embedded = Embedded::new();
    let (app, mut sender) = streaming(&embedded, "text/plain");
    let sending = tokio::spawn(app.clone().oneshot(payment(CLIENT)));
    sender.send_data("one".into()).await.unwrap();
    sender.abort(std::io::Error::other("broken"));
    let response = sending.await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    let problem = text(response).await;
    let detail = "The application failed before the end of its response. The request may have been executed. A retry";
    assert!(problem.contains(detail), "{problem}");
    assert_eq!(status(&app, payment(CLIENT)).await, 409);
}
