//! The mapping from addresses to bytes: the sanitizer's own table of mapped memory.
//!
//! An *object* is a piece of memory with bytes of its own: a plain allocation, physical memory, pinned memory. Addresses are
//! mapped to objects; physical memory may be mapped at several addresses, which then refer to the same bytes. Memory that was not
//! announced (another library allocated it) is one object that covers every address.
//!
//! Invariant: mappings do not overlap.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use smallvec::SmallVec;
use thalweg_driver::ShareableHandle;

use super::shadow::Shadow;
use super::site::SiteId;

/// The number of ranges that are remembered after they were freed.
const DEPARTED: usize = 256;

/// The identity of exported physical memory: equal identities open the same memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Shared {
    /// A file, by its device and number.
    File(u64, u64),
    Fabric(Box<[u8; 64]>),
}

impl Shared {
    /// Returns the identity of a handle. `None` for a file without a number of its own, as GPU drivers export them: memory that
    /// is imported through such a file counts as another process's memory.
    pub(super) fn of(handle: &ShareableHandle) -> Option<Self> {
        match handle {
            ShareableHandle::Fabric(bytes) => Some(Self::Fabric(bytes.clone())),
            ShareableHandle::FileDescriptor(descriptor) => {
                let file = File::from(descriptor.try_clone().ok()?).metadata().ok()?;
                file.is_file().then(|| Self::File(file.dev(), file.ino()))
            }
        }
    }
}

/// The index of an object.
pub(super) type ObjectId = u32;

/// The object of every address that belongs to no other object.
pub(super) const ELSEWHERE: ObjectId = 0;

/// The kind of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ObjectKind {
    /// Memory of `memory_allocate`, or of another library.
    Plain,
    /// Physical memory.
    Physical,
    /// An allocation of a stream-ordered pool.
    StreamOrdered,
    /// Pinned memory.
    Pinned,
}

/// A piece of memory.
pub(super) struct Object {
    pub(super) kind: ObjectKind,
    /// The device of the memory; 0 for pinned memory.
    pub(super) device: u32,
    pub(super) bytes: u64,
    /// A number that is unique among all objects that ever existed.
    pub(super) serial: u64,
    pub(super) shadow: Shadow,
    /// The place where the object was allocated.
    pub(super) allocated: SiteId,
    /// Whether blocks of a caching allocator are carved from the object. Every used byte then belongs to a block.
    pub(super) has_blocks: bool,
    /// The number of handles and mappings that refer to the object.
    keepers: u32,
}

/// The object and offset of an address range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) object: ObjectId,
    offset: u64,
}

/// Mappings that were removed, until it is known whether the driver agrees.
pub(super) type Taken = SmallVec<[Mapping; 2]>;

/// A range that was freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departed {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) allocated: SiteId,
    pub(super) freed: SiteId,
}

/// A part of one object, and the address through which it was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) object: ObjectId,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) address: u64,
}

/// A list of pieces, usually one.
pub(super) type Pieces = SmallVec<[Piece; 2]>;

/// The table of all mappings.
pub(super) struct Space {
    mappings: BTreeMap<u64, Mapping>,
    objects: Vec<Option<Object>>,
    vacant: Vec<ObjectId>,
    next_serial: u64,
    departed: VecDeque<Departed>,
}

impl Space {
    pub(super) fn new() -> Self {
        let elsewhere = Object {
            kind: ObjectKind::Plain,
            device: 0,
            bytes: u64::MAX,
            serial: 0,
            shadow: Shadow::new(u64::MAX, true),
            allocated: 0,
            has_blocks: false,
            keepers: 1,
        };
        Self {
            mappings: BTreeMap::new(),
            objects: vec![Some(elsewhere)],
            vacant: Vec::new(),
            next_serial: 1,
            departed: VecDeque::new(),
        }
    }

    /// Returns a new object with one reference.
    pub(super) fn create(
        &mut self,
        kind: ObjectKind,
        device: u32,
        bytes: u64,
        is_written: bool,
        allocated: SiteId,
    ) -> ObjectId {
        let object = Object {
            kind,
            device,
            bytes,
            serial: self.next_serial,
            shadow: Shadow::new(bytes, is_written),
            allocated,
            has_blocks: false,
            keepers: 1,
        };
        self.next_serial += 1;
        match self.vacant.pop() {
            Some(id) => {
                self.objects[id as usize] = Some(object);
                id
            }
            None => {
                self.objects.push(Some(object));
                (self.objects.len() - 1) as ObjectId
            }
        }
    }

    /// Returns an object that is known to have a reference.
    pub(super) fn object(&mut self, id: ObjectId) -> &mut Object {
        self.objects[id as usize].as_mut().expect("something keeps it")
    }

    /// Returns the size of an object in bytes, if it still has this serial number.
    pub(super) fn bytes_of(&self, id: ObjectId, serial: u64) -> Option<u64> {
        let object = self.objects.get(id as usize)?.as_ref()?;
        (object.serial == serial).then_some(object.bytes)
    }

    /// Adds a reference to the object.
    pub(super) fn keep(&mut self, id: ObjectId) {
        self.object(id).keepers += 1;
    }

    /// Removes a reference to the object. Removing the last one drops it.
    pub(super) fn let_go(&mut self, id: ObjectId) {
        let object = self.object(id);
        object.keepers -= 1;
        if object.keepers == 0 {
            self.objects[id as usize] = None;
            self.vacant.push(id);
        }
    }

    /// Maps a part of an object. The mapping takes over a reference from the caller. Earlier mappings there are removed.
    pub(super) fn map(&mut self, start: u64, bytes: u64, object: ObjectId, offset: u64) {
        let end = start.saturating_add(bytes);
        self.unmap(start, end);
        self.departed.retain(|departed| departed.end <= start || end <= departed.start);
        self.mappings.insert(start, Mapping { start, end, object, offset });
    }

    /// Unmaps every mapping that overlaps a range.
    pub(super) fn unmap(&mut self, start: u64, end: u64) {
        let first = self.mappings.range(..=start).next_back().map_or(start, |(&first, _)| first);
        let found: SmallVec<[u64; 4]> = self
            .mappings
            .range(first..end)
            .filter(|(_, mapping)| mapping.end > start)
            .map(|(&first, _)| first)
            .collect();
        for first in found {
            let mapping = self.mappings.remove(&first).expect("found above");
            self.let_go(mapping.object);
        }
    }

    /// Returns the mapping that begins at an address.
    pub(super) fn starting_at(&self, start: u64) -> Option<Mapping> {
        self.mappings.get(&start).copied()
    }

    /// Removes and returns the mappings inside a range.
    pub(super) fn take(&mut self, start: u64, end: u64) -> Taken {
        let inside = self.mappings.range(start..end).filter(|(_, mapping)| mapping.end <= end);
        let taken: Taken = inside.map(|(_, mapping)| *mapping).collect();
        for mapping in &taken {
            self.mappings.remove(&mapping.start);
        }
        taken
    }

    /// Restores removed mappings.
    pub(super) fn restore(&mut self, taken: Taken) {
        for mapping in taken {
            self.map(mapping.start, mapping.end - mapping.start, mapping.object, mapping.offset);
        }
    }

    /// Remembers a range that was freed.
    pub(super) fn remember(&mut self, departed: Departed) {
        if self.departed.len() == DEPARTED {
            self.departed.pop_front();
        }
        self.departed.push_back(departed);
    }

    /// Returns a freed range that contains the address.
    pub(super) fn departed(&self, address: u64) -> Option<Departed> {
        self.departed.iter().rev().find(|range| range.start <= address && address < range.end).copied()
    }

    /// Returns the bytes of a range of addresses.
    pub(super) fn translate(&self, start: u64, bytes: u64) -> Pieces {
        let end = start.saturating_add(bytes);
        let mut pieces = Pieces::new();
        let mut at = start;
        let mut rest = self.mappings.range(start.saturating_add(1)..end.max(start.saturating_add(1)));
        let mut found = self.mappings.range(..=start).next_back().or_else(|| rest.next());
        while at < end {
            let gap_end = match found {
                Some((&first, mapping)) if first <= at && at < mapping.end => {
                    let piece_end = mapping.end.min(end);
                    let offset = mapping.offset + (at - first);
                    let object = mapping.object;
                    pieces.push(Piece { object, start: offset, end: offset + (piece_end - at), address: at });
                    at = piece_end;
                    found = rest.next();
                    continue;
                }
                Some((&first, _)) if first > at => first.min(end),
                Some(_) => {
                    found = rest.next();
                    continue;
                }
                None => end,
            };
            pieces.push(Piece { object: ELSEWHERE, start: at, end: gap_end, address: at });
            at = gap_end;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_translated_piece_by_piece() {
        let mut space = Space::new();
        let plain = space.create(ObjectKind::Plain, 0, 100, false, 0);
        space.map(1000, 100, plain, 0);
        let physical = space.create(ObjectKind::Physical, 0, 64, false, 0);
        space.keep(physical);
        space.map(1100, 32, physical, 32);
        let pieces: Vec<_> =
            space.translate(990, 150).iter().map(|p| (p.object, p.start, p.end, p.address)).collect();
        assert_eq!(
            pieces,
            [
                (ELSEWHERE, 990, 1000, 990),
                (plain, 0, 100, 1000),
                (physical, 32, 64, 1100),
                (ELSEWHERE, 1132, 1140, 1132)
            ]
        );
        space.unmap(1000, 1100);
        assert_eq!(space.translate(1000, 50)[0].object, ELSEWHERE);
        assert_eq!(space.translate(1110, 4)[0].start, 42);
    }
}
