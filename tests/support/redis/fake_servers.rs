//! Servers that tests configure as Redis servers, but that do not speak the Redis protocol.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// Server that replies with bytes that are not the Redis protocol. Every second connection gets an HTTP 400 response,
/// the others get random bytes.
pub(crate) struct GarbageServer(Listener);

impl GarbageServer {
    pub(crate) fn start() -> Self {
        Self(Listener::start(|connection, nth| {
            let mut random_bytes = [0; 512];
            fastrand::fill(&mut random_bytes);
            // The first byte is 0xff, because no Redis reply begins with it.
            random_bytes[0] = 0xff;
            let reply: &[u8] = if nth % 2 == 0 {
                b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
            } else {
                &random_bytes
            };
            let mut buffer = [0; 4096];
            while matches!((&*connection).read(&mut buffer), Ok(1..)) {
                if (&*connection).write_all(reply).is_err() {
                    break;
                }
            }
        }))
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.0.address)
    }
}

/// Server that accepts connections, reads everything that it receives, and never replies.
pub(crate) struct SilentServer(Listener);

impl SilentServer {
    pub(crate) fn start() -> Self {
        Self(Listener::start(|connection, _| {
            let mut buffer = [0; 4096];
            while matches!((&*connection).read(&mut buffer), Ok(1..)) {}
        }))
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.0.address)
    }
}

/// TCP listener that serves each connection on a separate thread. It stops when it is dropped.
struct Listener {
    address: SocketAddr,
    /// Accepted connections. `None` tells the acceptor thread to stop, because the listener is being dropped.
    connections: Arc<Mutex<Option<Vec<Arc<TcpStream>>>>>,
    acceptor: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(serve: fn(&TcpStream, usize)) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("the address is valid");
        let connections = Arc::new(Mutex::new(Some(Vec::new())));
        let open = Arc::clone(&connections);
        let acceptor = std::thread::spawn(move || {
            let mut served = Vec::new();
            for (nth, connection) in listener.incoming().enumerate() {
                let connection = Arc::new(connection.expect("the connection is open"));
                match open.lock().as_mut() {
                    Some(open) => open.push(Arc::clone(&connection)),
                    None => break,
                }
                served.push(std::thread::spawn(move || {
                    serve(&connection, nth);
                    // The list of connections shares this socket, so dropping the socket here would not close the
                    // connection. A shutdown error is ignored: it means that the client has already closed the
                    // connection.
                    let _ = connection.shutdown(Shutdown::Both);
                }));
            }
            for thread in served {
                let _ = thread.join();
            }
        });
        Self {
            address,
            connections,
            acceptor: Some(acceptor),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for connection in self.connections.lock().take().into_iter().flatten() {
            let _ = connection.shutdown(Shutdown::Both);
        }
        // The acceptor thread blocks until the next connection. This connection wakes it, so that it can stop.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}
