//! Tests of connections that are upgraded to a tunnel, and of upgrades that fail.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_tunnel_starts_after_the_body_of_its_request() {
    let mut pair = Pair::start(|mut request: Request<Http1Body>| -> ServiceFuture<_> {
        Box::pin(async move {
            let upgrade = upgrade::on(&mut request).expect("the request asks for an upgrade");
            drop(request);
            tokio::spawn(async move {
                let mut tunnel = upgrade.await.unwrap();
                let mut received = String::new();
                tunnel.read_to_string(&mut received).await.unwrap();
                tunnel.write_all(received.as_bytes()).await.unwrap();
            });
            let mut response = Response::new(Full::<Bytes>::default());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response
        })
    });
    let head = post("/", 4).replace("\r\n\r\n", "\r\nUpgrade: x\r\n\r\n");
    pair.send(head).await;
    assert_eq!(
        pair.receive().await,
        "HTTP/1.1 101 Switching Protocols\r\n\r\n"
    );
    pair.send("bodytunnel").await;
    pair.client.shutdown().await.unwrap();
    assert_eq!(pair.receive().await, "tunnel");
}

/// Service that drops the body and responds with 101. It sends true to `upgraded` if it receives a tunnel, otherwise
/// false.
fn switching(
    mut request: Request<Http1Body>,
    upgraded: tokio::sync::mpsc::UnboundedSender<bool>,
) -> ServiceFuture<Full<Bytes>> {
    let upgrade = upgrade::on(&mut request).expect("the request asks for an upgrade");
    drop(request);
    tokio::spawn(async move {
        let _ = upgraded.send(upgrade.await.is_ok());
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    Box::pin(async { response })
}

#[tokio::test(start_paused = true)]
async fn no_tunnel_is_opened_if_the_end_of_the_request_is_not_reached() {
    let (upgraded, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let mut pair = Pair::start(move |request| switching(request, upgraded.clone()));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    pair.send(head).await;
    pair.send(format!("186a0\r\n{}", "x".repeat(100_000))).await;
    assert_eq!(seen.recv().await, Some(false));
    assert!(pair.serving.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn no_tunnel_is_opened_for_a_client_that_waits_for_continue() {
    let (upgraded, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let mut pair = Pair::start(move |request| switching(request, upgraded.clone()));
    let lines = "\r\nUpgrade: x\r\nExpect: 100-continue\r\n\r\n";
    pair.send(post("/", 5).replace("\r\n\r\n", lines)).await;
    assert_eq!(pair.receive().await, "");
    assert_eq!(seen.recv().await, Some(false));
}
