//! Records and claims as they are stored on disk.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Stamp;
use crate::idempotency::claim::RecordView;
use crate::idempotency::{
    ClientHash, ExecutionOutcome, Fingerprint, RecordState, ResponseSummary, StoredResponse,
};
use crate::store::encoding::{DecodeError, EncodedResponse, open, seal};

/// A record on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Not in progress: a claim is stored as [`StoredClaim`].
    pub(super) state: RecordState,
    /// The stored response, if the state is completed.
    pub(super) response: Option<Arc<StoredResponse>>,
    pub(super) fingerprint: Fingerprint,
    /// The client that sent the request.
    pub(super) client: ClientHash,
    /// When the record reached its state.
    pub(super) since: Stamp,
    /// When the record expires.
    pub(super) expires: Stamp,
}

/// A record without its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    pub(super) state: RecordState,
    pub(super) fingerprint: Fingerprint,
    /// When the record reached its state.
    pub(super) since: Stamp,
    /// When the record expires.
    pub(super) expires: Stamp,
    /// Summary of the stored response, if the record is completed.
    pub(super) response: Option<ResponseSummary>,
}

/// A claim on disk, until its execution ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredClaim {
    pub(super) fingerprint: [u8; 32],
    /// The hash of the client that sent the request.
    pub(super) client: u64,
    pub(super) since: u64,
    /// How long its record is stored, in milliseconds.
    pub(super) ttl: u64,
}

/// The codes of states in records and in the index of expiries.
pub(super) mod state_code {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::idempotency::RecordState;

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde calls it with a reference"
    )]
    pub(in super::super) fn serialize<S: Serializer>(
        state: &RecordState,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u8(match state {
            RecordState::Completed => 0,
            RecordState::Unknown => 1,
            RecordState::Tombstone => 2,
            // A claim in progress is not a record. No record decodes to it.
            RecordState::InProgress => u8::MAX,
        })
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<RecordState, D::Error> {
        match u8::deserialize(from)? {
            0 => Ok(RecordState::Completed),
            1 => Ok(RecordState::Unknown),
            2 => Ok(RecordState::Tombstone),
            code => Err(D::Error::custom(format_args!("{code} is not a state"))),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Written<'a> {
    #[serde(with = "state_code")]
    state: RecordState,
    fingerprint: [u8; 32],
    client: u64,
    since: u64,
    expires: u64,
    #[serde(borrow)]
    response: Option<EncodedResponse<'a>>,
}

impl Record {
    pub(super) fn view(&self) -> RecordView<'_, Stamp> {
        RecordView::ended(self.state, &self.fingerprint, self.expires)
    }

    /// Returns the outcome that led to the record.
    pub(super) fn into_outcome(self) -> ExecutionOutcome {
        match (self.state, self.response) {
            (RecordState::Completed, Some(response)) => ExecutionOutcome::Completed(response),
            (RecordState::Completed | RecordState::Tombstone, _) => ExecutionOutcome::Tombstone,
            (RecordState::Unknown | RecordState::InProgress, _) => ExecutionOutcome::Unknown,
        }
    }

    /// Encodes the value for storage under `name`.
    pub(super) fn encode(&self, name: &[u8]) -> Vec<u8> {
        let sealed = |response: Option<EncodedResponse<'_>>| {
            let written = Written {
                state: self.state,
                fingerprint: self.fingerprint.to_bytes(),
                client: self.client.0,
                since: self.since.0,
                expires: self.expires.0,
                response,
            };
            seal(name, &written)
        };
        match &self.response {
            Some(response) => EncodedResponse::of(response, |response| sealed(Some(response))),
            None => sealed(None),
        }
    }

    /// Decodes the record stored under `name`.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, DecodeError> {
        let written: Written<'_> = open(name, bytes)?;
        if (written.state == RecordState::Completed) != written.response.is_some() {
            return Err(DecodeError::Malformed(
                "a response is missing, or too much".into(),
            ));
        }
        let response = written.response.map(EncodedResponse::read).transpose()?;
        Ok(Self {
            state: written.state,
            response: response.map(Arc::new),
            fingerprint: Fingerprint::from_bytes(&written.fingerprint),
            client: ClientHash(written.client),
            since: Stamp(written.since),
            expires: Stamp(written.expires),
        })
    }
}

impl RecordHead {
    /// Reads the record whose bytes were written under `name`, without a copy of its response.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, DecodeError> {
        let written: Written<'_> = open(name, bytes)?;
        let response = written.response.as_ref().map(EncodedResponse::summary);
        Ok(Self {
            state: written.state,
            fingerprint: Fingerprint::from_bytes(&written.fingerprint),
            since: Stamp(written.since),
            expires: Stamp(written.expires),
            response: response.transpose()?,
        })
    }
}

impl StoredClaim {
    /// Encodes the value for storage under `name`.
    pub(super) fn encode(&self, name: &[u8]) -> Vec<u8> {
        seal(name, self)
    }

    /// Decodes the claim stored under `name`.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, DecodeError> {
        open(name, bytes)
    }
}

#[cfg(test)]
mod tests {
    use http::header::SET_COOKIE;
    use http::{HeaderMap, HeaderValue, StatusCode};

    use super::*;
    use crate::store::encoding::VERSION;

    fn record() -> Record {
        let mut headers = HeaderMap::new();
        headers.append(SET_COOKIE, HeaderValue::from_static("a=1, b"));
        headers.append("x-odd", HeaderValue::from_bytes(b"\xe9").unwrap());
        headers.append(SET_COOKIE, HeaderValue::from_static("c=2"));
        Record {
            state: RecordState::Completed,
            response: Some(Arc::new(StoredResponse::new(
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
        let ended = [RecordState::Unknown, RecordState::Tombstone].map(|state| Record {
            state,
            response: None,
            ..record()
        });
        for record in ended.into_iter().chain([record()]) {
            assert_eq!(Record::decode(b"k", &record.encode(b"k")).unwrap(), record);
        }
        let claimed = StoredClaim {
            fingerprint: [9; 32],
            client: 3,
            since: 5,
            ttl: 7,
        };
        assert_eq!(
            StoredClaim::decode(b"k", &claimed.encode(b"k")).unwrap(),
            claimed
        );
    }

    #[test]
    fn the_codes_of_states_are_those_of_format_2() {
        for (state, code) in [
            (RecordState::Completed, 0),
            (RecordState::Unknown, 1),
            (RecordState::Tombstone, 2),
        ] {
            let record = Record { state, ..record() };
            assert_eq!(record.encode(b"k")[1], code);
        }
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
            Err(DecodeError::Checksum)
        ));
    }

    #[test]
    fn a_record_of_another_version_is_an_error_that_names_it() {
        let mut bytes = record().encode(b"k");
        for other in [VERSION - 1, VERSION + 1] {
            bytes[0] = other;
            let error = Record::decode(b"k", &bytes).unwrap_err();
            assert!(matches!(error, DecodeError::OtherVersion(version) if version == other));
        }
    }
}
