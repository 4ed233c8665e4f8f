//! The Lua scripts that run inside Redis.
//!
//! Redis executes a script atomically. A call passes the SHA-1 hash of the script. If the server does not have the
//! script, for example after a restart, the call is repeated with the text of the script. `redis::Script` is not used,
//! because it copies each Redis key and each argument into a separate vector before it writes the command.

use std::sync::OnceLock;

use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value};

/// A Lua script and its SHA-1 hash.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
}

/// A call of a script, with its Redis keys and arguments.
#[derive(Debug)]
pub(super) struct Call {
    script: &'static Script,
    command: Cmd,
}

impl Script {
    const fn new(text: &'static str) -> Self {
        let hash = OnceLock::new();
        Self { text, hash }
    }

    /// Creates a call with the Redis keys `keys` and no arguments. On a cluster, all keys must be in one slot.
    pub(super) fn call<N: ToRedisArgs>(&'static self, keys: &[N]) -> Call {
        let hash = || redis::Script::new(self.text).get_hash().to_owned();
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.hash.get_or_init(hash)).arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        Call {
            script: self,
            command,
        }
    }
}

impl Call {
    #[must_use]
    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// Runs the script on `connection`. Sends the text of the script if the server does not know its hash.
    pub(super) async fn run(
        &self,
        connection: &mut impl ConnectionLike,
    ) -> Result<Value, RedisError> {
        match self.command.query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.with_text().query_async(connection).await
            }
            done => done,
        }
    }

    /// Returns the command that passes the text of the script instead of its hash.
    pub(super) fn with_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.script.text);
        // The loop skips the command name and the hash.
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

/// Checks that scripts can write. Stores a fleet secret and a record format if Redis has no secret. Returns the secret
/// and the format that Redis has.
pub(super) static PROBE: Script = Script::new(include_str!("lua/probe.lua"));
/// Charges the rate limit buckets of a request.
pub(super) static CHARGE: Script = Script::new(include_str!("lua/charge.lua"));
/// Reads a rate limit bucket.
pub(super) static READ_BUCKET: Script = Script::new(include_str!("lua/read_bucket.lua"));
/// Refills a rate limit bucket.
pub(super) static REFILL_BUCKET: Script = Script::new(include_str!("lua/refill_bucket.lua"));
/// Refunds the charges of a rejected request.
pub(super) static REFUND: Script = Script::new(include_str!("lua/refund.lua"));
/// Adds an idempotency key to the key count of a client.
pub(super) static ADMIT: Script = Script::new(include_str!("lua/count_key.lua"));
/// Changes the expiry of an idempotency key in the key count of a client, or removes the key from the count.
pub(super) static RECOUNT: Script = Script::new(include_str!("lua/update_key_count.lua"));
/// Claims an idempotency key.
pub(super) static CLAIM: Script = Script::new(include_str!("lua/claim.lua"));
/// Ends the claim of an idempotency key and stores its record.
pub(super) static SETTLE: Script = Script::new(include_str!("lua/end_claim.lua"));
/// Ends the claim of an idempotency key and deletes its record.
pub(super) static RELEASE: Script = Script::new(include_str!("lua/release_claim.lua"));
/// Extends the lease of a claim of an idempotency key.
pub(super) static RENEW: Script = Script::new(include_str!("lua/renew_lease.lua"));
/// Reads an idempotency record.
pub(super) static READ: Script = Script::new(include_str!("lua/read_record.lua"));
/// Writes the expiry of an idempotency record again, so that WAIT on the same connection covers the record.
pub(super) static CONFIRM: Script = Script::new(include_str!("lua/touch_record.lua"));
/// Deletes the record of an idempotency key whose outcome is unknown.
pub(super) static FREE: Script = Script::new(include_str!("lua/free_unknown.lua"));
