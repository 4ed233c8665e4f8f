//! The command itself, as somebody starts it from a shell.

use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::{Client, PATIENCE};

/// The `tidegate` that was built with the tests.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// A `tidegate` that runs until dropped.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Runs `tidegate` with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(&[], arguments)
    }

    /// Runs `tidegate` with these variables and arguments.
    pub(crate) fn start_in(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::start_as(Path::new(TIDEGATE), variables, arguments)
    }

    /// Runs this build of `tidegate` with these variables and arguments.
    pub(crate) fn start_as(binary: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Self {
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

    /// Runs `tidegate` with these arguments to its end.
    pub(crate) fn run(arguments: &[&str]) -> Output {
        command(Path::new(TIDEGATE), arguments)
            .output()
            .expect("a process")
    }

    /// All lines it has written so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Waits for a line with `part` in it.
    pub(crate) fn line_with(&self, part: &str) -> String {
        self.line(part, |line| line.contains(part))
    }

    fn line(&self, part: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
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

    /// Where the gateway listens.
    pub(crate) fn address(&self) -> SocketAddr {
        let announced =
            |line: &str| line.contains("listening") && !line.contains("admin listening");
        address_in(&self.line("listening", announced))
    }

    /// A client of the gateway.
    pub(crate) fn client(&self) -> Client {
        Client::of(self.address())
    }

    /// A client of its admin listener.
    pub(crate) fn admin(&self) -> Client {
        Client::of(address_in(&self.line_with("admin listening")))
    }

    /// A figure of its memory in KiB, such as `VmRSS`.
    pub(crate) fn memory(&self, figure: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("a process that runs");
        let line = status.lines().find(|line| line.starts_with(figure));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.expect("a figure").parse().expect("a number")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a process that runs");
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
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
        // An error means that it has ended by itself.
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

/// The first `http://ADDRESS` of a line.
fn address_in(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("://").expect("an address");
    let end = rest.find(|c: char| !(c.is_ascii_digit() || ".:[]".contains(c)));
    rest[..end.unwrap_or(rest.len())]
        .parse()
        .expect("an address")
}
