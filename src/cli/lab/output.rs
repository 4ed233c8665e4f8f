//! Report files of a lab run. They are opened before the run, so that a wrong path is reported before the client runs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::lab::report::document::Document;
use crate::lab::report::{html, junit, markdown};

const STDOUT: &str = "-";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// `None` for standard output.
    file: Option<OutputFile>,
}

#[derive(Debug)]
struct OutputFile {
    path: PathBuf,
    file: File,
    is_unused: bool,
}

impl Output {
    /// The content is not changed before [`write`](Self::write). A new private file is readable only by its owner.
    pub(super) fn open(format: Format, path: &Path, is_private: bool) -> anyhow::Result<Self> {
        let file = if path == Path::new(STDOUT) {
            None
        } else {
            Some(
                OutputFile::open(path, is_private)
                    .with_context(|| format!("cannot write the report to {}", path.display()))?,
            )
        };
        Ok(Self { format, file })
    }

    pub(super) fn is_stdout(&self) -> bool {
        self.file.is_none()
    }

    /// Also under different names.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        let identity = |output: &Self| {
            let metadata = output.file.as_ref()?.file.metadata().ok()?;
            metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
        };
        identity(self).is_some_and(|own| identity(other) == Some(own))
    }

    pub(super) fn write(&mut self, document: &Document) -> anyhow::Result<()> {
        let mut text = match self.format {
            Format::Json => document.to_json(),
            Format::Junit => junit::render(document),
            Format::Markdown => markdown::render(document),
            Format::Html => html::render(document),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        match &mut self.file {
            None => print(&text),
            Some(output) => {
                let written = output.write(text.as_bytes());
                written.with_context(|| format!("cannot write {}", output.path.display()))
            }
        }
    }
}

impl OutputFile {
    fn open(path: &Path, is_private: bool) -> io::Result<Self> {
        let is_unused = !path.exists();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(if is_private { 0o600 } else { 0o666 })
            .open(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_unused,
        })
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        self.is_unused = false;
        // A pipe or device cannot be truncated and does not need to be.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_unused {
            // An error is ignored: the empty file does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A closed pipe is not an error: the reader has read enough.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
