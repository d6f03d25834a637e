//! Memory that the host accesses in place: memory of the process at an address of its own, and views of devices' memory.
//!
//! A call that queues a command on such memory returns when the command is done ([`MachineState::awaited`]). So between two calls
//! no command touches it, and the host sees what the calls before have written.
//!
//! # Lifetime
//! The caller of `host_map` promises that the memory lives until `host_unmap` returns, and `host_unmap` waits until no running
//! command touches it. A queued command cannot exist: its call has not returned, and what it works on is still in use. A node of a
//! graph that names the address afterwards fails as for any freed memory, since the span is gone.
//!
//! [`MachineState::awaited`]: crate::state::MachineState::awaited

use std::collections::BTreeMap;

use thalweg_driver::{Access, Code, ProcessMemory};

use crate::memory::ranges::Range;
use crate::memory::{
    Allocation, HostAddress, Memory, PINNED_PAGE_BYTES, Piece, Resolved, Span, SpanAccess, Toucher, nonzero,
};
use crate::refusal::{CallResult, Refusal};

/// The difference between a physical address of memory of the process and its address there.
pub(crate) const PROCESS_BASE: u64 = 0x0c00_0000_0000_0000;

/// Ranges of addresses that the host accesses in place. They do not overlap, and each may be viewed several times.
#[derive(Debug, Default)]
pub(crate) struct VisibleRanges(BTreeMap<u64, (u64, u32)>);

impl VisibleRanges {
    fn add(&mut self, start: u64, bytes: u64) {
        let (longest, views) = self.0.entry(start).or_insert((bytes, 0));
        *longest = (*longest).max(bytes);
        *views += 1;
    }

    fn remove(&mut self, start: u64) -> bool {
        let Some((_, views)) = self.0.get_mut(&start) else { return false };
        *views -= 1;
        if *views == 0 {
            self.0.remove(&start);
        }
        true
    }

    /// Returns whether one of the accesses touches memory that the host accesses in place.
    pub(crate) fn are_touched(&self, accesses: &[Access]) -> bool {
        let touched = |access: &Access| {
            let below = self.0.range(..access.start.saturating_add(access.bytes)).next_back();
            below.is_some_and(|(&start, &(bytes, _))| access.bytes > 0 && access.start < start + bytes)
        };
        !self.0.is_empty() && accesses.iter().any(touched)
    }
}

impl Memory {
    /// Gives memory of the process an address. It has the same place within a page as in the process: kernels see its alignment.
    pub(crate) fn process_map(&mut self, memory: &ProcessMemory) -> CallResult<u64> {
        let (start, bytes) = (memory.address() as u64, nonzero(memory.size_bytes())?);
        let inside = start % PINNED_PAGE_BYTES;
        let needed =
            bytes.checked_add(inside).and_then(|sum| sum.checked_next_multiple_of(PINNED_PAGE_BYTES));
        let taken = needed.and_then(|needed| {
            Some(Range { start: self.pinned_addresses.take(needed, PINNED_PAGE_BYTES)?, bytes: needed })
        });
        let no_room =
            || Refusal::new(Code::OutOfMemory, format!("no addresses for {bytes} bytes of the process"));
        let taken = taken.ok_or_else(no_room)?;
        let address = taken.start + inside;
        let span = Span {
            bytes,
            allocation: self.next_allocation(),
            physical: PROCESS_BASE + start,
            pointer: HostAddress::new(memory.address() as *mut u8),
            owner: u32::MAX,
            sharing: SpanAccess::Pinned,
        };
        self.add_span(address, span);
        self.allocations.insert(address, Allocation::Process { taken });
        self.visible.add(address, bytes);
        Ok(address)
    }

    /// Returns the entire memory of a mapping, as a write.
    pub(crate) fn process_piece(&self, address: u64) -> CallResult<Piece> {
        match (self.allocations.get(&address), self.spans_in(address, 1).next()) {
            (Some(Allocation::Process { .. }), Some((_, span))) => {
                Ok(Piece { access: 0, writes: true, start: span.physical, bytes: span.bytes })
            }
            _ => Err(Refusal::new(
                Code::InvalidValue,
                format!("{address:#x} is not what host_map returned, or was unmapped already"),
            )),
        }
    }

    pub(crate) fn process_unmap(&mut self, address: u64) {
        let Some(Allocation::Process { taken }) = self.allocations.remove(&address) else {
            unreachable!("process_piece found the mapping under the same lock");
        };
        self.remove_spans(address, 1);
        self.visible.remove(address);
        self.pinned_addresses.release(taken);
    }

    /// Makes memory of a device visible to the host, and returns its address in the process.
    pub(crate) fn view(&mut self, device: u32, access: &Access) -> CallResult<u64> {
        nonzero(access.bytes)?;
        let found = self.resolve(device, std::slice::from_ref(access), Toucher::Copy);
        let refuse = |text| Refusal::new(Code::InvalidValue, text);
        let Resolved { pointers, .. } = found.map_err(refuse)?;
        let Some(&Some(address)) = pointers.first() else {
            return Err(refuse("there is no memory to view".to_owned()));
        };
        self.visible.add(access.start, access.bytes);
        Ok(address.pointer() as u64)
    }

    /// Ends a view.
    pub(crate) fn unview(&mut self, start: u64) -> CallResult<()> {
        if self.visible.remove(start) {
            return Ok(());
        }
        Err(Refusal::new(Code::InvalidValue, format!("the host has no view of {start:#x}")))
    }
}
