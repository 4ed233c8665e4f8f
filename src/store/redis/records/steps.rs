//! Calls of the scripts that change or read records, and their replies.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use super::super::script::{CLAIM, Call, FREE, PEEK, RELEASE, RENEW, SETTLE};
use super::names::{Names, OwnerToken};
use crate::idempotency::{
    ClaimRequest, ClaimToken, ClientHash, Fingerprint, Mismatch, OnUnknown, RecordId, RecordState,
    ResponseSummary, StoreError, StoredResponse,
};
use crate::store::encoding::{DecodeError, EncodedResponse, open, seal, summary_of_start};

/// How long a claim that was called off may still be on its way to Redis, in milliseconds.
const STRAY: u32 = 120_000;

/// Bytes at the start of a response that hold status and headers of nearly every one.
const RESPONSE_START: u32 = 4 << 10;

/// The reply of the claim script.
#[derive(Debug)]
pub(super) enum ClaimReply {
    /// Won, over a record of this client if there was one.
    Won(Option<ClientHash>),
    Replay(Vec<u8>),
    InFlight(OwnerToken),
    Mismatch(Mismatch),
    Unknown,
    Tombstone,
    ScopeFull(Duration),
    CalledOff,
    ClientFull,
}

/// Whether a key was freed, and the client for which it is counted.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) was_unknown: bool,
    pub(super) client: Option<ClientHash>,
}

/// What there is under a key.
#[derive(Debug)]
pub(super) struct Peeked {
    pub(super) state: RecordState,
    pub(super) owner: OwnerToken,
    pub(super) fingerprint: Fingerprint,
    pub(super) age: Duration,
    pub(super) expires_in: Duration,
    /// What the response takes.
    pub(super) response_bytes: u64,
    pub(super) response: Option<Vec<u8>>,
}

/// A record, or none.
#[derive(Debug)]
pub(super) struct Peek(pub(super) Option<Peeked>);

/// Claims a key, counted for its client if `counted`; only one that has a record if `client_is_full`.
pub(super) fn claim(
    names: &Names<'_>,
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
        names.called_off(id.scope, owner),
    ];
    CLAIM
        .on(&keys)
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

/// Ends a claim with a record in `state`, with `response` if it is completed. The key is counted for its client if
/// `counted`.
pub(super) fn settle(
    names: &Names<'_>,
    token: &ClaimToken,
    owner: OwnerToken,
    state: RecordState,
    response: Option<&StoredResponse>,
    counted: bool,
) -> Call {
    let id = token.request.id;
    let name = id.to_bytes();
    let call = SETTLE
        .on(&[names.record(id), names.scope(id.scope)])
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

/// Ends a claim as if it had never been. If it is not there, it may be `stray`: still on its way.
pub(super) fn release(names: &Names<'_>, id: RecordId, owner: OwnerToken, stray: bool) -> Call {
    let keys = [
        names.record(id),
        names.scope(id.scope),
        names.called_off(id.scope, owner),
    ];
    RELEASE
        .on(&keys)
        .arg(&owner.to_bytes())
        .arg(&id.key.0)
        .arg(names.channel())
        .arg(&id.to_bytes())
        .arg(if stray { STRAY } else { 0 })
}

pub(super) fn renew(names: &Names<'_>, id: RecordId, owner: OwnerToken, lease: Duration) -> Call {
    RENEW
        .on(&[names.record(id), names.scope(id.scope)])
        .arg(&owner.to_bytes())
        .arg(millis(lease))
        .arg(&id.key.0)
}

/// Reads a record with its whole response.
pub(super) fn peek(names: &Names<'_>, id: RecordId) -> Call {
    PEEK.on(&[names.record(id)]).arg(-1)
}

/// Reads a record with the start of its response.
pub(super) fn peek_start(names: &Names<'_>, id: RecordId) -> Call {
    PEEK.on(&[names.record(id)]).arg(RESPONSE_START)
}

/// Reads a record without its response.
pub(super) fn size_up(names: &Names<'_>, id: RecordId) -> Call {
    PEEK.on(&[names.record(id)]).arg(0)
}

pub(super) fn free(names: &Names<'_>, id: RecordId) -> Call {
    FREE.on(&[names.record(id), names.scope(id.scope)])
        .arg(&id.key.0)
}

/// The response that was written in the record of `id`.
pub(super) fn read_response(id: RecordId, bytes: &[u8]) -> Result<Arc<StoredResponse>, StoreError> {
    let read = || -> Result<StoredResponse, DecodeError> {
        open::<EncodedResponse<'_>>(&id.to_bytes(), bytes)?.read()
    };
    read().map(Arc::new).map_err(unusable)
}

/// Summarizes a response from its first bytes; `None` if they are too few.
pub(super) fn read_start(bytes: &[u8]) -> Result<Option<ResponseSummary>, StoreError> {
    summary_of_start(bytes).map_err(unusable)
}

#[expect(clippy::needless_pass_by_value, reason = "passed to map_err")]
fn unusable(error: DecodeError) -> StoreError {
    StoreError::new(format!("the record of a key cannot be used: {error}"))
}

/// Returns the letter by which the scripts know a state.
fn letter(state: RecordState) -> &'static str {
    match state {
        RecordState::InProgress => "p",
        RecordState::Completed => "c",
        RecordState::Unknown => "u",
        RecordState::Tombstone => "t",
    }
}

/// Returns the client as a record stores it: nothing if its keys are not counted.
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
            return Err("the reply to a claim is a list".into());
        };
        let mut parts = parts.into_iter();
        let code = u8::from_redis_value(parts.next().unwrap_or(Value::Nil))?;
        let detail = parts.next().unwrap_or(Value::Nil);
        Ok(match code {
            0 => Self::Won(client(detail)?),
            1 => Self::Replay(Vec::from_redis_value(detail)?),
            2 => Self::InFlight(owner(detail)?),
            3 => Self::Mismatch(match u8::from_redis_value(detail)? {
                0 => Mismatch::Request,
                _ => Mismatch::Credentials,
            }),
            4 => Self::Unknown,
            5 => Self::Tombstone,
            6 => Self::ScopeFull(Duration::from_millis(u64::from_redis_value(detail)?)),
            7 => Self::CalledOff,
            8 => Self::ClientFull,
            _ => return Err("unknown reply to a claim".into()),
        })
    }
}

impl FromRedisValue for Peek {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(parts) = value else {
            return Err("a record is a list".into());
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
        let state = state.ok_or_else(|| ParsingError::from("no such state"))?;
        let owner = owner(next())?;
        let fingerprint = Vec::<u8>::from_redis_value(next())?;
        let fingerprint = <[u8; 32]>::try_from(fingerprint)
            .map_err(|_| ParsingError::from("a fingerprint is 32 bytes"))?;
        let age = u64::from_redis_value(next())?;
        let left = i64::from_redis_value(next())?;
        let response_bytes = u64::from_redis_value(next())?;
        Ok(Self(Some(Peeked {
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

impl FromRedisValue for Freed {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(parts) = value else {
            return Err("the reply is not a list".into());
        };
        let mut parts = parts.into_iter();
        let mut next = || parts.next().unwrap_or(Value::Nil);
        Ok(Self {
            was_unknown: bool::from_redis_value(next())?,
            client: client(next())?,
        })
    }
}

/// Reads the client of a record; `None` if its keys are not counted.
fn client(value: Value) -> Result<Option<ClientHash>, ParsingError> {
    let Some(bytes) = Option::<Vec<u8>>::from_redis_value(value)? else {
        return Ok(None);
    };
    let bytes = bytes.try_into();
    let bytes = bytes.map_err(|_| ParsingError::from("a client is 8 bytes"))?;
    Ok(Some(ClientHash(u64::from_be_bytes(bytes))))
}

fn owner(value: Value) -> Result<OwnerToken, ParsingError> {
    let bytes = Vec::<u8>::from_redis_value(value)?;
    OwnerToken::from_bytes(&bytes).ok_or_else(|| ParsingError::from("a token is 16 bytes"))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::idempotency::{KeyHash, ScopeHash};

    #[test]
    fn a_stored_response_of_another_version_is_an_error_and_not_an_absent_response() {
        let id = RecordId {
            key: KeyHash([1; 16]),
            scope: ScopeHash([2; 16]),
        };
        let response = StoredResponse::new(StatusCode::CREATED, &HeaderMap::new(), b"made");
        let mut bytes = EncodedResponse::of(&response, |written| seal(&id.to_bytes(), &written));
        assert_eq!(*read_response(id, &bytes).unwrap(), response);
        let version = bytes[0];
        for other in [version - 1, version + 1] {
            bytes[0] = other;
            for error in [
                read_response(id, &bytes).unwrap_err(),
                read_start(&bytes).unwrap_err(),
            ] {
                let expected = format!("it has format {other}");
                assert!(error.reason.contains(&expected), "{error}");
            }
        }
    }
}
