//! Tests of the faults that other tests cause: restart, freeze, full memory, crash of the test process.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::redis::{RedisServer, Reply};
use crate::support::wait_until;

fn ok() -> Reply {
    Reply::Status("OK".into())
}

#[test]
fn a_server_listens_on_its_port_and_is_independent_of_others() {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    assert_ne!(one.port(), other.port());
    assert_ne!(one.info("server", "run_id"), other.info("server", "run_id"));
    assert_eq!(one.url(), format!("redis://127.0.0.1:{}", one.port()));
    assert_eq!(one.command(&["SET", "a", "1"]), ok());
    assert_eq!(one.command(&["GET", "a"]), Reply::Bulk(b"1".into()));
    assert_eq!(other.command(&["GET", "a"]), Reply::Nil);
    assert_eq!(one.command(&["INCR", "a"]), Reply::Int(2));
    assert_eq!(one.info("server", "tcp_port"), one.port().to_string());
    assert!(matches!(one.command(&["NONSENSE"]), Reply::Error(_)));
}

#[test]
fn calls_of_each_command_are_counted() {
    let server = RedisServer::start();
    assert_eq!(server.calls("GET"), 0);
    for _ in 0..3 {
        server.command(&["GET", "a"]);
    }
    server.command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "a"]);
    assert_eq!((server.calls("GET"), server.calls("EVAL")), (4, 1));
    server.command(&["CONFIG", "GET", "port"]);
    assert_eq!(server.calls("config|get"), 1);
}

#[test]
fn a_restarted_server_is_empty_unless_it_is_append_only() {
    let plain = RedisServer::start();
    let durable = RedisServer::options().append_only().start();
    for (server, left) in [(&plain, Reply::Nil), (&durable, Reply::Bulk(b"1".into()))] {
        let (port, run) = (server.port(), server.info("server", "run_id"));
        server.command(&["SET", "a", "1"]);
        server.kill();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        server.restart();
        assert_eq!(server.port(), port);
        assert_ne!(server.info("server", "run_id"), run);
        assert_eq!(server.command(&["GET", "a"]), left);
    }
    durable.restart_empty();
    assert_eq!(durable.command(&["GET", "a"]), Reply::Nil);
}

#[test]
fn a_frozen_server_does_not_reply_until_it_is_thawed() {
    let server = RedisServer::start();
    let mut client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    client
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    server.freeze();
    client.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    client.read_exact(&mut reply).unwrap_err();
    server.thaw();
    client.set_read_timeout(None).unwrap();
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
    // The test also kills a frozen server, which must succeed.
    server.freeze();
    server.kill();
}

#[test]
fn a_full_server_rejects_every_write() {
    let server = RedisServer::start();
    server.command(&["SET", "a", "1"]);
    server.fill();
    for _ in 0..3 {
        match server.command(&["SET", "a", "2"]) {
            Reply::Error(error) => assert!(error.starts_with("OOM "), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.command(&["GET", "a"]), Reply::Bulk(b"1".into()));
    server.unfill();
    assert_eq!(server.command(&["SET", "a", "2"]), ok());
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(RedisServer::start).join().unwrap();
    let run = server.info("server", "run_id");
    assert_eq!(server.info("server", "run_id"), run);
}

/// The killed process is a second run of this test. An environment variable makes it start a server and wait.
#[test]
fn no_server_outlives_a_process_that_was_killed() {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    const CHILD: &str = "TIDEGATE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let server = RedisServer::start();
        eprintln!("port {}", server.port());
        // The process waits until it is killed. If it is not killed, it ends when the parent closes the pipe.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let (_crate, module) = module_path!().split_once("::").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg(format!(
            "{module}::no_server_outlives_a_process_that_was_killed"
        ))
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let port: u16 = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("port ")?.parse().ok())
        .unwrap();
    TcpStream::connect(("127.0.0.1", port)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the server stops", || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
}
