//! Warnings: texts that say what a call did that is seldom wanted, for the user of a program.

use std::sync::{PoisonError, RwLock};

/// A function that hands a warning on.
type Handler = Box<dyn Fn(&str) + Send + Sync>;

static HANDLER: RwLock<Option<Handler>> = RwLock::new(None);

/// Lets a function have each warning, on the thread that warns; without one, warnings are written to the standard error.
pub fn set_warning_handler(handler: impl Fn(&str) + Send + Sync + 'static) {
    *HANDLER.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(handler));
}

/// Warns (`torch.UserWarning`).
pub fn warn(text: &str) {
    match &*HANDLER.read().unwrap_or_else(PoisonError::into_inner) {
        Some(handler) => handler(text),
        None => eprintln!("warning: {text}"),
    }
}
