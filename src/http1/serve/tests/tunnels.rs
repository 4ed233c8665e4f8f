//! Connections that leave HTTP, and those that may not.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_tunnel_begins_behind_the_body_of_its_request() {
    let mut pair = Pair::start(|mut request: Request<Body>| -> Answer<_> {
        Box::pin(async move {
            let upgrade = upgrade::on(&mut request).expect("an upgrade");
            drop(request);
            tokio::spawn(async move {
                let mut tunnel = upgrade.await.unwrap();
                let mut said = String::new();
                tunnel.read_to_string(&mut said).await.unwrap();
                tunnel.write_all(said.as_bytes()).await.unwrap();
            });
            let mut response = Response::new(Full::<Bytes>::default());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response
        })
    });
    let head = post("/", 4).replace("\r\n\r\n", "\r\nUpgrade: x\r\n\r\n");
    pair.send(head).await;
    assert_eq!(
        pair.hear().await,
        "HTTP/1.1 101 Switching Protocols\r\n\r\n"
    );
    pair.send("bodytunnel").await;
    pair.client.shutdown().await.unwrap();
    assert_eq!(pair.hear().await, "tunnel");
}

/// Agrees to an upgrade, lets go of the body, and tells whether there was a tunnel.
fn switching(
    mut request: Request<Body>,
    told: tokio::sync::mpsc::UnboundedSender<bool>,
) -> Answer<Full<Bytes>> {
    let upgrade = upgrade::on(&mut request).expect("an upgrade");
    drop(request);
    tokio::spawn(async move {
        let _ = told.send(upgrade.await.is_ok());
    });
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    Box::pin(async { response })
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_is_not_opened_amid_its_request() {
    let (told, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let mut pair = Pair::start(move |request| switching(request, told.clone()));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    pair.send(head).await;
    pair.send(format!("186a0\r\n{}", "x".repeat(100_000))).await;
    assert_eq!(seen.recv().await, Some(false));
    assert!(pair.serving.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_to_be_asked_for_its_body_gets_no_tunnel_in_its_place() {
    let (told, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let mut pair = Pair::start(move |request| switching(request, told.clone()));
    let lines = "\r\nUpgrade: x\r\nExpect: 100-continue\r\n\r\n";
    pair.send(post("/", 5).replace("\r\n\r\n", lines)).await;
    assert_eq!(pair.hear().await, "");
    assert_eq!(seen.recv().await, Some(false));
}
