//! Addresses where no server accepts a request.
//!
//! Both types hold their port until they are dropped, so that no server of another test can get it.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Port that refuses connections: bound, but not listening.
pub(crate) struct RefusingPort(Socket);

/// Port that neither accepts nor refuses a connection: its accept queue is full and is never emptied.
pub(crate) struct FullBacklog {
    socket: Socket,
    _queue: Vec<TcpStream>,
}

impl RefusingPort {
    pub(crate) fn new() -> Self {
        Self(bound_socket())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", address(&self.0))
    }

    /// Accepts connections from now on, and never responds.
    pub(crate) fn listen(&self) {
        self.0.listen(16).expect("a listener");
    }
}

impl FullBacklog {
    pub(crate) fn new() -> Self {
        let socket = bound_socket();
        socket.listen(0).expect("a listener");
        let address = address(&socket);
        // On loopback, the kernel completes a connection immediately or drops the SYN.
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
        let queue = std::iter::from_fn(|| connect().ok()).take(100).collect();
        assert!(connect().is_err(), "the accept queue does not fill");
        Self {
            socket,
            _queue: queue,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", address(&self.socket))
    }
}

fn bound_socket() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any.into()).expect("a free port");
    socket
}

fn address(socket: &Socket) -> SocketAddr {
    let address = socket.local_addr().expect("a bound socket");
    address.as_socket().expect("an address of the internet")
}
