//! What happens to bytes: every access is held against the shadow of the bytes that it touches.

use smallvec::SmallVec;

use super::clock::Clock;
use super::finding::FindingKind;
use super::graph::Owner;
use super::model::Model;
use super::shadow::{BlockId, Mark, MarkKind, State};
use super::space::{ELSEWHERE, ObjectId, ObjectKind, Piece, Pieces};
use crate::{Access, AccessMode, Touch};

/// Rows of an access that are looked at one by one; of an operand with more, the range is looked at as a whole.
const ROWS: u64 = 1024;

/// Something is wrong with an access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trouble {
    pub(super) kind: FindingKind,
    /// The other work.
    pub(super) other: Option<Mark>,
    /// The block that it is about; 0 for none.
    pub(super) block: BlockId,
    pub(super) object: ObjectId,
    /// The bytes that it is about, as addresses.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// What is wrong with an access; mostly nothing.
pub(super) type Troubles = SmallVec<[Trouble; 1]>;

/// How an access is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// As work that is submitted now.
    Submitted,
    /// As a node of a graph that is launched now: whom the memory belongs to was judged otherwise.
    Launched,
    /// As work that a program tells of: others may have written there, too.
    Told,
}

/// What an access of an actor with this clock finds, and leaves behind, in the bytes of a span.
struct Look<'a> {
    clock: &'a Clock,
    mark: Mark,
    reads_before: bool,
    writes: bool,
    is_exact: bool,
}

impl Look<'_> {
    /// The mark that this access is not ordered after, if there is one.
    fn conflict(&self, state: &State) -> Option<Mark> {
        // What was given back stays so, however well the use of it is ordered.
        let write = state.write.filter(|write| write.kind == MarkKind::Free || !write.is_before(self.clock));
        if write.is_some() || !self.writes {
            return write;
        }
        state.reads.iter().find(|read| !read.is_before(self.clock)).copied()
    }

    fn visit(&self, state: &mut State) -> (Option<Mark>, bool) {
        let conflict = self.conflict(state);
        let uninitialised = self.reads_before && self.is_exact && !state.is_written;
        if self.writes {
            state.wrote(&self.mark);
        } else {
            state.read(&self.mark, self.clock);
            // Said once is enough.
            state.is_written |= uninitialised;
        }
        (conflict, uninitialised)
    }
}

impl Model {
    /// An access by somebody with this clock. The mark says who, and when.
    pub(super) fn touch(&mut self, clock: &Clock, mark: Mark, access: &Access, manner: Manner) {
        if access.bytes == 0 {
            return;
        }
        let mark = Mark { start: access.start, bytes: access.bytes, mode: access.mode, ..mark };
        let rows = rows(access);
        let look = Look {
            clock,
            mark,
            reads_before: access.mode != AccessMode::Write && manner != Manner::Told,
            writes: access.mode.writes(),
            is_exact: rows.is_some(),
        };
        let mut troubles = Troubles::new();
        let mut holder = None;
        match rows {
            None | Some((_, _, 1)) => {
                self.touch_range(&look, access.start, access.bytes, manner, &mut holder, &mut troubles);
            }
            Some((chunk, step, count)) => {
                for row in 0..count {
                    let start = access.start + row * step;
                    let bytes = chunk.min(access.start + access.bytes - start);
                    self.touch_range(&look, start, bytes, manner, &mut holder, &mut troubles);
                }
            }
        }
        for trouble in troubles {
            self.report(&trouble, &mark, clock);
        }
    }

    fn touch_range(
        &mut self,
        look: &Look<'_>,
        start: u64,
        bytes: u64,
        manner: Manner,
        holder: &mut Option<BlockId>,
        troubles: &mut Troubles,
    ) {
        for piece in self.space.translate(start, bytes) {
            if piece.object == ELSEWHERE
                && manner == Manner::Submitted
                && self.space.departed(piece.address).is_some()
            {
                add(troubles, trouble(FindingKind::UseAfterFree, None, 0, &piece, piece.start, piece.end));
                continue;
            }
            let object = self.space.object(piece.object);
            let has_blocks = object.has_blocks && manner == Manner::Submitted;
            let (mut count, mut strays) = (0, false);
            object.shadow.each(piece.start, piece.end, |first, end, state| {
                count += 1;
                let (conflict, uninitialised) = look.visit(state);
                let mut say =
                    |kind, other| add(troubles, trouble(kind, other, state.block, &piece, first, end));
                if let Some(other) = conflict {
                    say(kind_of(&other), Some(other));
                }
                if uninitialised {
                    say(FindingKind::Uninitialised, None);
                }
                if has_blocks {
                    let block = *holder.get_or_insert(state.block);
                    if block != state.block || block == 0 {
                        strays = true;
                        say(FindingKind::OutOfBounds, None);
                    }
                }
            });
            if count > 1 && look.writes {
                object.shadow.fuse(piece.start, piece.end);
            }
            if has_blocks && !strays && holder.is_some_and(|block| self.blocks.is_freed(block)) {
                let block = holder.unwrap_or_default();
                add(
                    troubles,
                    trouble(FindingKind::UseAfterFree, None, block, &piece, piece.start, piece.end),
                );
            }
        }
    }

    /// Whom the first byte of an access belongs to.
    pub(super) fn owner(&mut self, address: u64) -> Option<Owner> {
        let piece = *self.space.translate(address, 1).first()?;
        if piece.object == ELSEWHERE && self.space.departed(address).is_some() {
            return None;
        }
        let object = self.space.object(piece.object);
        // Physical memory may be exchanged behind an address: that is what it is for.
        let serial = if object.kind == ObjectKind::Physical { 0 } else { object.serial };
        let mut block = 0;
        object.shadow.look(piece.start, piece.end, |_, _, state| block = state.block);
        Some(Owner { block, serial, is_kept: false })
    }

    /// All marks on some bytes.
    pub(super) fn marks(&mut self, pieces: &Pieces, mut visit: impl FnMut(&Piece, u64, u64, &Mark, BlockId)) {
        for piece in pieces {
            self.space.object(piece.object).shadow.look(piece.start, piece.end, |first, end, state| {
                for mark in state.marks() {
                    visit(piece, first, end, mark, state.block);
                }
            });
        }
    }
}

/// What it is to come without order after such a mark.
fn kind_of(other: &Mark) -> FindingKind {
    match other.kind {
        MarkKind::Command | MarkKind::Host => FindingKind::Race,
        MarkKind::Allocation => FindingKind::UseBeforeAllocation,
        MarkKind::Free => FindingKind::UseAfterFree,
    }
}

/// A trouble with the bytes from `first` to `end` of a piece's object.
pub(super) fn trouble(
    kind: FindingKind,
    other: Option<Mark>,
    block: BlockId,
    piece: &Piece,
    first: u64,
    end: u64,
) -> Trouble {
    let address = |offset: u64| piece.address + (offset - piece.start);
    Trouble { kind, other, block, object: piece.object, start: address(first), end: address(end) }
}

/// Adds a trouble, or widens one of the same kind with the same other side.
pub(super) fn add(troubles: &mut Troubles, new: Trouble) {
    let same = |known: &&mut Trouble| {
        known.kind == new.kind
            && known.other.map(|mark| (mark.site, mark.strand))
                == new.other.map(|mark| (mark.site, mark.strand))
    };
    match troubles.iter_mut().find(same) {
        Some(known) if known.end == new.start => known.end = new.end,
        Some(_) => {}
        None => troubles.push(new),
    }
}

/// The rows of an access, as bytes a row, bytes from one to the next, and how many; `None` where it is not said which bytes
/// are touched, or there are too many rows to look at.
fn rows(access: &Access) -> Option<(u64, u64, u64)> {
    match access.touch {
        Touch::All => Some((access.bytes, access.bytes, 1)),
        Touch::Some => None,
        Touch::Rows { chunk_bytes, step_bytes } => {
            let count = access.bytes.div_ceil(step_bytes.max(1));
            (chunk_bytes > 0 && chunk_bytes <= step_bytes && count <= ROWS).then_some((
                chunk_bytes,
                step_bytes,
                count,
            ))
        }
    }
}
