//! Authentication of a connection instead of a request: NTLM, Negotiate and Kerberos.
//!
//! With these schemes a server treats every later request on the connection as one of the user who logged in. Such a
//! connection therefore belongs to the client connection whose request caused the login, and is never pooled. It closes
//! with the client connection, or with the last detached execution that uses it. Two kinds of client connections own
//! none, because they can mix the requests of several users: HTTP/2, and connections from trusted proxies.

use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};

use super::connect::ServerConnection;
use super::pool::Pool;
use crate::request::context::ClientConnection;

const SCHEMES: [&str; 3] = ["ntlm", "negotiate", "kerberos"];

struct OwnedConnection {
    pool: Arc<Pool>,
    connection: ServerConnection,
}

pub(super) fn is_requested(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    lines.any(|line| names_scheme(line.as_bytes()))
}

pub(super) fn is_demanded(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(WWW_AUTHENTICATE).iter();
    lines.any(|line| challenges(line.as_bytes()).any(|(_, is_bound)| is_bound))
}

/// Returns whether any challenge is left.
pub(super) fn remove_challenges(headers: &mut HeaderMap) -> bool {
    let lines: Vec<HeaderValue> = (headers.get_all(WWW_AUTHENTICATE).iter())
        .filter_map(|line| {
            let kept = challenges(line.as_bytes()).filter(|(_, is_bound)| !is_bound);
            let kept: Vec<&[u8]> = kept.map(|(element, _)| element).collect();
            HeaderValue::from_bytes(&kept.join(&b", "[..])).ok()
        })
        .filter(|line| !line.is_empty())
        .collect();
    headers.remove(WWW_AUTHENTICATE);
    let is_any_left = !lines.is_empty();
    for line in lines {
        headers.append(WWW_AUTHENTICATE, line);
    }
    is_any_left
}

fn names_scheme(value: &[u8]) -> bool {
    let scheme = value
        .trim_ascii_start()
        .split(|&byte| byte == b' ' || byte == b'\t')
        .next();
    scheme.is_some_and(|scheme| {
        SCHEMES
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known.as_bytes()))
    })
}

/// Each element with whether its challenge authenticates the connection. A challenge has several elements if it has
/// several parameters (RFC 9110, section 11.6.1).
fn challenges(line: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let elements = line.split(move |&byte| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => return byte == b',' && !is_quoted,
        }
        false
    });
    let mut is_bound = false;
    elements
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
        .map(move |element| {
            if !is_parameter(element) {
                is_bound = names_scheme(element);
            }
            (element, is_bound)
        })
}

/// `name=value`, with optional white space before `=`, continues the challenge before it.
fn is_parameter(element: &[u8]) -> bool {
    let end = (element.iter()).position(|&byte| byte == b'=' || byte == b' ' || byte == b'\t');
    end.is_some_and(|end| element[end..].trim_ascii_start().starts_with(b"="))
}

/// Returns the index of the pool in `pools`.
pub(super) fn take<'a>(
    client: &ClientConnection,
    pools: &(impl Iterator<Item = &'a Arc<Pool>> + Clone),
) -> Option<(usize, ServerConnection)> {
    let mut owned = client.server_connections.lock();
    let owned = owned.downcast_mut::<Vec<OwnedConnection>>()?;
    owned.retain_mut(|owned| owned.pool.is_open(&mut owned.connection));
    // The most recently used one is last. A login continues there.
    let server_of =
        |it: &OwnedConnection| pools.clone().position(|pool| Arc::ptr_eq(pool, &it.pool));
    let found = owned.iter().rposition(|it| server_of(it).is_some())?;
    let taken = owned.remove(found);
    Some((server_of(&taken)?, taken.connection))
}

/// Replaces the connection that `client` owns to the same server, if any.
pub(super) fn give(client: &ClientConnection, pool: Arc<Pool>, connection: ServerConnection) {
    let mut slot = client.server_connections.lock();
    let given = OwnedConnection { pool, connection };
    match slot.downcast_mut::<Vec<OwnedConnection>>() {
        Some(owned) => {
            owned.retain(|owned| !Arc::ptr_eq(&owned.pool, &given.pool));
            owned.push(given);
        }
        None => *slot = Box::new(vec![given]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&'static str]) -> HeaderMap {
        let lines = lines.iter().copied().map(HeaderValue::from_static);
        lines.map(|line| (WWW_AUTHENTICATE, line)).collect()
    }

    #[test]
    fn a_request_authenticates_its_connection_by_its_scheme() {
        for (value, expected) in [
            ("NTLM TlRMTVNTUAAB", true),
            ("negotiate YII=", true),
            ("Kerberos x", true),
            ("Negotiate", true),
            ("NTLM\tx", true),
            ("Basic bnRsbTpudGxt", false),
            ("Bearer NTLM", false),
            ("NTLMv9 x", false),
            ("", false),
        ] {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.clone())]);
            assert_eq!(is_requested(&headers), expected, "{value:?}");
        }
    }

    #[test]
    fn challenges_that_authenticate_the_connection_are_found_and_removed() {
        let cases: [(&[&str], bool, &[&str]); 9] = [
            (&["NTLM"], true, &[]),
            (&["Negotiate, NTLM"], true, &[]),
            (&["negotiate oYG2MIGz"], true, &[]),
            (
                &["Negotiate abc==, Basic realm=\"a\""],
                true,
                &["Basic realm=\"a\""],
            ),
            (
                &["Negotiate", "NTLM", "Bearer realm=\"x\", scope=\"y\""],
                true,
                &["Bearer realm=\"x\", scope=\"y\""],
            ),
            (
                &["Basic realm=\"a\\\", NTLM, \", charset = \"UTF-8\", NTLM"],
                true,
                &["Basic realm=\"a\\\", NTLM, \", charset = \"UTF-8\""],
            ),
            (
                &["Basic realm=\"Negotiate, NTLM\""],
                false,
                &["Basic realm=\"Negotiate, NTLM\""],
            ),
            (
                &["Digest realm=ntlm, nonce=x"],
                false,
                &["Digest realm=ntlm, nonce=x"],
            ),
            (&[], false, &[]),
        ];
        for (lines, demanded, left) in cases {
            let mut headers = headers(lines);
            assert_eq!(is_demanded(&headers), demanded, "{lines:?}");
            assert_eq!(
                remove_challenges(&mut headers),
                !left.is_empty(),
                "{lines:?}"
            );
            let kept: Vec<_> = headers.get_all(WWW_AUTHENTICATE).iter().collect();
            assert_eq!(kept, left, "{lines:?}");
        }
    }
}
