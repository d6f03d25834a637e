//! Memory that is shared with other processes, and theirs, in PyTorch's handle format.

use std::ffi::c_void;
use std::sync::Arc;

use thalweg_memory::{MemoryHandle, SharedMemory};

use super::{Write, give, on, on_unless_forked, put};
use crate::allocator::Allocator;
use crate::status::{Error, Status};

/// `thalweg_shared`: memory of another process that is open here.
pub struct Shared {
    device: i32,
    memory: Arc<SharedMemory>,
}

/// Exports a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_share(
    allocator: Option<&Allocator>,
    address: u64,
    write: Write,
    user: *mut c_void,
    offset_bytes: *mut u64,
) -> Status {
    on("thalweg_share", allocator, |allocator| {
        let _context = allocator.keep_context();
        let exported = |live: &crate::live::Live| (live.block.share(), address - live.block.address());
        let (shared, inside) = allocator
            .live
            .with(address, exported)
            .ok_or_else(|| Error::invalid(format!("{address:#x} is in no live block of this allocator")))?;
        let shared = shared?;
        // SAFETY: the header requires a function that takes `user`, and a place.
        unsafe {
            give(write, user, &shared.memory.encode());
            put(offset_bytes, shared.offset_bytes + inside)
        }
    })
}

/// Opens memory that another process exported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_open_shared(
    allocator: Option<&Allocator>,
    device: i32,
    bytes: *const u8,
    count: usize,
    shared: *mut *mut Shared,
    address: *mut u64,
) -> Status {
    on("thalweg_open_shared", allocator, |allocator| {
        if bytes.is_null() || shared.is_null() {
            return Err(Error::invalid("the handle, or the place for the result, is a null pointer"));
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
    })
}

/// Closes memory of another process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_close_shared(allocator: Option<&Allocator>, shared: *mut Shared) -> Status {
    on_unless_forked("thalweg_close_shared", allocator, |allocator| {
        if shared.is_null() {
            return Ok(());
        }
        // SAFETY: the header requires that `thalweg_open_shared` returned it, and that it is closed once.
        let Shared { device, memory } = *unsafe { Box::from_raw(shared) };
        allocator.with_device(device, |device| {
            device.close_shared(memory);
            Ok(())
        })
    })
}
