//! The servers themselves: a test is worth as much as what it is run against.

mod cluster;
mod faults;
mod impostors;
mod options;
mod time;
