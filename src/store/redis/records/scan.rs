//! Looking at many records, for an operator.
//!
//! Redis has no list of all records, and keeping one would cost every request. What is asked for seldom is
//! found by walking through all names, some hundred at a time, so that nobody else waits for long.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::{FromRedisValue, RedisError};

use super::super::client::Client;
use super::super::connection::{Connection, Server};
use super::super::error::CallError;
use super::names::Names;
use super::steps::{self, Peek};
use crate::idempotency::{
    KeyHash, RecordCounts, RecordId, RecordInfo, RecordState, StoreError, StoredResponse,
};

/// Names looked at in one step.
const STEP: usize = 500;

/// Returns up to `most` records of `key`, in all scopes, without their responses.
pub(super) async fn find(
    link: &Client,
    names: &Names<'_>,
    key: KeyHash,
    most: usize,
) -> Result<Vec<RecordInfo>, StoreError> {
    let mut found = BTreeMap::new();
    let mut walk = Walk::new(link, names, Some(key)).await?;
    while let Some(ids) = walk.step().await? {
        for id in ids {
            if found.len() == most {
                return Ok(found.into_values().collect());
            }
            // SCAN can return a name twice, and a record can have expired since.
            if !found.contains_key(&id)
                && let Some(info) = look_at(link, names, id).await?
            {
                found.insert(id, info);
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Reads one record, without its response.
pub(super) async fn look_at(
    link: &Client,
    names: &Names<'_>,
    id: RecordId,
) -> Result<Option<RecordInfo>, StoreError> {
    let call = steps::peek_start(names, id);
    let Peek(peeked) = link.run(&call).await?;
    let Some(peeked) = peeked else {
        return Ok(None);
    };
    let start = peeked.response.as_deref();
    let mut response = start.map_or(Ok(None), steps::read_start)?;
    if start.is_some() && response.is_none() {
        // The headers are longer than the start.
        let whole = self::response(link, names, id).await?;
        response = whole.map(|response| (&*response).into());
    }
    Ok(Some(RecordInfo {
        id,
        state: peeked.state,
        age: peeked.age,
        expires_in: (peeked.state != RecordState::InProgress).then_some(peeked.expires_in),
        fingerprint: peeked.fingerprint,
        response,
    }))
}

/// Reads the response of a completed record.
pub(super) async fn response(
    link: &Client,
    names: &Names<'_>,
    id: RecordId,
) -> Result<Option<Arc<StoredResponse>>, StoreError> {
    let call = steps::peek(names, id);
    let Peek(peeked) = link.run(&call).await?;
    let bytes = peeked.and_then(|peeked| peeked.response);
    let response = bytes.map(|bytes| steps::read_response(id, &bytes));
    response.transpose()
}

/// How much there is; a record that a walk comes by twice counts twice.
pub(super) async fn count(link: &Client, names: &Names<'_>) -> Result<RecordCounts, StoreError> {
    let mut counts = RecordCounts::default();
    let mut walk = Walk::new(link, names, None).await?;
    while let Some(ids) = walk.step().await? {
        let calls: Vec<_> = ids.iter().map(|&id| steps::size_up(names, id)).collect();
        let peeks = calls.iter().map(|call| link.run(call));
        for peeked in try_join_all(peeks).await? {
            let Peek(Some(peeked)) = peeked else { continue };
            match peeked.state {
                RecordState::InProgress => counts.in_progress += 1,
                RecordState::Completed => counts.completed += 1,
                RecordState::Unknown => counts.unknown += 1,
                RecordState::Tombstone => counts.tombstones += 1,
            }
            counts.bytes += peeked.response_bytes;
        }
    }
    Ok(counts)
}

/// A walk through the names of records, server by server.
struct Walk<'a> {
    connection: Connection,
    names: &'a Names<'a>,
    pattern: String,
    /// The servers that are still to be walked through, the one at hand last.
    places: Vec<Server>,
    cursor: u64,
}

impl<'a> Walk<'a> {
    async fn new(
        link: &Client,
        names: &'a Names<'a>,
        key: Option<KeyHash>,
    ) -> Result<Self, StoreError> {
        let connection = link.connection().await;
        let mut connection = connection?;
        let places = connection.servers().await.map_err(failed)?;
        Ok(Self {
            connection,
            names,
            pattern: names.pattern(key),
            places,
            cursor: 0,
        })
    }

    /// The next records, if there are more.
    async fn step(&mut self) -> Result<Option<Vec<RecordId>>, StoreError> {
        let Some(place) = self.places.last() else {
            return Ok(None);
        };
        let mut command = redis::cmd("SCAN");
        command.arg(self.cursor);
        command.arg("MATCH").arg(&self.pattern);
        command.arg("COUNT").arg(STEP);
        let scanned = self.connection.query_server(place, command).await;
        let scanned = <(u64, Vec<Vec<u8>>)>::from_redis_value(scanned.map_err(failed)?);
        let (cursor, found) = scanned.map_err(StoreError::new)?;
        self.cursor = cursor;
        if cursor == 0 {
            self.places.pop();
        }
        let ids = found.iter().filter_map(|name| self.names.parse(name));
        Ok(Some(ids.collect()))
    }
}

fn failed(error: RedisError) -> StoreError {
    StoreError::new(CallError::from(error))
}
