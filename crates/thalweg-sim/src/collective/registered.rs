//! Memory for collectives, and its registration with ranks. Registered memory behaves like any other here. A GPU's library
//! would continue to use it after it is freed, so freeing it is refused. Symmetric memory is checked against the other
//! ranks' registrations of the same call; no call waits for them.

use std::collections::BTreeMap;

use thalweg_driver::{Code, CommunicatorHandle, DevicePointer, Label, Registration};

use crate::executor::faults::Point;
use crate::memory::{Allocation, SpanAccess, Toucher, nonzero};
use crate::refusal::{CallResult, Refusal};
use crate::state::MachineState;

/// The symmetric registrations that only some ranks have made yet, by communicator and number.
pub(super) type Windows = BTreeMap<(u64, u64), Window>;

/// A symmetric registration that some ranks have made.
pub(super) struct Window {
    /// The rank that made the registration first, with the number of bytes and the label of the call.
    first: (u32, u64, Label),
    /// The number of ranks that have made the registration.
    made: u32,
}

/// Returns the first of the registrations that overlaps a range.
fn overlapping<'a>(
    mut registered: impl Iterator<Item = &'a Registration>,
    start: u64,
    bytes: u64,
) -> Option<&'a Registration> {
    let end = start.saturating_add(bytes);
    registered.find(|other| {
        let at = other.pointer.address();
        at < end && start < at + other.bytes
    })
}

impl MachineState {
    pub(crate) fn memory_allocate_collective(
        &mut self,
        device: u32,
        bytes: u64,
    ) -> CallResult<DevicePointer> {
        self.usable(device)?;
        self.forbid_in_capture("memory_allocate_collective")?;
        self.executor.faults.pass(Point::DeviceMemory)?;
        self.memory.plain_allocate(device, bytes, SpanAccess::Plain).map(DevicePointer::new)
    }

    pub(crate) fn memory_register(&mut self, new: &Registration) -> CallResult<()> {
        let (label, start) = (new.label, new.pointer.address());
        let refuse = |text: String| Err(Refusal::new(Code::InvalidValue, format!("`{label}`: {text}")));
        let info = self.communicator_info(new.communicator)?;
        self.usable(info.device)?;
        let all = thalweg_driver::Access::write(new.pointer, nonzero(new.bytes)?);
        if let Err(text) = self.memory.resolve(info.device, &[all], Toucher::Kernel) {
            return refuse(text);
        }
        let of_rank = self.registered.iter().filter(|other| other.communicator == new.communicator);
        if let Some(other) = overlapping(of_rank, start, new.bytes) {
            return refuse(format!(
                "{} bytes at {start:#x} overlap the {} bytes at {:#x}, which are registered with rank {}",
                new.bytes,
                other.bytes,
                other.pointer.address(),
                info.rank
            ));
        }
        if new.symmetric {
            self.forbid_in_capture("memory_register")?;
            self.enter_window(new).or_else(refuse)?;
        }
        self.registered.push(*new);
        Ok(())
    }

    /// Checks a symmetric registration against the other ranks' registrations in the same call.
    fn enter_window(&mut self, new: &Registration) -> Result<(), String> {
        let Ok((communicator, rank)) = self.communicator(new.communicator) else { return Ok(()) };
        let gate = &mut self.executor.gate;
        let Some(found) = gate.communicators.get_mut(&communicator) else { return Ok(()) };
        let (all, number) = (found.ranks.len() as u32, &mut found.ranks[rank as usize].windows);
        let key = (communicator, *number);
        let window =
            gate.windows.entry(key).or_insert(Window { first: (rank, new.bytes, new.label), made: 0 });
        let (other, bytes, label) = window.first;
        if bytes != new.bytes {
            return Err(format!(
                "rank {rank} registers {} bytes of symmetric memory, rank {other} {bytes} ({label}): all ranks register as much, in the same order",
                new.bytes
            ));
        }
        *number += 1;
        window.made += 1;
        if window.made == all {
            gate.windows.remove(&key);
        }
        Ok(())
    }

    pub(crate) fn memory_deregister(
        &mut self,
        communicator: CommunicatorHandle,
        pointer: DevicePointer,
    ) -> CallResult<()> {
        let rank = self.communicator_info(communicator)?.rank;
        let is_it = |other: &Registration| other.communicator == communicator && other.pointer == pointer;
        let Some(place) = self.registered.iter().position(is_it) else {
            let text = format!("nothing at {:#x} is registered with rank {rank}", pointer.address());
            return Err(Refusal::new(Code::InvalidValue, text));
        };
        self.registered.swap_remove(place);
        Ok(())
    }

    /// Removes the registrations of a rank that has been destroyed.
    pub(super) fn forget_registered(&mut self, communicator: CommunicatorHandle) {
        self.registered.retain(|other| other.communicator != communicator);
    }

    /// Checks that no part of the plain memory at an address is registered.
    pub(crate) fn check_not_registered(&self, address: u64) -> CallResult<()> {
        let Some(Allocation::Plain(segment)) = self.memory.allocations.get(&address) else { return Ok(()) };
        let Some(other) = overlapping(self.registered.iter(), address, segment.bytes) else { return Ok(()) };
        let rank = self.communicator_info(other.communicator)?.rank;
        let detail = format!(
            "of the {} bytes at {address:#x}, {} bytes at {:#x} are registered with rank {rank} of a communicator ({}): deregister them first",
            segment.bytes,
            other.bytes,
            other.pointer.address(),
            other.label
        );
        Err(Refusal::new(Code::IllegalState, detail))
    }
}
