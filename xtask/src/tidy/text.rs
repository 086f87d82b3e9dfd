//! Rules about the text of single files.

use super::{Finding, is_test};

/// Longest source file. What does not fit has two subjects.
const MAX_LINES: usize = 650;
/// Largest file: test data is small, models are fetched.
const MAX_BYTES: usize = 4 << 20;

/// Where `unsafe` may be: the kernels, the mapping of files, the border to other languages.
const UNSAFE_ALLOWED: &[&str] =
    &["core/kernels/", "core/gguf/src/file.rs", "bindings/", "xtask/cross/unwind/"];

/// Files that people write, by extension.
const TEXT: &[&str] =
    &["rs", "toml", "md", "sh", "py", "kt", "kts", "swift", "java", "xml", "yml", "yaml", "gradle", "c", "h"];

/// Words that are no part of a finished file. Written in pieces, so that this file has none of them.
fn leftovers() -> [(String, &'static str); 12] {
    let join = |a: &str, b: &str| format!("{a}{b}");
    [
        (join("TO", "DO"), "finish it, or file an issue"),
        (join("FIX", "ME"), "finish it, or file an issue"),
        (join("to", "do!("), "finish it"),
        (join("unimple", "mented!("), "finish it"),
        (join("db", "g!("), "left over from debugging"),
        (join("#[ign", "ore"), "a test runs or it does not exist"),
        (join("/wo", "rk/"), "a path of one machine"),
        (join("/ro", "ot/"), "a path of one machine"),
        (join("/ho", "me/"), "a path of one machine"),
        (join("/tm", "p/"), "a path of one machine: use a temporary directory"),
        (join("<<<<", "<<< "), "an unfinished merge"),
        (join(">>>>", ">>> "), "an unfinished merge"),
    ]
}

pub fn size(name: &str, bytes: usize, findings: &mut Vec<Finding>) {
    if bytes > MAX_BYTES {
        findings.push((
            name.into(),
            0,
            format!("{bytes} bytes: files above {MAX_BYTES} are fetched, not committed"),
        ));
    }
}

pub fn check(name: &str, content: &str, findings: &mut Vec<Finding>) {
    if name == "Cargo.lock" || name.starts_with("LICENSE") || is_data(name) {
        return;
    }
    let extension = name.rsplit_once('.').map_or("", |(_, e)| e);
    if !TEXT.contains(&extension) && !name.ends_with("/run") {
        return;
    }
    let mut say = |line: usize, what: String| findings.push((name.into(), line, what));
    if !content.is_empty() && !content.ends_with('\n') {
        say(0, "no newline at the end".into());
    }
    let leftovers = leftovers();
    for (i, line) in content.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            say(i + 1, "white space at the end".into());
        }
        for (word, why) in &leftovers {
            if line.contains(word.as_str()) {
                say(i + 1, format!("`{word}`: {why}"));
            }
        }
    }
    if !name.ends_with(".rs") {
        return;
    }
    if !content.starts_with("//!") && !content.starts_with("#![") && !is_test(name) {
        say(0, "begins without `//!`: say what the file is for".into());
    }
    let lines = content.lines().count();
    if lines > MAX_LINES && !is_test(name) {
        say(0, format!("{lines} lines: more than {MAX_LINES} is more than one subject"));
    }
    unsafe_code(name, content, &mut say);
}

/// Test data and recorded measurements are as they are.
fn is_data(name: &str) -> bool {
    name.contains("/data/") || name.contains("/corpus/") || name.contains("benches/record/")
}

fn unsafe_code(name: &str, content: &str, say: &mut impl FnMut(usize, String)) {
    let allowed = UNSAFE_ALLOWED.iter().any(|prefix| name.starts_with(prefix));
    // A file of thin wrappers may give one reason for all of them; clippy then wants a reason for the exception.
    let once = content.contains("undocumented_unsafe_blocks, reason");
    let lines: Vec<&str> = content.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if !UNSAFE_FORMS.iter().any(|form| code.contains(&["un", "safe", form].concat())) {
            continue;
        }
        if !allowed && !is_test(name) {
            say(i + 1, format!("unsafe code is allowed only in {}", UNSAFE_ALLOWED.join(", ")));
        }
        // Blocks and impls need the comment; clippy checks blocks too, but not inside macros.
        let block = code.contains(&["un", "safe {"].concat()) || code.contains(&["un", "safe impl"].concat());
        let before = lines.get(i.saturating_sub(8)..=i).unwrap_or_default();
        if block && !once && !before.iter().any(|l| l.contains("SAFETY")) {
            say(i + 1, "unsafe without a `// SAFETY:` comment above it".into());
        }
    }
}

/// What follows the word where it is code and no talk about it.
const UNSAFE_FORMS: &[&str] = &[" {", " fn", " impl", " extern", " trait", "(no_mangle"];

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, content: &str) -> usize {
        let mut out = Vec::new();
        check(name, content, &mut out);
        out.len()
    }

    #[test]
    fn clean_files_pass_and_others_do_not() {
        assert_eq!(count("core/a/src/lib.rs", "//! Fine.\n"), 0);
        assert_eq!(count("core/a/src/lib.rs", "fn undocumented() {}\n"), 1);
        assert_eq!(count("README.md", "no newline"), 1);
        assert_eq!(count("README.md", "space at the end \n"), 1);
        assert_eq!(count("README.md", &format!("see {}models\n", ["/ro", "ot/"].concat())), 1);
        let long = format!("//! Long.\n{}", "\n".repeat(MAX_LINES));
        assert_eq!(count("core/a/src/lib.rs", &long), 1);
        assert_eq!(count("core/a/tests/big.rs", &long), 0);
    }

    #[test]
    fn unsafe_needs_a_place_and_a_reason() {
        let bare = ["//! x\nfn f() { un", "safe { g() } }\n"].concat();
        assert_eq!(count("core/kernels/src/a.rs", &bare), 1);
        assert_eq!(count("core/engine/src/a.rs", &bare), 2);
        let reasoned = bare.replace("fn f", "// SAFETY: g has no precondition.\nfn f");
        assert_eq!(count("core/kernels/src/a.rs", &reasoned), 0);
        assert_eq!(count("core/engine/src/a.rs", "//! x\n// unsafe is only mentioned\n"), 0);
    }
}
