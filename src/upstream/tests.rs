//! What tests of other modules need of the upstream stage.

pub(crate) mod in_memory;
