//! Data for the access log, whose log target is `tidegate::access`.
//!
//! The stages write data about a logged request into its [`AccessLogNotes`]. The gateway writes the line when it has
//! sent the last byte of the response, or when it knows that it cannot. A request that is not logged has no notes.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::client::ClientId;

#[derive(Debug, Default)]
pub(crate) struct AccessLogNotes {
    fields: Mutex<AccessLogFields>,
    bytes_in: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct AccessLogFields {
    pub attempts: u32,
    /// Server of the last attempt.
    pub server: Option<Arc<str>>,
    /// The evaluated rate limits, each with the limit key of the request.
    pub limits: SmallVec<[(Arc<str>, ShownKey); 4]>,
    /// The limit, and the time after which a retry can succeed.
    pub rejected_by: Option<(Arc<str>, Duration)>,
    /// Rate limits in shadow mode that would have rejected the request.
    pub shadow: SmallVec<[Arc<str>; 1]>,
    /// `None` also if no variant of [`KeyUse`] applies.
    pub idempotency: Option<KeyUse>,
    /// Problem type of a response that the gateway generated, or `preflight`.
    pub reason: Option<&'static str>,
}

/// Limit key, as logs and the admin API show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShownKey {
    Client(ClientId),
    Global,
    /// Keyed hash, because the limit key can contain a secret.
    Hash(u64),
    /// The key of a rate limit with `log_key`.
    Value(Arc<str>),
}

impl fmt::Display for ShownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(client) => client.fmt(f),
            Self::Global => f.write_str("global"),
            Self::Hash(hash) => write!(f, "{hash:016x}"),
            Self::Value(value) => f.write_str(value),
        }
    }
}

/// There is no variant for an execution with a known outcome or for a key that the gateway rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    Replayed,
    /// An earlier request with the same key was in flight.
    Waited,
    /// The outcome of the request, or of an earlier one with the same key.
    Unknown,
}

impl AccessLogNotes {
    pub(crate) fn fields(&self) -> MutexGuard<'_, AccessLogFields> {
        self.fields.lock()
    }

    pub(crate) fn add_bytes_in(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn bytes_in(&self) -> u64 {
        self.bytes_in.load(Ordering::Relaxed)
    }
}

impl KeyUse {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Waited => "waited",
            Self::Unknown => "unknown",
        }
    }
}

/// `Display` escapes characters that end a line or change how a terminal shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
        if self.0.bytes().all(is_plain) {
            return f.write_str(self.0);
        }
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                // A space separates the fields of a line.
                character if character == ' ' || is_unprintable(character) => {
                    write!(f, "{}", character.escape_unicode())?;
                }
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// Control characters, directional marks, and line and paragraph separators: they end a line, are invisible, or change
/// how a terminal shows the text after them.
pub(crate) fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{a0}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_change_how_a_line_is_displayed_are_escaped() {
        for (text, escaped) in [
            ("/o/client?a=%20", "/o/client?a=%20"),
            ("/caf\u{e9}/\u{65e5}\u{672c}", "/caf\u{e9}/\u{65e5}\u{672c}"),
            ("/a\nb\r\t\0", "/a\\u{a}b\\u{d}\\u{9}\\u{0}"),
            ("\u{1b}[31m\u{7f}", "\\u{1b}[31m\\u{7f}"),
            ("\u{9b}31m\u{85}", "\\u{9b}31m\\u{85}"),
            (
                "\u{202e}gnp\u{202c}\u{2066}\u{200f}",
                "\\u{202e}gnp\\u{202c}\\u{2066}\\u{200f}",
            ),
            ("a\u{2028}b\u{2029}c", "a\\u{2028}b\\u{2029}c"),
            ("\u{61c}\u{feff}", "\\u{61c}\\u{feff}"),
            (
                "\u{a0}\u{200b}\u{202a}\u{2060}\u{206f}",
                "\\u{a0}\\u{200b}\\u{202a}\\u{2060}\\u{206f}",
            ),
            ("/a b\\n", "/a\\u{20}b\\\\n"),
        ] {
            assert_eq!(Escaped(text).to_string(), escaped);
        }
    }
}
