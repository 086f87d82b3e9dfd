//! Loading, answering and closing, again and again: memory stays flat, and no thread stays.

use std::ops::ControlFlow;
use std::path::PathBuf;

use pannier::lifecycle::{HostOptions, ModelHost, ModelSource};
use pannier::memory::{MemoryProbe, SystemMemory};
use pannier::session::{ChatMessage, ChatOptions, GenerationOptions, LoadOptions, Role};

fn smol() -> PathBuf {
    let folder = match std::env::var_os("PANNIER_MODELS").filter(|f| !f.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => dirs::cache_dir().expect("a cache folder").join("pannier/models"),
    };
    folder.join("SmolLM2-135M-Instruct.Q4_1.gguf")
}

fn cycle() {
    let host = ModelHost::new(HostOptions::default());
    let options = LoadOptions { context: Some(256), ..LoadOptions::default() };
    let model = host.open(ModelSource { path: smol(), options });
    model.load(false, &mut |_| {}).unwrap();
    let chat = model.chat(ChatOptions::default());
    let question = ChatMessage::new(Role::User, "Name a colour.");
    // On a thread of its own, as the bindings do.
    let (done, result) = std::sync::mpsc::channel();
    let run = chat.spawn(
        vec![question],
        GenerationOptions::greedy(4),
        |_| ControlFlow::Continue(()),
        move |result| done.send(result).unwrap(),
    );
    let run = run.unwrap();
    result.recv().unwrap().unwrap();
    run.join();
    model.close();
    host.close();
}

fn anonymous() -> u64 {
    SystemMemory.read().unwrap().anonymous
}

#[test]
fn two_hundred_cycles_leave_nothing_behind() {
    let mut readings = Vec::new();
    for round in 0..200 {
        cycle();
        if round % 20 == 19 {
            readings.push(anonymous() >> 10);
        }
    }
    println!("anonymous memory every twenty cycles, in KiB: {readings:?}");
    let (warm, last) = (readings[1], readings[readings.len() - 1]);
    assert!(last * 100 <= warm * 102, "{readings:?}");
    if let Ok(tasks) = std::fs::read_dir("/proc/self/task") {
        let names = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
        let ours: Vec<String> = names.filter(|n| n.starts_with("pannier")).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}
