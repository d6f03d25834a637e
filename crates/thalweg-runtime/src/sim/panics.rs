//! Panics of the program as values: their messages and locations, with nothing printed meanwhile.
//!
//! A check runs a failing program many times to shrink it, and panic messages of all these runs would bury the one report. The
//! process's panic hook is replaced once by one that is silent on threads inside [`catch`], and calls the previous hook
//! everywhere else.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// A panic of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Panic {
    pub(super) message: String,
    /// The location of the panic, `file:line`.
    pub(super) location: String,
}

impl From<Panic> for super::Problem {
    fn from(panic: Panic) -> Self {
        Self::Panic { message: panic.message, location: panic.location }
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked at {}: {}", self.location, self.message)
    }
}

thread_local! {
    /// The number of nested [`catch`] calls that this thread is in, and the location of its last panic.
    static CAUGHT: RefCell<(u32, Option<String>)> = const { RefCell::new((0, None)) };
}

/// Runs `body`; returns its panic, if it panics, without printing it.
pub(super) fn catch<T>(body: impl FnOnce() -> T) -> Result<T, Panic> {
    install_hook();
    CAUGHT.with_borrow_mut(|caught| caught.0 += 1);
    let result = panic::catch_unwind(AssertUnwindSafe(body));
    let location = CAUGHT.with_borrow_mut(|caught| {
        caught.0 -= 1;
        caught.1.take()
    });
    result.map_err(|payload| explain(payload.as_ref(), location))
}

/// Continues to unwind with a panic of another thread.
pub(super) fn resume(panic: Panic) -> ! {
    panic::resume_unwind(Box::new(panic))
}

fn explain(payload: &(dyn Any + Send), location: Option<String>) -> Panic {
    if let Some(panic) = payload.downcast_ref::<Panic>() {
        return panic.clone();
    }
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Panic {
        message: text.unwrap_or("(no message)").to_owned(),
        location: location.unwrap_or_else(|| "an unknown place".to_owned()),
    }
}

fn install_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let former = panic::take_hook();
        panic::set_hook(Box::new(move |information| {
            let is_caught = CAUGHT.with_borrow_mut(|caught| {
                if caught.0 > 0 {
                    caught.1 = information.location().map(|at| format!("{}:{}", at.file(), at.line()));
                }
                caught.0 > 0
            });
            if !is_caught {
                former(information);
            }
        }));
    });
}
