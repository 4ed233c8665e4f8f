//! Connections to a server: TCP, TLS if its URL is `https`, and HTTP/1.1.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use super::body::UpstreamBody;
use super::happy_eyeballs::dial;
use super::socket::Socket;
use super::{Server, Upstream};
use crate::net::{FlattenWrites, keep_alive};

/// Maximum size of a response head, in bytes. A larger head is an invalid response.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Maximum number of header lines in a response.
const MAX_HEADERS: usize = 256;

/// Address and TLS settings of a server.
#[derive(Clone)]
pub(crate) struct Connector {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
}

/// An upstream configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConnectorError {
    /// The certificate file cannot be read or parsed.
    #[error("ca_file {}: cannot read certificates: {source}", path.display())]
    CaFile {
        /// Path of the file.
        path: PathBuf,
        /// The error of the PEM parser.
        source: rustls::pki_types::pem::Error,
    },
    /// The certificate file contains no valid certificate.
    #[error("ca_file {}: no valid certificate; the file must contain PEM certificates", path.display())]
    NoCertificate {
        /// Path of the file.
        path: PathBuf,
    },
    /// The host is not a valid server name for TLS.
    #[error("'{host}' is not a valid server name for TLS: {source}")]
    ServerName {
        /// Host of the server.
        host: String,
        /// The error of the name parser.
        source: InvalidDnsNameError,
    },
}

/// An error before the request was sent.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    /// Resolving the name, TCP or TLS failed.
    #[error("connect failed: {0}")]
    Io(#[from] io::Error),
    /// `connect_timeout` expired.
    #[error("connect timed out after {0:?}")]
    TimedOut(Duration),
    /// hyper could not start HTTP/1.1 on the connection.
    #[error("HTTP handshake failed: {0}")]
    Http(#[from] hyper::Error),
}

/// Returns the TLS settings of an upstream. Root certificates come from `ca_file` or from the system.
pub(crate) fn tls_config(upstream: &Upstream) -> Result<Arc<ClientConfig>, ConnectorError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &upstream.ca_file {
        let certificates = read_certificates(path)?;
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(ConnectorError::NoCertificate { path: path.clone() });
        }
    } else {
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(%error, "cannot read system certificate");
        }
        roots.add_parsable_certificates(system.certs);
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectorError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| ConnectorError::CaFile {
            path: path.to_owned(),
            source,
        })
}

impl Connector {
    /// Creates the connector of `server`. `tls` must be set if the server uses TLS.
    pub(crate) fn new(
        server: &Server,
        tls: Option<&Arc<ClientConfig>>,
        timeout: Duration,
    ) -> Result<Self, ConnectorError> {
        let host = server.authority.host().trim_matches(['[', ']']).to_owned();
        let port = server
            .authority
            .port_u16()
            .unwrap_or(if server.tls { 443 } else { 80 });
        let tls = if server.tls {
            let name = ServerName::try_from(host.clone()).map_err(|source| {
                ConnectorError::ServerName {
                    host: host.clone(),
                    source,
                }
            })?;
            let tls = tls.expect("an upstream with a TLS server has TLS settings");
            Some((TlsConnector::from(Arc::clone(tls)), name))
        } else {
            None
        };
        Ok(Self {
            host,
            port,
            tls,
            timeout,
        })
    }

    /// Opens a connection. A spawned task drives it until either side closes it.
    pub(crate) async fn connect(&self) -> Result<ServerConnection, ConnectError> {
        match tokio::time::timeout(self.timeout, self.open()).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(ConnectError::TimedOut(self.timeout)),
        }
    }

    async fn open(&self) -> Result<ServerConnection, ConnectError> {
        #[cfg(test)]
        if let Some(stream) = super::tests::in_memory::connect(&self.host) {
            return speak_http(stream).await;
        }
        let stream = dial(&self.host, self.port).await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let socket = Socket::new(stream);
        match &self.tls {
            None => speak_http(socket).await,
            Some((connector, name)) => {
                speak_http(connector.connect(name.clone(), socket).await?).await
            }
        }
    }
}

async fn speak_http<IO>(io: IO) -> Result<ServerConnection, ConnectError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::Builder::new()
        .max_header_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(FlattenWrites(io)))
        .await?;
    let driver = tokio::spawn(async move {
        // A request in flight receives the error through its response. An idle connection has no receiver.
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "upstream connection failed");
        }
    });
    let driver = driver.abort_handle();
    Ok(ServerConnection { sender, driver })
}

/// An open connection to a server. Dropping it closes the connection, even with a request in flight. Otherwise a server
/// that stops reading would block the request and its client indefinitely.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    sender: SendRequest<UpstreamBody>,
    driver: AbortHandle,
}

impl ServerConnection {
    /// Returns the handle that sends requests.
    pub(crate) fn sender(&mut self) -> &mut SendRequest<UpstreamBody> {
        &mut self.sender
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
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}
