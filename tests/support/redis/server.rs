//! One server.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::reply::Connection;
use super::{Options, PATIENCE, Reply, launch, sweep, until};

/// A `redis-server` that runs until dropped.
pub(crate) struct RedisServer {
    pub(super) options: Options,
    port: u16,
    home: TempDir,
    child: Mutex<Option<Child>>,
}

/// Somebody else listens on the port.
struct Taken;

impl RedisServer {
    /// Starts one that keeps everything in memory and lets everybody in.
    pub(crate) fn start() -> Self {
        Self::options().start()
    }

    /// For one that is different: `RedisServer::options().append_only().start()`.
    pub(crate) fn options() -> Options {
        Options::default()
    }

    pub(super) fn launch(options: Options) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let mut server = Self {
            options,
            port: 0,
            home,
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

    /// Its URL, without user and password.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.options.tls { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Asks it something on a connection of its own, as the default user.
    pub(crate) fn command(&self, command: &[impl AsRef<[u8]>]) -> Reply {
        let asked = self.connect().and_then(|mut it| it.ask(command));
        asked.unwrap_or_else(|error| panic!("no reply: {error}; it wrote:\n{}", self.log()))
    }

    fn connect(&self) -> std::io::Result<Connection> {
        let mut connection = Connection::open(&self.socket())?;
        if let Some(password) = &self.options.password {
            connection.ask(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// A field of `INFO`.
    pub(crate) fn info(&self, section: &str, field: &str) -> String {
        let info = self.command(&["INFO", section]).text();
        field_of(&info, field)
            .unwrap_or_else(|| panic!("no `{field}` in {info}"))
            .to_owned()
    }

    /// How often a command was called since the start, by clients, by scripts and by the test itself. A
    /// subcommand is named `config|get`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info = self.command(&["INFO", "commandstats"]).text();
        let name = format!("cmdstat_{}", command.to_lowercase());
        let Some(figures) = field_of(&info, &name) else {
            return 0;
        };
        let calls = figures.split(',').find_map(|it| it.strip_prefix("calls="));
        calls.expect("calls").parse().expect("a number")
    }

    /// Kills it, as a crash would. Nothing is said about it if it does not run.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().take() {
            // An error means that it has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
            if self.options.time.is_some() {
                sweep(child.id());
            }
        }
    }

    /// Starts it again where it was, after killing it if it runs: with all it had if it is append-only, and
    /// empty otherwise.
    pub(crate) fn restart(&self) {
        self.kill();
        until("its port is free again", || self.run().is_ok());
    }

    /// Starts it again where it was, without anything it had. A node of a cluster does not even know the others.
    pub(crate) fn restart_empty(&self) {
        self.kill();
        for entry in fs::read_dir(self.home.path()).expect("its directory") {
            let path = entry.expect("its directory").path();
            if path.is_dir() {
                fs::remove_dir_all(path).expect("its directory");
            } else {
                fs::remove_file(path).expect("its file");
            }
        }
        self.restart();
    }

    /// Stops it where it stands: connections stay open, and nothing is answered.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.lock();
        let pid = Pid::from_child(child.as_ref().expect("it runs"));
        kill_process(pid, signal).expect("it runs");
    }

    /// Has it refuse every write that takes memory. Its limit is one byte and not what it uses now, which is
    /// less as soon as somebody disconnects.
    pub(crate) fn fill(&self) {
        self.limit_memory("1");
    }

    /// Gives it the memory back that [`fill`](Self::fill) took.
    pub(crate) fn unfill(&self) {
        self.limit_memory(self.options.given("--maxmemory").unwrap_or("0"));
    }

    fn limit_memory(&self, bytes: &str) {
        let reply = self.command(&["CONFIG", "SET", "maxmemory", bytes]);
        assert_eq!(reply, Reply::Status("OK".into()));
    }

    /// Moves its clock ahead; only with [`Options::fake_time`].
    pub(crate) fn advance(&self, by: Duration) {
        let time = self.options.time.as_ref().expect("a clock that is moved");
        time.advance(by);
    }

    /// All it has written.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.home.path().join("log")
    }

    fn socket(&self) -> PathBuf {
        self.home.path().join("socket")
    }

    /// Runs it on its port and waits until it answers.
    fn run(&self) -> Result<(), Taken> {
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
        command.arg("--dir").arg(self.home.path());
        command.arg("--unixsocket").arg(self.socket());
        command.args(["--save", "", "--appendonly", "no"]);
        // Replicas are served at once: nobody else is coming.
        command.args(["--repl-diskless-sync-delay", "0"]);
        command.args(&self.options.arguments);
        if let Some(time) = &self.options.time {
            time.apply(&mut command);
        }
        command.stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a file")).stderr(log);
        *self.child.lock() = Some(launch::spawn(command));
        self.answers(before)
    }

    fn answers(&self, before: usize) -> Result<(), Taken> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready() {
            let mut child = self.child.lock();
            let ended = child.as_mut().expect("just started").try_wait();
            if let Some(status) = ended.expect("a child") {
                *child = None;
                let log = self.log().split_off(before);
                assert!(log.contains("Address already in use"), "{status}:\n{log}");
                return Err(Taken);
            }
            assert!(Instant::now() < deadline, "not ready:\n{}", self.log());
            drop(child);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let asked = self.connect().and_then(|mut it| it.ask(&["PING"]));
        asked.is_ok_and(|reply| reply == Reply::Status("PONG".into()))
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
