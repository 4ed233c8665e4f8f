//! Responds to duplicate requests that wait for an execution in flight.

use http::Response;
use tokio::time::timeout;

use super::{RouteKeys, replay};
use crate::idempotency::{
    ClaimRejection, ExecutionOutcome, IdempotencyError, InFlightPolicy, Waiter,
};
use crate::request::body::ResponseBody;
use crate::request::context::RequestContext;
use crate::request::log_fields::KeyUse;
use crate::respond::Problem;

/// `in_flight` of the route decides whether the duplicate waits or gets 409.
pub(super) async fn wait(
    waiter: Waiter,
    keys: &RouteKeys,
    ctx: &RequestContext,
) -> Result<Response<ResponseBody>, Problem> {
    let metrics = keys.metrics();
    let InFlightPolicy::Wait(limit) = keys.rule.in_flight else {
        metrics.conflicts.inc();
        return Err(IdempotencyError::InFlight.into());
    };
    metrics.waits.inc();
    ctx.note(|fields| fields.idempotency = Some(KeyUse::Waited));
    match timeout(limit, waiter.ended()).await {
        Ok(ExecutionOutcome::Completed(stored)) => {
            metrics.replays.inc();
            Ok(replay(&stored, keys))
        }
        Ok(ExecutionOutcome::Released(Some(received))) => {
            received.map(|stored| stored.to_response())
        }
        Ok(ExecutionOutcome::Unknown) => {
            Err(keys.reject(ClaimRejection::OutcomeUnknown, ctx.notes.as_ref()))
        }
        Ok(ExecutionOutcome::Tombstone) => {
            Err(keys.reject(ClaimRejection::ResponseNotRetained, ctx.notes.as_ref()))
        }
        Ok(ExecutionOutcome::Released(None)) | Err(_) => {
            metrics.conflicts.inc();
            Err(IdempotencyError::InFlight.into())
        }
    }
}
