//! Memory that NCCL allocates, and memory that is registered with communicators, which its kernels access from other GPUs
//! without intermediate copies.

use super::collective::aborted;
use super::version::Feature;
use super::{Communicator, Nccl, Registered, SYMMETRIC};
use crate::collective::Registration;
use crate::cuda::memory::{non_zero, size};
use crate::cuda::objects::ranges::{Range, RangeKind};
use crate::cuda::state::CudaDriver;
use crate::{Code, CommunicatorHandle, DevicePointer, Error, Result};

impl CudaDriver {
    pub(in crate::cuda) fn memory_allocate_collective(
        &self,
        device: u32,
        bytes: u64,
    ) -> Result<DevicePointer> {
        let call = "ncclMemAlloc";
        let nccl = self.nccl()?;
        non_zero(bytes, call)?;
        let what = || format!("{bytes} bytes on device {device}");
        nccl.version.require(Feature::Registration, call, &what())?;
        self.enter(device)?;
        let _relaxed = self.cuda.relaxed();
        let mut pointer = 0;
        // SAFETY: writes one address; the device's context is current, and the library allocates in the current one.
        let outcome = unsafe { nccl.table.memory_allocate(&raw mut pointer, size(bytes)) };
        if let Err(error) = nccl.check(outcome, what) {
            // The library only reports that CUDA failed.
            let is_short = self.memory_info(device).is_ok_and(|info| info.free_bytes < bytes);
            let code = if is_short { Code::OutOfMemory } else { error.code() };
            return Err(Error::new(code, call, error.detail().to_owned()));
        }
        self.ranges.insert(pointer, Range { bytes, kind: RangeKind::Collective, device });
        Ok(DevicePointer::new(pointer))
    }

    /// Frees memory that NCCL allocated, with the context of its device current.
    pub(in crate::cuda) fn memory_free_collective(&self, address: u64) -> Result<()> {
        let nccl = self.nccl()?;
        // The library frees by unmapping, which does not wait for work. SAFETY: waits for the current context.
        let waited = unsafe { self.cuda.table.context_synchronize() };
        self.cuda.check(waited, || format!("before memory at {address:#x} is freed"))?;
        let _relaxed = self.cuda.relaxed();
        // SAFETY: `memory_allocate_collective` returned this address, and it was in the table until now: it is freed once.
        let outcome = unsafe { nccl.table.memory_free(address) };
        nccl.check(outcome, || format!("memory at {address:#x}"))
    }

    pub(in crate::cuda) fn memory_register(&self, registration: &Registration) -> Result<()> {
        let call = if registration.symmetric { "ncclCommWindowRegister" } else { "ncclCommRegister" };
        let &Registration { communicator, pointer, bytes, symmetric, label } = registration;
        let nccl = self.nccl()?;
        let rank = self.communicator(communicator.raw(), call)?;
        nccl.version.require(
            if symmetric { Feature::Symmetric } else { Feature::Registration },
            call,
            &label,
        )?;
        non_zero(bytes, call)?;
        self.check_device_range(pointer.address(), bytes, call)?;
        self.enter(rank.info.device)?;
        let mut registrations = rank.in_use.lock();
        if rank.is_over() {
            return Err(aborted(communicator.raw(), call));
        }
        let start = pointer.address();
        let before = registrations.range(..start.saturating_add(bytes)).next_back();
        if let Some((other, there)) = before.filter(|(other, there)| **other + there.bytes > start) {
            let detail = format!(
                "`{label}`: {bytes} bytes at {pointer:?} overlap the {} bytes at {other:#x}, which are registered with rank {}",
                there.bytes, rank.info.rank
            );
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        let _relaxed = self.cuda.relaxed();
        let mut raw = 0;
        // SAFETY: the communicator is alive, and only this thread uses it; the range is device memory; there is room for
        // the result.
        let outcome = unsafe {
            match symmetric {
                true => nccl.table.window_register(rank.raw, start, size(bytes), &raw mut raw, SYMMETRIC),
                false => nccl.table.register(rank.raw, start, size(bytes), &raw mut raw),
            }
        };
        nccl.check_ranks(outcome, || format!("{bytes} bytes at {pointer:?}, for {label}"))?;
        if symmetric && raw == 0 {
            let detail = format!(
                "`{label}`: NCCL makes no symmetric memory of {bytes} bytes at {pointer:?}: the ranks' GPUs do not all reach each other's memory. Register it without"
            );
            return Err(Error::new(Code::NotSupported, call, detail));
        }
        registrations.insert(start, Registered { bytes, raw, symmetric });
        Ok(())
    }

    pub(in crate::cuda) fn memory_deregister(
        &self,
        communicator: CommunicatorHandle,
        pointer: DevicePointer,
    ) -> Result<()> {
        let call = "ncclCommDeregister";
        let nccl = self.nccl()?;
        let rank = self.communicator(communicator.raw(), call)?;
        self.enter(rank.info.device)?;
        let mut registrations = rank.in_use.lock();
        if rank.is_over() {
            return Err(aborted(communicator.raw(), call));
        }
        let Some(registered) = registrations.remove(&pointer.address()) else {
            let detail = format!("nothing at {pointer:?} is registered with rank {}", rank.info.rank);
            return Err(Error::new(Code::InvalidValue, call, detail));
        };
        self.give_up_registration(nccl, &rank, pointer.address(), &registered)
    }

    /// Removes a registration. Only the calling thread uses the communicator, and the context of its device is current.
    pub(in crate::cuda) fn give_up_registration(
        &self,
        nccl: &Nccl,
        rank: &Communicator,
        pointer: u64,
        registered: &Registered,
    ) -> Result<()> {
        let _relaxed = self.cuda.relaxed();
        // SAFETY: the caller's promise; the registration is this communicator's and was removed from its table: it is
        // undone once.
        let outcome = unsafe {
            match registered.symmetric {
                true => nccl.table.window_deregister(rank.raw, registered.raw),
                false => nccl.table.deregister(rank.raw, registered.raw),
            }
        };
        nccl.check(outcome, || format!("{} bytes at {pointer:#x}", registered.bytes))
    }
}
