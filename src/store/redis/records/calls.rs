//! Calls of the scripts that read and change idempotency records, and their replies.

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

/// How long a cancelled claim can still arrive at Redis, in milliseconds. The marker that cancels the claim expires
/// after this time.
const LATE_CLAIM: u32 = 120_000;

/// How many bytes to read from the start of a stored response. They usually include its status and headers.
const RESPONSE_START: u32 = 4 << 10;

/// The reply of the claim script.
#[derive(Debug)]
pub(super) enum ClaimReply {
    /// The claim is won. The value is the client of the record that the claim replaces, or `None` if there was no such
    /// record.
    Won(Option<ClientHash>),
    Replay(Vec<u8>),
    InFlight(OwnerToken),
    Rejected(ClaimRejection),
    /// The client of a new key has too many keys. The caller knows their maximum.
    ClientFull,
    Cancelled,
}

/// The reply of the script that deletes a record whose outcome is unknown. It contains the client of the record, and
/// whether the outcome was unknown.
#[derive(Debug)]
pub(super) struct FreeReply {
    pub(super) was_unknown: bool,
    pub(super) client: Option<ClientHash>,
}

/// A record in Redis, as the read script returns it.
#[derive(Debug)]
pub(super) struct RedisRecord {
    pub(super) state: RecordState,
    pub(super) owner: OwnerToken,
    pub(super) fingerprint: Fingerprint,
    pub(super) age: Duration,
    pub(super) expires_in: Duration,
    /// Size of the encoded response, in bytes.
    pub(super) response_bytes: u64,
    /// The encoded response or its first bytes, or `None` if there is no response or the call did not request it.
    pub(super) response: Option<Vec<u8>>,
}

/// The reply of the script that reads a record, or `None` if Redis has no such record.
#[derive(Debug)]
pub(super) struct ReadReply(pub(super) Option<RedisRecord>);

/// Creates the call that claims an idempotency key. `counted` states whether the record stores the client. If
/// `client_is_full` is true, the claim of a key that has no record is rejected.
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
    CLAIM
        .call(&keys)
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

/// Creates the call that ends a claim and stores a record in `state`. A completed record has a `response`. `counted`
/// states whether the record stores the client.
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
    let call = SETTLE
        .call(&[names.record(id), names.scope(id.scope)])
        .arg(&owner.to_bytes());
    let response =
        response.map(|response| EncodedResponse::of(response, |response| seal(&name, &response)));
    call.arg(letter(state))
        .arg(millis(token.request.settings.ttl))
        .arg(&token.request.fingerprint.to_bytes())
        .arg(&id.key.0)
        .arg(names.channel())
        .arg(&name)
        .arg(response.unwrap_or_default())
        .arg(client_field(token.request.client, counted))
}

/// Creates the call that ends a claim and deletes its record. If `may_arrive_late` is true, a claim that is not yet in
/// Redis is cancelled when it arrives.
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
    RELEASE
        .call(&keys)
        .arg(&owner.to_bytes())
        .arg(&id.key.0)
        .arg(names.channel())
        .arg(&id.to_bytes())
        .arg(if may_arrive_late { LATE_CLAIM } else { 0 })
}

/// Creates the call that extends the lease of a claim.
pub(super) fn renew(
    names: &RecordNames<'_>,
    id: RecordId,
    owner: OwnerToken,
    lease: Duration,
) -> Call {
    RENEW
        .call(&[names.record(id), names.scope(id.scope)])
        .arg(&owner.to_bytes())
        .arg(millis(lease))
        .arg(&id.key.0)
}

/// Creates the call that reads a record with its response.
pub(super) fn read(names: &RecordNames<'_>, id: RecordId) -> Call {
    READ.call(&[names.record(id)]).arg(-1)
}

/// Creates the call that reads a record with the first bytes of its response.
pub(super) fn read_with_start(names: &RecordNames<'_>, id: RecordId) -> Call {
    READ.call(&[names.record(id)]).arg(RESPONSE_START)
}

/// Creates the call that reads a record without its response.
pub(super) fn read_without_response(names: &RecordNames<'_>, id: RecordId) -> Call {
    READ.call(&[names.record(id)]).arg(0)
}

/// Creates the call that deletes the record of an idempotency key whose outcome is unknown.
pub(super) fn free(names: &RecordNames<'_>, id: RecordId) -> Call {
    FREE.call(&[names.record(id), names.scope(id.scope)])
        .arg(&id.key.0)
}

/// Decodes the response of the record `id`. Fails if the response is damaged or belongs to another record.
pub(super) fn decode_response(
    id: RecordId,
    bytes: &[u8],
) -> Result<Arc<StoredResponse>, StoreError> {
    let decode = || -> Result<StoredResponse, DecodeError> {
        open::<EncodedResponse<'_>>(&id.to_bytes(), bytes)?.read()
    };
    decode().map(Arc::new).map_err(undecodable)
}

/// Parses status and body length of a response from its first bytes, or returns `None` if `bytes` ends before the body.
pub(super) fn decode_start(bytes: &[u8]) -> Result<Option<ResponseSummary>, StoreError> {
    summary_of_start(bytes).map_err(undecodable)
}

#[expect(clippy::needless_pass_by_value, reason = "passed to map_err")]
fn undecodable(error: DecodeError) -> StoreError {
    StoreError::new(format!(
        "cannot decode the idempotency record in Redis: {error}"
    ))
}

/// Returns the letter of a state in the field `s` of a record.
fn letter(state: RecordState) -> &'static str {
    match state {
        RecordState::InProgress => "p",
        RecordState::Completed => "c",
        RecordState::Unknown => "u",
        RecordState::Tombstone => "t",
    }
}

/// Returns the field `c` of a record: the client, or empty if the idempotency keys of clients are not counted.
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

impl FromRedisValue for FreeReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(parts) = value else {
            return Err("the reply of free_unknown.lua is not an array".into());
        };
        let mut parts = parts.into_iter();
        let mut next = || parts.next().unwrap_or(Value::Nil);
        Ok(Self {
            was_unknown: bool::from_redis_value(next())?,
            client: parse_client(next())?,
        })
    }
}

/// Parses the client in a record. Returns `None` if the record has no client. This is the case if the idempotency keys
/// of clients were not counted when the record was stored.
fn parse_client(value: Value) -> Result<Option<ClientHash>, ParsingError> {
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
