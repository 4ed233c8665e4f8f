//! A TCP proxy that delays the replies of Redis.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// A TCP proxy that delays the replies of the server, but not the requests. It runs until it is dropped.
pub(crate) struct SlowProxy {
    address: SocketAddr,
    millis: Arc<AtomicU64>,
    _acceptor: AbortOnDropHandle<()>,
}

impl SlowProxy {
    /// Starts a proxy to the server on `port`. Its delay is zero.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let millis = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&millis);
        let acceptor = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(forward(client, port, Arc::clone(&delay)));
            }
        });
        Self {
            address,
            millis,
            _acceptor: AbortOnDropHandle::new(acceptor),
        }
    }

    /// Sets the delay of all later replies.
    pub(crate) fn set_delay(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap();
        self.millis.store(millis, Ordering::SeqCst);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

async fn forward(client: TcpStream, port: u16, delay: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    server.set_nodelay(true).unwrap();
    client.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::io::copy(&mut from_client, &mut to_server);
    let replies = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            let delay = Duration::from_millis(delay.load(Ordering::SeqCst));
            tokio::time::sleep(delay).await;
            if to_client.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    // When one direction ends, the proxy closes both connections.
    tokio::select! {
        _ = requests => {}
        () = replies => {}
    }
}
