//! The access log: one line per request, with the target `tidegate::access`.
//!
//! The stages of a logged request write what they find into its [`Notes`]. The line is written when the last byte
//! of the response is sent, or when it is known that it will not be. A request that is not logged has no notes.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

/// What the stages find out about a logged request.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    facts: Mutex<Facts>,
    bytes_in: AtomicU64,
}

/// The notes of the stages.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Attempts to send the request to a server.
    pub attempts: u32,
    /// The server of the last attempt.
    pub server: Option<Arc<str>>,
    /// The limits that were evaluated, and by what each counts the request.
    pub limits: SmallVec<[(Arc<str>, CountedBy); 4]>,
    /// The limit that rejected the request, and the exact wait.
    pub rejected_by: Option<(Arc<str>, Duration)>,
    /// How an idempotency key was served without an execution.
    pub idempotency: Option<KeyUse>,
    /// The problem type of a response that the gateway made.
    pub reason: Option<&'static str>,
}

/// What a limit counts a request by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedBy {
    /// The client, which the line names.
    Client,
    /// Nothing: all requests share one bucket.
    Global,
    /// Something else. This is its hash, keyed with the secret of the store.
    Hash(u64),
}

/// How an idempotency key was served without an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// The response is the recorded one.
    Replayed,
    /// The request waited for an execution in flight.
    Waited,
    /// Whether the key was executed is unknown.
    Unknown,
}

impl Notes {
    /// Returns the notes, to be read or changed.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock()
    }

    /// Counts bytes of the request body.
    pub(crate) fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns how many bytes of the request body were read.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.bytes_in.load(Ordering::Relaxed)
    }
}

impl KeyUse {
    /// Returns the value of the field `idempotency`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Waited => "waited",
            Self::Unknown => "unknown",
        }
    }
}

/// Text from a request, without characters that change how a line is displayed or where it ends.
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
                // White space, directional marks, and line and paragraph separators.
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
