//! Was this request carried out before?
//!
//! A client that lost an answer sends the same `Idempotency-Key` again; it gets the same answer, and the
//! API behind has run once. The promise, in these words: at most once within the TTL, with replay.
//!
//! A request's [`IdempotencyKey`] belongs to a [`Scope`]; both together are hashed to its [`RecordId`],
//! and what it asks for to its [`Fingerprint`]. With these it makes a [`Bid`] to whoever keeps the
//! records ([`Records`], implemented in [`crate::store`]), which answers with one of the cases of
//! [`Claim`]. The one that wins runs detached from its connection, to its end: claim, run, complete.
//! From the claim on the client may hang up and the gateway drain. [`layer`] is all of this as a tower
//! layer, for the gateway's forwarder or any other service.
//!
//! What happened is never guessed. A request that provably did not reach anybody is released; one that
//! was sent and whose answer was lost is *unknown*, and stays so until it expires or an operator says
//! otherwise: a second execution is worse than an error.

pub mod answer;
pub mod body;
pub mod claim;
pub(crate) mod credentials;
pub mod field;
pub mod fingerprint;
pub mod flight;
mod gather;
pub mod identity;
pub mod judge;
pub mod key;
pub mod layer;
mod multipart;
pub mod naming;
pub mod permit;
pub mod rule;

pub use answer::Answer;
pub use body::Told;
pub use claim::{
    Bid, Census, Claim, Finding, Kept, Records, ResponseSummary, State, StoreError, Terms,
};
pub use field::FieldError;
pub use fingerprint::{Fingerprint, Mismatch};
pub use flight::{Ending, Flight, Vigil, Waiting};
pub use identity::{ClientHash, KeyHash, RecordId, ScopeHash, Secret};
pub use judge::Undone;
pub use key::{IdempotencyKey, KeyError};
pub use layer::{Idempotency, IdempotencyLayer};
pub use naming::{Names, Naming};
pub use permit::{Desk, Permit, Ticket};
pub use rule::{InFlightPolicy, OnServerError, OnUnknown, Requirement, Rule, Scope};
