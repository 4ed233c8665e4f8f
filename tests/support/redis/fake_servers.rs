//! Servers that are configured as Redis but do not speak its protocol.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// Server that replies to everything with bytes that are not the Redis protocol. Even connections get an HTTP 400
/// response, odd ones get random bytes.
pub(crate) struct GarbageServer(Listener);

impl GarbageServer {
    pub(crate) fn start() -> Self {
        Self(Listener::start(|connection, nth| {
            let mut random_bytes = [0; 512];
            fastrand::fill(&mut random_bytes);
            // No Redis reply begins with this byte.
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

/// Server that accepts connections, reads everything and never replies.
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

/// Serves each connection on its own thread until it is dropped.
struct Listener {
    address: SocketAddr,
    /// Open connections, or `None` once the listener is being dropped.
    connections: Arc<Mutex<Option<Vec<Arc<TcpStream>>>>>,
    acceptor: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(serve: fn(&TcpStream, usize)) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let connections = Arc::new(Mutex::new(Some(Vec::new())));
        let open = Arc::clone(&connections);
        let acceptor = std::thread::spawn(move || {
            let mut served = Vec::new();
            for (nth, connection) in listener.incoming().enumerate() {
                let connection = Arc::new(connection.expect("a connection"));
                match open.lock().as_mut() {
                    Some(open) => open.push(Arc::clone(&connection)),
                    None => break,
                }
                served.push(std::thread::spawn(move || {
                    serve(&connection, nth);
                    // The list of open connections also holds the socket, so dropping it here would not close it.
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
        // This connection wakes the acceptor, which then sees that it must stop.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}
