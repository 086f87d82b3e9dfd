//! Cache policies on recorded traces of real models.
#![allow(clippy::unwrap_used, reason = "tests")]

use pannier::residency::{RouteTrace, replay};
use std::path::PathBuf;

/// The traces are too large for the repository: they lie beside the checkout.
fn trace(name: &str) -> RouteTrace {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/data/route-traces")
        .join(name)
        .with_extension("csv");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    RouteTrace::parse(&text).unwrap()
}

/// Hit rates at 1000, 2000, 3000 and 4000 MiB.
fn hits(trace: &RouteTrace, policy: &str) -> [f64; 4] {
    [1000, 2000, 3000, 4000].map(|mib| replay(trace, mib << 20, policy).unwrap().hit_rate())
}

fn assert_near(found: [f64; 4], published: [f64; 4], what: &str) {
    for (found, published) in found.into_iter().zip(published) {
        assert!((found - published).abs() < 0.012, "{what}: {found:.3}, published {published}");
    }
}

fn check(name: &str, published: [(&str, [f64; 4]); 4]) {
    let trace = trace(name);
    for (policy, rates) in published {
        let found = hits(&trace, policy);
        println!("{name} {policy}: {found:.3?}");
        assert_near(found, rates, &format!("{name} {policy}"));
    }
    let ours = hits(&trace, "reuse");
    println!("{name} reuse: {ours:.3?}");
    let published = published[2].1;
    for (ours, published) in ours.into_iter().zip(published) {
        assert!(ours >= published + 0.001, "{name}: reuse {ours:.4} must be above next-visit {published}");
    }
}

#[test]
fn qwen3_30b_a3b() {
    check(
        "qwen3-30b-a3b",
        [
            ("lru", [0.377, 0.544, 0.687, 0.783]),
            ("lfu", [0.391, 0.578, 0.705, 0.799]),
            ("nextvisit", [0.408, 0.596, 0.722, 0.809]),
            ("belady", [0.610, 0.781, 0.866, 0.918]),
        ],
    );
}

#[test]
fn gpt_oss_120b() {
    check(
        "gpt-oss-120b",
        [
            ("lru", [0.177, 0.309, 0.448, 0.517]),
            ("lfu", [0.234, 0.362, 0.452, 0.520]),
            ("nextvisit", [0.255, 0.393, 0.477, 0.541]),
            ("belady", [0.441, 0.605, 0.684, 0.736]),
        ],
    );
}

#[test]
fn a_cache_smaller_than_one_pass_hits_nothing_with_lru_and_says_so() {
    let trace = trace("qwen3-30b-a3b");
    let small = replay(&trace, 6 * 47 * 3_059_712, "lru").unwrap();
    assert!(small.smaller_than_pass);
    assert!(small.hit_rate() < 0.001, "{}", small.hit_rate());
    let ours = replay(&trace, 6 * 47 * 3_059_712, "reuse").unwrap();
    assert!(ours.smaller_than_pass && ours.hit_rate() > 0.25, "{}", ours.hit_rate());
    assert!(replay(&trace, 1 << 30, "nonsense").is_none());
}

#[test]
fn traces_are_written_as_they_are_read() {
    let trace = trace("gpt-oss-120b");
    assert_eq!(RouteTrace::parse(&trace.to_csv()).unwrap(), trace);
    assert_eq!((trace.layers, trace.experts, trace.used), (36, 128, 2));
}

#[test]
fn broken_traces_are_refused_by_line() {
    let head = "# n_layer=2 n_expert=4 n_expert_used=1\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n";
    for (row, what) in [
        ("0,1,0,2,0,0,1.0,0,1", "layer 2"),
        ("0,1,0,0,0,9,1.0,0,1", "expert 9"),
        ("0,1,0,0,0", "expert is missing"),
        ("0,1,0,0,0,1,NaN,0,1", "weight"),
        ("x,1,0,0,0,1,1,0,1", "turn"),
    ] {
        let error = RouteTrace::parse(&format!("{head}{row}\n")).unwrap_err();
        assert!(error.line == 3 && error.what.contains(what), "{row}: {error}");
    }
    assert!(RouteTrace::parse("").is_err());
    assert!(RouteTrace::parse("# n_layer=99999999999 n_expert=4\n").is_err());
    assert!(RouteTrace::parse("0,1,0,0,0,1,1,0,1").is_err());
}
