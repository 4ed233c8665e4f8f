//! PEM files with certificates and private keys, as listeners, upstreams and the Redis store use them.
//!
//! An error names a common mistake, such as a private key in the file of the certificate.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::pem::{self, PemObject as _, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore, ServerConfig};
use thiserror::Error;

/// An encrypted private key contains one of them: the label of RFC 7468, section 11, or the header of RFC 1421, section
/// 4.6.1.1.
const ENCRYPTED_KEY: [&[u8]; 2] = [
    b"-----BEGIN ENCRYPTED PRIVATE KEY-----",
    b"Proc-Type: 4,ENCRYPTED",
];

/// RFC 9113, section 3.1.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";

/// RFC 7301, section 6.
const ALPN_HTTP1: &[u8] = b"http/1.1";

#[derive(Debug, Error)]
pub(crate) enum PemFileError {
    #[error("cannot read the file: {0}")]
    Unreadable(#[from] io::Error),
    #[error("the file contains a private key instead of a certificate")]
    KeyInsteadOfCertificate,
    #[error("the file contains a certificate instead of a private key")]
    CertificateInsteadOfKey,
    #[error("the private key in the file is encrypted with a passphrase")]
    EncryptedKey,
    #[error("the file contains no {0} in PEM format")]
    Missing(&'static str),
    #[error("the {0} in the file is damaged")]
    Damaged(&'static str),
}

/// The first certificate is that of the server.
pub(crate) fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemFileError> {
    let bytes = std::fs::read(path)?;
    let chain = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) if contains_key(&bytes) => Err(PemFileError::KeyInsteadOfCertificate),
        Ok(_) => Err(PemFileError::Missing("certificate")),
        Err(_) => Err(PemFileError::Damaged("certificate")),
    }
}

pub(crate) fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemFileError> {
    let bytes = std::fs::read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        _ if contains_encrypted_key(&bytes) => PemFileError::EncryptedKey,
        pem::Error::NoItemsFound if contains_certificate(&bytes) => {
            PemFileError::CertificateInsteadOfKey
        }
        pem::Error::NoItemsFound => PemFileError::Missing("private key"),
        _ => PemFileError::Damaged("private key"),
    })
}

#[derive(Clone, Debug)]
pub(crate) struct CaCertificates(pub(crate) Arc<RootCertStore>);

impl PartialEq for CaCertificates {
    fn eq(&self, other: &Self) -> bool {
        self.0.roots == other.0.roots
    }
}

/// Certificates that rustls cannot parse are ignored, but at least one must be valid.
pub(crate) fn read_roots(path: &Path) -> Result<CaCertificates, PemFileError> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(read_chain(path)?);
    if added == 0 {
        return Err(PemFileError::Damaged("certificate"));
    }
    Ok(CaCertificates(Arc::new(roots)))
}

/// Offers HTTP/2 and HTTP/1.1 by ALPN. A certificate that has expired or is not valid yet is an error.
pub(crate) fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = rustls::crypto::ring::default_provider();
    if let Some(certificate) = chain.first() {
        check_validity(certificate, UnixTime::now())?;
    }
    let mut config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()];
    Ok(config)
}

pub(crate) fn expiry(certificate: &CertificateDer<'_>) -> Option<UnixTime> {
    // The error contains the end of the validity.
    let end_of_time = UnixTime::since_unix_epoch(Duration::MAX);
    match check_validity(certificate, end_of_time) {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => Some(not_after),
        _ => None,
    }
}

fn check_validity(certificate: &CertificateDer<'_>, at: UnixTime) -> Result<(), rustls::Error> {
    let provider = rustls::crypto::ring::default_provider();
    let verified = verify_server_cert_signed_by_trust_anchor(
        &ParsedCertificate::try_from(certificate)?,
        &RootCertStore::empty(),
        &[],
        at,
        provider.signature_verification_algorithms.all,
    );
    match verified {
        Err(rustls::Error::InvalidCertificate(error)) if is_outside_validity(&error) => {
            Err(error.into())
        }
        // Other errors come after the validity period is checked: the issuer is unknown, because there are no roots.
        _ => Ok(()),
    }
}

pub(crate) fn is_outside_validity(error: &CertificateError) -> bool {
    matches!(
        error,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    )
}

fn contains_key(bytes: &[u8]) -> bool {
    PrivateKeyDer::from_pem_slice(bytes).is_ok() || contains_encrypted_key(bytes)
}

fn contains_certificate(bytes: &[u8]) -> bool {
    let mut sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes).flatten();
    sections.any(|(kind, _)| kind == SectionKind::Certificate)
}

fn contains_encrypted_key(bytes: &[u8]) -> bool {
    let mut texts = ENCRYPTED_KEY.iter();
    texts.any(|text| memchr::memmem::find(bytes, text).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAMAGED: &str = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    const ENCRYPTED: &str =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";

    const TRADITIONAL: &str = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n\
                               MIIB\n-----END RSA PRIVATE KEY-----\n";

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn with_file<T>(text: &str, read: impl FnOnce(&Path) -> T) -> T {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn an_error_names_the_content_of_the_file() {
        let (cert, key) = pair();
        let chain = |text: &str| with_file(text, read_chain).unwrap_err().to_string();
        let private = |text: &str| with_file(text, read_private_key).unwrap_err().to_string();
        assert!(chain(&key).contains("a private key instead of a certificate"));
        assert!(chain(ENCRYPTED).contains("a private key instead of a certificate"));
        assert!(chain("").contains("no certificate"));
        assert!(chain(DAMAGED).contains("damaged"));
        assert!(private(&cert).contains("a certificate instead of a private key"));
        assert!(private(ENCRYPTED).contains("encrypted with a passphrase"));
        assert!(private(TRADITIONAL).contains("encrypted with a passphrase"));
        assert!(private("").contains("no private key"));
        assert!(private(&key.replace('M', "!")).contains("damaged"));
        let missing = read_chain(Path::new("/no/such/file")).unwrap_err();
        assert!(missing.to_string().contains("No such file"), "{missing}");
    }

    #[test]
    fn a_file_with_certificate_and_key_can_be_used_as_both() {
        let (cert, key) = pair();
        let both = format!("{key}{cert}");
        assert_eq!(with_file(&both, read_chain).unwrap().len(), 1);
        assert!(with_file(&both, read_private_key).is_ok());
        assert!(with_file(&both, read_roots).is_ok());
    }

    #[test]
    fn a_key_of_another_certificate_is_rejected() {
        let ((cert, key), (_, other)) = (pair(), pair());
        let config = |key: &str| {
            let chain = with_file(&cert, read_chain).unwrap();
            server_config(chain, with_file(key, read_private_key).unwrap())
        };
        assert!(config(&key).is_ok());
        let error = config(&other).unwrap_err();
        assert!(
            matches!(error, rustls::Error::InconsistentKeys(_)),
            "{error}"
        );
    }
}
