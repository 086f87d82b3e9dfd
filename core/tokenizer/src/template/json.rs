//! The `tojson` filter as Hugging Face's chat templates have it: Python's `json.dumps` without HTML escapes.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use std::fmt::Write;

const MAX_DEPTH: usize = 128;
const MAX_INDENT: usize = 32;

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(
    state: &State,
    value: &Value,
    ensure_ascii: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let ensure_ascii = match ensure_ascii {
        Some(yes) => yes,
        None => kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => match value.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(usize::try_from(value)?.min(MAX_INDENT))),
        },
    }
    .filter(|indent| indent.len() <= MAX_INDENT);
    let (item, key) = match kwargs.get::<Option<Vec<String>>>("separators")?.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(invalid("tojson: separators must be a pair")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let style = Style { ensure_ascii, sort_keys, indent, item_separator: item, key_separator: key };
    let mut out = String::new();
    let mut paid = 0;
    write_value(state, &style, value, 0, &mut out, &mut paid)?;
    Ok(Value::from(out))
}

/// Pays for what was written since the last time, before more is.
fn pay(state: &State, written: usize, paid: &mut usize) -> Result<(), Error> {
    const BYTES_PER_FUEL: usize = 32;
    let due = (written - *paid) / BYTES_PER_FUEL;
    *paid += due * BYTES_PER_FUEL;
    state.consume_fuel(due as u64)
}

fn write_value(
    state: &State,
    style: &Style,
    value: &Value,
    depth: usize,
    out: &mut String,
    paid: &mut usize,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("tojson: the value is nested more than {MAX_DEPTH} deep")));
    }
    pay(state, out.len(), paid)?;
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(value, out)?,
        ValueKind::String => write_string(style, value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let mut empty = true;
            out.push('[');
            for item in value.try_iter()? {
                next_item(style, depth + 1, &mut empty, out);
                write_value(state, style, &item, depth + 1, out, paid)?;
            }
            close(style, depth, empty, ']', out);
        }
        ValueKind::Map => {
            let mut pairs: Vec<(String, Value)> = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                pairs.push((key_text(&key)?, item));
            }
            if style.sort_keys {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            let mut empty = true;
            out.push('{');
            for (key, item) in pairs {
                next_item(style, depth + 1, &mut empty, out);
                write_string(style, &key, out);
                out.push_str(&style.key_separator);
                write_value(state, style, &item, depth + 1, out, paid)?;
            }
            close(style, depth, empty, '}', out);
        }
        kind => return Err(invalid(format!("tojson: {kind} can't be written as JSON"))),
    }
    Ok(())
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => {
            let mut text = String::new();
            write_number(key, &mut text)?;
            Ok(text)
        }
        kind => Err(invalid(format!("tojson: {kind} can't be a key"))),
    }
}

fn next_item(style: &Style, depth: usize, empty: &mut bool, out: &mut String) {
    if !*empty {
        out.push_str(&style.item_separator);
    }
    *empty = false;
    new_line(style, depth, out);
}

fn close(style: &Style, depth: usize, empty: bool, bracket: char, out: &mut String) {
    if !empty {
        new_line(style, depth, out);
    }
    out.push(bracket);
}

fn new_line(style: &Style, depth: usize, out: &mut String) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        for _ in 0..depth {
            out.push_str(indent);
        }
    }
}

fn write_number(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return Ok(());
    }
    let float = f64::try_from(value.clone())?;
    if float.is_nan() {
        out.push_str("NaN");
    } else if float.is_infinite() {
        out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" });
    } else if float != 0.0 && !(1e-4..1e16).contains(&float.abs()) {
        // Python writes 1e-05 and 1e+16.
        let text = format!("{float:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
        let _ = write!(out, "{mantissa}e{sign}{digits:0>2}");
    } else {
        let _ = write!(out, "{float:?}");
    }
    Ok(())
}

fn write_string(style: &Style, text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (style.ensure_ascii && !(' '..='~').contains(&c)) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
