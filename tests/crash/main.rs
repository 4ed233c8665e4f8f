//! What is left when something breaks: the gateway killed at any instant, the disk full, files damaged.
//!
//! The gateway is always a process of its own, ended as a crash would end it, and the file systems are
//! real. `campaign` kills it under load again and again and holds it to its promises about every key;
//! `failpoints` kills it at each step of one request; `full_disk`, `damage` and `space` are about the disk.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../stores/bench.rs"]
#[allow(
    dead_code,
    reason = "the bench is that of the stores' tests, which use all of it"
)]
mod bench;
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
#[path = "../support/redis.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the bench can have its store in Redis, and has it on disk here"
)]
mod redis;
mod scene;
#[path = "../stores/server.rs"]
#[allow(
    dead_code,
    reason = "the bench can have its store in Redis, and has it on disk here"
)]
mod server;
mod space;
