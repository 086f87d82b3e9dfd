//! What is done to a template's source before it is compiled.
//!
//! A template comes with a model file from anywhere. `minijinja` limits work and memory by fuel, but it recurses over
//! nested values and expressions, and a recursion that is too deep ends the process. So the source is read once, tag by
//! tag, and
//!
//! * nesting of brackets and blocks and the length of expressions are limited; `with`, `call` and `recursive` loops,
//!   which no chat template needs, are refused;
//! * each value that a template assigns or gets as a macro argument passes the filter `__plain`, which refuses deep
//!   nesting. Between two of these a value can only grow by the brackets written in one tag;
//! * `a * b` becomes `a|__times(b)`, because the built-in one makes lists of 100 million elements for free;
//! * `{% generation %}`, which marks the assistant's part for training, becomes a comment.
//!
//! Line numbers stay as they are.

use super::TemplateError;

/// Longest source that is read.
const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting of brackets in a tag.
const MAX_BRACKETS: usize = 16;
/// Deepest nesting of blocks.
const MAX_BLOCKS: usize = 32;
/// Most operators and names in a tag. They can all nest: `a.b.c`, `not not x`, `a ~ b ~ c`.
const MAX_OPERATORS: usize = 600;
/// Most `elif` in a template. Each nests in the one before.
const MAX_ELIF: usize = 200;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Name,
    Number,
    Text,
    Sign,
}

#[derive(Clone, Copy, Debug)]
struct Token<'s> {
    kind: Kind,
    text: &'s str,
    start: usize,
}

impl Token<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }

    fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && self.text == text
    }
}

/// One `{{ … }}` or `{% … %}`.
struct Tag<'s> {
    tokens: Vec<Token<'s>>,
    /// Where the closing delimiter starts, with its `-` or `+`.
    close: usize,
    end: usize,
}

/// Text to put into the source in place of `start..end`.
struct Edit {
    start: usize,
    end: usize,
    text: String,
}

/// Checks the source and gives the one to compile.
pub(super) fn prepare(source: &str) -> Result<String, TemplateError> {
    if source.len() > MAX_BYTES {
        return Err(TemplateError::TooLong { bytes: source.len(), limit: MAX_BYTES });
    }
    let mut guard = Guard { source, edits: Vec::new(), blocks: 0, elifs: 0 };
    guard.scan()?;
    let mut edits = guard.edits;
    edits.sort_by_key(|e| (e.start, e.end));
    let mut out = String::with_capacity(source.len() + 64);
    let mut done = 0;
    for edit in edits {
        out.push_str(source.get(done..edit.start).unwrap_or_default());
        out.push_str(&edit.text);
        done = edit.end.max(done);
    }
    out.push_str(source.get(done..).unwrap_or_default());
    Ok(out)
}

struct Guard<'s> {
    source: &'s str,
    edits: Vec<Edit>,
    blocks: usize,
    elifs: usize,
}

impl<'s> Guard<'s> {
    fn error(&self, at: usize, message: impl Into<String>) -> TemplateError {
        let before = self.source.as_bytes().get(..at).unwrap_or_default();
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        TemplateError::Syntax { line, message: message.into() }
    }

    fn edit(&mut self, start: usize, end: usize, text: impl Into<String>) {
        self.edits.push(Edit { start, end, text: text.into() });
    }

    fn scan(&mut self) -> Result<(), TemplateError> {
        let source = self.source;
        let mut pos = 0;
        while let Some(found) = source.get(pos..).and_then(|rest| rest.find('{')) {
            let at = pos + found;
            let rest = source.get(at..).unwrap_or_default();
            if rest.starts_with("{#") {
                let Some(end) = rest.find("#}") else { return Ok(()) };
                pos = at + end + 2;
            } else if rest.starts_with("{{") || rest.starts_with("{%") {
                // An open end is left to the compiler, which has the words for it.
                let Some(tag) = self.tag(at)? else { return Ok(()) };
                pos = tag.end;
                self.check(at, &tag)?;
                if rest.starts_with("{%") {
                    let word = tag.tokens.first().filter(|t| t.kind == Kind::Name).map_or("", |t| t.text);
                    if word == "raw" {
                        pos = self.end_of_raw(pos).unwrap_or(source.len());
                    } else {
                        self.statement(at, word, &tag)?;
                    }
                }
            } else {
                pos = at + 1;
            }
        }
        Ok(())
    }

    /// The end of the `{% endraw %}` behind `pos`.
    fn end_of_raw(&self, mut pos: usize) -> Option<usize> {
        loop {
            let at = pos + self.source.get(pos..)?.find("{%")?;
            let inner = self.source.get(at + 2..)?.trim_start_matches(['-', '+']).trim_start();
            if let Some(rest) = inner.strip_prefix("endraw") {
                let close = self.source.len() - rest.len() + rest.find("%}")?;
                return Some(close + 2);
            }
            pos = at + 2;
        }
    }

    /// Reads the tokens of the tag that starts at `at`. `None` if it does not end.
    fn tag(&self, at: usize) -> Result<Option<Tag<'s>>, TemplateError> {
        let bytes = self.source.as_bytes();
        let close: &[u8] = if bytes.get(at + 1) == Some(&b'{') { b"}}" } else { b"%}" };
        let mut pos = at + 2;
        if matches!(bytes.get(pos), Some(b'-' | b'+')) {
            pos += 1;
        }
        let mut tokens = Vec::new();
        let mut depth = 0usize;
        while let Some(&byte) = bytes.get(pos) {
            let here = bytes.get(pos..).unwrap_or_default();
            let signed = matches!(byte, b'-' | b'+') && here.get(1..).is_some_and(|h| h.starts_with(close));
            if depth == 0 && (here.starts_with(close) || signed) {
                return Ok(Some(Tag { tokens, close: pos, end: pos + usize::from(signed) + close.len() }));
            }
            let (kind, len) = match byte {
                b' ' | b'\t' | b'\r' | b'\n' | 0x0B | 0x0C => {
                    pos += 1;
                    continue;
                }
                b'\'' | b'"' => match text_len(here, byte) {
                    Some(len) => (Kind::Text, len),
                    None => return Ok(None),
                },
                b'0'..=b'9' => (Kind::Number, here.iter().take_while(|b| is_word(**b)).count()),
                b if is_word(b) => (Kind::Name, here.iter().take_while(|b| is_word(**b)).count()),
                _ => {
                    let two =
                        [b"**", b"//", b"==", b"!=", b">=", b"<="].iter().any(|s| here.starts_with(&s[..]));
                    (Kind::Sign, if two { 2 } else { 1 })
                }
            };
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MAX_BRACKETS {
                return Err(self.error(pos, format!("brackets are nested more than {MAX_BRACKETS} deep")));
            }
            // A sign may be outside ASCII: then it is no Jinja, and the compiler will say so.
            let Some(text) = self.source.get(pos..pos + len) else { return Ok(None) };
            tokens.push(Token { kind, text, start: pos });
            pos += len;
        }
        Ok(None)
    }

    /// Limits and rewrites that concern every tag.
    fn check(&mut self, at: usize, tag: &Tag<'s>) -> Result<(), TemplateError> {
        let tokens = tag.tokens.as_slice();
        let counted = |t: &&Token| {
            matches!(t.kind, Kind::Name | Kind::Sign) && !matches!(t.text, "," | ":" | "=" | ")" | "]" | "}")
        };
        let operators = tokens.iter().filter(counted).count();
        if operators > MAX_OPERATORS {
            return Err(self.error(
                at,
                format!("a tag with {operators} names and operators; at most {MAX_OPERATORS} are supported"),
            ));
        }
        if let Some(name) = tokens.iter().find(|t| t.kind == Kind::Name && t.text.starts_with("__")) {
            return Err(self.error(name.start, format!("the name `{}` is reserved", name.text)));
        }
        for (i, token) in tokens.iter().enumerate().filter(|(_, t)| t.is("*")) {
            if let Some(other) = tokens.iter().find(|t| ["**", "/", "//", "%"].iter().any(|s| t.is(s))) {
                return Err(
                    self.error(token.start, format!("`*` and `{}` in one tag are not supported", other.text))
                );
            }
            let Some(end) = operand_end(tokens, i + 1) else {
                return Err(self.error(token.start, "`*` without a right operand"));
            };
            self.edit(token.start, token.end(), "|__times(");
            self.edit(end, end, ")");
        }
        Ok(())
    }

    /// Limits and rewrites that concern a statement.
    fn statement(&mut self, at: usize, word: &str, tag: &Tag<'s>) -> Result<(), TemplateError> {
        match word {
            "generation" | "endgeneration" => {
                let inner = self.source.get(at + 2..tag.end.saturating_sub(2)).unwrap_or_default();
                self.edit(at, tag.end, format!("{{#{inner}#}}"));
            }
            "with" | "call" => {
                return Err(self.error(at, format!("`{word}` is not supported in chat templates")));
            }
            "for" if tag.tokens.last().is_some_and(|t| t.is("recursive")) => {
                return Err(self.error(at, "`recursive` loops are not supported in chat templates"));
            }
            "elif" => {
                self.elifs += 1;
                if self.elifs > MAX_ELIF {
                    return Err(self.error(at, format!("more than {MAX_ELIF} `elif`")));
                }
            }
            "set" => self.set(tag),
            "macro" => self.macro_arguments(tag),
            _ => {}
        }
        if matches!(word, "for" | "if" | "macro" | "filter" | "block" | "autoescape") {
            self.blocks += 1;
            if self.blocks > MAX_BLOCKS {
                return Err(self.error(at, format!("blocks are nested more than {MAX_BLOCKS} deep")));
            }
        } else if word.starts_with("end") {
            self.blocks = self.blocks.saturating_sub(usize::from(word != "endset"));
        }
        Ok(())
    }

    /// `{% set a = x %}` becomes `{% set a = (x)|__plain %}`.
    fn set(&mut self, tag: &Tag<'s>) {
        let Some(assign) = tag.tokens.iter().position(|t| t.is("=")) else { return };
        let Some((first, last)) = tag.tokens.get(assign + 1).zip(tag.tokens.last()) else { return };
        // A namespace is not plain; the function checks what is put into it.
        if first.is("namespace") {
            return;
        }
        self.edit(first.start, first.start, "(");
        self.edit(last.end(), last.end(), ")|__plain");
    }

    /// Behind `{% macro f(a, b=1) %}` comes `{% set a = a|__plain %}{% set b = b|__plain %}`.
    fn macro_arguments(&mut self, tag: &Tag<'s>) {
        let close = self.source.get(tag.close..tag.end).unwrap_or("%}");
        let mut text = String::new();
        let mut depth = 0usize;
        for pair in tag.tokens.windows(2) {
            let [before, token] = pair else { continue };
            match before.text {
                "(" | "[" | "{" if before.kind == Kind::Sign => depth += 1,
                ")" | "]" | "}" if before.kind == Kind::Sign => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 1 && (before.is("(") || before.is(",")) && token.kind == Kind::Name {
                let name = token.text;
                text.push_str(&format!("{{% set {name} = {name}|__plain {close}"));
            }
        }
        self.edit(tag.end, tag.end, text);
    }
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Length of a quoted text with both its quotes.
fn text_len(bytes: &[u8], quote: u8) -> Option<usize> {
    let mut pos = 1;
    loop {
        match bytes.get(pos)? {
            b'\\' => pos += 2,
            b if *b == quote => return Some(pos + 1),
            _ => pos += 1,
        }
    }
}

/// The end of the operand that starts at token `i`: signs, a value, and what is called, indexed or filtered on it.
fn operand_end(tokens: &[Token], mut i: usize) -> Option<usize> {
    while tokens.get(i)?.is("-") || tokens.get(i)?.is("+") {
        i += 1;
    }
    let first = tokens.get(i)?;
    let mut end = match first.kind {
        Kind::Sign => group_end(tokens, &mut i)?,
        _ => {
            i += 1;
            first.end()
        }
    };
    loop {
        match tokens.get(i) {
            Some(t) if t.is(".") || t.is("|") => {
                end = tokens.get(i + 1)?.end();
                i += 2;
            }
            Some(t) if t.is("(") || t.is("[") => end = group_end(tokens, &mut i)?,
            _ => return Some(end),
        }
    }
}

/// The end of the bracket group that starts at token `i`, which is moved behind it.
fn group_end(tokens: &[Token], i: &mut usize) -> Option<usize> {
    let mut depth = 0usize;
    loop {
        let token = tokens.get(*i)?;
        *i += 1;
        if ["(", "[", "{"].iter().any(|s| token.is(s)) {
            depth += 1;
        } else if [")", "]", "}"].iter().any(|s| token.is(s)) {
            depth = depth.checked_sub(1)?;
        }
        if depth == 0 {
            return (token.kind == Kind::Sign).then_some(token.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_and_arguments_pass_the_filter() {
        assert_eq!(prepare("{%- set a, b = 1, '=' -%}").unwrap(), "{%- set a, b = (1, '=')|__plain -%}");
        assert_eq!(prepare("{% set ns = namespace(a=1) %}").unwrap(), "{% set ns = namespace(a=1) %}");
        assert_eq!(prepare("{% set x %}y{% endset %}").unwrap(), "{% set x %}y{% endset %}");
        assert_eq!(
            prepare("{%- macro f(a, b=[c, d], e=(1)) -%}").unwrap(),
            "{%- macro f(a, b=[c, d], e=(1)) -%}{% set a = a|__plain -%}{% set b = b|__plain -%}{% set e = e|__plain -%}"
        );
    }

    #[test]
    fn products_become_a_filter() {
        for (from, to) in [
            ("{{ a * 2 }}", "{{ a |__times( 2) }}"),
            ("{{ a * -b.c[0](1)|f + 1 }}", "{{ a |__times( -b.c[0](1)|f) + 1 }}"),
            ("{{ a * (b * c) * d }}", "{{ a |__times( (b |__times( c))) |__times( d) }}"),
            ("{{ '*' * 3 }}", "{{ '*' |__times( 3) }}"),
        ] {
            assert_eq!(prepare(from).unwrap(), to);
        }
        assert!(prepare("{{ a * }}").is_err());
        assert!(prepare("{{ a / b * c }}").is_err());
    }

    #[test]
    fn generation_tags_become_comments() {
        assert_eq!(
            prepare("a {%- generation %}b{% endgeneration -%} c").unwrap(),
            "a {#- generation #}b{# endgeneration -#} c"
        );
    }

    #[test]
    fn what_is_no_tag_stays() {
        for source in [
            "plain { text } %}",
            "{# {% set a = 1 %} #}",
            "{% raw %}{% set a = b * c %}{{ x }}{% endraw %}",
            "{{ '}}' }} {{ {'a': {'b': 1}} }}",
            "{{ \"it\\\"s }}\" }}",
            "{% open",
            "{{ 'open",
            "",
        ] {
            assert_eq!(prepare(source).unwrap(), source);
        }
    }

    #[test]
    fn limits_name_the_line() {
        let deep = format!("\n\n{{{{ {}x{} }}}}", "[".repeat(20), "]".repeat(20));
        assert!(matches!(prepare(&deep), Err(TemplateError::Syntax { line: 3, .. })));
        for source in [
            format!("{{{{ {}x }}}}", "not ".repeat(2000)),
            format!("{{{{ x{} }}}}", ".a".repeat(2000)),
            "{% if x %}".repeat(100),
            format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(1000)),
            "{% for x in y recursive %}{% endfor %}".to_owned(),
            "{% with a = 1 %}{% endwith %}".to_owned(),
            "{{ __plain }}".to_owned(),
        ] {
            assert!(matches!(prepare(&source), Err(TemplateError::Syntax { .. })), "{}", &source[..20]);
        }
        assert!(matches!(prepare(&" ".repeat(2 << 20)), Err(TemplateError::TooLong { .. })));
    }
}
