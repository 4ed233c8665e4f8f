//! Files that the configuration names: certificates, private keys and secrets.
//!
//! The policy contains their content, so that an unusable file is reported with its location in the configuration, and
//! a file that changes later has no effect until the configuration is loaded again. Only the Redis client reads the
//! file of its CA itself.

use std::io::ErrorKind;
use std::str::FromStr;
use std::sync::Arc;

use super::super::Purpose;
use super::super::file::TlsTable;
use super::super::located::Located;
use super::super::problem::Findings;
use super::super::scalar::{FilePath, ValueError};
use super::server::ListenerTls;
use crate::http::certificates::{
    CaCertificates, PemFileError, expiry, is_outside_validity, read_chain, read_private_key,
    read_roots, server_config,
};

/// Reads the CA certificates in `ca_file`. Returns `None` without an error if the `purpose` does not allow reading
/// files.
pub(super) fn read_ca(
    ca_file: &Located<FilePath>,
    purpose: Purpose,
    findings: &mut Findings,
) -> Option<CaCertificates> {
    if !purpose.reads_files() {
        return None;
    }
    let roots = read_roots(&ca_file.value.0);
    roots
        .map_err(|error| report("CA", ca_file, &error, findings))
        .ok()
}

/// Reads the certificate and the private key of the listeners.
pub(super) fn read_listener_pair(
    tls: &TlsTable,
    purpose: Purpose,
    findings: &mut Findings,
) -> Option<ListenerTls> {
    let (cert, key) = (tls.cert.as_ref()?, tls.key.as_ref()?);
    if !purpose.reads_files() {
        return None;
    }
    let chain = read_chain(&cert.value.0);
    let chain = chain.map_err(|error| report("certificate", cert, &error, findings));
    let private = read_private_key(&key.value.0);
    let private = private.map_err(|error| report("key", key, &error, findings));
    let chain = chain.ok()?;
    let expiry = chain.first().and_then(expiry);
    match server_config(chain, private.ok()?) {
        Ok(config) => {
            return Some(ListenerTls {
                config: Arc::new(config),
                certificate: cert.value.0.clone(),
                expiry,
            });
        }
        Err(rustls::Error::InconsistentKeys(_)) => {
            findings
                .error(
                    &key.span,
                    "the private key in this file does not belong to the certificate in `cert`",
                    "write the files of one pair in `cert` and `key`; the first certificate in `cert` must be that of \
                     the gateway, not that of its CA",
                )
                .note(&cert.span, "the certificate");
        }
        Err(rustls::Error::InvalidCertificate(error)) => {
            let remedy = if is_outside_validity(&error) {
                "renew the certificate, or correct the clock of this machine"
            } else {
                "write a file with an X.509 certificate in PEM format"
            };
            let title = format!("the TLS certificate in this file is invalid: {error}");
            findings.error(&cert.span, title, remedy);
        }
        Err(error) => {
            findings.error(
                &key.span,
                format!("the private key in this file cannot be used: {error}"),
                "write a file with an RSA key of at least 2048 bits, an ECDSA key (P-256 or P-384) or an Ed25519 key",
            );
        }
    }
    None
}

/// Reports that a PEM file cannot be used. `what` is the kind of the file in error messages, such as "certificate".
fn report(what: &str, file: &Located<FilePath>, error: &PemFileError, findings: &mut Findings) {
    let help = match error {
        PemFileError::Unreadable(_) => where_to_look(what, &file.value),
        PemFileError::KeyInsteadOfCertificate if what == "CA" => {
            "write a file with the certificates of the certificate authorities, without private keys".into()
        }
        PemFileError::KeyInsteadOfCertificate | PemFileError::CertificateInsteadOfKey => {
            "write the certificate in `cert` and the private key in `key`; the two files may be swapped".into()
        }
        PemFileError::EncryptedKey => {
            "decrypt the key with `openssl pkey -in ENCRYPTED -out DECRYPTED`, and write the path of the decrypted file"
                .into()
        }
        PemFileError::Missing(kind) | PemFileError::Damaged(kind) => {
            let kind = kind.to_uppercase();
            format!("write a file in PEM format, which contains the line `-----BEGIN {kind}-----`")
        }
    };
    findings.error(
        &file.span,
        format!("the {what} file cannot be used: {error}"),
        help,
    );
}

/// Returns the remedy for a file that cannot be read.
fn where_to_look(what: &str, file: &FilePath) -> String {
    let directory = std::env::current_dir();
    let relative = match directory {
        Ok(directory) if file.0.is_relative() => format!(
            "; the path is relative to the working directory {}",
            directory.display()
        ),
        _ => String::new(),
    };
    format!(
        "check the path and the permissions of the {what} file{relative}. `tidegate check --no-files` does not read \
         files"
    )
}

/// Reads a secret from a file. `what` is the kind of the secret in error messages, such as "password". Returns `None`
/// without an error if the `purpose` does not allow reading files.
pub(super) fn read_secret<T: FromStr<Err = ValueError>>(
    what: &str,
    file: &Located<FilePath>,
    purpose: Purpose,
    findings: &mut Findings,
) -> Option<T> {
    if !purpose.reads_files() {
        return None;
    }
    let text = match std::fs::read_to_string(&file.value.0) {
        Ok(text) => text,
        Err(error) => {
            let help = match error.kind() {
                ErrorKind::InvalidData => format!("write the {what} as text in UTF-8"),
                _ => where_to_look(what, &file.value),
            };
            findings.error(
                &file.span,
                format!("cannot read the file that contains the {what}: {error}"),
                help,
            );
            return None;
        }
    };
    match text.trim_end_matches(['\r', '\n']).parse() {
        Ok(secret) => Some(secret),
        Err(error) => {
            findings.error(
                &file.span,
                format!("the {what} in this file is invalid: {}", error.title),
                error.help,
            );
            None
        }
    }
}
