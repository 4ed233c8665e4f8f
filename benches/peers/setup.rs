//! Starts the upstream that all gateways share, and creates a directory for their files.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::BenchResult;
use crate::process::Process;

/// Maximum time from the start of a program until it listens, and maximum time that a response can take.
const START: Duration = Duration::from_secs(10);

/// Body of all responses of the upstream. It has 100 bytes. It contains exactly one opening brace, because `clients.rs`
/// counts responses by their opening braces.
const RESPONSE: &str = r#"{"id":"5f2d7c1e9b3a4e60","name":"kitchen","state":"online","seen":"2026-11-16T10:24:36Z","rev":1042}"#;

/// The running upstream, the Tidegate binary, and the directory for files.
pub(crate) struct Setup {
    // Fields are dropped in the order of declaration. This field is first, so that the upstream ends before the
    // directory is deleted.
    _upstream: Process,
    /// Address on which the upstream listens.
    pub(crate) upstream: SocketAddr,
    /// Copy of the Tidegate binary. A build can replace the original during the measurement, but not the copy.
    pub(crate) tidegate: PathBuf,
    directory: TempDir,
}

impl Setup {
    /// Copies the Tidegate binary and starts the upstream.
    pub(crate) fn start() -> BenchResult<Self> {
        let directory = TempDir::new()?;
        let tidegate = directory.path().join("gateway");
        let binary = std::env::var_os("PEERS_TIDEGATE");
        fs::copy(
            binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_tidegate").into()),
            &tidegate,
        )?;
        let upstream = free_address()?;
        let site = format!(
            "server {{ listen {upstream}; default_type application/json; return 200 '{RESPONSE}'; }}"
        );
        let mut process = nginx(directory.path(), "upstream", 1, &site)?;
        until_listening(&mut process, upstream)?;
        Ok(Self {
            _upstream: process,
            upstream,
            tidegate,
            directory,
        })
    }

    /// Returns the directory for configuration and log files. It is deleted when `Setup` is dropped.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file in the directory and returns the path of the file.
    pub(crate) fn file(&self, name: &str, text: &str) -> BenchResult<PathBuf> {
        let path = self.path().join(name);
        fs::write(&path, text)?;
        Ok(path)
    }
}

/// Starts nginx with `http` as the content of its `http` block.
pub(crate) fn nginx(
    directory: &Path,
    name: &str,
    workers: usize,
    http: &str,
) -> BenchResult<Process> {
    let home = directory.join(name);
    fs::create_dir_all(&home)?;
    let config = format!(
        "daemon off;
        worker_processes {workers};
        pid nginx.pid;
        error_log stderr error;
        events {{ worker_connections 4096; }}
        http {{
            access_log off;
            # Without this, nginx would log each rejected request, and the log would be measured.
            limit_req_log_level info;
            keepalive_requests 1000000000;
            client_body_temp_path body;
            proxy_temp_path proxy;
            fastcgi_temp_path fastcgi;
            uwsgi_temp_path uwsgi;
            scgi_temp_path scgi;
            {http}
        }}"
    );
    let file = home.join("nginx.conf");
    fs::write(&file, config)?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(&home).arg("-c").arg(&file);
    Process::start(&mut command, &directory.join(format!("{name}.log")))
}

/// Returns a loopback address with a free port.
pub(crate) fn free_address() -> BenchResult<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Waits until a program listens on `address`. Fails if the program ends before it listens, or if the wait takes longer
/// than [`START`].
pub(crate) fn until_listening(process: &mut Process, address: SocketAddr) -> BenchResult<()> {
    let deadline = Instant::now() + START;
    while TcpStream::connect(address).is_err() {
        if let Some(end) = process.ended() {
            return Err(format!("the program for {address} has ended: {end}").into());
        }
        if Instant::now() > deadline {
            return Err(format!("no program listens on {address} after {START:?}").into());
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Sends a GET request on a new connection. Returns the status and the complete response as text.
pub(crate) fn get(address: SocketAddr, path: &str) -> BenchResult<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(START))?;
    // One write. HAProxy delays the acknowledgement of a first part by 40 ms, and the rest would wait for it.
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    let response = String::from_utf8_lossy(&response).into_owned();
    let status = response
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| format!("no status in the response {response:?}"))?;
    Ok((status, response))
}
