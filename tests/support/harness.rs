//! Test harness: an upstream, a gateway in front of it, and a client.
//!
//! Upstreams and gateways listen on a free port of a loopback address and stop when they are dropped. They run on their
//! own threads, so they continue while a test blocks its thread.

mod certificates;
mod child;
mod client;
#[allow(dead_code, reason = "the unit tests of the disk store use the rest")]
pub(crate) mod damage;
mod gateway;
pub(crate) mod load;
mod nginx;
mod process;
pub(crate) mod raw_http;
#[allow(
    dead_code,
    unused_imports,
    reason = "the unit tests of the stores use the rest"
)]
pub(crate) mod redis;
#[allow(dead_code, reason = "the unit tests of the disk store use the rest")]
pub(crate) mod small_disk;
mod unreachable;
mod upstream;
mod wait;

pub(crate) use certificates::Certificates;
pub(crate) use child::{KilledOnDrop, free_address};
pub(crate) use client::{
    Client, ClientRequest, ClientResponse, PersistentConnection, is_problem, is_unknown,
};
pub(crate) use gateway::{Gateway, GatewayBuilder};
pub(crate) use nginx::Nginx;
pub(crate) use process::{Process, ProcessBuilder, TIDEGATE, env_number};
pub(crate) use unreachable::{FullBacklog, RefusingPort};
pub(crate) use upstream::{Received, Reply, StatusSwitch, Upstream, empty, full, reply};
pub(crate) use wait::{TEST_TIMEOUT, eventually, wait_until};
