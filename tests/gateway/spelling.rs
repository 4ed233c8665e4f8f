//! One header value has one bucket and one scope, however a client spells it: rows 8, 9, 55 and 56 of the threats.

mod buckets;
mod commands;
mod forwarded;
mod scopes;

use crate::harness::{Asking, Gateway};

/// Header lines of a request.
type Lines = &'static [(&'static str, &'static [u8])];

/// Another spelling of a request, and the status of its response.
struct Variant {
    lines: Lines,
    /// Over HTTP/1.
    http1: u16,
    /// Over HTTP/2, which has no `Connection`.
    http2: Option<u16>,
}

const fn both(lines: Lines, status: u16) -> Variant {
    Variant {
        lines,
        http1: status,
        http2: Some(status),
    }
}

/// White space around a value: HTTP/1 trims it, and on HTTP/2 the request is malformed.
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
    /// The requests of this spelling, one per protocol, and the status that each gets.
    fn requests(&self, gateway: &Gateway, method: &str) -> Vec<(Asking, u16)> {
        let client = gateway.client();
        let mut requests = vec![(request(client.request(method, "/"), self.lines), self.http1)];
        if let Some(status) = self.http2 {
            let asking = client.h2().request(method, "/");
            requests.push((request(asking, self.lines), status));
        }
        requests
    }

    fn shown(&self) -> String {
        let lines = self.lines.iter();
        let lines = lines.map(|(name, value)| format!("{name}: \"{}\"", value.escape_ascii()));
        lines.collect::<Vec<_>>().join(", ")
    }
}

fn request(asking: Asking, lines: Lines) -> Asking {
    lines.iter().fold(asking, |asking, (name, value)| {
        asking.header_bytes(name, value)
    })
}
