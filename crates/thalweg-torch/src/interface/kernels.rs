//! Kernels for PyTorch's operators.

use std::ffi::{c_char, c_void};

use super::{Write, give, on};
use crate::allocator::Allocator;
use crate::kernels;
use crate::status::{Status, text_of};

/// Registers kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_enable_kernels(
    allocator: *const Allocator,
    folder: *const c_char,
    key: *const c_char,
    operators: *const c_char,
    everywhere: u8,
) -> Status {
    let enable = |allocator: &Allocator| {
        // SAFETY: the header requires texts, and that the allocator is not closed any more.
        unsafe {
            let (folder, key) = (text_of("folder", folder)?, text_of("key", key)?);
            let operators = text_of("operators", operators)?;
            let allocator: &'static Allocator = &*std::ptr::from_ref(allocator);
            kernels::enable(allocator, folder, key, operators, everywhere != 0)
        }
    };
    // SAFETY: the header requires an allocator.
    unsafe { on("thalweg_enable_kernels", allocator, enable) }
}

/// Unregisters kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_disable_kernels(allocator: *const Allocator) -> Status {
    // SAFETY: the header requires an allocator.
    unsafe {
        on("thalweg_disable_kernels", allocator, |_| {
            kernels::disable();
            Ok(())
        })
    }
}

/// Writes the table of kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_kernels(
    allocator: *const Allocator,
    write: Write,
    user: *mut c_void,
) -> Status {
    // SAFETY: the header requires an allocator, and for a function that takes `user`.
    unsafe {
        on("thalweg_kernels", allocator, |_| {
            give(write, user, kernels::report().as_bytes());
            Ok(())
        })
    }
}
