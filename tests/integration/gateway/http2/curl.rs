//! Tests with curl as a client that still sends its request body when the response arrives.
//!
//! curl 7.88 fails with error 92 if `RST_STREAM` arrives together with the response. The gateway must therefore delay
//! the reset.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::rejecting;
use crate::support::{Certificates, Gateway, Upstream};

/// Number of requests per body size.
const REQUESTS: usize = 12;

/// Sizes of the request body, in bytes.
const SIZES: [usize; 4] = [7, 50_000, 1_000_000, 5_000_000];

/// How long the gateway waits for the end of a rejected upload before it resets the stream. Every request of curl must
/// take less time than this.
const LINGER: Duration = Duration::from_secs(5);

/// File with a request body of `size` bytes.
struct Upload {
    directory: TempDir,
    size: usize,
}

/// Result of one run of curl.
#[derive(Debug)]
struct Report {
    is_complete: bool,
    /// Output of curl: HTTP version, status and number of uploaded bytes, or an error message.
    line: String,
    elapsed: Duration,
}

impl Upload {
    fn new(size: usize) -> Self {
        let directory = tempfile::tempdir().expect("the directory is created");
        let upload = Self { directory, size };
        std::fs::write(upload.path(), vec![b'x'; size]).expect("the file is written");
        upload
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("body")
    }

    /// Sends the file in a POST with curl. `options` contains further curl options, among them the HTTP version.
    fn post(&self, url: &str, options: &[&str]) -> Report {
        let started = Instant::now();
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--insecure", "--noproxy", "*"])
            .args(["--max-time", "20", "--output", "/dev/null"])
            .args([
                "--write-out",
                "%{http_version} %{http_code} %{size_upload}\n",
            ])
            .arg("--data-binary")
            .arg(format!("@{}", self.path().display()))
            .args(options)
            .arg(url)
            .output()
            .expect("curl is installed");
        let errors = String::from_utf8_lossy(&output.stderr);
        Report {
            is_complete: output.status.success(),
            line: format!("{}{errors}", String::from_utf8_lossy(&output.stdout)),
            elapsed: started.elapsed(),
        }
    }

    /// Sends `count` requests with curl. Asserts that each gets a complete response with `status` before the gateway
    /// resets the stream.
    fn assert_rejected(&self, url: &str, options: &[&str], status: u16, count: usize) {
        let expected = format!("2 {status} ");
        let reports: Vec<_> = (0..count).map(|_| self.post(url, options)).collect();
        let is_lost = |report: &&Report| !report.is_complete || !report.line.starts_with(&expected);
        let lost: Vec<_> = reports.iter().filter(is_lost).collect();
        let slowest = reports.iter().map(|report| report.elapsed).max();
        let slowest = slowest.expect("at least one request was sent");
        let mean = reports
            .iter()
            .map(|report| report.elapsed)
            .sum::<Duration>()
            / u32::try_from(count).expect("the number is small");
        let sent = |report: &Report| {
            let bytes = report.line.split_whitespace().nth(2);
            bytes.and_then(|bytes| bytes.parse::<usize>().ok())
        };
        println!(
            "{url}, body of {} bytes: curl lost {} of {count} responses; a request took {mean:?} on average \
             and at most {slowest:?}; curl sent up to {:?} bytes",
            self.size,
            lost.len(),
            reports.iter().filter_map(sent).max()
        );
        assert!(
            lost.is_empty(),
            "curl did not read these responses: {lost:#?}"
        );
        assert!(slowest < LINGER, "the slowest request took {slowest:?}");
    }
}

fn tls(certificates: &Certificates) -> String {
    let (cert, key) = (certificates.cert_file(), certificates.key_file());
    let quoted = |path: &Path| format!("\"{}\"", path.display());
    format!(
        "[server]\ntls = {{ cert = {}, key = {} }}",
        quoted(&cert),
        quoted(&key)
    )
}

/// Starts a gateway and uses up the rate limit of `/limited` with one request. The gateway then rejects every request
/// for `/limited`. Returns the gateway and the URL of `/limited`.
async fn rejecting_all(
    upstream: &Upstream,
    certificates: Option<&Certificates>,
) -> (Gateway, String) {
    let mut builder = rejecting(upstream);
    if let Some(certificates) = certificates {
        builder = builder.with_section(&tls(certificates));
    }
    let gateway = builder.start();
    let (scheme, client) = match certificates {
        Some(certificates) => ("https", gateway.tls_client(certificates, &["http/1.1"])),
        None => ("http", gateway.client()),
    };
    assert_eq!(client.get("/limited").send().await.status, 200);
    let url = format!("{scheme}://{}/limited", gateway.address());
    (gateway, url)
}

#[tokio::test]
async fn curl_reads_every_rejection_in_cleartext() {
    let upstream = Upstream::replying(200);
    let (_gateway, url) = rejecting_all(&upstream, None).await;
    for size in SIZES {
        let upload = Upload::new(size);
        upload.assert_rejected(&url, &["--http2-prior-knowledge"], 429, REQUESTS);
    }
}

#[tokio::test]
async fn curl_reads_every_rejection_over_tls() {
    let upstream = Upstream::replying(200);
    let certificates = Certificates::for_localhost();
    let (_gateway, url) = rejecting_all(&upstream, Some(&certificates)).await;
    for size in SIZES {
        let upload = Upload::new(size);
        upload.assert_rejected(&url, &["--http2"], 429, REQUESTS);
    }
}

#[tokio::test]
async fn curl_reads_a_rejection_without_100_continue() {
    let upstream = Upstream::replying(200);
    let (_gateway, url) = rejecting_all(&upstream, None).await;
    let options = [
        "--http2-prior-knowledge",
        "--header",
        "Expect: 100-continue",
    ];
    for size in SIZES {
        Upload::new(size).assert_rejected(&url, &options, 429, REQUESTS / 3);
    }
}

/// Starts an upstream that responds to each request head with 413, does not read the body, and leaves the connection
/// open. Returns its URL.
fn early_413() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!(
        "http://{}",
        listener.local_addr().expect("the address is valid")
    );
    std::thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut socket, _)) = listener.accept() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|read| read > 0)
            {
                head.push(byte[0]);
            }
            let response = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\n\
                             Connection: close\r\n\r\nlarge";
            if socket.write_all(response).is_ok() {
                open.push(socket);
            }
        }
    });
    url
}

#[test]
fn curl_reads_an_early_response_of_upstream() {
    let gateway = Gateway::proxying("").upstream_url(&early_413()).start();
    let url = format!("http://{}/", gateway.address());
    for size in SIZES {
        Upload::new(size).assert_rejected(&url, &["--http2-prior-knowledge"], 413, REQUESTS);
    }
}
