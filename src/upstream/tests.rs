//! Test support for other modules: servers without sockets.

pub(crate) mod in_memory;
