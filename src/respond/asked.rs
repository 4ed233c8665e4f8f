//! What a request says about the form of a refusal, kept for one that comes late.

use http::header::{ACCEPT, ORIGIN};
use http::{HeaderMap, HeaderValue};

/// What a request says about the form of a refusal.
#[derive(Clone, Debug)]
pub struct Asked {
    accept: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl Asked {
    /// What these headers say about it.
    pub fn of(headers: &HeaderMap) -> Self {
        Self {
            accept: headers.get(ACCEPT).cloned(),
            origin: headers.get(ORIGIN).cloned(),
        }
    }

    /// The same, as headers.
    pub fn headers(&self) -> HeaderMap {
        let kept = [(ACCEPT, &self.accept), (ORIGIN, &self.origin)];
        kept.into_iter()
            .filter_map(|(name, value)| Some((name, value.clone()?)))
            .collect()
    }
}
