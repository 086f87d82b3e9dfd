//! Ctrl-C: the first one cancels what runs, cleanly; the second one, or one while nothing runs, ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type Action = Box<dyn Fn() + Send>;

static PRESSED: AtomicBool = AtomicBool::new(false);
static ACTION: Mutex<Option<Action>> = Mutex::new(None);

/// Installs the handler. Where the system has none, Ctrl-C ends the process as it always did.
pub fn install() {
    let _ = ctrlc::set_handler(|| {
        let action = ACTION.lock().unwrap_or_else(PoisonError::into_inner);
        match action.as_ref() {
            Some(action) if !PRESSED.swap(true, Ordering::AcqRel) => action(),
            _ => {
                crate::error::print_to_stderr("\n");
                std::process::exit(130);
            }
        }
    });
}

/// While this lives, the first Ctrl-C calls its action.
pub struct Guard(());

/// Starts a piece of work that `action` cancels.
pub fn on_interrupt(action: impl Fn() + Send + 'static) -> Guard {
    PRESSED.store(false, Ordering::Release);
    *ACTION.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
    Guard(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        *ACTION.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
