//! Compares the gateway's HTTP/1 parser with the less strict parser of hyper. Hyper must read the same body from every
//! request that the gateway accepts.

use super::*;

/// Generates chunked bodies, some of which have a defect.
fn chunked_bodies() -> impl Strategy<Value = String> {
    let chunk = prop::sample::select(vec![
        "1\r\nx\r\n",
        "3;a=\"b c\"\r\n0\r\n\r\n",
        "0A\r\n0123456789\r\n",
        "2 \r\nxx\r\n",
        "1\nx\r\n",
        "1\r\nx\n",
        "2\r\nx\r\n",
        "",
    ]);
    let end = prop::sample::select(vec![
        "0\r\n\r\n",
        "00;z\r\n\r\n",
        "0\r\nt: r\r\nu:\r\n\r\n",
        "0\r\nt : r\r\n\r\n",
        "0\r\nt: r\n\r\n",
        "0\n\r\n",
        "0\r\n\n",
    ]);
    (prop::collection::vec(chunk, 0..4), end).prop_map(|(chunks, end)| chunks.concat() + end)
}

/// Returns the bodies of the requests that hyper reads from `stream`.
async fn read_by_hyper(stream: &[u8]) -> Vec<Bytes> {
    let (gateway, mut client) = duplex(64 * 1024);
    let (bodies, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let bodies = bodies.clone();
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            bodies.send(body).expect("the test waits for it");
            Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::new())))
        }
    });
    let io = hyper_util::rt::TokioIo::new(gateway);
    let serving = hyper::server::conn::http1::Builder::new()
        .half_close(true)
        .serve_connection(io, service);
    client.write_all(stream).await.unwrap();
    client.shutdown().await.unwrap();
    let _outcome = serving.await;
    let mut all = Vec::new();
    while let Some(body) = seen.recv().await {
        all.push(body);
    }
    all
}

/// Returns the bodies of the requests that the gateway's parser reads from `stream`, and the violation that ended
/// reading, if any.
async fn read_here(stream: &[u8]) -> (Vec<Bytes>, Option<Violation>) {
    let (gateway, mut client) = duplex(64 * 1024);
    let (events, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let service = move |received: Received<Http1Body>| -> Pin<Box<_>> {
        let events = events.clone();
        Box::pin(async move {
            let event = match received {
                Received::Invalid { violation, .. } => Err(Some(violation)),
                Received::Request(request) => match request.into_body().collect().await {
                    Ok(body) => Ok(body.to_bytes()),
                    Err(IncompleteBody::Invalid(violation)) => Err(Some(violation)),
                    Err(IncompleteBody::Disconnected) => Err(None),
                },
            };
            events.send(event).expect("the test waits for it");
            Reply::Response(response(StatusCode::OK, ""))
        })
    };
    client.write_all(stream).await.unwrap();
    client.shutdown().await.unwrap();
    let limits = ServerLimits::default();
    let _outcome = serve(
        gateway,
        [][..].into(),
        &ConnectionPermit::alone(),
        &limits,
        TIMEOUTS,
        &FlushBatch::default(),
        pending(),
        service,
    )
    .await;
    let (mut bodies, mut violation) = (Vec::new(), None);
    while let Some(event) = seen.recv().await {
        match event {
            Ok(body) => bodies.push(body),
            Err(reason) => violation = reason,
        }
    }
    (bodies, violation)
}

proptest! {
    #[test]
    fn hyper_reads_the_same_bodies_of_accepted_requests(
        bodies in prop::collection::vec(chunked_bodies(), 1..4),
        damage in prop::option::of((any::<prop::sample::Index>(), b' '..=b'~')),
    ) {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let requests = bodies.iter().map(|body| format!("{head}{body}"));
        let mut stream = requests.collect::<String>().into_bytes();
        if let Some((at, octet)) = damage {
            let at = at.index(stream.len());
            stream[at] = octet;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let ((here, violation), there) =
            runtime.block_on(async { (read_here(&stream).await, read_by_hyper(&stream).await) });
        prop_assert!(there.starts_with(&here), "{here:?} is not {there:?}");
        // If the gateway's parser reports no violation, it must read as many requests as hyper.
        prop_assert!(violation.is_some() || here.len() == there.len(), "{here:?}, {there:?}");
    }
}
