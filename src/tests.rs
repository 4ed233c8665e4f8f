//! Tests of the crate as a whole, which read its sources.

mod embed_dependencies;
mod embed_example;
mod module_layers;
mod one_entry;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns the source files, relative to `src`.
fn sources() -> Vec<PathBuf> {
    let mut folders = vec![root()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let path = path.strip_prefix(root()).expect("a path below the root");
                files.push(path.to_path_buf());
            }
        }
    }
    files
}
