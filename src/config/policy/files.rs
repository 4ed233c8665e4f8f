//! Files that the configuration names: certificates, private keys and secrets.
//!
//! The gateway reads the certificates again when it starts, with the same functions. Reading them here reports an
//! unusable file with its location in the configuration, also by `tidegate check`.

use std::io::ErrorKind;
use std::str::FromStr;
use std::sync::Arc;

use super::super::file::{File, TlsTable};
use super::super::located::Located;
use super::super::problem::Findings;
use super::super::scalar::{FilePath, ValueError};
use super::super::{Backend, Purpose};
use crate::http::certificates::{
    PemFileError, read_chain, read_private_key, read_roots, server_config,
};
use crate::upstream::Upstream;

/// Reads all files with certificates and private keys that the gateway would read, and reports those that it cannot use.
/// `upstreams` has the order of the file.
pub(super) fn check_certificates(
    file: &File,
    upstreams: &[Arc<Upstream>],
    backend: &Backend,
    findings: &mut Findings,
) {
    if let Some(tls) = &file.server.tls {
        check_listener(tls, findings);
    }
    for (section, upstream) in file.upstream.entries.values().zip(upstreams) {
        let uses_tls = upstream.servers.iter().any(|server| server.tls);
        match &section.value.ca_file {
            Some(ca_file) if uses_tls => check_roots(ca_file, findings),
            _ => {}
        }
    }
    if let (Backend::Redis(redis), Some(ca_file)) = (backend, &file.store.ca_file)
        && redis.nodes.all().iter().any(|node| node.tls)
    {
        check_roots(ca_file, findings);
    }
}

fn check_roots(ca_file: &Located<FilePath>, findings: &mut Findings) {
    if let Err(error) = read_roots(&ca_file.value.0) {
        report("CA", ca_file, &error, findings);
    }
}

fn check_listener(tls: &TlsTable, findings: &mut Findings) {
    let (Some(cert), Some(key)) = (&tls.cert, &tls.key) else {
        return;
    };
    let chain = read_chain(&cert.value.0);
    let chain = chain.map_err(|error| report("certificate", cert, &error, findings));
    let private = read_private_key(&key.value.0);
    let private = private.map_err(|error| report("key", key, &error, findings));
    let (Ok(chain), Ok(private)) = (chain, private) else {
        return;
    };
    match server_config(chain, private) {
        Ok(_) => {}
        Err(rustls::Error::InconsistentKeys(_)) => findings
            .error(
                &key.span,
                "the private key in this file does not belong to the certificate in `cert`",
                "write the files of one pair in `cert` and `key`; the first certificate in `cert` must be that of the \
                 gateway, not that of its CA",
            )
            .note(&cert.span, "the certificate"),
        Err(rustls::Error::InvalidCertificate(error)) => {
            findings.error(
                &cert.span,
                format!("the TLS certificate in this file is invalid: {error}"),
                "write a file with an X.509 certificate in PEM format",
            );
        }
        Err(error) => {
            findings.error(
                &key.span,
                format!("the private key in this file cannot be used: {error}"),
                "write a file with an RSA key of at least 2048 bits, an ECDSA key (P-256 or P-384) or an Ed25519 key",
            );
        }
    }
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
