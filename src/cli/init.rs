//! `tidegate init`: writes a configuration to start from.

use std::fs::{self, File};
use std::io::{ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

const STARTER: &str = include_str!("../../config/starter.toml");

const EXAMPLES: &str = "\
Examples:
  tidegate init
  tidegate init gateway.toml";

/// Write a commented configuration to start from. An existing file is not changed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// File to write
    #[arg(default_value = "tidegate.toml")]
    file: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    write_starter(&args.file)?;
    let file = args.file.display();
    writeln!(
        stdout(),
        "{file}: written\n\n\
         It forwards to http://127.0.0.1:9000: write the address of your API in `servers`. Then run:\n  \
         tidegate check {file}\n  \
         tidegate serve {file}"
    )?;
    Ok(ExitCode::SUCCESS)
}

fn write_starter(path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    let mut file = match File::create_new(path) {
        Ok(file) => file,
        Err(_) if path.is_dir() => bail!(
            "{name} is a directory\n\nName a file in it: tidegate init {}",
            path.join("tidegate.toml").display()
        ),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
            "{name} already exists, and is not overwritten\n\nWrite another file: tidegate init {}",
            path.with_extension("new.toml").display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "cannot write {name}: its directory does not exist\n\nCreate the directory first: mkdir -p {}",
            path.parent().unwrap_or(path).display()
        ),
        Err(error) => return Err(error).with_context(|| format!("cannot write {name}")),
    };
    // A part of the file would be an invalid configuration, and the next `init` would not overwrite it.
    file.write_all(STARTER.as_bytes())
        .inspect_err(|_| drop(fs::remove_file(path)))
        .with_context(|| format!("cannot write {name}"))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn error(path: &Path) -> String {
        format!("{:#}", write_starter(path).unwrap_err())
    }

    #[test]
    fn an_existing_file_or_link_is_not_changed() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("gate.toml");
        write_starter(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), STARTER);

        fs::write(&path, "mine").unwrap();
        assert!(error(&path).contains("gate.toml already exists"));
        assert!(error(&path).ends_with("/gate.new.toml"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");

        let dangling = directory.path().join("link.toml");
        std::os::unix::fs::symlink("target.toml", &dangling).unwrap();
        assert!(error(&dangling).contains("link.toml already exists"));
        assert!(!directory.path().join("target.toml").exists());
    }

    #[test]
    fn a_path_that_cannot_be_a_file_is_an_error_with_a_remedy() {
        let directory = TempDir::new().unwrap();
        let inside = directory.path().join("etc/gate.toml");
        assert!(error(&inside).contains("its directory does not exist"));
        assert!(error(&inside).ends_with("/etc"));
        assert!(error(directory.path()).contains("is a directory"));
        assert!(error(directory.path()).ends_with("/tidegate.toml"));
        assert!(error(Path::new("/dev/null/gate.toml")).contains("Not a directory"));
    }
}
