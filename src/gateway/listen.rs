//! Sockets for every worker on every address.
//!
//! All workers listen on the same addresses with `SO_REUSEPORT`. That flag would also let a second
//! gateway share them unnoticed, so each address is first bound once without it: a port in use is an
//! error, not half of the traffic.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

/// Connections the kernel keeps for a worker that is busy.
const BACKLOG: i32 = 4_096;

/// Why an address cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}: {}", explain(.source))]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// Why not.
    #[source]
    pub source: io::Error,
}

/// Listening sockets.
pub(super) struct Sockets {
    /// The addresses, with the ports the system chose filled in.
    pub(super) addresses: Vec<SocketAddr>,
    /// For each worker a socket on each address.
    pub(super) per_worker: Vec<Vec<TcpListener>>,
}

pub(super) fn bind(listen: &[SocketAddr], workers: usize) -> Result<Sockets, ListenError> {
    let mut addresses = Vec::with_capacity(listen.len());
    let mut per_worker: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    for &address in listen {
        let failed = |source| ListenError { address, source };
        if address.port() != 0 {
            drop(socket(address, false).map_err(failed)?);
        }
        let first = socket(address, true).map_err(failed)?;
        let bound = first.local_addr().map_err(failed)?;
        let mut sockets = vec![first];
        while sockets.len() < workers {
            sockets.push(socket(bound, true).map_err(failed)?);
        }
        addresses.push(bound);
        for (own, socket) in per_worker.iter_mut().zip(sockets) {
            own.push(socket);
        }
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
    // Connections of an earlier run that linger in TIME_WAIT are no reason not to start.
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
            "the port is in use by another process; stop that one or choose another port".into()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; ports below 1024 need the right to bind them".into()
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        _ => error.to_string(),
    }
}
