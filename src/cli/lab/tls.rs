//! Certificates of `tidegate lab --tls`: a CA for one run, and a certificate of the gateway that it signs.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

/// In a directory that only this user can read, and that is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Certificates {
    directory: TempDir,
}

impl Certificates {
    pub(super) fn generate() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("tidegate-lab-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir()
            .context("cannot create a temporary directory for the certificates of --tls")?;
        let certificates = Self { directory };
        let [ca, cert, key] = pem_texts().context("cannot generate the certificates of --tls")?;
        for (path, text) in [
            (certificates.ca_file(), ca),
            (certificates.cert_file(), cert),
            (certificates.key_file(), key),
        ] {
            std::fs::write(&path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(certificates)
    }

    pub(super) fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    pub(super) fn cert_file(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    pub(super) fn key_file(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }
}

/// The CA certificate, the certificate of the gateway and its key. The key of the CA is not stored.
fn pem_texts() -> Result<[String; 3], rcgen::Error> {
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.distinguished_name
        .push(DnType::CommonName, "Tidegate lab CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
    ];
    let ca_key = KeyPair::generate()?;
    let ca_text = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let mut leaf = CertificateParams::new(NAMES.map(str::to_owned))?;
    leaf.distinguished_name
        .push(DnType::CommonName, "Tidegate lab");
    leaf.use_authority_key_identifier_extension = true;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let cert = leaf.signed_by(&key, &issuer)?.pem();
    Ok([ca_text, cert, key.serialize_pem()])
}
