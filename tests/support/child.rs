//! Servers that a test starts as child processes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};

use super::wait_until;

/// Child process that is killed when it is dropped.
pub(crate) struct KilledOnDrop(pub(crate) Child);

impl KilledOnDrop {
    /// Starts a server that listens on `address`, and waits until it accepts connections.
    #[track_caller]
    pub(crate) fn listening(command: &mut Command, address: SocketAddr) -> Self {
        let program = command.get_program().to_owned();
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        let started = Self(child);
        wait_until(&format!("{} listens", program.display()), || {
            TcpStream::connect(address).is_ok()
        });
        started
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Errors are ignored: they mean that the process has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an address of the loopback interface with a free port, for a server that cannot choose its port. The port is
/// below those that Linux assigns, so no connection takes it before the server listens.
pub(crate) fn free_address() -> SocketAddr {
    loop {
        let port = fastrand::u16(12_000..32_000);
        if let Ok(free) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return free.local_addr().expect("the listener has an address");
        }
    }
}
