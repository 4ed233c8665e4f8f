//! Reads and counts idempotency records for the admin endpoints.
//!
//! A list of all records would cost time in every request, and operators query rarely. So these functions iterate over
//! all Redis keys with SCAN, 500 per call, so that it does not delay other calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::{FromRedisValue, RedisError};

use super::super::client::RedisClient;
use super::super::connection::{RedisConnection, ServerRoute};
use super::super::error::CallError;
use super::calls::{self, ReadReply};
use super::names::RecordNames;
use crate::idempotency::{
    KeyHash, RecordCounts, RecordId, RecordInfo, RecordState, StoreError, StoredResponse,
};

const SCAN_COUNT: usize = 500;

/// Without responses.
pub(super) async fn find(
    client: &RedisClient,
    names: &RecordNames<'_>,
    key: KeyHash,
    most: usize,
) -> Result<Vec<RecordInfo>, StoreError> {
    let mut found = BTreeMap::new();
    let mut scan = RedisScan::new(client, names, Some(key)).await?;
    while let Some(ids) = scan.next().await? {
        for id in ids {
            if found.len() == most {
                return Ok(found.into_values().collect());
            }
            // SCAN can return a name twice. A record that has expired since is skipped.
            if !found.contains_key(&id)
                && let Some(info) = read(client, names, id).await?
            {
                found.insert(id, info);
            }
        }
    }
    Ok(found.into_values().collect())
}

pub(super) async fn read(
    client: &RedisClient,
    names: &RecordNames<'_>,
    id: RecordId,
) -> Result<Option<RecordInfo>, StoreError> {
    let call = calls::read(names, id, calls::RESPONSE_START);
    let ReadReply(record) = client.run(&call).await?;
    let Some(record) = record else {
        return Ok(None);
    };
    let start = record.response.as_deref();
    let mut response = start.map_or(Ok(None), calls::decode_start)?;
    if start.is_some() && response.is_none() {
        // The first bytes do not include all headers.
        let complete = self::response(client, names, id).await?;
        response = complete.map(|response| (&*response).into());
    }
    Ok(Some(RecordInfo {
        id,
        state: record.state,
        age: record.age,
        expires_in: (record.state != RecordState::InProgress).then_some(record.expires_in),
        fingerprint: record.fingerprint,
        response,
    }))
}

pub(super) async fn response(
    client: &RedisClient,
    names: &RecordNames<'_>,
    id: RecordId,
) -> Result<Option<Arc<StoredResponse>>, StoreError> {
    let call = calls::read(names, id, calls::WHOLE_RESPONSE);
    let ReadReply(record) = client.run(&call).await?;
    let bytes = record.and_then(|record| record.response);
    let response = bytes.map(|bytes| calls::decode_response(id, &bytes));
    response.transpose()
}

/// A record that SCAN returns twice is counted twice.
pub(super) async fn count(
    client: &RedisClient,
    names: &RecordNames<'_>,
) -> Result<RecordCounts, StoreError> {
    let mut counts = RecordCounts::default();
    let mut scan = RedisScan::new(client, names, None).await?;
    while let Some(ids) = scan.next().await? {
        let calls: Vec<_> = ids.iter().map(|&id| calls::read(names, id, 0)).collect();
        let replies = calls.iter().map(|call| client.run(call));
        for record in try_join_all(replies).await? {
            let ReadReply(Some(record)) = record else {
                continue;
            };
            match record.state {
                RecordState::InProgress => counts.in_progress += 1,
                RecordState::Completed => counts.completed += 1,
                RecordState::Unknown => counts.unknown += 1,
                RecordState::Tombstone => counts.tombstones += 1,
            }
            counts.bytes += record.response_bytes;
        }
    }
    Ok(counts)
}

struct RedisScan<'a> {
    connection: RedisConnection,
    names: &'a RecordNames<'a>,
    pattern: String,
    /// Not completely scanned. The last server is scanned first.
    servers: Vec<ServerRoute>,
    cursor: u64,
}

impl<'a> RedisScan<'a> {
    async fn new(
        client: &RedisClient,
        names: &'a RecordNames<'a>,
        key: Option<KeyHash>,
    ) -> Result<Self, StoreError> {
        let connection = client.connection().await;
        let mut connection = connection?;
        let servers = connection.servers().await.map_err(failed)?;
        Ok(Self {
            connection,
            names,
            pattern: names.pattern(key),
            servers,
            cursor: 0,
        })
    }

    /// Returns `None` if all servers are scanned.
    async fn next(&mut self) -> Result<Option<Vec<RecordId>>, StoreError> {
        let Some(server) = self.servers.last() else {
            return Ok(None);
        };
        let mut command = redis::cmd("SCAN");
        command.arg(self.cursor);
        command.arg("MATCH").arg(&self.pattern);
        command.arg("COUNT").arg(SCAN_COUNT);
        let scanned = self.connection.query_server(server, command).await;
        let scanned = <(u64, Vec<Vec<u8>>)>::from_redis_value(scanned.map_err(failed)?);
        let (cursor, found) = scanned.map_err(StoreError::new)?;
        self.cursor = cursor;
        if cursor == 0 {
            self.servers.pop();
        }
        let ids = found.iter().filter_map(|name| self.names.parse(name));
        Ok(Some(ids.collect()))
    }
}

fn failed(error: RedisError) -> StoreError {
    StoreError::new(CallError::from(error))
}
