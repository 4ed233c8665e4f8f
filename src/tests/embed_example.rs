//! Test of the example that embeds the layers in an axum application.

use super::root;

/// Maximum number of lines of the example, without comments and empty lines.
const MAX_LINES: usize = 15;

#[test]
fn the_example_of_embedding_has_at_most_15_lines_of_code() {
    let path = root().join("../examples/embed_in_axum.rs");
    let text = std::fs::read_to_string(path).expect("the example is readable");
    let code: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//"))
        .collect();
    assert!(code.len() <= MAX_LINES, "{} lines", code.len());
    let text = code.join("\n");
    assert_eq!(text.matches("Limit::per_client").count(), 2, "{text}");
    assert!(text.contains("Some(KeyRule::default())"), "{text}");
    // The documentation contains the same program.
    let docs = std::fs::read_to_string(root().join("../docs/library.md"));
    let docs = docs.expect("the documentation is readable");
    let documented: Vec<&str> = docs
        .lines()
        .skip_while(|line| *line != code[0])
        .filter(|line| !line.is_empty())
        .take(code.len())
        .collect();
    assert_eq!(documented, code);
}
