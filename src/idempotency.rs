//! Idempotency keys: the upstream executes at most one request with the same key within the time to live (TTL) of the
//! key. Retries get a replay of the response.
//!
//! A client that did not receive a response sends the request again with the same `Idempotency-Key`. The client then
//! gets the response to the first request, and the upstream executes the request only once.
//!
//! The idempotency key of a request belongs to a [`Scope`], which separates callers. The gateway hashes key and scope
//! to a [`RecordId`], and the request to a [`Fingerprint`]. With both hashes, the stage `Idempotency` claims the key in
//! the idempotency store ([`Records`]), which returns a [`Claim`]. The request that wins the claim is executed
//! independently of its connection. So the execution is completed even if the client disconnects or the gateway drains.
//!
//! The gateway never guesses the outcome of a request. If a request was provably not sent, the gateway releases its
//! idempotency key. If a request was sent and its response was lost, the outcome is *unknown* until the record expires
//! or an operator frees the key. While the outcome is unknown, the gateway rejects retries by default, because an error
//! is better than a second execution.

pub(crate) mod body_key;
pub(crate) mod claim;
pub(crate) mod credentials;
pub(crate) mod disposition;
mod error;
pub(crate) mod fingerprint;
pub(crate) mod in_flight;
pub(crate) mod key;
mod multipart;
pub(crate) mod outcome;
pub(crate) mod permit;
pub(crate) mod record_id;
pub(crate) mod records;
pub(crate) mod rule;
mod stage;
pub(crate) mod stored_response;

pub use crate::request::hash_keys::ClientHash;
pub use claim::{Claim, ClaimRequest, RecordSettings};
pub use error::ClaimRejection;
pub use fingerprint::{Fingerprint, Mismatch};
pub use in_flight::Waiter;
pub use outcome::{ExecutionOutcome, RecordState};
pub use permit::Permit;
pub use record_id::{KeyHash, RecordId, ScopeHash};
pub use records::{RecordCounts, RecordInfo, Records, ResponseSummary, StoreError};
pub use rule::{InFlightPolicy, KeyRule, OnServerError, OnUnknown, Requirement, Scope, ScopePart};
pub use stored_response::StoredResponse;

pub(crate) use crate::request::hash_keys::Secret;
pub(crate) use body_key::BodyKeyError;
pub(crate) use error::IdempotencyError;
pub(crate) use in_flight::{InFlightExecution, Waiters};
pub(crate) use key::{IdempotencyKey, KeyError};
pub(crate) use permit::{ClaimToken, OnAbandon};
pub(crate) use stage::{Idempotency, RouteKeys};
