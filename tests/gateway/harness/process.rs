//! The `tidegate` command as a process.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::{Client, TEST_TIMEOUT};

/// Binary that Cargo built for the tests.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// A `tidegate` process that runs until it is dropped.
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

    /// Starts another build of `tidegate` with these environment variables and arguments.
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
            .expect("a process");
        let lines = Arc::default();
        collect(child.stdout.take().expect("piped"), &lines);
        collect(child.stderr.take().expect("piped"), &lines);
        Self { child, lines }
    }

    /// Runs `tidegate` with these arguments and returns its output when it exits.
    pub(crate) fn run(arguments: &[&str]) -> Output {
        command(Path::new(TIDEGATE), arguments)
            .output()
            .expect("a process")
    }

    /// All lines that the process has written so far, standard output and standard error mixed.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Waits for a line that contains `part`.
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
                "no {part:?} in {:#?}",
                self.lines()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the gateway to listen and returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        let announced =
            |line: &str| line.contains("listening") && !line.contains("admin listening");
        address_in(&self.line("listening", announced))
    }

    /// Returns a client of the gateway.
    pub(crate) fn client(&self) -> Client {
        Client::of(self.address())
    }

    /// Returns a client of the admin listener.
    pub(crate) fn admin(&self) -> Client {
        Client::of(address_in(&self.wait_for_line("admin listening")))
    }

    /// Returns a field of `/proc/PID/status` in KiB, such as `VmRSS`.
    pub(crate) fn memory(&self, field: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("a process that runs");
        let line = status.lines().find(|line| line.starts_with(field));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.expect("a figure").parse().expect("a number")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a process that runs");
    }

    /// Waits until the process exits.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < deadline, "still runs: {:#?}", self.lines());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that the process has already exited.
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

/// Returns the first `http://ADDRESS` of a line.
fn address_in(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("://").expect("an address");
    let end = rest.find(|c: char| !(c.is_ascii_digit() || ".:[]".contains(c)));
    rest[..end.unwrap_or(rest.len())]
        .parse()
        .expect("an address")
}
