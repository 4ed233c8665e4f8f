//! The retry lab: judges how a client retries.
//!
//! The input is the record of a scenario ([`Observed`](crate::scenario::observation::Observed)). [`operation`] groups
//! the requests into operations, [`rules`] judges the operations by one rule at a time, and [`report`] renders the
//! result for people and for programs. All of this is pure computation without I/O, so tests use simulated clients.

pub(crate) mod operation;
mod outcome;
pub(crate) mod report;
pub(crate) mod rules;
#[cfg(test)]
mod simulated;
pub(crate) mod verdict;
