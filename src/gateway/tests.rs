//! Test that a gateway starts with each configuration file in `tests/configs/valid` and `config`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Gateway;
use crate::clock::Clock;
use crate::config::{self, Environment, Overrides, Policy};
use crate::pipeline::Shared;

fn load(path: &Path) -> Policy {
    let environment: Environment = [
        ("TEST_HOST", "127.0.0.1"),
        ("TEST_RATE", "5/s"),
        ("TEST_TOKEN", "t0p"),
    ]
    .into_iter()
    .collect();
    let loaded = config::load(path, &environment, &Overrides::default());
    loaded.unwrap_or_else(|errors| panic!("{errors}")).policy
}

fn files_in(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).expect("the folder is part of the repository");
    let paths = entries.map(|entry| entry.expect("the folder is readable").path());
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|end| end == "toml");
    paths.filter(is_toml).collect()
}

#[test]
fn every_valid_configuration_starts_a_gateway() {
    // An error is ignored: it means that another test has already installed a TLS provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let issued = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let (cert, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    fs::write(&cert, issued.cert.pem()).unwrap();
    fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
    let shipped = files_in("config");
    for path in files_in("tests/configs/valid").iter().chain(&shipped) {
        let mut policy = load(path);
        // The test replaces the configured addresses and certificates, because they do not exist on this machine.
        policy.server.listen = vec![(Ipv4Addr::LOCALHOST, 0).into()];
        policy.server.workers = 1;
        let is_tls = policy.server.tls.is_some();
        if let Some(files) = &mut policy.server.tls {
            (files.cert, files.key) = (cert.clone(), key.clone());
        }
        for upstream in &mut policy.upstreams {
            if let Some(file) = &mut Arc::make_mut(upstream).ca_file {
                file.clone_from(&cert);
            }
        }
        let shared = Shared::new(Arc::new(policy), Clock::real());
        let gateway =
            Gateway::start(shared).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut client = TcpStream::connect(gateway.addresses()[0]).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut response = Vec::new();
        client.read_to_end(&mut response).unwrap();
        // The request has no `Host`. A listener with TLS sends a TLS alert instead of a response.
        let expected: &[u8] = if is_tls { &[21, 3] } else { b"HTTP/1.1 400 " };
        assert!(
            response.starts_with(expected),
            "{}: {}",
            path.display(),
            response.escape_ascii()
        );
        gateway.stopper().halt();
        gateway.join().unwrap();
    }
}
