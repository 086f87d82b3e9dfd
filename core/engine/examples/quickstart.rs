//! The quick start of the README.

use std::io::Write;
use std::ops::ControlFlow;

use pannier::store::ModelStore;
use pannier::{ChatOptions, GenerationEvent, GenerationOptions, LoadOptions, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = ModelStore::user()?.locate("smollm2")?; // once before: pannier pull smollm2
    let options = LoadOptions { budget_bytes: Some(256 << 20), ..LoadOptions::default() };
    let model = Model::load(file, &options, &mut |_| {})?;
    let chat = model.chat(ChatOptions::default())?;
    let answer = chat.send("Name three rivers in Europe.", GenerationOptions::default(), &mut |event| {
        if let GenerationEvent::Text { text, .. } = event {
            print!("{text}");
            let _ = std::io::stdout().flush();
        }
        ControlFlow::Continue(())
    })?;
    println!("\n{:.0} tokens/s", answer.stats.decode_tok_s());
    Ok(())
}
