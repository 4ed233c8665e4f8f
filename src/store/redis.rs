//! Buckets and records in Redis or Valkey, shared by a fleet of gateways.

pub mod settings;
