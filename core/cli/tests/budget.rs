//! The budget against the kernel's own figure, sampled from outside while the command runs.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Stdio;
use std::time::Duration;

use common::{json, pannier, smollm2};

/// The most anonymous memory that the kernel reports for a process, looked at every 10 ms until it ends; and its output.
fn watched(args: &[&str]) -> (u64, serde_json::Value) {
    let mut child =
        pannier().arg("--json").args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let kib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
        };
        let (anonymous, swapped) = (kib("RssAnon:").unwrap_or(0), kib("VmSwap:").unwrap_or(0));
        peak = peak.max((anonymous + swapped) << 10);
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    (peak, serde_json::from_slice(&output.stdout).unwrap())
}

/// A model of 98 MB in less, with its whole context in use.
#[test]
fn anonymous_memory_never_exceeds_the_budget_and_the_answer_is_the_same() {
    let model = smollm2();
    let prompt = "One two three four five six seven eight nine ten. ".repeat(30);
    let run = |budget: Option<u64>| {
        let mut args = vec!["run", "-m", &model, "--ctx", "512", "-t", "2", "-n", "60", "-p", &prompt];
        let budget = budget.map(|mb| mb.to_string());
        args.extend(budget.iter().flat_map(|mb| ["--budget-mb", mb]));
        watched(&args)
    };
    let (_, free) = run(None);
    for mb in [64, 80, 100] {
        let plan = json([
            "plan",
            "-m",
            &model,
            "--ctx",
            "512",
            "-t",
            "2",
            "--budget-mb",
            &mb.to_string(),
            "--ram",
            "8",
            "--flash",
            "1",
            "--dram",
            "20",
            "--gflops",
            "100",
        ]);
        assert!(plan["fits"] == true && plan["mapped"] == false, "{mb}: {plan}");
        let (peak, answer) = run(Some(mb));
        assert_eq!(answer["ids"], free["ids"], "{mb}");
        assert!(peak > 0 && peak <= mb << 20, "{mb} MiB are {}, the kernel saw {peak}", mb << 20);
        let planned = plan["peak_bytes"].as_u64().unwrap();
        assert!(peak <= planned, "{mb}: planned {planned}, the kernel saw {peak}");
    }
}
