//! Tests of the options of Redis servers: password, users, arguments, replica, TLS.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::Certificates;
use crate::support::redis::{RedisServer, Reply};

/// Sends `command` on a new connection, and returns the reply of the server as text.
async fn reply_to(server: &RedisServer, command: &str) -> String {
    let mut client = TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .unwrap();
    client.write_all(command.as_bytes()).await.unwrap();
    let mut reply = vec![0; 100];
    let length = client.read(&mut reply).await.unwrap();
    String::from_utf8_lossy(&reply[..length]).into_owned()
}

#[tokio::test]
async fn a_server_with_a_password_requires_it() {
    let server = RedisServer::options().password("s3cret").start();
    let reply = reply_to(&server, "PING\r\n").await;
    assert!(reply.starts_with("-NOAUTH"), "{reply}");
    assert_eq!(server.command(&["PING"]), Reply::Status("PONG".into()));
}

#[tokio::test]
async fn the_acl_rules_of_a_user_apply() {
    let server = RedisServer::options()
        .user("app", "on >s3cret ~app:* +get")
        .start();
    let reply = reply_to(&server, "AUTH app s3cret\r\n").await;
    assert_eq!(reply, "+OK\r\n");
    let is_allowed = |command: &[&str]| {
        let command = [&["ACL", "DRYRUN", "app"], command].concat();
        server.command(&command) == Reply::Status("OK".into())
    };
    assert!(is_allowed(&["GET", "app:1"]));
    assert!(!is_allowed(&["GET", "other:1"]));
    assert!(!is_allowed(&["SET", "app:1", "x"]));
}

#[test]
fn additional_arguments_are_passed_to_the_server() {
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
fn a_replica_has_the_keys_of_its_master() {
    let master = RedisServer::options().password("s3cret").start();
    master.command(&["SET", "a", "1"]);
    let replica = RedisServer::options().replica_of(&master).start();
    assert_eq!(replica.command(&["GET", "a"]), Reply::Bulk(b"1".into()));
    assert_eq!(master.info("replication", "connected_slaves"), "1");
}

#[tokio::test]
async fn a_server_with_tls_accepts_tls_connections() {
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
    let mut reply = [0; 7];
    client.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
    assert_eq!(server.command(&["PING"]), Reply::Status("PONG".into()));
}
