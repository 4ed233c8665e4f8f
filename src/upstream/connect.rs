//! Opens connections to a server: TCP, then TLS if the URL of the server starts with `https`, then HTTP/1.1.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;
use tokio_util::io::InspectReader;

use super::Upstream;
use super::addresses::Addresses;
use super::body::UpstreamBody;
use super::happy_eyeballs::dial;
use super::socket::Socket;
use crate::http::certificates::CaCertificates;
use crate::http::socket::{FlattenWrites, keep_alive};

/// A response with a larger head counts as invalid.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// A response with more header lines counts as invalid.
const MAX_HEADERS: usize = 256;

#[derive(Clone)]
pub(crate) struct Connector {
    addresses: Arc<Addresses>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
}

/// No byte of the request was sent.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("cannot connect to the upstream server: {0}")]
    Io(#[from] io::Error),
    /// The value of `connect_timeout`.
    #[error("connection to the upstream server not established within connect_timeout ({0:?})")]
    TimedOut(Duration),
    #[error("cannot start HTTP/1.1 on the connection to the upstream server: {0}")]
    Http(#[from] hyper::Error),
}

pub(crate) fn tls_config(upstream: &Upstream) -> Arc<ClientConfig> {
    let roots = if let Some(CaCertificates(roots)) = &upstream.ca {
        Arc::clone(roots)
    } else {
        let mut roots = RootCertStore::empty();
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(
                %error,
                "cannot read root certificate of the system, upstream certificates that depend on it are rejected"
            );
        }
        roots.add_parsable_certificates(system.certs);
        Arc::new(roots)
    };
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

impl Connector {
    pub(crate) fn new(
        addresses: Arc<Addresses>,
        tls: Option<&Arc<ClientConfig>>,
        timeout: Duration,
    ) -> Self {
        let connector = |tls: &Arc<ClientConfig>| {
            let name = ServerName::try_from(addresses.host().to_owned());
            let name = name.expect("the configuration accepts only names that TLS can verify");
            (TlsConnector::from(Arc::clone(tls)), name)
        };
        Self {
            tls: tls.map(connector),
            addresses,
            timeout,
        }
    }

    /// A spawned task reads and writes the connection until either side closes it.
    pub(crate) async fn connect(&self) -> Result<ServerConnection, ConnectError> {
        match tokio::time::timeout(self.timeout, self.open()).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(ConnectError::TimedOut(self.timeout)),
        }
    }

    async fn open(&self) -> Result<ServerConnection, ConnectError> {
        #[cfg(test)]
        if let Some(stream) = super::tests::in_memory::connect(self.addresses.host()) {
            return speak_http(stream, [127, 0, 0, 1].into(), self.addresses.version()).await;
        }
        // Read before the addresses: if they change meanwhile, the connection is checked again.
        let version = self.addresses.version();
        let stream = self.dial().await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let peer = stream.peer_addr()?.ip();
        let socket = Socket::new(stream);
        match &self.tls {
            None => speak_http(socket, peer, version).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), socket).await?;
                speak_http(stream, peer, version).await
            }
        }
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let known = self.addresses.get().await?;
        let error = match dial(&known).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        match self.addresses.get_new(&known).await {
            Some(new) => dial(&new).await,
            None => Err(error),
        }
    }

    pub(super) fn is_current(&self, connection: &mut ServerConnection) -> bool {
        (self.addresses).is_current(connection.peer, &mut connection.version)
    }
}

async fn speak_http<IO>(
    io: IO,
    peer: IpAddr,
    version: u64,
) -> Result<ServerConnection, ConnectError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let has_received = Arc::new(AtomicBool::new(false));
    let io = InspectReader::new(io, {
        let has_received = Arc::clone(&has_received);
        move |bytes: &[u8]| {
            // The end of the stream is a read of zero bytes.
            if !bytes.is_empty() {
                has_received.store(true, Ordering::Relaxed);
            }
        }
    });
    let (sender, connection) = http1::Builder::new()
        .max_header_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(FlattenWrites(io)))
        .await?;
    let driver = tokio::spawn(async move {
        // Only logged, because a request in flight receives the same error.
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to upstream server failed after it was established");
        }
    });
    let driver = driver.abort_handle();
    Ok(ServerConnection {
        sender,
        driver,
        peer,
        version,
        has_received,
    })
}

/// Dropping this closes the connection, even while a request is in flight. Otherwise a server that stops reading would
/// block the request and its client indefinitely.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    sender: SendRequest<UpstreamBody>,
    driver: AbortHandle,
    peer: IpAddr,
    /// Version of the server's addresses in which `peer` was one of them.
    version: u64,
    /// hyper reports the same error whether the server closed before or after the first byte of a response.
    has_received: Arc<AtomicBool>,
}

impl ServerConnection {
    pub(crate) fn sender(&mut self) -> &mut SendRequest<UpstreamBody> {
        &mut self.sender
    }

    pub(super) fn begin_exchange(&self) {
        self.has_received.store(false, Ordering::Relaxed);
    }

    /// Since [`begin_exchange`](Self::begin_exchange).
    pub(super) fn has_received(&self) -> bool {
        self.has_received.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.addresses.name())
    }
}
