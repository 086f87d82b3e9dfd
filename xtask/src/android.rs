//! `cargo xtask android`: the packages for Android and the JVM, made without Gradle, and checked as an outsider would use them.
//!
//! ```text
//! lib:   libpannier_ffi.so for arm64-v8a and x86_64      xtask/cross (16 KB pages, exports, NEEDED, size: checked)
//! jvm:   pannier-jvm jar with sources                     Maven, tests included
//! aar:   pannier-android AAR, POM, sources                kotlinc against an android.jar
//! check: an outsider's Maven project; ProGuard with our consumer rules only
//! apk:   the sample, compiled, linked, dexed, signed
//! ```
//!
//! Everything lands in `target/android`; `target/android/maven` is a Maven repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arm64::Cross;
use crate::sh::{root, run, target_dir};
use crate::{Result, bindgen, models};

mod apk;
pub mod archive;

/// The budget of the stripped library, per ABI.
const MAX_LIBRARY_BYTES: u64 = 6 << 20;
/// Android's name of each ABI, and Rust's.
const ABIS: [(&str, &str); 2] = [("arm64-v8a", "aarch64"), ("x86_64", "x86_64")];

pub fn run_command(mut args: lexopt::Parser) -> Result {
    let mut steps = Vec::new();
    while let Some(arg) = args.next().map_err(|e| e.to_string())? {
        match arg {
            lexopt::Arg::Value(step) => steps.push(step.to_string_lossy().into_owned()),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let wanted = |step: &str| steps.is_empty() || steps.iter().any(|s| s == step);
    let names = Names::read()?;
    if wanted("apk") {
        apk::check_tools()?;
    }
    if wanted("lib") {
        libraries()?;
    }
    if wanted("jvm") {
        jvm(&names)?;
    }
    if wanted("aar") {
        aar(&names)?;
    }
    if wanted("check") {
        outsider(&names)?;
        proguard(&names)?;
    }
    if wanted("apk") {
        apk::sample(&names)?;
    }
    Ok(())
}

/// What the packages are called.
pub struct Names {
    properties: BTreeMap<String, String>,
    pub version: String,
}

impl Names {
    fn read() -> Result<Self> {
        let text = read(&root().join("android/pannier.properties"))?;
        let properties = text
            .lines()
            .filter(|l| !l.starts_with('#'))
            .filter_map(|l| l.split_once('='))
            .map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()))
            .collect();
        let version = read(&root().join("Cargo.toml"))?
            .lines()
            .find_map(|l| l.strip_prefix("version = \"").and_then(|v| v.strip_suffix('"')).map(str::to_owned))
            .ok_or("no version in Cargo.toml")?;
        let names = Self { properties, version };
        let pom = read(&root().join("android/pom.xml"))?;
        if !pom.contains(&format!("<version>{}</version>", names.version)) {
            return Err(format!("android/pom.xml has another version than Cargo.toml ({})", names.version));
        }
        Ok(names)
    }

    pub fn get(&self, key: &str) -> &str {
        self.properties.get(key).map_or("", String::as_str)
    }

    /// A property of the test build's POM, such as the version of a dependency.
    pub fn pom(&self, property: &str) -> Result<String> {
        let pom = read(&root().join("android/pom.xml"))?;
        let (open, close) = (format!("<{property}>"), format!("</{property}>"));
        pom.split_once(&open)
            .and_then(|(_, rest)| rest.split_once(&close))
            .map(|(value, _)| value.to_owned())
            .ok_or_else(|| format!("android/pom.xml has no property {property}"))
    }

    /// The folder of an artifact in our repository.
    fn folder(&self, artifact: &str) -> PathBuf {
        let group = self.get("group").replace('.', "/");
        out().join("maven").join(group).join(artifact).join(&self.version)
    }
}

/// Where everything lands.
pub fn out() -> PathBuf {
    target_dir().join("android")
}

pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| format!("cannot make {}: {e}", parent.display()))?;
    }
    std::fs::write(path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

pub fn copy(from: &Path, to: &Path) -> Result {
    let bytes = std::fs::read(from).map_err(|e| format!("cannot read {}: {e}", from.display()))?;
    write(to, bytes)
}

/// Builds, strips and checks the library for each ABI.
fn libraries() -> Result {
    Cross::ensure()?;
    let tool = root().join("xtask/cross/build-android");
    for (abi, arch) in ABIS {
        let folder = out().join("lib").join(abi);
        let mut command = Command::new(&tool);
        command.arg(arch).arg(root()).args(["pannier-ffi", "pannier_ffi"]).arg(&folder);
        if arch == "x86_64" {
            // For emulators: small is enough. On real phones the heart keeps its speed (Cargo.toml).
            for part in ["pannier-kernels", "pannier", "pannier-tokenizer"] {
                command.args(["--config", &format!("profile.mobile.package.{part}.opt-level=\"s\"")]);
            }
        }
        run(&format!("building for {abi}"), &mut command)?;
        let library = folder.join("libpannier_ffi.so");
        let bytes = std::fs::metadata(&library).map_err(|e| format!("{}: {e}", library.display()))?.len();
        eprintln!(
            "   {abi}: {:.2} MiB of {} MiB",
            bytes as f64 / f64::from(1 << 20),
            MAX_LIBRARY_BYTES >> 20
        );
        if bytes > MAX_LIBRARY_BYTES {
            return Err(format!("{abi}: the library has {bytes} bytes, above {MAX_LIBRARY_BYTES}"));
        }
        copy(&library, &out().join("jni").join(abi).join("libpannier_ffi.so"))?;
    }
    Ok(())
}

/// Maven in a folder, quiet. The compiler's daemon would stay for hours, with more than a gigabyte.
fn maven(folder: &str) -> Command {
    let mut command = Command::new("mvn");
    command.current_dir(root().join(folder)).args([
        "--batch-mode",
        "--quiet",
        "-Dkotlin.compiler.daemon=false",
    ]);
    command
}

/// Runs the tests of the Kotlin library and of the Android sample's logic on the JVM; makes the jar.
pub fn test_jvm(full: bool) -> Result {
    let library = bindgen::build_library()?;
    bindgen::kotlin(&library)?;
    let folder = library.parent().unwrap_or(root());
    let mut command = maven("android");
    command.arg("package").arg(format!("-Dpannier.native={}", folder.display()));
    command.env("PANNIER_MODELS", models::dir()?).env("PANNIER_NESTED", models::nested()?);
    if full {
        command.arg("-Dpannier.skip=none");
    }
    let reports = root().join("android/target/surefire-reports");
    if reports.exists() {
        std::fs::remove_dir_all(&reports).map_err(|e| e.to_string())?;
    }
    run("testing the Kotlin library on the JVM", &mut command)?;
    let counts = Surefire::below(&reports)?;
    eprintln!("== Kotlin: {} passed, {} skipped", counts.run - counts.skipped, counts.skipped);
    if counts.run == 0 { Err("no Kotlin test was run".into()) } else { Ok(()) }
}

/// What Maven's test reports say; it is silent itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Surefire {
    run: u64,
    skipped: u64,
}

impl Surefire {
    fn below(folder: &Path) -> Result<Self> {
        let mut counts = Self::default();
        for (name, file) in archive::files_below(folder)? {
            if name.ends_with(".txt") {
                read(&file)?.lines().for_each(|line| counts.add(line));
            }
        }
        Ok(counts)
    }

    /// Adds `Tests run: 7, Failures: 0, Errors: 0, Skipped: 1, …`.
    fn add(&mut self, line: &str) {
        let number = |what: &str| {
            line.split(", ").find_map(|part| part.trim().strip_prefix(what)?.trim().parse::<u64>().ok())
        };
        self.run += number("Tests run:").unwrap_or(0);
        self.skipped += number("Skipped:").unwrap_or(0);
    }
}

/// The JVM jar, with the library of this machine inside, after its tests.
fn jvm(names: &Names) -> Result {
    test_jvm(false)?;
    let library = bindgen::library_path();
    let artifact = names.get("jvm.artifact");
    let folder = names.folder(artifact);
    let jar = format!("{artifact}-{}.jar", names.version);
    // JNA looks for a library under the name of the platform, in the jar that it is used from.
    let platform = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("macos", arch) => format!("darwin-{}", arch.replace('_', "-")),
        (os, arch) => format!("{os}-{}", arch.replace('_', "-")),
    };
    let extra = vec![
        (format!("{platform}/{}", file_name(&library)), library.clone()),
        ("META-INF/LICENSE-APACHE".to_owned(), root().join("LICENSE-APACHE")),
        ("META-INF/LICENSE-MIT".to_owned(), root().join("LICENSE-MIT")),
    ];
    archive::extend(&root().join("android/target").join(&jar), &extra, &folder.join(&jar))?;
    sources(
        &folder.join(format!("{artifact}-{}-sources.jar", names.version)),
        &["src/main/kotlin", "src/main/uniffi"],
    )?;
    write(&folder.join(format!("{artifact}-{}.pom", names.version)), pom(names, artifact, "jar")?)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn sources(to: &Path, folders: &[&str]) -> Result {
    let mut files = Vec::new();
    for folder in folders {
        let base = root().join("android").join(folder);
        files.extend(archive::files_below(&base)?);
    }
    archive::create(&files, to)
}

/// What depends on what. Nothing more than is needed: no parent, no build.
fn pom(names: &Names, artifact: &str, packaging: &str) -> Result<String> {
    let jna_type = if packaging == "aar" { "\n      <type>aar</type>" } else { "" };
    let (kotlin, coroutines, jna) =
        (names.pom("kotlin.version")?, names.pom("coroutines.version")?, names.pom("jna.version")?);
    Ok(format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>{group}</groupId>
  <artifactId>{artifact}</artifactId>
  <version>{version}</version>
  <packaging>{packaging}</packaging>
  <name>Pannier</name>
  <description>Large language models on the device, inside a memory budget.</description>
  <url>{url}</url>
  <licenses>
    <license>
      <name>{licence}</name>
    </license>
  </licenses>
  <dependencies>
    <dependency>
      <groupId>org.jetbrains.kotlin</groupId>
      <artifactId>kotlin-stdlib</artifactId>
      <version>{kotlin}</version>
    </dependency>
    <dependency>
      <groupId>org.jetbrains.kotlinx</groupId>
      <artifactId>kotlinx-coroutines-core-jvm</artifactId>
      <version>{coroutines}</version>
    </dependency>
    <dependency>
      <groupId>net.java.dev.jna</groupId>
      <artifactId>jna</artifactId>
      <version>{jna}</version>{jna_type}
    </dependency>
  </dependencies>
</project>
"#,
        group = names.get("group"),
        version = names.version,
        url = names.get("url"),
        licence = names.get("licence"),
    ))
}

/// Copies jars of Maven Central to a folder, by coordinates; answers the folder.
pub fn jars(name: &str, coordinates: &[(&str, &str, &str)]) -> Result<PathBuf> {
    let folder = out().join("tools").join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let dependencies: String = coordinates
        .iter()
        .map(|(g, a, v)| {
            format!("<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version></dependency>")
        })
        .collect();
    let pom = out().join("tools").join(format!("{name}.xml"));
    write(
        &pom,
        format!(
            "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
             <groupId>tools</groupId><artifactId>{name}</artifactId><version>1</version>\
             <dependencies>{dependencies}</dependencies></project>"
        ),
    )?;
    let mut command = maven(".");
    command
        .arg("-f")
        .arg(&pom)
        .arg("dependency:copy-dependencies")
        .arg(format!("-DoutputDirectory={}", folder.display()));
    run(&format!("fetching {name}"), &mut command)?;
    Ok(folder)
}

/// A class path of all jars in folders.
pub fn class_path(folders: &[&Path]) -> Result<String> {
    let mut jars = Vec::new();
    for folder in folders {
        let entries =
            std::fs::read_dir(folder).map_err(|e| format!("cannot list {}: {e}", folder.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "jar") {
                jars.push(path.to_string_lossy().into_owned());
            }
        }
    }
    jars.sort();
    Ok(jars.join(":"))
}

/// The framework's stubs, the compiler, and what the library needs: by coordinates.
pub fn android_jar() -> Result<PathBuf> {
    jars("android", &[("org.robolectric", "android-all", "15-robolectric-13954326")])
}

pub fn compiler(names: &Names) -> Result<PathBuf> {
    let version = names.pom("kotlin.version")?;
    jars("kotlinc", &[("org.jetbrains.kotlin", "kotlin-compiler-embeddable", &version)])
}

pub fn libraries_of(names: &Names) -> Result<PathBuf> {
    let (coroutines, jna) = (names.pom("coroutines.version")?, names.pom("jna.version")?);
    jars(
        "libraries",
        &[
            ("org.jetbrains.kotlinx", "kotlinx-coroutines-core-jvm", &coroutines),
            ("net.java.dev.jna", "jna", &jna),
        ],
    )
}

/// What the compiler knows without being told. The framework's jar leaves `java.*` out; that of Java 8 is what API 26 has, nearly.
const BARE: [&str; 5] = ["-no-stdlib", "-no-reflect", "-Xjdk-release=8", "-jvm-target", "1.8"];

/// Compiles Kotlin folders into a folder of classes.
pub fn kotlinc(
    names: &Names,
    what: &str,
    sources: &[PathBuf],
    class_path: &str,
    to: &Path,
    extra: &[&str],
) -> Result {
    let compiler = compiler(names)?;
    let mut command = Command::new("java");
    command
        .args(["-Xmx900m", "-cp"])
        .arg(self::class_path(&[&compiler])?)
        .arg("org.jetbrains.kotlin.cli.jvm.K2JVMCompiler")
        .args(BARE)
        .arg("-Werror")
        .args(extra)
        .arg("-cp")
        .arg(class_path)
        .arg("-d")
        .arg(to)
        .args(sources);
    run(what, &mut command)
}

/// The AAR, its POM and its sources.
fn aar(names: &Names) -> Result {
    let android = root().join("android");
    let classes = out().join("classes");
    if classes.exists() {
        std::fs::remove_dir_all(&classes).map_err(|e| e.to_string())?;
    }
    let (framework, libraries) = (android_jar()?, libraries_of(names)?);
    let path = class_path(&[&framework, &libraries])?;
    // The generated part first and apart: it declares no visibility and has warnings of its own.
    let generated = classes.join("uniffi");
    let compiler = compiler(names)?;
    let mut command = Command::new("java");
    command
        .args(["-Xmx900m", "-cp"])
        .arg(class_path(&[&compiler])?)
        .arg("org.jetbrains.kotlin.cli.jvm.K2JVMCompiler")
        .args(BARE)
        .args(["-nowarn", "-cp", &path, "-d"])
        .arg(&generated)
        .arg(android.join("src/main/uniffi"));
    run("compiling the generated code", &mut command)?;
    let hand_written = [android.join("src/main/kotlin"), android.join("src/android/kotlin")];
    let path = format!("{}:{path}", generated.display());
    // What is internal to the generated part is known to the hand-written one, as where the two are compiled together.
    let friend = format!("-Xfriend-paths={}", generated.display());
    kotlinc(
        names,
        "compiling the library for Android",
        &hand_written,
        &path,
        &classes.join("api"),
        &["-Xexplicit-api=strict", "-module-name", "pannier", &friend],
    )?;
    let jar = out().join("classes.jar");
    let mut files = archive::files_below(&generated)?;
    files.extend(archive::files_below(&classes.join("api"))?);
    archive::create(&files, &jar)?;

    let artifact = names.get("android.artifact");
    let folder = names.folder(artifact);
    let empty = out().join("R.txt");
    write(&empty, "")?;
    let metadata = out().join("aar-metadata.properties");
    write(&metadata, "aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk=29\n")?;
    let mut files = vec![
        ("AndroidManifest.xml".to_owned(), android.join("src/android/AndroidManifest.xml")),
        ("classes.jar".to_owned(), jar),
        ("R.txt".to_owned(), empty),
        ("proguard.txt".to_owned(), android.join("consumer-rules.pro")),
        ("META-INF/com/android/build/gradle/aar-metadata.properties".to_owned(), metadata),
    ];
    for (abi, _) in ABIS {
        let name = format!("jni/{abi}/libpannier_ffi.so");
        files.push((name.clone(), out().join(&name)));
    }
    let aar = folder.join(format!("{artifact}-{}.aar", names.version));
    archive::create(&files, &aar)?;
    sources(
        &folder.join(format!("{artifact}-{}-sources.jar", names.version)),
        &["src/main/kotlin", "src/main/uniffi", "src/android/kotlin"],
    )?;
    write(&folder.join(format!("{artifact}-{}.pom", names.version)), pom(names, artifact, "aar")?)?;
    run("the AAR", Command::new("unzip").arg("-l").arg(&aar))
}

/// A project that knows only coordinates: compiles the sample's code against the AAR's classes and runs the terminal sample.
fn outsider(names: &Names) -> Result {
    let repository = format!("-Dpannier.repository={}", out().join("maven").display());
    // A fresh local repository for ours only: an older copy must not be found.
    let cached = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cached = cached.join(".m2/repository").join(names.get("group").replace('.', "/"));
    if cached.is_dir() {
        std::fs::remove_dir_all(&cached).map_err(|e| format!("cannot empty {}: {e}", cached.display()))?;
    }
    run("an outsider's JVM project", maven("sample-apps/jvm-chat").arg(&repository).arg("compile"))?;
    run(
        "unpacking the AAR",
        maven("sample-apps/android-chat").arg(&repository).args(["clean", "initialize"]),
    )?;
    run("an outsider's Android project", maven("sample-apps/android-chat").arg(&repository).arg("compile"))
}

/// Where the `java` that we call lives, as it says itself: JAVA_HOME may be unset, or that of another one.
fn java_home() -> Result<PathBuf> {
    let output = Command::new("java")
        .args(["-XshowSettings:properties", "-version"])
        .output()
        .map_err(|e| format!("cannot run java: {e}"))?;
    String::from_utf8_lossy(&output.stderr)
        .lines()
        .find_map(|line| line.trim().strip_prefix("java.home = ").map(PathBuf::from))
        .ok_or_else(|| "java does not say where it lives".into())
}

/// Shrinks the terminal sample with everything it uses, with our consumer rules only, and runs what is left.
fn proguard(names: &Names) -> Result {
    let tool = jars("proguard", &[("com.guardsquare", "proguard-base", "7.7.0")])?;
    let libraries = libraries_of(names)?;
    let artifact = names.get("jvm.artifact");
    let ours = names.folder(artifact).join(format!("{artifact}-{}.jar", names.version));
    let sample = root().join("sample-apps/jvm-chat/target/classes");
    let shrunk = out().join("shrunk.jar");
    let modules = java_home()?.join("jmods");
    let mut rules = format!(
        "-include {}\n-injars {}\n-injars {}(!META-INF/**)\n",
        root().join("android/consumer-rules.pro").display(),
        sample.display(),
        ours.display()
    );
    for jar in class_path(&[&libraries])?.split(':') {
        rules.push_str(&format!("-injars {jar}(!META-INF/versions/**,!META-INF/*.kotlin_module,!META-INF/maven/**,!module-info.class)\n"));
    }
    rules.push_str(&format!(
        "-outjars {}\n-libraryjars {}(!**.jar;!module-info.class)\n-libraryjars {}(!**.jar;!module-info.class)\n",
        shrunk.display(),
        modules.join("java.base.jmod").display(),
        modules.join("java.desktop.jmod").display()
    ));
    // What the app itself says, as every app does of its entry points; the rest is ours and the libraries' own.
    rules.push_str("-keep class dev.pannier.sample.MainKt { public static void main(java.lang.String[]); }\n-dontoptimize\n-dontwarn kotlinx.**,java.lang.instrument.**,sun.misc.**,org.**,android.**\n-dontnote **\n-ignorewarnings\n");
    let file = out().join("proguard.pro");
    write(&file, rules)?;
    run(
        "shrinking with the consumer rules only",
        Command::new("java")
            .args(["-Xmx900m", "-cp"])
            .arg(class_path(&[&tool])?)
            .arg("proguard.ProGuard")
            .arg(format!("@{}", file.display())),
    )?;
    let models = std::env::var_os("PANNIER_MODELS").map(PathBuf::from);
    let models = models.or_else(|| dirs::cache_dir().map(|d| d.join("pannier/models"))).unwrap_or_default();
    let question = out().join("question.txt");
    write(&question, "Name the capital of France.\n\n")?;
    let input = std::fs::File::open(&question).map_err(|e| e.to_string())?;
    run(
        "the shrunk sample",
        Command::new("java")
            .arg("-cp")
            .arg(&shrunk)
            .arg("dev.pannier.sample.MainKt")
            .arg(models)
            .stdin(input),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_added_up() {
        let mut counts = Surefire::default();
        counts.add("Tests run: 7, Failures: 0, Errors: 0, Skipped: 2, Time elapsed: 3.1 s - in dev.pannier.CancelTest");
        counts.add("Tests run: 5, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 1 s");
        counts.add("-----");
        assert_eq!(counts, Surefire { run: 12, skipped: 2 });
    }
}
