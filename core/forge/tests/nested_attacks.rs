//! What can go wrong with a file of two views: each ends in an answer with the right bits, or in an error that says what it is.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::nested::*;
use pannier::model::{ActivationObserver, Forward, MatrixInput, Outputs};
use pannier::pack::{is_pack, pack};
use pannier::residency::{FileSource, StreamOptions, View, WeightSource};
use pannier::session::{Canceller, GenerationEvent, GenerationOptions, Model, Notice, Prompt, SessionError};
use pannier::{CancelFlag, ViewReason, WeightPrecision};
use pannier_forge::imatrix::Collector;
use pannier_forge::{Error, QuantizeOptions, Silent, quantize};
use pannier_gguf::{Gguf, nested as names};
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use WeightPrecision::{Auto, Full, Low};

/// A budget with which some weights are streamed.
fn tight(path: &Path, view: View, experts: bool) -> u64 {
    let all = residency(path, view, Some(u64::MAX / 2));
    if experts { all.pinned_bytes + 9 * all.slot_bytes } else { all.pinned_bytes * 7 / 10 }
}

fn streamed(path: &Path, view: View, experts: bool, stream: &StreamOptions) -> pannier::model::Runner {
    let plan = residency(path, view, Some(tight(path, view, experts)));
    runner_with(path, view, plan, stream)
}

#[test]
fn a_pack_has_both_views_resident_and_streamed() {
    for experts in [false, true] {
        let f = fixture(experts);
        let out = f.folder.path().join("nested.pack.gguf");
        let source = Gguf::open(&f.nested).unwrap();
        assert!(!pack(&source, &out, &mut |_, _| ()).unwrap().reused);
        let packed = Gguf::open(&out).unwrap();
        assert!(is_pack(&packed));
        assert_eq!(packed.metadata().u32(names::VERSION_KEY).unwrap(), names::VERSION);
        for view in [View::Low, View::Full] {
            let want = logits(&mut runner(&f.nested, view));
            assert_eq!(logits(&mut runner(&out, view)), want, "{view}, mapped");
            let mut some = streamed(&out, view, experts, &StreamOptions::default());
            assert_eq!(logits(&mut some), want, "{view}, streamed");
            assert!(some.model().weights().flash().bytes > 0);
        }
        // One that was loaded with both is switched.
        let mut both = streamed(&out, View::Full, experts, &StreamOptions::default());
        for view in [View::Low, View::Full, View::Low] {
            both.set_view(view).unwrap();
            assert_eq!(logits(&mut both), logits(&mut runner(&f.nested, view)), "{view}, switched");
        }
        // A pack whose source is another now is made anew.
        assert!(pack(&source, &out, &mut |_, _| ()).unwrap().reused);
        let other = QuantizeOptions { keep_f16_attention: true, ..options() };
        quantize(&f.input, &f.nested, &other, &Silent).unwrap();
        assert!(!pack(&Gguf::open(&f.nested).unwrap(), &out, &mut |_, _| ()).unwrap().reused);
    }
}

/// A file that ends at some offset from some moment on.
#[derive(Debug)]
struct Ends {
    file: FileSource,
    at: AtomicU64,
}

impl WeightSource for Ends {
    fn read_at(&self, shard: usize, offset: u64, out: &mut [u8]) -> std::io::Result<usize> {
        let left = self.at.load(Ordering::Relaxed).saturating_sub(offset);
        let n = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if n == 0 { Ok(0) } else { self.file.read_at(shard, offset, &mut out[..n]) }
    }

    fn path(&self, shard: usize) -> &Path {
        self.file.path(shard)
    }
}

#[test]
fn a_file_that_ends_in_its_fine_planes_is_an_error_wherever_they_are_read() {
    for experts in [false, true] {
        let f = fixture(experts);
        let gguf = Gguf::open(&f.nested).unwrap();
        let fine: Vec<_> = gguf.tensors().iter().filter(|t| t.name.ends_with(names::FINE)).collect();
        let cut = fine[fine.len() / 2].offset + 100;
        // Before loading: refused by whatever opens it, in both views, and as a pack.
        let short = f.folder.path().join("short.gguf");
        let bytes = std::fs::read(&f.nested).unwrap();
        std::fs::write(&short, &bytes[..usize::try_from(cut).unwrap()]).unwrap();
        for precision in [Low, Full, Auto] {
            let options = pannier::LoadOptions { weight_precision: precision, ..Default::default() };
            let error = Model::load(&short, &options, &mut |_| {}).map(|_| ()).unwrap_err();
            assert!(matches!(error, pannier::Error::Gguf(_)), "{error}");
            assert!(error.to_string().contains("truncated"), "{error}");
        }
        // While it is streamed: the full view fails, the low view goes on, and so does the full one when the bytes are back.
        let source = Arc::new(Ends { file: FileSource::open(&gguf).unwrap(), at: AtomicU64::new(u64::MAX) });
        let stream = StreamOptions { source: Some(source.clone()), ..StreamOptions::default() };
        let mut runner = streamed(&f.nested, View::Full, experts, &stream);
        let full = logits(&mut runner);
        // All fine planes are gone, whichever of them are pinned or in the cache.
        source.at.store(fine[0].offset, Ordering::Relaxed);
        let text = ids(200);
        let mut seq = runner.new_seq().unwrap();
        let failed = runner.step(&mut seq, &text[..16], Outputs::Last, &CancelFlag::new()).map(<[f32]>::len);
        if let Err(error) = &failed {
            assert!(
                matches!(error, pannier::Error::Io { .. } | pannier::Error::ModelChanged { .. }),
                "{error}"
            );
        }
        assert!(experts || failed.is_err(), "a dense pass reads every streamed part");
        drop(seq);
        source.at.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(logits(&mut runner), full);
        // Pinned parts were read before: only what is streamed is read again, and the low view needs the front of it.
        if !experts {
            source.at.store(fine[0].offset.next_multiple_of(4096), Ordering::Relaxed);
            runner.set_view(View::Low).unwrap();
            assert_eq!(logits(&mut runner), logits(&mut common::nested::runner(&f.nested, View::Low)));
        }
    }
}

/// Every event's name, and what a generation gave.
fn told(
    session: &pannier::Session,
    prompt: &[u32],
    options: GenerationOptions,
    mut on: impl FnMut(&GenerationEvent<'_>) -> ControlFlow<()>,
) -> (Vec<&'static str>, pannier::Result<Vec<u32>>) {
    let mut names = Vec::new();
    let result = session.generate(Prompt::from(prompt), options, &mut |event| {
        names.push(match event {
            GenerationEvent::Completed(_) => "completed",
            GenerationEvent::Failed { .. } => "failed",
            GenerationEvent::Cancelled { .. } => "cancelled",
            _ => "",
        });
        on(&event)
    });
    names.retain(|name| !name.is_empty());
    (names, result.map(|done| done.ids().collect()))
}

#[test]
fn a_cancel_while_auto_reads_again_is_one_end_and_the_session_goes_on() {
    let f = fixture(false);
    let prompt = ids(300);
    let want = answer(&load(&f.nested, Auto).session(), &prompt, None);
    assert_eq!(want.2.last(), Some(&(View::Full, ViewReason::Unsure)));
    let model = load(&f.nested, Auto);
    let session = model.session();
    let unsure = |event: &GenerationEvent<'_>| {
        matches!(event, GenerationEvent::Notice(Notice::View { reason: ViewReason::Unsure, .. }))
    };
    // By the handle, and by the event handler itself, at the moment when reading again begins.
    let canceller = Canceller::new();
    let options = GenerationOptions { canceller: Some(canceller.clone()), ..GenerationOptions::greedy(20) };
    let (ends, result) = told(&session, &prompt, options, |event| {
        if unsure(event) {
            canceller.cancel();
        }
        ControlFlow::Continue(())
    });
    assert_eq!(ends, ["cancelled"]);
    assert!(matches!(result, Err(pannier::Error::Cancelled)));
    assert_eq!(answer(&session, &prompt, None), want);
    let (ends, result) = told(&session, &prompt, GenerationOptions::greedy(20), |event| {
        if unsure(event) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(ends, ["cancelled"]);
    assert!(matches!(result, Err(pannier::Error::Cancelled)));
    // From another thread, at any moment of it.
    for after in [0, 1, 2, 4, 8] {
        let canceller = Canceller::new();
        let options =
            GenerationOptions { canceller: Some(canceller.clone()), ..GenerationOptions::greedy(20) };
        let mut thread = None;
        let (ends, _) = told(&session, &prompt, options, |event| {
            if unsure(event) {
                let canceller = canceller.clone();
                thread = Some(std::thread::spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(after));
                    canceller.cancel();
                }));
            }
            ControlFlow::Continue(())
        });
        assert_eq!(ends.len(), 1, "{ends:?}");
        thread.unwrap().join().unwrap();
    }
    for precision in [Low, Full, Auto] {
        let alone = answer(&load(&f.nested, Auto).session(), &prompt, Some(precision));
        assert_eq!(answer(&session, &prompt, Some(precision)), alone, "{precision}");
    }
}

#[test]
fn an_empty_prompt_is_the_same_error_with_each_precision() {
    let f = fixture(false);
    for loaded in [Low, Full, Auto] {
        let model = load(&f.nested, loaded);
        let session = model.session();
        for asked in [None, Some(loaded)] {
            let options = GenerationOptions { weight_precision: asked, ..GenerationOptions::greedy(4) };
            let (ends, result) = told(&session, &[], options, |_| ControlFlow::Continue(()));
            assert_eq!(ends, ["failed"]);
            assert!(matches!(result, Err(pannier::Error::Session(SessionError::EmptyPrompt))), "{result:?}");
            // One token is enough, and no token of an answer decides nothing.
            assert_eq!(answer(&session, &[3], asked).0.len(), 20);
            let none = GenerationOptions { weight_precision: asked, ..GenerationOptions::greedy(0) };
            let (ends, result) = told(&session, &[3], none, |_| ControlFlow::Continue(()));
            assert_eq!((ends, result.unwrap().len()), (vec!["completed"], 0));
        }
    }
}

#[test]
fn a_saved_session_is_restored_in_its_view_or_refused() {
    let f = fixture(false);
    let prompt = ids(80);
    let longer = [&prompt[..], &[5, 6, 7]].concat();
    let both = load(&f.nested, Full);
    for precision in [Low, Full] {
        let file = f.folder.path().join(format!("{precision}.session"));
        let session = both.session();
        answer(&session, &prompt, Some(precision));
        session.save(&file).unwrap();
        // A model with both views takes it, whichever it was.
        let again = load(&f.nested, Full).session();
        let tokens = again.restore(&file).unwrap();
        assert!(tokens >= prompt.len());
        for wish in [precision, Low, Full, Auto] {
            let alone = answer(&load(&f.nested, Full).session(), &longer, Some(wish));
            assert_eq!(answer(&again, &longer, Some(wish)), alone, "saved in {precision}, asked for {wish}");
        }
        // What was read is used, by the view that has read it only.
        for wish in [Low, Full] {
            let fresh = load(&f.nested, Full).session();
            fresh.restore(&file).unwrap();
            let options = GenerationOptions { weight_precision: Some(wish), ..GenerationOptions::greedy(1) };
            let done = fresh.generate(Prompt::from(&longer[..]), options, &mut |_| ControlFlow::Continue(()));
            assert_eq!(done.unwrap().stats.cached_tokens > 0, wish == precision, "{precision}, {wish}");
        }
        // One with the low view alone takes its own.
        let low = load(&f.nested, Low).session();
        let restored = low.restore(&file);
        if precision == Low {
            restored.unwrap();
        } else {
            assert!(matches!(restored, Err(pannier::Error::BadCacheFile { .. })), "{restored:?}");
        }
        assert_eq!(answer(&low, &longer, None), answer(&load(&f.nested, Low).session(), &longer, None));
        // Prefixes for all sessions keep to their view, too.
        let others = load(&f.nested, Full);
        assert!(others.restore_prefix(&file).unwrap() > 0);
        for wish in [Low, Full] {
            let alone = answer(&load(&f.nested, Full).session(), &longer, Some(wish));
            assert_eq!(answer(&others.session(), &longer, Some(wish)), alone);
        }
        // A damaged file is of no view.
        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        assert!(matches!(both.session().restore(&file), Err(pannier::Error::BadCacheFile { .. })));
    }
    // And so are files that were quantised otherwise: their full view has other bits.
    let file = f.folder.path().join("other.session");
    let session = both.session();
    answer(&session, &prompt, Some(Full));
    session.save(&file).unwrap();
    let whole = f.folder.path().join("whole.gguf");
    joined(&f.nested, &whole);
    assert!(matches!(load(&whole, Full).session().restore(&file), Err(pannier::Error::BadCacheFile { .. })));
}

#[test]
fn activation_aware_scales_go_into_both_views() {
    let f = fixture(false);
    let input = Gguf::open(&f.input).unwrap();
    let collector = Collector::new();
    for tensor in input.tensors().iter().filter(|tensor| tensor.name.starts_with("blk.")) {
        let columns = usize::try_from(tensor.dims[0]).unwrap();
        let rows: Vec<f32> = (0..columns).map(|c| if c % 37 == 0 { 30.0 } else { 0.5 }).collect();
        collector.observed(&MatrixInput { tensor: &tensor.name, matrix: (0, 1), cols: columns, rows: &rows });
    }
    let out = f.folder.path().join("awq.gguf");
    let scaled = QuantizeOptions { imatrix: Some(collector.imatrix()), awq: true, ..options() };
    let report = quantize(&f.input, &out, &scaled, &Silent).unwrap();
    assert!(report.plan.tensors.iter().filter(|t| t.nested).count() == 7 * usize::try_from(LAYERS).unwrap());
    let norm = |file: &Gguf| {
        let tensor = file.tensor("blk.0.attn_norm.weight").unwrap();
        file.tensor_data(tensor).unwrap().to_vec()
    };
    assert_ne!(norm(&Gguf::open(&out).unwrap()), norm(&input), "nothing was scaled");
    // The scales are undone in front: both views are the model still.
    let exact = logits(&mut runner(&f.input, View::Full));
    let error = |view| {
        let got = logits(&mut runner(&out, view));
        let pairs = got.iter().zip(&exact).map(|(a, b)| (f32::from_bits(*a), f32::from_bits(*b)));
        let (error, energy) = pairs.fold((0f64, 0f64), |(error, energy), (a, b)| {
            (error + f64::from(a - b).powi(2), energy + f64::from(b).powi(2))
        });
        (error / energy).sqrt()
    };
    let (low, full) = (error(View::Low), error(View::Full));
    assert!(full < low && low < 1.0, "full {full}, low {low}");
    // The full view is Q5_K of the scaled model, to the bit.
    let whole = f.folder.path().join("whole.gguf");
    joined(&out, &whole);
    assert_eq!(logits(&mut runner(&out, View::Full)), logits(&mut runner(&whole, View::Full)));
}

#[test]
fn readers_that_do_not_know_planes_miss_a_matrix() {
    for experts in [false, true] {
        let f = fixture(experts);
        let gguf = Gguf::open(&f.nested).unwrap();
        // Every matrix that was taken apart is one that every reader of this architecture looks for, under a name that is not there.
        for tensor in gguf.tensors() {
            let Some(name) = tensor.name.strip_suffix(names::LOW) else { continue };
            assert!(gguf.tensor(name).is_none(), "{name} is there, too");
            assert!(name.starts_with("blk."), "{name} may be one that readers do without");
        }
        // Without the key, this reader is such a one.
        let old = f.folder.path().join("old.gguf");
        rewritten(&f.nested, &old, None, Some);
        let error = blueprint(&old, View::Full).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("nested precision"), "{error}");
    }
}

#[test]
fn what_cannot_be_written_leaves_no_file() {
    let f = fixture(false);
    // A folder where the file should be, and a folder that is not there.
    let taken = f.folder.path().join("taken.gguf");
    std::fs::create_dir(&taken).unwrap();
    assert!(quantize(&f.input, &taken, &options(), &Silent).is_err());
    let nowhere = f.folder.path().join("nowhere/out.gguf");
    let error = quantize(&f.input, &nowhere, &options(), &Silent).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(File::open(&nowhere).is_err());
}
