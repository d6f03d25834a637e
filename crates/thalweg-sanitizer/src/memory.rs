//! Memory that is allocated and freed by calls of the driver.

use smallvec::SmallVec;
use thalweg_driver::{AccessMode, ShareableHandle};

use super::bytes::Bytes;
use super::clock::Clock;
use super::finding::FindingKind;
use super::model::{HostId, Model};
use super::shadow::{Mark, MarkKind, Seen, Written};
use super::site::SiteId;
use super::space::{Departed, ELSEWHERE, ObjectId, ObjectKind, Shared, Taken};
use super::touch::{Troubles, add, trouble};

impl Model {
    /// Notes new memory, mapped at an address.
    pub(super) fn appeared(&mut self, kind: ObjectKind, device: u32, start: u64, bytes: u64, site: SiteId) {
        let is_written = kind == ObjectKind::Pinned;
        let object = self.space.create(kind, device, bytes, is_written, site);
        self.space.map(start, bytes, object, 0);
    }

    /// Removes the memory that is mapped at an address, and remembers that it was there.
    pub(super) fn depart(&mut self, start: u64, freed: SiteId) -> Taken {
        match self.space.starting_at(start) {
            Some(mapping) => self.depart_range(start, mapping.end, freed),
            None => Taken::new(),
        }
    }

    /// Removes everything that is mapped in a range.
    pub(super) fn depart_range(&mut self, start: u64, end: u64, freed: SiteId) -> Taken {
        let taken = self.space.take(start, end);
        for mapping in &taken {
            let allocated = self.space.object(mapping.object).allocated;
            self.space.remember(Departed { start: mapping.start, end: mapping.end, allocated, freed });
        }
        taken
    }

    /// Notes whether the driver has released the memory, and restores the mappings if it has not.
    pub(super) fn departed(&mut self, taken: Taken, is_done: bool) {
        if !is_done {
            return self.space.restore(taken);
        }
        for mapping in taken {
            self.space.let_go(mapping.object);
        }
    }

    /// Notes that physical memory was exported by a handle.
    pub(super) fn gave_away(&mut self, physical: u64, handle: &ShareableHandle) {
        if let (Some(&object), Some(handle)) = (self.physical.get(&physical), Shared::of(handle)) {
            let serial = self.space.object(object).serial;
            self.given_away.insert(handle, (object, serial));
        }
    }

    /// Returns the object of a handle that was opened, with one more reference, if it was exported here.
    pub(super) fn opened(&mut self, handle: &ShareableHandle) -> Option<ObjectId> {
        let &(object, serial) = self.given_away.get(&Shared::of(handle)?)?;
        self.space.bytes_of(object, serial)?;
        self.space.keep(object);
        Some(object)
    }

    /// Checks whether the host has seen all work complete that uses a range which is about to be unmapped.
    pub(super) fn check_unmap(&mut self, start: u64, bytes: u64, host: HostId, site: SiteId) {
        if self.stands_still {
            return;
        }
        let mut known = self.hosts[host as usize].clock.clone();
        known.join(&self.observed);
        let pieces = self.space.translate(start, bytes);
        let mut found: SmallVec<[_; 4]> = SmallVec::new();
        self.marks(&pieces, |piece, first, end, mark, block| {
            let is_work = mark.kind == MarkKind::Command && piece.object != ELSEWHERE;
            // The bytes may also be mapped at another address, and used there.
            let by_this_address = mark.start < start.saturating_add(bytes) && start < mark.start + mark.bytes;
            if is_work && by_this_address && !mark.is_before(&known) {
                found.push((*piece, first, end, *mark, block));
            }
        });
        let mut troubles = Troubles::new();
        for (piece, first, end, mark, block) in found {
            add(&mut troubles, trouble(FindingKind::UnmapInUse, Some(mark), block, &piece, first, end));
        }
        let number = self.number + 1;
        let strand = self.hosts[host as usize].strand;
        let mode = AccessMode::Write;
        let mark = Mark { start, bytes, mode, ..Mark::new(strand, number, site, MarkKind::Free) };
        for trouble in troubles {
            self.report(&trouble, &mark, &known);
        }
    }

    /// Notes that stream-ordered memory exists from this piece of work on. If a graph is launched again, other work's uses of the
    /// previous launch's memory must be complete.
    pub(super) fn given_out(&mut self, clock: &Clock, mark: Mark, start: u64, bytes: u64) {
        debug_assert!(mark.is_before(clock), "an actor knows of itself");
        let mark = Mark { start, bytes, mode: AccessMode::Write, ..mark };
        let given = Mark { kind: MarkKind::Allocation, ..mark };
        let (mut known, mut troubles) = (clock.clone(), Troubles::new());
        known.join(&self.observed);
        for piece in self.space.translate(start, bytes) {
            if piece.object == ELSEWHERE {
                continue;
            }
            let shadow = &mut self.space.object(piece.object).shadow;
            shadow.each(&Bytes::range(piece.start, piece.end), true, |Seen { first, end, state, .. }| {
                // The address stays the graph's, whichever call freed the memory that a launch left there.
                let is_use = |other: &&Mark| matches!(other.kind, MarkKind::Command | MarkKind::Host);
                let late = state.marks().filter(is_use).find(|other| !other.is_before(&known)).copied();
                if let Some(other) = late {
                    let kind = FindingKind::Race;
                    add(&mut troubles, trouble(kind, Some(other), state.block, &piece, first, end));
                }
                state.wrote(&given);
                state.written = Written::No;
            });
        }
        for trouble in troubles {
            self.report(&trouble, &mark, clock);
        }
    }

    /// Notes that stream-ordered memory ends with this piece of work.
    pub(super) fn taken_back(&mut self, clock: &Clock, mark: Mark, start: u64) {
        let Some(mapping) = self.space.starting_at(start) else { return };
        let bytes = mapping.end - start;
        let mark = Mark { start, bytes, mode: AccessMode::Write, kind: MarkKind::Free, ..mark };
        let (mut known, mut troubles) = (clock.clone(), Troubles::new());
        // An allocator that saw a use complete may free after it.
        known.join(&self.observed);
        for piece in self.space.translate(start, bytes) {
            let shadow = &mut self.space.object(piece.object).shadow;
            shadow.each(&Bytes::range(piece.start, piece.end), true, |Seen { first, end, state, .. }| {
                let late = state.marks().find(|other| !other.is_before(&known)).copied();
                if let Some(other) = late {
                    let kind = FindingKind::FreeBeforeLastUse;
                    add(&mut troubles, trouble(kind, Some(other), state.block, &piece, first, end));
                }
                state.wrote(&mark);
            });
        }
        for trouble in troubles {
            self.report(&trouble, &mark, clock);
        }
    }
}
