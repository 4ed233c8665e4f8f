//! What is left when something breaks: the gateway killed at any instant, the disk full, files damaged.
//!
//! The gateway is always a process of its own, ended as a crash would end it, and the file systems are
//! real. `campaign` kills it under load again and again and holds it to its promises about every key;
//! `failpoints` kills it at each step of one request; `full_disk` and `damage` are about the disk.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod book;
mod campaign;
mod damage;
#[cfg(feature = "failpoints")]
mod failing;
#[cfg(feature = "failpoints")]
mod failpoints;
mod full_disk;
mod harness;
mod ledger;
mod lookup;
mod scene;
#[path = "../support/small_disk.rs"]
#[allow(dead_code, reason = "tests of the store use the rest")]
mod small_disk;
