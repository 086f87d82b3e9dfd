use crate::tiny;
use pannier::model::{Forward, Outputs};
use pannier::residency::StreamOptions;
use pannier::{CancelFlag, Error};

#[test]
fn the_bits_do_not_depend_on_where_the_weights_live() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let expected = tiny::logits(&mut tiny::runner(&path, None, &StreamOptions::default()).unwrap()).unwrap();
    let all = tiny::dense_bytes(&path);
    for share in [40, 50, 70, 90, 110] {
        let budget = all * share / 100;
        let plan = tiny::residency(&path, Some(budget));
        assert!(plan.anonymous_bytes() <= budget, "{share}%: {plan:?}");
        assert_eq!(plan.pinned_bytes + plan.streamed_bytes, plan.dense_bytes);
        assert_eq!(plan.streamed_bytes == 0, share > 100);
        let mut runner = tiny::runner(&path, Some(budget), &StreamOptions::default()).unwrap();
        assert_eq!(tiny::logits(&mut runner).unwrap(), expected, "{share}%");
        // Again from the start: the ring finds its way.
        assert_eq!(tiny::logits(&mut runner).unwrap(), expected, "{share}%");
    }
}

#[test]
fn a_token_reads_what_is_not_pinned_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let budget = tiny::dense_bytes(&path) / 2;
    let plan = tiny::residency(&path, Some(budget));
    let mut runner = tiny::runner(&path, Some(budget), &StreamOptions::default()).unwrap();
    let mut seq = runner.new_seq().unwrap();
    let cancel = CancelFlag::default();
    runner.step(&mut seq, &[1], Outputs::Last, &cancel).unwrap();
    let before = tiny::flash(&runner);
    const TOKENS: u64 = 40;
    for token in 0..TOKENS as u32 {
        runner.step(&mut seq, &[token], Outputs::Last, &cancel).unwrap();
    }
    let read = tiny::flash(&runner).since(&before).bytes;
    // What is read ahead for the next pass is at most what the buffers hold.
    let slack = plan.buffers as u64 * plan.buffer_bytes;
    let expected = TOKENS * plan.streamed_bytes;
    // Neighbouring tensors share a page that the plan counts twice.
    assert!(read <= expected + slack && read as f64 >= 0.97 * expected as f64, "{read} {expected}");
}

#[test]
fn steps_that_need_no_logits_and_cancelled_steps_leave_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let cancel = CancelFlag::default();
    let run = |budget: Option<u64>| {
        let mut runner = tiny::runner(&path, budget, &StreamOptions::default()).unwrap();
        let mut seq = runner.new_seq().unwrap();
        runner.step(&mut seq, &[3, 1, 4, 1, 5], Outputs::None, &cancel).unwrap();
        let stop = CancelFlag::default();
        stop.cancel();
        assert!(matches!(runner.step(&mut seq, &[9, 2], Outputs::Last, &stop), Err(Error::Cancelled)));
        let logits = runner.step(&mut seq, &[9, 2, 6], Outputs::All, &cancel).unwrap();
        logits.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
    };
    assert_eq!(run(None), run(Some(tiny::dense_bytes(&path) / 2)));
}

/// A pass that ends early leaves buffers full of what comes after its end. Wherever it ends, and however much was read by then,
/// the next pass begins.
#[test]
fn a_pass_may_end_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let runner = tiny::runner(&path, Some(tiny::dense_bytes(&path) / 2), &StreamOptions::default()).unwrap();
    let store = runner.model().weights();
    let units: Vec<_> = store.layout().ids().collect();
    let reader_rests = || {
        let mut reads = (store.flash().reads, 0);
        while reads.1 < 20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let now = store.flash().reads;
            reads = (now, if now == reads.0 { reads.1 + 1 } else { 0 });
        }
    };
    for end in 0..units.len() {
        for &unit in &units[..=end] {
            drop(store.acquire(unit).unwrap());
        }
        reader_rests();
    }
}
