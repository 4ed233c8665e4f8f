//! Test of the Redis servers that the other tests start.

use std::io::Read as _;
use std::net::TcpStream;

use crate::support::redis::RedisServer;
use crate::support::wait_until;

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
