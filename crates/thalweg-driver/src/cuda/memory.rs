//! Device memory: plain, virtual and stream-ordered; copies and fills.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::objects::ranges::{Lookup, Range, RangeKind};
use super::objects::{Physical, Pool};
use super::state::CudaDriver;
use super::sys::{
    self, AccessDescription, AllocationProperties, MemoryLocation, PoolProperties, RawDevice, RawPhysical,
    RawPointer, RawPool,
};
use crate::command::{Copy, Endpoint, Fill, FillPattern, Label};
use crate::{
    Code, DevicePointer, Error, HostPointer, MemoryAccess, MemoryAdvice, MemoryInfo, PhysicalFlags,
    PhysicalHandle, PoolAttributes, PoolHandle, PoolUsage, Result, StreamHandle,
};

pub(super) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl CudaDriver {
    pub(super) fn memory_info(&self, device: u32) -> Result<MemoryInfo> {
        self.enter(device)?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: writes two numbers.
        let outcome = unsafe { self.cuda.table.memory_get_info(&raw mut free, &raw mut total) };
        self.cuda.check(outcome, || format!("device {device}"))?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    pub(super) fn memory_allocate(&self, device: u32, bytes: u64) -> Result<DevicePointer> {
        let call = "cuMemAlloc";
        self.enter(device)?;
        non_zero(bytes, call)?;
        let mut pointer: RawPointer = 0;
        // SAFETY: writes one address.
        let outcome = unsafe { self.cuda.table.memory_allocate(&raw mut pointer, size(bytes)) };
        self.cuda.check(outcome, || format!("{bytes} bytes on device {device}"))?;
        self.ranges.insert(pointer, Range { bytes, kind: RangeKind::Plain, device });
        Ok(DevicePointer::new(pointer))
    }

    pub(super) fn memory_free(&self, pointer: DevicePointer) -> Result<()> {
        let call = "cuMemFree";
        let address = pointer.address();
        let is_ours = |kind| matches!(kind, RangeKind::Plain | RangeKind::Managed | RangeKind::Collective);
        let range = self.take_range(address, call, "memory_allocate", |range| is_ours(range.kind))?;
        let freed = self.enter(range.device).and_then(|_| {
            if range.kind == RangeKind::Collective {
                return self.memory_free_collective(address);
            }
            // SAFETY: `memory_allocate` returned this address, and it was in the table until now: it is freed once.
            let outcome = unsafe { self.cuda.table.memory_free(address) };
            self.cuda
                .check(outcome, || format!("{} bytes at {pointer:?} on device {}", range.bytes, range.device))
        });
        freed.inspect_err(|_| self.ranges.insert(address, range))
    }

    pub(super) fn memory_allocate_managed(&self, device: u32, bytes: u64) -> Result<DevicePointer> {
        let call = "cuMemAllocManaged";
        let entered = self.enter(device)?;
        non_zero(bytes, call)?;
        if !entered.is_able(&self.cuda, sys::DeviceAttribute::ManagedMemory) {
            let detail = format!("device {device} has no managed memory");
            return Err(Error::new(Code::NotSupported, call, detail));
        }
        let mut pointer: RawPointer = 0;
        // SAFETY: writes one address.
        let outcome = unsafe {
            self.cuda.table.memory_allocate_managed(&raw mut pointer, size(bytes), sys::ATTACH_GLOBAL)
        };
        self.cuda.check(outcome, || format!("{bytes} bytes of managed memory for device {device}"))?;
        self.ranges.insert(pointer, Range { bytes, kind: RangeKind::Managed, device });
        Ok(DevicePointer::new(pointer))
    }

    pub(super) fn memory_advise(
        &self,
        pointer: DevicePointer,
        bytes: u64,
        advice: MemoryAdvice,
    ) -> Result<()> {
        let call = "cuMemAdvise";
        let managed = self.ranges.containing(pointer.address(), bytes);
        let Some(range) = managed.filter(|range| range.kind == RangeKind::Managed && bytes > 0) else {
            let detail = format!("{bytes} bytes at {pointer:?} are not within managed memory");
            return Err(Error::new(Code::InvalidValue, call, detail));
        };
        let own = self.enter(range.device)?.raw;
        let (number, location) = match advice {
            MemoryAdvice::ReadMostly(true) => (sys::ADVISE_SET_READ_MOSTLY, None),
            MemoryAdvice::ReadMostly(false) => (sys::ADVISE_UNSET_READ_MOSTLY, None),
            MemoryAdvice::PreferredLocation(Some(location)) => {
                (sys::ADVISE_SET_PREFERRED_LOCATION, Some(location))
            }
            MemoryAdvice::PreferredLocation(None) => (sys::ADVISE_UNSET_PREFERRED_LOCATION, None),
            MemoryAdvice::AccessedBy(location) => (sys::ADVISE_SET_ACCESSED_BY, Some(location)),
            MemoryAdvice::NotAccessedBy(location) => (sys::ADVISE_UNSET_ACCESSED_BY, Some(location)),
        };
        let (kind, id): (u32, RawDevice) = match location {
            Some(crate::MemoryLocation::Device(device)) => (sys::LOCATION_DEVICE, self.device(device)?.raw),
            Some(crate::MemoryLocation::Host) => (sys::LOCATION_HOST, 0),
            // Ignored by the driver for these kinds of advice.
            None => (sys::LOCATION_DEVICE, own),
        };
        let (table, start, length) = (&self.cuda.table, pointer.address(), size(bytes));
        // SAFETY: the range is in managed memory; advice changes no content.
        let outcome = unsafe {
            let newer = table.advise_v2(start, length, number, MemoryLocation { kind, id });
            if newer.missing.is_none() {
                newer
            } else {
                let device = if kind == sys::LOCATION_HOST { sys::DEVICE_CPU } else { id };
                table.advise_v1(start, length, number, device)
            }
        };
        self.cuda.check(outcome, || format!("{advice:?} for {bytes} bytes at {pointer:?}"))
    }

    /// Removes a range of memory from the table; the error explains why the address is wrong.
    fn take_range(
        &self,
        address: u64,
        call: &'static str,
        origin: &str,
        wanted: impl FnOnce(&Range) -> bool,
    ) -> Result<Range> {
        self.ranges.take(address, wanted).ok_or_else(|| {
            let detail = format!("{address:#x} is not the start of live memory of {origin}");
            Error::new(Code::InvalidValue, call, detail)
        })
    }

    /// Checks that a range is device memory, which a copy or a fill may touch: see [`super::objects::ranges`].
    pub(super) fn check_device_range(&self, start: u64, bytes: u64, call: &'static str) -> Result<()> {
        let is_device_memory = match self.ranges.look_up(start, bytes) {
            Lookup::Inside => true,
            Lookup::Across => false,
            Lookup::Unknown => {
                bytes == 0
                    || (self.is_outside_device_memory(start)
                        && start
                            .checked_add(bytes - 1)
                            .is_some_and(|last| self.is_outside_device_memory(last)))
            }
        };
        if is_device_memory {
            return Ok(());
        }
        let detail = format!("[{start:#x}, {:#x}) is not within device memory", start.saturating_add(bytes));
        Err(Error::new(Code::InvalidValue, call, detail))
    }

    /// Returns whether the driver reports the address as device memory of another allocator.
    fn is_outside_device_memory(&self, address: u64) -> bool {
        let mut kind: c_uint = 0;
        // SAFETY: the attribute is one `unsigned int`, which is written; the call takes any address.
        let outcome = unsafe {
            self.cuda.table.pointer_get_attribute((&raw mut kind).cast(), sys::POINTER_MEMORY_TYPE, address)
        };
        outcome.is_success() && kind == sys::MEMORY_TYPE_DEVICE
    }

    // ---- Virtual memory ---------------------------------------------------------------------------------------------

    pub(super) fn address_reserve(&self, device: u32, bytes: u64) -> Result<DevicePointer> {
        let call = "cuMemAddressReserve";
        self.check_granularity(device, bytes, call)?;
        let mut pointer: RawPointer = 0;
        // SAFETY: writes one address.
        let outcome = unsafe { self.cuda.table.address_reserve(&raw mut pointer, size(bytes), 0, 0, 0) };
        self.cuda.check(outcome, || format!("a range of {bytes} bytes for device {device}"))?;
        self.ranges.insert(pointer, Range { bytes, kind: RangeKind::Reserved, device });
        Ok(DevicePointer::new(pointer))
    }

    /// Enters the device and checks that `bytes` is a multiple of its pages.
    pub(super) fn check_granularity(&self, device: u32, bytes: u64, call: &'static str) -> Result<()> {
        let granularity = self.enter(device)?.granularity(&self.cuda)?;
        if granularity == 0 {
            let detail = format!("device {device} has no virtual memory");
            return Err(Error::new(Code::NotSupported, call, detail));
        }
        if bytes == 0 || !bytes.is_multiple_of(granularity) {
            let detail = format!(
                "{bytes} bytes are not a multiple of {granularity}, the granularity of device {device}"
            );
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        Ok(())
    }

    pub(super) fn address_free(&self, pointer: DevicePointer, bytes: u64) -> Result<()> {
        let call = "cuMemAddressFree";
        let address = pointer.address();
        if self.ranges.has_mapping(address, bytes) {
            let detail =
                format!("memory is still mapped in the {bytes} bytes at {pointer:?}: unmap it first");
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        let whole = |range: &Range| range.kind == RangeKind::Reserved && range.bytes == bytes;
        let range = self.take_range(address, call, "address_reserve, of that size", whole)?;
        let freed = self.enter(range.device).and_then(|_| {
            // SAFETY: `address_reserve` returned this range, nothing is mapped in it, and it is freed once.
            let outcome = unsafe { self.cuda.table.address_free(address, size(bytes)) };
            self.cuda.check(outcome, || format!("{bytes} bytes at {pointer:?}"))
        });
        freed.inspect_err(|_| self.ranges.insert(address, range))
    }

    pub(super) fn physical_create(
        &self,
        device: u32,
        bytes: u64,
        flags: PhysicalFlags,
    ) -> Result<PhysicalHandle> {
        self.check_granularity(device, bytes, "cuMemCreate")?;
        let properties = AllocationProperties::of_device(self.device(device)?.raw, flags);
        let mut raw: RawPhysical = 0;
        // SAFETY: reads an entire properties struct, writes one handle.
        let outcome =
            unsafe { self.cuda.table.physical_create(&raw mut raw, size(bytes), &raw const properties, 0) };
        self.cuda
            .check(outcome, || format!("{bytes} bytes of physical memory on device {device}, {flags:?}"))?;
        let physical = Physical { raw, bytes, device, share_as: flags.share_as };
        Ok(PhysicalHandle::from_raw(self.physicals.insert(physical)))
    }

    pub(super) fn physical_release(&self, physical: PhysicalHandle) -> Result<()> {
        self.physicals.remove(physical.raw(), "cuMemRelease", |physical| {
            self.enter(physical.device)?;
            // SAFETY: the handle is this driver's, and it is released once.
            let outcome = unsafe { self.cuda.table.physical_release(physical.raw) };
            self.cuda.check(outcome, || format!("{} bytes of device {}", physical.bytes, physical.device))
        })
    }

    pub(super) fn memory_map(
        &self,
        pointer: DevicePointer,
        bytes: u64,
        physical: PhysicalHandle,
        offset: u64,
    ) -> Result<()> {
        let call = "cuMemMap";
        let physical = self.physicals.get(physical.raw(), call)?;
        self.enter(physical.device)?;
        if !self.ranges.is_reserved(pointer.address(), bytes) {
            let detail = format!("{bytes} bytes at {pointer:?} are not within a reserved range");
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        if bytes == 0 || offset > physical.bytes || bytes > physical.bytes - offset {
            let detail =
                format!("{bytes} bytes from offset {offset} of physical memory of {} bytes", physical.bytes);
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        // SAFETY: the range is reserved and the handle is looked up; the driver refuses addresses that are mapped already.
        let outcome = unsafe {
            self.cuda.table.memory_map(pointer.address(), size(bytes), size(offset), physical.raw, 0)
        };
        self.cuda.check(outcome, || format!("{bytes} bytes at {pointer:?} from offset {offset}"))?;
        self.ranges.note_mapping(pointer.address(), bytes);
        Ok(())
    }

    pub(super) fn memory_unmap(&self, pointer: DevicePointer, bytes: u64) -> Result<()> {
        let call = "cuMemUnmap";
        if !self.ranges.is_whole_mappings(pointer.address(), bytes) {
            let detail = format!("[{pointer:?}, +{bytes}) is not made of whole mappings");
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        // SAFETY: the range consists of entire mappings of this driver.
        let outcome = unsafe { self.cuda.table.memory_unmap(pointer.address(), size(bytes)) };
        self.cuda.check(outcome, || format!("{bytes} bytes at {pointer:?}"))?;
        self.ranges.forget_mappings(pointer.address(), bytes);
        Ok(())
    }

    pub(super) fn memory_set_access(
        &self,
        pointer: DevicePointer,
        bytes: u64,
        device: u32,
        access: MemoryAccess,
    ) -> Result<()> {
        let raw = self.enter(device)?.raw;
        let flags = match access {
            MemoryAccess::None => sys::ACCESS_NONE,
            MemoryAccess::Read => sys::ACCESS_READ,
            MemoryAccess::ReadWrite => sys::ACCESS_READ_WRITE,
        };
        let description =
            AccessDescription { location: MemoryLocation { kind: sys::LOCATION_DEVICE, id: raw }, flags };
        if !self.ranges.is_reserved(pointer.address(), bytes) {
            let detail = format!("{bytes} bytes at {pointer:?} are not within a reserved range");
            return Err(Error::new(Code::InvalidValue, "cuMemSetAccess", detail));
        }
        // SAFETY: reads one entire description; the range is reserved, and the driver checks that it is mapped.
        let outcome = unsafe {
            self.cuda.table.memory_set_access(pointer.address(), size(bytes), &raw const description, 1)
        };
        self.cuda.check(outcome, || format!("{access:?} of device {device} to {bytes} bytes at {pointer:?}"))
    }

    // ---- Stream-ordered memory --------------------------------------------------------------------------------------

    pub(super) fn pool_create(&self, device: u32) -> Result<PoolHandle> {
        let entered = self.enter(device)?;
        let properties = PoolProperties {
            kind: sys::ALLOCATION_PINNED,
            handle_types: 0,
            location: MemoryLocation { kind: sys::LOCATION_DEVICE, id: entered.raw },
            windows_attributes: 0,
            max_bytes: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut raw = RawPool::default();
        // SAFETY: reads an entire properties struct, writes one handle.
        let outcome = unsafe { self.cuda.table.pool_create(&raw mut raw, &raw const properties) };
        self.cuda.check(outcome, || format!("a pool of device {device}"))?;
        let pool = Pool { raw, device };
        // Keep everything until `pool_trim`: with the driver's default the pool returns all unused memory whenever the host
        // waits.
        if let Err(error) = self.write_pool_attributes(&pool, PoolAttributes::default()) {
            // SAFETY: the pool was just made, and nothing knows it.
            let _ = unsafe { self.cuda.table.pool_destroy(raw) };
            return Err(error);
        }
        Ok(PoolHandle::from_raw(self.pools.insert(pool)))
    }

    fn write_pool_attributes(&self, pool: &Pool, attributes: PoolAttributes) -> Result<()> {
        let what = || format!("{attributes:?} of a pool of device {}", pool.device);
        let mut threshold = attributes.release_threshold_bytes;
        let value = (&raw mut threshold).cast::<c_void>();
        // SAFETY: the attribute is one 64-bit number; the caller holds the pool.
        let outcome =
            unsafe { self.cuda.table.pool_set_attribute(pool.raw, sys::POOL_RELEASE_THRESHOLD, value) };
        self.cuda.check(outcome, what)?;
        for (attribute, is_on) in [
            (sys::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES, attributes.reuse_follow_event_dependencies),
            (sys::POOL_REUSE_ALLOW_OPPORTUNISTIC, attributes.reuse_allow_opportunistic),
            (sys::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES, attributes.reuse_allow_internal_dependencies),
        ] {
            let mut number = c_int::from(is_on);
            let value = (&raw mut number).cast::<c_void>();
            // SAFETY: each of these attributes is one `int`; the caller holds the pool.
            let outcome = unsafe { self.cuda.table.pool_set_attribute(pool.raw, attribute, value) };
            self.cuda.check(outcome, what)?;
        }
        Ok(())
    }

    /// Reads an attribute of a pool: `T` is its type, `c_int` or `u64`.
    fn pool_attribute<T: Default>(&self, pool: &Pool, attribute: c_uint) -> Result<T> {
        debug_assert_eq!(size_of::<T>() == 4, attribute <= sys::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
        let mut value = T::default();
        // SAFETY: the attribute is as wide as `T`: the first three are an `int`, the others a 64-bit number.
        let outcome = unsafe {
            self.cuda.table.pool_get_attribute(pool.raw, attribute, (&raw mut value).cast::<c_void>())
        };
        self.cuda.check(outcome, || format!("attribute {attribute} of a pool of device {}", pool.device))?;
        Ok(value)
    }

    pub(super) fn pool_attributes(&self, pool: PoolHandle) -> Result<PoolAttributes> {
        let pool = self.pools.get(pool.raw(), "cuMemPoolGetAttribute")?;
        self.enter(pool.device)?;
        let is_on = |attribute| Ok::<_, Error>(self.pool_attribute::<c_int>(&pool, attribute)? != 0);
        Ok(PoolAttributes {
            release_threshold_bytes: self.pool_attribute(&pool, sys::POOL_RELEASE_THRESHOLD)?,
            reuse_follow_event_dependencies: is_on(sys::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES)?,
            reuse_allow_opportunistic: is_on(sys::POOL_REUSE_ALLOW_OPPORTUNISTIC)?,
            reuse_allow_internal_dependencies: is_on(sys::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES)?,
        })
    }

    pub(super) fn pool_set_attributes(&self, pool: PoolHandle, attributes: PoolAttributes) -> Result<()> {
        let pool = self.pools.get(pool.raw(), "cuMemPoolSetAttribute")?;
        self.enter(pool.device)?;
        self.write_pool_attributes(&pool, attributes)
    }

    pub(super) fn pool_usage(&self, pool: PoolHandle) -> Result<PoolUsage> {
        let pool = self.pools.get(pool.raw(), "cuMemPoolGetAttribute")?;
        self.enter(pool.device)?;
        let reserved_bytes: u64 = self.pool_attribute(&pool, sys::POOL_RESERVED_CURRENT)?;
        let used_bytes: u64 = self.pool_attribute(&pool, sys::POOL_USED_CURRENT)?;
        // A peak that was reset is 0 until more memory is taken.
        Ok(PoolUsage {
            reserved_bytes,
            reserved_peak_bytes: reserved_bytes.max(self.pool_attribute(&pool, sys::POOL_RESERVED_HIGH)?),
            used_bytes,
            used_peak_bytes: used_bytes.max(self.pool_attribute(&pool, sys::POOL_USED_HIGH)?),
        })
    }

    pub(super) fn pool_reset_peaks(&self, pool: PoolHandle) -> Result<()> {
        let pool = self.pools.get(pool.raw(), "cuMemPoolSetAttribute")?;
        self.enter(pool.device)?;
        for attribute in [sys::POOL_RESERVED_HIGH, sys::POOL_USED_HIGH] {
            // 0, the only allowed value, means the current usage.
            let mut peak = 0_u64;
            let value = (&raw mut peak).cast::<c_void>();
            // SAFETY: both attributes are one 64-bit number; the pool is looked up.
            let outcome = unsafe { self.cuda.table.pool_set_attribute(pool.raw, attribute, value) };
            self.cuda.check(outcome, || format!("the peaks of a pool of device {}", pool.device))?;
        }
        Ok(())
    }

    pub(super) fn pool_destroy(&self, pool: PoolHandle) -> Result<()> {
        self.pools.remove(pool.raw(), "cuMemPoolDestroy", |pool| {
            self.enter(pool.device)?;
            // SAFETY: the pool is this driver's, and nothing else holds its entry.
            let outcome = unsafe { self.cuda.table.pool_destroy(pool.raw) };
            self.cuda.check(outcome, || format!("a pool of device {}", pool.device))
        })
    }

    pub(super) fn pool_trim(&self, pool: PoolHandle, keep_bytes: u64) -> Result<()> {
        let pool = self.pools.get(pool.raw(), "cuMemPoolTrimTo")?;
        self.enter(pool.device)?;
        // SAFETY: the pool is looked up.
        let outcome = unsafe { self.cuda.table.pool_trim(pool.raw, size(keep_bytes)) };
        self.cuda.check(outcome, || format!("a pool of device {} down to {keep_bytes} bytes", pool.device))
    }

    pub(super) fn memory_allocate_async(
        &self,
        pool: PoolHandle,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<DevicePointer> {
        let call = "cuMemAllocFromPoolAsync";
        let pool = self.pools.get(pool.raw(), call)?;
        let stream = self.streams.get(stream.raw(), call)?;
        self.enter_stream(&stream)?;
        non_zero(bytes, call)?;
        let captures = self.capture_status(&stream, call)? != sys::CAPTURE_NONE;
        let kind = if captures { RangeKind::Graph } else { RangeKind::Pool };
        let mut pointer: RawPointer = 0;
        // SAFETY: pool and stream are looked up; writes one address.
        let outcome =
            unsafe { self.cuda.table.pool_allocate(&raw mut pointer, size(bytes), pool.raw, stream.raw) };
        self.cuda.check(outcome, || format!("{bytes} bytes of a pool of device {}", pool.device))?;
        self.ranges.insert(pointer, Range { bytes, kind, device: pool.device });
        Ok(DevicePointer::new(pointer))
    }

    pub(super) fn memory_free_async(&self, pointer: DevicePointer, stream: StreamHandle) -> Result<()> {
        let call = "cuMemFreeAsync";
        let stream = self.streams.get(stream.raw(), call)?;
        self.enter_stream(&stream)?;
        let address = pointer.address();
        let captures = self.capture_status(&stream, call)? != sys::CAPTURE_NONE;
        // A capture frees its own allocations only; those of other graphs are not considered.
        let wanted = if captures { RangeKind::Graph } else { RangeKind::Pool };
        let is_of_graph =
            self.ranges.starting_at(address).is_some_and(|range| range.kind == RangeKind::Graph);
        if is_of_graph && !captures {
            // SAFETY: the address belongs to a graph; the driver refuses it unless a launch has left it allocated.
            let outcome = unsafe { self.cuda.table.memory_free_async(address, stream.raw) };
            return self.cuda.check(outcome, || format!("memory of a graph at {pointer:?}"));
        }
        let is_wanted = |range: &Range| range.kind == wanted;
        let range = self.take_range(address, call, "memory_allocate_async", is_wanted)?;
        // SAFETY: the address belongs to a pool, and was in the table until now: it is freed once.
        let outcome = unsafe { self.cuda.table.memory_free_async(address, stream.raw) };
        let freed = self.cuda.check(outcome, || format!("{} bytes at {pointer:?}", range.bytes));
        freed.inspect_err(|_| self.ranges.insert(address, range))
    }

    // ---- Copies and fills -------------------------------------------------------------------------------------------

    pub(super) fn copy_async(&self, stream: StreamHandle, copy: &Copy) -> Result<()> {
        let call = "cuMemcpyAsync";
        let bytes = copy.bytes;
        match (copy.target, copy.source) {
            (Endpoint::Pinned(target), Endpoint::Pinned(source)) => {
                self.copy_pinned(stream, target, source, bytes, copy.label)
            }
            (Endpoint::Device(target), Endpoint::Device(source)) => {
                let stream = self.streams.get(stream.raw(), call)?;
                self.submit_on(&stream)?;
                self.check_device_range(target.address(), bytes, call)?;
                self.check_device_range(source.address(), bytes, call)?;
                if bytes == 0 {
                    return Ok(());
                }
                // SAFETY: both ranges are device memory; the stream is looked up.
                let outcome = unsafe {
                    self.cuda.table.copy_async(target.address(), source.address(), size(bytes), stream.raw)
                };
                self.cuda.check(outcome, || describe(copy))
            }
            (Endpoint::Device(device), Endpoint::Pinned(host))
            | (Endpoint::Pinned(host), Endpoint::Device(device)) => {
                let stream = self.streams.get(stream.raw(), call)?;
                self.submit_on(&stream)?;
                self.check_device_range(device.address(), bytes, call)?;
                if bytes == 0 {
                    return Ok(());
                }
                let (block, _) = self.pinned.find(host, bytes, call)?;
                block.note_use(stream.device);
                let (start, raw) = (host.address() as *mut c_void, stream.raw);
                let table = &self.cuda.table;
                let captures = self.captures.lock();
                // SAFETY: the range is in a pinned block, which is held until the command is queued. `host_free` waits for
                // queued work of the recorded devices, and a capture, which neither begins nor ends meanwhile, gets a share
                // of the block below. The other range is device memory.
                let outcome = unsafe {
                    match copy.target {
                        Endpoint::Device(_) => {
                            table.copy_to_device(device.address(), start, size(bytes), raw)
                        }
                        Endpoint::Pinned(_) => table.copy_to_host(start, device.address(), size(bytes), raw),
                    }
                };
                self.cuda.check(outcome, || describe(copy))?;
                self.keep_for_capture(&stream, &block, &captures)
            }
        }
    }

    /// Copies from pinned to pinned memory with a host function, because the driver's own copy between pinned blocks would block
    /// the host.
    fn copy_pinned(
        &self,
        stream: StreamHandle,
        target: HostPointer,
        source: HostPointer,
        bytes: u64,
        label: Label,
    ) -> Result<()> {
        let call = "cuMemcpyAsync";
        if bytes == 0 {
            return self.streams.get(stream.raw(), call).map(drop);
        }
        let (to, to_offset) = self.pinned.find(target, bytes, call)?;
        let (from, from_offset) = self.pinned.find(source, bytes, call)?;
        let copy =
            move || super::objects::pinned::PinnedBlock::copy(&from, from_offset, &to, to_offset, bytes);
        self.host_function_async(stream, Arc::new(copy), label)
    }

    pub(super) fn fill_async(&self, stream: StreamHandle, fill: &Fill) -> Result<()> {
        let call = "cuMemsetAsync";
        let stream = self.streams.get(stream.raw(), call)?;
        self.submit_on(&stream)?;
        let (target, unit) = (fill.target.address(), fill.pattern.bytes());
        let bytes = fill.count.checked_mul(unit).ok_or_else(|| {
            Error::new(Code::InvalidValue, call, format!("{} patterns of {unit} bytes: too many", fill.count))
        })?;
        if !target.is_multiple_of(unit) {
            let detail = format!("{:?} is not aligned to the pattern's {unit} bytes", fill.target);
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        self.check_device_range(target, bytes, call)?;
        if bytes == 0 {
            return Ok(());
        }
        let (table, count) = (&self.cuda.table, size(fill.count));
        // SAFETY: the range is device memory and aligned to the pattern; the stream is looked up.
        let outcome = unsafe {
            match fill.pattern {
                FillPattern::U8(value) => table.fill_8(target, value, count, stream.raw),
                FillPattern::U16(value) => table.fill_16(target, value, count, stream.raw),
                FillPattern::U32(value) => table.fill_32(target, value, count, stream.raw),
            }
        };
        self.cuda.check(outcome, || format!("{bytes} bytes at {:?}, for {}", fill.target, fill.label))
    }
}

fn describe(copy: &Copy) -> String {
    format!("{} bytes from {:?} to {:?}, for {}", copy.bytes, copy.source, copy.target, copy.label)
}

pub(super) fn non_zero(bytes: u64, call: &'static str) -> Result<()> {
    if bytes == 0 { Err(Error::new(Code::InvalidValue, call, "an allocation of 0 bytes")) } else { Ok(()) }
}
