//! Calls on pinned host memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cuda::objects::pinned::{PinnedBlock, bit_of};
use crate::cuda::state::CudaDriver;
use crate::{Code, DevicePointer, Error, HostFlags, HostMethod, HostPointer, ProcessMemory, Result};

impl CudaDriver {
    pub(in crate::cuda) fn host_allocate(&self, bytes: u64, flags: HostFlags) -> Result<HostPointer> {
        if bytes == 0 {
            return Err(Error::new(Code::InvalidValue, "cuMemHostAlloc", "0 bytes of pinned host memory"));
        }
        // The memory is for all devices, so any context will do: an existing one, if there is one.
        let device = self.devices.iter().find(|device| device.existing_context().is_some());
        self.enter(device.map_or(0, |device| device.index))?;
        let block = match flags.method {
            HostMethod::Allocate => PinnedBlock::allocate(&self.cuda, bytes, flags.write_combined)?,
            HostMethod::Register { .. } if flags.write_combined => {
                let detail = "memory of the process cannot be made write-combined: use HostMethod::Allocate";
                return Err(Error::new(Code::InvalidValue, "cuMemHostRegister", detail));
            }
            HostMethod::Register { prefault_threads } => {
                PinnedBlock::register(&self.cuda, bytes, prefault_threads)?
            }
        };
        let start = block.start;
        let mut live = self.pinned.live.write();
        live.insert(start, Arc::new(block));
        Ok(HostPointer::new(start))
    }

    pub(in crate::cuda) fn host_free(&self, pointer: HostPointer) -> Result<()> {
        let address = pointer.address();
        let mut block = {
            let mut live = self.pinned.live.write();
            live.remove(&address).ok_or_else(|| {
                let detail = format!("{pointer:?} is not the start of a live allocation of pinned memory");
                Error::new(Code::InvalidValue, "cuMemFreeHost", detail)
            })?
        };
        if Arc::get_mut(&mut block).is_none() || self.would_break_a_capture(&block) {
            // A call in flight or a captured graph shares the block; a block that left the table gets no new shares.
            self.pinned.retired.lock().push(block);
        } else if let Err(error) = self.free_unshared(&block) {
            let mut live = self.pinned.live.write();
            live.insert(address, block);
            return Err(error);
        }
        self.release_retired();
        Ok(())
    }

    pub(in crate::cuda) fn host_map(&self, _: &ProcessMemory) -> Result<DevicePointer> {
        Err(in_place("cuMemHostRegister"))
    }

    pub(in crate::cuda) fn host_unmap(&self, _: DevicePointer) -> Result<()> {
        Err(in_place("cuMemHostUnregister"))
    }

    pub(in crate::cuda) fn host_view(&self, _: u32, _: DevicePointer, _: u64) -> Result<u64> {
        Err(in_place("cuPointerGetAttribute"))
    }

    pub(in crate::cuda) fn host_unview(&self, _: DevicePointer, _: u64) -> Result<()> {
        Err(in_place("cuPointerGetAttribute"))
    }

    /// Returns whether freeing the block would wait for a context on which a stream captures, which breaks the capture in
    /// every mode.
    fn would_break_a_capture(&self, block: &PinnedBlock) -> bool {
        block.used_by.load(Ordering::Relaxed) != 0 && !self.capturing.lock().is_empty()
    }

    /// Frees a block that only the caller still refers to. First waits for the devices whose streams copied from or to the block.
    fn free_unshared(&self, block: &PinnedBlock) -> Result<()> {
        let used_by = block.used_by.load(Ordering::Relaxed);
        let has_context = || self.devices.iter().filter(|device| device.existing_context().is_some());
        for device in has_context().filter(|device| used_by & bit_of(device.index) != 0) {
            self.enter(device.index)?;
            // SAFETY: waits for the current context.
            let outcome = unsafe { self.cuda.table.context_synchronize() };
            self.cuda.check(outcome, || format!("device {}, which uses {:#x}", device.index, block.start))?;
        }
        // Any context will do for the rest.
        self.enter(has_context().next().map_or(0, |device| device.index))?;
        block.free(&self.cuda)
    }

    /// Frees the retired blocks that are no longer shared and whose devices may be waited for now.
    fn release_retired(&self) {
        let idle: Vec<Arc<PinnedBlock>> = {
            let mut retired = self.pinned.retired.lock();
            retired
                .extract_if(.., |block| Arc::get_mut(block).is_some() && !self.would_break_a_capture(block))
                .collect()
        };
        for block in idle {
            // The caller freed another block: an error of this one does not concern that call. It is tried again later.
            if self.free_unshared(&block).is_err() {
                self.pinned.retired.lock().push(block);
            }
        }
    }

    pub(in crate::cuda) fn host_read(&self, source: HostPointer, target: &mut [u8]) -> Result<()> {
        if target.is_empty() {
            return Ok(());
        }
        let (block, offset) = self.pinned.find(source, target.len() as u64, "host_read")?;
        block.read(offset, target);
        Ok(())
    }

    pub(in crate::cuda) fn host_write(&self, target: HostPointer, source: &[u8]) -> Result<()> {
        if source.is_empty() {
            return Ok(());
        }
        let (block, offset) = self.pinned.find(target, source.len() as u64, "host_write")?;
        block.write(offset, source);
        Ok(())
    }
}

/// Returns the refusal of a call by which the host and a device use the same memory.
fn in_place(call: &'static str) -> Error {
    let detail = "the host and a GPU do not use the same memory in place; copy it, or use the simulated GPU";
    Error::new(Code::NotSupported, call, detail)
}
