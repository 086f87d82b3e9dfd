//! The record of a run: figures as JSON, and a page of Markdown for people.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::machine;
use crate::{Result, sh};

/// A column of a table: its title, and the cell for a row.
type Column = (&'static str, fn(&Value) -> String);

/// Rows by section, and what they were measured on.
pub struct Record {
    name: String,
    command: String,
    pub peers: Vec<String>,
    pub notes: Vec<String>,
    sections: Map<String, Value>,
    date: String,
    machine: String,
    commit: String,
}

impl Record {
    pub fn new(name: Option<&str>, command: String) -> Record {
        let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        Record {
            name: name.unwrap_or(std::env::consts::ARCH).chars().map(safe).collect(),
            command,
            peers: Vec::new(),
            notes: Vec::new(),
            sections: Map::new(),
            date: machine::date(),
            machine: machine::describe(),
            commit: machine::commit(),
        }
    }

    pub fn path(&self, extension: &str) -> PathBuf {
        sh::root().join(format!("benches/record/{}-{}.{extension}", self.date, self.name))
    }

    /// Adds a row and writes both files again.
    pub fn add(&mut self, section: &str, row: Value) -> Result {
        if let Value::Array(rows) = self.sections.entry(section).or_insert(json!([])) {
            rows.push(row);
        }
        self.save()
    }

    /// Writes both files.
    pub fn save(&self) -> Result {
        let object = json!({
            "date": self.date, "machine": self.machine, "commit": self.commit, "command": self.command,
            "peers": self.peers, "notes": self.notes, "sections": self.sections,
        });
        for (extension, text) in [("json", format!("{object:#}\n")), ("md", self.markdown())] {
            let path = self.path(extension);
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)
                    .map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
            }
            std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        Ok(())
    }

    pub fn markdown(&self) -> String {
        let mut page = format!("# Speed on {}\n\n", self.date);
        let mut line = |text: String| {
            let _ = writeln!(page, "{text}");
        };
        line(format!("* Machine: {}", self.machine));
        line(format!("* Commit: {}", self.commit));
        line(format!("* Command: `{}`", self.command));
        self.peers.iter().for_each(|peer| line(format!("* Peer: {peer}")));
        self.notes.iter().for_each(|note| line(format!("* {note}")));
        line("* Medians; ratios are medians of the rounds' own ratios, ours / theirs. `load` is the load average before.".into());
        for (section, rows) in &self.sections {
            let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
            match section.as_str() {
                "table" => speeds(&mut page, rows),
                "busy" => table(
                    &mut page,
                    "Two threads while another process keeps one core busy, tokens/s",
                    BUSY,
                    rows,
                ),
                "plan" => {
                    table(&mut page, "Plan against measurement: decode in tokens/s, memory in MB", PLAN, rows)
                }
                "long" => table(&mut page, "Decode behind 4096 tokens against 128, tokens/s", LONG, rows),
                _ => table(&mut page, "Loading: a fresh process with the file in the page cache", LOAD, rows),
            }
        }
        page
    }
}

const PLAN: &[Column] = &[
    ("model", |r| text(&r["model"])),
    ("context", |r| r["context"].to_string()),
    ("budget, MiB", |r| r["budget_mb"].as_u64().map_or("-".into(), |mb| mb.to_string())),
    ("flash, MB/s", |r| r["read_mb_s"].as_u64().map_or("-".into(), |mb| mb.to_string())),
    ("decode, planned", |r| number(&r["predicted_decode_tok_s"])),
    ("measured", |r| number(&r["decode_tok_s"])),
    ("ratio", |r| ratio(&r["decode_ratio"])),
    ("drift", |r| ratio(&r["drift"])),
    ("peak, planned", |r| mega(&r["predicted_peak_bytes"])),
    ("measured", |r| mega(&r["peak_anon_bytes"])),
    ("ratio", |r| ratio(&r["peak_ratio"])),
    ("MB per token, planned", |r| mega(&r["predicted_bytes_per_token"])),
    ("measured", |r| mega(&r["bytes_per_token"])),
    ("hits, planned", |r| number(&r["predicted_hit_rate"])),
    ("measured", |r| number(&r["hit_rate"])),
    ("load", |r| number(&r["load_average"])),
];

const BUSY: &[Column] = &[
    ("model", |r| text(&r["model"])),
    ("1 thread, free", |r| number(&r["one_thread_free_tok_s"])),
    ("2 threads, busy", |r| number(&r["two_threads_busy_tok_s"])),
    ("ratio", |r| ratio(&r["ratio"])),
    ("load", |r| number(&r["load_average"])),
];

const LONG: &[Column] = &[
    ("model", |r| text(&r["model"])),
    ("threads", |r| r["threads"].to_string()),
    ("behind 128", |r| number(&r["short_tok_s"])),
    ("behind 4096", |r| number(&r["long_tok_s"])),
    ("ratio", |r| ratio(&r["ratio"])),
    ("bytes read allow", |r| ratio(&r["bytes_ratio"])),
    ("load", |r| number(&r["load_average"])),
];

const LOAD: &[Column] = &[
    ("model", |r| text(&r["model"])),
    ("file, MB", |r| mega(&r["file_bytes"])),
    ("process to first token and exit, ms", |r| number(&r["process_ms"])),
    ("of it load", |r| number(&r["load_ms"])),
    ("of it prefill", |r| number(&r["prefill_ms"])),
    ("peak anonymous, MB", |r| mega(&r["peak_anon_bytes"])),
    ("KV + scratch planned, MB", |r| mega(&r["kv_and_scratch_bytes"])),
    ("load average", |r| number(&r["load_average"])),
];

/// The standard table; columns for peers only where there are some.
fn speeds(page: &mut String, rows: &[Value]) {
    let peers = rows.iter().flat_map(|r| r["peers"].as_array().map(Vec::as_slice).unwrap_or_default());
    let mut names: Vec<&str> = Vec::new();
    for name in peers.filter_map(|peer| peer["name"].as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut head = vec!["model".to_owned(), "threads".into(), "prefill".into(), "decode".into()];
    head.extend(["GB read per token", "of read bandwidth"].map(String::from));
    head.extend(names.iter().flat_map(|name| [format!("{name} prefill / decode"), "ratios".into()]));
    head.extend(["ISA", "load"].map(String::from));
    let cells = rows.iter().map(|r| {
        let mut cells = vec![
            text(&r["model"]),
            r["threads"].to_string(),
            number(&r["prefill_tok_s"]),
            number(&r["decode_tok_s"]),
            format!("{:.3}", r["bytes_per_token"].as_f64().unwrap_or(0.0) / 1e9),
            match (r["roofline_share"].as_f64(), r["read_bytes_per_s"].as_f64()) {
                (Some(share), Some(bps)) => format!("{:.0}% of {:.1} GB/s", share * 100.0, bps / 1e9),
                _ => "-".into(),
            },
        ];
        for name in &names {
            let all = r["peers"].as_array().map(Vec::as_slice).unwrap_or_default();
            let peer = all.iter().find(|p| p["name"] == *name).unwrap_or(&Value::Null);
            let (prefill, decode) = (&peer["prefill"], &peer["decode"]);
            cells.push(format!("{} / {}", number(&prefill["tok_s"]), number(&decode["tok_s"])));
            cells.push(format!("{} / {}", ratio(&prefill["ratio"]), ratio(&decode["ratio"])));
        }
        cells.extend([text(&r["isa"]), number(&r["load_average"])]);
        cells
    });
    grid(page, "Prefill and decode, tokens/s", &head, cells);
}

fn table(page: &mut String, title: &str, columns: &[Column], rows: &[Value]) {
    let head: Vec<String> = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    grid(page, title, &head, rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect()));
}

fn grid(page: &mut String, title: &str, head: &[String], rows: impl Iterator<Item = Vec<String>>) {
    let _ = write!(page, "\n## {title}\n\n| {} |\n|{}\n", head.join(" | "), " --- |".repeat(head.len()));
    for cells in rows {
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

/// As many digits as mean something.
fn number(value: &Value) -> String {
    match value.as_f64() {
        Some(x) if x >= 100.0 => format!("{x:.0}"),
        Some(x) if x >= 10.0 => format!("{x:.1}"),
        Some(x) => format!("{x:.2}"),
        None => "-".into(),
    }
}

fn ratio(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |x| format!("{x:.2}x"))
}

fn mega(value: &Value) -> String {
    value.as_f64().map_or("-".into(), |x| format!("{:.1}", x / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_peers_that_rows_have() {
        let mut page = String::new();
        let peer = json!({"name": "other", "prefill": {"tok_s": 50.0, "ratio": 2.0}, "decode": null});
        let row = json!({
            "model": "m", "threads": 2, "prefill_tok_s": 100.4, "decode_tok_s": 12.34, "bytes_per_token": 1e9,
            "roofline_share": 0.5, "read_bytes_per_s": 4e9, "isa": "avx2", "load_average": 0.5, "peers": [peer],
        });
        speeds(&mut page, &[row]);
        let last = page.lines().last().unwrap();
        assert_eq!(
            last,
            "| m | 2 | 100 | 12.3 | 1.000 | 50% of 4.0 GB/s | 50.0 / - | 2.00x / - | avx2 | 0.50 |"
        );
        assert_eq!(page.lines().nth(3).unwrap().matches('|').count(), last.matches('|').count());
    }
}
