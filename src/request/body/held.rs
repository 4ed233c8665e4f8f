//! Bytes that were read from the start of a streamed body, and that its next reader gets first.

use bytes::Bytes;
use http_body::SizeHint;

/// If the first part is empty, the second is also empty.
#[derive(Debug, Default)]
pub(super) struct HeldParts([Bytes; 2]);

impl HeldParts {
    pub(super) fn new(first: Bytes, second: Bytes) -> Self {
        Self(if first.is_empty() {
            [second, first]
        } else {
            [first, second]
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0[0].is_empty()
    }

    pub(super) fn take(&mut self) -> Option<Bytes> {
        let [first, second] = &mut self.0;
        let part = std::mem::replace(first, std::mem::take(second));
        (!part.is_empty()).then_some(part)
    }

    pub(super) fn parts(&self) -> [&[u8]; 2] {
        [&self.0[0], &self.0[1]]
    }

    pub(super) fn len(&self) -> usize {
        self.0[0].len() + self.0[1].len()
    }

    /// Together with the rest of the body, whose size is `rest`.
    pub(super) fn size_with(&self, rest: &SizeHint) -> SizeHint {
        let held = self.len() as u64;
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(rest.lower() + held);
        hint
    }
}
