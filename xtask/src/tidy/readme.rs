//! The quick starts in the READMEs are code that tests compile and run: the two must be the same text, and short.

use super::Finding;

/// Longest quick start that is shown.
const MAX_LINES: usize = 15;

/// A language, and where its example is.
struct Example {
    language: &'static str,
    file: &'static str,
    readmes: &'static [&'static str],
    /// Whether the length is bound: the Rust one is a whole program.
    short: bool,
}

const EXAMPLES: &[Example] = &[
    Example {
        language: "rust",
        file: "core/engine/examples/quickstart.rs",
        readmes: &["README.md"],
        short: false,
    },
    Example {
        language: "kotlin",
        file: "android/src/test/kotlin/dev/pannier/QuickStartTest.kt",
        readmes: &["README.md", "android/README.md"],
        short: true,
    },
    Example {
        language: "swift",
        file: "ios/Tests/PannierTests/QuickStartTests.swift",
        readmes: &["README.md", "ios/README.md"],
        short: true,
    },
];

/// The code of an example: between its marks, or all but the line that says what the file is.
fn code(example: &str) -> Option<&str> {
    match example.split_once("// quick start\n") {
        Some((_, rest)) => rest.split_once("// end\n").map(|(code, _)| code),
        None => example.split_once("\n\n").map(|(_, code)| code),
    }
}

fn check(name: &str, readme: &str, example: &Example, text: &str, findings: &mut Vec<Finding>) {
    let fence = format!("```{}\n", example.language);
    let shown = readme.split_once(&fence).and_then(|(_, rest)| rest.split_once("```")).map(|(code, _)| code);
    let mut say = |what: String| findings.push((name.into(), 0, what));
    if shown.is_none() || shown != code(text) {
        say(format!("its {} quick start is not the code of {}", example.language, example.file));
    }
    let lines = shown.map_or(0, |code| code.lines().count());
    if example.short && lines > MAX_LINES {
        say(format!("its {} quick start has {lines} lines, more than {MAX_LINES}", example.language));
    }
}

/// All texts, read from the top of the repository.
pub fn check_files(root: &std::path::Path, findings: &mut Vec<Finding>) {
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_default();
    for example in EXAMPLES {
        let text = read(example.file);
        for readme in example.readmes {
            check(readme, &read(readme), example, &text, findings);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(language: usize, readme: &str, example: &str) -> usize {
        let mut findings = Vec::new();
        check("README.md", readme, &EXAMPLES[language], example, &mut findings);
        findings.len()
    }

    #[test]
    fn a_changed_quick_start_is_found() {
        let example = "//! What.\n\nfn main() {}\n";
        assert_eq!(count(0, "# T\n```rust\nfn main() {}\n```\n", example), 0);
        assert_eq!(count(0, "# T\n```rust\nfn main() { }\n```\n", example), 1);
        assert_eq!(count(0, "# T\n", example), 1);
    }

    #[test]
    fn only_what_is_between_the_marks_is_shown_and_it_is_short() {
        let example = "import x\n// quick start\nfun f() {}\n// end\nclass Test\n";
        assert_eq!(count(1, "```kotlin\nfun f() {}\n```\n", example), 0);
        let long = "f()\n".repeat(16);
        let example = format!("// quick start\n{long}// end\n");
        assert_eq!(count(1, &format!("```kotlin\n{long}```\n"), &example), 1);
    }
}
