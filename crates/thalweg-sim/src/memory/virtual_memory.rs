//! Virtual memory: reserved addresses, physical memory without an address, and mappings between them.
//!
//! Invariants: mappings are inside one reservation and do not overlap; a mapping keeps its physical memory alive; physical
//! memory returns to its device when its handle is released and its last mapping is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Code, HandleType, MemoryAccess};

use super::ranges::Range;
use crate::memory::{DEVICE_BASE, Memory, Piece, Span, SpanAccess, bit, nonzero, physical_base};
use crate::refusal::{CallResult, Refusal};

/// The unit of reservations, physical memory and mappings.
pub(crate) const GRANULARITY_BYTES: u64 = 2 << 20;

/// A reserved range of addresses.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: u64,
    allocation: u64,
    /// The mappings, by first address.
    mappings: BTreeMap<u64, Mapping>,
}

#[derive(Debug)]
struct Mapping {
    bytes: u64,
    physical: Arc<PhysicalMemory>,
}

/// Physical memory without an address.
#[derive(Debug)]
pub(crate) struct PhysicalMemory {
    pub(crate) device: u32,
    pub(crate) bytes: u64,
    /// The type of handle by which the memory can be exported.
    pub(crate) share_as: Option<HandleType>,
    pieces: SmallVec<[Range; 1]>,
}

impl PhysicalMemory {
    /// Returns the physical ranges of a part of this memory.
    fn part(&self, offset: u64, bytes: u64) -> SmallVec<[Range; 1]> {
        let mut part = SmallVec::new();
        let (mut skip, mut left) = (offset, bytes);
        for piece in &self.pieces {
            let inside = skip.min(piece.bytes);
            let length = (piece.bytes - inside).min(left);
            if length > 0 {
                part.push(Range { start: piece.start + inside, bytes: length });
            }
            skip -= inside;
            left -= length;
        }
        part
    }
}

impl Memory {
    pub(crate) fn address_reserve(&mut self, bytes: u64) -> CallResult<u64> {
        granular("bytes", nonzero(bytes)?)?;
        let address = DEVICE_BASE + self.take_area(bytes, GRANULARITY_BYTES)?;
        let allocation = self.next_allocation();
        self.reservations.insert(address, Reservation { bytes, allocation, mappings: BTreeMap::new() });
        Ok(address)
    }

    pub(crate) fn address_free(&mut self, address: u64, bytes: u64) -> CallResult<()> {
        let invalid = |detail| Err(Refusal::new(Code::InvalidValue, detail));
        match self.reservations.get(&address) {
            Some(found) if found.bytes != bytes => invalid(format!(
                "the reservation at {address:#x} has {} bytes and is freed whole, not {bytes}",
                found.bytes
            )),
            Some(found) if !found.mappings.is_empty() => invalid(format!(
                "{} mappings are left in the reservation at {address:#x}: unmap them first",
                found.mappings.len()
            )),
            Some(_) => {
                self.reservations.remove(&address);
                self.area.release(Range { start: address - DEVICE_BASE, bytes });
                Ok(())
            }
            None => invalid(format!("no reservation begins at {address:#x}")),
        }
    }

    pub(crate) fn physical_create(
        &mut self,
        device: u32,
        bytes: u64,
        share_as: Option<HandleType>,
    ) -> CallResult<u64> {
        granular("bytes", nonzero(bytes)?)?;
        let pieces = self.take_pages(device, bytes)?;
        Ok(self.physicals.insert(Arc::new(PhysicalMemory { device, bytes, share_as, pieces })))
    }

    pub(crate) fn physical(&self, handle: u64) -> CallResult<&Arc<PhysicalMemory>> {
        self.physicals.get(handle).ok_or_else(|| no_physical(handle))
    }

    pub(crate) fn physical_release(&mut self, handle: u64) -> CallResult<()> {
        let physical = self.physicals.remove(handle).ok_or_else(|| no_physical(handle))?;
        self.give_up(physical);
        Ok(())
    }

    pub(crate) fn map(&mut self, address: u64, bytes: u64, handle: u64, offset: u64) -> CallResult<()> {
        granular("bytes", nonzero(bytes)?)?;
        granular("offset", offset)?;
        granular("address", address)?;
        let physical = Arc::clone(self.physical(handle)?);
        if offset.checked_add(bytes).is_none_or(|end| end > physical.bytes) {
            return Err(Refusal::new(
                Code::InvalidValue,
                format!("{bytes} bytes from {offset} on: the physical memory has {} bytes", physical.bytes),
            ));
        }
        let (start, reservation) = self.reservation_around(address, bytes)?;
        let allocation = reservation.allocation;
        let before = reservation.mappings.range(..address + bytes).next_back();
        if let Some((&other, mapping)) = before
            && other + mapping.bytes > address
        {
            return Err(Refusal::new(
                Code::AlreadyMapped,
                format!("[{other:#x}, {:#x}) is mapped already: unmap it first", other + mapping.bytes),
            ));
        }
        let part = physical.part(offset, bytes);
        self.map_pieces(address - DEVICE_BASE, physical.device, &part)?;
        let mut position = address;
        for range in &part {
            let span = Span {
                bytes: range.bytes,
                allocation,
                physical: physical_base(physical.device) + range.start,
                pointer: self.host_address(position),
                owner: physical.device,
                sharing: SpanAccess::Mapped { readers: 0, writers: 0 },
            };
            self.add_span(position, span);
            position += range.bytes;
        }
        let reservation = self.reservations.get_mut(&start).expect("found above");
        reservation.mappings.insert(address, Mapping { bytes, physical });
        Ok(())
    }

    /// Returns the physical memory of entire mappings, as writes.
    pub(crate) fn mapped_pieces(&self, address: u64, bytes: u64) -> CallResult<SmallVec<[Piece; 4]>> {
        self.whole_mappings(address, bytes)?;
        let piece = |(_, span): (u64, &Span)| Piece {
            access: 0,
            writes: true,
            start: span.physical,
            bytes: span.bytes,
        };
        Ok(self.spans_in(address, bytes).map(piece).collect())
    }

    /// Unmaps a range for which `mapped_pieces` succeeded, under the same lock.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) {
        self.remove_spans(address, bytes);
        self.unmap_area(address - DEVICE_BASE, bytes);
        let reservations = self.reservations.range_mut(..=address).next_back();
        let (_, reservation) = reservations.expect("mapped_pieces found it");
        let starts: Vec<u64> =
            reservation.mappings.range(address..address + bytes).map(|(&start, _)| start).collect();
        let gone: Vec<Mapping> =
            starts.iter().filter_map(|start| reservation.mappings.remove(start)).collect();
        for mapping in gone {
            self.give_up(mapping.physical);
        }
    }

    pub(crate) fn set_access(
        &mut self,
        address: u64,
        bytes: u64,
        device: u32,
        access: MemoryAccess,
    ) -> CallResult<()> {
        self.whole_mappings(address, bytes)?;
        let (reads, writes) = match access {
            MemoryAccess::None => (0, 0),
            MemoryAccess::Read => (bit(device), 0),
            MemoryAccess::ReadWrite => (bit(device), bit(device)),
        };
        for span in self.spans_in_mut(address, bytes) {
            if let SpanAccess::Mapped { readers, writers } = &mut span.sharing {
                *readers = *readers & !bit(device) | reads;
                *writers = *writers & !bit(device) | writes;
            }
        }
        Ok(())
    }

    fn give_up(&mut self, physical: Arc<PhysicalMemory>) {
        if let Some(PhysicalMemory { device, pieces, .. }) = Arc::into_inner(physical) {
            self.release_pages(device, &pieces);
        }
    }

    fn reservation_around(&self, address: u64, bytes: u64) -> CallResult<(u64, &Reservation)> {
        let found = self.reservations.range(..=address).next_back();
        let inside = |&(&start, reservation): &(&u64, &Reservation)| {
            address.checked_add(bytes).is_some_and(|end| end <= start + reservation.bytes)
        };
        found.filter(inside).map(|(&start, reservation)| (start, reservation)).ok_or_else(|| {
            Refusal::new(
                Code::InvalidValue,
                format!("{bytes} bytes from {address:#x} on do not lie inside one reserved range"),
            )
        })
    }

    /// Checks that a range consists of entire mappings, without a gap.
    fn whole_mappings(&self, address: u64, bytes: u64) -> CallResult<()> {
        let (_, reservation) = self.reservation_around(address, nonzero(bytes)?)?;
        let end = address + bytes;
        let mut position = address;
        while position < end {
            match reservation.mappings.get(&position) {
                Some(mapping) => position += mapping.bytes,
                None => break,
            }
        }
        if position == end {
            return Ok(());
        }
        Err(Refusal::new(
            Code::InvalidValue,
            format!(
                "{bytes} bytes from {address:#x} on are not made of whole mappings (from {position:#x} on)"
            ),
        ))
    }
}

fn no_physical(handle: u64) -> Refusal {
    Refusal::new(Code::InvalidHandle, format!("{handle:#x} is not physical memory, or was released"))
}

fn granular(what: &str, value: u64) -> CallResult<()> {
    if value.is_multiple_of(GRANULARITY_BYTES) {
        return Ok(());
    }
    Err(Refusal::new(
        Code::InvalidValue,
        format!("{what} = {value:#x} is not a multiple of the granularity, {GRANULARITY_BYTES} bytes"),
    ))
}
