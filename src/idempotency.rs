//! Idempotency keys: at most one execution within the TTL, with replay.
//!
//! A client that lost a response sends the same `Idempotency-Key` again. It gets the same response, and upstream has
//! executed the request once.
//!
//! The key of a request belongs to a [`Scope`]. Both together are hashed to its [`RecordId`], and the request
//! itself to its [`Fingerprint`]. With these it claims the key in the store ([`Records`]), which returns one of the cases of
//! [`Claim`]. The winner runs detached from its connection, to its end: claim, execute, complete. From the claim on the
//! client can disconnect and the gateway can drain. `Idempotency` is the stage that does all of this.
//!
//! The outcome is never guessed. A request that provably was not sent is released. A request that was sent and whose
//! response was lost is *unknown* until it expires or an operator frees it: a second execution is worse than an error.

pub(crate) mod claim;
pub(crate) mod credentials;
mod error;
pub(crate) mod field;
pub(crate) mod fingerprint;
mod gather;
pub(crate) mod identity;
pub(crate) mod in_flight;
pub(crate) mod judge;
pub(crate) mod key;
mod multipart;
pub(crate) mod outcome;
pub(crate) mod permit;
pub(crate) mod records;
pub(crate) mod rule;
mod stage;
pub(crate) mod stored_response;

pub use crate::hash_keys::ClientHash;
pub use claim::{Claim, ClaimRequest, Terms};
pub use fingerprint::{Fingerprint, Mismatch};
pub use identity::{KeyHash, RecordId, ScopeHash};
pub use in_flight::Waiter;
pub use outcome::{ExecutionOutcome, State};
pub use permit::Permit;
pub use records::{RecordCounts, RecordInfo, Records, ResponseSummary, StoreError};
pub use rule::{InFlightPolicy, OnServerError, OnUnknown, Requirement, Rule, Scope, ScopePart};
pub use stored_response::StoredResponse;

pub(crate) use crate::hash_keys::Secret;
pub(crate) use error::IdempotencyError;
pub(crate) use field::FieldError;
pub(crate) use in_flight::{InFlightExecution, Waiters};
pub(crate) use key::{IdempotencyKey, KeyError};
pub(crate) use permit::{ClaimToken, OnAbandon};
pub(crate) use stage::{Idempotency, RouteKeys};
