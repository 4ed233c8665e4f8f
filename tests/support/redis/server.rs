//! A Redis server process.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::reply::Connection;
use super::{Options, Reply, TEST_TIMEOUT, launch, remove_faketime_files, wait_until};

/// A `redis-server` process that runs until it is dropped.
pub(crate) struct RedisServer {
    pub(super) options: Options,
    port: u16,
    directory: TempDir,
    child: Mutex<Option<Child>>,
}

/// Another process listens on the port.
struct PortInUse;

impl RedisServer {
    /// Starts a server without persistence and without a password.
    pub(crate) fn start() -> Self {
        Self::options().start()
    }

    /// Returns options for a server that differs: `RedisServer::options().append_only().start()`.
    pub(crate) fn options() -> Options {
        Options::default()
    }

    pub(super) fn launch(options: Options) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut server = Self {
            options,
            port: 0,
            directory,
            child: Mutex::default(),
        };
        loop {
            server.port = launch::free_port();
            if server.run().is_ok() {
                return server;
            }
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// URL without user and password.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.options.tls { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Sends a command as the default user, on a new connection, and returns the reply.
    pub(crate) fn command(&self, command: &[impl AsRef<[u8]>]) -> Reply {
        let reply = self
            .connect()
            .and_then(|mut connection| connection.call(command));
        reply.unwrap_or_else(|error| panic!("no reply: {error}; log:\n{}", self.log()))
    }

    fn connect(&self) -> std::io::Result<Connection> {
        let mut connection = Connection::open(&self.socket())?;
        if let Some(password) = &self.options.password {
            connection.call(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Returns a field of `INFO`.
    pub(crate) fn info(&self, section: &str, field: &str) -> String {
        let info = self.command(&["INFO", section]).text();
        field_of(&info, field)
            .unwrap_or_else(|| panic!("no `{field}` in {info}"))
            .to_owned()
    }

    /// Returns the number of calls of a command since the start, by clients, scripts and the test itself. A subcommand
    /// is named as in `config|get`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info = self.command(&["INFO", "commandstats"]).text();
        let name = format!("cmdstat_{}", command.to_lowercase());
        let Some(statistics) = field_of(&info, &name) else {
            return 0;
        };
        let calls = statistics
            .split(',')
            .find_map(|connection| connection.strip_prefix("calls="));
        calls.expect("calls").parse().expect("a number")
    }

    /// Kills the process, as in a crash. Does nothing if it is not running.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().take() {
            // An error means that the process has already exited.
            let _ = child.kill();
            let _ = child.wait();
            if self.options.time.is_some() {
                remove_faketime_files(child.id());
            }
        }
    }

    /// Kills the server if it runs and starts it again on the same port. An append-only server keeps its data, and any
    /// other server starts empty.
    pub(crate) fn restart(&self) {
        self.kill();
        wait_until("the port is free again", || self.run().is_ok());
    }

    /// Starts the server again on the same port without its data. A cluster node also forgets the other nodes.
    pub(crate) fn restart_empty(&self) {
        self.kill();
        for entry in fs::read_dir(self.directory.path()).expect("the server's directory") {
            let path = entry.expect("the server's directory").path();
            if path.is_dir() {
                fs::remove_dir_all(path).expect("the server's directory");
            } else {
                fs::remove_file(path).expect("a file in the server's directory");
            }
        }
        self.restart();
    }

    /// Stops the process with SIGSTOP: connections stay open, and the server does not reply.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the process with SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.lock();
        let pid = Pid::from_child(child.as_ref().expect("a running server"));
        kill_process(pid, signal).expect("a running server");
    }

    /// Makes Redis reject every write that allocates memory. The limit is one byte and not the current usage, because
    /// usage drops when a client disconnects.
    pub(crate) fn fill(&self) {
        self.limit_memory("1");
    }

    /// Restores the memory limit that [`fill`](Self::fill) changed.
    pub(crate) fn unfill(&self) {
        self.limit_memory(self.options.value_of("--maxmemory").unwrap_or("0"));
    }

    fn limit_memory(&self, bytes: &str) {
        let reply = self.command(&["CONFIG", "SET", "maxmemory", bytes]);
        assert_eq!(reply, Reply::Status("OK".into()));
    }

    /// Moves the server's clock ahead. Requires [`Options::fake_time`].
    pub(crate) fn advance(&self, by: Duration) {
        let time = self.options.time.as_ref().expect("a fake clock");
        time.advance(by);
    }

    /// Everything the server has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Starts the process on its port and waits until it replies.
    fn run(&self) -> Result<(), PortInUse> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.log_file())
            .expect("a file");
        let before = self.log().len();
        let port = self.port.to_string();
        let (plain, tls) = if self.options.tls {
            ("0", port.as_str())
        } else {
            (port.as_str(), "0")
        };
        let mut command = launch::redis_server();
        command.args(["--bind", "127.0.0.1", "--port", plain, "--tls-port", tls]);
        command.arg("--dir").arg(self.directory.path());
        command.arg("--unixsocket").arg(self.socket());
        command.args(["--save", "", "--appendonly", "no"]);
        // Replication starts immediately, because no further replica will join.
        command.args(["--repl-diskless-sync-delay", "0"]);
        command.args(&self.options.arguments);
        if let Some(time) = &self.options.time {
            time.apply(&mut command);
        }
        command.stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file")).stderr(log);
        *self.child.lock() = Some(launch::spawn(command));
        self.wait_until_ready(before)
    }

    fn wait_until_ready(&self, before: usize) -> Result<(), PortInUse> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !self.is_ready() {
            let mut child = self.child.lock();
            let ended = child.as_mut().expect("just started").try_wait();
            if let Some(status) = ended.expect("a child") {
                *child = None;
                let log = self.log().split_off(before);
                assert!(log.contains("Address already in use"), "{status}:\n{log}");
                return Err(PortInUse);
            }
            assert!(Instant::now() < deadline, "not ready:\n{}", self.log());
            drop(child);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let reply = self
            .connect()
            .and_then(|mut connection| connection.call(&["PING"]));
        reply.is_ok_and(|reply| reply == Reply::Status("PONG".into()))
            && (!self.options.replica || self.info("replication", "master_link_status") == "up")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(super) fn field_of<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find_map(|(name, value)| (name == field).then_some(value))
}
