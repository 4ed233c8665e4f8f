use std::future::pending;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::http::connections::Connections;

/// Responds to `/read` when the request body ends or fails, and to `/slow` after one minute. `/go-away` ends the
/// connection. Never responds to other requests, and never reads their bodies.
async fn respond(received: Received<Http2Body>) -> Reply<Full<Bytes>> {
    let Received::Request(mut request) = received else {
        panic!("the client sends valid requests");
    };
    let mut response = Response::new(Full::default());
    match request.uri().path() {
        "/read" => {
            let body = request.body_mut();
            while let Some(part) = body.frame().await {
                if let Err(error) = part {
                    *response.body_mut() = Full::from(error.to_string());
                    break;
                }
            }
        }
        "/slow" => sleep(Duration::from_mins(1)).await,
        "/go-away" => return Reply::Abort(Abort::GoAway),
        _ => pending().await,
    }
    Reply::Response(response)
}

async fn run(
    io: DuplexStream,
    permit: Arc<ConnectionPermit>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let io = Rewind::new(io, BytesMut::new(), Duration::from_secs(30)).with_lingering_close();
    let (limits, timeouts) = (ServerLimits::default(), ClientTimeouts::default());
    let (tasks, metrics) = (TaskTracker::new(), Arc::default());
    serve(
        io, &permit, &limits, timeouts, &tasks, metrics, stop, respond,
    )
    .await
}

/// Sends this many bodies that the service does not read, each as large as the window of a stream. Then sends one
/// byte of a body that the service reads. Returns how long the service waits for the rest, and the error.
async fn wait_beside_paused_bodies(paused: usize) -> (Duration, String) {
    let (client, server) = duplex(64 * 1024);
    tokio::spawn(run(server, ConnectionPermit::alone(), pending()));
    let (mut requests, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    let mut open = |path: &str| {
        let request = Request::post(format!("http://a{path}")).body(()).unwrap();
        requests.send_request(request, false).unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..paused {
        let (response, mut body) = open("/paused");
        let part = Bytes::from(vec![0; STREAM_WINDOW as usize]);
        body.send_data(part, false).unwrap();
        streams.push((response, body));
        sleep(Duration::from_millis(10)).await;
    }
    let (response, mut body) = open("/read");
    body.send_data(Bytes::from_static(b"x"), false).unwrap();
    let start = Instant::now();
    let mut response = response.await.unwrap().into_body();
    let waited = start.elapsed();
    let text = response.data().await.unwrap().unwrap();
    (waited, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn the_minimum_rate_does_not_apply_while_unread_bodies_fill_the_window() {
    let (waited, error) = wait_beside_paused_bodies(15).await;
    assert!(error.contains("min_rate"), "{error}");
    let expected = Duration::from_secs(5)..Duration::from_secs(6);
    assert!(expected.contains(&waited), "{waited:?}");
    let (waited, error) = wait_beside_paused_bodies(16).await;
    assert!(error.contains("body_timeout"), "{error}");
    assert!(waited >= Duration::from_mins(1), "{waited:?}");
}

type Serving = JoinHandle<io::Result<()>>;

/// Serves a connection that stops after `stop`.
fn serving(stop: Option<Duration>) -> (DuplexStream, Serving) {
    let (client, server) = duplex(64 * 1024);
    let stop = async move {
        match stop {
            Some(after) => sleep(after).await,
            None => pending().await,
        }
    };
    let serving = tokio::spawn(run(server, ConnectionPermit::alone(), stop));
    (client, serving)
}

const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// Sends the preface and nothing else, as a client that acknowledges no PING. Returns the PING and GOAWAY frames until
/// the server closes the connection, each GOAWAY with its last stream and its reason, and the time of the close.
async fn silent(mut client: DuplexStream) -> (Vec<(u8, Vec<u32>)>, Duration) {
    let start = Instant::now();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    client.write_all(preface).await.unwrap();
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).await.unwrap();
    let (mut frames, mut rest) = (Vec::new(), &bytes[..]);
    while let [a, b, c, kind, _flags, _, _, _, _, after @ ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let (payload, next) = after.split_at(length);
        let words = payload.chunks_exact(4);
        let words = words.map(|word| u32::from_be_bytes(word.try_into().unwrap()));
        match *kind {
            PING => frames.push((PING, Vec::new())),
            GOAWAY => frames.push((GOAWAY, words.collect())),
            _ => {}
        }
        rest = next;
    }
    (frames, start.elapsed())
}

/// Frames of a graceful shutdown that the client does not acknowledge.
fn unacknowledged() -> Vec<(u8, Vec<u32>)> {
    vec![
        (GOAWAY, vec![i32::MAX as u32, 0]),
        (PING, Vec::new()),
        (GOAWAY, vec![0, 0]),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_acknowledge_a_shutdown_is_disconnected_after_the_header_timeout() {
    for (stop, closed) in [(None, 100), (Some(5), 15), (Some(95), 105)] {
        let (client, serving) = serving(stop.map(Duration::from_secs));
        let (frames, elapsed) = silent(client).await;
        assert_eq!(frames, unacknowledged(), "{stop:?}");
        assert_eq!(elapsed.as_secs(), closed, "{stop:?}");
        serving.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_acknowledges_a_shutdown_is_disconnected_at_once() {
    for (stop, closed) in [(None, 90), (Some(5), 5)] {
        let start = Instant::now();
        let (client, serving) = serving(stop.map(Duration::from_secs));
        let (_requests, connection) = h2::client::handshake(client).await.unwrap();
        connection.await.unwrap();
        // The client can close the connection before the server has written its last frame.
        let _closed = serving.await.unwrap();
        assert_eq!(start.elapsed().as_secs(), closed, "{stop:?}");
    }
}

/// Sends a request without a body.
async fn get(client: DuplexStream, path: &str) -> Result<StatusCode, h2::Error> {
    let (mut requests, connection) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(format!("http://a{path}")).body(()).unwrap();
    let (response, _) = requests.send_request(request, true).unwrap();
    Ok(response.await?.status())
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_the_streams_in_flight() {
    let start = Instant::now();
    let (client, serving) = serving(Some(Duration::from_secs(5)));
    assert_eq!(get(client, "/slow").await.unwrap(), StatusCode::OK);
    let _closed = serving.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn an_abort_with_go_away_ends_the_connection_at_once() {
    let start = Instant::now();
    let (client, serving) = serving(None);
    get(client, "/go-away").await.unwrap_err();
    serving.await.unwrap().unwrap();
    assert_eq!(start.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_connection_closes_at_once_with_go_away() {
    let connections = Connections::new(1, 1);
    let (client, server) = duplex(64 * 1024);
    let serving = tokio::spawn(run(server, connections.add(None), pending()));
    let ((frames, elapsed), _new) = tokio::join!(silent(client), connections.admit(None));
    assert_eq!(frames, [(GOAWAY, vec![0, 0])]);
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
    serving.await.unwrap().unwrap();
}
