//! One turn: who answers, when to look, what to do if one side fails.

use std::ops::ControlFlow;
use std::time::Duration;

use pannier::session::{ChatMessage, Completion, GenerationEvent, SessionError};

use super::call::Asked;
use super::finish::Finished;
use super::out::Out;
use super::score::Score;
use super::watchdog::Watchdog;
use super::{HybridParts, HybridSession, TurnOptions, verify};
use crate::cloud::{CloudError, CloudFinish, CloudRequest};
use crate::confidence::{Observed, SentenceSplitter};
use crate::event::{Confidence, HybridError, HybridEvent, HybridFinish, Source};
use crate::policy::{
    AdmissionFacts, Decision, DecisionPoint, EdgeFirst, HandOffStyle, HybridPolicy, Reason, Route, admit,
};

/// So many low sentences in a row give up an answer that had passed.
const LOW_SENTENCES: usize = 2;

pub(super) struct Turn<'a> {
    pub session: &'a HybridSession,
    pub parts: &'a HybridParts,
    pub options: &'a TurnOptions,
    messages: &'a [ChatMessage],
    before: &'a [ChatMessage],
}

/// The device's draft as it grows.
struct Draft {
    text: String,
    seen: Observed,
    sentence: Observed,
    splitter: SentenceSplitter,
    sentence_start: usize,
    /// Bytes up to the last sentence that was sure enough: what a continuing cloud builds on.
    accepted: usize,
    checked: bool,
    low: usize,
    /// The cloud was asked, or may not be: the device answers to the end.
    settled: bool,
    /// The cloud has answered instead.
    handed: Option<Handed>,
}

struct Handed {
    finish: CloudFinish,
    source: Source,
    confidence: Option<f64>,
}

impl Draft {
    fn new(settled: bool, nothing: Observed) -> Self {
        Self {
            text: String::new(),
            seen: nothing.clone(),
            sentence: nothing,
            splitter: SentenceSplitter::new(),
            sentence_start: 0,
            accepted: 0,
            checked: false,
            low: 0,
            settled,
            handed: None,
        }
    }
}

impl<'a> Turn<'a> {
    pub fn new(
        session: &'a HybridSession,
        messages: &'a [ChatMessage],
        options: &'a TurnOptions,
        before: &'a [ChatMessage],
    ) -> Self {
        Self { session, parts: &session.parts, options, messages, before }
    }

    /// Runs to the end.
    pub fn run(&self, out: &mut Out<'_, '_>) -> Result<Finished, HybridError> {
        // Counting may load the model, so only those count who look at the number. The cloud's own answer does not need it.
        let counts = match self.parts.policy {
            HybridPolicy::EdgeFirst(_) => true,
            HybridPolicy::CloudFirst => self.parts.rules.rule.is_some(),
            HybridPolicy::OnDeviceOnly | HybridPolicy::CloudOnly => false,
        };
        let facts = AdmissionFacts {
            // A template that refuses is reported by the generation itself.
            prompt_tokens: if counts { self.session.edge.token_count(self.messages).ok() } else { None },
            task: self.options.task.as_deref(),
            device: self.parts.device.state(),
        };
        let (mut route, mut reason) =
            admit(&self.parts.policy, &self.parts.rules, &facts, self.session.edge.context());
        if route == Route::Cloud
            && let Err(blocked) = self.cloud()
        {
            if self.parts.policy == HybridPolicy::CloudOnly {
                return Err(HybridError::Blocked(blocked));
            }
            (route, reason) = (Route::Edge, Reason::CloudBlocked(blocked));
        }
        self.decide(out, DecisionPoint::Admission, route, reason, None);
        if out.stopped() {
            return Err(HybridError::Cancelled);
        }
        match route {
            // A turn that the rules sent to the device is still looked at: it may turn out unsure.
            Route::Edge => self.edge(out, !self.may_hand_over()),
            Route::Cloud => self.cloud_from_the_start(out),
        }
    }

    fn edge_first(&self) -> Option<&EdgeFirst> {
        match &self.parts.policy {
            HybridPolicy::EdgeFirst(edge_first) => Some(edge_first),
            _ => None,
        }
    }

    fn may_hand_over(&self) -> bool {
        self.edge_first().is_some() && self.cloud().is_ok()
    }

    /// What is known of the answer before it begins: the question.
    fn nothing_yet(&self) -> Observed {
        let asked = self.messages.iter().rfind(|m| m.role == pannier::session::Role::User);
        Observed::answer_to(asked.map_or("", |m| m.content.as_str()))
    }

    fn now(&self) -> Duration {
        self.parts.clock.now()
    }

    fn decide(
        &self,
        out: &mut Out<'_, '_>,
        point: DecisionPoint,
        route: Route,
        reason: Reason,
        score: Option<Score>,
    ) {
        let (confidence, threshold, tokens) = match score {
            Some(s) => (s.value, Some(s.bar), s.tokens),
            None => (None, None, 0),
        };
        let decision =
            Decision { point, route, reason, confidence, threshold, tokens, elapsed: Duration::ZERO };
        out.decide(decision, self.now());
    }

    // ---- the cloud

    fn cloud_from_the_start(&self, out: &mut Out<'_, '_>) -> Result<Finished, HybridError> {
        match self.replace(out, "") {
            Asked::Answered(finish) => Ok(Finished {
                source: Source::Cloud,
                confidence: None,
                finish: HybridFinish::Cloud(finish),
                edge: None,
                kept_by_edge: false,
            }),
            Asked::Stopped => Err(HybridError::Cancelled),
            Asked::Failed(error) if self.parts.policy == HybridPolicy::CloudOnly => Err(error.into()),
            Asked::Blocked(blocked) if self.parts.policy == HybridPolicy::CloudOnly => {
                Err(HybridError::Blocked(blocked))
            }
            asked => {
                self.fall_back(out, asked);
                // What the cloud had said stays in sight until the device has something.
                self.edge(out, true)
            }
        }
    }

    /// Says that the device goes on, and why.
    fn fall_back(&self, out: &mut Out<'_, '_>, asked: Asked) {
        let reason = match asked {
            Asked::Failed(error) => Reason::CloudFailed { error },
            Asked::Blocked(blocked) => Reason::CloudBlocked(blocked),
            Asked::Answered(_) | Asked::Stopped => return,
        };
        self.decide(out, DecisionPoint::Failure, Route::Edge, reason, None);
    }

    fn request(&self, messages: Vec<ChatMessage>, continue_final: bool) -> CloudRequest {
        let generation = &self.options.generation;
        CloudRequest {
            messages,
            continue_final,
            max_tokens: generation.max_tokens.map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
            temperature: Some(generation.sampler.temperature),
            seed: generation.sampler.seed,
            stop: generation.stop.clone(),
        }
    }

    fn conversation(&self) -> Vec<ChatMessage> {
        self.before.iter().chain(self.messages).cloned().collect()
    }

    /// The cloud answers, behind `accepted` if that is not empty. What is shown of the draft stays until its first word.
    fn replace(&self, out: &mut Out<'_, '_>, accepted: &str) -> Asked {
        let mut messages = self.conversation();
        let continues = !accepted.is_empty();
        if continues {
            messages.push(ChatMessage::new(pannier::session::Role::Assistant, accepted));
        }
        let mut echo = Echo::new(accepted);
        let mut begun = false;
        let mut show = |out: &mut Out<'_, '_>, text: &str| {
            if !begun {
                begun = true;
                out.become_text(accepted, Source::Device, None);
            }
            out.text(text, Source::Cloud, None);
        };
        let asked = self.ask(out, self.request(messages, continues), &mut |out, text| {
            if let Some(text) = echo.push(text) {
                show(out, &text);
            }
        });
        match asked {
            Asked::Answered(finish) => {
                if let Some(rest) = echo.finish() {
                    show(out, &rest);
                }
                // Also when it was to go on: what follows the accepted part is missing then.
                if !begun {
                    return Asked::Failed(CloudError::Malformed { reason: "an empty answer".into() });
                }
                Asked::Answered(finish)
            }
            other => other,
        }
    }

    /// The cloud judges a complete draft. `Ok`: the draft is right, or was corrected.
    fn verify(&self, out: &mut Out<'_, '_>, draft: &mut Draft, bar: f64) -> Asked {
        let mut reply = String::new();
        let mut request = self.request(verify::ask(self.conversation(), &draft.text), false);
        // The reply has a form of its own.
        request.stop.clear();
        request.max_tokens = request.max_tokens.map(|n| n.saturating_mul(2).saturating_add(128));
        let asked = self.ask(out, request, &mut |_, text| reply.push_str(text));
        let Asked::Answered(finish) = asked else { return asked };
        let verdict = match verify::read(&reply) {
            Ok(verdict) => verdict,
            Err(error) => return Asked::Failed(error),
        };
        let confidence = verdict.confidence;
        let tokens = draft.seen.len();
        let score = Some(Score { value: Some(confidence), bar, gain: None, tokens });
        match verdict.corrected {
            Some(text) if confidence < bar => {
                self.decide(out, DecisionPoint::End, Route::Cloud, Reason::Corrected { confidence }, score);
                out.become_text(&text, Source::Cloud, None);
                draft.handed = Some(Handed { finish, source: Source::Cloud, confidence: None });
            }
            _ => {
                self.decide(out, DecisionPoint::End, Route::Edge, Reason::Verified { confidence }, score);
            }
        }
        Asked::Answered(finish)
    }

    // ---- the device

    /// The device answers. `settled`: to the end, whatever its score.
    fn edge(&self, out: &mut Out<'_, '_>, settled: bool) -> Result<Finished, HybridError> {
        let mut settled = settled;
        loop {
            let mut draft = Draft::new(settled, self.nothing_yet());
            let limit = self.edge_first().filter(|_| !settled).and_then(|e| e.max_edge_latency);
            let watchdog = limit.map(|after| Watchdog::arm(after, &self.session.edge));
            let mut generation = self.options.generation.clone();
            generation.canceller = Some(out.canceller().clone());
            let result = self.session.edge.generate(self.messages.to_vec(), generation, &mut |event| {
                self.hear(out, &mut draft, event, watchdog.as_ref())
            });
            let late = watchdog.as_ref().is_some_and(Watchdog::fired);
            drop(watchdog);
            if let Some(handed) = draft.handed.take() {
                return Ok(self.handed(handed, None));
            }
            match result {
                Ok(completion) => return self.complete(out, draft, completion),
                Err(pannier::Error::Cancelled) if late && !out.stopped() => {
                    self.reset_history();
                    let limit = limit.unwrap_or_default();
                    let score = Score { value: None, bar: 0.0, gain: None, tokens: draft.seen.len() };
                    self.decide(
                        out,
                        DecisionPoint::FirstCheck,
                        Route::Cloud,
                        Reason::Slow { limit },
                        Some(score),
                    );
                    match self.replace(out, "") {
                        Asked::Answered(finish) => {
                            let handed = Handed { finish, source: Source::Cloud, confidence: None };
                            return Ok(self.handed(handed, None));
                        }
                        Asked::Stopped => return Err(HybridError::Cancelled),
                        asked => self.fall_back(out, asked),
                    }
                    settled = true;
                }
                Err(pannier::Error::Cancelled) => return Err(HybridError::Cancelled),
                Err(error) => return self.edge_failed(out, &draft, error),
            }
        }
    }

    /// After a generation that was cancelled: its half answer is not history.
    fn reset_history(&self) {
        let _ = self.session.edge.set_history(self.before.to_vec());
    }

    fn handed(&self, handed: Handed, edge: Option<Completion>) -> Finished {
        Finished {
            source: handed.source,
            confidence: handed.confidence.map(|value| self.confidence(value)),
            finish: HybridFinish::Cloud(handed.finish),
            edge,
            kept_by_edge: false,
        }
    }

    fn edge_failed(
        &self,
        out: &mut Out<'_, '_>,
        draft: &Draft,
        error: pannier::Error,
    ) -> Result<Finished, HybridError> {
        // A closed session or a wrong option is the app's doing; the cloud is no way around it.
        let ours = !matches!(
            error,
            pannier::Error::Session(
                SessionError::Closed { .. } | SessionError::Busy | SessionError::InvalidOption { .. }
            )
        );
        if draft.settled || !ours || !self.may_hand_over() {
            return Err(error.into());
        }
        // Events are kept and sent by apps: no path, no text of the conversation.
        let reason = Reason::EdgeFailed { error: pannier::lifecycle::public_message(&error) };
        self.decide(out, DecisionPoint::Failure, Route::Cloud, reason, None);
        match self.replace(out, "") {
            Asked::Answered(finish) => {
                Ok(self.handed(Handed { finish, source: Source::Cloud, confidence: None }, None))
            }
            Asked::Stopped => Err(HybridError::Cancelled),
            asked => {
                self.fall_back(out, asked);
                Err(error.into())
            }
        }
    }

    /// One event of the device's generation.
    fn hear(
        &self,
        out: &mut Out<'_, '_>,
        draft: &mut Draft,
        event: GenerationEvent<'_>,
        watchdog: Option<&Watchdog>,
    ) -> ControlFlow<()> {
        match event {
            GenerationEvent::Prefill { done, total } => out.tell(HybridEvent::Prefill { done, total }),
            GenerationEvent::Notice(notice) => out.tell(HybridEvent::Notice(notice)),
            GenerationEvent::Text { text, tokens } => {
                let kind = |id| self.session.edge.token_kind(id);
                draft.seen.extend(tokens, kind);
                draft.sentence.extend(tokens, kind);
                self.grow(out, draft, text, watchdog);
            }
            // Terminal events become the turn's own.
            _ => {}
        }
        // A model that was still being loaded when the time was up could not be cancelled then.
        let late = watchdog.is_some_and(Watchdog::fired);
        if draft.handed.is_some() || late || out.stopped() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// More text of the draft: show it, or hold it; look at it where that is due.
    fn grow(&self, out: &mut Out<'_, '_>, draft: &mut Draft, text: &str, watchdog: Option<&Watchdog>) {
        let before = draft.text.len();
        draft.text.push_str(text);
        let border = draft.splitter.push(text).map(|at| before + at);
        let open = draft.settled || draft.checked || self.edge_first().is_none_or(|e| !e.hold_until_checked);
        if open {
            if let Some(watchdog) = watchdog
                && !watchdog.disarm()
            {
                // Too late: the generation is being cancelled. Showing this would be taken back at once.
                return;
            }
            let confidence = self.probability(&draft.sentence);
            self.show(out, draft, confidence);
        }
        let sentence = border.map(|end| self.end_sentence(out, draft, end, open));
        let Some(edge_first) = self.edge_first().filter(|_| !draft.settled) else { return };
        let verifies = edge_first.style == HandOffStyle::Verify;
        if !draft.checked && draft.seen.len() >= edge_first.check_after_tokens && !verifies {
            let score = self.score(&draft.seen, edge_first, edge_first.min_confidence);
            if watchdog.is_some_and(|w| !w.disarm()) {
                return;
            }
            if score.low() {
                self.decide(out, DecisionPoint::FirstCheck, Route::Cloud, Reason::Unsure, Some(score));
                self.hand_over(out, draft, edge_first);
            } else {
                self.decide(out, DecisionPoint::FirstCheck, Route::Edge, score.kept(), Some(score));
                draft.checked = true;
                let confidence = self.probability(&draft.sentence);
                self.show(out, draft, confidence);
            }
            return;
        }
        if draft.checked
            && edge_first.check_sentences
            && !verifies
            && let Some(sentence) = sentence
        {
            let bar = edge_first.min_confidence - edge_first.hysteresis;
            let score = self.score(&draft.seen, edge_first, bar);
            // Both must be low: one odd sentence in a sure answer is no reason, nor is an old weakness.
            if score.low() && sentence.is_some_and(|p| p < bar) {
                draft.low += 1;
            } else {
                draft.low = 0;
            }
            if draft.low >= LOW_SENTENCES {
                self.decide(out, DecisionPoint::Sentence, Route::Cloud, Reason::Unsure, Some(score));
                self.hand_over(out, draft, edge_first);
            } else {
                self.decide(out, DecisionPoint::Sentence, Route::Edge, score.kept(), Some(score));
            }
        }
    }

    /// Shows what of the draft is not shown yet.
    fn show(&self, out: &mut Out<'_, '_>, draft: &Draft, confidence: Option<f64>) {
        let confidence = confidence.map(|value| self.confidence(value));
        out.become_text(&draft.text, Source::Device, confidence);
    }

    /// Scores the sentence that ends at `end`. Gives its probability.
    fn end_sentence(&self, out: &mut Out<'_, '_>, draft: &mut Draft, end: usize, shown: bool) -> Option<f64> {
        let probability = self.probability(&draft.sentence);
        let start = std::mem::replace(&mut draft.sentence_start, end);
        draft.sentence.clear();
        let value = probability?;
        if shown {
            out.tell(HybridEvent::Sentence { start, end, confidence: self.confidence(value) });
        }
        let sure = self.edge_first().is_some_and(|e| value >= e.min_confidence);
        // Sentences are accepted in a row: what follows a weak one builds on it.
        if sure && draft.accepted == start {
            draft.accepted = end;
        }
        Some(value)
    }

    /// Asks the cloud while the device's generation waits. If that fails, the draft goes on.
    fn hand_over(&self, out: &mut Out<'_, '_>, draft: &mut Draft, edge_first: &EdgeFirst) {
        let continues = edge_first.style == HandOffStyle::Continue && draft.accepted > 0;
        let accepted = if continues { draft.text.get(..draft.accepted).unwrap_or_default() } else { "" };
        let source = if accepted.is_empty() { Source::Cloud } else { Source::Both };
        let confidence = self.probability(&draft.seen);
        match self.replace(out, accepted) {
            Asked::Answered(finish) => draft.handed = Some(Handed { finish, source, confidence }),
            Asked::Stopped => {}
            asked => {
                draft.settled = true;
                self.fall_back(out, asked);
                let sentence = self.probability(&draft.sentence);
                self.show(out, draft, sentence);
            }
        }
    }

    /// The draft is complete: the last look.
    fn complete(
        &self,
        out: &mut Out<'_, '_>,
        mut draft: Draft,
        completion: Completion,
    ) -> Result<Finished, HybridError> {
        // What no `Text` event carried, such as the tokens of a stop string, belongs to the answer all the same.
        let mut whole = self.nothing_yet();
        whole.extend(&completion.tokens, |id| self.session.edge.token_kind(id));
        whole.finish(completion.finish_reason);
        draft.seen = whole;
        draft.text.clone_from(&completion.text);
        let edge_first = self.edge_first().filter(|_| !draft.settled);
        if edge_first.is_some_and(|e| e.p_true)
            && let Ok(Some(p)) = self.session.edge.p_true()
        {
            draft.seen.set_p_true(p);
        }
        let value = self.probability(&draft.seen);
        if let Some(edge_first) = edge_first {
            let bar = edge_first.min_confidence - if draft.checked { edge_first.hysteresis } else { 0.0 };
            let score = self.score(&draft.seen, edge_first, bar);
            if score.low() {
                self.decide(out, DecisionPoint::End, Route::Cloud, Reason::Unsure, Some(score));
                if edge_first.style == HandOffStyle::Verify {
                    match self.verify(out, &mut draft, edge_first.min_confidence) {
                        Asked::Answered(_) => {}
                        Asked::Stopped => return Err(HybridError::Cancelled),
                        asked => self.fall_back(out, asked),
                    }
                } else {
                    self.hand_over(out, &mut draft, edge_first);
                }
                if out.stopped() {
                    return Err(HybridError::Cancelled);
                }
                if let Some(mut handed) = draft.handed.take() {
                    handed.confidence = value;
                    return Ok(self.handed(handed, Some(completion)));
                }
            } else {
                self.decide(out, DecisionPoint::End, Route::Edge, score.kept(), Some(score));
            }
        }
        self.show(out, &draft, self.probability(&draft.sentence).or(value));
        if !draft.sentence.is_empty() && draft.sentence_start < draft.text.len() {
            let end = draft.text.len();
            self.end_sentence(out, &mut draft, end, true);
        }
        if out.stopped() {
            return Err(HybridError::Cancelled);
        }
        Ok(Finished {
            source: Source::Device,
            confidence: value.map(|value| self.confidence(value)),
            finish: HybridFinish::Device(completion.finish_reason),
            kept_by_edge: true,
            edge: Some(completion),
        })
    }

    fn probability(&self, seen: &Observed) -> Option<f64> {
        seen.features().map(|f| self.parts.calibration.probability(&f))
    }

    fn confidence(&self, value: f64) -> Confidence {
        Confidence { value, origin: self.parts.calibration.origin() }
    }

    fn score(&self, seen: &Observed, edge_first: &EdgeFirst, bar: f64) -> Score {
        let gain = seen.features().and_then(|f| self.parts.calibration.gain(&f));
        let gain = gain.map(|gain| (gain, edge_first.min_gain));
        Score { value: self.probability(seen), bar, gain, tokens: seen.len() }
    }
}

/// Some servers repeat the beginning they were asked to continue. This drops it.
struct Echo<'a> {
    accepted: &'a str,
    held: String,
    passed: bool,
}

/// A shorter beginning may be repeated by chance ("ha", "ha ha").
const ECHO_BYTES: usize = 16;

impl<'a> Echo<'a> {
    fn new(accepted: &'a str) -> Self {
        Self { accepted, held: String::new(), passed: accepted.len() < ECHO_BYTES }
    }

    /// What of the cloud's text is new; `None` while that is open.
    fn push(&mut self, text: &str) -> Option<String> {
        if self.passed {
            return Some(text.to_owned());
        }
        self.held.push_str(text);
        let (start, accepted) = (self.held.trim_start(), self.accepted.trim());
        if let Some(rest) = start.strip_prefix(accepted) {
            self.passed = true;
            // The accepted part may end in the space that the repetition has here.
            let rest = if self.accepted.ends_with(char::is_whitespace) { rest.trim_start() } else { rest };
            return Some(rest.to_owned()).filter(|r| !r.is_empty());
        }
        if accepted.starts_with(start) {
            return None;
        }
        self.passed = true;
        Some(std::mem::take(&mut self.held))
    }

    /// What is still held at the end: no repetition, then.
    fn finish(&mut self) -> Option<String> {
        if self.passed {
            return None;
        }
        self.passed = true;
        Some(std::mem::take(&mut self.held)).filter(|h| !h.trim().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(accepted: &str, pieces: &[&str]) -> String {
        let mut echo = Echo::new(accepted);
        let mut out: String = pieces.iter().filter_map(|p| echo.push(p)).collect();
        out.extend(echo.finish());
        out
    }

    #[test]
    fn a_repeated_beginning_is_dropped() {
        let start = "The sky is blue because of air. ";
        assert_eq!(echo(start, &["The sky", " is blue because of", " air. And", " more"]), "And more");
        assert_eq!(echo(start, &["And", " more"]), "And more");
        assert_eq!(echo(start, &["The sk", "ies differ"]), "The skies differ");
        assert_eq!(echo(start, &["The sky is"]), "The sky is");
        assert_eq!(echo("ha", &["ha", " ha"]), "ha ha");
        assert_eq!(echo("", &["x"]), "x");
    }
}
