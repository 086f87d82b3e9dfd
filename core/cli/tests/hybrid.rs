//! `pannier serve`, `pannier chat` with a cloud, and `pannier fit-confidence`, with a real model on both sides.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests, too")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use common::{assert_fails, json, keys, models, pannier, run, smollm2, text};
use serde_json::{Value, json as object};

const FRANCE: &str = "Which city is the capital of France?";

/// `pannier serve` on a free port, killed at the end.
struct Serving {
    child: Child,
    url: String,
    model: String,
}

impl Serving {
    fn start(flags: &[&str]) -> Self {
        let mut child = pannier()
            .args(["serve", "--json", "--port", "0", "-m", &smollm2(), "--ctx", "1024"])
            .args(flags)
            .env("TEST_SERVE_KEY", "sesame")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(keys(&ready), ["url", "port", "model"]);
        let get = |key: &str| ready[key].as_str().unwrap().to_owned();
        Self { url: get("url"), model: get("model"), child }
    }

    fn chat(&self, more: &[&str]) -> Value {
        let mut args = vec!["chat", "-p", FRANCE, "--temp", "0", "-n", "16"];
        let model = smollm2();
        args.extend(["-m", &model, "--ctx", "1024", "--cloud-url", &self.url, "--cloud-model", &self.model]);
        args.extend(more);
        json(args)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn events<'a>(report: &'a Value, kind: &str) -> Vec<&'a Value> {
    report["events"].as_array().unwrap().iter().filter(|e| e["event"] == kind).collect()
}

#[test]
fn an_answer_is_handed_over_when_it_is_not_sure_enough() {
    let server = Serving::start(&[]);
    assert_eq!(server.model, "SmolLM2-135M-Instruct.Q4_1");

    let sure = server.chat(&["--min-confidence", "0"]);
    assert_eq!(keys(&sure), ["text", "source", "confidence", "confidence_origin", "events", "stats"]);
    assert_eq!(sure["source"], "device");
    assert!(sure["text"].as_str().unwrap().contains("Paris"), "{sure}");
    assert!(events(&sure, "outgoing").is_empty(), "{sure}");
    assert!(sure["stats"]["generated_tokens"].as_u64() > Some(2), "{sure}");
    let confidence = sure["confidence"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&confidence));

    let unsure = server.chat(&["--min-confidence", "1"]);
    assert_eq!(unsure["source"], "cloud", "{unsure}");
    assert_eq!(unsure["text"], sure["text"], "the same model, asked the same");
    let decisions = events(&unsure, "decision");
    let last = decisions.last().unwrap();
    assert_eq!((&last["route"], &last["reason"]), (&object!("cloud"), &object!("not sure enough")));
    assert!((last["confidence"].as_f64().unwrap() - confidence).abs() < 1e-9);
    assert_eq!(last["threshold"], 1.0);
    assert_eq!(events(&unsure, "outgoing").len(), 1);
    assert!(unsure["stats"]["cloud_completion_tokens"].as_u64() > Some(2), "{unsure}");
    assert_eq!(events(&unsure, "completed").len(), 1);

    let only = server.chat(&["--policy", "cloud-only"]);
    assert_eq!((&only["source"], &only["confidence"]), (&object!("cloud"), &Value::Null));
    let private = server.chat(&["--policy", "on-device", "--min-confidence", "1"]);
    assert_eq!(private["source"], "device");
    assert!(events(&private, "outgoing").is_empty());
}

#[test]
fn the_exact_payload_and_every_decision_are_told_on_demand() {
    let server = Serving::start(&["--key-env", "TEST_SERVE_KEY", "--name", "cloud"]);
    let mut told = pannier();
    told.args([
        "chat",
        "-p",
        FRANCE,
        "--temp",
        "0",
        "-n",
        "12",
        "-m",
        &smollm2(),
        "--ctx",
        "1024",
        "--events",
    ]);
    told.args(["--cloud-url", &server.url, "--cloud-model", "cloud", "--min-confidence", "1"]);
    told.args(["--cloud-key-env", "TEST_SERVE_KEY"]).env("TEST_SERVE_KEY", "sesame");
    let output = told.output().unwrap();
    let notes = text(&output.stderr);
    assert!(output.status.success(), "{notes}");
    assert!(text(&output.stdout).contains("Paris"));
    assert!(notes.contains("not sure enough") && notes.contains("[outgoing to http://127.0.0.1"), "{notes}");
    assert!(notes.contains(FRANCE) && notes.contains("[from the cloud"), "{notes}");
    assert!(!notes.contains("sesame"), "the key is not told");

    // A wrong key: the draft stands, and the reason is told.
    let wrong = told.env("TEST_SERVE_KEY", "wrong").output().unwrap();
    let notes = text(&wrong.stderr);
    assert!(wrong.status.success() && notes.contains("401") && notes.contains("[from the device"), "{notes}");
    assert!(text(&wrong.stdout).contains("Paris"));
}

#[test]
fn a_cloud_that_is_not_there_leaves_the_draft() {
    // Bound and let go: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/v1");
    let model = smollm2();
    let chat = |policy: &'static str| {
        let all = ["chat", "-p", FRANCE, "--temp", "0", "-n", "12", "--ctx", "1024", "--min-confidence", "1"];
        let mut all: Vec<String> = all.map(String::from).into();
        all.extend(
            ["-m", &model, "--cloud-url", &url, "--cloud-model", "m", "--policy", policy].map(String::from),
        );
        all
    };
    let report = json(chat("edge-first"));
    assert_eq!(report["source"], "device");
    let reasons: Vec<&str> =
        events(&report, "decision").iter().filter_map(|d| d["reason"].as_str()).collect();
    assert!(reasons.iter().any(|r| r.contains("cannot be reached")), "{reasons:?}");
    assert_fails(&run(chat("cloud-only")), &["cannot be reached"]);
}

#[test]
fn wrong_clouds_are_refused_in_one_line() {
    let model = smollm2();
    let chat = |more: &[&str]| {
        let mut all = vec!["chat", "-p", "Hi", "-m", &model, "--ctx", "256"];
        all.extend(more);
        run(all)
    };
    assert_fails(&chat(&["--cloud-url", "http://example.com/v1", "--cloud-model", "m"]), &["HTTPS"]);
    assert_fails(&chat(&["--cloud-url", "nonsense", "--cloud-model", "m"]), &["address"]);
    assert_fails(&chat(&["--cloud-url", "http://127.0.0.1:1/v1"]), &["--cloud-model"]);
    assert_fails(&chat(&["--cloud-model", "m"]), &["--cloud-url"]);
    assert_fails(&chat(&["--min-confidence", "1.5"]), &["probability"]);
    let keyless =
        ["--cloud-url", "http://127.0.0.1:1/v1", "--cloud-model", "m", "--cloud-key-env", "NO_SUCH_VARIABLE"];
    assert_fails(&chat(&keyless), &["NO_SUCH_VARIABLE"]);
    assert_fails(
        &run(["serve", "-m", &model, "--port", "0", "--key-env", "NO_SUCH_VARIABLE"]),
        &["NO_SUCH_VARIABLE"],
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    assert_fails(&run(["serve", "-m", &model, "--ctx", "256", "--port", &port]), &["cannot listen", &port]);
}

/// The first Ctrl-C lets the server end by itself.
#[cfg(unix)]
#[test]
fn a_server_ends_well_after_ctrl_c() {
    let mut server = Serving::start(&[]);
    let kill = std::process::Command::new("kill").args(["-INT", &server.child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn confidence_is_fitted_on_labels_and_used_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    // A model file of its own, so that no other test finds the calibration.
    let model = dir.path().join("model.gguf");
    std::os::unix::fs::symlink(smollm2(), &model).unwrap();
    let model = model.to_str().unwrap();
    let labels = dir.path().join("labels.jsonl");
    let mut file = std::fs::File::create(&labels).unwrap();
    let cities =
        ["Paris", "Rome", "Berlin", "Madrid", "London", "Vienna", "Lisbon", "Athens", "Dublin", "Oslo"];
    let countries = [
        "France", "Italy", "Germany", "Spain", "England", "Austria", "Portugal", "Greece", "Ireland",
        "Norway",
    ];
    for at in 0..50 {
        let (country, city) = (countries[at % 10], cities[(at + at / 10) % 10]);
        let line = object!({
            "prompt": format!("Which city is the capital of {country}?"),
            "answer": format!("The capital of {country} is {city}."),
            "right": at < 10,
        });
        writeln!(file, "{line}").unwrap();
    }
    drop(file);
    let labels = labels.to_str().unwrap();
    let few = run(["fit-confidence", "-m", model, "--ctx", "512", "--file", labels, "--no-p-true"]);
    assert_fails(&few, &["right", "wrong", "at least 20"]);

    // Each right answer three times: enough, if not much of a test of anything else.
    let all = std::fs::read_to_string(labels).unwrap();
    let right: String = all.lines().take(10).map(|l| format!("{l}\n")).collect();
    std::fs::write(labels, format!("{}{all}", right.repeat(3))).unwrap();
    let fitted = json(["fit-confidence", "-m", model, "--ctx", "512", "--file", labels, "--no-p-true"]);
    assert_eq!(keys(&fitted), ["path", "answers", "report"]);
    assert_eq!((&fitted["answers"], &fitted["report"]["judged_on"]), (&object!(80), &object!(40)));
    assert!(fitted["report"]["auroc"].as_f64().unwrap() > 0.7, "wrong capitals are unlikely ones: {fitted}");
    assert!(dir.path().join("model.gguf.confidence.json").exists());

    let known = json(["chat", "-m", model, "--ctx", "512", "-p", FRANCE, "--temp", "0", "-n", "16"]);
    assert!(known["confidence"].as_f64().unwrap() > 0.3, "{known}");
    // A damaged one is told, and not used.
    std::fs::write(dir.path().join("model.gguf.confidence.json"), "{}").unwrap();
    let output = run(["chat", "-m", model, "--ctx", "512", "-p", FRANCE, "--temp", "0", "-n", "4"]);
    assert!(output.status.success() && text(&output.stderr).contains("no usable calibration"));

    std::fs::write(labels, "{\"prompt\": \"x\"}\n").unwrap();
    assert_fails(&run(["fit-confidence", "-m", model, "--file", labels]), &["line 1", "expected"]);
    assert_fails(&run(["fit-confidence", "-m", model, "--file", "/no/such/file"]), &["cannot open"]);
    assert!(models().exists());
}
