//! TLS for the gateway's own listeners. ALPN offers HTTP/2 and HTTP/1.1.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;

use crate::server_settings::TlsFiles;

/// ALPN name of HTTP/2 (RFC 9113, section 3.1).
pub(super) const HTTP2: &[u8] = b"h2";

/// ALPN name of HTTP/1.1 (RFC 7301, section 6).
const HTTP1: &[u8] = b"http/1.1";

/// Why TLS cannot be set up for the listeners.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The certificate or key file cannot be read, or contains no certificate or key in PEM format.
    #[error("cannot read the TLS {what} of the listeners in {}: {}", path.display(), explain(.source))]
    File {
        /// Expected content of the file: "certificate" or "key".
        what: &'static str,
        /// Path of the certificate or key file.
        path: PathBuf,
        /// The error that the PEM reader returns.
        #[source]
        source: pem::Error,
    },
    /// rustls rejects the certificate with this key, for example because the key does not belong to the certificate.
    #[error("the certificate in {} cannot be used with the private key in {}: {source}", cert.display(), key.display())]
    Pair {
        /// Path of the certificate file.
        cert: PathBuf,
        /// Path of the private key file.
        key: PathBuf,
        /// The error that rustls returns.
        #[source]
        source: rustls::Error,
    },
}

pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let TlsFiles { cert, key } = files;
    let failed = |what, path: &Path, source| TlsError::File {
        what,
        path: path.into(),
        source,
    };
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| failed("certificate", cert, source))?;
    if chain.is_empty() {
        return Err(failed("certificate", cert, pem::Error::NoItemsFound));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| failed("key", key, source))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|source| TlsError::Pair {
            cert: cert.clone(),
            key: key.clone(),
            source,
        })?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn explain(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "the file contains none in PEM format".into(),
        other => other.to_string(),
    }
}
