//! Tests of request bodies that the service drops before their end.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_small_dropped_body_is_discarded() {
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (head, body) in [
        (post("/", 5), "GET /".to_owned()),
        (chunked.to_owned(), format!("5\r\n{}\r\n0\r\n\r\n", "GET /")),
    ] {
        let mut pair = Pair::start(unread);
        pair.send(&head).await;
        assert_eq!(pair.receive().await, EMPTY);
        pair.send(&body[..3]).await;
        assert_eq!(pair.receive().await, "");
        pair.send(format!("{}{GET}", &body[3..])).await;
        assert_eq!(pair.receive().await, EMPTY);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_body_that_does_not_arrive_times_out() {
    let mut pair = Pair::start(unread);
    pair.send(post("/", 5)).await;
    assert_eq!(pair.receive().await, EMPTY);
    let start = Instant::now();
    pair.closes().await.unwrap();
    let body = ClientTimeouts::default().body;
    assert!(start.elapsed() <= body);
    assert!(start.elapsed() + Duration::from_secs(1) > body);
}

#[tokio::test(start_paused = true)]
async fn a_large_dropped_body_closes_the_connection() {
    let mut pair = Pair::start(unread);
    pair.send(post("/", 1 << 20)).await;
    let response = pair.receive().await;
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
    pair.closes().await.unwrap();

    let mut pair = Pair::start(unread);
    pair.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    assert_eq!(pair.receive().await, EMPTY);
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
    pair.send(format!("{chunk}{chunk}0\r\n\r\n{GET}")).await;
    pair.closes().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_idle_timeout_starts_at_the_end_of_a_dropped_body() {
    let mut pair = Pair::start(unread);
    pair.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        .await;
    assert_eq!(pair.receive().await, EMPTY);
    sleep(Duration::from_secs(20)).await;
    pair.send("0\r\n\r\n").await;
    let start = Instant::now();
    pair.closes().await.unwrap();
    assert_eq!(start.elapsed(), ClientTimeouts::default().idle);
}

#[tokio::test(start_paused = true)]
async fn discarding_a_dropped_body_takes_at_most_one_body_timeout() {
    let mut pair = Pair::start(unread);
    pair.send(post("/", 1_000)).await;
    assert_eq!(pair.receive().await, EMPTY);
    let start = Instant::now();
    while pair.client.write_all(b"x").await.is_ok() && !pair.serving.is_finished() {
        sleep(Duration::from_secs(1)).await;
    }
    let (waited, body) = (start.elapsed(), ClientTimeouts::default().body);
    let tolerance = Duration::from_secs(2);
    assert!(
        waited + tolerance >= body && waited <= body + tolerance,
        "{waited:?}"
    );
}

/// How the service of a test reads the request body.
#[derive(Clone, Copy, Debug)]
enum ReadMode {
    /// The service reads this many parts, drops the rest, and responds.
    Parts(usize),
    /// The service responds first, and reads the body while the response is sent.
    WhileResponding,
}

fn read_modes() -> impl Strategy<Value = ReadMode> {
    prop_oneof![
        (0usize..4).prop_map(ReadMode::Parts),
        Just(ReadMode::WhileResponding)
    ]
}

async fn respond(
    reading: ReadMode,
    request: Request<Http1Body>,
) -> Response<BoxBody<Bytes, IncompleteBody>> {
    let mut body = request.into_body();
    match reading {
        ReadMode::WhileResponding => Response::new(body.boxed()),
        ReadMode::Parts(parts) => {
            for _ in 0..parts {
                let _part = body.frame().await;
            }
            Response::new(Full::default().map_err(|never| match never {}).boxed())
        }
    }
}

/// Returns a request for `target` whose body consists of `repeated` copies of a request for `/never`. If the server
/// wrongly parsed the unread rest of the body as the next request, it would serve `/never`.
fn request_within(target: usize, chunked: bool, repeated: usize) -> String {
    let body = "GET /never HTTP/1.1\r\nHost: a\r\n\r\n".repeat(repeated);
    if !chunked {
        return post(&format!("/{target}"), body.len()) + &body;
    }
    let head = format!("POST /{target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunks = body.as_bytes().chunks(20).map(|chunk| {
        let chunk = std::str::from_utf8(chunk).unwrap();
        format!("{:x}\r\n{chunk}\r\n", chunk.len())
    });
    head + &chunks.collect::<String>() + "0\r\n\r\n"
}

proptest! {
    #[test]
    fn the_rest_of_a_dropped_body_is_never_parsed_as_a_request(
        requests in prop::collection::vec((any::<bool>(), 0usize..5, read_modes()), 1..6),
        size in 1usize..200,
    ) {
        let readings: Vec<ReadMode> = requests.iter().map(|(.., reading)| *reading).collect();
        let stream: String = (requests.iter().enumerate())
            .map(|(target, (chunked, repeated, _))| request_within(target, *chunked, *repeated))
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        let seen = runtime.unwrap().block_on(async {
            let (targets, mut seen) = tokio::sync::mpsc::unbounded_channel();
            let mut left = readings.into_iter();
            let mut pair = Pair::start(move |request: Request<Http1Body>| -> ServiceFuture<_> {
                targets.send(request.uri().to_string()).unwrap();
                Box::pin(respond(left.next().unwrap_or(ReadMode::Parts(0)), request))
            });
            for piece in stream.as_bytes().chunks(size) {
                pair.send(piece).await;
                tokio::task::yield_now().await;
            }
            pair.receive().await;
            let mut all = Vec::new();
            while let Ok(target) = seen.try_recv() {
                all.push(target);
            }
            all
        });
        let sent: Vec<String> = (0..requests.len()).map(|target| format!("/{target}")).collect();
        prop_assert_eq!(seen, sent);
    }
}
