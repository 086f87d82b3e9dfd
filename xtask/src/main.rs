//! `cargo xtask COMMAND`: everything that is done with this repository besides compiling it. One file per command.

mod android;
mod arm64;
mod bench;
mod bindgen;
mod cage;
#[path = "../../core/engine/src/store/catalogue.rs"]
#[allow(dead_code, reason = "the engine's file as it is; not all of it is needed here")]
mod catalogue;
mod ci;
mod demo;
mod fuzz;
mod ios;
mod models;
mod sh;
mod swift;
mod synth;
mod test;
mod tidy;

use std::process::ExitCode;

/// What a command ends with: a failure is one line for a person.
type Result<T = (), E = String> = std::result::Result<T, E>;

const HELP: &str = "\
cargo xtask COMMAND

  demo [--model FILE]    fetch the default model and let it answer in this terminal
  test [--full] [-- ARGS]  fetch the test models, run the tests; --full adds the long ones
  test --arm64 [--full]  kernels and engine on three levels of Arm processors, under qemu; --instructions counts them per token
  cross                  the cross toolchain that this and the mobile packages need, into the user's cache
  test --kotlin|--swift|--swift-tsan [--full]   the tests of the Kotlin or Swift library and of the samples
  ci                     formatting, lints, tidy, tests: what must pass before a commit
  tidy                   the repository's own rules: layering, unsafe, paths, file lengths
  fuzz [--seconds N]     every fuzz target for a minute, or N seconds (needs nightly)
  bench [--peer] [--busy] [--long] [--load] [MODEL…]   speed of models on this machine, as a dated record; `bench --help`
  quantizer MODEL        our quantiser beside llama.cpp's, as a dated record; `quantizer --help`
  cage --mem SIZE [--read-bps SIZE] -- COMMAND   run in a memory cgroup, report memory, faults and bytes read
  synth --shape 1.1b|7b|moe-2g|moe-128x8 [--type Q4_K_M] OUT   a random model of a real shape
  android [lib|jvm|aar|check|apk]…  the packages for Android and the JVM, tested and checked
  ios [lib|package|check]…  the XCFramework and the Swift package
  bindgen                the Kotlin and Swift sides of the bindings, from the library
  models [--all] [NAME…] fetch models into the cache; without names, those that the fast tests need
";

fn main() -> ExitCode {
    match dispatch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("xtask: {what}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> Result {
    let mut args = lexopt::Parser::from_env();
    let command = match args.next().map_err(|e| e.to_string())? {
        None => String::from("help"),
        Some(lexopt::Arg::Value(name)) => name.to_string_lossy().into_owned(),
        Some(lexopt::Arg::Short('h') | lexopt::Arg::Long("help")) => String::from("help"),
        Some(other) => return Err(other.unexpected().to_string()),
    };
    match command.as_str() {
        "android" => android::run_command(args),
        "bindgen" => bindgen::run_command(args),
        "cross" => arm64::setup(args),
        "ios" => ios::run_command(args),
        "demo" => demo::run(args),
        "bench" => bench::run(args),
        "quantizer" => bench::quantizer::run(args),
        "fuzz" => fuzz::run(args),
        "test" => test::run(args),
        "cage" => cage::run(args),
        "ci" => ci::run(args),
        "tidy" => tidy::run(args),
        "models" => models::run(args),
        "synth" => synth::run(args),
        "help" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("no command `{other}`; `cargo xtask help` lists them")),
    }
}
