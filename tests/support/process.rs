//! The program `tidegate`, run as a child process of the test.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::{Client, TEST_TIMEOUT};

/// Path of the binary that Cargo has built for the tests.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// Running `tidegate` process, which is killed when this value is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts `tidegate` with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with_env(&[], arguments)
    }

    /// Starts `tidegate` with these environment variables and arguments.
    pub(crate) fn start_with_env(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::start_binary(Path::new(TIDEGATE), variables, arguments)
    }

    /// Starts the `tidegate` at the path `binary` with these environment variables and arguments.
    pub(crate) fn start_binary(
        binary: &Path,
        variables: &[(&str, &str)],
        arguments: &[&str],
    ) -> Self {
        let mut child = command(binary, arguments)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let lines = Arc::default();
        collect(child.stdout.take().expect("the output is piped"), &lines);
        collect(child.stderr.take().expect("the output is piped"), &lines);
        Self { child, lines }
    }

    /// Runs `tidegate` with these arguments until it exits, and returns its output.
    pub(crate) fn run(arguments: &[&str]) -> Output {
        command(Path::new(TIDEGATE), arguments)
            .output()
            .expect("the process starts")
    }

    /// Returns all lines that the process has written so far to standard output and standard error.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Waits until the process has written a line that contains `part`, and returns the first such line.
    pub(crate) fn wait_for_line(&self, part: &str) -> String {
        self.line(part, |line| line.contains(part))
    }

    fn line(&self, part: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let found = self.lines().into_iter().find(|line| wanted(line));
            if let Some(line) = found {
                return line;
            }
            assert!(
                Instant::now() < deadline,
                "tidegate has not written a line with {part:?}: {:#?}",
                self.lines()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the gateway listens for client requests, and returns the address.
    pub(crate) fn address(&self) -> SocketAddr {
        let announced =
            |line: &str| line.contains("listening") && !line.contains("admin listening");
        address_in(&self.line("listening", announced))
    }

    /// Returns a client that sends requests to the gateway. Waits until the gateway listens.
    pub(crate) fn client(&self) -> Client {
        Client::of(self.address())
    }

    /// Returns a client that sends requests to the admin listener. Waits until the admin listener is open.
    pub(crate) fn admin(&self) -> Client {
        Client::of(address_in(&self.wait_for_line("admin listening")))
    }

    /// Returns a field of `/proc/PID/status` in KiB, for example `VmRSS`, the resident memory.
    pub(crate) fn memory(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the process is running");
        let line = status.lines().find(|line| line.starts_with(field));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number
            .expect("the field exists")
            .parse()
            .expect("the value is a number")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is running");
    }

    /// Waits until the process exits. Panics after [`TEST_TIMEOUT`].
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self
                .child
                .try_wait()
                .expect("the child process can be queried")
            {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "tidegate has not exited in time: {:#?}",
                self.lines()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("the child process can be queried")
            .is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors are ignored: they mean that the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(binary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    command
}

fn collect(output: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<String>>>) {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            lines.lock().push(line);
        }
    });
}

/// Returns the address of the first URL in a log line. Panics if there is none.
fn address_in(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("://").expect("the address is valid");
    let end = rest.find(|c: char| !(c.is_ascii_digit() || ".:[]".contains(c)));
    rest[..end.unwrap_or(rest.len())]
        .parse()
        .expect("the address is valid")
}
