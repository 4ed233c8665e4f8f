//! Integration tests. They share one binary, because every test binary links the complete crate.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "../support/harness.rs"]
mod support;

mod configs;
mod crash;
mod docs;
mod fleet;
mod gateway;
mod lab;
mod retry;
