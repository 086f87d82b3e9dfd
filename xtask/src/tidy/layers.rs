//! Who may use whom: between crates, and between the rooms of the engine.

use super::{Finding, is_test};

/// Each crate with what it may use of ours. Cargo would allow every acyclic graph; this is the one in ARCHITECTURE.md.
const CRATES: &[(&str, &[&str])] = &[
    ("core/gguf", &[]),
    ("core/kernels", &[]),
    ("core/tokenizer", &["pannier-gguf"]),
    ("core/engine", &["pannier-gguf", "pannier-kernels", "pannier-tokenizer"]),
    ("core/hybrid", &["pannier-gguf", "pannier-tokenizer", "pannier"]),
    ("core/forge", &["pannier-gguf", "pannier-kernels", "pannier-tokenizer", "pannier"]),
    (
        "core/cli",
        &[
            "pannier-gguf",
            "pannier-kernels",
            "pannier-tokenizer",
            "pannier",
            "pannier-hybrid",
            "pannier-forge",
        ],
    ),
    ("bindings", &["pannier", "pannier-hybrid"]),
    // Compiles before everything else, so it uses nothing of ours.
    ("xtask", &[]),
];

/// Rooms of the engine, each with the rooms it must not know. `store`, `plan` and `session` stand on
/// top, and `lifecycle` on these.
const ROOMS: &[(&str, &[&str])] = &[
    (
        "memory",
        &["residency", "kv", "model", "speculate", "session", "sampling", "store", "plan", "lifecycle"],
    ),
    ("residency", &["kv", "model", "speculate", "session", "sampling", "store", "plan", "lifecycle"]),
    ("kv", &["residency", "model", "speculate", "session", "sampling", "store", "plan", "lifecycle"]),
    (
        "sampling",
        &["memory", "residency", "kv", "model", "speculate", "session", "store", "plan", "lifecycle"],
    ),
    ("model", &["speculate", "session", "store", "plan", "lifecycle"]),
    ("speculate", &["session", "store", "plan", "lifecycle"]),
    ("store", &["memory", "residency", "kv", "model", "speculate", "session", "sampling", "lifecycle"]),
    ("session", &["lifecycle"]),
];

pub fn check(name: &str, content: &str, findings: &mut Vec<Finding>) {
    if let Some(folder) = name.strip_suffix("/Cargo.toml") {
        manifest(name, folder, content, findings);
    }
    if let Some(rest) = name.strip_prefix("core/engine/src/")
        && !is_test(name)
    {
        room(name, rest, content, findings);
    }
    if name.starts_with("core/") && name.ends_with(".rs") {
        for (i, line) in content.lines().enumerate() {
            if !line.trim_start().starts_with("//") && line.to_ascii_lowercase().contains("uniffi") {
                findings.push((
                    name.into(),
                    i + 1,
                    "core/ knows no foreign language: UniFFI lives in bindings/".into(),
                ));
            }
        }
    }
}

fn manifest(name: &str, folder: &str, content: &str, findings: &mut Vec<Finding>) {
    let Some((_, allowed)) = CRATES.iter().find(|(path, _)| *path == folder) else { return };
    let mut in_dependencies = false;
    for (i, line) in content.lines().enumerate() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            // Tests may use what stands beside or above.
            in_dependencies = section.contains("dependencies") && !section.contains("dev-dependencies");
            continue;
        }
        let key: String =
            line.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '_').collect();
        let ours = key == "pannier" || key.starts_with("pannier-");
        if in_dependencies && ours && !allowed.contains(&key.as_str()) {
            findings.push((name.into(), i + 1, format!("{folder} must not use {key}")));
        }
    }
}

fn room(name: &str, rest: &str, content: &str, findings: &mut Vec<Finding>) {
    let room = rest.split(['/', '.']).next().unwrap_or_default();
    let Some((_, forbidden)) = ROOMS.iter().find(|(r, _)| *r == room) else { return };
    for (i, line) in content.lines().enumerate() {
        // Unit tests at the end of a file may use everything.
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        if line.trim_start().starts_with("//") {
            continue;
        }
        for other in *forbidden {
            if mentions(line, other) {
                findings.push((name.into(), i + 1, format!("`{room}` must not know `{other}`")));
            }
        }
    }
}

/// `crate::other` as a whole name.
fn mentions(line: &str, other: &str) -> bool {
    let needle = format!("crate::{other}");
    line.match_indices(&needle).any(|(at, _)| {
        line.get(at + needle.len()..)
            .and_then(|rest| rest.chars().next())
            .is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, content: &str) -> Vec<String> {
        let mut out = Vec::new();
        check(name, content, &mut out);
        out.into_iter().map(|(_, line, what)| format!("{line}: {what}")).collect()
    }

    #[test]
    fn upward_imports_are_found() {
        let up = findings(
            "core/engine/src/kv/mod.rs",
            "use crate::memory::Accountant;\nuse crate::model::Forward;\n",
        );
        assert_eq!(up, ["2: `kv` must not know `model`"]);
        assert_eq!(
            findings("core/engine/src/kv/mod.rs", "use crate::models;\n#[cfg(test)]\nuse crate::model;\n")
                .len(),
            0
        );
        let crates = findings(
            "core/gguf/Cargo.toml",
            "[dependencies]\npannier-kernels.workspace = true\n[dev-dependencies]\npannier.workspace = true\n",
        );
        assert_eq!(crates, ["2: core/gguf must not use pannier-kernels"]);
    }
}
