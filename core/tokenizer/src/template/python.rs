//! What chat templates expect of Python: functions, methods, plain values.

use super::time::LocalTime;
use minijinja::value::{ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde_json::Value as Json;
use std::fmt;

/// Deepest value that a template may make.
const MAX_DEPTH: usize = 64;
/// Longest text or list that a product may make.
const MAX_PRODUCT: usize = 1 << 20;

/// The words that a template gives to `raise_exception`, to tell them from its failures.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

pub(super) fn install(env: &mut Environment<'static>) {
    env.add_function("raise_exception", raise_exception);
    env.add_function("namespace", namespace);
    env.add_filter("tojson", super::json::tojson);
    env.add_filter("__plain", plain_filter);
    env.add_filter("__times", times);
    env.set_unknown_method_callback(method);
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(invalid(message.clone()).with_source(Raised(message)))
}

/// A JSON value as the template sees it. What is nested too deep to be of use is left out.
pub(super) fn from_json(value: &Json, depth: usize) -> Value {
    match value {
        _ if depth > 2 * MAX_DEPTH => Value::UNDEFINED,
        Json::Null => Value::from(()),
        Json::Bool(yes) => Value::from(*yes),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(|v| from_json(v, depth + 1)).collect::<Vec<_>>()),
        Json::Object(map) => {
            Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), from_json(v, depth + 1))))
        }
    }
}

/// `strftime_now` of one moment.
pub(super) fn strftime_now(now: LocalTime) -> Value {
    Value::from_function(move |format: &str| -> Result<String, Error> {
        now.format(format).map_err(|directive| {
            invalid(format!("strftime_now: the directive %{directive} is not supported"))
        })
    })
}

fn namespace(state: &State, defaults: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let checked = defaults.map(|values| plain(state, &values, 0)).transpose()?;
    minijinja::functions::namespace(checked.map(ValueOrKwargs::from))
}

fn plain_filter(state: &State, value: &Value) -> Result<Value, Error> {
    plain(state, value, 0)
}

/// The value as made of plain lists and maps, not nested too deep.
///
/// A copy: lazy sequences hold the ones they come from, and a chain of them is as deep a recursion as nested lists.
fn plain(state: &State, value: &Value, depth: usize) -> Result<Value, Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("a value is nested more than {MAX_DEPTH} deep")));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            charge(state, value.len().unwrap_or(0))?;
            let mut items = Vec::new();
            for item in value.try_iter()? {
                items.push(plain(state, &item, depth + 1)?);
                if items.len() % 1024 == 0 {
                    charge(state, 1024)?;
                }
            }
            Ok(Value::from(items))
        }
        ValueKind::Map => {
            let mut pairs = Vec::new();
            charge(state, value.len().unwrap_or(0))?;
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                let key = plain(state, &key, depth + 1)?;
                pairs.push((key, plain(state, &item, depth + 1)?));
            }
            Ok(Value::from_pairs(pairs))
        }
        ValueKind::Plain | ValueKind::Invalid => Err(invalid("functions and macros can't be assigned")),
        _ => Ok(value.clone()),
    }
}

/// Pays for `items` visited.
fn charge(state: &State, items: usize) -> Result<(), Error> {
    state.consume_fuel(items as u64 / 8)
}

/// `a * b`
fn times(state: &State, a: &Value, b: &Value) -> Result<Value, Error> {
    for (value, count) in [(a, b), (b, a)] {
        let sequence = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
        let len = match value.as_str() {
            Some(text) => text.len(),
            None if sequence => value.len().unwrap_or(0),
            None => continue,
        };
        let count = usize::try_from(i64::try_from(count.clone())?.max(0)).unwrap_or(usize::MAX);
        let total = len.saturating_mul(count);
        if total > MAX_PRODUCT {
            return Err(invalid(format!(
                "a product of {total} elements; at most {MAX_PRODUCT} are supported"
            )));
        }
        // Eight bytes or one element a step, paid before they are made.
        charge(state, if sequence { total.saturating_mul(8) } else { total })?;
        return match value.as_str() {
            Some(text) => Ok(Value::from(text.repeat(count))),
            None => {
                let items: Vec<Value> = value.try_iter()?.collect();
                Ok(Value::from(std::iter::repeat_n(items, count).flatten().collect::<Vec<_>>()))
            }
        };
    }
    if a.kind() != ValueKind::Number || b.kind() != ValueKind::Number {
        return Err(invalid(format!("{} and {} can't be multiplied", a.kind(), b.kind())));
    }
    if a.is_integer() && b.is_integer() {
        let product = i64::try_from(a.clone())?.checked_mul(i64::try_from(b.clone())?);
        return product.map(Value::from).ok_or_else(|| invalid("the product is too large"));
    }
    Ok(Value::from(f64::try_from(a.clone())? * f64::try_from(b.clone())?))
}

/// Methods that minijinja's own values lack.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    // The engine charges for text but not for lists that a method walks over.
    for list in
        args.iter().chain([value]).filter(|v| matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable))
    {
        charge(state, list.len().unwrap_or(0))?;
    }
    if let Some(text) = value.as_str() {
        let list = |parts: Vec<&str>| Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>()));
        match (name, args.first().and_then(|a| a.as_str())) {
            ("format", _) if has_long_number(text) => {
                return Err(invalid("format: a width of more than three digits"));
            }
            ("removeprefix", Some(prefix)) => {
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            ("removesuffix", Some(suffix)) => {
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            ("partition", Some(by)) if !by.is_empty() => {
                let (head, tail) =
                    text.split_once(by).map_or((text, None), |(head, tail)| (head, Some(tail)));
                let by = if tail.is_some() { by } else { "" };
                return list(vec![head, by, tail.unwrap_or("")]);
            }
            ("rpartition", Some(by)) if !by.is_empty() => {
                let (head, tail) =
                    text.rsplit_once(by).map_or((None, text), |(head, tail)| (Some(head), tail));
                let by = if head.is_some() { by } else { "" };
                return list(vec![head.unwrap_or(""), by, tail]);
            }
            ("rsplit", Some(by)) if !by.is_empty() => {
                let most = args.get(1).map_or(Ok(-1), |n| i64::try_from(n.clone()))?;
                let limit = usize::try_from(most).map_or(usize::MAX, |n| n.saturating_add(1));
                let mut parts: Vec<&str> = text.rsplitn(limit, by).collect();
                parts.reverse();
                return list(parts);
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Whether a format string asks for a width or precision that could make it huge.
fn has_long_number(text: &str) -> bool {
    text.as_bytes()
        .chunk_by(|a, b| a.is_ascii_digit() && b.is_ascii_digit())
        .any(|run| run.len() > 3 && run.iter().all(u8::is_ascii_digit))
}
