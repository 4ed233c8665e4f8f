//! Arguments → command; nothing else.

fn main() {}
