//! The gateway from outside: real sockets, real clients, real upstreams.

mod harness;

mod admin;
mod commands;
mod connections;
mod cors;
mod delay;
mod forwarding;
mod identity;
mod lifecycle;
mod listeners;
mod paths;
mod refusal;
mod throttle;
mod upstreams;
