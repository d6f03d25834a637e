//! Kernels for PyTorch's operators.

use std::ffi::{c_char, c_void};

use super::{Write, give, on};
use crate::allocator::Allocator;
use crate::kernels;
use crate::status::text_of;

exports! {
    /// Registers kernels.
    on(allocator) thalweg_enable_kernels(folder: *const c_char, key: *const c_char, operators: *const c_char, everywhere: u8) {
        // SAFETY: the header requires texts, and that the allocator is not closed any more.
        unsafe {
            let (folder, key) = (text_of("folder", folder)?, text_of("key", key)?);
            let operators = text_of("operators", operators)?;
            let allocator: &'static Allocator = &*std::ptr::from_ref(allocator);
            kernels::enable(allocator, folder, key, operators, everywhere != 0)
        }
    }

    /// Unregisters kernels.
    on(_) thalweg_disable_kernels() {
        kernels::disable();
        Ok(())
    }

    /// Writes the table of kernels.
    on(_) thalweg_kernels(write: Write, user: *mut c_void) {
        // SAFETY: the header requires a function that takes `user`.
        unsafe { give(write, user, kernels::report().as_bytes()) };
        Ok(())
    }
}
