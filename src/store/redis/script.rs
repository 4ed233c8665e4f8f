//! The scripts that run inside Redis.
//!
//! A script is one atomic step. It is called by its hash. A server that does not have it, because it was restarted,
//! gets the call again with the text of the script. `redis::Script` was rejected: it copies each key and argument
//! into a vector of its own before it writes the command.

use std::sync::OnceLock;

use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value};

/// A script: its text and its hash.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
}

/// A call of a script, with its keys and arguments.
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

    /// Returns a call with these keys and without arguments. On a cluster, all keys must be in one slot.
    pub(super) fn on<N: ToRedisArgs>(&'static self, keys: &[N]) -> Call {
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
    /// Adds an argument.
    #[must_use]
    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

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

    /// Returns the call with the text of the script, for a server that may not have it.
    pub(super) fn with_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.script.text);
        // The first two are the name of the command and the hash.
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

/// Checks that scripts can write. Stores the secret of the fleet if there is none, and returns it with the record format.
pub(super) static PLANT: Script = Script::new(include_str!("lua/plant.lua"));
/// Charges buckets.
pub(super) static CHARGE: Script = Script::new(include_str!("lua/charge.lua"));
/// Refunds charges.
pub(super) static REFUND: Script = Script::new(include_str!("lua/refund.lua"));
/// Counts a key of a client.
pub(super) static ADMIT: Script = Script::new(include_str!("lua/admit.lua"));
/// Changes the count of a key of a client.
pub(super) static RECOUNT: Script = Script::new(include_str!("lua/recount.lua"));
/// Claims a key.
pub(super) static CLAIM: Script = Script::new(include_str!("lua/claim.lua"));
/// Ends a claim with a record.
pub(super) static SETTLE: Script = Script::new(include_str!("lua/settle.lua"));
/// Ends a claim without a record.
pub(super) static RELEASE: Script = Script::new(include_str!("lua/release.lua"));
/// Extends the lease of a claim.
pub(super) static RENEW: Script = Script::new(include_str!("lua/renew.lua"));
/// Reads a record.
pub(super) static PEEK: Script = Script::new(include_str!("lua/peek.lua"));
/// Writes a record again, unchanged, so that its connection can wait for replicas.
pub(super) static CONFIRM: Script = Script::new(include_str!("lua/confirm.lua"));
/// Frees a key whose outcome is unknown.
pub(super) static FREE: Script = Script::new(include_str!("lua/free.lua"));
