//! Ports on which no server responds to requests.
//!
//! Both types keep their port bound until they are dropped, so that no server of another test can use it.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// Port that refuses connections, because its socket is bound but does not listen.
pub(crate) struct RefusingPort(Socket);

/// Port on which connection attempts time out, because its accept queue is full and is never emptied.
pub(crate) struct FullBacklog {
    socket: Socket,
    queue: Vec<TcpStream>,
}

impl RefusingPort {
    pub(crate) fn new() -> Self {
        Self(bound_socket())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", address(&self.0))
    }

    /// Returns the URL of a port that refuses connections until the test process exits.
    pub(crate) fn permanent_url() -> String {
        let port = Self::new();
        let url = port.url();
        std::mem::forget(port);
        url
    }
}

impl FullBacklog {
    pub(crate) fn new() -> Self {
        let socket = bound_socket();
        socket.listen(0).expect("the socket listens");
        let address = address(&socket);
        // A short timeout is enough: on loopback, the kernel completes a connection immediately or drops the SYN.
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
        let queue = std::iter::from_fn(|| connect().ok()).take(100).collect();
        assert!(
            connect().is_err(),
            "the accept queue is not full after 100 connections"
        );
        Self { socket, queue }
    }

    /// Empties the accept queue, so that the next connections are established. No response follows.
    pub(crate) fn accept(&self) {
        for _ in &self.queue {
            self.socket.accept().expect("a connection is queued");
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", address(&self.socket))
    }
}

fn bound_socket() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("the socket is usable");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any.into()).expect("a port is free");
    socket
}

fn address(socket: &Socket) -> SocketAddr {
    let address = socket.local_addr().expect("the socket is bound");
    address.as_socket().expect("the address is an IP address")
}
