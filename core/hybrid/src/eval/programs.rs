//! Short Python programs whose output we know.

use super::draw::Draw;

/// A program of this level and what it prints.
pub(super) fn program(draw: &mut Draw, level: u8) -> (String, String) {
    let kind = draw.below(4);
    let (a, b, c) = (draw.range(2, 9), draw.range(2, 9), draw.range(3, 6));
    match (level, kind) {
        (1, 0) => (format!("print({a} + {b})"), (a + b).to_string()),
        (1, 1) => (format!("x = {a}\nprint(x)"), a.to_string()),
        (1, 2) => (format!("print(len([{a}, {b}, {c}]))"), "3".into()),
        (1, _) => (format!("print(max({a}, {b}))"), a.max(b).to_string()),
        (2, 0) => (format!("x = {a}\nx = x * {b}\nprint(x)"), (a * b).to_string()),
        (2, 1) => (format!("print([{a}, {b}, {c}][1])"), b.to_string()),
        (2, 2) => (format!("print(sum([{a}, {b}, {c}]))"), (a + b + c).to_string()),
        (2, _) => (format!("print({} // {c})", a * 10 + b), ((a * 10 + b) / c).to_string()),
        (3, 0) => {
            (format!("t = 0\nfor i in range({c}):\n    t += i\nprint(t)"), (c * (c - 1) / 2).to_string())
        }
        (3, 1) => (format!("print({} % {c})", a * 10 + b), ((a * 10 + b) % c).to_string()),
        (3, 2) => (format!("x = [{a}, {b}]\nx.append({c})\nprint(x[-1] + x[0])"), (c + a).to_string()),
        (3, _) => (format!("f = lambda n: n * {a} + {b}\nprint(f({c}))"), (c * a + b).to_string()),
        (4, 0) => {
            let t: u64 = (0..c).map(|i| i * a).sum();
            (format!("t = {b}\nfor i in range({c}):\n    t += i * {a}\nprint(t)"), (b + t).to_string())
        }
        (4, 1) => {
            let n = (1..=c * 3).filter(|i| i % a == 0).count();
            (format!("print(len([i for i in range(1, {}) if i % {a} == 0]))", c * 3 + 1), n.to_string())
        }
        (4, 2) => {
            let n = (a..a + c).map(|i| i * i).sum::<u64>();
            (format!("print(sum(i * i for i in range({a}, {})))", a + c), n.to_string())
        }
        (4, _) => {
            let (mut x, mut y) = (a, b);
            for _ in 0..c {
                (x, y) = (y, x + y);
            }
            (format!("a, b = {a}, {b}\nfor _ in range({c}):\n    a, b = b, a + b\nprint(a)"), x.to_string())
        }
        (_, 0) => {
            let start = i64::try_from(a * 13 + b).unwrap_or(0);
            let step = i64::try_from(c).unwrap_or(0);
            let (mut x, mut n) = (start, 0);
            while x > 1 && n < 50 {
                x = if x % 2 == 0 { x / 2 } else { x - step };
                n += 1;
            }
            let text = format!(
                "x, n = {}, 0\nwhile x > 1 and n < 50:\n    x = x // 2 if x % 2 == 0 else x - {c}\n    n += 1\nprint(n)",
                start
            );
            (text, n.to_string())
        }
        (_, 1) => {
            let n: u64 = (0..c + 2).flat_map(|i| (i..c + 2).map(move |j| i * j)).filter(|p| p % 2 == 1).sum();
            let m = c + 2;
            (
                format!(
                    "t = 0\nfor i in range({m}):\n    for j in range(i, {m}):\n        if i * j % 2:\n            t += i * j\nprint(t)"
                ),
                n.to_string(),
            )
        }
        (_, 2) => {
            let n = a * 1000 + b * 100 + c * 10 + 7;
            let digits: u64 = n.to_string().bytes().map(|d| u64::from(d - b'0')).product();
            (format!("p = 1\nfor d in str({n}):\n    p *= int(d)\nprint(p)"), digits.to_string())
        }
        (_, _) => {
            let n = (2..=a * 10).filter(|n| (2..*n).all(|d| n % d != 0)).count();
            (
                format!(
                    "print(len([n for n in range(2, {}) if all(n % d for d in range(2, n))]))",
                    a * 10 + 1
                ),
                n.to_string(),
            )
        }
    }
}
