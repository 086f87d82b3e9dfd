//! A model that follows a script, a vocabulary of bytes, and a sink that keeps what it is told.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pannier::memory::{MemoryPressure, MemoryProbe, MemoryReading, ThermalLevel};
use pannier::model::{Forward, Outputs};
use pannier::sampling::{Draws, Lane};
use pannier::session::{Clock, Completion, FinishReason, GenerationEvent, Model, ModelParts, Notice};
use pannier::{CancelFlag, Error, Result};
use pannier_gguf::Metadata;
use pannier_tokenizer::{ChatTemplate, Tokenizer};

/// Ends an answer.
pub const END: u32 = 256;
/// Begins a message.
pub const START: u32 = 257;
/// Tokens of several characters, from id 258.
pub const PIECES: [&str; 8] = ["ab", "ba", "aba", "</", "</s", "s>", "é🙂", "🙂a"];
pub const VOCAB: usize = 258 + PIECES.len();
/// A step looks at its cancel flag this often.
pub const LAYERS: usize = 4;

/// Where a step is: (steps so far, layer).
type Hook = Arc<dyn Fn(usize, usize) -> Result<()> + Send + Sync>;
type Rule = Arc<dyn Fn(&[u32]) -> u32 + Send + Sync>;

/// The script.
#[derive(Clone)]
pub struct Fake {
    pub context: usize,
    pub vocab: usize,
    /// The favourite next token after these.
    pub rule: Rule,
    /// How much the favourite stands out; 0 leaves it to chance.
    pub lead: f32,
    pub hook: Hook,
    /// Shortest length to which sequences can be cut, other than 0.
    pub uncuttable: usize,
    /// Tokens of each completed step.
    pub log: Arc<Mutex<Vec<usize>>>,
    /// Sequences and models alive.
    pub alive: Alive,
    pub row: Vec<f32>,
    pub steps: usize,
    /// Bytes of a cache that pressure may shrink.
    pub cache: Option<u64>,
}

/// Counts its clones.
#[derive(Default)]
pub struct Alive(Arc<AtomicUsize>);

impl Alive {
    pub fn counter(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }
}

impl Clone for Alive {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct FakeSeq {
    tokens: Vec<u32>,
    _alive: Alive,
}

impl Fake {
    pub fn new(rule: impl Fn(&[u32]) -> u32 + Send + Sync + 'static) -> Self {
        Self {
            context: 4096,
            vocab: VOCAB,
            rule: Arc::new(rule),
            lead: 100.0,
            hook: Arc::new(|_, _| Ok(())),
            uncuttable: 0,
            log: Arc::default(),
            alive: Alive(Arc::new(AtomicUsize::new(1))),
            row: Vec::new(),
            steps: 0,
            cache: None,
        }
    }

    /// Answers a prompt of `after` tokens with `answer`, then ends.
    pub fn answering(after: usize, answer: Vec<u32>) -> Self {
        Self::new(move |seq| answer.get(seq.len() - after).copied().unwrap_or(END))
    }

    /// Answers by chance, but the same after the same tokens. Ends now and then.
    pub fn babbling() -> Self {
        Self { lead: 0.0, ..Self::new(|_| 0) }
    }

    /// A model without a vocabulary.
    pub fn bare(self) -> Arc<Model<Self>> {
        Model::from_parts(ModelParts {
            prefill_chunk: 8,
            memory: Arc::new(FixedMemory),
            ..ModelParts::new(self)
        })
    }

    /// A model with the vocabulary of bytes.
    pub fn with_bytes(self) -> Arc<Model<Self>> {
        Model::from_parts(self.parts())
    }

    pub fn parts(self) -> ModelParts<Self> {
        let tokenizer = Arc::new(tokenizer());
        let template = ChatTemplate::new(TEMPLATE, "", "").unwrap();
        ModelParts {
            prefill_chunk: 8,
            memory: Arc::new(FixedMemory),
            tokenizer: Ok(tokenizer),
            template: Ok(Arc::new(template)),
            ..ModelParts::new(self)
        }
    }
}

impl Forward for Fake {
    type Seq = FakeSeq;

    fn new_seq(&mut self) -> Result<FakeSeq> {
        Ok(FakeSeq { tokens: Vec::new(), _alive: self.alive.clone() })
    }

    fn vocab(&self) -> usize {
        self.vocab
    }

    fn context(&self) -> usize {
        self.context
    }

    fn step(
        &mut self,
        seq: &mut FakeSeq,
        tokens: &[u32],
        outputs: Outputs,
        cancel: &CancelFlag,
    ) -> Result<&[f32]> {
        let needed = seq.tokens.len() + tokens.len();
        if needed > self.context {
            return Err(Error::ContextFull { needed, limit: self.context });
        }
        self.steps += 1;
        for layer in 0..LAYERS {
            cancel.check()?;
            (self.hook)(self.steps, layer)?;
        }
        cancel.check()?;
        seq.tokens.extend_from_slice(tokens);
        self.log.lock().unwrap().push(tokens.len());
        self.row.clear();
        for row in outputs.rows(tokens.len()) {
            let text = &seq.tokens[..needed - tokens.len() + row + 1];
            let key = text.iter().fold(7u64, |k, t| Draws::new(k).bits(Lane::Token, u64::from(*t)));
            let draws = Draws::new(key);
            let start = self.row.len();
            self.row.extend((0..self.vocab as u64).map(|i| draws.uniform(Lane::Token, i) as f32 * 6.0));
            let favourite = (self.rule)(text) as usize;
            self.row[start + favourite] += self.lead;
        }
        Ok(&self.row)
    }

    fn truncate(&mut self, seq: &mut FakeSeq, len: usize) -> Result<()> {
        let have = seq.tokens.len();
        if len > have || (len != 0 && len < self.uncuttable) {
            return Err(Error::CannotTruncate { len, have, reason: "the script says so" });
        }
        seq.tokens.truncate(len);
        Ok(())
    }

    fn relieve(&mut self, pressure: MemoryPressure) -> Option<u64> {
        self.cache.map(|full| pressure.share(full))
    }

    fn cool(&mut self, level: ThermalLevel) -> Option<usize> {
        Some(level.threads(8))
    }

    fn len(seq: &FakeSeq) -> usize {
        seq.tokens.len()
    }
}

pub struct FixedMemory;

impl MemoryProbe for FixedMemory {
    fn read(&self) -> Result<MemoryReading> {
        Ok(MemoryReading { rss: 3, anonymous: 2, available: 5, total: 9 })
    }
}

/// A clock that goes on by a millisecond each time it is looked at.
#[derive(Default)]
pub struct SteppingClock(AtomicUsize);

impl Clock for SteppingClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::SeqCst) as u64)
    }
}

pub const TEMPLATE: &str = "{% for m in messages %}{% if m.content == 'forbidden' %}{{ raise_exception('not that') }}\
{% endif %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n\
{% endif %}";

/// Token `b` is byte `b`; then the two control tokens, then the pieces.
pub fn tokenizer() -> Tokenizer {
    // GPT-2's spelling of bytes: printable ones stand for themselves, the others follow from U+0100.
    let mut next = 0x100;
    let mut spell = |b: u8| {
        if matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            return char::from(b);
        }
        let c = char::from_u32(next).unwrap();
        next += 1;
        c
    };
    let bytes: Vec<char> = (0..=255).map(&mut spell).collect();
    let mut tokens: Vec<String> = bytes.iter().map(|c| c.to_string()).collect();
    let mut types = vec![1i32; 256];
    for control in ["<|end|>", "<|turn|>"] {
        tokens.push(control.to_owned());
        types.push(3);
    }
    for piece in PIECES {
        tokens.push(piece.bytes().map(|b| bytes[usize::from(b)]).collect());
        types.push(1);
    }
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", "gpt-2");
    metadata.insert("tokenizer.ggml.tokens", tokens);
    metadata.insert("tokenizer.ggml.token_type", types);
    metadata.insert("tokenizer.ggml.merges", Vec::<String>::new());
    metadata.insert("tokenizer.ggml.eos_token_id", END);
    Tokenizer::from_metadata(&metadata).unwrap()
}

/// A text as byte tokens.
pub fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// How a generation ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Completed(FinishReason),
    Failed(String),
    Cancelled,
}

/// What a sink was told.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Told {
    pub started: Option<(usize, usize)>,
    pub prefill: Vec<(usize, usize)>,
    pub text: String,
    pub parts: Vec<String>,
    pub ids: Vec<u32>,
    pub notices: Vec<Notice>,
    pub ends: Vec<End>,
    pub events: usize,
}

impl Told {
    /// Keeps an event, checking the order.
    pub fn hear(&mut self, event: GenerationEvent<'_>) {
        assert!(self.ends.is_empty(), "{event:?} after {:?}", self.ends);
        self.events += 1;
        match event {
            GenerationEvent::Started { prompt_tokens, cached_tokens } => {
                assert!(self.started.replace((prompt_tokens, cached_tokens)).is_none());
            }
            GenerationEvent::Prefill { done, total } => self.prefill.push((done, total)),
            GenerationEvent::Text { text, tokens } => {
                self.text.push_str(text);
                self.parts.push(text.to_owned());
                self.ids.extend(tokens.iter().map(|t| t.id));
            }
            GenerationEvent::Notice(notice) => self.notices.push(notice),
            GenerationEvent::Completed(completion) => {
                assert_eq!(completion.text, self.text);
                self.ends.push(End::Completed(completion.finish_reason));
            }
            GenerationEvent::Failed { error } => self.ends.push(End::Failed(error.to_string())),
            GenerationEvent::Cancelled { .. } => self.ends.push(End::Cancelled),
            other => panic!("{other:?}"),
        }
    }

    /// The end, of which there must be one.
    pub fn end(&self) -> &End {
        assert_eq!(self.ends.len(), 1, "{self:?}");
        &self.ends[0]
    }
}

/// Runs `work` with a sink that keeps everything.
pub fn listen(
    work: impl FnOnce(&mut dyn FnMut(GenerationEvent<'_>) -> ControlFlow<()>) -> Result<Completion>,
) -> (Told, Result<Completion>) {
    let mut told = Told::default();
    let result = work(&mut |event| {
        told.hear(event);
        ControlFlow::Continue(())
    });
    match (&result, told.end()) {
        (Ok(c), End::Completed(reason)) => assert_eq!(c.finish_reason, *reason),
        (Err(Error::Cancelled), End::Cancelled) => {}
        (Err(e), End::Failed(message)) => assert_eq!(&e.to_string(), message),
        other => panic!("{other:?}"),
    }
    (told, result)
}
