//! The host's memory for the simulated memory under Miri, which supports neither files without a name nor mappings of them:
//! one allocation, the window. There is no area, so nothing can be mapped a second time.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::io;
use std::ptr::NonNull;

/// The unit of simulated physical memory, as in the `backing` module for other hosts.
pub(crate) const PAGE_BYTES: u64 = 64 << 10;

/// The simulated devices' memory on the host: one allocation.
#[derive(Debug)]
pub(crate) struct Backing {
    base: NonNull<u8>,
    devices: u32,
    device_bytes: u64,
}

// SAFETY: plain memory, as in the other `backing`.
unsafe impl Send for Backing {}
// SAFETY: as for `Send`; the methods that take `&self` compute addresses or refuse.
unsafe impl Sync for Backing {}

impl Backing {
    pub(crate) fn new(devices: u32, device_bytes: u64) -> io::Result<Self> {
        assert!(device_bytes > 0 && device_bytes.is_multiple_of(PAGE_BYTES), "whole pages");
        let refused = || io::Error::from(io::ErrorKind::OutOfMemory);
        let layout = layout(devices, device_bytes).ok_or_else(refused)?;
        // SAFETY: the size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Self { base, devices, device_bytes })
    }

    fn bytes(&self) -> u64 {
        self.device_bytes * u64::from(self.devices)
    }

    pub(crate) fn window_offset(&self, device: u32) -> u64 {
        u64::from(device) * self.device_bytes
    }

    pub(crate) fn area(&self) -> (u64, u64) {
        (self.bytes(), 0)
    }

    pub(crate) fn pointer(&self, offset: u64) -> *mut u8 {
        assert!(offset < self.bytes(), "offset {offset:#x} is outside the window");
        // SAFETY: the offset is inside the allocation.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    pub(crate) fn map(&self, _offset: u64, _bytes: u64, _device: u32, _file_offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn unmap(&self, _offset: u64, _bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn has_device(&self, device: u32) -> bool {
        device < self.devices
    }

    pub(crate) fn is_of(&self, devices: u32, device_bytes: u64) -> bool {
        (self.devices, self.device_bytes) == (devices, device_bytes)
    }

    pub(crate) fn renew(&mut self, device: u32, file_offset: u64, bytes: u64, _large: u64) -> io::Result<()> {
        if bytes > 0 {
            let start = self.pointer(self.window_offset(device) + file_offset);
            // SAFETY: the range is in the allocation, which is borrowed exclusively.
            unsafe { std::ptr::write_bytes(start, 0, bytes as usize) };
        }
        Ok(())
    }

    /// Does nothing: the memory is kept.
    pub(crate) fn discard(&self, _device: u32, _file_offset: u64, _bytes: u64) {}
}

impl Drop for Backing {
    fn drop(&mut self) {
        let layout = layout(self.devices, self.device_bytes).expect("it was allocated with it");
        // SAFETY: the allocation of `new`; pointers into it are only used while the `Backing` lives.
        unsafe { dealloc(self.base.as_ptr(), layout) };
    }
}

fn layout(devices: u32, device_bytes: u64) -> Option<Layout> {
    let bytes = device_bytes.checked_mul(u64::from(devices))?;
    Layout::from_size_align(usize::try_from(bytes).ok()?, PAGE_BYTES as usize).ok()
}

pub(crate) fn anonymous_file(_bytes: u64) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}
