//! Binds one listening socket per worker and address.
//!
//! All workers listen on the same addresses with `SO_REUSEPORT`. With this option, a second gateway could bind the same
//! port by mistake and receive half of the connections. So each address is first bound without the option, which fails
//! if the port is in use. This socket does not listen, because the kernel would reset its connections when it closes.

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
        let bound = bound
            .as_socket()
            .expect("the socket has the family of `address`");
        if !is_chosen {
            drop(first);
        }
        for own in &mut per_worker {
            let own_socket = socket(bound, true).map_err(failed)?;
            own_socket.listen(BACKLOG).map_err(failed)?;
            own.push(own_socket.into());
        }
        addresses.push(bound);
    }
    Ok(Sockets {
        addresses,
        per_worker,
    })
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<Socket> {
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
    Ok(socket)
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

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_check_of_a_port_accepts_no_connection() {
        let address = bind(&[([127, 0, 0, 1], 0).into()], 1).unwrap().addresses[0];
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut accepted = 0;
                while !done.load(Ordering::Relaxed) {
                    accepted += u32::from(TcpStream::connect(address).is_ok());
                }
                accepted
            });
            for _ in 0..2_000 {
                // Without workers, only the check binds the address.
                bind(&[address], 0).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(client.join().unwrap(), 0);
        });
    }

    #[test]
    fn a_port_on_which_another_gateway_listens_is_in_use() {
        let sockets = bind(&[([127, 0, 0, 1], 0).into()], 2).unwrap();
        let error = bind(&sockets.addresses, 2).map(drop).unwrap_err();
        assert!(error.to_string().contains("the port is in use"), "{error}");
    }
}
