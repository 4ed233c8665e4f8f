//! TLS for the gateway's own listeners. ALPN offers HTTP/2 and HTTP/1.1.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use tokio_rustls::TlsAcceptor;

use crate::config::TlsFiles;
use crate::http::certificates::{PemFileError, read_chain, read_private_key, server_config};

/// ALPN name of HTTP/2 (RFC 9113, section 3.1).
pub(super) const HTTP2: &[u8] = b"h2";

/// ALPN name of HTTP/1.1 (RFC 7301, section 6).
const HTTP1: &[u8] = b"http/1.1";

/// Why TLS cannot be set up for the listeners. The configuration checks the same files, so this error occurs only if a
/// file changes after the configuration was loaded.
#[derive(Debug, Error)]
#[error("cannot use the TLS {what} of the listeners in {}: {source}", path.display())]
pub struct TlsError {
    /// Expected content of the file: "certificate" or "key".
    what: &'static str,
    /// Path of the certificate or key file.
    path: PathBuf,
    source: TlsErrorSource,
}

#[derive(Debug, Error)]
enum TlsErrorSource {
    #[error(transparent)]
    File(#[from] PemFileError),
    /// rustls rejects the certificate with this key, for example because the key does not belong to the certificate.
    #[error(transparent)]
    Pair(#[from] rustls::Error),
}

pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let TlsFiles { cert, key } = files;
    let failed = |what, path: &PathBuf, source: TlsErrorSource| TlsError {
        what,
        path: path.clone(),
        source,
    };
    let chain = read_chain(cert).map_err(|error| failed("certificate", cert, error.into()))?;
    let private = read_private_key(key).map_err(|error| failed("key", key, error.into()))?;
    let mut config =
        server_config(chain, private).map_err(|error| failed("key", key, error.into()))?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
