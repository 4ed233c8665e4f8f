//! Scenarios: scripted responses and faults, with which a client's retries are tested.
//!
//! The stage runs after the rate limits and before the idempotency stage. It also records what the client does
//! ([`observation`]), and the `lab` module judges the records.

pub(crate) mod observation;
