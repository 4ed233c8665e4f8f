//! Free ports, and processes that end with this one.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use parking_lot::Mutex;

/// How far a node's port for other nodes is above the one for clients.
const BUS: u16 = 10_000;

/// A port that nobody listens on, and neither on the one above it that a node of a cluster needs.
///
/// From a range below the one that the system gives to clients: no connection that anybody opens
/// can take the port while its server is being restarted.
pub(super) fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(12_000..22_000);
        if is_free(port) && is_free(port + BUS) {
            return port;
        }
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Where a program is that tests cannot do without.
pub(super) fn program(name: &str, package: &str) -> PathBuf {
    find(name).unwrap_or_else(|| {
        panic!("`{name}` is not installed: it is in the package `{package}` (or run `make test`)")
    })
}

fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// `redis-server`, to be killed by the system when this process has ended, if that can be had.
pub(super) fn redis_server() -> Command {
    let redis_server = program("redis-server", "redis-server");
    match find("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL"]).arg(redis_server);
            command
        }
        None => Command::new(redis_server),
    }
}

/// Starts a process from a thread that lives as long as this process does.
///
/// What `setpriv` asks the system for is to be killed when the *thread* that started it ends, and the
/// thread of a test, or of a runtime's pool, may well end before the server is no longer needed.
pub(super) fn spawn(command: Command) -> Child {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static SPAWNER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
        let (orders, received) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in received {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (reply, child) = channel();
    SPAWNER
        .lock()
        .send((command, reply))
        .expect("it never ends");
    child.recv().expect("it never ends").expect("a process")
}
