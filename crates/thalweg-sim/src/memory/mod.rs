//! Simulated memory: allocations, mappings, and the devices that may touch them.
//!
//! There are three kinds of numbers:
//!
//! - *addresses*, which the program sees. Device addresses begin at [`DEVICE_BASE`], pinned ones at [`PINNED_BASE`];
//!   neither is an address that a processor accepts, so an address that is mistaken for a host pointer faults at once;
//! - *physical addresses*, one number for each existing byte: the device's number and the offset into its memory, and for
//!   pinned memory the address itself, for memory of the process the address in the process above [`PROCESS_BASE`]. Two
//!   commands conflict at physical addresses: memory that is mapped twice is the same memory;
//! - *offsets* into the reservation of the [`Backing`](crate::memory::backing::Backing): a device address minus
//!   [`DEVICE_BASE`].
//!
//! A [`Span`] is a range of addresses that can be touched, with a contiguous range of physical addresses. Every access is
//! looked up in the spans; there is no other way from an address to a byte.
//!
//! # Invariants
//! - Spans do not overlap. Each belongs to one allocation, and its bytes exist while it does.
//! - Physical memory is in exactly one of: the free ranges, a segment, a physical object.
//! - `epoch` changes whenever a lookup could have another result: a result is valid as long as the epoch is the same.
//!
//! This module does not know streams or commands. A call that removes memory has made sure that no running command touches
//! it.

#[cfg_attr(miri, path = "backing_miri.rs")]
pub(crate) mod backing;
pub(crate) mod lease;
pub(crate) mod pool;
pub(crate) mod ranges;
pub(crate) mod sharing;
pub(crate) mod virtual_memory;
pub(crate) mod visible;

use std::collections::BTreeMap;
use std::io;

use smallvec::SmallVec;
use thalweg_driver::{Access, AccessMode, Code, MemoryInfo, anonymous::Anonymous};

use super::refusal::{CallResult, Refusal};
use crate::memory::backing::PAGE_BYTES;
use crate::memory::lease::Lease;
use crate::memory::ranges::{FreeRanges, Range};
use crate::memory::sharing::Exports;
use crate::memory::virtual_memory::{PhysicalMemory, Reservation};
use crate::memory::visible::VisibleRanges;
use crate::table::Table;

/// The first device address.
pub(super) const DEVICE_BASE: u64 = 0x00d0_0000_0000_0000;
/// The first address of pinned host memory.
pub(super) const PINNED_BASE: u64 = 0x00b0_0000_0000_0000;
/// The number of addresses of pinned memory.
const PINNED_BYTES: u64 = 1 << 44;
/// The unit of pinned memory.
pub(super) const PINNED_PAGE_BYTES: u64 = 4096;
/// The number of bits of an offset in a physical address of a device. The device's number is above them.
pub(super) const PHYSICAL_BITS: u32 = 44;
/// The size from which freed pieces return the host's memory to the system.
const DISCARD_BYTES: u64 = 8 << 20;

/// All memory of a machine.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) backing: Lease,
    devices: Vec<DeviceMemory>,
    pub(super) area: FreeRanges,
    pub(super) pinned_addresses: FreeRanges,
    /// The number of the driver, for exported memory.
    pub(super) machine: u16,
    spans: BTreeMap<u64, Span>,
    pub(super) allocations: BTreeMap<u64, Allocation>,
    pub(super) exports: Exports,
    /// Exported plain memory that is mapped a second time, by the second address.
    pub(super) opened: BTreeMap<u64, Opened>,
    pub(super) visible: VisibleRanges,
    pub(super) reservations: BTreeMap<u64, Reservation>,
    pub(super) physicals: Table<std::sync::Arc<PhysicalMemory>>,
    /// Segments that are freed as soon as no running command touches them.
    pub(super) condemned: Vec<Segment>,
    last_allocation: u64,
    pub(super) epoch: u64,
}

#[derive(Debug)]
struct DeviceMemory {
    total_bytes: u64,
    free: FreeRanges,
    /// The devices whose plain memory this device's kernels may touch, one bit each.
    peers: u64,
}

/// A range of addresses that can be touched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) bytes: u64,
    /// The number of the allocation. An access may cross from one span to the next within an allocation, but not beyond it.
    pub(super) allocation: u64,
    pub(super) physical: u64,
    pub(super) pointer: HostAddress,
    pub(super) owner: u32,
    pub(super) sharing: SpanAccess,
}

/// Plain memory that is mapped at a second address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    /// The original address.
    pub(super) origin: u64,
    pub(super) bytes: u64,
}

/// The devices that may touch a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SpanAccess {
    /// Every device.
    Pinned,
    /// Every device.
    Managed,
    /// The device that owns the memory, and devices that have enabled access to it.
    Plain,
    /// The device that owns the memory.
    Pool,
    /// The devices whose bits are set.
    Mapped { readers: u64, writers: u64 },
}

/// The address of a byte in this process. Stored as a number, because only the executor may dereference it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HostAddress(*mut u8);

// SAFETY: a number; see the type.
unsafe impl Send for HostAddress {}
// SAFETY: a number; see the type.
unsafe impl Sync for HostAddress {}

impl HostAddress {
    pub(super) fn new(pointer: *mut u8) -> Self {
        Self(pointer)
    }

    pub(super) fn pointer(self) -> *mut u8 {
        self.0
    }
}

#[derive(Debug)]
pub(super) enum Allocation {
    Plain(Segment),
    Pinned {
        memory: Anonymous,
        bytes: u64,
    },
    /// Memory of the process, with the range of addresses that was taken for it.
    Process {
        taken: Range,
    },
}

/// Physical memory with addresses of its own, page by page.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) device: u32,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) pieces: SmallVec<[Range; 1]>,
    windowed: bool,
}

/// The kind of work that touches memory: kernels are bound by peer access, copies are not. Mapped memory needs access
/// rights for both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Toucher {
    Kernel,
    Copy,
}

/// The places of the declared accesses of a command: host addresses to use, physical addresses to compare.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolved {
    /// The host addresses, one for each access.
    pub(super) pointers: SmallVec<[Option<HostAddress>; 4]>,
    pub(super) pieces: SmallVec<[Piece; 4]>,
}

/// A range of physical addresses that a command touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// The number of the access that contains the range.
    pub(super) access: u32,
    pub(super) writes: bool,
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl Piece {
    pub(super) const fn conflicts(&self, other: &Self) -> bool {
        (self.writes || other.writes)
            && self.start < other.start + other.bytes
            && other.start < self.start + self.bytes
    }
}

impl Memory {
    pub(super) fn new(driver: u16, devices: u32, device_bytes: u64, is_controlled: bool) -> io::Result<Self> {
        let backing = Lease::new(devices, device_bytes, is_controlled)?;
        let (area_start, area_bytes) = backing.area();
        let device = || {
            let free = FreeRanges::rotating(0, device_bytes, is_controlled);
            DeviceMemory { total_bytes: device_bytes, free, peers: 0 }
        };
        Ok(Self {
            backing,
            devices: (0..devices).map(|_| device()).collect(),
            area: FreeRanges::rotating(area_start, area_bytes, is_controlled),
            pinned_addresses: FreeRanges::rotating(PINNED_BASE, PINNED_BYTES, is_controlled),
            machine: driver,
            spans: BTreeMap::new(),
            allocations: BTreeMap::new(),
            exports: Exports::default(),
            opened: BTreeMap::new(),
            visible: VisibleRanges::default(),
            reservations: BTreeMap::new(),
            physicals: Table::new(driver),
            condemned: Vec::new(),
            last_allocation: 0,
            epoch: 0,
        })
    }

    pub(super) fn info(&self, device: u32) -> MemoryInfo {
        let device = &self.devices[device as usize];
        MemoryInfo { free_bytes: device.free.total(), total_bytes: device.total_bytes }
    }

    // ---- Peers ----------------------------------------------------------------------------------------------------

    pub(super) fn enable_peer(&mut self, device: u32, peer: u32) -> CallResult<()> {
        if device == peer {
            return Err(Refusal::new(
                Code::InvalidDevice,
                format!("device {device} is not a peer of itself"),
            ));
        }
        let peers = &mut self.devices[device as usize].peers;
        if *peers & bit(peer) != 0 {
            return Err(Refusal::new(
                Code::PeerAccessAlreadyEnabled,
                format!("device {device} may touch memory of device {peer} already"),
            ));
        }
        *peers |= bit(peer);
        self.epoch += 1;
        Ok(())
    }

    pub(super) fn disable_peer(&mut self, device: u32, peer: u32) -> CallResult<()> {
        let peers = &mut self.devices[device as usize].peers;
        if *peers & bit(peer) == 0 {
            return Err(Refusal::new(
                Code::PeerAccessNotEnabled,
                format!("device {device} has no access to memory of device {peer} to give up"),
            ));
        }
        *peers &= !bit(peer);
        self.epoch += 1;
        Ok(())
    }

    // ---- Physical memory ------------------------------------------------------------------------------------------

    /// Takes entire pages of a device, in pieces if no single range is large enough.
    pub(super) fn take_pages(&mut self, device: u32, bytes: u64) -> CallResult<SmallVec<[Range; 1]>> {
        let free = &mut self.devices[device as usize].free;
        let pages = bytes.checked_next_multiple_of(PAGE_BYTES).and_then(|rounded| free.take_pieces(rounded));
        pages.ok_or_else(|| {
            let MemoryInfo { free_bytes, total_bytes } = self.info(device);
            Refusal::new(
                Code::OutOfMemory,
                format!("device {device}: {bytes} bytes asked for, {free_bytes} of {total_bytes} free"),
            )
        })
    }

    pub(super) fn release_pages(&mut self, device: u32, pieces: &[Range]) {
        for &piece in pieces {
            if piece.bytes >= DISCARD_BYTES {
                self.backing.discard(device, piece.start, piece.bytes);
            }
            self.devices[device as usize].free.release(piece);
        }
    }

    /// Creates physical memory with addresses of its own: in the window if it is one range, otherwise mapped into the area.
    pub(super) fn segment_create(&mut self, device: u32, bytes: u64) -> CallResult<Segment> {
        let pieces = self.take_pages(device, bytes)?;
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        if let [piece] = pieces[..] {
            let address = DEVICE_BASE + self.backing.window_offset(device) + piece.start;
            return Ok(Segment { device, address, bytes, pieces, windowed: true });
        }
        let mapped = self.take_area(bytes, PAGE_BYTES).and_then(|offset| {
            self.map_pieces(offset, device, &pieces).inspect_err(|_| {
                self.area.release(Range { start: offset, bytes });
            })?;
            Ok(offset)
        });
        match mapped {
            Ok(offset) => {
                Ok(Segment { device, address: DEVICE_BASE + offset, bytes, pieces, windowed: false })
            }
            Err(refusal) => {
                self.release_pages(device, &pieces);
                Err(refusal)
            }
        }
    }

    pub(super) fn segment_release(&mut self, segment: Segment) {
        if !segment.windowed {
            let offset = segment.address - DEVICE_BASE;
            self.unmap_area(offset, segment.bytes);
            self.area.release(Range { start: offset, bytes: segment.bytes });
        }
        self.release_pages(segment.device, &segment.pieces);
    }

    /// Releases a segment that a running command may still touch, which happens if a program's stream-ordered free races with the
    /// command. No span refers to the segment any more.
    pub(super) fn condemn(&mut self, segment: Segment) {
        self.condemned.push(segment);
    }

    /// Returns the physical ranges of an entire segment, as writes.
    pub(super) fn segment_pieces(&self, segment: &Segment) -> SmallVec<[Piece; 4]> {
        let base = physical_base(segment.device);
        let piece =
            |range: &Range| Piece { access: 0, writes: true, start: base + range.start, bytes: range.bytes };
        segment.pieces.iter().map(piece).collect()
    }

    pub(super) fn take_area(&mut self, bytes: u64, alignment: u64) -> CallResult<u64> {
        self.area.take(bytes, alignment).ok_or_else(|| {
            let detail = format!("no {bytes} contiguous addresses left ({} in all)", self.area.total());
            Refusal::new(Code::OutOfMemory, detail)
        })
    }

    /// Maps ranges of a device's memory one after another from an offset of the area on.
    pub(super) fn map_pieces(&mut self, offset: u64, device: u32, pieces: &[Range]) -> CallResult<()> {
        let mut done = 0;
        for piece in pieces {
            if let Err(error) = self.backing.map(offset + done, piece.bytes, device, piece.start) {
                if done > 0 {
                    self.unmap_area(offset, done);
                }
                let detail = format!("the operating system did not map {} bytes: {error}", piece.bytes);
                return Err(Refusal::new(Code::OutOfMemory, detail));
            }
            done += piece.bytes;
        }
        Ok(())
    }

    /// Makes a part of the area inaccessible. If the host refuses (too many mappings), the old mapping stays in place. This is
    /// safe: no span refers to it any more, so nothing can touch it.
    pub(super) fn unmap_area(&mut self, offset: u64, bytes: u64) {
        let _ = self.backing.unmap(offset, bytes);
    }

    // ---- Plain and pinned allocations -----------------------------------------------------------------------------

    pub(super) fn plain_allocate(&mut self, device: u32, bytes: u64, sharing: SpanAccess) -> CallResult<u64> {
        let segment = self.segment_create(device, nonzero(bytes)?)?;
        let address = segment.address;
        self.add_spans(&segment, address, bytes, sharing);
        self.allocations.insert(address, Allocation::Plain(segment));
        Ok(address)
    }

    /// Returns the device and the physical memory of a plain allocation.
    pub(super) fn plain_pieces(&self, address: u64) -> CallResult<(u32, SmallVec<[Piece; 4]>)> {
        match self.allocations.get(&address) {
            Some(Allocation::Plain(segment)) => Ok((segment.device, self.segment_pieces(segment))),
            _ => Err(Refusal::new(
                Code::InvalidValue,
                format!("{address:#x} is not what memory_allocate returned, or was freed already"),
            )),
        }
    }

    pub(super) fn plain_free(&mut self, address: u64) {
        let Some(Allocation::Plain(segment)) = self.allocations.remove(&address) else {
            unreachable!("plain_pieces found the allocation under the same lock");
        };
        self.remove_spans(address, segment.bytes);
        self.segment_release(segment);
    }

    /// Checks that a range is managed memory. In the simulator that is ordinary memory of a device: advice changes nothing.
    pub(super) fn check_managed(&self, address: u64, bytes: u64) -> CallResult<()> {
        let all = Access::new(address, nonzero(bytes)?, AccessMode::Read);
        let is_managed =
            |_| self.spans_in(address, bytes).all(|(_, span)| span.sharing == SpanAccess::Managed);
        let around = self.spans.range(..=address).next_back();
        let begins = around.is_some_and(|(_, span)| span.sharing == SpanAccess::Managed);
        if begins && self.resolve(0, &[all], Toucher::Copy).is_ok_and(is_managed) {
            return Ok(());
        }
        let detail = format!("{bytes} bytes at {address:#x} are not within managed memory");
        Err(Refusal::new(Code::InvalidValue, detail))
    }

    /// Allocates memory of the host, which several threads touch first.
    pub(super) fn pinned_allocate(&mut self, bytes: u64, prefault_threads: u32) -> CallResult<u64> {
        let reserved = nonzero(bytes)?.checked_next_multiple_of(PINNED_PAGE_BYTES);
        let refuse = |detail| Refusal::new(Code::OutOfMemory, detail);
        let no_room = || refuse(format!("no room for {bytes} bytes of pinned memory"));
        let reserved = reserved.filter(|&bytes| bytes <= PINNED_BYTES).ok_or_else(no_room)?;
        let mut memory = Anonymous::new(reserved)
            .map_err(|error| refuse(format!("{bytes} bytes of pinned memory: {error}")))?;
        memory.prefault(prefault_threads);
        let address = self.pinned_addresses.take(reserved, PINNED_PAGE_BYTES).ok_or_else(no_room)?;
        let span = Span {
            bytes,
            allocation: self.next_allocation(),
            physical: address,
            pointer: HostAddress::new(memory.pointer()),
            owner: u32::MAX,
            sharing: SpanAccess::Pinned,
        };
        self.add_span(address, span);
        self.allocations.insert(address, Allocation::Pinned { memory, bytes });
        Ok(address)
    }

    /// Returns an entire pinned allocation, as a write.
    pub(super) fn pinned_piece(&self, address: u64) -> CallResult<Piece> {
        match self.allocations.get(&address) {
            Some(Allocation::Pinned { bytes, .. }) => {
                Ok(Piece { access: 0, writes: true, start: address, bytes: *bytes })
            }
            _ => Err(Refusal::new(
                Code::InvalidValue,
                format!("{address:#x} is not what host_allocate returned, or was freed already"),
            )),
        }
    }

    pub(super) fn pinned_free(&mut self, address: u64) {
        let Some(Allocation::Pinned { memory, bytes }) = self.allocations.remove(&address) else {
            unreachable!("pinned_piece found the allocation under the same lock");
        };
        self.remove_spans(address, bytes);
        let reserved = bytes.next_multiple_of(PINNED_PAGE_BYTES);
        self.pinned_addresses.release(Range { start: address, bytes: reserved });
        drop(memory);
    }

    // ---- Spans ----------------------------------------------------------------------------------------------------

    pub(super) fn next_allocation(&mut self) -> u64 {
        self.last_allocation += 1;
        self.last_allocation
    }

    pub(super) fn add_span(&mut self, address: u64, span: Span) {
        self.spans.insert(address, span);
        self.epoch += 1;
    }

    /// Adds the spans of a part of a segment, as an allocation of its own.
    pub(super) fn add_spans(&mut self, segment: &Segment, address: u64, bytes: u64, sharing: SpanAccess) {
        let allocation = self.next_allocation();
        let (skip, mut left) = (address - segment.address, bytes);
        let mut position = 0;
        for piece in &segment.pieces {
            let inside = skip.saturating_sub(position).min(piece.bytes);
            let length = (piece.bytes - inside).min(left);
            if length > 0 {
                let start = segment.address + position + inside;
                let span = Span {
                    bytes: length,
                    allocation,
                    physical: physical_base(segment.device) + piece.start + inside,
                    pointer: self.host_address(start),
                    owner: segment.device,
                    sharing,
                };
                self.add_span(start, span);
                left -= length;
            }
            position += piece.bytes;
        }
        debug_assert_eq!(left, 0, "the part lies inside the segment");
    }

    pub(super) fn remove_spans(&mut self, address: u64, bytes: u64) {
        let starts: SmallVec<[u64; 4]> =
            self.spans.range(address..address + bytes).map(|(&start, _)| start).collect();
        for start in starts {
            self.spans.remove(&start);
        }
        self.epoch += 1;
    }

    pub(super) fn spans_in(&self, address: u64, bytes: u64) -> impl Iterator<Item = (u64, &Span)> {
        self.spans.range(address..address + bytes).map(|(&start, span)| (start, span))
    }

    /// Returns the device of the memory at an address: `Some(device)`, or `Some(None)` for host memory. `None` if there is no
    /// memory.
    pub(super) fn place(&self, address: u64) -> Option<Option<u32>> {
        let (&start, span) = self.spans.range(..=address).next_back()?;
        (address < start + span.bytes).then(|| (span.sharing != SpanAccess::Pinned).then_some(span.owner))
    }

    pub(super) fn spans_in_mut(&mut self, address: u64, bytes: u64) -> impl Iterator<Item = &mut Span> {
        self.epoch += 1;
        self.spans.range_mut(address..address + bytes).map(|(_, span)| span)
    }

    /// Returns the host address of a device address.
    pub(super) fn host_address(&self, address: u64) -> HostAddress {
        HostAddress::new(self.backing.pointer(address - DEVICE_BASE))
    }

    // ---- Touching -------------------------------------------------------------------------------------------------

    /// Resolves all accesses of a command of `device`; the error describes an access that is not allowed.
    pub(super) fn resolve(
        &self,
        device: u32,
        accesses: &[Access],
        toucher: Toucher,
    ) -> Result<Resolved, String> {
        let mut resolved = Resolved::default();
        for (number, access) in accesses.iter().enumerate() {
            let pointer = self.resolve_one(device, access, number as u32, toucher, &mut resolved.pieces)?;
            resolved.pointers.push(pointer);
        }
        Ok(resolved)
    }

    /// Resolves a range of pinned memory that the host touches.
    pub(super) fn resolve_pinned(&self, access: &Access) -> Result<Resolved, String> {
        if access.bytes > 0 && access.start >= DEVICE_BASE {
            return Err(format!("{:#x} is a device address", access.start));
        }
        self.resolve(0, std::slice::from_ref(access), Toucher::Copy)
    }

    fn resolve_one(
        &self,
        device: u32,
        access: &Access,
        number: u32,
        toucher: Toucher,
        pieces: &mut SmallVec<[Piece; 4]>,
    ) -> Result<Option<HostAddress>, String> {
        if access.bytes == 0 {
            return Ok(None);
        }
        let writes = access.mode.writes();
        let end = access.start.checked_add(access.bytes).ok_or_else(|| self.explain(access, access.start))?;
        let mut first: Option<(HostAddress, u64)> = None;
        let mut position = access.start;
        while position < end {
            let found = self.spans.range(..=position).next_back();
            let Some((start, span)) = found.filter(|&(&start, span)| position < start + span.bytes) else {
                return Err(self.explain(access, position));
            };
            let inside = position - start;
            let pointer = span.pointer.pointer().wrapping_add(inside as usize);
            let (_, allocation) = *first.get_or_insert((HostAddress::new(pointer), span.allocation));
            if allocation != span.allocation {
                return Err(self.explain(access, position));
            }
            if !self.permitted(device, span, writes, toucher) {
                return Err(self.explain_permission(access, device, span.owner));
            }
            let bytes = (span.bytes - inside).min(end - position);
            pieces.push(Piece { access: number, writes, start: span.physical + inside, bytes });
            position += bytes;
        }
        Ok(first.map(|(pointer, _)| pointer))
    }

    fn permitted(&self, device: u32, span: &Span, writes: bool, toucher: Toucher) -> bool {
        let by_owner = device == span.owner || toucher == Toucher::Copy;
        match span.sharing {
            SpanAccess::Pinned | SpanAccess::Managed => true,
            SpanAccess::Pool => by_owner,
            SpanAccess::Plain => by_owner || self.devices[device as usize].peers & bit(span.owner) != 0,
            SpanAccess::Mapped { readers, writers } => {
                (if writes { writers } else { readers }) & bit(device) != 0
            }
        }
    }

    fn explain(&self, access: &Access, position: u64) -> String {
        let Access { start, bytes, mode, .. } = *access;
        let verb = if mode.writes() { "writes" } else { "reads" };
        let near = match self.spans.range(..=position).next_back() {
            Some((&below, span)) => {
                format!("the memory before it is [{below:#x}, {:#x})", below + span.bytes)
            }
            None => "there is no memory before it".to_owned(),
        };
        format!(
            "it {verb} {bytes} bytes from {start:#x} on, and at {position:#x} that leaves live memory ({near})"
        )
    }

    fn explain_permission(&self, access: &Access, device: u32, owner: u32) -> String {
        let verb = if access.mode.writes() { "write" } else { "read" };
        format!(
            "device {device} may not {verb} the {} bytes from {:#x} on, memory of device {owner}: plain memory needs \
             enable_peer_access, mapped memory needs memory_set_access for that device",
            access.bytes, access.start
        )
    }
}

/// Returns the first physical address of a device.
pub(super) const fn physical_base(device: u32) -> u64 {
    (device as u64) << PHYSICAL_BITS
}

pub(super) const fn bit(device: u32) -> u64 {
    1 << device
}

pub(super) fn nonzero(bytes: u64) -> CallResult<u64> {
    if bytes > 0 { Ok(bytes) } else { Err(Refusal::new(Code::InvalidValue, "0 bytes asked for")) }
}
