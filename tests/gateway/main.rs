//! The gateway from outside: real sockets, real clients, real upstreams.

mod harness;

mod cors;
mod delay;
mod refusal;
mod throttle;
