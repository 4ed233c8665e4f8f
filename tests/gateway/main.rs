//! The gateway from outside: real sockets, real clients, real upstreams.

mod harness;

mod cors;
mod delay;
mod forwarding;
mod identity;
mod paths;
mod refusal;
mod throttle;
mod upstreams;
