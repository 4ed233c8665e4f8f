//! Encoding of idempotency records and stored responses, on disk and in Redis.
//!
//! The checksum covers the format version, the value and the name under which the value is stored. A value that is
//! damaged, of another version, or stored under another name is never sent as a response, and never treated as absent.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::idempotency::{ResponseSummary, StoredResponse};

/// The gateway reads no other version.
pub(in crate::store) const VERSION: u8 = 2;

/// In bytes.
const CHECKSUM: usize = 8;

#[derive(Debug, Error)]
pub(in crate::store) enum DecodeError {
    #[error(
        "the stored value has format {0}, but this version of the gateway reads only format {VERSION}; run the \
         gateway version that wrote the value until the value has expired"
    )]
    OtherVersion(u8),
    #[error("the stored value is damaged: its checksum does not match")]
    Checksum,
    #[error("the stored value is damaged: {0}")]
    Malformed(String),
}

/// Without version and checksum.
#[derive(Serialize, Deserialize)]
pub(in crate::store) struct EncodedResponse<'a> {
    status: u16,
    #[serde(borrow)]
    headers: Vec<(&'a str, &'a [u8])>,
    #[serde(with = "serde_bytes")]
    body: &'a [u8],
}

impl EncodedResponse<'_> {
    /// `write` gets a serialized form that borrows from `response`.
    pub(in crate::store) fn of<T>(
        response: &StoredResponse,
        write: impl FnOnce(EncodedResponse<'_>) -> T,
    ) -> T {
        let body = response.body();
        let lines: Vec<_> = response.lines().collect();
        let headers = lines.iter().map(|(name, value)| (name.as_str(), &**value));
        write(EncodedResponse {
            status: response.status().as_u16(),
            headers: headers.collect(),
            body: &body,
        })
    }

    /// Does not copy the body. Fails if the status is not valid.
    pub(in crate::store) fn summary(&self) -> Result<ResponseSummary, DecodeError> {
        summary(self.status, self.body.len())
    }

    /// Fails if the status or a header field is not valid.
    pub(in crate::store) fn read(self) -> Result<StoredResponse, DecodeError> {
        let malformed = |error: &dyn std::fmt::Display| DecodeError::Malformed(error.to_string());
        let mut headers = HeaderMap::with_capacity(self.headers.len());
        for (name, value) in self.headers {
            let name =
                HeaderName::from_bytes(name.as_bytes()).map_err(|error| malformed(&error))?;
            let value = HeaderValue::from_bytes(value).map_err(|error| malformed(&error))?;
            headers.append(name, value);
        }
        let status = StatusCode::from_u16(self.status).map_err(|error| malformed(&error))?;
        Ok(StoredResponse::new(status, &headers, self.body))
    }
}

/// Status and body length from the first bytes of an encoding. `None` if `bytes` ends before the body. The checksum
/// follows the body, so it is not verified.
pub(in crate::store) fn summary_of_start(
    bytes: &[u8],
) -> Result<Option<ResponseSummary>, DecodeError> {
    /// [`EncodedResponse`], with the length of the body instead of the body.
    type Start<'a> = (u16, Vec<(&'a str, &'a [u8])>, usize);
    match bytes.split_first() {
        Some((&version, _)) if version != VERSION => Err(DecodeError::OtherVersion(version)),
        Some((_, start)) => match postcard::take_from_bytes::<Start<'_>>(start) {
            Ok(((status, _, body_bytes), _)) => summary(status, body_bytes).map(Some),
            Err(postcard::Error::DeserializeUnexpectedEnd) => Ok(None),
            Err(error) => Err(DecodeError::Malformed(error.to_string())),
        },
        None => Ok(None),
    }
}

fn summary(status: u16, body_bytes: usize) -> Result<ResponseSummary, DecodeError> {
    let status =
        StatusCode::from_u16(status).map_err(|error| DecodeError::Malformed(error.to_string()))?;
    Ok(ResponseSummary { status, body_bytes })
}

/// Only [`open`] with the same `name` decodes the result.
pub(in crate::store) fn seal(name: &[u8], value: &impl Serialize) -> Vec<u8> {
    let mut bytes = postcard::to_extend(value, vec![VERSION])
        .expect("postcard encodes numbers, strings and bytes");
    let checksum = checksum(name, &bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// Decodes a value that [`seal`] encoded for `name`.
pub(in crate::store) fn open<'a, T: Deserialize<'a>>(
    name: &[u8],
    bytes: &'a [u8],
) -> Result<T, DecodeError> {
    match bytes.first() {
        None => return Err(DecodeError::Checksum),
        Some(&version) if version != VERSION => return Err(DecodeError::OtherVersion(version)),
        Some(_) => {}
    }
    let (content, sum) = bytes
        .split_last_chunk::<CHECKSUM>()
        .ok_or(DecodeError::Checksum)?;
    if checksum(name, content) != *sum || content.is_empty() {
        return Err(DecodeError::Checksum);
    }
    postcard::from_bytes(&content[1..]).map_err(|error| DecodeError::Malformed(error.to_string()))
}

fn checksum(name: &[u8], content: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name);
    hasher.update(content);
    let mut sum = [0; CHECKSUM];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..CHECKSUM]);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_size_are_read_from_the_start_of_a_sealed_response() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_bytes(b"\xff").unwrap());
        headers.append("x-b", HeaderValue::from_static("2"));
        let response = StoredResponse::new(StatusCode::CREATED, &headers, &vec![b'.'; 70_000]);
        let sealed = EncodedResponse::of(&response, |written| seal(b"k", &written));
        let expected = ResponseSummary::from(&response);
        assert_eq!(expected.body_bytes, 70_000);
        let body = sealed.len() - CHECKSUM - 70_000;
        for start in 0..body {
            assert_eq!(summary_of_start(&sealed[..start]).unwrap(), None);
        }
        for start in [body, body + 1, sealed.len()] {
            assert_eq!(summary_of_start(&sealed[..start]).unwrap(), Some(expected));
        }
        let written: EncodedResponse<'_> = open(b"k", &sealed).unwrap();
        assert_eq!(written.summary().unwrap(), expected);
    }

    #[test]
    fn a_value_of_an_older_or_newer_version_is_an_error() {
        let response = StoredResponse::new(StatusCode::CREATED, &HeaderMap::new(), b"made");
        for version in [0, VERSION - 1, VERSION + 1, u8::MAX] {
            let mut bytes = EncodedResponse::of(&response, |written| seal(b"k", &written));
            bytes.truncate(bytes.len() - CHECKSUM);
            bytes[0] = version;
            // The test appends a valid checksum, so only the version can cause the error.
            bytes.extend_from_slice(&checksum(b"k", &bytes));
            let opened = open::<EncodedResponse<'_>>(b"k", &bytes).err().unwrap();
            let summary = summary_of_start(&bytes).unwrap_err();
            for error in [opened, summary] {
                let message = error.to_string();
                let expected = format!("the stored value has format {version}, but this version");
                assert!(message.starts_with(&expected), "{message}");
            }
        }
    }
}
