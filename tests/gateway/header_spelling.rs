//! A header value has one bucket and one scope, however a client spells it.

mod buckets;
mod commands;
mod forwarded;
mod scopes;

use crate::harness::{ClientRequest, Gateway};

/// Header lines of a request.
type Lines = &'static [(&'static str, &'static [u8])];

/// Other spelling of a request, and the status of its response.
struct Variant {
    lines: Lines,
    /// Status over HTTP/1.
    http1: u16,
    /// Status over HTTP/2, or `None` for variants with `Connection`, which HTTP/2 does not have.
    http2: Option<u16>,
}

const fn both(lines: Lines, status: u16) -> Variant {
    Variant {
        lines,
        http1: status,
        http2: Some(status),
    }
}

/// Variant with white space around a value. HTTP/1 trims it, and over HTTP/2 the request is malformed.
const fn padded(lines: Lines, trimmed: u16) -> Variant {
    Variant {
        lines,
        http1: trimmed,
        http2: Some(400),
    }
}

const fn http1(lines: Lines, status: u16) -> Variant {
    Variant {
        lines,
        http1: status,
        http2: None,
    }
}

impl Variant {
    /// Returns the requests with this spelling, one per protocol, and the expected status of each.
    fn requests(&self, gateway: &Gateway, method: &str) -> Vec<(ClientRequest, u16)> {
        let client = gateway.client();
        let mut requests = vec![(
            with_lines(client.request(method, "/"), self.lines),
            self.http1,
        )];
        if let Some(status) = self.http2 {
            let request = client.h2().request(method, "/");
            requests.push((with_lines(request, self.lines), status));
        }
        requests
    }

    fn shown(&self) -> String {
        let lines = self.lines.iter();
        let lines = lines.map(|(name, value)| format!("{name}: \"{}\"", value.escape_ascii()));
        lines.collect::<Vec<_>>().join(", ")
    }
}

fn with_lines(request: ClientRequest, lines: Lines) -> ClientRequest {
    lines.iter().fold(request, |request, (name, value)| {
        request.header_bytes(name, value)
    })
}
