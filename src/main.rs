//! Arguments → command; nothing else.

use std::process::ExitCode;

use clap::Parser as _;
use mimalloc::MiMalloc;
use tidegate::cli::{self, Cli};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match cli::run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
