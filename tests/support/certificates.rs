//! Self-signed certificate for `localhost` and 127.0.0.1, as PEM files and as rustls configurations.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub(crate) struct Certificates {
    directory: TempDir,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Certificates {
    pub(crate) fn for_localhost() -> Self {
        Self::valid_until(4096)
    }

    /// Creates a certificate that is no longer valid.
    pub(crate) fn expired() -> Self {
        Self::valid_until(2001)
    }

    fn valid_until(year: i32) -> Self {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("the names are valid");
        params.not_after = date_time_ymd(year, 1, 1);
        let signing_key = KeyPair::generate().expect("the key is created");
        let certificate = params.self_signed(&signing_key);
        let certificate = certificate.expect("the certificate is created");
        let directory = tempfile::tempdir().expect("the directory is created");
        let write = |name: &str, text: String| {
            std::fs::write(directory.path().join(name), text).expect("the file is written");
        };
        write("cert.pem", certificate.pem());
        write("key.pem", signing_key.serialize_pem());
        Self {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::try_from(signing_key.serialize_der())
                .expect("the private key is valid"),
            directory,
        }
    }

    pub(crate) fn cert_file(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    pub(crate) fn key_file(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }

    /// Creates a TLS acceptor that presents this certificate and negotiates `http/1.1`.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .expect("the certificate matches the key");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// Creates a TLS connector that trusts only this certificate and offers the ALPN protocols `alpn`.
    pub(crate) fn connector(&self, alpn: &[&str]) -> TlsConnector {
        Self::connector_for(std::slice::from_ref(self), alpn)
    }

    /// Creates a TLS connector that trusts only these certificates and offers the ALPN protocols `alpn`.
    pub(crate) fn connector_for(trusted: &[Self], alpn: &[&str]) -> TlsConnector {
        let mut roots = rustls::RootCertStore::empty();
        for trusted in trusted {
            let added = roots.add(trusted.certificate.clone());
            added.expect("the root certificate is valid");
        }
        let mut config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}
