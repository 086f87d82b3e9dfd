//! What the commands that make model files share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;
use pannier_forge::Progress;

use crate::interrupt::{self, Guard};
use crate::output;

/// A bar that Ctrl-C stops.
pub struct Watch {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    _guard: Guard,
}

impl Watch {
    pub fn start(what: &'static str) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let guard = interrupt::on_interrupt(move || flag.store(true, Ordering::Relaxed));
        let bar = output::byte_bar(Some(0));
        bar.set_message(what);
        Watch { bar, stop, _guard: guard }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Watch {
    fn step(&self, done: u64, total: u64, _tensor: &str) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    fn cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
