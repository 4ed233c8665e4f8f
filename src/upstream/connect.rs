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
use super::dial::dial;
use super::socket::Socket;
use super::{Server, Upstream};
use crate::net::{FlattenWrites, keep_alive};

/// Bytes of a response's head that are taken; more is a bad answer.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Header lines of a response that are taken.
const MAX_HEADERS: usize = 256;

/// How a server is reached.
#[derive(Clone)]
pub(crate) struct Connector {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
}

/// Why an upstream's configuration cannot be put to work.
#[derive(Debug, Error)]
pub enum ConnectorError {
    /// Its certificates cannot be read.
    #[error("ca_file {}: {source}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rustls::pki_types::pem::Error,
    },
    /// Its certificates are there, but none is one.
    #[error("ca_file {} holds no certificate that can be used", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// No certificate could ever be checked against its name.
    #[error("'{host}' is not a name a certificate can be checked against: {source}")]
    ServerName {
        /// The server's host.
        host: String,
        /// Why not.
        source: InvalidDnsNameError,
    },
}

/// Why a server could not be reached. Not one byte of the request was sent.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    /// No connection.
    #[error("no connection: {0}")]
    Io(#[from] io::Error),
    /// None in time.
    #[error("no connection within {0:?}")]
    TimedOut(Duration),
    /// A connection, but no HTTP on it.
    #[error("no HTTP on the connection: {0}")]
    Http(#[from] hyper::Error),
}

/// The TLS settings of an upstream: its own certificates, or the system's.
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
            tracing::warn!(%error, "a system certificate cannot be read");
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
    /// How `server` is reached, with `tls` for what speaks TLS.
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
            let tls = tls.expect("made for every upstream with a server that speaks TLS");
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

    /// Opens a connection. A task of this worker drives it until either side ends it.
    pub(crate) async fn connect(&self) -> Result<Link, ConnectError> {
        match tokio::time::timeout(self.timeout, self.open()).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(ConnectError::TimedOut(self.timeout)),
        }
    }

    async fn open(&self) -> Result<Link, ConnectError> {
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

async fn speak_http<IO>(io: IO) -> Result<Link, ConnectError>
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
    Ok(Link { sender, driver })
}

/// A connection to a server. Dropping it closes the connection, also with a request in flight. If the task
/// that drives it went on, a server that stops reading would hold the request and its client for ever.
#[derive(Debug)]
pub(crate) struct Link {
    sender: SendRequest<UpstreamBody>,
    driver: AbortHandle,
}

impl Link {
    /// What requests are sent by.
    pub(crate) fn sender(&mut self) -> &mut SendRequest<UpstreamBody> {
        &mut self.sender
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Drop for Link {
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
