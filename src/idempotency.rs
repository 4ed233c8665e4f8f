//! Idempotency keys: the upstream executes at most one request with the same key within the time to live (TTL) of the
//! key. Retries get a replay of the response.
//!
//! The key of a request belongs to a [`Scope`], which separates callers. Key and scope are hashed to a [`RecordId`],
//! the request to a [`Fingerprint`], and the key is claimed in the store ([`Records`]), which returns a [`Claim`]. The
//! request that wins the claim is executed independently of its connection.
//!
//! The gateway never guesses an outcome. If a request was provably not sent, its key is released. If it was sent and
//! its response was lost, the outcome is *unknown* until the record expires or an operator frees the key, and retries
//! are rejected by default, because an error is better than a second execution.

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
