//! Pinned host memory, and the host's access to it.
//!
//! A block is shared by the table of live blocks, by the calls that are using it, and by captured graphs that copy from or
//! to it. `host_free` removes it from the table. The memory is freed when the last of the others drops its share, so it
//! exists for a call in flight and for a later replay. Before it is freed, every device whose streams copied from or to it
//! is waited for: the driver is documented to do so only for the current device, and not even there for memory that it did
//! not allocate.
//!
//! The host touches a block through relaxed atomics only, because a copy engine or another thread may touch the same bytes
//! at the same time: such a race results in stale or torn bytes, but not in undefined behaviour. (Two threads may make
//! accesses of different widths at the ends of a range. Rust does not define this yet; the compiler and the processor treat
//! it as any other torn access.)

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use thalweg_lock::{Mutex, RwLock};

use crate::anonymous::Anonymous;
use crate::cuda::context::Cuda;
use crate::cuda::sys;
use crate::{Code, Error, HostPointer, Result};

/// One allocation of pinned memory. Dropping it unpins nothing: see [`PinnedBlock::free`].
#[derive(Debug)]
pub(in crate::cuda) struct PinnedBlock {
    pub(in crate::cuda) start: u64,
    bytes: u64,
    /// Memory of the process that the driver pinned; `None` if the driver allocated the block.
    registered: Option<Anonymous>,
    /// One bit per device whose streams copied from or to the block; the last bit stands for all further devices.
    pub(in crate::cuda) used_by: AtomicU64,
}

impl PinnedBlock {
    fn new(start: u64, bytes: u64, registered: Option<Anonymous>) -> Self {
        Self { start, bytes, registered, used_by: AtomicU64::new(0) }
    }

    /// Records that a stream of the device is about to copy from or to the block.
    #[inline]
    pub(in crate::cuda) fn note_use(&self, device: u32) {
        let bit = bit_of(device);
        if self.used_by.load(Ordering::Relaxed) & bit == 0 {
            self.used_by.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Allocates in the current context, for all devices. Zeroed.
    pub(in crate::cuda) fn allocate(cuda: &Cuda, bytes: u64, write_combined: bool) -> Result<Self> {
        let mut pointer: *mut c_void = std::ptr::null_mut();
        let flags = sys::HOST_PORTABLE | if write_combined { sys::HOST_WRITE_COMBINED } else { 0 };
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: writes one pointer.
        let outcome = unsafe { cuda.table.host_allocate(&raw mut pointer, size, flags) };
        cuda.check(outcome, || format!("{bytes} bytes of pinned host memory"))?;
        // SAFETY: the driver returned `size` bytes at this address, and nothing else knows it yet.
        unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, size) };
        Ok(Self::new(pointer as u64, bytes, None))
    }

    /// Allocates memory from the system, lets several threads touch it, and pins it, for all devices. Zeroed.
    pub(in crate::cuda) fn register(cuda: &Cuda, bytes: u64, prefault_threads: u32) -> Result<Self> {
        let what = || format!("{bytes} bytes of pinned host memory, touched by {prefault_threads} threads");
        let mut memory = Anonymous::new(bytes).map_err(|error| {
            Error::new(Code::OutOfMemory, "cuMemHostRegister", format!("{}: {error}", what()))
        })?;
        memory.prefault(prefault_threads);
        let pointer = memory.pointer();
        // SAFETY: the range is our own mapping, which stays until the driver has unpinned it.
        let outcome =
            unsafe { cuda.table.host_register(pointer.cast(), bytes as usize, sys::HOST_REGISTER_PORTABLE) };
        cuda.check(outcome, what)?;
        Ok(Self::new(pointer as u64, bytes, Some(memory)))
    }

    /// Returns the address for the driver.
    pub(in crate::cuda) const fn pointer(&self) -> *mut c_void {
        self.start as *mut c_void
    }

    pub(in crate::cuda) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Frees the memory. The caller has the only share of the block, drops it on success, and has waited for the devices
    /// that use it.
    pub(in crate::cuda) fn free(&self, cuda: &Cuda) -> Result<()> {
        // SAFETY: `host_allocate` returned this pointer. No host access or captured graph uses the block, because nothing
        // else has a share of it, and queued copies are done.
        let outcome = unsafe {
            match self.registered {
                None => cuda.table.host_free(self.pointer()),
                Some(_) => cuda.table.host_unregister(self.pointer()),
            }
        };
        cuda.check(outcome, || format!("{} bytes at {:#x}", self.bytes, self.start))
    }

    /// Copies out of the block, which must contain the range.
    pub(in crate::cuda) fn read(&self, offset: u64, target: &mut [u8]) {
        self.assert_inside(offset, target.len());
        let mut address = self.start + offset;
        let head = ((8 - address % 8) % 8).min(target.len() as u64) as usize;
        let (head, rest) = target.split_at_mut(head);
        let (words, tail) = rest.as_chunks_mut::<8>();
        for byte in head {
            *byte = self.byte(address).load(Ordering::Relaxed);
            address += 1;
        }
        for word in words {
            *word = self.word(address).load(Ordering::Relaxed).to_ne_bytes();
            address += 8;
        }
        for byte in tail {
            *byte = self.byte(address).load(Ordering::Relaxed);
            address += 1;
        }
    }

    /// Copies into the block, which must contain the range.
    pub(in crate::cuda) fn write(&self, offset: u64, source: &[u8]) {
        self.assert_inside(offset, source.len());
        let mut address = self.start + offset;
        let head = ((8 - address % 8) % 8).min(source.len() as u64) as usize;
        let (head, rest) = source.split_at(head);
        let (words, tail) = rest.as_chunks::<8>();
        for byte in head {
            self.byte(address).store(*byte, Ordering::Relaxed);
            address += 1;
        }
        for word in words {
            self.word(address).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            address += 8;
        }
        for byte in tail {
            self.byte(address).store(*byte, Ordering::Relaxed);
            address += 1;
        }
    }

    /// Copies from one block to another, or within one.
    pub(in crate::cuda) fn copy(
        source: &Self,
        source_offset: u64,
        target: &Self,
        target_offset: u64,
        bytes: u64,
    ) {
        let mut buffer = [0_u8; 4096];
        let mut done = 0;
        // Overlapping ranges are copied as the copy engine does: front to back.
        while done < bytes {
            let step = (bytes - done).min(buffer.len() as u64);
            let part = &mut buffer[..step as usize];
            source.read(source_offset + done, part);
            target.write(target_offset + done, part);
            done += step;
        }
    }

    fn assert_inside(&self, offset: u64, bytes: usize) {
        assert!(
            offset <= self.bytes && bytes as u64 <= self.bytes - offset,
            "a range outside its pinned block"
        );
    }

    fn byte(&self, address: u64) -> &AtomicU8 {
        // SAFETY: `assert_inside` has checked the range of `address`; the block is mapped while `self` is borrowed (it is
        // freed only when nothing holds it), and all of the host's accesses to it are atomic.
        unsafe { AtomicU8::from_ptr(address as *mut u8) }
    }

    fn word(&self, address: u64) -> &AtomicU64 {
        debug_assert_eq!(address % 8, 0);
        // SAFETY: as in `byte`; all eight bytes are in the range, and the address is a multiple of 8.
        unsafe { AtomicU64::from_ptr(address as *mut u64) }
    }
}

pub(in crate::cuda) const fn bit_of(device: u32) -> u64 {
    1 << if device < 63 { device } else { 63 }
}

/// The live blocks by address, and those that were freed while in use.
#[derive(Default)]
pub(in crate::cuda) struct Pinned {
    pub(in crate::cuda) live: RwLock<BTreeMap<u64, Arc<PinnedBlock>>>,
    pub(in crate::cuda) retired: Mutex<Vec<Arc<PinnedBlock>>>,
}

impl Pinned {
    /// Returns the block that contains `[pointer, pointer + bytes)`, and the offset in it.
    pub(in crate::cuda) fn find(
        &self,
        pointer: HostPointer,
        bytes: u64,
        call: &'static str,
    ) -> Result<(Arc<PinnedBlock>, u64)> {
        let live = self.live.read();
        let address = pointer.address();
        let block = live.range(..=address).next_back().map(|(_, block)| block);
        match block {
            Some(block)
                if address - block.start < block.bytes && bytes <= block.bytes - (address - block.start) =>
            {
                Ok((Arc::clone(block), address - block.start))
            }
            Some(block) if address - block.start < block.bytes => {
                let (start, length) = (block.start, block.bytes);
                let detail = format!(
                    "{bytes} bytes at {address:#x} do not fit: the pinned allocation at {start:#x} has {length}"
                );
                Err(Error::new(Code::InvalidValue, call, detail))
            }
            _ => {
                let detail = format!("{address:#x} lies in no live allocation of pinned memory");
                Err(Error::new(Code::InvalidValue, call, detail))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a block over memory of the test's own.
    fn block(memory: &mut [u64]) -> PinnedBlock {
        PinnedBlock::new(memory.as_mut_ptr() as u64, memory.len() as u64 * 8, None)
    }

    #[test]
    fn every_offset_and_length_is_copied_exactly() {
        let mut memory = [0_u64; 5];
        let block = block(&mut memory);
        for offset in 0..17 {
            for length in 0..23_u8 {
                block.write(0, &[0xEE; 40]);
                let source: Vec<u8> = (0..length).map(|byte| byte + 1).collect();
                block.write(offset, &source);
                let mut target = vec![0; source.len()];
                block.read(offset, &mut target);
                assert_eq!(target, source, "offset {offset}");
                let mut all = [0; 40];
                block.read(0, &mut all);
                let touched = all.iter().filter(|byte| **byte != 0xEE).count();
                assert_eq!(touched, source.len(), "offset {offset}, length {length}");
            }
        }
    }

    #[test]
    fn the_devices_that_use_a_block_are_noted() {
        let mut memory = [0_u64; 1];
        let block = block(&mut memory);
        [3, 0, 3, 63, 200].into_iter().for_each(|device| block.note_use(device));
        let noted: Vec<u32> =
            (0..300).filter(|&device| block.used_by.load(Ordering::Relaxed) & bit_of(device) != 0).collect();
        assert_eq!(noted, [0, 3].into_iter().chain(63..300).collect::<Vec<u32>>());
    }

    #[test]
    #[should_panic(expected = "outside its pinned block")]
    fn a_range_outside_is_our_own_bug() {
        let mut memory = [0_u64; 2];
        block(&mut memory).read(9, &mut [0; 8]);
    }
}
