//! Binds one listening socket per worker and address.
//!
//! All workers listen on the same addresses with `SO_REUSEPORT`. With this option, a second gateway could bind the same
//! port by mistake and receive half of the connections. So each address is first bound without the option, which fails
//! if the port is in use.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

/// Maximum number of connections that the kernel queues per listening socket until the worker accepts them.
pub(super) const BACKLOG: i32 = 4_096;

/// Error: a listener cannot be bound to its address.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {}", explain(.source))]
pub struct ListenError {
    /// Address from the configuration key `listen`.
    pub address: SocketAddr,
    /// Error of the system call that failed.
    #[source]
    pub source: io::Error,
}

/// Listening sockets of all workers.
pub(super) struct Sockets {
    /// Addresses that the sockets are bound to. A configured port 0 is replaced by the port that the system chose.
    pub(super) addresses: Vec<SocketAddr>,
    /// The sockets of each worker. A worker has one socket per address.
    pub(super) per_worker: Vec<Vec<TcpListener>>,
}

pub(super) fn bind(listen: &[SocketAddr], workers: usize) -> Result<Sockets, ListenError> {
    let mut addresses = Vec::with_capacity(listen.len());
    let mut per_worker: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    for &address in listen {
        let failed = |source| ListenError { address, source };
        // If the port is 0, the first socket only chooses a port. A socket that was bound to port 0 would get another
        // port when it listens again after a pause (`Refusal`).
        let is_chosen = address.port() == 0;
        let first = socket(address, is_chosen).map_err(failed)?;
        let bound = first.local_addr().map_err(failed)?;
        if !is_chosen {
            drop(first);
        }
        for own in &mut per_worker {
            own.push(socket(bound, true).map_err(failed)?);
        }
        addresses.push(bound);
    }
    Ok(Sockets {
        addresses,
        per_worker,
    })
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // With `SO_REUSEADDR`, the gateway can restart while connections of the previous process are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is in use; stop the other process, or choose another port with --listen or `server.listen`".into()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; ports below 1024 require CAP_NET_BIND_SERVICE".into()
        }
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has this address".into(),
        _ => error.to_string(),
    }
}
