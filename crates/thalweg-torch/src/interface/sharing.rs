//! Memory that is shared with other processes, and theirs, in PyTorch's handle format.

use std::ffi::c_void;
use std::sync::Arc;

use thalweg_memory::{MemoryHandle, SharedMemory};

use super::{Write, give, on, on_unless_forked, put};
use crate::status::Error;
use thalweg_runtime::{invalid, refuse};

/// `thalweg_shared`: memory of another process that is open here.
pub struct Shared {
    device: i32,
    memory: Arc<SharedMemory>,
}

exports! {
    /// Exports a block.
    on(allocator) thalweg_share(address: u64, write: Write, user: *mut c_void, offset_bytes: *mut u64) {
        let _context = allocator.keep_context();
        let exported = |live: &crate::live::Live| (live.block.share(), address - live.block.address());
        let (shared, inside) = allocator
            .live
            .with(address, exported)
            .ok_or_else(|| invalid!("{address:#x} is in no live block of this allocator"))?;
        let shared = shared?;
        // SAFETY: the header requires a function that takes `user`, and a place.
        unsafe {
            give(write, user, &shared.memory.encode());
            put(offset_bytes, shared.offset_bytes + inside)
        }
    }

    /// Opens memory that another process exported.
    on(allocator) thalweg_open_shared(device: i32, bytes: *const u8, count: usize, shared: *mut *mut Shared, address: *mut u64) {
        if bytes.is_null() || shared.is_null() {
            refuse!("the handle, or the place for the result, is a null pointer");
        }
        // SAFETY: the header requires this number of bytes.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, count) };
        let handle = MemoryHandle::decode(bytes).map_err(|error| Error::invalid(error.to_string()))?;
        let memory =
            allocator.with_device(device, |device| Ok(device.allocator().open_shared(&handle)?))?;
        // SAFETY: the header requires places.
        unsafe {
            put(address, memory.address())?;
            put(shared, Box::into_raw(Box::new(Shared { device, memory })))
        }
    }

    /// Closes memory of another process.
    on_unless_forked(allocator) thalweg_close_shared(shared: *mut Shared) {
        if shared.is_null() {
            return Ok(());
        }
        // SAFETY: the header requires that `thalweg_open_shared` returned it, and that it is closed once.
        let Shared { device, memory } = *unsafe { Box::from_raw(shared) };
        allocator.with_device(device, |device| {
            device.close_shared(memory);
            Ok(())
        })
    }
}
