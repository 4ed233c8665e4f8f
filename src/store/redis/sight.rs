//! One look at Redis: what it says of itself, what secret it has, and whether it does what is asked of it.
//!
//! What is tried is what requests do: a script that writes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, RedisError, Value};
use tokio::time::{Instant, timeout};

use super::connection::{Connection, Place};
use super::core::Core;
use super::link::{Failure, is_gone};
use super::portrait::{FORMAT, Portrait};
use super::records::Names;
use super::script::PLANT;
use crate::idempotency::Secret;
use crate::store::Part;

/// How long the mark of a look stays, in milliseconds.
const MARK: u32 = 10_000;

/// The format of records without a stored format.
const FORMAT_1: &str = "1";

/// The stored secret and the stored format.
type Planted = (Option<Vec<u8>>, Option<Vec<u8>>);

/// What a look at Redis showed.
pub(super) struct Sight {
    /// All of them.
    pub(super) servers: Vec<Portrait>,
    /// The fleet's secret, if there is one or ours could be planted.
    pub(super) secret: Option<Secret>,
    /// The format of the fleet's records.
    pub(super) format: Arc<str>,
    /// Whether it takes writes, and how soon.
    pub(super) written: Result<Duration, Failure>,
    /// Whether the user has no right to publish on the channel of the fleet. Checked only on a new Redis.
    pub(super) denies_publish: bool,
}

impl Sight {
    /// Checks Redis on this connection, and also its configuration if Redis `is_new` to this gateway.
    pub(super) async fn of(
        core: &Arc<Core>,
        connection: &mut Connection,
        is_new: bool,
    ) -> Result<Self, RedisError> {
        let servers = portraits(core, connection, is_new).await?;
        let (secret, format) = (core.secret_name(), core.format_name());
        let mut asked = redis::cmd("MGET");
        let stored = asked.arg(&secret).arg(&format).query_async(connection);
        let stored: Planted = in_time(core, stored).await?;

        let planting = PLANT
            .on(&[secret, core.mark_name(), format])
            .arg(core.secret().as_bytes())
            .arg(MARK)
            .arg(FORMAT);
        let began = Instant::now();
        let planted = in_time(core, planting.run(connection)).await;
        let ((secret, format), written) = match planted {
            Ok(planted) => (Planted::from_redis_value(planted)?, Ok(began.elapsed())),
            Err(error) if is_gone(&error) => return Err(error),
            // A full Redis still has its secret.
            Err(error) => (stored, Err(Failure::from(&error))),
        };
        let secret = secret.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        Ok(Self {
            servers,
            secret: secret.map(Secret::from_bytes),
            format: format.map_or(FORMAT_1.into(), |format| {
                String::from_utf8_lossy(&format).into()
            }),
            written,
            denies_publish: is_new && denies_publish(core, connection).await,
        })
    }
}

/// What the servers say of themselves. If one of a cluster says nothing, the cluster is not well: to ask for what
/// is elsewhere would go well and for what it has would not, and nobody knows beforehand which it is.
async fn portraits(
    core: &Arc<Core>,
    connection: &mut Connection,
    is_new: bool,
) -> Result<Vec<Portrait>, RedisError> {
    let mut portraits = Vec::new();
    for place in in_time(core, connection.places()).await? {
        portraits.push(portrait(core, connection, &place, is_new).await?);
    }
    Ok(portraits)
}

async fn portrait(
    core: &Arc<Core>,
    connection: &mut Connection,
    place: &Place,
    is_new: bool,
) -> Result<Portrait, RedisError> {
    let info = in_time(core, connection.ask_at(place, redis::cmd("INFO"))).await?;
    let mut portrait = Portrait::parse(&text(info));
    if is_new {
        let mut asked = redis::cmd("CONFIG");
        asked.arg("GET").arg("appendfsync");
        let told = in_time(core, connection.ask_at(place, asked)).await;
        // The user may have no right to CONFIG.
        portrait.syncs_always = told.is_ok_and(says_always);
    }
    Ok(portrait)
}

/// Publishes an empty message, which gateways ignore, and returns whether the user has no right to.
async fn denies_publish(core: &Arc<Core>, connection: &mut Connection) -> bool {
    let prefix = &core.settings.prefix;
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(Names { prefix }.channel()).arg("");
    let published = publish.query_async::<Value>(connection);
    let denied = |error: RedisError| error.code() == Some("NOPERM");
    in_time(core, published).await.is_err_and(denied)
}

/// Each step has the time that a step of a request with a key has.
async fn in_time<T>(
    core: &Arc<Core>,
    step: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let within = core.patience(Part::Records);
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    timeout(within, step).await.unwrap_or_else(late)
}

/// The text of an answer.
fn text(value: Value) -> String {
    match value {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        _ => String::new(),
    }
}

/// Whether the answer to what `appendfsync` is says `always`.
fn says_always(value: Value) -> bool {
    match value {
        Value::Map(pairs) => pairs.into_iter().any(|(_, value)| text(value) == "always"),
        Value::Array(values) => values.into_iter().any(|value| text(value) == "always"),
        _ => false,
    }
}
