//! Functions that damage the files of a disk store.
//!
//! The unit tests of the disk store include this file by path.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Kind of damage to a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    /// Inverts one bit of the byte at this offset.
    Flip(u64),
    /// Overwrites 4 KiB from this offset with zeros, or fewer bytes if the file ends earlier.
    Hole(u64),
    /// Truncates the file to this length.
    Cut(u64),
    /// Deletes the file.
    Gone,
}

impl Damage {
    /// Applies the damage to `file`.
    pub(crate) fn apply(self, file: &Path) {
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

/// Copies the directory of a disk store into the existing directory `to`. Table files are hard-linked, because the
/// store never changes them. Zeros at the end of other files are not written, so these copies are sparse.
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

/// Writes a file whose trailing zeros use no disk space.
pub(crate) fn write_sparsely(path: &Path, content: &[u8]) {
    fs::write(path, &content[..used(content)]).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(content.len() as u64).unwrap();
}

/// Returns the length of `content` without trailing zeros.
pub(crate) fn used(content: &[u8]) -> usize {
    content
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1)
}
