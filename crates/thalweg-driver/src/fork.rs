//! Detection of a driver that was inherited through `fork`.
//!
//! A child gets a copy of its parent's memory and none of its threads, and CUDA's contexts stay with the parent. In the
//! child, a driver that was opened before the fork would fail with misleading errors, or wait forever for a thread that
//! does not exist. So each driver remembers the process in which it was opened, and refuses to work in another.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Code, Error, Result};

/// The number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    // Only an atomic addition: little else is allowed in the child of a process with threads.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process in which an object was opened. Code that keeps state of a device outside of its driver (an allocator with a
/// C interface) checks it before it touches that state: in a child, threads that do not exist may hold its locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

impl Process {
    /// Returns this process.
    pub fn current() -> Self {
        static AT_FORK: Once = Once::new();
        AT_FORK.call_once(|| {
            // SAFETY: the handler is a function of this library, which is never unloaded, and does one atomic operation. A
            // failure (no memory) leaves forks unnoticed, which costs a clear message only.
            // (Miri knows no forks.)
            let _ = cfg!(miri) || unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0;
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether the calling process is a child of that process.
    #[inline]
    pub fn is_left(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }

    /// Returns an error of `call` ([`Code::Forked`]) if the calling process is a child of the process in which `what` was opened.
    ///
    /// # Errors
    /// [`Code::Forked`], as described.
    #[inline]
    pub fn check(self, call: &'static str, what: &str) -> Result<()> {
        if self.is_left() { Err(forked(call, what)) } else { Ok(()) }
    }
}

#[cold]
fn forked(call: &'static str, what: &str) -> Error {
    let detail = format!(
        "this process was forked from one that had initialised {what}, and cannot use it; start workers with the spawn \
         method, or fork before the first use of {what}"
    );
    Error::new(Code::Forked, call, detail)
}
