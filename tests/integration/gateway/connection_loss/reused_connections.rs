//! Test with servers that close an idle connection while the gateway sends the next request on it.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use parking_lot::Mutex;

use crate::gateway::retries::{QUICK, gateway_to};
use crate::support::raw_http::{RawClient, RawUpstream, ok};

/// Creates a server that adds each connection to `idle` after a request, so that the test can close the connection.
fn server_with_idle_connections(idle: &Arc<Mutex<Vec<TcpStream>>>) -> RawUpstream {
    let idle = Arc::clone(idle);
    RawUpstream::scripted(move |connection| {
        while connection.request().is_some() {
            let stream = connection.stream.try_clone();
            idle.lock().push(stream.expect("the socket is open"));
            connection.send(ok("done"));
        }
    })
}

#[test]
fn a_post_sent_while_its_connection_closes_arrives_at_most_once() {
    let idle = Arc::default();
    let servers = [
        server_with_idle_connections(&idle),
        server_with_idle_connections(&idle),
    ];
    let api = format!("{QUICK}attempts = 20");
    let gateway = gateway_to(&servers.each_ref().map(RawUpstream::url), &api)
        .with_section("[server]\nworkers = 1")
        .start();
    let mut client = RawClient::connect(gateway.address());
    let (mut done, mut lost) = (Vec::new(), Vec::new());
    for round in 0..500_u64 {
        client.send("GET /warm-up HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().status, 200);
        let (start, started) = channel();
        let waiting = std::mem::take(&mut *idle.lock());
        let closing = thread::spawn(move || {
            started.recv().expect("the test sends the signal");
            // Each round spins longer than the previous one. The idle connections thus close before the gateway sends
            // the request in early rounds, and after that in late rounds.
            for _ in 0..round * 100 {
                std::hint::spin_loop();
            }
            for stream in waiting {
                match stream.shutdown(Shutdown::Write) {
                    Err(error) if error.kind() != ErrorKind::NotConnected => {
                        panic!("cannot close an idle connection: {error}")
                    }
                    _ => {}
                }
            }
        });
        start.send(()).expect("the closing thread waits");
        let line = format!("POST /round/{round} HTTP/1.1");
        client.send(format!(
            "{line}\r\nHost: a\r\nContent-Length: 4\r\n\r\nonce"
        ));
        let status = client.response().status;
        closing.join().expect("the task does not panic");
        match status {
            200 => done.push(line),
            502 => lost.push(line),
            other => panic!("the POST of round {round} got the unexpected status {other}"),
        }
    }
    drop(gateway);
    let received = servers.each_ref().map(RawUpstream::received).concat();
    let copies = |line: &String| received.matches(line.as_str()).count();
    assert!(done.iter().all(|line| copies(line) == 1));
    assert!(lost.iter().all(|line| copies(line) <= 1));
    let (done, lost) = (done.len(), lost.len());
    println!(
        "of 500 POST requests, {done} were executed and {lost} failed because the connection closed"
    );
}
