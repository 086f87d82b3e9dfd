//! The sample as a signed APK, with the distribution's tools: it proves that the packages fit together. The dexer is the one that
//! Android retired; Gradle users get the current one.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ABIS, Names, android_jar, archive, class_path, copy, jars, kotlinc, libraries_of, out};
use crate::Result;
use crate::sh::{root, run};

/// Where Debian keeps the framework's resources.
const FRAMEWORK: &str = "/usr/share/android-framework-res/framework-res.apk";

/// Parts of what `aapt dump badging` must say.
const BADGING: [&str; 5] = [
    "package: name='dev.pannier.sample'",
    "sdkVersion:'26'",
    "application-label:'Pannier Chat'",
    "launchable-activity: name='dev.pannier.sample.ChatActivity'",
    "native-code: 'arm64-v8a' 'x86_64'",
];

/// What the APK is made with; Debian's packages of these names have them.
const TOOLS: [&str; 4] = ["aapt", "apksigner", "unzip", "zipalign"];

fn framework_resources() -> PathBuf {
    std::env::var_os("PANNIER_FRAMEWORK_RES").map_or_else(|| FRAMEWORK.into(), PathBuf::from)
}

/// Whether all tools are there: this is the last step of many minutes.
pub fn check_tools() -> Result {
    let there = |name: &str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()))
    };
    let mut missing: Vec<&str> = TOOLS.into_iter().filter(|name| !there(name)).collect();
    if !framework_resources().is_file() {
        missing.push("android-framework-res");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" ");
    Err(format!(
        "the APK of the sample needs what is missing here: `apt-get install {missing}` (or leave it out: `cargo xtask android lib jvm aar check`)"
    ))
}

pub fn sample(names: &Names) -> Result {
    let app = root().join("sample-apps/android-chat");
    let folder = out().join("apk");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| e.to_string())?;
    }
    let (framework, libraries) = (android_jar()?, libraries_of(names)?);
    let ours = out().join("classes.jar");
    let path = format!("{}:{}", ours.display(), class_path(&[&framework, &libraries])?);
    let classes = folder.join("classes");
    let sources = [app.join("src/logic/kotlin"), app.join("src/main/kotlin")];
    kotlinc(names, "compiling the sample", &sources, &path, &classes, &[])?;

    let unsigned = folder.join("unaligned.apk");
    let mut aapt = Command::new("aapt");
    aapt.args(["package", "-f", "-M"])
        .arg(app.join("AndroidManifest.xml"))
        .arg("-S")
        .arg(app.join("src/main/res"))
        .arg("-I")
        .arg(framework_resources())
        .arg("-F")
        .arg(&unsigned);
    run("packing the manifest and the resources", &mut aapt)?;

    let dx = jars("dx", &[("com.jakewharton.android.repackaged", "dalvik-dx", "16.0.1")])?;
    // The dexer knows no Java 9: without the jars' variants for it, and their module descriptions.
    let unpacked = folder.join("libraries");
    for jar in class_path(&[&libraries])?.split(':').filter(|j| !j.contains("annotations-")) {
        let mut unzip = Command::new("unzip");
        unzip.args(["-q", "-o", jar, "-x", "META-INF/*", "*module-info.class", "-d"]).arg(&unpacked);
        run("unpacking a library", &mut unzip)?;
    }
    let mut dex = Command::new("java");
    dex.args(["-Xmx1200m", "-cp"])
        .arg(class_path(&[&dx])?)
        .args(["com.android.dx.command.Main", "--dex", "--multi-dex", "--min-sdk-version=26"])
        .arg(format!("--output={}", folder.display()))
        .arg(&classes)
        .arg(&ours)
        .arg(&unpacked);
    run("dexing", &mut dex)?;

    let mut files = Vec::new();
    for name in ["classes.dex", "classes2.dex", "classes3.dex"] {
        let dex = folder.join(name);
        if dex.is_file() {
            files.push((name.to_owned(), dex));
        }
    }
    for (abi, _) in ABIS {
        let library = format!("lib/{abi}/libpannier_ffi.so");
        files.push((library, out().join("jni").join(abi).join("libpannier_ffi.so")));
    }
    // JNA's own library, from its AAR.
    let jna = jna_natives(names)?;
    for (abi, _) in ABIS {
        files.push((
            format!("lib/{abi}/libjnidispatch.so"),
            jna.join("jni").join(abi).join("libjnidispatch.so"),
        ));
    }
    let whole = folder.join("unsigned.apk");
    archive::extend(&unsigned, &files, &whole)?;

    let aligned = folder.join("pannier-chat.apk");
    run("aligning", Command::new("zipalign").args(["-f", "4"]).arg(&whole).arg(&aligned))?;
    let key = folder.join("debug.keystore");
    // A key of no worth, new each time.
    let password = "android";
    run(
        "a debug key",
        Command::new("keytool").args(["-genkeypair", "-keystore"]).arg(&key).args([
            "-storepass",
            password,
            "-keypass",
            password,
            "-alias",
            "debug",
            "-keyalg",
            "RSA",
            "-validity",
            "365",
            "-dname",
            "CN=debug",
        ]),
    )?;
    run(
        "signing",
        Command::new("apksigner")
            .args(["sign", "--min-sdk-version", "26", "--ks"])
            .arg(&key)
            .arg("--ks-pass")
            .arg(format!("pass:{password}"))
            .arg(&aligned),
    )?;
    run(
        "verifying",
        Command::new("apksigner").args(["verify", "--verbose", "--min-sdk-version", "26"]).arg(&aligned),
    )?;
    badging(&aligned)
}

/// What Android would see of the APK; what the sample must have is checked.
fn badging(apk: &Path) -> Result {
    let output = Command::new("aapt")
        .args(["dump", "badging"])
        .arg(apk)
        .output()
        .map_err(|e| format!("cannot run aapt: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    eprint!("== what is in it\n{text}");
    for part in BADGING {
        if !text.contains(part) {
            return Err(format!("`aapt dump badging` does not say {part}"));
        }
    }
    Ok(())
}

fn jna_natives(names: &Names) -> Result<PathBuf> {
    let folder = out().join("tools/jna-aar");
    if !folder.is_dir() {
        let aar = out().join("tools/jna.aar");
        let artifact = format!("net.java.dev.jna:jna:{}:aar", names.pom("jna.version")?);
        let mut get = Command::new("mvn");
        get.current_dir(root()).args([
            "--batch-mode",
            "--quiet",
            "dependency:copy",
            "-Dmdep.stripVersion=true",
        ]);
        get.arg(format!("-Dartifact={artifact}"))
            .arg(format!("-DoutputDirectory={}", out().join("tools").display()));
        run("fetching JNA for Android", &mut get)?;
        run("unpacking JNA", Command::new("unzip").arg("-q").arg(&aar).arg("-d").arg(&folder))?;
        copy(&folder.join("AndroidManifest.xml"), &folder.join("done"))?;
    }
    Ok(folder)
}
