//! Encoding of idempotency records and claims on disk.

use std::convert::Infallible;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Timestamp;
use crate::idempotency::claim::{RecordView, StateView};
use crate::idempotency::{
    ClientHash, ExecutionOutcome, Fingerprint, RecordState, ResponseSummary, StoredResponse,
};
use crate::store::encoding::{DecodeError, EncodedResponse, open, seal};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiskRecord {
    /// Never `InProgress`: an execution in flight is a [`StoredClaim`].
    pub(super) state: RecordState,
    /// If `state` is `Completed`.
    pub(super) response: Option<Arc<StoredResponse>>,
    pub(super) fingerprint: Fingerprint,
    /// The key counts towards this client's share of `max_keys`.
    pub(super) client: ClientHash,
    pub(super) since: Timestamp,
    pub(super) expires: Timestamp,
}

/// Without its response, for lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    pub(super) state: RecordState,
    pub(super) fingerprint: Fingerprint,
    pub(super) since: Timestamp,
    pub(super) expires: Timestamp,
    /// If `state` is `Completed`.
    pub(super) response: Option<ResponseSummary>,
}

/// The claim of an execution in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredClaim {
    pub(super) fingerprint: [u8; 32],
    /// Hash of the client.
    pub(super) client: u64,
    /// In milliseconds of the store clock (see [`Timestamp`]).
    pub(super) since: u64,
    /// TTL of the record, in milliseconds.
    pub(super) ttl: u64,
}

/// Numbers of the states, in records and in the expiry index.
pub(super) mod state_code {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::idempotency::RecordState;

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes the state by reference"
    )]
    pub(in super::super) fn serialize<S: Serializer>(
        state: &RecordState,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u8(match state {
            RecordState::Completed => 0,
            RecordState::Unknown => 1,
            RecordState::Tombstone => 2,
            // Never written. `deserialize` rejects it.
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
            code => Err(D::Error::custom(format_args!(
                "invalid code {code} of a record state"
            ))),
        }
    }
}

/// [`DiskRecord`] as it is serialized.
#[derive(Serialize, Deserialize)]
struct EncodedRecord<'a> {
    #[serde(with = "state_code")]
    state: RecordState,
    fingerprint: [u8; 32],
    client: u64,
    since: u64,
    expires: u64,
    #[serde(borrow)]
    response: Option<EncodedResponse<'a>>,
}

impl DiskRecord {
    pub(super) fn view(&self) -> RecordView<Timestamp, Infallible, &Arc<StoredResponse>> {
        RecordView {
            state: StateView::ended(self.state, self.response.as_ref()),
            fingerprint: self.fingerprint,
            expires: Some(self.expires),
        }
    }

    pub(super) fn into_outcome(self) -> ExecutionOutcome {
        match StateView::<Infallible, _>::ended(self.state, self.response) {
            StateView::Completed(response) => ExecutionOutcome::Completed(response),
            StateView::Tombstone => ExecutionOutcome::Tombstone,
            StateView::Unknown => ExecutionOutcome::Unknown,
        }
    }

    /// The checksum includes the engine key `name`, so a value under a wrong key is detected.
    pub(super) fn encode(&self, name: &[u8]) -> Vec<u8> {
        let sealed = |response: Option<EncodedResponse<'_>>| {
            let written = EncodedRecord {
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

    /// Fails if the checksum does not match.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, DecodeError> {
        let written: EncodedRecord<'_> = open(name, bytes)?;
        if (written.state == RecordState::Completed) != written.response.is_some() {
            return Err(DecodeError::Malformed(
                "a completed record has no response, or another record has one".into(),
            ));
        }
        let response = written.response.map(EncodedResponse::read).transpose()?;
        Ok(Self {
            state: written.state,
            response: response.map(Arc::new),
            fingerprint: Fingerprint::from_bytes(&written.fingerprint),
            client: ClientHash(written.client),
            since: Timestamp(written.since),
            expires: Timestamp(written.expires),
        })
    }
}

impl RecordHead {
    /// Does not copy the response.
    pub(super) fn decode(name: &[u8], bytes: &[u8]) -> Result<Self, DecodeError> {
        let written: EncodedRecord<'_> = open(name, bytes)?;
        let response = written.response.as_ref().map(EncodedResponse::summary);
        Ok(Self {
            state: written.state,
            fingerprint: Fingerprint::from_bytes(&written.fingerprint),
            since: Timestamp(written.since),
            expires: Timestamp(written.expires),
            response: response.transpose()?,
        })
    }
}

impl StoredClaim {
    /// The checksum includes the engine key `name`, so a value under a wrong key is detected.
    pub(super) fn encode(&self, name: &[u8]) -> Vec<u8> {
        seal(name, self)
    }

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

    fn record() -> DiskRecord {
        let mut headers = HeaderMap::new();
        headers.append(SET_COOKIE, HeaderValue::from_static("a=1, b"));
        headers.append("x-odd", HeaderValue::from_bytes(b"\xe9").unwrap());
        headers.append(SET_COOKIE, HeaderValue::from_static("c=2"));
        DiskRecord {
            state: RecordState::Completed,
            response: Some(Arc::new(StoredResponse::new(
                StatusCode::CREATED,
                &headers,
                b"\0\xff body",
            ))),
            fingerprint: Fingerprint::from_bytes(&[3; 32]),
            client: ClientHash(4),
            since: Timestamp(1_700_000_000_000),
            expires: Timestamp(1_700_086_400_000),
        }
    }

    #[test]
    fn records_and_claims_are_decoded_as_they_were_encoded() {
        let ended = [RecordState::Unknown, RecordState::Tombstone].map(|state| DiskRecord {
            state,
            response: None,
            ..record()
        });
        for record in ended.into_iter().chain([record()]) {
            assert_eq!(
                DiskRecord::decode(b"k", &record.encode(b"k")).unwrap(),
                record
            );
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
    fn state_codes_are_those_of_format_2() {
        for (state, code) in [
            (RecordState::Completed, 0),
            (RecordState::Unknown, 1),
            (RecordState::Tombstone, 2),
        ] {
            let record = DiskRecord { state, ..record() };
            assert_eq!(record.encode(b"k")[1], code);
        }
    }

    #[test]
    fn a_record_with_any_byte_changed_or_missing_is_an_error() {
        let bytes = record().encode(b"k");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x20;
            assert!(DiskRecord::decode(b"k", &damaged).is_err(), "byte {at}");
            assert!(
                DiskRecord::decode(b"k", &bytes[..at]).is_err(),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn a_record_under_another_name_is_an_error() {
        let bytes = record().encode(b"k");
        assert!(matches!(
            DiskRecord::decode(b"l", &bytes),
            Err(DecodeError::Checksum)
        ));
    }

    #[test]
    fn a_record_of_another_version_is_an_error_with_that_version() {
        let mut bytes = record().encode(b"k");
        for other in [VERSION - 1, VERSION + 1] {
            bytes[0] = other;
            let error = DiskRecord::decode(b"k", &bytes).unwrap_err();
            assert!(matches!(error, DecodeError::OtherVersion(version) if version == other));
        }
    }
}
