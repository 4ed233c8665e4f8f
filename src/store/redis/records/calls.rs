//! Calls of the scripts of idempotency records, and their replies.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use super::super::script::{CLAIM, Call, FREE, READ, RELEASE, RENEW, SETTLE};
use super::names::{OwnerToken, RecordNames};
use crate::idempotency::{
    ClaimRejection, ClaimRequest, ClaimToken, ClientHash, Fingerprint, Mismatch, OnUnknown,
    RecordId, RecordState, ResponseSummary, StoreError, StoredResponse,
};
use crate::store::encoding::{DecodeError, EncodedResponse, open, seal, summary_of_start};

/// How long a cancelled claim can still arrive at Redis, in milliseconds.
const LATE_CLAIM: u32 = 120_000;

/// First bytes of a stored response, which usually include its status and headers.
pub(super) const RESPONSE_START: i64 = 4 << 10;

pub(super) const WHOLE_RESPONSE: i64 = -1;

#[derive(Debug)]
pub(super) enum ClaimReply {
    /// With the client of the record that the claim replaces, if any.
    Won(Option<ClientHash>),
    Replay(Vec<u8>),
    InFlight(OwnerToken),
    Rejected(ClaimRejection),
    /// The caller knows the maximum.
    ClientFull,
    Cancelled,
}

#[derive(Debug)]
pub(super) struct RedisRecord {
    pub(super) state: RecordState,
    pub(super) owner: OwnerToken,
    pub(super) fingerprint: Fingerprint,
    pub(super) age: Duration,
    pub(super) expires_in: Duration,
    /// Of the encoded response.
    pub(super) response_bytes: u64,
    /// The encoded response or its first bytes, if the call requested it.
    pub(super) response: Option<Vec<u8>>,
}

/// `None` if Redis has no such record.
#[derive(Debug)]
pub(super) struct ReadReply(pub(super) Option<RedisRecord>);

/// `counted` states whether the record stores the client. `client_is_full` rejects the claim of a key without a record.
pub(super) fn claim(
    names: &RecordNames<'_>,
    request: &ClaimRequest,
    owner: OwnerToken,
    lease: Duration,
    counted: bool,
    client_is_full: bool,
) -> Call {
    let id = request.id;
    let keys = [
        names.record(id),
        names.scope(id.scope),
        names.cancellation(id.scope, owner),
    ];
    Call::new(&CLAIM, &keys)
        .arg(&request.fingerprint.to_bytes())
        .arg(&owner.to_bytes())
        .arg(millis(lease))
        .arg(millis(request.settings.ttl))
        .arg(u8::from(request.settings.on_unknown == OnUnknown::Release))
        .arg(request.settings.max_keys_per_scope.get())
        .arg(&id.key.0)
        .arg(client_field(request.client, counted))
        .arg(u8::from(client_is_full))
}

pub(super) fn settle(
    names: &RecordNames<'_>,
    token: &ClaimToken,
    owner: OwnerToken,
    state: RecordState,
    response: Option<&StoredResponse>,
    counted: bool,
) -> Call {
    let id = token.request.id;
    let name = id.to_bytes();
    let call =
        Call::new(&SETTLE, &[names.record(id), names.scope(id.scope)]).arg(&owner.to_bytes());
    let response =
        response.map(|response| EncodedResponse::of(response, |response| seal(&name, &response)));
    call.arg(letter(state))
        .arg(millis(token.request.settings.ttl))
        .arg(&token.request.fingerprint.to_bytes())
        .arg(&id.key.0)
        .arg(response.unwrap_or_default())
        .arg(client_field(token.request.client, counted))
}

/// With `may_arrive_late`, a claim that is not yet in Redis is cancelled when it arrives.
pub(super) fn release(
    names: &RecordNames<'_>,
    id: RecordId,
    owner: OwnerToken,
    may_arrive_late: bool,
) -> Call {
    let keys = [
        names.record(id),
        names.scope(id.scope),
        names.cancellation(id.scope, owner),
    ];
    Call::new(&RELEASE, &keys)
        .arg(&owner.to_bytes())
        .arg(&id.key.0)
        .arg(if may_arrive_late { LATE_CLAIM } else { 0 })
}

pub(super) fn renew(
    names: &RecordNames<'_>,
    id: RecordId,
    owner: OwnerToken,
    lease: Duration,
) -> Call {
    Call::new(&RENEW, &[names.record(id), names.scope(id.scope)])
        .arg(&owner.to_bytes())
        .arg(millis(lease))
        .arg(&id.key.0)
}

/// `bytes` is how many bytes of the response to read, or [`WHOLE_RESPONSE`].
pub(super) fn read(names: &RecordNames<'_>, id: RecordId, bytes: i64) -> Call {
    Call::new(&READ, &[names.record(id)]).arg(bytes)
}

pub(super) fn free(names: &RecordNames<'_>, id: RecordId) -> Call {
    Call::new(&FREE, &[names.record(id), names.scope(id.scope)]).arg(&id.key.0)
}

/// Fails if the response is damaged or belongs to another record.
pub(super) fn decode_response(
    id: RecordId,
    bytes: &[u8],
) -> Result<Arc<StoredResponse>, StoreError> {
    let decode = || -> Result<StoredResponse, DecodeError> {
        open::<EncodedResponse<'_>>(&id.to_bytes(), bytes)?.read()
    };
    decode().map(Arc::new).map_err(undecodable)
}

/// Returns `None` if `bytes` ends before the body.
pub(super) fn decode_start(bytes: &[u8]) -> Result<Option<ResponseSummary>, StoreError> {
    summary_of_start(bytes).map_err(undecodable)
}

#[expect(clippy::needless_pass_by_value, reason = "passed to map_err")]
fn undecodable(error: DecodeError) -> StoreError {
    StoreError::new(format!(
        "cannot decode the idempotency record in Redis: {error}"
    ))
}

fn letter(state: RecordState) -> &'static str {
    match state {
        RecordState::InProgress => "p",
        RecordState::Completed => "c",
        RecordState::Unknown => "u",
        RecordState::Tombstone => "t",
    }
}

/// Empty if the keys of clients are not counted.
fn client_field(client: ClientHash, counted: bool) -> Vec<u8> {
    if counted {
        client.0.to_be_bytes().to_vec()
    } else {
        Vec::new()
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl FromRedisValue for ClaimReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(parts) = value else {
            return Err("the reply of claim.lua is not an array".into());
        };
        let mut parts = parts.into_iter();
        let code = u8::from_redis_value(parts.next().unwrap_or(Value::Nil))?;
        let detail = parts.next().unwrap_or(Value::Nil);
        Ok(match code {
            0 => Self::Won(parse_client(detail)?),
            1 => Self::Replay(Vec::from_redis_value(detail)?),
            2 => Self::InFlight(parse_owner(detail)?),
            3 => Self::Rejected(ClaimRejection::KeyReused(
                match u8::from_redis_value(detail)? {
                    0 => Mismatch::Request,
                    _ => Mismatch::Credentials,
                },
            )),
            4 => Self::Rejected(ClaimRejection::OutcomeUnknown),
            5 => Self::Rejected(ClaimRejection::ResponseNotRetained),
            6 => Self::Rejected(ClaimRejection::ScopeFull {
                min_wait: Duration::from_millis(u64::from_redis_value(detail)?),
            }),
            7 => Self::Cancelled,
            8 => Self::ClientFull,
            _ => return Err("the reply of claim.lua has an unknown result code".into()),
        })
    }
}

impl FromRedisValue for ReadReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(parts) = value else {
            return Err("the reply of read_record.lua is not an array".into());
        };
        if parts.is_empty() {
            return Ok(Self(None));
        }
        let mut parts = parts.into_iter();
        let mut next = || parts.next().unwrap_or(Value::Nil);
        let stored = String::from_redis_value(next())?;
        let state = RecordState::ALL
            .into_iter()
            .find(|&state| letter(state) == stored);
        let state = state
            .ok_or_else(|| ParsingError::from("the idempotency record has an unknown state"))?;
        let owner = parse_owner(next())?;
        let fingerprint = Vec::<u8>::from_redis_value(next())?;
        let fingerprint = <[u8; 32]>::try_from(fingerprint).map_err(|_| {
            ParsingError::from("the fingerprint of the idempotency record is not 32 bytes long")
        })?;
        let age = u64::from_redis_value(next())?;
        let left = i64::from_redis_value(next())?;
        let response_bytes = u64::from_redis_value(next())?;
        Ok(Self(Some(RedisRecord {
            state,
            owner,
            fingerprint: Fingerprint::from_bytes(&fingerprint),
            age: Duration::from_millis(age),
            expires_in: Duration::from_millis(u64::try_from(left).unwrap_or(0)),
            response_bytes,
            response: Option::from_redis_value(next())?,
        })))
    }
}

/// Returns `None` if the keys of clients were not counted when the record was stored.
pub(super) fn parse_client(value: Value) -> Result<Option<ClientHash>, ParsingError> {
    let Some(bytes) = Option::<Vec<u8>>::from_redis_value(value)? else {
        return Ok(None);
    };
    let bytes = bytes.try_into();
    let bytes = bytes.map_err(|_| {
        ParsingError::from("the client of the idempotency record is not 8 bytes long")
    })?;
    Ok(Some(ClientHash(u64::from_be_bytes(bytes))))
}

fn parse_owner(value: Value) -> Result<OwnerToken, ParsingError> {
    let bytes = Vec::<u8>::from_redis_value(value)?;
    OwnerToken::from_bytes(&bytes).ok_or_else(|| {
        ParsingError::from("the claim token of the idempotency record is not 16 bytes long")
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::idempotency::{KeyHash, ScopeHash};

    #[test]
    fn a_stored_response_of_another_version_is_an_error() {
        let id = RecordId {
            key: KeyHash([1; 16]),
            scope: ScopeHash([2; 16]),
        };
        let response = StoredResponse::new(StatusCode::CREATED, &HeaderMap::new(), b"made");
        let mut bytes = EncodedResponse::of(&response, |written| seal(&id.to_bytes(), &written));
        assert_eq!(*decode_response(id, &bytes).unwrap(), response);
        let version = bytes[0];
        for other in [version - 1, version + 1] {
            bytes[0] = other;
            for error in [
                decode_response(id, &bytes).unwrap_err(),
                decode_start(&bytes).unwrap_err(),
            ] {
                let expected = format!("the stored value has format {other}");
                assert!(error.reason.contains(&expected), "{error}");
            }
        }
    }
}
