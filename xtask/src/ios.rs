//! `cargo xtask ios`: the XCFramework and the Swift package for Apple's systems, made without Xcode.
//!
//! ```text
//! lib:     libpannier_ffi.a for devices and for the simulator on Apple silicon       xtask/cross/build-ios
//! package: XCFramework, zip, checksum, and a folder that SwiftPM takes               target/ios/Pannier
//! check:   `swift package describe` and `compute-checksum` on that folder
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::android::{archive, copy, read, write};
use crate::arm64::Cross;
use crate::sh::{root, run, target_dir};
use crate::{Result, bindgen, swift};

/// The name of the FFI module and of the framework.
const NAME: &str = "PannierFFI";
/// The framework's name of each kind of machine, Rust's, and what the plist says besides.
const SLICES: [(&str, &str, &str); 2] = [
    ("ios-arm64", "aarch64-apple-ios", ""),
    (
        "ios-arm64-simulator",
        "aarch64-apple-ios-sim",
        "\t\t\t<key>SupportedPlatformVariant</key>\n\t\t\t<string>simulator</string>\n",
    ),
];
/// What symbols of Security, Core Foundation and the Objective-C frameworks begin with. The rest is the system's library, which is always linked.
const FRAMEWORKS: [&str; 7] = ["_Sec", "_kSec", "_CF", "_kCF", "_NS", "_OBJC_", "_SC"];

pub fn run_command(mut args: lexopt::Parser) -> Result {
    let mut steps = Vec::new();
    while let Some(arg) = args.next().map_err(|e| e.to_string())? {
        match arg {
            lexopt::Arg::Value(step) => steps.push(step.to_string_lossy().into_owned()),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let wanted = |step: &str| steps.is_empty() || steps.iter().any(|s| s == step);
    if wanted("lib") {
        libraries()?;
    }
    if wanted("package") {
        package()?;
    }
    if wanted("check") {
        check()?;
    }
    Ok(())
}

fn out() -> PathBuf {
    target_dir().join("ios")
}

/// The folder that SwiftPM takes.
fn package_dir() -> PathBuf {
    out().join("Pannier")
}

fn libraries() -> Result {
    Cross::ensure()?;
    for (_, target, _) in SLICES {
        let mut command = Command::new(root().join("xtask/cross/build-ios"));
        command
            .arg(target)
            .arg(root())
            .args(["pannier-ffi", "pannier_ffi"])
            .arg(out().join("lib").join(target));
        run(&format!("building for {target}"), &mut command)?;
    }
    Ok(())
}

fn library(target: &str) -> PathBuf {
    out().join("lib").join(target).join("libpannier_ffi.a")
}

fn package() -> Result {
    let host = bindgen::build_library()?;
    bindgen::swift(&host)?;
    let folder = package_dir();
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| format!("cannot empty {}: {e}", folder.display()))?;
    }
    let ios = root().join("ios");
    for below in ["Sources/Pannier", "Sources/PannierBindings", "Tests/PannierTests"] {
        for (name, file) in archive::files_below(&ios.join(below))? {
            copy(&file, &folder.join(below).join(name))?;
        }
    }
    for name in ["Package.swift", "README.md"] {
        copy(&ios.join(name), &folder.join(name))?;
    }
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root().join(name), &folder.join(name))?;
    }
    framework(&folder, &ios.join("Sources").join(NAME))?;
    // Beside the sources, for who opens the repository itself in Xcode.
    let local = ios.join(format!("{NAME}.xcframework"));
    if local.exists() {
        std::fs::remove_dir_all(&local).map_err(|e| format!("cannot empty {}: {e}", local.display()))?;
    }
    let made = folder.join(format!("{NAME}.xcframework"));
    let files: Vec<_> = archive::files_below(&made)?
        .into_iter()
        .map(|(name, file)| (format!("{NAME}.xcframework/{name}"), file))
        .collect();
    for (name, file) in &files {
        copy(file, &ios.join(name))?;
    }
    archive::create(&files, &out().join(format!("{NAME}.xcframework.zip")))
}

/// Writes the framework: a static library and the headers for each kind of machine.
fn framework(folder: &Path, headers: &Path) -> Result {
    let framework = folder.join(format!("{NAME}.xcframework"));
    let header = read(&headers.join(format!("{NAME}.h")))?;
    let mut slices = String::new();
    for (id, target, more) in SLICES {
        let library = library(target);
        symbols(&library, &header)?;
        copy(&library, &framework.join(id).join("libpannier_ffi.a"))?;
        // A folder below the headers: two frameworks with a module map each would overwrite one another otherwise.
        let to = framework.join(id).join("Headers").join(NAME);
        for name in [format!("{NAME}.h"), "module.modulemap".to_owned()] {
            copy(&headers.join(&name), &to.join(&name))?;
        }
        slices.push_str(&format!(
            "\t\t<dict>\n\t\t\t<key>BinaryPath</key>\n\t\t\t<string>libpannier_ffi.a</string>\n\t\t\t<key>HeadersPath</key>\n\t\t\t<string>Headers</string>\n\
             \t\t\t<key>LibraryIdentifier</key>\n\t\t\t<string>{id}</string>\n\t\t\t<key>LibraryPath</key>\n\t\t\t<string>libpannier_ffi.a</string>\n\
             \t\t\t<key>SupportedArchitectures</key>\n\t\t\t<array>\n\t\t\t\t<string>arm64</string>\n\t\t\t</array>\n\
             \t\t\t<key>SupportedPlatform</key>\n\t\t\t<string>ios</string>\n{more}\t\t</dict>\n"
        ));
    }
    write(
        &framework.join("Info.plist"),
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
             <plist version=\"1.0\">\n<dict>\n\t<key>AvailableLibraries</key>\n\t<array>\n{slices}\t</array>\n\
             \t<key>CFBundlePackageType</key>\n\t<string>XFWK</string>\n\t<key>XCFrameworkFormatVersion</key>\n\t<string>1.0</string>\n</dict>\n</plist>\n"
        ),
    )
}

/// Every function that the header declares must be in the library, and the library must need nothing that `Package.swift` would have to
/// link.
fn symbols(library: &Path, header: &str) -> Result {
    let defined = listed(library, "--defined-only")?;
    let declared: Vec<&str> = header
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("uniffi_pannier") || word.starts_with("ffi_pannier"))
        .collect();
    let missing: Vec<&&str> =
        declared.iter().filter(|name| !defined.contains(format!("_{name}").as_str())).collect();
    if declared.is_empty() || !missing.is_empty() {
        return Err(format!("{}: missing {missing:?}", library.display()));
    }
    let needed: Vec<String> = listed(library, "--undefined-only")?.difference(&defined).cloned().collect();
    let framework = |name: &&String| FRAMEWORKS.iter().any(|prefix| name.starts_with(prefix));
    let linked: Vec<&String> = needed.iter().filter(framework).collect();
    if !linked.is_empty() {
        return Err(format!("{}: needs frameworks for {linked:?}", library.display()));
    }
    eprintln!(
        "   {}: {} functions declared, all there; {} symbols needed, none of a framework",
        library.display(),
        declared.len(),
        needed.len()
    );
    Ok(())
}

/// The names of a library's symbols, of one kind.
fn listed(library: &Path, kind: &str) -> Result<BTreeSet<String>> {
    let nm = Cross::ensure()?.bin("llvm-nm");
    let output = Command::new(&nm)
        .args(["-g", kind, "--format=just-symbols"])
        .arg(library)
        .output()
        .map_err(|e| format!("{}: {e}", nm.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn check() -> Result {
    let folder = package_dir();
    let describe = || -> Result<Command> {
        let mut command = swift::command(&folder, &["swift", "package", "describe"])?;
        command.env("PANNIER_XCFRAMEWORK", "1");
        Ok(command)
    };
    run("swift package describe", &mut describe()?)?;
    let zip = out().join(format!("{NAME}.xcframework.zip"));
    let bytes = std::fs::read(&zip).map_err(|e| format!("{}: {e}", zip.display()))?;
    let ours = crate::models::hex_digest(&bytes);
    let name = format!("../{NAME}.xcframework.zip");
    let mut compute = swift::command(&folder, &["swift", "package", "compute-checksum", &name])?;
    let output =
        compute.env("PANNIER_XCFRAMEWORK", "1").output().map_err(|e| format!("compute-checksum: {e}"))?;
    let theirs = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if theirs != ours {
        return Err(format!("checksum {ours}, but SwiftPM says `{theirs}`"));
    }
    write(&out().join(format!("{NAME}.xcframework.zip.sha256")), format!("{ours}\n"))?;
    eprintln!("== {} MB, checksum {ours}, as SwiftPM computes it", bytes.len() / 1_000_000);
    Ok(())
}
