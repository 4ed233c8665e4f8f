//! A way to Redis that takes its time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// Passes on what is said to a server at once, and what it says later; until dropped.
pub(crate) struct SlowWay {
    address: SocketAddr,
    millis: Arc<AtomicU64>,
    _acceptor: AbortOnDropHandle<()>,
}

impl SlowWay {
    /// A way to the server on this port, which is quick at first.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let millis = Arc::new(AtomicU64::new(0));
        let delay = Arc::clone(&millis);
        let acceptor = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(pass_on(client, port, Arc::clone(&delay)));
            }
        });
        Self {
            address,
            millis,
            _acceptor: AbortOnDropHandle::new(acceptor),
        }
    }

    /// What the server says takes so long from now on.
    pub(crate) fn take(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap();
        self.millis.store(millis, Ordering::SeqCst);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

async fn pass_on(client: TcpStream, port: u16, delay: Arc<AtomicU64>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    server.set_nodelay(true).unwrap();
    client.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asking = tokio::io::copy(&mut from_client, &mut to_server);
    let answering = async {
        let mut said = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_server.read(&mut said).await {
            let delay = Duration::from_millis(delay.load(Ordering::SeqCst));
            tokio::time::sleep(delay).await;
            if to_client.write_all(&said[..length]).await.is_err() {
                break;
            }
        }
    };
    // Whoever ends first ends it for both.
    tokio::select! {
        _ = asking => {}
        () = answering => {}
    }
}
