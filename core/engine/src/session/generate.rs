//! The generation loop.
//!
//! ```text
//! keep the cached tokens that the prompt starts with, forget the rest
//! read the prompt in chunks                      each pass: wait for the model, run, let go; then tell the app
//! loop:
//!     token = sample(logits)                     still inside of the pass: logits are the model's buffer
//!     end-of-generation token, stop string, max_tokens, context full, deadline: done
//!     pass(token) -> logits
//! ```
//!
//! The answer may take all positions of the context, and one token more: the last one is drawn but not fed back.

use std::sync::Arc;
use std::time::Duration;

use super::control::{Control, StopReason, Watchdog};
use super::core::{Cache, Delivery};
use super::text::TextStream;
use super::{
    Completion, FinishReason, GenerationEvent, GenerationOptions, GenerationStats, Model, Notice,
    SessionError, reuse,
};
use crate::kv::Evicted;
use crate::memory::{Category, Reservation};
use crate::model::{Forward, Outputs};
use crate::sampling::{Sampler, TokenInfo};
use crate::{Error, Result};

/// The process' memory is read on every n-th token: a reading costs about 0.1 ms.
const MEMORY_EVERY: usize = 32;

/// How a generation ended.
pub(super) enum Ending {
    Completed(Box<Completion>),
    Cancelled { text: String, stats: GenerationStats },
    Failed(Error),
}

/// A generation under way.
pub(super) struct Generation<'a, 'd, 's, F: Forward> {
    model: &'a Model<F>,
    cache: &'a mut Option<Cache<F::Seq>>,
    control: &'a Arc<Control>,
    delivery: &'a mut Delivery<'d, 's>,
    options: GenerationOptions,
    sampler: Sampler,
    text: TextStream,
    tokens: Vec<TokenInfo>,
    stats: GenerationStats,
    started: Duration,
    _buffers: Reservation,
    _watchdog: Option<Watchdog>,
}

impl<'a, 'd, 's, F: Forward> Generation<'a, 'd, 's, F> {
    /// Runs to the end.
    pub fn begin(
        model: &'a Model<F>,
        cache: &'a mut Option<Cache<F::Seq>>,
        control: &'a Arc<Control>,
        prompt: impl FnOnce(&Model<F>) -> Result<Vec<u32>>,
        mut options: GenerationOptions,
        delivery: &'a mut Delivery<'d, 's>,
    ) -> Ending {
        let started = model.clock.now();
        if let Some(canceller) = &options.canceller {
            canceller.attach(control);
        }
        let watchdog = options.deadline.map(|after| Watchdog::arm(after, control));
        let prepared = prompt(model).and_then(|prompt| {
            check_prompt(model, &prompt)?;
            let sampler = new_sampler(model, &mut options, &prompt)?;
            let bytes = sampler.buffer_bytes() as u64;
            let buffers = model.accountant.reserve(Category::Scratch, bytes)?;
            let text = TextStream::new(&model.tokenizer, &options.stop)?;
            Ok((prompt, sampler, buffers, text))
        });
        let (prompt, sampler, buffers, text) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Ending::Failed(error),
        };
        let stats = GenerationStats {
            prompt_tokens: prompt.len(),
            kv_types: model.info().kv_types,
            ..GenerationStats::default()
        };
        let mut generation = Self {
            model,
            cache,
            control,
            delivery,
            options,
            sampler,
            text,
            tokens: Vec::new(),
            stats,
            started,
            _buffers: buffers,
            _watchdog: watchdog,
        };
        let left = generation.run(&prompt);
        generation.end(left)
    }

    fn run(&mut self, prompt: &[u32]) -> Result<FinishReason> {
        self.check()?;
        self.measure_memory();
        let cached = self.reuse(prompt)?;
        self.stats.cached_tokens = cached;
        self.delivery.send(GenerationEvent::Started { prompt_tokens: prompt.len(), cached_tokens: cached });
        let mut next = self.prefill(prompt.get(cached..).unwrap_or_default())?;
        self.measure_memory();
        while let Some(token) = next {
            self.stats.generated_tokens += 1;
            if self.stats.time_to_first_token.is_none() {
                self.stats.time_to_first_token = Some(self.elapsed());
            }
            let id = token.id;
            if let Some(reason) = self.take(token) {
                return Ok(reason);
            }
            if self.stats.generated_tokens.is_multiple_of(MEMORY_EVERY) {
                self.measure_memory();
            }
            self.check()?;
            next = self.pass(&[id], true)?;
        }
        // Only a prompt with nothing to generate gives no token.
        Ok(FinishReason::Length)
    }

    /// What a new token means: text to tell, or the end.
    fn take(&mut self, token: TokenInfo) -> Option<FinishReason> {
        let id = token.id;
        if !self.options.ignore_eog && self.model.tokenizer.as_ref().is_ok_and(|t| t.is_eog(id)) {
            return Some(FinishReason::Stop { eog: id });
        }
        self.tokens.push(token.clone());
        let found = self.text.push(token);
        let full = self.fed() >= self.model.context;
        let reason = if let Some(found) = found {
            Some(FinishReason::StopString { index: found.index })
        } else if self.options.max_tokens.is_some_and(|max| self.stats.generated_tokens >= max) {
            Some(FinishReason::Length)
        } else if full {
            Some(FinishReason::ContextFull)
        } else {
            None
        };
        // At the end, this text goes out together with what is held back.
        if reason.is_none() {
            self.tell();
        }
        reason
    }

    /// Sends the text that is ready.
    fn tell(&mut self) {
        if let Some((text, tokens)) = self.text.take() {
            self.delivery.send(GenerationEvent::Text { text: &text, tokens: &tokens });
        }
    }

    /// How many tokens the sequence holds.
    fn fed(&self) -> usize {
        self.cache.as_ref().map_or(0, |c| c.tokens.len())
    }

    /// Forgets what the cache has beyond the prompt's own start. Gives how many tokens need no work. At least one is always
    /// read: its logits are needed.
    fn reuse(&mut self, prompt: &[u32]) -> Result<usize> {
        let control = Arc::clone(self.control);
        let reused = reuse::reuse(self.model, self.cache, prompt, || control.reason().is_some())?;
        if reused.lost > 0 {
            self.delivery.send(GenerationEvent::Notice(Notice::PrefixNotReused { tokens: reused.lost }));
        }
        Ok(reused.kept)
    }

    /// Reads the prompt; gives the first token.
    fn prefill(&mut self, tokens: &[u32]) -> Result<Option<TokenInfo>> {
        let (total, before) = (tokens.len(), self.fed());
        let wanted = self.options.max_tokens != Some(0);
        let how = self.model.prompt_steps;
        let mut done = 0;
        let mut first = None;
        for step in reuse::steps(how, self.model.prefill_chunk, before, before + total) {
            self.check()?;
            let chunk = tokens.get(step.start - before..step.end - before).unwrap_or_default();
            done += chunk.len();
            first = self.pass(chunk, wanted && done == total)?;
            // Once what it takes is there: a session that comes meanwhile need not read it too.
            if how.border.map_or(done == total, |border| step.end.is_multiple_of(border)) {
                self.publish();
            }
            self.delivery.send(GenerationEvent::Prefill { done, total });
        }
        Ok(first)
    }

    /// Lets other sessions begin with what was read.
    fn publish(&mut self) {
        if let Some(cache) = self.cache.as_ref() {
            // Whoever stops this generation stops this, too.
            let stop = || self.control.reason().is_some();
            let _ = self.model.forward.with(stop, |forward| forward.publish(&cache.seq, &cache.tokens));
        }
    }

    /// One forward pass, when it is this session's turn. Samples from the last row if `sample`.
    fn pass(&mut self, tokens: &[u32], sample: bool) -> Result<Option<TokenInfo>> {
        let Some(cache) = self.cache.as_mut() else {
            return Err(Error::internal("a generation lost its sequence"));
        };
        let (control, clock, sampler) = (self.control, &self.model.clock, &mut self.sampler);
        let pressure = self.model.pressure.check(clock.now(), &*self.model.memory);
        let heat = self.model.heat.check();
        let outputs = if sample { Outputs::Last } else { Outputs::None };
        let (token, time, eased, cooled, evicted) = self.model.forward.with(
            || control.reason().is_some(),
            |forward| -> Result<_> {
                let begun = clock.now();
                let eased = pressure.and_then(|level| Some((level, forward.relieve(level)?)));
                let cooled = heat.and_then(|level| Some((level, forward.cool(level)?)));
                let evicted = forward.make_room(&mut cache.seq, tokens.len(), pressure)?;
                let logits = forward.step(&mut cache.seq, tokens, outputs, control.flag())?;
                // The tokens are in the sequence now, whatever sampling says.
                cache.tokens.extend_from_slice(tokens);
                let token = if sample { Some(sampler.sample(logits)?) } else { None };
                Ok((token, clock.now().saturating_sub(begun), eased, cooled, evicted))
            },
        )??;
        if let Some((level, cache_bytes)) = eased {
            self.delivery.send(GenerationEvent::Notice(Notice::MemoryPressure { level, cache_bytes }));
        }
        if let Some((level, threads)) = cooled {
            self.delivery.send(GenerationEvent::Notice(Notice::Heat { level, threads }));
        }
        if let Some(Evicted { gone, kept }) = evicted {
            self.stats.evicted += gone;
            self.delivery.send(GenerationEvent::Notice(Notice::Evicted { gone, kept }));
        }
        if self.stats.generated_tokens == 0 {
            self.stats.prefill_time += time;
        } else {
            self.stats.decode_time += time;
        }
        Ok(token)
    }

    /// Whether to go on.
    fn check(&self) -> Result<()> {
        if self.options.deadline.is_some_and(|d| self.elapsed() >= d) {
            self.control.stop(StopReason::Deadline);
        }
        match self.control.reason() {
            None => Ok(()),
            Some(_) => Err(Error::Cancelled),
        }
    }

    fn elapsed(&self) -> Duration {
        self.model.clock.now().saturating_sub(self.started)
    }

    fn measure_memory(&mut self) {
        if let Ok(reading) = self.model.memory.read() {
            self.stats.peak_anon_bytes = self.stats.peak_anon_bytes.max(Some(reading.anonymous));
        }
    }

    fn end(mut self, left: Result<FinishReason>) -> Ending {
        let reason = match left {
            Ok(reason) => reason,
            Err(Error::Cancelled) if self.control.reason() == Some(StopReason::Deadline) => {
                FinishReason::Deadline
            }
            Err(Error::Cancelled) => return self.cancelled(),
            Err(_) if self.model.is_closed() => return self.cancelled(),
            Err(error) => return Ending::Failed(error),
        };
        if !matches!(reason, FinishReason::StopString { .. }) {
            let cut = self.text.finish(matches!(reason, FinishReason::Stop { .. }));
            if cut {
                self.delivery.send(GenerationEvent::Notice(Notice::IncompleteCharacter));
            }
        }
        self.tell();
        // The handler may have broken off on one of these events.
        if self.delivery.broke_off() {
            return self.cancelled();
        }
        self.measure_memory();
        self.stats.total_time = self.elapsed();
        Ending::Completed(Box::new(Completion {
            text: self.text.text().to_owned(),
            tokens: self.tokens,
            finish_reason: reason,
            seed: self.sampler.seed(),
            stats: self.stats,
        }))
    }

    fn cancelled(mut self) -> Ending {
        self.measure_memory();
        self.stats.total_time = self.elapsed();
        Ending::Cancelled { text: self.text.text().to_owned(), stats: self.stats }
    }
}

/// Refuses what can't be run, before any work.
fn check_prompt<F: Forward>(model: &Model<F>, prompt: &[u32]) -> Result<()> {
    if prompt.is_empty() {
        return Err(SessionError::EmptyPrompt.into());
    }
    if prompt.len() > model.context {
        return Err(SessionError::PromptTooLong { tokens: prompt.len(), limit: model.context }.into());
    }
    let outside = |t: u32| usize::try_from(t).map_or(true, |t| t >= model.vocab);
    match prompt.iter().enumerate().find(|(_, t)| outside(**t)) {
        Some((index, &token)) => Err(Error::TokenOutOfRange { token, index, vocab: model.vocab }),
        None => Ok(()),
    }
}

fn new_sampler<F: Forward>(
    model: &Model<F>,
    options: &mut GenerationOptions,
    prompt: &[u32],
) -> Result<Sampler> {
    let mut sampler = Sampler::new(options.sampler.clone(), model.vocab)?;
    for hook in options.hooks.drain(..) {
        sampler.add_hook(hook);
    }
    sampler.observe(prompt);
    Ok(sampler)
}
