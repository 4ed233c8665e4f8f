//! The gateway from outside: real sockets, real clients, real upstreams.

mod harness;

mod throttle;
