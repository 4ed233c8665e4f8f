//! Crash tests of the disk store: killed processes, full disks, failing writes and damaged files.
//!
//! The gateway runs as a separate process on a real file system. The module `repeated_kills` kills it under load many
//! times and checks every idempotency key. `failpoints` crashes it at each step of one request. `full_disk`,
//! `write_failures` and `journal_damage` test failures of the disk. `lookup_memory` measures the memory use of a
//! lookup.

mod execution_log;
mod failpoints;
mod full_disk;
mod journal_damage;
mod key_tracker;
mod lookup_memory;
mod repeated_kills;
mod setup;
mod write_failures;
