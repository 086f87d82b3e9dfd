//! The cross toolchain: a compiler for other systems, linkers, and an emulator, as packages of the distribution, unpacked into one folder
//! of the user's cache. Nothing outside of it changes, and nothing needs the rights of an administrator.
//!
//! ```text
//! apt/    package lists of the machine's own sources, for two architectures    rust/   rustc, its library as source and for arm64, llvm
//! cross/  gcc and libc for arm64                                               qemu/   the emulator
//! bin/    commands that know where all of this is
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::{Result, sh};

/// Written last, with the versions: a folder without it is incomplete.
const COMPLETE: &str = "complete";

/// Programs of llvm that other commands call by their plain names.
const LLVM: [&str; 12] = [
    "ld.lld",
    "ld64.lld",
    "llvm-ar",
    "llvm-nm",
    "llvm-readelf",
    "llvm-objdump",
    "llvm-objcopy",
    "llvm-strip",
    "llvm-ifs",
    "llvm-lipo",
    "llvm-otool",
    "llvm-size",
];

pub struct Cross {
    dir: PathBuf,
}

/// `cargo xtask cross`: the toolchain, made if it is not there.
pub fn setup(mut args: lexopt::Parser) -> Result {
    if let Some(arg) = args.next().map_err(|e| e.to_string())? {
        return Err(arg.unexpected().to_string());
    }
    let cross = Cross::ensure()?;
    println!("{}", cross.dir.display());
    Ok(())
}

impl Cross {
    /// The toolchain in `PANNIER_CROSS` or the user's cache; fetched if it is not there yet.
    pub fn ensure() -> Result<Cross> {
        let dir = match std::env::var_os("PANNIER_CROSS").filter(|v| !v.is_empty()) {
            Some(dir) => std::path::absolute(&dir).map_err(|e| format!("PANNIER_CROSS: {e}"))?,
            None => dirs::cache_dir()
                .map(|d| d.join("pannier").join("cross"))
                .ok_or("this system names no cache directory: set PANNIER_CROSS")?,
        };
        let cross = Cross { dir };
        if let Err(why) = cross.check() {
            eprintln!("== cross toolchain: {why}; fetching it");
            let start = Instant::now();
            cross.fetch()?;
            cross.check()?;
            eprintln!("== cross toolchain: {:.1} s", start.elapsed().as_secs_f32());
        }
        Ok(cross)
    }

    pub fn bin(&self, name: &str) -> PathBuf {
        self.dir.join("bin").join(name)
    }

    /// Whether compiler, linker and emulator answer.
    fn check(&self) -> Result {
        if !self.dir.join(COMPLETE).exists() {
            return Err(format!("not in {}", self.dir.display()));
        }
        for (name, argument) in
            [("rustc", "--version"), ("aarch64-linux-gnu-gcc", "--version"), ("run-aarch64", "--version")]
        {
            output(Command::new(self.bin(name)).arg(argument))?;
        }
        Ok(())
    }

    fn fetch(&self) -> Result {
        let supported = cfg!(all(target_os = "linux", target_arch = "x86_64"));
        if !supported || output(Command::new("apt-get").arg("--version")).is_err() {
            return Err("the cross toolchain is made of Debian packages for x86-64: on other systems, set \
                        PANNIER_CROSS to a folder with bin/rustc, bin/rustdoc, bin/aarch64-linux-gnu-gcc, \
                        bin/run-aarch64 (qemu; -cpu $QCPU) and an empty file `complete`"
                .into());
        }
        for folder in [
            "apt/etc/sources.list.d",
            "apt/etc/preferences.d",
            "apt/etc/apt.conf.d",
            "apt/state/lists/partial",
            "apt/cache/archives/partial",
            "debs",
            "bin",
        ] {
            make_folder(&self.dir.join(folder))?;
        }
        let lists = self.lists()?;
        self.download(&lists.packages)?;
        self.unpack()?;
        self.commands(&lists)?;
        for folder in ["debs", "apt/cache"] {
            // Only to give space back.
            let _ = fs::remove_dir_all(self.dir.join(folder));
        }
        write(&self.dir.join(COMPLETE), &format!("rust {}\nllvm {}\n", lists.rust, lists.llvm))
    }

    /// A command of apt with a configuration of our own, which needs no rights and knows both architectures.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.dir.join("apt/apt.conf"));
        command
    }

    /// Fetches the package lists of the machine's own sources, and finds out the names of versions.
    fn lists(&self) -> Result<Lists> {
        let apt = self.dir.join("apt");
        // Only the distribution itself: what else a machine has may not be signed for us.
        let list = "sources.list.d/debian.sources";
        let (system, own) = (Path::new("/etc/apt"), apt.join("etc"));
        if system.join(list).exists() {
            copy(&system.join(list), &own.join(list))?;
            write(&own.join("sources.list"), "")?;
        } else {
            copy(&system.join("sources.list"), &own.join("sources.list"))?;
        }
        write(&apt.join("state/status"), "")?;
        let at = apt.display();
        write(
            &apt.join("apt.conf"),
            &format!(
                "Dir::Etc \"{at}/etc\"; Dir::Etc::SourceList \"{at}/etc/sources.list\";\n\
                 Dir::Etc::SourceParts \"{at}/etc/sources.list.d\";\n\
                 Dir::State \"{at}/state\"; Dir::State::status \"{at}/state/status\"; Dir::Cache \"{at}/cache\";\n\
                 APT::Architecture \"amd64\"; APT::Architectures {{ \"amd64\"; \"arm64\"; }};\n\
                 APT::Sandbox::User \"root\"; Acquire::Languages \"none\";\n"
            ),
        )?;
        output(self.apt("apt-get").args(["-qq", "update"]))?;
        let versions = output(self.apt("apt-cache").args(["madison", "rustc-web"]))?;
        let version =
            versions.split('|').nth(1).map(str::trim).ok_or("the distribution has no package rustc-web")?;
        let rust = version.split('+').next().unwrap_or(version).to_owned();
        let series = rust.rsplit_once('.').map_or(rust.as_str(), |(series, _)| series);
        let library = format!("libstd-rust-web-{series}");
        let llvm = number_after(&self.depends(&library)?, "libllvm")
            .ok_or_else(|| format!("{library} names no libllvm"))?;
        let gcc = number_after(&self.depends("gcc-aarch64-linux-gnu")?, "gcc-")
            .ok_or("gcc-aarch64-linux-gnu names no version")?;
        let mut packages: Vec<String> = vec![
            format!("rustc-web={version}"),
            format!("{library}:amd64={version}"),
            format!("libstd-rust-web-dev:amd64={version}"),
            format!("libstd-rust-web-dev:arm64={version}"),
            format!("rust-web-src={version}"),
            format!("libllvm{llvm}:amd64"),
            format!("lld-{llvm}:amd64"),
            format!("llvm-{llvm}:amd64"),
            format!("gcc-{gcc}-aarch64-linux-gnu"),
            format!("cpp-{gcc}-aarch64-linux-gnu"),
            format!("libgcc-{gcc}-dev-arm64-cross"),
        ];
        packages.extend(
            [
                "qemu-user-static:amd64",
                "binutils-aarch64-linux-gnu",
                "libc6-arm64-cross",
                "libc6-dev-arm64-cross",
                "linux-libc-dev-arm64-cross",
                "libgcc-s1-arm64-cross",
            ]
            .map(str::to_owned),
        );
        Ok(Lists { rust, llvm, gcc, packages })
    }

    fn depends(&self, package: &str) -> Result<String> {
        output(self.apt("apt-cache").args(["depends", package]))
    }

    /// One by one, so that what is missing can be told.
    fn download(&self, packages: &[String]) -> Result {
        let mut missing = Vec::new();
        for package in packages {
            let mut command = self.apt("apt-get");
            command.args(["-qq", "download", package]).current_dir(self.dir.join("debs"));
            if let Err(e) = output(&mut command) {
                eprintln!("   could not fetch {package}: {e}");
                missing.push(package.as_str());
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(format!("could not fetch {} of {}: {}", missing.len(), packages.len(), missing.join(", ")))
    }

    fn unpack(&self) -> Result {
        let entries = fs::read_dir(self.dir.join("debs")).map_err(|e| format!("debs: {e}"))?;
        for path in entries.flatten().map(|e| e.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let one_of = |starts: &[&str]| starts.iter().any(|s| name.starts_with(s));
            if one_of(&["rust-web-src"]) {
                // Half a gigabyte, of which the standard library is needed.
                self.unpack_part(
                    &path,
                    "rust",
                    &["--wildcards", "./usr/src/*/library/*", "./usr/lib/rustlib/src/*"],
                )?;
            } else if one_of(&["qemu-user-static"]) {
                self.unpack_part(&path, "qemu", &["./usr/bin/qemu-aarch64-static"])?;
            } else {
                let rust = one_of(&["rustc-web", "libstd-rust-web", "libllvm", "lld-", "llvm-"]);
                let to = self.dir.join(if rust { "rust" } else { "cross" });
                output(Command::new("dpkg").arg("-x").arg(&path).arg(to))?;
            }
        }
        // The linker script names files of an installed system.
        let script = self.dir.join("cross/usr/aarch64-linux-gnu/lib/libc.so");
        let text = fs::read_to_string(&script).map_err(|e| format!("{}: {e}", script.display()))?;
        write(&script, &text.replace("/usr/aarch64-linux-gnu/lib/", ""))
    }

    /// Some files of a package.
    fn unpack_part(&self, package: &Path, to: &str, files: &[&str]) -> Result {
        let to = self.dir.join(to);
        make_folder(&to)?;
        let mut archive = Command::new("dpkg")
            .arg("--fsys-tarfile")
            .arg(package)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("dpkg: {e}"))?;
        let stdout = archive.stdout.take().ok_or("dpkg gives no archive")?;
        output(Command::new("tar").arg("x").arg("-C").arg(&to).args(files).stdin(stdout))?;
        let status = archive.wait().map_err(|e| format!("dpkg: {e}"))?;
        if status.success() { Ok(()) } else { Err(format!("dpkg on {} failed", package.display())) }
    }

    /// Commands that set the search path of libraries and go on.
    fn commands(&self, lists: &Lists) -> Result {
        let at = self.dir.display();
        let rust = format!("{at}/rust/usr");
        let libraries = format!("{rust}/lib/x86_64-linux-gnu");
        for name in ["rustc", "rustdoc"] {
            // Cargo adds folders of its own, for procedural macros.
            let path = format!("\"{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"");
            self.script(name, &format!("LD_LIBRARY_PATH={path} exec \"{rust}/bin/{name}\" \"$@\""))?;
        }
        for name in LLVM {
            let program = format!("{rust}/bin/{name}-{}", lists.llvm);
            self.script(name, &format!("LD_LIBRARY_PATH=\"{libraries}\" exec \"{program}\" \"$@\""))?;
        }
        let gcc = format!("{at}/cross/usr/bin/aarch64-linux-gnu-gcc-{}", lists.gcc);
        let libraries = format!("{at}/cross/usr/lib/x86_64-linux-gnu");
        self.script(
            "aarch64-linux-gnu-gcc",
            &format!("LD_LIBRARY_PATH=\"{libraries}\" exec \"{gcc}\" \"$@\""),
        )?;
        let qemu = format!("{at}/qemu/usr/bin/qemu-aarch64-static");
        let root = format!("{at}/cross/usr/aarch64-linux-gnu");
        // QLOG: see `count.rs`.
        self.script(
            "run-aarch64",
            &format!("exec \"{qemu}\" -cpu \"${{QCPU:-max}}\" -L \"{root}\" ${{QLOG:+$QLOG}} \"$@\""),
        )?;
        copy(&sh::root().join("xtask/cross/android-cc"), &self.bin("android-cc"))
    }

    fn script(&self, name: &str, line: &str) -> Result {
        let path = self.bin(name);
        write(&path, &format!("#!/bin/sh\n{line}\n"))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(())
    }
}

struct Lists {
    rust: String,
    llvm: String,
    gcc: String,
    packages: Vec<String>,
}

/// The digits that follow the first occurrence of `before` that has any.
fn number_after(text: &str, before: &str) -> Option<String> {
    text.match_indices(before)
        .map(|(at, _)| {
            let rest = text.get(at + before.len()..).unwrap_or_default();
            rest.chars().take_while(char::is_ascii_digit).collect::<String>()
        })
        .find(|digits| !digits.is_empty())
}

/// What a command prints, or how it failed.
fn output(command: &mut Command) -> Result<String> {
    let name =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("cannot run {name}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message").trim().to_owned();
    Err(format!("{name} failed ({}): {last}", output.status))
}

fn make_folder(path: &Path) -> Result {
    fs::create_dir_all(path).map_err(|e| format!("cannot make {}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result {
    fs::copy(from, to).map(|_| ()).map_err(|e| format!("cannot copy {}: {e}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::number_after;

    #[test]
    fn versions_are_found_in_dependencies() {
        let text = "libstd-rust-web-1.96\n  Depends: libc6\n  Depends: libllvm22\n";
        assert_eq!(number_after(text, "libllvm").as_deref(), Some("22"));
        let text =
            "gcc-aarch64-linux-gnu\n  Depends: cpp-aarch64-linux-gnu\n  Depends: gcc-12-aarch64-linux-gnu\n";
        assert_eq!(number_after(text, "gcc-").as_deref(), Some("12"));
        assert_eq!(number_after("nothing", "gcc-"), None);
    }
}
