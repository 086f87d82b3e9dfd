//! Server-sent events: bytes in any pieces -> the data of each event (WHATWG HTML, "Server-sent events").

use crate::cloud::CloudError;

/// No honest event is longer.
const MAX_EVENT: usize = 1 << 20;

/// The parser. Comments, ids and event names are skipped: this protocol has none.
#[derive(Debug, Default)]
pub(super) struct Sse {
    line: Vec<u8>,
    data: String,
    has_data: bool,
    after_cr: bool,
}

impl Sse {
    /// Takes bytes; gives the data of the events that they complete.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<String>) -> Result<(), CloudError> {
        for &byte in bytes {
            let lf_of_crlf = byte == b'\n' && self.after_cr;
            self.after_cr = byte == b'\r';
            match byte {
                _ if lf_of_crlf => {}
                b'\n' | b'\r' => self.end_line(out)?,
                _ => {
                    self.line.push(byte);
                    self.check(self.line.len())?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, more: usize) -> Result<(), CloudError> {
        if self.data.len().saturating_add(more) > MAX_EVENT {
            return Err(CloudError::Malformed { reason: format!("an event of more than {MAX_EVENT} bytes") });
        }
        Ok(())
    }

    fn end_line(&mut self, out: &mut Vec<String>) -> Result<(), CloudError> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                out.push(std::mem::take(&mut self.data));
            }
            return Ok(());
        }
        let line = std::str::from_utf8(&line)
            .map_err(|_| CloudError::Malformed { reason: "the stream is not UTF-8".into() })?;
        let line = line.strip_prefix('\u{feff}').unwrap_or(line);
        if let Some(value) = line.strip_prefix("data:") {
            if self.has_data {
                self.data.push('\n');
            }
            self.has_data = true;
            self.check(value.len())?;
            self.data.push_str(value.strip_prefix(' ').unwrap_or(value));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &[u8], step: usize) -> Result<Vec<String>, CloudError> {
        let mut sse = Sse::default();
        let mut out = Vec::new();
        for piece in text.chunks(step) {
            sse.push(piece, &mut out)?;
        }
        Ok(out)
    }

    #[test]
    fn events_are_found_however_they_are_cut() {
        let text = ": hello\r\nid: 7\ndata: {\"a\":\"é🙂\"}\r\n\r\ndata:x\ndata: y\n\nevent: z\n\ndata: [DONE]\n\ndata: lost";
        for step in 1..text.len() {
            assert_eq!(
                parse(text.as_bytes(), step).unwrap(),
                ["{\"a\":\"é🙂\"}", "x\ny", "[DONE]"],
                "{step}"
            );
        }
    }

    #[test]
    fn endless_lines_and_other_encodings_are_refused() {
        assert!(parse(&vec![b'x'; MAX_EVENT + 1], 4096).is_err());
        let many = "data: 0123456789\n".repeat(MAX_EVENT / 10);
        assert!(parse(many.as_bytes(), 4096).is_err());
        assert!(parse(b"data: \xff\n\n", 3).is_err());
    }
}
