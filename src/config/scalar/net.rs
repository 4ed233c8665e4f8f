//! Listen addresses, networks and server URLs.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;

use http::Uri;
use http::uri::Scheme;
use ipnet::IpNet;
use rustls::pki_types::ServerName;

use super::ValueError;
use crate::upstream::Server;

/// Host names are not allowed.
pub(super) fn listen(text: &str) -> Result<SocketAddr, ValueError> {
    text.parse().map_err(|_| {
        let help = match text.rsplit_once(':') {
            Some(("", port)) if port.parse::<u16>().is_ok() => {
                format!(
                    "write \"127.0.0.1:{port}\" to accept connections from this machine only, or \"0.0.0.0:{port}\" \
                     to accept them on all IPv4 addresses"
                )
            }
            Some(("localhost", port)) if port.parse::<u16>().is_ok() => {
                format!("write \"127.0.0.1:{port}\"")
            }
            None if text.parse::<u16>().is_ok() => format!("write \"127.0.0.1:{text}\""),
            _ => "write an IP address and a port: \"127.0.0.1:8080\", \"[::1]:8080\"".into(),
        };
        ValueError::new(format!("`{text}` is not an IP address with a port"), help)
    })
}

pub(super) fn file_path(text: &str) -> Result<PathBuf, ValueError> {
    if text.contains('\0') {
        return Err(ValueError::new(
            "the path contains a NUL character",
            "write the path of a file or directory",
        ));
    }
    Ok(text.into())
}

/// A single address is a network of one. A network can have host bits, which the caller removes.
pub(super) fn cidr(text: &str) -> Result<IpNet, ValueError> {
    let single = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| single()).map_err(|_| {
        ValueError::new(
            format!("`{text}` is not an IP network or an IP address"),
            "write a network in CIDR notation or an IP address: \"10.0.0.0/8\", \"192.0.2.7\", \"fd00::/8\"",
        )
    })
}

pub(super) fn server_url(text: &str) -> Result<Server, ValueError> {
    let error = |title: String| {
        ValueError::new(
            title,
            "write only scheme, host and port: \"http://127.0.0.1:9000\", \"https://api.example\"",
        )
    };
    let not_a_url = || error(format!("`{text}` is not a valid URL of a server"));
    let uri: Uri = text.parse().map_err(|_| not_a_url())?;
    let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
        let help = "write `http://` or `https://` before the host, as in \"http://127.0.0.1:9000\"";
        return Err(ValueError {
            help: help.into(),
            ..not_a_url()
        });
    };
    let tls = *scheme == Scheme::HTTPS;
    if !tls && *scheme != Scheme::HTTP {
        return Err(error(format!(
            "`{scheme}` is not a supported URL scheme for servers"
        )));
    }
    // `Uri` silently drops a fragment.
    let extra = uri.query().is_some() || text.contains('#');
    if extra || !matches!(uri.path(), "" | "/") {
        return Err(error(format!(
            "the server URL `{text}` has a path or a query, but the gateway forwards those of the request"
        )));
    }
    if authority.as_str().contains('@') {
        return Err(error(format!(
            "the URL of the server `{}` contains a user, which is not supported",
            authority.host()
        )));
    }
    let port_is_wrong = match authority.as_str().strip_prefix(authority.host()) {
        Some("") => false,
        _ => authority.port_u16().is_none_or(|port| port == 0),
    };
    if authority.host().is_empty() || port_is_wrong {
        return Err(not_a_url());
    }
    let name = authority.host().trim_matches(['[', ']']);
    if tls && ServerName::try_from(name).is_err() {
        return Err(error(format!(
            "the host of `{text}` is neither a DNS name nor an IP address, so TLS cannot verify it"
        )));
    }
    Ok(Server {
        tls,
        authority: authority.clone(),
        weight: NonZeroU32::MIN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_a_listen_address_contains_the_port() {
        assert!(listen("[::1]:0").is_ok());
        for (text, remedy) in [
            (":8080", "0.0.0.0:8080"),
            ("localhost:80", "127.0.0.1:80"),
            (":8080", "127.0.0.1:8080"),
            ("9000", "127.0.0.1:9000"),
            ("localhost:x", "[::1]:8080"),
        ] {
            let error = listen(text).expect_err(text);
            assert!(error.help.contains(remedy), "{text}: {}", error.help);
        }
    }

    #[test]
    fn a_single_address_is_a_network_of_one() {
        let net = |text: &str| cidr(text).expect(text).to_string();
        assert_eq!(net("192.0.2.7"), "192.0.2.7/32");
        assert!(cidr("10.0.0.0/33").is_err());
    }

    #[test]
    fn a_server_url_has_a_scheme_a_host_and_an_optional_port() {
        for text in [
            "http://a",
            "https://a:8443",
            "http://[::1]:80",
            "https://[::1]",
            "http://a/",
        ] {
            assert!(server_url(text).is_ok(), "{text}");
        }
        let tls = |text: &str| server_url(text).expect(text).tls;
        assert!(tls("https://a") && !tls("http://a"));
        for text in [
            "",
            "a:80",
            "/a",
            "ftp://a",
            "http://",
            "http://a/v1",
            "http://a?x",
            "http://a#x",
            "http://u:p@a",
            "http://a:0",
            "http://a:99999",
            "http://a:",
            "https://a..b",
        ] {
            assert!(server_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_error_about_a_url_omits_its_password() {
        let error = server_url("http://u:secret@a").expect_err("a user");
        assert!(!error.title.contains("secret"));
    }
}
