//! Servers that are not Redis, where somebody expects one.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// Answers whatever it is sent with something that is not the protocol of Redis: every other connection gets an
/// HTTP server's complaint, and the others get noise.
pub(crate) struct Garbage(Listener);

impl Garbage {
    pub(crate) fn start() -> Self {
        Self(Listener::start(|connection, nth| {
            let mut noise = [0; 512];
            fastrand::fill(&mut noise);
            // No reply of Redis begins like this.
            noise[0] = 0xff;
            let answer: &[u8] = if nth % 2 == 0 {
                b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
            } else {
                &noise
            };
            let mut asked = [0; 4096];
            while matches!((&*connection).read(&mut asked), Ok(1..)) {
                if (&*connection).write_all(answer).is_err() {
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

/// Takes every connection and all that comes on it, and never says a word.
pub(crate) struct Silent(Listener);

impl Silent {
    pub(crate) fn start() -> Self {
        Self(Listener::start(|connection, _| {
            let mut asked = [0; 4096];
            while matches!((&*connection).read(&mut asked), Ok(1..)) {}
        }))
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.address.port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.0.address)
    }
}

/// Serves each connection on a thread of its own, until dropped.
struct Listener {
    address: SocketAddr,
    /// Those that are served; none once nobody is to be served any more.
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
                    // Somebody else holds it too, and it must end all the same.
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
        // One more connection, so that the acceptor sees that it was the last.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}
