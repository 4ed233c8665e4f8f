//! Redis server that runs as a child process of the test.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::reply::Connection;
use super::{Options, Reply, TEST_TIMEOUT, launch, remove_faketime_files, wait_until};

/// Running `redis-server` process, which is killed when this value is dropped.
pub(crate) struct RedisServer {
    pub(super) options: Options,
    port: u16,
    directory: TempDir,
    child: Mutex<Option<Child>>,
}

/// Error of a start: another process listens on the port.
struct PortInUse;

impl RedisServer {
    /// Starts a server without persistence and without a password, and returns when it replies.
    pub(crate) fn start() -> Self {
        Self::options().start()
    }

    /// Returns the default options, to be changed before the start: `RedisServer::options().append_only().start()`.
    pub(crate) fn options() -> Options {
        Options::default()
    }

    pub(super) fn launch(options: Options) -> Self {
        let directory = tempfile::tempdir().expect("the directory is created");
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

    /// Returns the URL of the server, without user and password.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.options.tls { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Sends a command as the default user on a new connection, and returns the reply. Panics if no reply arrives.
    pub(crate) fn command(&self, command: &[impl AsRef<[u8]>]) -> Reply {
        let reply = self
            .connect()
            .and_then(|mut connection| connection.call(command));
        reply.unwrap_or_else(|error| {
            panic!(
                "the Redis server did not reply: {error}; its log:\n{}",
                self.log()
            )
        })
    }

    fn connect(&self) -> std::io::Result<Connection> {
        let mut connection = Connection::open(&self.socket())?;
        if let Some(password) = &self.options.password {
            connection.call(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Returns the value of `field` in a section of the command `INFO`. Panics if the field is missing.
    pub(crate) fn info(&self, section: &str, field: &str) -> String {
        let info = self.command(&["INFO", section]).text();
        field_of(&info, field)
            .unwrap_or_else(|| panic!("INFO has no field `{field}`:\n{info}"))
            .to_owned()
    }

    /// Returns how often a command was called since the server started: by clients, scripts and the test itself. A
    /// subcommand is written as `config|get`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info = self.command(&["INFO", "commandstats"]).text();
        let name = format!("cmdstat_{}", command.to_lowercase());
        let Some(statistics) = field_of(&info, &name) else {
            return 0;
        };
        let calls = statistics
            .split(',')
            .find_map(|connection| connection.strip_prefix("calls="));
        calls
            .expect("the statistics contain `calls`")
            .parse()
            .expect("the value is a number")
    }

    /// Kills the server process with SIGKILL, as in a crash. Does nothing if the process is not running.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().take() {
            // Errors are ignored: they mean that the process has already exited.
            let _ = child.kill();
            let _ = child.wait();
            if self.options.time.is_some() {
                remove_faketime_files(child.id());
            }
        }
    }

    /// Kills the server if it runs, and starts it again on the same port. A server with
    /// [`append_only`](Options::append_only) keeps its data, and any other server starts empty.
    pub(crate) fn restart(&self) {
        self.kill();
        wait_until("the port is free again", || self.run().is_ok());
    }

    /// Kills the server, deletes its data, and starts it again on the same port. A cluster node also forgets the other
    /// nodes.
    pub(crate) fn restart_empty(&self) {
        self.kill();
        for entry in
            fs::read_dir(self.directory.path()).expect("the server's directory is readable")
        {
            let path = entry.expect("the server's directory is readable").path();
            if path.is_dir() {
                fs::remove_dir_all(path).expect("the server's directory is readable");
            } else {
                fs::remove_file(path).expect("the file is removed");
            }
        }
        self.restart();
    }

    /// Stops the process with SIGSTOP. Its connections stay open, but the server does not reply until
    /// [`thaw`](Self::thaw).
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues a stopped process with SIGCONT.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.lock();
        let pid = Pid::from_child(child.as_ref().expect("the server is running"));
        kill_process(pid, signal).expect("the server is running");
    }

    /// Makes Redis reject every write that allocates memory. The memory limit is one byte and not the current memory
    /// usage, because the usage drops when a client disconnects.
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

    /// Moves the server's fake clock ahead. Panics if the server was started without [`Options::fake_time`].
    pub(crate) fn advance(&self, by: Duration) {
        let time = self
            .options
            .time
            .as_ref()
            .expect("the server has a fake clock");
        time.advance(by);
    }

    /// Returns everything that the server has logged since its first start, including before restarts.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Starts the process on `port` and waits until the server replies. Fails if another process uses the port.
    fn run(&self) -> Result<(), PortInUse> {
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.log_file())
            .expect("the log file can be opened");
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
        // A delay of 0 s makes replication start immediately. A longer delay is useful only if several replicas connect
        // at the same time and share one transfer.
        command.args(["--repl-diskless-sync-delay", "0"]);
        command.args(&self.options.arguments);
        if let Some(time) = &self.options.time {
            time.apply(&mut command);
        }
        command.stdin(Stdio::null());
        command
            .stdout(log.try_clone().expect("the file is written"))
            .stderr(log);
        *self.child.lock() = Some(launch::spawn(command));
        self.wait_until_ready(before)
    }

    fn wait_until_ready(&self, before: usize) -> Result<(), PortInUse> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !self.is_ready() {
            let mut child = self.child.lock();
            let ended = child
                .as_mut()
                .expect("the process was just started")
                .try_wait();
            if let Some(status) = ended.expect("the child process can be queried") {
                *child = None;
                let log = self.log().split_off(before);
                assert!(
                    log.contains("Address already in use"),
                    "redis-server exited with {status}:\n{log}"
                );
                return Err(PortInUse);
            }
            assert!(
                Instant::now() < deadline,
                "redis-server is not ready in time:\n{}",
                self.log()
            );
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
