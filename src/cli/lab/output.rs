//! Output of a lab run: the table, and report files. The files are opened before the run, so that a wrong path is
//! reported before the client runs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::lab::report::document::Document;
use crate::lab::report::{html, junit, markdown, terminal};

const STDOUT: &str = "-";

/// Width of a table that is not written to a terminal, in columns.
const DEFAULT_WIDTH: usize = 100;

#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    Json,
    Junit,
    Markdown,
    Html,
}

/// A file that did not exist is removed if no report is written to it.
#[derive(Debug)]
pub(super) struct Output {
    format: Format,
    path: PathBuf,
    /// `None` for standard output.
    file: Option<File>,
    is_unused: bool,
}

impl Output {
    /// The content is not changed before [`write`](Self::write). A new private file is readable only by its owner.
    fn open(format: Format, path: &Path, is_private: bool) -> anyhow::Result<Self> {
        let is_file = path != Path::new(STDOUT);
        let is_unused = is_file && !path.exists();
        let open = || {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(if is_private { 0o600 } else { 0o666 })
                .open(path)
                .with_context(|| format!("cannot write the report to {}", path.display()))
        };
        Ok(Self {
            format,
            path: path.to_owned(),
            file: is_file.then(open).transpose()?,
            is_unused,
        })
    }

    pub(super) fn write(&mut self, document: &Document) -> anyhow::Result<()> {
        let text = match self.format {
            Format::Json => document.to_json(),
            Format::Junit => junit::render(document),
            Format::Markdown => markdown::render(document),
            Format::Html => html::render(document),
        };
        self.is_unused = false;
        match &mut self.file {
            None => print(&text),
            Some(file) => replace(file, &text)
                .with_context(|| format!("cannot write {}", self.path.display())),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_unused {
            // An error is ignored: the empty file does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn replace(file: &mut File, text: &str) -> io::Result<()> {
    // A pipe or device cannot be truncated and does not need to be.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    file.write_all(text.as_bytes())
}

/// Opens the files that are given. Two reports in one file, or on standard output, are an error.
pub(super) fn open_all(
    files: [(Format, &Option<PathBuf>); 4],
    is_private: bool,
) -> anyhow::Result<Vec<Output>> {
    let mut outputs: Vec<Output> = Vec::new();
    for (format, path) in files {
        let Some(path) = path else { continue };
        if outputs.iter().any(|earlier| earlier.path == *path) {
            let path = path.display();
            bail!("two reports cannot be written to the same file: {path}");
        }
        outputs.push(Output::open(format, path, is_private)?);
    }
    Ok(outputs)
}

/// Prints the table to standard output, or to standard error if a report goes to standard output.
pub(super) fn print_table(document: &Document, outputs: &[Output]) -> anyhow::Result<()> {
    let width = match rustix::termios::tcgetwinsize(io::stdout()) {
        // A terminal can report 0 columns if its size is not known.
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => DEFAULT_WIDTH,
    };
    let table = terminal::render(document, has_colour(&io::stdout()), width);
    if outputs.iter().any(|output| output.file.is_none()) {
        eprint!("{table}");
        return Ok(());
    }
    print(&table)
}

pub(super) fn has_colour(output: &impl io::IsTerminal) -> bool {
    output.is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// A closed pipe is not an error: the reader has read enough.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
