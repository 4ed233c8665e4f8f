//! The servers themselves: a test is worth as much as what it is run against.

#[path = "../gateway/harness/certificates.rs"]
#[allow(
    dead_code,
    reason = "the certificates are those of the gateway's tests, which use all of it"
)]
mod certificates;

mod cluster;
mod faults;
mod impostors;
mod options;
mod time;
