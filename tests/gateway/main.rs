//! A running gateway, seen from outside.

mod wire_raw;
mod wire_requests;
