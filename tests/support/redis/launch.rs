//! Functions that find free ports, and that start child processes that stop with the test process.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use parking_lot::Mutex;

/// The cluster bus port of a Redis node is its client port plus this number.
const BUS: u16 = 10_000;

/// Returns a free port whose cluster bus port is also free.
///
/// The port is below the range of ephemeral ports. So no outgoing connection can use the port while the server
/// restarts.
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

/// Returns the path of the program `name`. If the program is not installed, panics with the name of its Debian package.
pub(super) fn program(name: &str, package: &str) -> PathBuf {
    find(name).unwrap_or_else(|| {
        panic!("`{name}` is not installed. Install the package `{package}`, or run `make test`")
    })
}

fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Returns the command `redis-server`. If `setpriv` is installed, the command runs under it, so that the kernel kills
/// the server when the test process exits.
pub(super) fn redis_server() -> Command {
    assert!(
        env::var_os("TIDEGATE_QUICK").is_none(),
        "`make quick` must not start `redis-server`. Move this test to a module `needs_redis`"
    );
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

/// Starts a child process from a thread that lives as long as the test process.
///
/// This thread is needed because `setpriv --pdeathsig` kills the child when the *thread* that started it ends. The
/// thread of a test can end while other tests still need the server.
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
        .expect("the spawner thread never ends");
    child
        .recv()
        .expect("the spawner thread never ends")
        .expect("the process starts")
}
