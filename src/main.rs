//! The `tidegate` binary: parses the command-line arguments and runs the command.

use std::process::ExitCode;

use clap::Parser as _;
use mimalloc::MiMalloc;
use tidegate::cli::{self, Cli};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>();
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn main() -> ExitCode {
    match cli::run(Cli::parse()) {
        Ok(code) => code,
        // A broken pipe is not an error: the program that reads the output, such as `head`, has read enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
