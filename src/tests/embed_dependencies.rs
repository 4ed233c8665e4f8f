//! Test of the number of crates that an application compiles for the feature `embed`.

use std::collections::BTreeSet;
use std::process::Command;

/// Maximum number of crates that the feature `embed` compiles, including Tidegate itself.
const MAX_CRATES: usize = 120;

#[test]
fn the_embed_feature_compiles_at_most_120_crates() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "--offline", "--edges", "normal,build"])
        .args(["--no-default-features", "--features", "embed"])
        .args(["--prefix", "none", "--format", "{p}"])
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).expect("the output is UTF-8");
    let crates: BTreeSet<&str> = text
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .collect();
    assert!(text.contains("axum v"), "{text}");
    for gateway_only in ["clap", "rustls", "toml", "schemars", "fjall", "redis"] {
        let prefix = format!("{gateway_only} v");
        assert!(
            !crates.iter().any(|name| name.starts_with(&prefix)),
            "the feature `embed` compiles {gateway_only}"
        );
    }
    assert!(
        crates.len() <= MAX_CRATES,
        "{} crates:\n{text}",
        crates.len()
    );
}
