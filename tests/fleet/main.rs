//! Gateways that share a Redis: several of them on one server or one cluster, and what can happen to it.
//!
//! Gateways, servers and sockets are real, and so is what happens to them. `duplicates` come to all gateways
//! at once; `frozen` is about one that stands still or dies, and `clocks` about one whose clock is wrong;
//! `faults` are what happens to Redis under `load`; `reached` and `bad_input` are about getting to it at
//! all. `servers` is about the servers that the others are tested against: that they do what a test asks
//! for.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/redis.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "what is shared with other tests is not all used here"
)]
mod redis;

mod api;
mod bad_input;
mod clocks;
mod duplicates;
mod faults;
mod formats;
mod frozen;
mod gateways;
mod harness;
mod load;
mod reached;
mod servers;
mod shares;
mod slow;
