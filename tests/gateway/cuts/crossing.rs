//! Connections that end while a request is on its way down them.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use parking_lot::Mutex;

use crate::retries::{QUICK, before};
use crate::wire_raw::{Client, Upstream, ok};

/// A server that hands over a way to close each connection that waits for another request.
fn hanging_up(idle: &Arc<Mutex<Vec<TcpStream>>>) -> Upstream {
    let idle = Arc::clone(idle);
    Upstream::scripted(move |conversation| {
        while conversation.request().is_some() {
            let stream = conversation.stream.try_clone();
            idle.lock().push(stream.expect("an open socket"));
            conversation.send(ok("done"));
        }
    })
}

#[test]
fn a_post_that_crosses_with_the_end_of_its_connection_arrives_at_most_once() {
    let idle = Arc::default();
    let servers = [hanging_up(&idle), hanging_up(&idle)];
    let api = format!("{QUICK}attempts = 20");
    let gateway = before(&servers.each_ref().map(Upstream::url), &api)
        .and("[server]\nworkers = 1")
        .start();
    let mut client = Client::connect(gateway.address());
    let (mut done, mut lost) = (Vec::new(), Vec::new());
    for round in 0..500_u64 {
        client.send("GET /warm-up HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.answer().status, 200);
        let (go, is_time) = channel();
        let waiting = std::mem::take(&mut *idle.lock());
        let closing = thread::spawn(move || {
            is_time.recv().expect("a signal");
            // From well before the request to well after it.
            for _ in 0..round * 100 {
                std::hint::spin_loop();
            }
            for stream in waiting {
                match stream.shutdown(Shutdown::Write) {
                    Err(error) if error.kind() != ErrorKind::NotConnected => panic!("{error}"),
                    _ => {}
                }
            }
        });
        go.send(()).expect("a thread that waits");
        let line = format!("POST /round/{round} HTTP/1.1");
        client.send(format!(
            "{line}\r\nHost: a\r\nContent-Length: 4\r\n\r\nonce"
        ));
        let status = client.answer().status;
        closing.join().expect("no panic");
        match status {
            200 => done.push(line),
            502 => lost.push(line),
            other => panic!("round {round}: {other}"),
        }
    }
    drop(gateway);
    let received = servers.each_ref().map(Upstream::received).concat();
    let copies = |line: &String| received.matches(line.as_str()).count();
    assert!(done.iter().all(|line| copies(line) == 1));
    assert!(lost.iter().all(|line| copies(line) <= 1));
    let (done, lost) = (done.len(), lost.len());
    println!("of 500 posts {done} were carried out and {lost} crossed with a close");
}
