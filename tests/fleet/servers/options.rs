//! Servers that are not like the others.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::Certificates;
use crate::redis::{RedisServer, Reply};

/// What a stranger is told on the port.
async fn said_to(server: &RedisServer, asked: &str) -> String {
    let mut client = TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .unwrap();
    client.write_all(asked.as_bytes()).await.unwrap();
    let mut said = vec![0; 100];
    let length = client.read(&mut said).await.unwrap();
    String::from_utf8_lossy(&said[..length]).into_owned()
}

#[tokio::test]
async fn a_password_is_asked_for() {
    let server = RedisServer::options().password("s3cret").start();
    let said = said_to(&server, "PING\r\n").await;
    assert!(said.starts_with("-NOAUTH"), "{said}");
    assert_eq!(server.command(&["PING"]), Reply::Status("PONG".into()));
}

#[tokio::test]
async fn a_user_may_do_what_the_rules_say() {
    let server = RedisServer::options()
        .user("app", "on >s3cret ~app:* +get")
        .start();
    let said = said_to(&server, "AUTH app s3cret\r\n").await;
    assert_eq!(said, "+OK\r\n");
    let dry = |command: &[&str]| {
        let asked = [&["ACL", "DRYRUN", "app"], command].concat();
        server.command(&asked) == Reply::Status("OK".into())
    };
    assert!(dry(&["GET", "app:1"]));
    assert!(!dry(&["GET", "other:1"]));
    assert!(!dry(&["SET", "app:1", "x"]));
}

#[test]
fn further_arguments_are_passed_on() {
    let server = RedisServer::options()
        .arg("--maxmemory", "100mb")
        .arg("--maxmemory-policy", "allkeys-lru")
        .start();
    let limit = (100 << 20).to_string();
    assert_eq!(server.info("memory", "maxmemory"), limit);
    server.fill();
    server.unfill();
    assert_eq!(server.info("memory", "maxmemory"), limit);
}

#[test]
fn a_replica_has_what_its_master_has() {
    let master = RedisServer::options().password("s3cret").start();
    master.command(&["SET", "a", "1"]);
    let replica = RedisServer::options().replica_of(&master).start();
    assert_eq!(replica.command(&["GET", "a"]), Reply::Bulk(b"1".into()));
    assert_eq!(master.info("replication", "connected_slaves"), "1");
}

#[tokio::test]
async fn a_server_with_tls_speaks_nothing_else() {
    let certificates = Certificates::for_localhost();
    let certificate = certificates.cert_file();
    let server = RedisServer::options()
        .tls(&certificate, &certificates.key_file(), &certificate)
        .start();
    assert_eq!(
        server.url(),
        format!("rediss://127.0.0.1:{}", server.port())
    );
    let client = TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .unwrap();
    let mut client = certificates
        .connector(&[])
        .connect("127.0.0.1".try_into().unwrap(), client)
        .await
        .unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    let mut answer = [0; 7];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    assert_eq!(server.command(&["PING"]), Reply::Status("PONG".into()));
}
