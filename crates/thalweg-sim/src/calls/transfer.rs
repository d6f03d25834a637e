//! Copies, fills, and the host's access to pinned memory.
//!
//! The addresses of a copy or fill are checked when it is submitted, so that a wrong pointer is an error of the call that
//! passed it, and again when it runs.

use smallvec::SmallVec;
use thalweg_driver::{Access, AccessMode, Code, Copy, Endpoint, Fill, GraphNodeKind, Label};

use crate::executor::command::CommandId;
use crate::executor::task::{Task, Work};
use crate::machine::Locked;
use crate::memory::{HostAddress, Piece, Toucher};
use crate::refusal::{CallResult, Refusal};
use crate::state::MachineState;

/// Queues a command that is not a kernel, after checking its accesses.
pub(crate) fn submit(
    state: &mut MachineState,
    own: u64,
    label: Label,
    accesses: &[Access],
    work: Work,
    kind: GraphNodeKind,
) -> CallResult<Option<CommandId>> {
    let device = state.stream(own).device;
    state
        .memory
        .resolve(device, accesses, Toucher::Copy)
        .map_err(|text| Refusal::new(Code::InvalidValue, format!("`{label}`: {text}")))?;
    let task = Task { device, label, accesses: SmallVec::from_slice(accesses), work };
    state.submit(own, task, kind)
}

/// Queues a copy.
pub(crate) fn copy(state: &mut MachineState, stream: u64, copy: &Copy) -> CallResult<()> {
    let own = state.enter(stream)?;
    let access = |endpoint: Endpoint, mode: AccessMode| {
        let start = match endpoint {
            Endpoint::Device(pointer) => pointer.address(),
            Endpoint::Pinned(pointer) => pointer.address(),
        };
        Access::new(start, copy.bytes, mode)
    };
    let accesses = [access(copy.source, AccessMode::Read), access(copy.target, AccessMode::Write)];
    submit(state, own, copy.label, &accesses, Work::Copy, GraphNodeKind::Copy).map(|_| ())
}

/// Queues a fill.
pub(crate) fn fill(state: &mut MachineState, stream: u64, fill: &Fill) -> CallResult<()> {
    let own = state.enter(stream)?;
    let unit = fill.pattern.bytes();
    let refuse = |detail| Err(Refusal::new(Code::InvalidValue, detail));
    if !fill.target.address().is_multiple_of(unit) {
        return refuse(format!("{:?} is not aligned to the pattern of {unit} bytes", fill.target));
    }
    let Some(bytes) = fill.count.checked_mul(unit) else {
        return refuse(format!("{} times {unit} bytes: more than there are addresses", fill.count));
    };
    let accesses = [Access::write(fill.target, bytes)];
    submit(state, own, fill.label, &accesses, Work::Fill(fill.pattern), GraphNodeKind::Fill).map(|_| ())
}

/// Waits until no running command uses some memory, and removes it. `find` returns the memory if it still exists; it is
/// called again after the wait, because other threads run meanwhile.
pub(crate) fn take_away(
    mut locked: Locked<'_>,
    find: impl Fn(&MachineState) -> CallResult<SmallVec<[Piece; 4]>>,
    remove: impl FnOnce(&mut MachineState),
) -> CallResult<()> {
    let pieces = find(&locked)?;
    let claim;
    (locked, claim) = locked.hold(pieces.clone())?;
    let outcome = match find(&locked) {
        Ok(found) if found == pieces => {
            remove(&mut locked);
            Ok(())
        }
        Ok(_) => Err(Refusal::new(Code::InvalidValue, "another thread took the memory away first")),
        Err(refusal) => Err(refusal),
    };
    locked.executor.release(claim);
    outcome
}

/// Holds a range of pinned memory while `body` touches it. Waits for running commands only.
pub(crate) fn with_pinned(locked: Locked<'_>, access: Access, body: impl FnOnce(*mut u8)) -> CallResult<()> {
    let resolve = |state: &MachineState| {
        let refuse = |text| Refusal::new(Code::InvalidValue, format!("pinned memory: {text}"));
        state.memory.resolve_pinned(&access).map_err(refuse)
    };
    // The physical address of pinned memory is its address, so the held bytes are right whatever happens meanwhile. Its
    // place may change: another thread may free it, and allocate again.
    let (mut locked, claim) = {
        let pieces = resolve(&locked)?.pieces;
        locked.hold(pieces)?
    };
    let pointer = match resolve(&locked) {
        Ok(resolved) => resolved.pointers[0].map(HostAddress::pointer),
        Err(refusal) => {
            locked.executor.release(claim);
            return Err(refusal);
        }
    };
    if let Some(pointer) = pointer {
        (locked, ()) = locked.outside(|| body(pointer));
    }
    locked.executor.release(claim);
    Ok(())
}
