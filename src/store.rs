//! Where buckets are kept.
//!
//! The traits belong to their users; what is here implements them. [`memory`] is the only one in this
//! version.

pub mod memory;
