//! What all gateways stand in: a directory for their files, and the upstream behind them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Outcome;
use crate::process::Process;

/// How long a program may take until it listens.
const START: Duration = Duration::from_secs(10);

/// A small answer: one opening brace, 100 bytes.
const ANSWER: &str = r#"{"id":"5f2d7c1e9b3a4e60","name":"kitchen","state":"online","seen":"2026-11-16T10:24:36Z","rev":1042}"#;

/// The upstream, and room for files.
pub(crate) struct Scene {
    // Ended before its directory goes.
    _upstream: Process,
    /// Where the upstream listens.
    pub(crate) upstream: SocketAddr,
    /// The gateway under test: a copy, so that a build under way cannot put another in its place.
    pub(crate) tidegate: PathBuf,
    directory: TempDir,
}

impl Scene {
    /// Starts the upstream.
    pub(crate) fn set() -> Outcome<Self> {
        let directory = TempDir::new()?;
        let tidegate = directory.path().join("gateway");
        let binary = std::env::var_os("PEERS_TIDEGATE");
        fs::copy(
            binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_tidegate").into()),
            &tidegate,
        )?;
        let upstream = free_address()?;
        let site = format!(
            "server {{ listen {upstream}; default_type application/json; return 200 '{ANSWER}'; }}"
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

    /// Where files go.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file and tells where it is.
    pub(crate) fn file(&self, name: &str, text: &str) -> Outcome<PathBuf> {
        let path = self.path().join(name);
        fs::write(&path, text)?;
        Ok(path)
    }
}

/// Starts nginx on a configuration of its own, with `http` as what it serves.
pub(crate) fn nginx(directory: &Path, name: &str, workers: usize, http: &str) -> Outcome<Process> {
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
            # Refusals are what is measured here; a line for each would measure the log.
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

/// An address nobody listens on.
pub(crate) fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Waits until a program listens on `address`.
pub(crate) fn until_listening(process: &mut Process, address: SocketAddr) -> Outcome<()> {
    let deadline = Instant::now() + START;
    while TcpStream::connect(address).is_err() {
        if let Some(end) = process.ended() {
            return Err(format!("the program for {address} has ended: {end}").into());
        }
        if Instant::now() > deadline {
            return Err(format!("nobody listens on {address} after {START:?}").into());
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// One request on a connection of its own: the answer's status and all of its text.
pub(crate) fn get(address: SocketAddr, path: &str) -> Outcome<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(START))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| format!("no status in {answer:?}"))?;
    Ok((status, answer))
}
