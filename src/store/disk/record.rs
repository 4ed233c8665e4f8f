//! A record as it lies on disk.
//!
//! A version, the record, and a checksum over both and over the name it was written under: a value that
//! was damaged, or that somehow came to stand under another key, is an error and never an answer, nor
//! the absence of one.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Stamp;
use crate::idempotency::{Answer, Fingerprint, State};

/// The version this writes, and the newest it reads.
const VERSION: u8 = 1;

const CHECKSUM: usize = 8;

/// A record as it lies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) outcome: Outcome,
    pub(super) fingerprint: Fingerprint,
    /// When it came to this.
    pub(super) since: Stamp,
    /// When it will be forgotten.
    pub(super) expires: Stamp,
}

/// What became of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Completed(Arc<Answer>),
    Unknown,
    Tombstone,
}

/// What became of an execution, without its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ended {
    Completed,
    Unknown,
    Tombstone,
}

/// A claim as it lies on disk until its execution has an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claimed {
    pub(super) fingerprint: [u8; 16],
    pub(super) since: u64,
    /// How long its record is to be kept, in milliseconds.
    pub(super) ttl: u64,
}

/// Why bytes are no record.
#[derive(Debug, Error)]
pub(super) enum RecordError {
    #[error("it was written by a newer version (format {0}, this one reads up to {VERSION})")]
    Newer(u8),
    #[error("its checksum is wrong")]
    Checksum,
    #[error("it makes no sense: {0}")]
    Malformed(String),
}

#[derive(Serialize, Deserialize)]
struct Written<'a> {
    ended: Ended,
    fingerprint: [u8; 16],
    since: u64,
    expires: u64,
    #[serde(borrow)]
    answer: Option<WrittenAnswer<'a>>,
}

#[derive(Serialize, Deserialize)]
struct WrittenAnswer<'a> {
    status: u16,
    #[serde(borrow)]
    headers: Vec<(&'a str, &'a [u8])>,
    #[serde(with = "serde_bytes")]
    body: &'a [u8],
}

impl Outcome {
    pub(super) fn ended(&self) -> Ended {
        match self {
            Self::Completed(_) => Ended::Completed,
            Self::Unknown => Ended::Unknown,
            Self::Tombstone => Ended::Tombstone,
        }
    }
}

impl From<Ended> for State {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Completed => Self::Completed,
            Ended::Unknown => Self::Unknown,
            Ended::Tombstone => Self::Tombstone,
        }
    }
}

impl Record {
    /// The bytes to be written under `name`.
    pub(super) fn encode(&self, name: &[u8]) -> Vec<u8> {
        let (lines, body);
        let answer = match &self.outcome {
            Outcome::Completed(answer) => {
                body = answer.body();
                lines = answer.lines().collect::<Vec<_>>();
                let headers = lines.iter().map(|(name, value)| (name.as_str(), &**value));
                Some(WrittenAnswer {
                    status: answer.status().as_u16(),
                    headers: headers.collect(),
                    body: &body,
                })
            }
            Outcome::Unknown | Outcome::Tombstone => None,
        };
        let written = Written {
            ended: self.outcome.ended(),
            fingerprint: self.fingerprint.0,
            since: self.since.0,
            expires: self.expires.0,
            answer,
        };
        seal(name, &written)
    }

    /// The record whose bytes were written under `name`.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, RecordError> {
        let written: Written<'_> = open(name, bytes)?;
        let outcome = match (written.ended, written.answer) {
            (Ended::Completed, Some(answer)) => Outcome::Completed(Arc::new(answer.read()?)),
            (Ended::Unknown, None) => Outcome::Unknown,
            (Ended::Tombstone, None) => Outcome::Tombstone,
            (Ended::Completed, None) | (_, Some(_)) => {
                return Err(RecordError::Malformed(
                    "an answer is missing, or too much".into(),
                ));
            }
        };
        Ok(Self {
            outcome,
            fingerprint: Fingerprint(written.fingerprint),
            since: Stamp(written.since),
            expires: Stamp(written.expires),
        })
    }
}

impl Claimed {
    /// The bytes to be written under `name`.
    pub(super) fn encode(&self, name: &[u8]) -> Vec<u8> {
        seal(name, self)
    }

    /// The claim whose bytes were written under `name`.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, RecordError> {
        open(name, bytes)
    }
}

impl WrittenAnswer<'_> {
    fn read(self) -> Result<Answer, RecordError> {
        let malformed = |error: &dyn std::fmt::Display| RecordError::Malformed(error.to_string());
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

fn seal(name: &[u8], value: &impl Serialize) -> Vec<u8> {
    let mut bytes = postcard::to_extend(value, vec![VERSION])
        .expect("numbers, texts and bytes can always be written");
    let checksum = checksum(name, &bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

fn open<'a, T: Deserialize<'a>>(name: &[u8], bytes: &'a [u8]) -> Result<T, RecordError> {
    match bytes.first() {
        None => return Err(RecordError::Checksum),
        Some(&version) if version > VERSION => return Err(RecordError::Newer(version)),
        Some(_) => {}
    }
    let (content, sum) = bytes
        .split_last_chunk::<CHECKSUM>()
        .ok_or(RecordError::Checksum)?;
    if checksum(name, content) != *sum || content.is_empty() {
        return Err(RecordError::Checksum);
    }
    postcard::from_bytes(&content[1..]).map_err(|error| RecordError::Malformed(error.to_string()))
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
    use http::header::SET_COOKIE;

    use super::*;

    fn record() -> Record {
        let mut headers = HeaderMap::new();
        headers.append(SET_COOKIE, HeaderValue::from_static("a=1, b"));
        headers.append("x-odd", HeaderValue::from_bytes(b"\xe9").unwrap());
        headers.append(SET_COOKIE, HeaderValue::from_static("c=2"));
        Record {
            outcome: Outcome::Completed(Arc::new(Answer::new(
                StatusCode::CREATED,
                &headers,
                b"\0\xff body",
            ))),
            fingerprint: Fingerprint([3; 16]),
            since: Stamp(1_700_000_000_000),
            expires: Stamp(1_700_086_400_000),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let completed = record();
        for outcome in [
            completed.outcome.clone(),
            Outcome::Unknown,
            Outcome::Tombstone,
        ] {
            let record = Record {
                outcome,
                ..record()
            };
            assert_eq!(Record::decode(b"k", &record.encode(b"k")).unwrap(), record);
        }
        let claimed = Claimed {
            fingerprint: [9; 16],
            since: 5,
            ttl: 7,
        };
        assert_eq!(
            Claimed::decode(b"k", &claimed.encode(b"k")).unwrap(),
            claimed
        );
    }

    #[test]
    fn a_record_with_any_byte_changed_or_missing_is_an_error() {
        let bytes = record().encode(b"k");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x20;
            assert!(Record::decode(b"k", &damaged).is_err(), "byte {at}");
            assert!(Record::decode(b"k", &bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_record_under_another_name_is_an_error() {
        let bytes = record().encode(b"k");
        assert!(matches!(
            Record::decode(b"l", &bytes),
            Err(RecordError::Checksum)
        ));
    }

    #[test]
    fn a_record_of_a_newer_version_says_so() {
        let mut bytes = record().encode(b"k");
        bytes[0] = VERSION + 1;
        let error = Record::decode(b"k", &bytes).unwrap_err();
        assert!(matches!(error, RecordError::Newer(version) if version == VERSION + 1));
    }
}
