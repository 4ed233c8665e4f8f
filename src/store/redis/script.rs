//! The Lua scripts that run inside Redis.

use std::sync::LazyLock;

use redis::aio::ConnectionLike;
use redis::{RedisError, ScriptInvocation, ToRedisArgs, Value};

pub(super) type Script = LazyLock<redis::Script>;

#[derive(Debug)]
pub(super) struct Call(ScriptInvocation<'static>);

impl Call {
    /// On a cluster, all keys must be in one slot.
    pub(super) fn new<N: ToRedisArgs>(script: &'static Script, keys: &[N]) -> Self {
        let mut call = script.prepare_invoke();
        for key in keys {
            call.key(key);
        }
        Self(call)
    }

    #[must_use]
    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.0.arg(argument);
        self
    }

    pub(super) async fn run(
        &self,
        connection: &mut impl ConnectionLike,
    ) -> Result<Value, RedisError> {
        self.0.invoke_async(connection).await
    }
}

pub(super) static PROBE: Script = Script::new(|| redis::Script::new(include_str!("lua/probe.lua")));
pub(super) static CHARGE: Script =
    Script::new(|| redis::Script::new(include_str!("lua/charge.lua")));
pub(super) static READ_BUCKET: Script =
    Script::new(|| redis::Script::new(include_str!("lua/read_bucket.lua")));
pub(super) static REFILL_BUCKET: Script =
    Script::new(|| redis::Script::new(include_str!("lua/refill_bucket.lua")));
pub(super) static REFUND: Script =
    Script::new(|| redis::Script::new(include_str!("lua/refund.lua")));
pub(super) static ADMIT: Script =
    Script::new(|| redis::Script::new(include_str!("lua/count_key.lua")));
pub(super) static RECOUNT: Script =
    Script::new(|| redis::Script::new(include_str!("lua/update_key_count.lua")));
pub(super) static CLAIM: Script = Script::new(|| redis::Script::new(include_str!("lua/claim.lua")));
pub(super) static SETTLE: Script =
    Script::new(|| redis::Script::new(include_str!("lua/end_claim.lua")));
pub(super) static RELEASE: Script =
    Script::new(|| redis::Script::new(include_str!("lua/release_claim.lua")));
pub(super) static RENEW: Script =
    Script::new(|| redis::Script::new(include_str!("lua/renew_lease.lua")));
pub(super) static READ: Script =
    Script::new(|| redis::Script::new(include_str!("lua/read_record.lua")));
pub(super) static FREE: Script =
    Script::new(|| redis::Script::new(include_str!("lua/free_unknown.lua")));
/// Called with its text, because WAIT must follow on the same connection.
pub(super) static CONFIRM: &str = include_str!("lua/touch_record.lua");
