//! The exported functions. `include/thalweg_torch.h` documents them; here each function only converts its arguments and results.
//!
//! Every function calls `status::answer`, which turns errors and panics into statuses. Arguments from C are checked as far as
//! possible: null pointers, texts, device numbers. The rest is the contract of the header. In a forked child `on` returns an
//! error; functions that destructors call use `on_unless_forked`.
//!
//! # Names
//! All names begin with `thalweg_`. C sees objects that it does not own only during a call: texts and lists of any length are
//! written through a function of the caller's (`thalweg_write`).

#![expect(
    clippy::missing_safety_doc,
    reason = "what each function asks of its caller is said once, for C, in the header"
)]

/// Defines exported functions: `on(allocator) name(arguments) { … }`, where the body runs by [`on`], or a function like it, on the
/// allocator that the exported function takes first.
macro_rules! exports {
    ($($(#[$doc:meta])* $on:ident($($seen:tt)*) $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                allocator: Option<&$crate::allocator::Allocator>
                $(, $argument: $type)*
            ) -> $crate::status::Status {
                exports!(@$on stringify!($name), allocator, ($($seen)*) [$($argument)*] $body)
            }
        )*
    };
    (@with_device $name:expr, $allocator:ident, ($($seen:tt)*) [$device:ident $($argument:ident)*] $body:block) => {
        with_device($name, $allocator, $device, |$($seen)*| $body)
    };
    (@$on:ident $name:expr, $allocator:ident, ($($seen:tt)*) $arguments:tt $body:block) => {
        $on($name, $allocator, |$($seen)*| $body)
    };
}

mod kernels;
mod memory;
mod pools;
mod sanitizer;
mod sharing;
mod watch;

pub use kernels::*;
pub use memory::*;
pub use pools::*;
pub use sanitizer::*;
pub use sharing::*;
pub use watch::*;

pub use crate::allocator::LiveBlockC;
pub use crate::open_device::Checkpoint;
pub use crate::snapshot::{AnnotationC, BlockC, EventC, SegmentC, VisitorC};
pub use crate::statistics::{ByPoolC, StatisticC, StatisticsC};

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use crate::allocator::{Allocator, Source};
use crate::sanitizer::Sanitizer;
use crate::status::{Error, Result, Status, answer, last_message, text_of};
use thalweg_runtime::{invalid, refuse, refuse_if};

/// `THALWEG_ABI_VERSION`: incremented whenever the meaning of a part of the header changes.
pub const ABI_VERSION: u32 = 2;

/// `thalweg_write`: a function that accepts a piece of a text or file.
pub type Write = unsafe extern "C" fn(*mut c_void, *const u8, usize);

/// The caller's data, which is passed to the caller's function on any thread. Another function of the caller's drops it.
pub(crate) struct User {
    pointer: *mut c_void,
    drop: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the header requires that it can be used on any thread, by several at a time.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl User {
    fn new(pointer: *mut c_void, drop: Option<unsafe extern "C" fn(*mut c_void)>) -> Self {
        Self { pointer, drop }
    }

    fn pointer(&self) -> *mut c_void {
        self.pointer
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: the header guarantees that it is called once, with this pointer.
            unsafe { drop(self.pointer) };
        }
    }
}

/// Runs the body of the exported function `call` on an allocator, which is `None` for a null pointer; returns an error in a forked
/// child.
#[inline]
pub(crate) fn on(
    call: &'static str,
    allocator: Option<&Allocator>,
    body: impl FnOnce(&Allocator) -> Result<()>,
) -> Status {
    run(call, allocator, body, || Err(Error::forked(call)))
}

/// Runs a call that destructors make. In a forked child, which inherits its parent's objects, it does nothing.
#[inline]
pub(crate) fn on_unless_forked(
    call: &'static str,
    allocator: Option<&Allocator>,
    body: impl FnOnce(&Allocator) -> Result<()>,
) -> Status {
    run(call, allocator, body, || Ok(()))
}

#[inline]
fn run(
    call: &'static str,
    allocator: Option<&Allocator>,
    body: impl FnOnce(&Allocator) -> Result<()>,
    forked: impl FnOnce() -> Result<()>,
) -> Status {
    answer(call, || {
        let allocator = allocator.ok_or_else(|| invalid!("{call} was given no allocator"))?;
        if allocator.is_forked() { forked() } else { body(allocator) }
    })
}

/// Writes a result to the caller's location.
///
/// # Safety
/// `place` is null or can be written to.
#[inline]
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<()> {
    refuse_if!(place.is_null(), "the place for the result is a null pointer");
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Passes a text or a file to the caller.
///
/// # Safety
/// `write` can be called with `user`.
pub(crate) unsafe fn give(write: Write, user: *mut c_void, bytes: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { write(user, bytes.as_ptr(), bytes.len()) };
}

/// Returns the version of the header that this library was built with.
#[unsafe(no_mangle)]
pub extern "C" fn thalweg_abi_version() -> u32 {
    ABI_VERSION
}

/// Returns the version of the library, as a text.
#[unsafe(no_mangle)]
pub extern "C" fn thalweg_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the calling thread's last message.
#[unsafe(no_mangle)]
pub extern "C" fn thalweg_error_message() -> *const c_char {
    last_message()
}

/// Makes an allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_open(
    kind: *const c_char,
    settings: *const c_char,
    allocator: *mut *mut Allocator,
) -> Status {
    answer("thalweg_open", || {
        // SAFETY: the header requires texts.
        let (kind, settings) = unsafe { (text_of("kind", kind)?, text_of("settings", settings)?) };
        let source = match kind {
            "cuda" => Source::Cuda,
            "sim" => Source::Sim,
            "cuda+sanitizer" => Source::Sanitized(Arc::new(Sanitizer::cuda())),
            "sim+sanitizer" => Source::Sanitized(Arc::new(Sanitizer::sim())),
            other => {
                refuse!(
                    "there are no devices of kind '{other}': `cuda` or `sim`, or one of them with `+sanitizer` behind it"
                );
            }
        };
        refuse_if!(allocator.is_null(), "the place for the allocator is a null pointer");
        let opened = Box::into_raw(Box::new(Allocator::new(source, settings)?));
        // SAFETY: the header requires a place.
        unsafe { put(allocator, opened) }
    })
}

/// Closes an allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_close(allocator: *mut Allocator) -> Status {
    answer("thalweg_close", || {
        if !allocator.is_null() {
            // SAFETY: the header requires that `thalweg_open` returned it, and that nothing uses it any more.
            drop(unsafe { Box::from_raw(allocator) });
        }
        Ok(())
    })
}
