//! Encoding of stored values, on disk and in Redis.
//!
//! A value is written as a version, the value, and a checksum over both and over the name of the value. A value that
//! is damaged, is stored under another name, or has another version is an error. It is never read as a response or
//! as the absence of one.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::idempotency::{Answer, ResponseSummary};

/// The version that is written, and the only one that is read.
pub(in crate::store) const VERSION: u8 = 2;

const CHECKSUM: usize = 8;

/// Why bytes are not what was written.
#[derive(Debug, Error)]
pub(in crate::store) enum WrittenError {
    #[error(
        "it has format {0}, and this version of the gateway reads format {VERSION}; use the version that wrote it \
         until it has expired"
    )]
    OtherVersion(u8),
    #[error("its checksum is wrong")]
    Checksum,
    #[error("it makes no sense: {0}")]
    Malformed(String),
}

/// An answer as it is written down.
#[derive(Serialize, Deserialize)]
pub(in crate::store) struct WrittenAnswer<'a> {
    status: u16,
    #[serde(borrow)]
    headers: Vec<(&'a str, &'a [u8])>,
    #[serde(with = "serde_bytes")]
    body: &'a [u8],
}

impl WrittenAnswer<'_> {
    /// Hands `answer` over as it is written down.
    pub(in crate::store) fn of<T>(
        answer: &Answer,
        write: impl FnOnce(WrittenAnswer<'_>) -> T,
    ) -> T {
        let body = answer.body();
        let lines: Vec<_> = answer.lines().collect();
        let headers = lines.iter().map(|(name, value)| (name.as_str(), &**value));
        write(WrittenAnswer {
            status: answer.status().as_u16(),
            headers: headers.collect(),
            body: &body,
        })
    }

    /// What a lookup tells of the response, without a copy of it.
    pub(in crate::store) fn summary(&self) -> Result<ResponseSummary, WrittenError> {
        summary(self.status, self.body.len())
    }

    /// The answer that was written down.
    pub(in crate::store) fn read(self) -> Result<Answer, WrittenError> {
        let malformed = |error: &dyn std::fmt::Display| WrittenError::Malformed(error.to_string());
        let mut headers = HeaderMap::with_capacity(self.headers.len());
        for (name, value) in self.headers {
            let name =
                HeaderName::from_bytes(name.as_bytes()).map_err(|error| malformed(&error))?;
            let value = HeaderValue::from_bytes(value).map_err(|error| malformed(&error))?;
            headers.append(name, value);
        }
        let status = StatusCode::from_u16(self.status).map_err(|error| malformed(&error))?;
        Ok(Answer::new(status, &headers, self.body))
    }
}

/// What a lookup tells of a sealed response, read from its first bytes; `None` if they end before the body.
/// The checksum, which is at the end, is not verified.
pub(in crate::store) fn summary_of_start(
    bytes: &[u8],
) -> Result<Option<ResponseSummary>, WrittenError> {
    /// The fields of [`WrittenAnswer`] up to the length of its body.
    type Start<'a> = (u16, Vec<(&'a str, &'a [u8])>, usize);
    match bytes.split_first() {
        Some((&version, _)) if version != VERSION => Err(WrittenError::OtherVersion(version)),
        Some((_, start)) => match postcard::take_from_bytes::<Start<'_>>(start) {
            Ok(((status, _, body_bytes), _)) => summary(status, body_bytes).map(Some),
            Err(postcard::Error::DeserializeUnexpectedEnd) => Ok(None),
            Err(error) => Err(WrittenError::Malformed(error.to_string())),
        },
        None => Ok(None),
    }
}

fn summary(status: u16, body_bytes: usize) -> Result<ResponseSummary, WrittenError> {
    let status =
        StatusCode::from_u16(status).map_err(|error| WrittenError::Malformed(error.to_string()))?;
    Ok(ResponseSummary { status, body_bytes })
}

/// The bytes to be written under `name`.
pub(in crate::store) fn seal(name: &[u8], value: &impl Serialize) -> Vec<u8> {
    let mut bytes = postcard::to_extend(value, vec![VERSION])
        .expect("numbers, texts and bytes can always be written");
    let checksum = checksum(name, &bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// The value whose bytes were written under `name`.
pub(in crate::store) fn open<'a, T: Deserialize<'a>>(
    name: &[u8],
    bytes: &'a [u8],
) -> Result<T, WrittenError> {
    match bytes.first() {
        None => return Err(WrittenError::Checksum),
        Some(&version) if version != VERSION => return Err(WrittenError::OtherVersion(version)),
        Some(_) => {}
    }
    let (content, sum) = bytes
        .split_last_chunk::<CHECKSUM>()
        .ok_or(WrittenError::Checksum)?;
    if checksum(name, content) != *sum || content.is_empty() {
        return Err(WrittenError::Checksum);
    }
    postcard::from_bytes(&content[1..]).map_err(|error| WrittenError::Malformed(error.to_string()))
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
    fn the_start_of_a_sealed_response_tells_its_status_and_size() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_bytes(b"\xff").unwrap());
        headers.append("x-b", HeaderValue::from_static("2"));
        let response = Answer::new(StatusCode::CREATED, &headers, &vec![b'.'; 70_000]);
        let sealed = WrittenAnswer::of(&response, |written| seal(b"k", &written));
        let expected = ResponseSummary::from(&response);
        assert_eq!(expected.body_bytes, 70_000);
        let body = sealed.len() - CHECKSUM - 70_000;
        for start in 0..body {
            assert_eq!(summary_of_start(&sealed[..start]).unwrap(), None);
        }
        for start in [body, body + 1, sealed.len()] {
            assert_eq!(summary_of_start(&sealed[..start]).unwrap(), Some(expected));
        }
        let written: WrittenAnswer<'_> = open(b"k", &sealed).unwrap();
        assert_eq!(written.summary().unwrap(), expected);
    }

    #[test]
    fn a_value_of_an_older_or_newer_version_is_an_error() {
        let response = Answer::new(StatusCode::CREATED, &HeaderMap::new(), b"made");
        for version in [0, VERSION - 1, VERSION + 1, u8::MAX] {
            let mut bytes = WrittenAnswer::of(&response, |written| seal(b"k", &written));
            bytes.truncate(bytes.len() - CHECKSUM);
            bytes[0] = version;
            // As the other version would have written it.
            bytes.extend_from_slice(&checksum(b"k", &bytes));
            let opened = open::<WrittenAnswer<'_>>(b"k", &bytes).err().unwrap();
            let summary = summary_of_start(&bytes).unwrap_err();
            for error in [opened, summary] {
                let message = error.to_string();
                let expected = format!("it has format {version}, and this version");
                assert!(message.starts_with(&expected), "{message}");
            }
        }
    }
}
