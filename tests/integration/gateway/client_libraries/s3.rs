//! Test with boto3 and an S3 server that checks signatures: unusual keys have the same results behind the gateway as
//! behind nginx.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use serde_json::Value;

use super::{run, script_command};
use crate::support::{Gateway, KilledOnDrop, Nginx};

/// Running moto server. It stops when it is dropped.
struct S3Server {
    _process: KilledOnDrop,
    port: u16,
    id: String,
    secret: String,
}

impl S3Server {
    fn start() -> Self {
        let mut child = script_command("s3_server.py")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("standard output is piped");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("the script prints a line");
        let report: Value = serde_json::from_str(&line).expect("the line is JSON");
        let text = |name: &str| report[name].as_str().expect(name).to_owned();
        let port = report["port"].as_u64().expect("the port is a number");
        Self {
            _process: KilledOnDrop(child),
            port: port.try_into().expect("a port has 16 bits"),
            id: text("id"),
            secret: text("secret"),
        }
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Uses all keys in a new bucket of the server through the proxy at `url`. Returns the results.
    async fn use_keys(&self, url: String, bucket: &'static str, secret: &str) -> Value {
        let (id, secret) = (self.id.clone(), secret.to_owned());
        let running =
            tokio::task::spawn_blocking(move || run("s3_keys.py", &[&url, bucket, &id, &secret]));
        running.await.expect("the task does not panic")
    }
}

#[tokio::test]
async fn s3_keys_have_the_same_results_behind_the_gateway_as_behind_nginx() {
    let server = S3Server::start();
    let nginx = Nginx::start(server.address());
    let server_url = format!("http://{}", server.address());
    let gateway = Gateway::proxying("").upstream_url(&server_url).start();
    let url = format!("http://{}", gateway.address());
    let (through_gateway, through_nginx) = tokio::join!(
        server.use_keys(url.clone(), "first", &server.secret),
        server.use_keys(nginx.url(), "other", &server.secret),
    );
    let keys = through_nginx["stored"].as_object().expect("an object");
    for (key, expected) in keys {
        assert_eq!(through_gateway["stored"][key], *expected, "{key:?}");
        let deleted = &through_gateway["deleted"][key];
        assert_eq!(*deleted, through_nginx["deleted"][key], "{key:?}");
    }
    assert_eq!(through_gateway, through_nginx);
    assert_eq!(through_gateway["bucket"][0], 200);
    let stored = keys.iter().filter(|(key, results)| results["get"] == **key);
    assert!(stored.count() >= 60, "{through_nginx}");
    // The results are those of checked signatures only if the server rejects a wrong one.
    let rejected = server.use_keys(url, "wrong", "wrong secret").await;
    assert_eq!(rejected["created"]["error"], "SignatureDoesNotMatch");
}
