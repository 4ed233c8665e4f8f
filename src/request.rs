//! What a request is before any stage: its head, its client, its path, its route and its body.

pub mod body;
pub mod buffers;
pub mod client;
pub(crate) mod context;
#[cfg(feature = "gateway")]
mod enter;
pub(crate) mod hash_keys;
pub(crate) mod head;
pub(crate) mod headers;
pub(crate) mod log_fields;
pub(crate) mod methods;
#[cfg(feature = "gateway")]
pub(crate) mod path;
pub(crate) mod request_id;
#[cfg(feature = "gateway")]
pub(crate) mod route;
pub(crate) mod test_id;

#[cfg(feature = "gateway")]
pub(crate) use enter::{Entered, EntryRule, EntrySettings, Rejected, enter};
