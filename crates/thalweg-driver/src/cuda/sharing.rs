//! Memory of several processes: physical memory as a file or a fabric handle, plain memory as an IPC handle.
//!
//! A handle from another process does not contain the size or the device of the memory in a form that this process could
//! rely on. The device is queried from the driver. The size of physical memory comes from the caller, and the driver
//! refuses a wrong one when the memory is mapped.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::objects::Physical;
use super::objects::ranges::{Range, RangeKind};
use super::state::CudaDriver;
use super::sys::{self, AllocationProperties, RawIpcHandle, RawPhysical, RawPointer, handle_type_number};
use crate::{
    Code, DevicePointer, Error, HandleType, IpcHandle, PhysicalFlags, PhysicalHandle, Result, ShareableHandle,
};

impl CudaDriver {
    pub(super) fn physical_export(&self, physical: PhysicalHandle) -> Result<ShareableHandle> {
        let call = "cuMemExportToShareableHandle";
        let physical = self.physicals.get(physical.raw(), call)?;
        let Some(handle_type) = physical.share_as else {
            let detail = "the physical memory was made without `share_as`, and cannot be shared";
            return Err(Error::new(Code::InvalidValue, call, detail));
        };
        self.enter(physical.device)?;
        let number = handle_type_number(Some(handle_type));
        let what = || format!("{} bytes of device {} as {handle_type:?}", physical.bytes, physical.device);
        match handle_type {
            HandleType::FileDescriptor => {
                let mut descriptor: c_int = -1;
                // SAFETY: the handle is looked up; for this type one `int` is written.
                let outcome = unsafe {
                    self.cuda.table.physical_export((&raw mut descriptor).cast(), physical.raw, number, 0)
                };
                self.cuda.check(outcome, what)?;
                // SAFETY: the driver opened this descriptor for us, and nothing else has it.
                Ok(ShareableHandle::FileDescriptor(unsafe { OwnedFd::from_raw_fd(descriptor) }))
            }
            HandleType::Fabric => {
                let mut bytes = Box::new([0_u8; 64]);
                // SAFETY: the handle is looked up; for this type 64 bytes are written.
                let outcome = unsafe {
                    self.cuda.table.physical_export(bytes.as_mut_ptr().cast(), physical.raw, number, 0)
                };
                self.cuda.check(outcome, what)?;
                Ok(ShareableHandle::Fabric(bytes))
            }
        }
    }

    pub(super) fn physical_import(
        &self,
        device: u32,
        bytes: u64,
        handle: &ShareableHandle,
    ) -> Result<PhysicalHandle> {
        let call = "cuMemImportFromShareableHandle";
        self.check_granularity(device, bytes, call)?;
        let share_as = Some(handle.handle_type());
        let source = match handle {
            // For this type the argument is the number itself.
            ShareableHandle::FileDescriptor(descriptor) => descriptor.as_raw_fd() as usize as *mut c_void,
            ShareableHandle::Fabric(bytes) => bytes.as_ptr().cast_mut().cast(),
        };
        let mut raw: RawPhysical = 0;
        // SAFETY: the descriptor is open, or the 64 bytes are readable, until the call returns; writes one handle. A handle
        // of another type is refused.
        let outcome =
            unsafe { self.cuda.table.physical_import(&raw mut raw, source, handle_type_number(share_as)) };
        self.cuda.check(outcome, || format!("{bytes} bytes of device {device} from {handle:?}"))?;
        let physical = Physical { raw, bytes, device, share_as };
        if let Err(error) = self.check_location(&physical, call) {
            // SAFETY: the handle was just made, and nothing knows it.
            let _ = unsafe { self.cuda.table.physical_release(raw) };
            return Err(error);
        }
        Ok(PhysicalHandle::from_raw(self.physicals.insert(physical)))
    }

    fn check_location(&self, physical: &Physical, call: &'static str) -> Result<()> {
        let device = self.device(physical.device)?;
        let mut properties = AllocationProperties::of_device(device.raw, PhysicalFlags::default());
        // SAFETY: the handle is alive; writes an entire properties struct.
        let outcome = unsafe { self.cuda.table.physical_properties(&raw mut properties, physical.raw) };
        self.cuda.check(outcome, || format!("imported memory of device {}", device.index))?;
        if properties.location.kind == sys::LOCATION_DEVICE && properties.location.id == device.raw {
            return Ok(());
        }
        let detail = format!(
            "the memory is on {}, not on device {}: import it for the device that it is on",
            match properties.location.kind {
                sys::LOCATION_DEVICE => format!("device {}", properties.location.id),
                kind => format!("a location of kind {kind}"),
            },
            device.index
        );
        Err(Error::new(Code::InvalidDevice, call, detail))
    }

    pub(super) fn ipc_export(&self, pointer: DevicePointer) -> Result<IpcHandle> {
        let call = "cuIpcGetMemHandle";
        let range = self.ranges.starting_at(pointer.address()).filter(|range| range.kind == RangeKind::Plain);
        let Some(range) = range else {
            let detail = format!("{pointer:?} is not the start of live memory of memory_allocate");
            return Err(Error::new(Code::InvalidValue, call, detail));
        };
        self.enter(range.device)?;
        let mut handle = RawIpcHandle { bytes: [0; 64] };
        // SAFETY: the address is checked by the driver, too; writes one handle.
        let outcome = unsafe { self.cuda.table.ipc_export(&raw mut handle, pointer.address()) };
        self.cuda.check(outcome, || format!("{} bytes at {pointer:?}", range.bytes))?;
        Ok(IpcHandle(handle.bytes))
    }

    pub(super) fn ipc_open(&self, device: u32, handle: IpcHandle) -> Result<DevicePointer> {
        self.enter(device)?;
        let mut pointer: RawPointer = 0;
        let raw = RawIpcHandle { bytes: handle.0 };
        let flags = sys::IPC_LAZY_ENABLE_PEER_ACCESS;
        // SAFETY: writes one address; bytes that are not a handle are refused.
        let outcome = unsafe { self.cuda.table.ipc_open(&raw mut pointer, raw, flags) };
        self.cuda.check(outcome, || format!("memory of another process, for device {device}"))?;
        let (start, bytes) = self.allocation_around(pointer).inspect_err(|_| {
            // SAFETY: it was just opened, and nothing knows the address.
            let _ = unsafe { self.cuda.table.ipc_close(pointer) };
        })?;
        // A handle that is open already returns the same address, and is counted.
        let bytes = bytes - (pointer - start);
        self.ranges.open(pointer, Range { bytes, kind: RangeKind::Ipc { opened: 1 }, device });
        Ok(DevicePointer::new(pointer))
    }

    pub(super) fn address_range(&self, pointer: DevicePointer) -> Result<(DevicePointer, u64)> {
        let has_size = |kind| {
            matches!(
                kind,
                RangeKind::Plain | RangeKind::Managed | RangeKind::Collective | RangeKind::Ipc { .. }
            )
        };
        let range = self.ranges.containing(pointer.address(), 1).filter(|range| has_size(range.kind));
        let Some(range) = range else {
            let detail = format!("{pointer:?} is not in memory that memory_allocate or ipc_open gave");
            return Err(Error::new(Code::InvalidValue, "cuMemGetAddressRange", detail));
        };
        self.enter(range.device)?;
        let (start, bytes) = self.allocation_around(pointer.address())?;
        Ok((DevicePointer::new(start), bytes))
    }

    /// Queries the allocation from the driver, with the context of the device entered.
    fn allocation_around(&self, pointer: RawPointer) -> Result<(RawPointer, u64)> {
        let (mut start, mut bytes): (RawPointer, usize) = (0, 0);
        // SAFETY: writes an address and a number.
        let outcome = unsafe { self.cuda.table.address_range(&raw mut start, &raw mut bytes, pointer) };
        self.cuda.check(outcome, || format!("the allocation around {pointer:#x}"))?;
        Ok((start, bytes as u64))
    }

    pub(super) fn ipc_close(&self, pointer: DevicePointer) -> Result<()> {
        let call = "cuIpcCloseMemHandle";
        let Some(range) = self.ranges.close(pointer.address()) else {
            let detail = format!("{pointer:?} is not the start of memory that ipc_open opened");
            return Err(Error::new(Code::InvalidValue, call, detail));
        };
        let closed = self.enter(range.device).and_then(|_| {
            // SAFETY: `ipc_open` returned this address, and it is closed once for each time that it was opened.
            let outcome = unsafe { self.cuda.table.ipc_close(pointer.address()) };
            self.cuda.check(outcome, || format!("{} bytes at {pointer:?}", range.bytes))
        });
        closed.inspect_err(|_| {
            self.ranges.open(pointer.address(), Range { kind: RangeKind::Ipc { opened: 1 }, ..range });
        })
    }
}
