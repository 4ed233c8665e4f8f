//! How long a client may take over each part.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_too_slowly_is_answered_408() {
    let mut server = Server::start();
    let start = Instant::now();
    server.send("GET / HT").await;
    sleep(Duration::from_secs(7)).await;
    server.send("TP/1.1\r\n").await;
    let answers = server.answer_to("in time").await;
    assert_eq!(statuses(&answers), ["408"]);
    assert_eq!(start.elapsed(), DEADLINES.head);
}

#[tokio::test(start_paused = true)]
async fn a_later_head_has_its_time_from_its_first_byte() {
    let mut server = Server::start();
    server.send(GET).await.answer_to("\r\n\r\n").await;
    sleep(Duration::from_secs(50)).await;
    let start = Instant::now();
    server.send("\r\n").await;
    sleep(Duration::from_secs(20)).await;
    server.send("G").await;
    assert_eq!(statuses(&server.answer_to("in time").await), ["408"]);
    assert_eq!(start.elapsed(), Duration::from_secs(20) + DEADLINES.head);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_closed_without_a_word() {
    let mut server = Server::start();
    let start = Instant::now();
    assert_eq!(server.answers().await, "");
    assert_eq!(start.elapsed(), DEADLINES.head);
    server.connection.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_at_rest_is_closed_without_a_word() {
    let mut server = Server::start();
    for _ in 0..3 {
        server.send(GET).await.answer_to("\r\n\r\n").await;
        sleep(Duration::from_mins(1)).await;
    }
    server.send(GET).await.answer_to("\r\n\r\n").await;
    let start = Instant::now();
    assert_eq!(server.answers().await, "");
    assert_eq!(start.elapsed(), DEADLINES.idle);
    server.connection.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_deadline_runs_while_the_service_works_and_rest_begins_when_it_is_done() {
    let mut server = Server::start();
    let start = Instant::now();
    server.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let answers = server.answers().await;
    assert_eq!(statuses(&answers), ["200"]);
    assert_eq!(start.elapsed(), SLOW + DEADLINES.idle);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_coming_is_given_up() {
    let mut server = Server::start();
    let start = Instant::now();
    server
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nab")
        .await;
    sleep(Duration::from_secs(20)).await;
    server.send("cd").await;
    assert_eq!(statuses(&server.answer_to("in time").await), ["408"]);
    assert_eq!(start.elapsed(), Duration::from_secs(20) + DEADLINES.body);
}

#[tokio::test(start_paused = true)]
async fn a_body_has_its_time_only_while_it_is_waited_for() {
    let mut server = Server::start();
    server
        .send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab")
        .await;
    sleep(SLOW + Duration::from_secs(20)).await;
    server.send("cd").await;
    assert!(server.answer_to("abcd").await.contains(" 200 OK"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_of_its_answer_is_given_up() {
    let mut server = Server::start();
    let start = Instant::now();
    server.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let outcome = (&mut server.connection).await.unwrap();
    assert!(outcome.is_err());
    assert_eq!(start.elapsed(), DEADLINES.write);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_its_answer_slowly_gets_all_of_it() {
    let mut server = Server::start();
    server
        .send("GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .await;
    let mut taken = 0;
    let mut some = vec![0; 64 * 1024];
    loop {
        sleep(Duration::from_secs(15)).await;
        match server.client.read(&mut some).await.unwrap() {
            0 => break,
            count => taken += count,
        }
    }
    assert!(taken > 1 << 20);
}
