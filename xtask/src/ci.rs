//! `cargo xtask ci`: what must pass before a commit, quickest first.

use crate::{Result, sh, test, tidy};

pub fn run(args: lexopt::Parser) -> Result {
    lints()?;
    test::run(args)
}

/// Everything but the tests.
pub fn lints() -> Result {
    sh::run("formatting", &mut sh::cargo(["fmt", "--all", "--check"]))?;
    tidy::check()?;
    let mut clippy = sh::cargo(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    sh::run("lints", &mut clippy)
}
