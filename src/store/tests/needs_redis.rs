//! Tests of idempotency records in Redis.

mod claim_script;
mod two_gateways;
