//! A device and a cloud that follow scripts, and a view that keeps what it is told.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pannier::sampling::TokenInfo;
use pannier::session::{
    ChatMessage, Completion, FinishReason, GenerationEvent, GenerationOptions, GenerationStats, Role, Sink,
};
use pannier_hybrid::cloud::{CloudFinish, CloudUsage};
use pannier_hybrid::{
    CloudCall, CloudError, CloudEvent, CloudModel, CloudRequest, CloudSetup, CloudSink, EdgeModel,
    HybridCompletion, HybridError, HybridEvent, HybridParts, HybridPolicy, HybridSession, OutgoingPayload,
    Source, TurnOptions,
};

/// A device whose answer is known: pieces, each with how sure it is (a log-probability).
pub struct ScriptedEdge {
    pub pieces: Vec<(String, f32)>,
    /// Fails before this piece.
    pub fail_at: Option<usize>,
    /// Waits this long before each piece, looking at its cancel switch.
    pub delay: Duration,
    history: Mutex<Vec<ChatMessage>>,
    cancelled: AtomicBool,
    pub runs: AtomicUsize,
}

impl ScriptedEdge {
    pub fn new(pieces: &[(&str, f32)]) -> Self {
        Self {
            pieces: pieces.iter().map(|(t, p)| ((*t).to_owned(), *p)).collect(),
            fail_at: None,
            delay: Duration::ZERO,
            history: Mutex::default(),
            cancelled: AtomicBool::new(false),
            runs: AtomicUsize::new(0),
        }
    }

    pub fn text(&self) -> String {
        self.pieces.iter().map(|(t, _)| t.as_str()).collect()
    }
}

/// Sure, and not.
pub const SURE: f32 = -0.001;
pub const UNSURE: f32 = -4.0;

fn token(id: u32, logprob: f32) -> TokenInfo {
    let p = logprob.exp();
    TokenInfo { id, logprob, margin: p, entropy: (1.0 - p) * 4.0, top: Vec::new() }
}

impl EdgeModel for ScriptedEdge {
    fn history(&self) -> Vec<ChatMessage> {
        self.history.lock().unwrap().clone()
    }

    fn set_history(&self, messages: Vec<ChatMessage>) -> pannier::Result<()> {
        *self.history.lock().unwrap() = messages;
        Ok(())
    }

    fn token_count(&self, next: &[ChatMessage]) -> pannier::Result<usize> {
        Ok(next.iter().map(|m| m.content.len() / 4 + 1).sum())
    }

    fn context(&self) -> usize {
        1000
    }

    fn generate(
        &self,
        messages: Vec<ChatMessage>,
        options: GenerationOptions,
        sink: &mut Sink<'_>,
    ) -> pannier::Result<Completion> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.cancelled.store(false, Ordering::SeqCst);
        let stopped = || {
            self.cancelled.load(Ordering::SeqCst)
                || options.canceller.as_ref().is_some_and(|c| c.is_cancelled())
        };
        let stats = GenerationStats::default();
        let mut text = String::new();
        let mut tokens = Vec::new();
        let mut broke = sink(GenerationEvent::Started { prompt_tokens: 3, cached_tokens: 0 }).is_break();
        for (at, (piece, logprob)) in self.pieces.iter().enumerate() {
            let mut waited = Duration::ZERO;
            while waited < self.delay && !stopped() {
                std::thread::sleep(Duration::from_millis(1));
                waited += Duration::from_millis(1);
            }
            if broke || stopped() {
                // As the session does: what was given out is history.
                if !text.is_empty() {
                    self.history.lock().unwrap().extend(messages);
                    self.history.lock().unwrap().push(ChatMessage::new(Role::Assistant, text));
                }
                let _ = sink(GenerationEvent::Cancelled { stats: &stats });
                return Err(pannier::Error::Cancelled);
            }
            if self.fail_at == Some(at) {
                let error = pannier::Error::Unsupported { what: "the script".into() };
                let _ = sink(GenerationEvent::Failed { error: &error });
                return Err(error);
            }
            let info = token(at as u32, *logprob);
            text.push_str(piece);
            tokens.push(info.clone());
            broke = sink(GenerationEvent::Text { text: piece, tokens: &[info] }).is_break();
        }
        if broke {
            let _ = sink(GenerationEvent::Cancelled { stats: &stats });
            return Err(pannier::Error::Cancelled);
        }
        let completion =
            Completion { text, tokens, finish_reason: FinishReason::Stop { eog: 0 }, seed: 0, stats };
        self.history.lock().unwrap().extend(messages);
        self.history.lock().unwrap().push(ChatMessage::new(Role::Assistant, completion.text.clone()));
        let _ = sink(GenerationEvent::Completed(&completion));
        Ok(completion)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }
}

/// What a scripted cloud does with a request.
pub type CloudScript = dyn Fn(&CloudRequest, &CloudSink) -> Result<(), CloudError> + Send + Sync;

/// A cloud in this process. Keeps its requests.
pub struct ScriptedCloud {
    pub script: Box<CloudScript>,
    pub requests: Mutex<Vec<CloudRequest>>,
    pub cancels: Arc<AtomicUsize>,
    pending: Mutex<Vec<CloudRequest>>,
}

impl ScriptedCloud {
    pub fn new(
        script: impl Fn(&CloudRequest, &CloudSink) -> Result<(), CloudError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            script: Box::new(script),
            requests: Mutex::default(),
            cancels: Arc::default(),
            pending: Mutex::default(),
        })
    }

    pub fn saying(pieces: &[&str]) -> Arc<Self> {
        let pieces: Vec<String> = pieces.iter().map(|p| (*p).to_owned()).collect();
        Self::new(move |_, sink| {
            for piece in &pieces {
                sink.push(CloudEvent::Text(piece.clone()));
            }
            let usage = Some(CloudUsage { prompt_tokens: 10, completion_tokens: 5 });
            sink.push(CloudEvent::Done { finish: CloudFinish::Stop, usage });
            Ok(())
        })
    }

    pub fn failing() -> Arc<Self> {
        Self::new(|_, _| Err(CloudError::Unreachable { reason: "the script says so".into() }))
    }

    pub fn asked(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

struct ScriptedCall(Arc<AtomicUsize>);

impl CloudCall for ScriptedCall {
    fn cancel(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl CloudModel for ScriptedCloud {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn prepare(&self, request: &CloudRequest) -> Result<OutgoingPayload, CloudError> {
        self.pending.lock().unwrap().push(request.clone());
        let body = request.messages.iter().map(|m| m.content.as_str()).collect::<Vec<_>>().join("|");
        Ok(OutgoingPayload { destination: "script:".into(), body })
    }

    fn send(&self, _: &OutgoingPayload, sink: CloudSink) -> Result<Box<dyn CloudCall>, CloudError> {
        let request = self.pending.lock().unwrap().pop().unwrap();
        self.requests.lock().unwrap().push(request.clone());
        (self.script)(&request, &sink)?;
        Ok(Box::new(ScriptedCall(Arc::clone(&self.cancels))))
    }
}

/// What an app sees, rebuilt from events.
#[derive(Debug, Default)]
pub struct View {
    pub text: String,
    pub ends: Vec<&'static str>,
    pub decisions: Vec<pannier_hybrid::Decision>,
    pub discards: usize,
    pub outgoing: Vec<String>,
    pub sentences: Vec<(usize, usize)>,
    pub scored: usize,
    pub sources: Vec<Source>,
}

impl View {
    pub fn hear(&mut self, event: HybridEvent<'_>) {
        assert!(self.ends.is_empty(), "{event:?} after the end");
        match event {
            HybridEvent::Decision(d) => self.decisions.push(d.clone()),
            HybridEvent::Text { text, source, confidence } => {
                assert!(!text.is_empty());
                self.text.push_str(text);
                self.sources.push(source);
                self.scored += usize::from(confidence.is_some());
            }
            HybridEvent::Discard { keep } => {
                assert!(keep < self.text.len());
                self.text.truncate(keep);
                self.discards += 1;
            }
            HybridEvent::Outgoing(payload) => self.outgoing.push(payload.body.clone()),
            HybridEvent::Sentence { start, end, .. } => self.sentences.push((start, end)),
            HybridEvent::Completed(completion) => {
                assert_eq!(completion.text, self.text, "the events show the answer");
                assert_eq!(completion.decisions, self.decisions);
                self.ends.push("completed");
            }
            HybridEvent::Failed { .. } => self.ends.push("failed"),
            HybridEvent::Cancelled => self.ends.push("cancelled"),
            _ => {}
        }
    }

    /// The reasons, as people read them.
    pub fn reasons(&self) -> Vec<String> {
        self.decisions.iter().map(|d| format!("{:?} {:?}: {}", d.point, d.route, d.reason)).collect()
    }
}

pub type Outcome = Result<HybridCompletion, HybridError>;

/// Runs one turn and checks what holds for every turn.
pub fn turn(session: &HybridSession, options: TurnOptions) -> (View, Outcome) {
    let mut view = View::default();
    let outcome = session.send("question", options, &mut |event| {
        view.hear(event);
        ControlFlow::Continue(())
    });
    check(session, &view, &outcome);
    (view, outcome)
}

pub fn check(session: &HybridSession, view: &View, outcome: &Outcome) {
    assert_eq!(view.ends.len(), 1, "exactly one terminal event: {view:?}");
    let history = session.history();
    match outcome {
        Ok(completion) => {
            assert_eq!(view.ends, ["completed"]);
            let [.., user, assistant] = history.as_slice() else { panic!("{history:?}") };
            assert_eq!((user.role, assistant.role), (Role::User, Role::Assistant));
            assert_eq!(assistant.content, completion.text, "the history has what was shown");
        }
        Err(HybridError::Cancelled) => {
            assert_eq!(view.ends, ["cancelled"]);
            match history.last() {
                Some(last) if !view.text.is_empty() => assert_eq!(last.content, view.text),
                other => assert!(view.text.is_empty() && other.is_none(), "{view:?} {history:?}"),
            }
        }
        Err(_) => {
            assert_eq!(view.ends, ["failed"]);
            assert!(history.is_empty(), "a failed turn leaves no trace: {history:?}");
        }
    }
}

pub fn session(edge: ScriptedEdge, cloud: Option<CloudSetup>, policy: HybridPolicy) -> HybridSession {
    HybridSession::new(Arc::new(edge), HybridParts { policy, cloud, ..HybridParts::default() })
}

pub fn setup(model: Arc<dyn CloudModel>) -> CloudSetup {
    CloudSetup::new(model, Arc::new(|_: &OutgoingPayload| true))
}
