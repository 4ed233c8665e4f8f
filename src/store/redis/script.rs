//! The scripts that run inside Redis.
//!
//! A script is one atomic step. It is called by its hash; a Redis that does not know it, because it was
//! restarted, is given it once and asked again.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, ToRedisArgs, Value};

/// A script, by its text and its hash.
#[derive(Debug)]
pub(super) struct Script(LazyLock<redis::Script>);

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
            pub(super) static $name: Script =
                Script(LazyLock::new(|| redis::Script::new(include_str!($file))));
        )*
    };
}

impl Script {
    /// A call with these names, to be given its arguments. On a cluster the first name says where it goes, and
    /// the others are to be there, too.
    pub(super) fn on<N: ToRedisArgs>(&'static self, names: &[N]) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.0.get_hash()).arg(names.len());
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
                self.script.0.load_async(connection).await?;
                self.command.query_async(connection).await
            }
            done => done,
        }
    }
}

scripts! {
    /// Charges buckets.
    CHARGE = "lua/charge.lua";
    /// Takes charges back.
    REFUND = "lua/refund.lua";
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
    /// Frees an unknown key.
    FREE = "lua/free.lua";
}
