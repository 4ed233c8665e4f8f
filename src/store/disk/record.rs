//! A record as it lies on disk.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Stamp;
use crate::idempotency::{Answer, ClientHash, Fingerprint, ResponseSummary, State};
use crate::store::written::{WrittenAnswer, WrittenError, open, seal};

/// A record as it lies on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) outcome: Outcome,
    pub(super) fingerprint: Fingerprint,
    /// The client that sent the request.
    pub(super) client: ClientHash,
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

/// A record without its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) ended: Ended,
    pub(super) fingerprint: Fingerprint,
    /// When the record reached its state.
    pub(super) since: Stamp,
    /// When the record expires.
    pub(super) expires: Stamp,
    /// What a lookup tells of the response of a completed record.
    pub(super) response: Option<ResponseSummary>,
}

/// A claim as it lies on disk until its execution has an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claimed {
    pub(super) fingerprint: [u8; 32],
    /// The hash of the client that sent the request.
    pub(super) client: u64,
    pub(super) since: u64,
    /// How long its record is to be kept, in milliseconds.
    pub(super) ttl: u64,
}

#[derive(Serialize, Deserialize)]
struct Written<'a> {
    ended: Ended,
    fingerprint: [u8; 32],
    client: u64,
    since: u64,
    expires: u64,
    #[serde(borrow)]
    answer: Option<WrittenAnswer<'a>>,
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
        let sealed = |answer: Option<WrittenAnswer<'_>>| {
            let written = Written {
                ended: self.outcome.ended(),
                fingerprint: self.fingerprint.to_bytes(),
                client: self.client.0,
                since: self.since.0,
                expires: self.expires.0,
                answer,
            };
            seal(name, &written)
        };
        match &self.outcome {
            Outcome::Completed(answer) => WrittenAnswer::of(answer, |answer| sealed(Some(answer))),
            Outcome::Unknown | Outcome::Tombstone => sealed(None),
        }
    }

    /// The record whose bytes were written under `name`.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, WrittenError> {
        let written: Written<'_> = open(name, bytes)?;
        let outcome = match (written.ended, written.answer) {
            (Ended::Completed, Some(answer)) => Outcome::Completed(Arc::new(answer.read()?)),
            (Ended::Unknown, None) => Outcome::Unknown,
            (Ended::Tombstone, None) => Outcome::Tombstone,
            (Ended::Completed, None) | (_, Some(_)) => {
                return Err(WrittenError::Malformed(
                    "an answer is missing, or too much".into(),
                ));
            }
        };
        Ok(Self {
            outcome,
            fingerprint: Fingerprint::from_bytes(&written.fingerprint),
            client: ClientHash(written.client),
            since: Stamp(written.since),
            expires: Stamp(written.expires),
        })
    }
}

impl Head {
    /// Reads the record whose bytes were written under `name`, without a copy of its response.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, WrittenError> {
        let written: Written<'_> = open(name, bytes)?;
        let response = written.answer.as_ref().map(WrittenAnswer::summary);
        Ok(Self {
            ended: written.ended,
            fingerprint: Fingerprint::from_bytes(&written.fingerprint),
            since: Stamp(written.since),
            expires: Stamp(written.expires),
            response: response.transpose()?,
        })
    }
}

impl Claimed {
    /// The bytes to be written under `name`.
    pub(super) fn encode(&self, name: &[u8]) -> Vec<u8> {
        seal(name, self)
    }

    /// The claim whose bytes were written under `name`.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, WrittenError> {
        open(name, bytes)
    }
}

#[cfg(test)]
mod tests {
    use http::header::SET_COOKIE;
    use http::{HeaderMap, HeaderValue, StatusCode};

    use super::*;
    use crate::store::written::VERSION;

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
            fingerprint: Fingerprint::from_bytes(&[3; 32]),
            client: ClientHash(4),
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
            fingerprint: [9; 32],
            client: 3,
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
            Err(WrittenError::Checksum)
        ));
    }

    #[test]
    fn a_record_of_another_version_is_an_error_that_names_it() {
        let mut bytes = record().encode(b"k");
        for other in [VERSION - 1, VERSION + 1] {
            bytes[0] = other;
            let error = Record::decode(b"k", &bytes).unwrap_err();
            assert!(matches!(error, WrittenError::OtherVersion(version) if version == other));
        }
    }
}
