//! What the app has been told: the one place that calls its event handler.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use pannier::session::Canceller;

use super::HybridSink;
use super::finish::Finished;
use crate::cloud::CloudUsage;
use crate::event::{Confidence, HybridCompletion, HybridError, HybridEvent, Source};
use crate::policy::Decision;

/// The app's view. What is shown is only ever changed here, so the events and the final text cannot differ.
pub(super) struct Out<'a, 's> {
    sink: &'a mut HybridSink<'s>,
    canceller: Canceller,
    shown: String,
    panic: Option<String>,
    decisions: Vec<Decision>,
    pub usage: CloudUsage,
    pub cost: u64,
    pub begun: Duration,
    now: Duration,
}

impl<'a, 's> Out<'a, 's> {
    pub fn new(sink: &'a mut HybridSink<'s>, canceller: Canceller, begun: Duration) -> Self {
        Self {
            sink,
            canceller,
            shown: String::new(),
            panic: None,
            decisions: Vec::new(),
            usage: CloudUsage::default(),
            cost: 0,
            begun,
            now: begun,
        }
    }

    /// What the user sees.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether the app wants no more: it cancelled, broke off, or its handler panicked.
    pub fn stopped(&self) -> bool {
        self.canceller.is_cancelled()
    }

    pub fn canceller(&self) -> &Canceller {
        &self.canceller
    }

    /// Tells an event that is not the last. A handler that breaks off or panics cancels the turn.
    pub fn tell(&mut self, event: HybridEvent<'_>) {
        if self.stopped() {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| (self.sink)(event))) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => self.canceller.cancel(),
            Err(payload) => {
                self.panic = Some(panic_message(payload.as_ref()));
                self.canceller.cancel();
            }
        }
    }

    pub fn decide(&mut self, mut decision: Decision, now: Duration) {
        self.now = now;
        decision.elapsed = now.saturating_sub(self.begun);
        self.tell(HybridEvent::Decision(&decision));
        self.decisions.push(decision);
    }

    /// Shows more.
    pub fn text(&mut self, text: &str, source: Source, confidence: Option<Confidence>) {
        if text.is_empty() || self.stopped() {
            return;
        }
        self.shown.push_str(text);
        self.tell(HybridEvent::Text { text, source, confidence });
    }

    /// Takes back all but the first `keep` bytes.
    pub fn discard(&mut self, keep: usize) {
        if keep >= self.shown.len() || self.stopped() || !self.shown.is_char_boundary(keep) {
            return;
        }
        self.shown.truncate(keep);
        self.tell(HybridEvent::Discard { keep });
    }

    /// Brings what is shown to `target`: takes back what differs, shows what is missing.
    pub fn become_text(&mut self, target: &str, source: Source, confidence: Option<Confidence>) {
        let common = common_prefix(&self.shown, target);
        self.discard(common);
        self.text(target.get(common..).unwrap_or_default(), source, confidence);
    }

    /// How the turn ended: a handler that panicked is not one that cancelled.
    pub fn verdict(&mut self, ending: Result<Finished, HybridError>) -> Result<Finished, HybridError> {
        match self.panic.take() {
            Some(message) => Err(HybridError::SinkPanicked { message }),
            None => ending,
        }
    }

    /// Tells the terminal event.
    pub fn finish(self, ending: Result<Finished, HybridError>) -> Result<HybridCompletion, HybridError> {
        let mut last = |event: HybridEvent<'_>| {
            // The turn is over: what the handler does with this changes nothing.
            let _ = catch_unwind(AssertUnwindSafe(|| (self.sink)(event)));
        };
        match ending {
            Ok(finished) => {
                let completion = HybridCompletion {
                    text: self.shown,
                    source: finished.source,
                    confidence: finished.confidence,
                    finish: finished.finish,
                    decisions: self.decisions,
                    edge: finished.edge,
                    usage: self.usage,
                    cost: self.cost,
                    elapsed: self.now.saturating_sub(self.begun),
                };
                last(HybridEvent::Completed(&completion));
                Ok(completion)
            }
            Err(HybridError::Cancelled) => {
                last(HybridEvent::Cancelled);
                Err(HybridError::Cancelled)
            }
            Err(error) => {
                last(HybridEvent::Failed { error: &error });
                Err(error)
            }
        }
    }
}

/// Bytes that both begin with, in whole characters.
fn common_prefix(a: &str, b: &str) -> usize {
    a.char_indices()
        .zip(b.chars())
        .find(|((_, x), y)| x != y)
        .map_or_else(|| a.len().min(b.len()), |((at, _), _)| at)
}

pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_at_characters() {
        assert_eq!(common_prefix("äb", "äc"), 2);
        assert_eq!(common_prefix("ä", "ö"), 0);
        assert_eq!(common_prefix("abc", "ab"), 2);
        assert_eq!(common_prefix("", "ab"), 0);
    }

    #[test]
    fn what_is_shown_follows_from_the_events() {
        let mut view = String::new();
        let mut sink = |event: HybridEvent<'_>| {
            match event {
                HybridEvent::Text { text, .. } => view.push_str(text),
                HybridEvent::Discard { keep } => view.truncate(keep),
                _ => {}
            }
            ControlFlow::Continue(())
        };
        let mut out = Out::new(&mut sink, Canceller::new(), Duration::ZERO);
        out.text("Grüße aus", Source::Device, None);
        out.become_text("Grün", Source::Cloud, None);
        out.discard(99);
        assert_eq!(out.shown(), "Grün");
        drop(out);
        assert_eq!(view, "Grün");
    }
}
