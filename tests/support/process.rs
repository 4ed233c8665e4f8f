//! The program `tidegate`, run as a child process of the test.

use std::io::{BufRead as _, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Client, TEST_TIMEOUT};

/// Path of the binary that Cargo has built for the tests.
pub(crate) const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// Binary, arguments and environment of a `tidegate` process. Several processes can be started from it.
#[derive(Clone)]
pub(crate) struct ProcessBuilder {
    binary: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    /// Directory of the configuration file, and working directory of the processes.
    directory: Option<Arc<TempDir>>,
}

/// Running `tidegate` process, which is killed when this value is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    address: OnceLock<SocketAddr>,
    admin: OnceLock<SocketAddr>,
    _directory: Option<Arc<TempDir>>,
}

impl ProcessBuilder {
    /// Replaces the binary that Cargo has built for the tests.
    pub(crate) fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = binary.into();
        self
    }

    /// Replaces the binary by the one whose path is in the environment variable `name`, if the variable is set.
    pub(crate) fn binary_from_env(self, name: &str) -> Self {
        match std::env::var_os(name) {
            Some(path) => self.binary(std::path::absolute(path).expect("the path is not empty")),
            None => self,
        }
    }

    pub(crate) fn args(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&it| it.into()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Passes a listening socket to the processes, as a supervisor with socket activation does. The socket must stay
    /// open while a process can start.
    pub(crate) fn inheriting(mut self, socket: &TcpListener) -> Self {
        // A shell gives the socket the number 3 and names the process as its receiver, which `Command` cannot do.
        let inherited = fcntl_dupfd_cloexec(socket, 10).expect("the socket is duplicated");
        fcntl_setfd(&inherited, FdFlags::empty()).expect("the socket is open");
        let number = inherited.into_raw_fd();
        let script =
            format!("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&{number} {number}<&-");
        let binary = std::mem::replace(&mut self.binary, "bash".into());
        let binary = binary.into_os_string().into_string();
        let shell = ["-c".into(), script, binary.expect("the path is UTF-8")];
        self.arguments.splice(..0, shell);
        self
    }

    /// Sets the working directory of the processes. It is removed when the last process has ended.
    pub(crate) fn inside(mut self, directory: TempDir) -> Self {
        self.directory = Some(Arc::new(directory));
        self
    }

    /// Returns the directory of the configuration file.
    pub(crate) fn directory(&self) -> &Path {
        let directory = self.directory.as_ref();
        directory.expect("there is a configuration file").path()
    }

    /// Replaces the configuration file, which processes that run already read again only when they reload it.
    pub(crate) fn write_config(&self, config: &str) {
        let path = self.directory().join("tidegate.toml");
        let new = path.with_extension("new");
        std::fs::write(&new, config).expect("the file is written");
        std::fs::rename(&new, &path).expect("the file is replaced");
    }

    /// Starts the process. Does not wait until it listens.
    pub(crate) fn start(&self) -> Process {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let lines = Arc::default();
        collect(child.stdout.take().expect("the output is piped"), &lines);
        collect(child.stderr.take().expect("the output is piped"), &lines);
        Process {
            child,
            lines,
            address: OnceLock::new(),
            admin: OnceLock::new(),
            _directory: self.directory.clone(),
        }
    }

    /// Starts the process and waits until it listens. Panics if this takes longer than `max`.
    pub(crate) fn start_within(&self, max: Duration) -> Process {
        let began = Instant::now();
        let process = self.start();
        process.address();
        let took = began.elapsed();
        assert!(took < max, "startup took {took:?}:\n{}", process.log());
        process
    }

    /// Runs the process until it exits, and returns its output.
    pub(crate) fn run(&self) -> Output {
        self.command().output().expect("the process starts")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(&self.arguments)
            .env_remove("RUST_LOG")
            .env("NO_COLOR", "1")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        if let Some(directory) = &self.directory {
            command.current_dir(directory.path());
        }
        command
    }
}

impl Process {
    /// Prepares `tidegate` with these arguments.
    pub(crate) fn with(arguments: &[&str]) -> ProcessBuilder {
        let builder = ProcessBuilder {
            binary: TIDEGATE.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            directory: None,
        };
        builder.args(arguments)
    }

    /// Prepares `tidegate serve` with this TOML configuration. Its working directory is a new temporary directory, which
    /// also contains the configuration file.
    pub(crate) fn serving(config: &str) -> ProcessBuilder {
        let directory = tempfile::tempdir().expect("the directory is created");
        std::fs::write(directory.path().join("tidegate.toml"), config)
            .expect("the file is written");
        ProcessBuilder {
            directory: Some(Arc::new(directory)),
            ..Self::with(&["serve", "--config", "tidegate.toml"])
        }
    }

    /// Starts `tidegate` with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::with(arguments).start()
    }

    /// Runs `tidegate` with these arguments until it exits, and returns its output.
    pub(crate) fn run(arguments: &[&str]) -> Output {
        Self::with(arguments).run()
    }

    /// Returns all lines that the process has written so far to standard output and standard error.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Returns [`lines`](Self::lines) as one text.
    pub(crate) fn log(&self) -> String {
        self.lines.lock().join("\n")
    }

    /// Returns the number of lines that contain `part`.
    pub(crate) fn count_lines(&self, part: &str) -> usize {
        let lines = self.lines.lock();
        lines.iter().filter(|line| line.contains(part)).count()
    }

    /// Waits until the process has written a line that contains `part`, and returns the first such line.
    #[track_caller]
    pub(crate) fn wait_for_line(&self, part: &str) -> String {
        self.line(part, |line| line.contains(part))
    }

    #[track_caller]
    fn line(&self, part: &str, wanted: impl Fn(&str) -> bool) -> String {
        let find = || self.lines.lock().iter().find(|line| wanted(line)).cloned();
        poll(find)
            .unwrap_or_else(|| panic!("tidegate writes no line with {part:?}:\n{}", self.log()))
    }

    /// Waits until the gateway listens for client requests, and returns the address.
    #[track_caller]
    pub(crate) fn address(&self) -> SocketAddr {
        let announced =
            |line: &str| line.contains("listening") && !line.contains("admin listening");
        let line = || self.line("listening", announced);
        *self.address.get_or_init(|| address_in(&line()))
    }

    /// Returns a client that sends requests to the gateway. Waits until the gateway listens.
    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::of(self.address())
    }

    /// Returns a client that sends requests to the admin listener. Waits until the admin listener is open.
    #[track_caller]
    pub(crate) fn admin(&self) -> Client {
        let line = || self.wait_for_line("admin listening");
        Client::of(*self.admin.get_or_init(|| address_in(&line())))
    }

    /// Returns the value of one series of `/metrics`, like [`Client::metric`].
    pub(crate) async fn metric(&self, series: &str) -> u64 {
        self.admin().metric(series).await
    }

    /// Returns the body of `/readyz`. Asserts that the status is 200, also if the store is degraded.
    pub(crate) async fn readyz(&self) -> String {
        let response = self.admin().get("/readyz").send().await;
        assert_eq!(response.status, 200, "{response:?}");
        response.text()
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

    /// Suspends the process with SIGSTOP. Its connections stay open.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the process with SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Shuts the gateway down with SIGTERM, and asserts that it exits with status 0.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.wait_for_exit().success(), "{}", self.log());
    }

    /// Kills the process with SIGKILL, as in a crash, and waits until it has ended.
    #[track_caller]
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait_for_exit();
    }

    /// Waits until the process exits. Panics after [`TEST_TIMEOUT`].
    #[track_caller]
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        let status = poll(|| self.exit_status());
        status.unwrap_or_else(|| panic!("tidegate does not exit:\n{}", self.log()))
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.exit_status().is_none()
    }

    fn exit_status(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait();
        status.expect("the child process can be queried")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors are ignored: they mean that the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            assert_eq!(self.count_lines("panicked at"), 0, "{}", self.log());
        }
    }
}

fn collect(output: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<String>>>) {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            lines.lock().push(line);
        }
    });
}

/// Returns the number in the environment variable `name`, or `None` if the variable is not set. Panics if its value
/// is not a number.
pub(crate) fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Calls `check` until it returns a value. Returns `None` after [`TEST_TIMEOUT`].
fn poll<T>(mut check: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let found = check();
        if found.is_some() || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the address of the first URL in a log line. Panics if there is none.
fn address_in(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("://").expect("the address is valid");
    let end = rest.find(|c: char| !(c.is_ascii_digit() || ".:[]".contains(c)));
    rest[..end.unwrap_or(rest.len())]
        .parse()
        .expect("the address is valid")
}
