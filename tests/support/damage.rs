//! Damage to the files of a store on disk.
//!
//! Included by path, like `redis.rs`: tests of the store and of the gateway use it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// A kind of damage to a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// The byte at this offset has another value.
    Flip(u64),
    /// Four kibibytes from this offset are zero.
    Hole(u64),
    /// The file ends at this offset.
    Cut(u64),
    /// The file is missing.
    Gone,
}

impl Damage {
    /// Damages `file`.
    pub(crate) fn strike(self, file: &Path) {
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).open(file).unwrap()
        };
        match self {
            Self::Flip(at) => {
                let file = open();
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            }
            Self::Hole(at) => {
                let file = open();
                let length = file.metadata().unwrap().len();
                let size = usize::try_from((length - at).min(4_096)).unwrap();
                file.write_all_at(&vec![0; size], at).unwrap();
            }
            Self::Cut(at) => open().set_len(at).unwrap(),
            Self::Gone => fs::remove_file(file).unwrap(),
        }
    }
}

/// Copies a directory. Tables never change, so they are linked; the zeros at the end of a journal are not written.
pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else if from.ends_with("tables") {
            fs::hard_link(entry.path(), &to).unwrap();
        } else {
            write_sparsely(&to, &fs::read(entry.path()).unwrap());
        }
    }
}

pub(crate) fn write_sparsely(path: &Path, content: &[u8]) {
    fs::write(path, &content[..used(content)]).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(content.len() as u64).unwrap();
}

/// Returns the number of bytes up to the last that is not zero.
pub(crate) fn used(content: &[u8]) -> usize {
    content
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1)
}
