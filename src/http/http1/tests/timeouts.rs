//! Tests of the timeouts for slow clients: `header_timeout`, `body_timeout`, `min_rate`, `idle_timeout` and
//! `write_timeout`.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_slow_head_gets_408() {
    let mut server = TestServer::start();
    let start = Instant::now();
    server.send("GET / HT").await;
    sleep(Duration::from_secs(7)).await;
    server.send("TP/1.1\r\n").await;
    let responses = server.response_until("in time").await;
    assert_eq!(statuses(&responses), ["408"]);
    assert_eq!(start.elapsed(), TIMEOUTS.head);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_later_head_starts_at_its_first_byte() {
    let mut server = TestServer::start();
    server.send(GET).await.response_until("\r\n\r\n").await;
    sleep(Duration::from_secs(50)).await;
    let start = Instant::now();
    server.send("\r\n").await;
    sleep(Duration::from_secs(20)).await;
    server.send("G").await;
    assert_eq!(statuses(&server.response_until("in time").await), ["408"]);
    assert_eq!(start.elapsed(), Duration::from_secs(20) + TIMEOUTS.head);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_closed_without_a_response() {
    let mut server = TestServer::start();
    let start = Instant::now();
    assert_eq!(server.responses().await, "");
    assert_eq!(start.elapsed(), TIMEOUTS.head);
    server.connection.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_without_a_response() {
    let mut server = TestServer::start();
    for _ in 0..3 {
        server.send(GET).await.response_until("\r\n\r\n").await;
        sleep(Duration::from_mins(1)).await;
    }
    server.send(GET).await.response_until("\r\n\r\n").await;
    let start = Instant::now();
    assert_eq!(server.responses().await, "");
    assert_eq!(start.elapsed(), TIMEOUTS.idle);
    server.connection.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_idle_timeout_starts_after_a_slow_response() {
    let mut server = TestServer::start();
    let start = Instant::now();
    server.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let responses = server.responses().await;
    assert_eq!(statuses(&responses), ["200"]);
    assert_eq!(start.elapsed(), SLOW + TIMEOUTS.idle);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_arriving_gets_408() {
    let mut server = TestServer::start();
    let start = Instant::now();
    server
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nab")
        .await;
    sleep(Duration::from_secs(20)).await;
    server.send("cd").await;
    assert_eq!(statuses(&server.response_until("in time").await), ["408"]);
    assert_eq!(start.elapsed(), Duration::from_secs(20) + TIMEOUTS.body);
}

#[tokio::test(start_paused = true)]
async fn the_body_timeout_runs_only_while_the_service_reads() {
    let mut server = TestServer::start();
    server
        .send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
        .await;
    sleep(SLOW + Duration::from_secs(20)).await;
    server.send("cd").await;
    assert!(server.response_until("abcd").await.contains(" 200 OK"));
}

const WITH_MIN_RATE: ClientTimeouts = ClientTimeouts {
    min_rate: 10,
    ..TIMEOUTS
};

#[tokio::test(start_paused = true)]
async fn a_body_below_the_minimum_rate_gets_408() {
    for framing in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let mut server = TestServer::with(b"", WITH_MIN_RATE);
        let start = Instant::now();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
        server.send(head).await;
        let is_chunked = framing.ends_with("chunked");
        // Each byte extends the initial time of 5 s by 1/10 s.
        for _ in 0..5 {
            sleep(Duration::from_secs(1)).await;
            server
                .send(if is_chunked { "1\r\nx\r\n" } else { "x" })
                .await;
        }
        let responses = server.response_until("(`min_rate`)").await;
        assert_eq!(statuses(&responses), ["408"]);
        assert_eq!(start.elapsed(), Duration::from_millis(5_500), "{framing}");
        assert!(server.responses().await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_at_the_minimum_rate_is_accepted() {
    let mut server = TestServer::with(b"", WITH_MIN_RATE);
    server
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        .await;
    for _ in 0..100 {
        sleep(Duration::from_secs(1)).await;
        server.send("0123456789").await;
    }
    assert!(server.response_until("89").await.contains(" 200 OK"));
}

#[tokio::test(start_paused = true)]
async fn the_minimum_rate_applies_only_while_the_service_reads() {
    let mut server = TestServer::with(b"", WITH_MIN_RATE);
    server
        .send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
        .await;
    sleep(SLOW + Duration::from_secs(4)).await;
    server.send("cd").await;
    assert!(server.response_until("abcd").await.contains(" 200 OK"));
}

#[tokio::test(start_paused = true)]
async fn the_minimum_rate_of_each_body_starts_anew() {
    let mut server = TestServer::with(b"", WITH_MIN_RATE);
    for _ in 0..3 {
        server
            .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
            .await;
        sleep(Duration::from_secs(4)).await;
        server.send("cd").await;
        assert!(server.response_until("abcd").await.contains(" 200 OK"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_of_its_response_is_disconnected() {
    let mut server = TestServer::start();
    let start = Instant::now();
    server.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let outcome = (&mut server.connection).await.unwrap();
    assert!(outcome.is_err());
    assert_eq!(start.elapsed(), TIMEOUTS.write);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_gets_the_complete_response() {
    let mut server = TestServer::start();
    server
        .send("GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .await;
    let mut received = 0;
    let mut part = vec![0; 64 * 1024];
    loop {
        sleep(Duration::from_secs(15)).await;
        match server.client.read(&mut part).await.unwrap() {
            0 => break,
            count => received += count,
        }
    }
    assert!(received > 1 << 20);
}
