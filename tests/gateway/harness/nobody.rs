//! Addresses where nobody takes a request.
//!
//! Both keep their port for as long as they live, so that no other test's server is found there.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Refuses every connection: bound, and not listening.
pub(crate) struct Refusing(Socket);

/// Neither takes a connection nor refuses it: its queue is full, and nobody empties it.
pub(crate) struct Deaf {
    socket: Socket,
    _queue: Vec<TcpStream>,
}

impl Refusing {
    pub(crate) fn new() -> Self {
        Self(bound())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", address(&self.0))
    }

    /// Accepts connections from now on, and never responds.
    pub(crate) fn listen(&self) {
        self.0.listen(16).expect("a listener");
    }
}

impl Deaf {
    pub(crate) fn new() -> Self {
        let socket = bound();
        socket.listen(0).expect("a listener");
        let address = address(&socket);
        // The kernel completes a connection on loopback at once, or drops what asks for it.
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
        let queue = std::iter::from_fn(|| connect().ok()).take(100).collect();
        assert!(connect().is_err(), "a queue that never fills");
        Self {
            socket,
            _queue: queue,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", address(&self.socket))
    }
}

fn bound() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any.into()).expect("a free port");
    socket
}

fn address(socket: &Socket) -> SocketAddr {
    let address = socket.local_addr().expect("a bound socket");
    address.as_socket().expect("an address of the internet")
}
