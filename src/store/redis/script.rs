//! The scripts that run inside Redis.
//!
//! A script is one atomic step. It is called by its hash; a server that does not know it, because it was
//! restarted, is asked again with the text of it, and knows it from then on.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value};

/// A script, by its text and its hash.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    hash: LazyLock<String>,
}

/// A script, the names it works on, and what it is told.
#[derive(Debug)]
pub(super) struct Call {
    script: &'static Script,
    command: Cmd,
}

/// Defines scripts by their files.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)*) => {
        $(
            $(#[$doc])*
            pub(super) static $name: Script = Script {
                text: include_str!($file),
                hash: LazyLock::new(|| {
                    redis::Script::new(include_str!($file)).get_hash().to_owned()
                }),
            };
        )*
    };
}

impl Script {
    /// A call with these names, to be given its arguments. On a cluster the first name says where it goes, and
    /// the others are to be there, too.
    pub(super) fn on<N: ToRedisArgs>(&'static self, names: &[N]) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&*self.hash).arg(names.len());
        for name in names {
            command.arg(name);
        }
        Call {
            script: self,
            command,
        }
    }
}

impl Call {
    /// The same with one more argument.
    #[must_use]
    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// Has it run.
    pub(super) async fn run(
        &self,
        connection: &mut impl ConnectionLike,
    ) -> Result<Value, RedisError> {
        match self.command.query_async(connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.whole().query_async(connection).await
            }
            done => done,
        }
    }

    /// Returns the call with the text of the script, for a server that may not have it.
    pub(super) fn whole(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.script.text);
        // Behind the command and the hash.
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

scripts! {
    /// Checks whether Redis can be used, and returns the secret and the record format of the fleet.
    PLANT = "lua/plant.lua";
    /// Charges buckets.
    CHARGE = "lua/charge.lua";
    /// Takes charges back.
    REFUND = "lua/refund.lua";
    /// Counts a key of a client.
    ADMIT = "lua/admit.lua";
    /// Changes the count of a key of a client.
    RECOUNT = "lua/recount.lua";
    /// Answers a bid.
    CLAIM = "lua/claim.lua";
    /// Ends a claim with a record.
    SETTLE = "lua/settle.lua";
    /// Ends a claim as if it had never been.
    RELEASE = "lua/release.lua";
    /// Makes a claim hold longer.
    RENEW = "lua/renew.lua";
    /// Says what became of a claim.
    PEEK = "lua/peek.lua";
    /// Writes a record again, unchanged, so that its connection can wait for replicas.
    CONFIRM = "lua/confirm.lua";
    /// Frees an unknown key.
    FREE = "lua/free.lua";
}
