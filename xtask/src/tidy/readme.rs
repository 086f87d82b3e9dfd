//! The README's quick start is an example that the tests compile: the two must be the same text.

use super::Finding;

const EXAMPLE: &str = "core/engine/examples/quickstart.rs";

pub fn check(readme: &str, example: &str, findings: &mut Vec<Finding>) {
    let shown =
        readme.split_once("```rust\n").and_then(|(_, rest)| rest.split_once("```")).map(|(code, _)| code);
    // Without the line that says what the file is.
    let code = example.split_once("\n\n").map(|(_, code)| code);
    if shown.is_none() || shown != code {
        findings.push(("README.md".into(), 0, format!("its Rust quick start is not the code of {EXAMPLE}")));
    }
}

/// Both texts, read from the top of the repository.
pub fn check_files(root: &std::path::Path, findings: &mut Vec<Finding>) {
    let read = |name| std::fs::read_to_string(root.join(name)).unwrap_or_default();
    check(&read("README.md"), &read(EXAMPLE), findings);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_quick_start_is_found() {
        let example = "//! What.\n\nfn main() {}\n";
        let mut findings = Vec::new();
        check("# T\n```rust\nfn main() {}\n```\n", example, &mut findings);
        assert!(findings.is_empty());
        check("# T\n```rust\nfn main() { }\n```\n", example, &mut findings);
        check("# T\n", example, &mut findings);
        assert_eq!(findings.len(), 2);
    }
}
