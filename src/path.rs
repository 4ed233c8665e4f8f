//! One spelling for every path.
