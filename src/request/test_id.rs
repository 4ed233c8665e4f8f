//! Id of a test of the lab, which separates its requests from those of other tests.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

pub(crate) const X_TIDEGATE_TEST: HeaderName = HeaderName::from_static("x-tidegate-test");

const MAX_LENGTH: usize = 64;

/// 1 to 64 letters, digits, dots, dashes, underscores or tildes. An IP address is not valid, because it is the id of
/// the run of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestId(Arc<str>);

impl TestId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let is_valid = (1..=MAX_LENGTH).contains(&text.len())
            && text.bytes().all(is_plain)
            && text.parse::<IpAddr>().is_err();
        is_valid.then(|| Self(text.into()))
    }

    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(&X_TIDEGATE_TEST)?.to_str().ok()?)
    }

    /// For a path of the form `/t/ID/rest`.
    pub(crate) fn split(path: &str) -> Option<(Self, &str)> {
        let rest = path.strip_prefix("/t/")?;
        let (id, rest) = rest.split_at(rest.find('/')?);
        Some((Self::parse(id)?, rest))
    }

    pub(crate) fn text(&self) -> &Arc<str> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_short_and_plain_and_no_address() {
        for id in ["t1", "a-b_c.d~e", &"x".repeat(64)] {
            assert!(TestId::parse(id).is_some(), "{id}");
        }
        for id in ["", "not valid", "a/b", &"x".repeat(65), "10.0.0.2", "::1"] {
            assert!(TestId::parse(id).is_none(), "{id}");
        }
    }

    #[test]
    fn a_path_is_split_after_a_valid_id() {
        let split = |path| TestId::split(path).map(|(id, rest)| (id.text().to_string(), rest));
        assert_eq!(split("/t/a1/v1?q"), Some(("a1".to_owned(), "/v1?q")));
        assert_eq!(split("/t/a1"), None);
        assert_eq!(split("/t//v1"), None);
        assert_eq!(split("/v1/t/a1/"), None);
    }
}
