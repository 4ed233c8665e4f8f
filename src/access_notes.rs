//! Access log: one line per request, with the log target `tidegate::access`.
//!
//! The stages write facts about a logged request into its [`AccessLogNotes`]. The gateway writes the line when it has
//! sent the last byte of the response, or when it knows that it cannot send it. A request that is not logged has no
//! notes.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// Facts that the stages collect about one logged request.
#[derive(Debug, Default)]
pub(crate) struct AccessLogNotes {
    fields: Mutex<AccessLogFields>,
    bytes_in: AtomicU64,
}

/// Fields of the access log line that the stages set.
#[derive(Debug, Default)]
pub(crate) struct AccessLogFields {
    /// Number of attempts to send the request to a server.
    pub attempts: u32,
    /// Server of the last attempt.
    pub server: Option<Arc<str>>,
    /// Names of the evaluated limits, each with the key by which the limit counts the request.
    pub limits: SmallVec<[(Arc<str>, CountedBy); 4]>,
    /// Name of the limit that rejected the request, and the exact time to wait.
    pub rejected_by: Option<(Arc<str>, Duration)>,
    /// How the gateway served the idempotency key without an execution.
    pub idempotency: Option<KeyUse>,
    /// Problem type, or `preflight`, if the gateway itself generated the response.
    pub reason: Option<&'static str>,
}

/// The key by which a limit counts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedBy {
    /// The client. The log line contains its address.
    Client,
    /// No key: all requests share one bucket.
    Global,
    /// Hash of any other key, keyed with the secret of the store.
    Hash(u64),
}

/// How the gateway served an idempotency key without an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// The client received the stored response.
    Replayed,
    /// The request waited for an execution in flight.
    Waited,
    /// The outcome of the execution is unknown.
    Unknown,
}

impl AccessLogNotes {
    /// Locks the fields for reading or writing.
    pub(crate) fn fields(&self) -> MutexGuard<'_, AccessLogFields> {
        self.fields.lock()
    }

    /// Adds `bytes` to the length of the request body.
    pub(crate) fn add_bytes_in(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the number of bytes of the request body that were read.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.bytes_in.load(Ordering::Relaxed)
    }
}

impl KeyUse {
    /// Returns the value of the log field `idempotency`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Waited => "waited",
            Self::Unknown => "unknown",
        }
    }
}

/// Text from a request. Its `Display` escapes characters that end a line or change how a terminal shows it.
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
                // Spaces, directional marks, and line and paragraph separators.
                ' '
                | '\u{a0}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}' => write!(f, "{}", character.escape_unicode())?,
                character if character.is_control() => {
                    write!(f, "{}", character.escape_unicode())?;
                }
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
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
            ("/a b\\n", "/a\\u{20}b\\\\n"),
        ] {
            assert_eq!(Escaped(text).to_string(), escaped);
        }
    }
}
