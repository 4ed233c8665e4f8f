//! Tests of the crates that a build with some of the features compiles.

use std::collections::BTreeSet;
use std::process::Command;

/// Maximum number of crates that the feature `embed` compiles, including Tidegate itself.
const MAX_CRATES: usize = 120;

#[test]
fn the_embed_feature_compiles_at_most_120_crates() {
    let crates = crates("embed");
    assert!(has(&crates, "axum"), "{crates:#?}");
    for gateway_only in ["clap", "rustls", "toml", "schemars", "fjall", "redis"] {
        assert!(
            !has(&crates, gateway_only),
            "the feature `embed` compiles {gateway_only}"
        );
    }
    assert!(
        crates.len() <= MAX_CRATES,
        "{} crates: {crates:#?}",
        crates.len()
    );
}

#[test]
fn the_gateway_without_the_lab_compiles_no_crate_of_its_reports_and_certificates() {
    let (without, with) = (crates("gateway"), crates("gateway,lab"));
    for lab_only in ["rcgen", "textwrap"] {
        assert!(has(&with, lab_only), "{with:#?}");
        assert!(
            !has(&without, lab_only),
            "the feature `gateway` compiles {lab_only}"
        );
    }
}

/// Returns the names and versions of the crates that a build with these features compiles.
fn crates(features: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "--offline", "--edges", "normal,build"])
        .args(["--no-default-features", "--features", features])
        .args(["--prefix", "none", "--format", "{p}"])
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).expect("the output is UTF-8");
    let lines = text.lines();
    lines
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .collect()
}

fn has(crates: &BTreeSet<String>, name: &str) -> bool {
    let prefix = format!("{name} v");
    crates.iter().any(|line| line.starts_with(&prefix))
}
