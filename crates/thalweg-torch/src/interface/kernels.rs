//! Kernels for PyTorch's operators.

use std::ffi::{c_char, c_void};

use super::{Write, give, on};
use crate::allocator::Allocator;
use crate::kernels;
use crate::status::{Status, text_of};

/// Registers kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_enable_kernels(
    allocator: Option<&Allocator>,
    folder: *const c_char,
    key: *const c_char,
    operators: *const c_char,
    everywhere: u8,
) -> Status {
    on("thalweg_enable_kernels", allocator, |allocator| {
        // SAFETY: the header requires texts, and that the allocator is not closed any more.
        unsafe {
            let (folder, key) = (text_of("folder", folder)?, text_of("key", key)?);
            let operators = text_of("operators", operators)?;
            let allocator: &'static Allocator = &*std::ptr::from_ref(allocator);
            kernels::enable(allocator, folder, key, operators, everywhere != 0)
        }
    })
}

/// Unregisters kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_disable_kernels(allocator: Option<&Allocator>) -> Status {
    on("thalweg_disable_kernels", allocator, |_| {
        kernels::disable();
        Ok(())
    })
}

/// Writes the table of kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_kernels(
    allocator: Option<&Allocator>,
    write: Write,
    user: *mut c_void,
) -> Status {
    on("thalweg_kernels", allocator, |_| {
        // SAFETY: the header requires a function that takes `user`.
        unsafe { give(write, user, kernels::report().as_bytes()) };
        Ok(())
    })
}
