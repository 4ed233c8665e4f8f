//! Tests of the fake servers that other tests use instead of Redis.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::fleet::fake_servers::FakeServer;

#[test]
fn a_garbage_server_replies_to_any_request() {
    let garbage = FakeServer::garbage();
    let port = garbage.port();
    assert!(garbage.url().ends_with(&port.to_string()));
    for first in *b"H\xff" {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut reply = [0];
        for _ in 0..2 {
            client.write_all(b"PING\r\n").unwrap();
        }
        client.read_exact(&mut reply).unwrap();
        assert_eq!(reply[0], first);
    }
}

#[test]
fn a_silent_server_never_replies() {
    let silent = FakeServer::silent();
    let mut client = TcpStream::connect(("127.0.0.1", silent.port())).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    client.write_all(b"PING\r\n").unwrap();
    let silence = client.read(&mut [0]).unwrap_err();
    assert_eq!(silence.kind(), ErrorKind::WouldBlock);
    drop(silent);
    client.set_read_timeout(None).unwrap();
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
}
