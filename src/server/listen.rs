//! Binds one listening socket per worker and address.
//!
//! All workers listen on the same addresses with `SO_REUSEPORT`. With this option, a second gateway could bind the same
//! port by mistake and receive half of the connections. So each address is first bound without the option, which fails
//! if the port is in use. This socket does not listen, because the kernel would reset its connections when it closes.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};

use listenfd::ListenFd;
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use crate::http::socket::limit_unsent;

/// Connections that the kernel queues per listening socket until the worker accepts them.
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

/// Sockets that the process inherits, as from systemd (socket activation). Their supervisor keeps them open, so a
/// restart refuses no connection.
#[derive(Debug, Default)]
pub(crate) struct Inherited(Vec<TcpListener>);

impl Inherited {
    pub(crate) fn from_env() -> io::Result<Self> {
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).map(|index| passed.take_tcp_listener(index));
        let sockets: Vec<_> = sockets.collect::<io::Result<_>>()?;
        Ok(Self(sockets.into_iter().flatten().collect()))
    }

    /// A socket on `[::]` is also one for `0.0.0.0`, because systemd binds a bare port in this way.
    pub(crate) fn find(&self, address: SocketAddr) -> Option<&TcpListener> {
        let is_for = |bound: SocketAddr| {
            let (bound_ip, ip) = (bound.ip(), address.ip());
            let is_any = bound_ip == Ipv6Addr::UNSPECIFIED && ip.is_unspecified();
            bound.port() == address.port() && (bound_ip == ip || is_any)
        };
        let mut sockets = self.0.iter();
        sockets.find(|socket| socket.local_addr().is_ok_and(is_for))
    }

    pub(crate) fn unused(&self, configured: &[SocketAddr]) -> Option<SocketAddr> {
        let used = configured.iter().filter_map(|&address| self.find(address));
        let used: Vec<_> = used.filter_map(|socket| socket.local_addr().ok()).collect();
        let mut bound = self.0.iter().filter_map(|socket| socket.local_addr().ok());
        bound.find(|address| !used.contains(address))
    }
}

#[derive(Debug)]
pub(super) struct WorkerSocket {
    pub(super) socket: TcpListener,
    /// The supervisor and all workers share an inherited socket. Its queue belongs to the next process.
    pub(super) is_inherited: bool,
}

pub(super) struct Sockets {
    /// Port 0 is replaced by the port that the system chose.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) per_worker: Vec<Vec<WorkerSocket>>,
}

pub(super) fn bind(
    listen: &[SocketAddr],
    workers: usize,
    inherited: &Inherited,
) -> Result<Sockets, ListenError> {
    let mut addresses = Vec::with_capacity(listen.len());
    let mut per_worker: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
    for &address in listen {
        let failed = |source| ListenError { address, source };
        if let Some(socket) = inherited.find(address) {
            socket.set_nonblocking(true).map_err(failed)?;
            limit_unsent(socket).map_err(failed)?;
            for own in &mut per_worker {
                own.push(WorkerSocket {
                    socket: socket.try_clone().map_err(failed)?,
                    is_inherited: true,
                });
            }
            addresses.push(socket.local_addr().map_err(failed)?);
            continue;
        }
        // For port 0, the first socket only chooses a port. A socket bound to port 0 would get another port when it
        // listens again after a `Refusal`.
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
            own.push(WorkerSocket {
                socket: own_socket.into(),
                is_inherited: false,
            });
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
    // So that the gateway can restart while connections of the previous process are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    limit_unsent(&socket)?;
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
        let address = bind(&[([127, 0, 0, 1], 0).into()], 1, &Inherited::default())
            .unwrap()
            .addresses[0];
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
                bind(&[address], 0, &Inherited::default()).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(client.join().unwrap(), 0);
        });
    }

    #[test]
    fn a_port_on_which_another_gateway_listens_is_in_use() {
        let sockets = bind(&[([127, 0, 0, 1], 0).into()], 2, &Inherited::default()).unwrap();
        let error = bind(&sockets.addresses, 2, &Inherited::default())
            .map(drop)
            .unwrap_err();
        assert!(error.to_string().contains("the port is in use"), "{error}");
    }
}
