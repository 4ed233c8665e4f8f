//! Test support for other modules.

pub(crate) mod in_memory;
