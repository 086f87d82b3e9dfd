//! The generation loop.
//!
//! ```text
//! keep the cached tokens that the prompt starts with, forget the rest
//! read the prompt in chunks                      each pass: wait for the model, run, let go; then tell the app
//! loop:
//!     token = sample(logits)                     still inside of the pass: logits are the model's buffer
//!     end-of-generation token, stop string, max_tokens, context full, deadline: done
//!     pass(token) -> logits                      with speculation: of this token and some that may follow, see `speculate`
//! ```
//!
//! The answer may take all positions of the context, and one token more: the last one is drawn but not fed back.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Answer, Drawn};
use super::control::{Control, StopReason, Watchdog};
use super::core::{Cache, Delivery};
use super::decode::Decode;
use super::precision::{UNSURE, WATCHED};
use super::{
    Completion, FinishReason, GenerationEvent, GenerationOptions, GenerationStats, Model, Notice,
    SessionError, ViewReason, precision, reuse,
};
use crate::kv::{Evicted, PageReads};
use crate::memory::{Category, MemoryPressure, Reservation};
use crate::model::Forward;
use crate::residency::View;
use crate::speculate::{DraftModel, Ngram, Proposer, Speculation, SpeculationError, Speculator};
use crate::{Error, Result};

/// The process' memory is read on every n-th pass: a reading costs about 0.1 ms.
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
    answer: Answer,
    /// Made when the prompt was read.
    speculator: Option<Speculator<'a>>,
    stats: GenerationStats,
    started: Duration,
    held: Vec<Reservation>,
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
            let answer = Answer::new(model, &mut options, &prompt)?;
            let bytes = answer.sampler.buffer_bytes() as u64;
            let buffers = model.accountant.reserve(Category::Scratch, bytes)?;
            Ok((prompt, answer, buffers))
        });
        let (prompt, answer, buffers) = match prepared {
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
            answer,
            speculator: None,
            stats,
            started,
            held: vec![buffers],
            _watchdog: watchdog,
        };
        let left = generation.run(&prompt);
        generation.end(left)
    }

    fn run(&mut self, prompt: &[u32]) -> Result<FinishReason> {
        self.check()?;
        self.measure_memory();
        let choice = precision::choose(self.model, self.options.weight_precision, prompt.len())?;
        let cached = self.reuse(prompt, choice.view)?;
        self.stats.cached_tokens = cached;
        self.speculator = self.speculation()?;
        self.delivery.send(GenerationEvent::Started { prompt_tokens: prompt.len(), cached_tokens: cached });
        if let Some(reason) = choice.reason {
            self.delivery.send(GenerationEvent::Notice(Notice::View { view: choice.view, reason }));
        }
        let mut watch = choice.watch;
        let mut next = self.prefill(prompt.get(cached..).unwrap_or_default())?;
        self.measure_memory();
        while let Some(drawn) = next {
            if self.stats.time_to_first_token.is_none() {
                self.stats.time_to_first_token = Some(self.elapsed());
            }
            // At the end, the last text goes out together with what is held back.
            if let Some(reason) = drawn.ended {
                return Ok(reason);
            }
            self.tell();
            if self.stats.decode_passes.is_multiple_of(MEMORY_EVERY) {
                self.measure_memory();
            }
            self.check()?;
            if watch && self.answer.drawn >= WATCHED {
                watch = false;
                self.judge_view()?;
            }
            next = self.pass(&[drawn.id], true)?;
        }
        // Only a prompt with nothing to generate gives no token.
        Ok(FinishReason::Length)
    }

    /// The low view has drawn the first words: whether it goes on, or the full view does, which reads the text so far for it.
    fn judge_view(&mut self) -> Result<()> {
        let first = self.answer.tokens.get(..WATCHED).unwrap_or(&self.answer.tokens);
        let mean = first.iter().map(|token| token.entropy).sum::<f32>() / first.len().max(1) as f32;
        let (view, reason) =
            if mean > UNSURE { (View::Full, ViewReason::Unsure) } else { (View::Low, ViewReason::Sure) };
        self.delivery.send(GenerationEvent::Notice(Notice::View { view, reason }));
        if view == View::Low {
            return Ok(());
        }
        let tokens = self.cache.as_ref().map(|cache| cache.tokens.clone()).unwrap_or_default();
        let control = Arc::clone(self.control);
        let reused = reuse::reuse(self.model, self.cache, &tokens, view, || control.reason().is_some())?;
        self.stats.view = view;
        let how = self.model.prompt_steps;
        for step in reuse::steps(how, self.model.prefill_chunk, reused.kept, tokens.len()) {
            self.check()?;
            self.pass(tokens.get(step).unwrap_or_default(), false)?;
        }
        Ok(())
    }

    /// Who guesses tokens, if somebody does.
    fn speculation(&mut self) -> Result<Option<Speculator<'a>>> {
        let model = self.model;
        let wish = self.options.speculation.as_ref().unwrap_or(&model.speculation);
        let mut proposers: Vec<Box<dyn Proposer + 'a>> = Vec::new();
        let mut hold =
            |bytes: u64| model.accountant.reserve(Category::Scratch, bytes).map(|r| self.held.push(r));
        if let Speculation::Custom(make) = wish {
            proposers.push(make());
        }
        if wish.wants_ngram() && hold(Ngram::bytes(model.context)).is_ok() {
            proposers.push(Box::new(Ngram::default()));
        }
        let draft = model.draft.as_ref().filter(|draft| !draft.is_released());
        match (draft, self.cache.as_ref()) {
            (Some(draft), Some(cache)) if wish.wants_draft() => {
                let bytes = DraftModel::<F>::bytes(model.vocab) + self.answer.sampler.buffer_bytes() as u64;
                if hold(bytes).is_ok() {
                    let text = Arc::clone(&cache.draft);
                    proposers.push(Box::new(DraftModel::new(Arc::clone(draft), text, model.vocab)));
                }
            }
            // A model that was loaded without one is a mistake; one that had to give it up is not.
            _ if matches!(wish, Speculation::Draft) && model.draft.is_none() => {
                return Err(SpeculationError::NoDraftModel.into());
            }
            _ => {}
        }
        let speculator = Speculator::new(proposers, &model.governor, self.options.draft_len)?;
        Ok((!matches!(wish, Speculation::Off)).then_some(speculator))
    }

    /// Sends the text that is ready.
    fn tell(&mut self) {
        if let Some((text, tokens)) = self.answer.text.take() {
            self.delivery.send(GenerationEvent::Text { text: &text, tokens: &tokens });
        }
    }

    /// How many tokens the sequence holds.
    fn fed(&self) -> usize {
        self.cache.as_ref().map_or(0, |c| c.tokens.len())
    }

    /// Forgets what the cache has beyond the prompt's own start. Gives how many tokens need no work. At least one is always
    /// read: its logits are needed.
    fn reuse(&mut self, prompt: &[u32], view: View) -> Result<usize> {
        let control = Arc::clone(self.control);
        let reused = reuse::reuse(self.model, self.cache, prompt, view, || control.reason().is_some())?;
        self.stats.view = view;
        if reused.lost > 0 {
            self.delivery.send(GenerationEvent::Notice(Notice::PrefixNotReused { tokens: reused.lost }));
        }
        Ok(reused.kept)
    }

    /// Reads the prompt; gives the first token.
    fn prefill(&mut self, tokens: &[u32]) -> Result<Option<Drawn>> {
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

    /// One forward pass, when it is this session's turn. Draws if `sample`: from the last row, or from more behind the first token.
    fn pass(&mut self, tokens: &[u32], sample: bool) -> Result<Option<Drawn>> {
        let Some(cache) = self.cache.as_mut() else {
            return Err(Error::internal("a generation lost its sequence"));
        };
        let (control, model) = (self.control, self.model);
        let clock = &*model.clock;
        let pressure = model.pressure.check(clock.now(), &*model.memory);
        let heat = model.heat.check();
        // The first thing to go when memory is scarce.
        let scarce = pressure.is_some_and(|level| level > MemoryPressure::Normal);
        let released = model.draft.as_ref().filter(|_| scarce).and_then(|draft| draft.release());
        // Reading a text again is reading.
        let decoding = self.answer.drawn > 0 && sample;
        let decode = Decode {
            cache,
            answer: &mut self.answer,
            clock,
            cancel: control.flag(),
            speculator: self.speculator.as_mut(),
            stats: &mut self.stats.speculation,
            context: model.context,
        };
        let (drawn, time, eased, cooled, evicted, read, pages) = model.forward.with(
            || control.reason().is_some(),
            |forward| {
                let (begun, before) = (clock.now(), forward.flash_bytes());
                let pages = forward.page_reads();
                let eased = pressure.and_then(|level| Some((level, forward.relieve(level)?)));
                let cooled = heat.and_then(|level| Some((level, forward.cool(level)?)));
                let evicted = match forward.make_room(&mut decode.cache.seq, tokens.len(), pressure) {
                    Ok(evicted) => evicted,
                    Err(error) => {
                        let time = clock.now().saturating_sub(begun);
                        return (Err(error), time, eased, cooled, None, None, PageReads::default());
                    }
                };
                let drawn = match tokens {
                    &[pending] if decoding && decode.speculator.is_some() => {
                        decode.guessing(forward, pending)
                    }
                    tokens => decode.plain(forward, tokens, sample),
                };
                let read =
                    forward.flash_bytes().zip(before).map(|(after, before)| after.saturating_sub(before));
                let pages = forward.page_reads().since(pages);
                (drawn, clock.now().saturating_sub(begun), eased, cooled, evicted, read, pages)
            },
        )?;
        if let Some(bytes) = released {
            self.delivery.send(GenerationEvent::Notice(Notice::DraftReleased { bytes }));
        }
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
        self.stats.generated_tokens = self.answer.drawn;
        if decoding {
            self.stats.decode_time += time;
            self.stats.decode_passes += 1;
            self.stats.page_reads = self.stats.page_reads.plus(pages);
            if let Some(read) = read {
                *self.stats.decode_flash_bytes.get_or_insert(0) += read;
            }
        } else {
            self.stats.prefill_time += time;
        }
        if drawn.is_err() {
            // Tokens of this pass before the one that failed.
            self.tell();
        }
        drawn
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
            let cut = self.answer.text.finish(matches!(reason, FinishReason::Stop { .. }));
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
            text: self.answer.text.text().to_owned(),
            tokens: self.answer.tokens,
            finish_reason: reason,
            seed: self.answer.sampler.seed(),
            stats: self.stats,
        }))
    }

    fn cancelled(mut self) -> Ending {
        self.measure_memory();
        self.stats.total_time = self.elapsed();
        Ending::Cancelled { text: self.answer.text.text().to_owned(), stats: self.stats }
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
