//! Id of a distributed trace in `traceparent` (W3C Trace Context). The gateway forwards the header and creates none.

use http::HeaderValue;

/// 32 hexadecimal digits in lower case, not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceId([u8; 32]);

impl TraceId {
    pub(crate) fn of(traceparent: &HeaderValue) -> Option<Self> {
        let is_hex = |text: &[u8]| {
            let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            text.iter().all(digit)
        };
        let mut parts = traceparent.as_bytes().split(|&byte| byte == b'-');
        let (version, id) = (parts.next()?, parts.next()?);
        let (parent, flags) = (parts.next()?, parts.next()?);
        // Later versions can have further parts.
        let is_valid = [version, id, parent, flags].iter().all(|part| is_hex(part))
            && (version.len(), parent.len(), flags.len()) == (2, 16, 2)
            && version != b"ff"
            && (version != b"00" || parts.next().is_none());
        let id: [u8; 32] = id.try_into().ok()?;
        (is_valid && id != [b'0'; 32]).then_some(Self(id))
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.0).expect("hexadecimal digits are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_traceparent_has_an_id() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (value, expected) in [
            (format!("00-{id}-00f067aa0ba902b7-01"), Some(id)),
            (format!("01-{id}-00f067aa0ba902b7-01-more"), Some(id)),
            (format!("00-{id}-00f067aa0ba902b7-01-more"), None),
            (format!("ff-{id}-00f067aa0ba902b7-01"), None),
            (
                format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
                None,
            ),
            (format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), None),
            (format!("00-{}-00f067aa0ba902b7-01", &id[1..]), None),
            (format!("00-{id}-00f067aa0ba902b-01"), None),
            (format!("00-{id}"), None),
            (String::new(), None),
        ] {
            let found = TraceId::of(&value.parse().unwrap());
            assert_eq!(found.as_ref().map(TraceId::as_str), expected, "{value}");
        }
    }
}
