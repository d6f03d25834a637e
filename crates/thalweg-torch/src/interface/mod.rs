//! The exported functions. `include/thalweg_torch.h` is their documentation; here each is its translation, and no more.
//!
//! Every function is a call of `status::answer`: an error becomes a status, a panic too. What C gives is
//! checked as far as it can be: null pointers, texts, numbers of devices. The rest is the contract of the header. In a forked child
//! `on` refuses; what destructors call goes by `on_unless_forked`.
//!
//! # Names
//! `thalweg_` stands before all of them. What C does not own it only sees during a call: texts and lists of any length are
//! written through a function of the caller's (`thalweg_write`).

#![expect(
    clippy::missing_safety_doc,
    reason = "what each function asks of its caller is said once, for C, in the header"
)]

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

/// `THALWEG_ABI_VERSION`: rises whenever something of the header changes its meaning.
pub const ABI_VERSION: u32 = 2;

/// `thalweg_write`: takes a piece of a text or file.
pub type Write = unsafe extern "C" fn(*mut c_void, *const u8, usize);

/// Something of the caller's that a function of the caller's is given, on any thread. It is dropped by a function of the
/// caller's, too.
pub(crate) struct User {
    pointer: *mut c_void,
    drop: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the header asks that it can be used on any thread, by several at a time.
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
            // SAFETY: the header says that it is called once, with this pointer.
            unsafe { drop(self.pointer) };
        }
    }
}

/// Runs the body of the exported function `call` on an allocator; refuses in a forked child.
///
/// # Safety
/// `allocator` is null or came from `thalweg_open` and was not closed.
#[inline]
pub(crate) unsafe fn on(
    call: &'static str,
    allocator: *const Allocator,
    body: impl FnOnce(&Allocator) -> Result<()>,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(call, allocator, body, || Err(Error::forked(call))) }
}

/// Runs a call that destructors make: in a forked child, which inherits its parent's objects, it does nothing.
///
/// # Safety
/// As for [`on`].
#[inline]
pub(crate) unsafe fn on_unless_forked(
    call: &'static str,
    allocator: *const Allocator,
    body: impl FnOnce(&Allocator) -> Result<()>,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { run(call, allocator, body, || Ok(())) }
}

#[inline]
unsafe fn run(
    call: &'static str,
    allocator: *const Allocator,
    body: impl FnOnce(&Allocator) -> Result<()>,
    forked: impl FnOnce() -> Result<()>,
) -> Status {
    answer(call, || {
        // SAFETY: the caller's promise.
        let allocator = unsafe { allocator.as_ref() };
        let allocator = allocator.ok_or_else(|| Error::invalid(format!("{call} was given no allocator")))?;
        if allocator.is_forked() { forked() } else { body(allocator) }
    })
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// `place` is null or can be written to.
#[inline]
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(Error::invalid("the place for the result is a null pointer"));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Gives the caller a text or a file.
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
        // SAFETY: the header asks for texts.
        let (kind, settings) = unsafe { (text_of("kind", kind)?, text_of("settings", settings)?) };
        let source = match kind {
            "cuda" => Source::Cuda,
            "sim" => Source::Sim,
            "cuda+sanitizer" => Source::Sanitized(Arc::new(Sanitizer::cuda())),
            "sim+sanitizer" => Source::Sanitized(Arc::new(Sanitizer::sim())),
            other => {
                return Err(Error::invalid(format!(
                    "there are no devices of kind '{other}': `cuda` or `sim`, or one of them with `+sanitizer` behind it"
                )));
            }
        };
        if allocator.is_null() {
            return Err(Error::invalid("the place for the allocator is a null pointer"));
        }
        let opened = Box::into_raw(Box::new(Allocator::new(source, settings)?));
        // SAFETY: the header asks for a place.
        unsafe { put(allocator, opened) }
    })
}

/// Gives an allocator up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_close(allocator: *mut Allocator) -> Status {
    answer("thalweg_close", || {
        if !allocator.is_null() {
            // SAFETY: the header says that it came from `thalweg_open`, and that nothing uses it any more.
            drop(unsafe { Box::from_raw(allocator) });
        }
        Ok(())
    })
}
