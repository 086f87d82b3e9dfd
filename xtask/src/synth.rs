//! `cargo xtask synth`: random models of real shapes, for measurements. The work is done by an example of `pannier-forge`.

use std::path::{Path, PathBuf};

use crate::{Result, models, sh};

pub fn run(mut args: lexopt::Parser) -> Result {
    let text = |e: lexopt::Error| e.to_string();
    let (mut shape, mut ty, mut out) = (None, String::from("Q4_K_M"), None::<PathBuf>);
    let mut hollow = false;
    while let Some(arg) = args.next().map_err(text)? {
        match arg {
            lexopt::Arg::Long("shape") => {
                shape = Some(args.value().map_err(text)?.to_string_lossy().into_owned())
            }
            lexopt::Arg::Long("hollow") => hollow = true,
            lexopt::Arg::Long("type") => ty = args.value().map_err(text)?.to_string_lossy().into_owned(),
            lexopt::Arg::Value(path) => out = Some(std::path::absolute(path).map_err(|e| e.to_string())?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let (Some(shape), Some(out)) = (shape, out) else {
        return Err(
            "usage: cargo xtask synth --shape 1.1b|7b|13b|35b|35b-a3b|moe-2g|moe-128x8|tiny|moe-tiny [--type Q4_K_M] \
             [--hollow] OUT"
                .into(),
        );
    };
    make_with(&shape, &ty, &out, hollow)
}

/// Makes a model of a shape.
pub fn make(shape: &str, ty: &str, out: &Path) -> Result {
    make_with(shape, ty, out, false)
}

/// A hollow file has its directory, but no weights: enough for a plan.
pub fn make_with(shape: &str, ty: &str, out: &Path, hollow: bool) -> Result {
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    }
    let donor = models::fetch(models::find(crate::catalogue::DEFAULT_MODEL)?, None)?;
    let mut command =
        sh::cargo(["run", "--quiet", "--release", "--package", "pannier-forge", "--example", "synth", "--"]);
    command.args(["--shape", shape, "--type", ty]).args(hollow.then_some("--hollow"));
    command.arg("--tokenizer").arg(donor).arg(out);
    sh::run("synth", &mut command)
}
