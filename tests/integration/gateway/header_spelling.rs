//! Tests that all spellings of a header field count as the same value. The value selects the bucket of a rate limit or
//! the scope of an idempotency key.

mod buckets;
mod commands;
mod forwarded;
mod scopes;

use crate::support::{ClientRequest, Gateway};

/// Names and values of header field lines of a request.
type Lines = &'static [(&'static str, &'static [u8])];

/// Header fields that are spelled differently from those of the first request of a test, and the expected status of the
/// response.
struct Variant {
    lines: Lines,
    /// Expected status over HTTP/1.
    http1: u16,
    /// Expected status over HTTP/2. `None` means that the variant is not sent over HTTP/2, for example because HTTP/2
    /// has no `Connection`.
    http2: Option<u16>,
}

const fn both(lines: Lines, status: u16) -> Variant {
    Variant {
        lines,
        http1: status,
        http2: Some(status),
    }
}

/// Creates a variant with white space around a value. The gateway removes the white space over HTTP/1, so the
/// expected status is `trimmed`. Over HTTP/2 the request is malformed, so the expected status is 400.
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
    /// Returns a request with this spelling for each HTTP version, and the expected status of each.
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
