//! Greedy answers: the same for everyone who asks the same model the same question.

use crate::Result;
use pannier::CancelFlag;
use pannier::model::{Forward, Outputs};
use pannier::sampling::LogitStats;
use pannier_tokenizer::{DecodeOptions, EncodeOptions, StreamDecoder, Tokenizer};

/// Answers one prompt after the other, and reads what they have in common only once.
pub(super) struct Answerer<'a, F: Forward> {
    forward: &'a mut F,
    tokenizer: &'a Tokenizer,
    seq: F::Seq,
    /// The tokens that `seq` holds.
    held: Vec<u32>,
}

impl<'a, F: Forward> Answerer<'a, F> {
    pub fn new(forward: &'a mut F, tokenizer: &'a Tokenizer) -> Result<Self> {
        let seq = forward.new_seq()?;
        Ok(Answerer { forward, tokenizer, seq, held: Vec::new() })
    }

    /// The most likely continuation up to `stop` (which is not part of it), the end of the text, or `most` tokens.
    pub fn answer(&mut self, prompt: &str, stop: &str, most: usize, cancel: &CancelFlag) -> Result<String> {
        let mut ids = self.tokenizer.encode(prompt, EncodeOptions { add_special: true, parse_special: true });
        if self.tokenizer.add_eos() {
            // The prompt is no complete text: the answer goes on from it.
            ids.pop_if(|last| self.tokenizer.is_eog(*last));
        }
        let mut common = self.held.iter().zip(&ids).take_while(|(a, b)| a == b).count();
        // At least one token has to be run for its logits.
        common = common.min(ids.len().saturating_sub(1));
        if self.forward.truncate(&mut self.seq, common).is_err() {
            // A recurrent state that cannot go back there: from the start.
            common = 0;
            self.forward.truncate(&mut self.seq, 0)?;
        }
        self.held.truncate(common);
        let mut next = self.run(ids.get(common..).unwrap_or_default(), cancel)?;
        let options = DecodeOptions { continuation: true, skip_special: true };
        let mut decoder = StreamDecoder::new(self.tokenizer, options);
        let mut text = String::new();
        for count in 1..=most {
            if self.tokenizer.is_eog(next) {
                break;
            }
            text.push_str(decoder.push(next).unwrap_or_default());
            if let Some(end) = text.find(stop) {
                text.truncate(end);
                return Ok(text);
            }
            if count < most {
                next = self.run(&[next], cancel)?;
            }
        }
        text.push_str(decoder.finish().unwrap_or_default());
        Ok(text)
    }

    /// Runs tokens and gives the most likely next one.
    fn run(&mut self, ids: &[u32], cancel: &CancelFlag) -> Result<u32> {
        let logits = self.forward.step(&mut self.seq, ids, Outputs::Last, cancel)?;
        let best = LogitStats::of(logits)?.best;
        self.held.extend_from_slice(ids);
        Ok(best)
    }
}
