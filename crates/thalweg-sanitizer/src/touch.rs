//! Accesses to bytes: every access is checked against the shadow of the bytes that it touches.

use smallvec::{SmallVec, smallvec};
use thalweg_driver::{Access, AccessMode, Touch};

use super::bytes::{Bytes, Parts};
use super::chosen::{Part, Tickets};
use super::clock::Clock;
use super::finding::FindingKind;
use super::graph::Owner;
use super::model::Model;
use super::shadow::{BlockId, Mark, MarkKind, Seen, ShadowState, Written};
use super::space::{ELSEWHERE, ObjectId, ObjectKind, Piece, Pieces};

/// A problem with an access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trouble {
    pub(super) kind: FindingKind,
    /// The other work.
    pub(super) other: Option<Mark>,
    /// The block of the trouble; 0 for none.
    pub(super) block: BlockId,
    pub(super) object: ObjectId,
    /// The bytes of the trouble, as addresses.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// The problems of an access, usually none.
pub(super) type Troubles = SmallVec<[Trouble; 1]>;

/// The rules by which an access is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// Work that is submitted now.
    Submitted,
    /// A node of a graph that is launched now: the owner of the memory was checked separately.
    Launched,
    /// Work that a program reports. Work that was not reported may have written there, too.
    Reported,
}

/// The check of an access: the findings in the bytes that it touches, and the marks that it leaves.
struct Look<'a> {
    clock: &'a Clock,
    mark: Mark,
    reads_before: bool,
    writes: bool,
    manner: Manner,
    /// The state of the bytes after the access, if it writes.
    written: Written,
    /// Whether any of the bytes was written before.
    found_written: bool,
    /// The [`Written::Some`] states that were found: the number, `most_bytes`, and the number of those bytes that this access
    /// reads.
    found_some: SmallVec<[(u64, u64, u64); 1]>,
    /// The block that the first of the bytes belongs to.
    holder: Option<BlockId>,
    /// The questions that depend on bytes chosen by data.
    questions: Questions,
}

/// The questions of an access, usually none.
type Questions = SmallVec<[Question; 1]>;

/// A trouble that depends on the bytes chosen by data.
struct Question {
    trouble: Trouble,
    parts: Vec<Part>,
}

/// The marks that an access is not ordered after.
type Conflicts = SmallVec<[Mark; 1]>;

impl Look<'_> {
    /// Returns one mark that this access certainly conflicts with, if there is one; else all that it may conflict with.
    fn conflicts(&self, state: &ShadowState) -> Conflicts {
        // Freed memory stays freed, however well the use of it is ordered.
        let write = state.write.filter(|write| write.kind == MarkKind::Free || !write.is_before(self.clock));
        let meets = |other: &&Mark| (self.writes || other.mode.writes()) && !other.is_before(self.clock);
        let mut all: Conflicts = write.iter().chain(state.since.iter().filter(meets)).copied().collect();
        if let Some(sure) = all.iter().find(|other| !self.is_question(other)).copied() {
            all = smallvec![sure];
        }
        all
    }

    /// Returns whether a race between this access and an unordered one depends on the data that chooses their bytes.
    fn is_question(&self, other: &Mark) -> bool {
        kind_of(other) == FindingKind::Race && !self.mark.surely_meets(other)
    }

    /// Returns the accesses whose data decides whether this access reads bytes that were never written: readers that must have
    /// touched such bytes, and writers that must not have. `None` if the answer does not depend on data.
    fn may_read_nothing(&self, state: &ShadowState) -> Option<(Tickets, Tickets)> {
        let reader: Tickets = if self.mark.is_certain { smallvec![] } else { smallvec![self.mark.ticket] };
        let uncertain = state.since.iter().filter(|other| other.mode.writes() && !other.is_certain);
        let writers: Tickets = match state.written {
            Written::Yes => return None,
            Written::No if self.mark.is_certain => return None,
            Written::No => smallvec![],
            Written::Some { .. } => uncertain.map(|other| other.ticket).collect(),
        };
        let is_known = !reader.contains(&0) && !writers.contains(&0);
        (self.reads_before && is_known).then_some((reader, writers))
    }

    /// Adds the questions about this access to the bytes of a span, as far as they depend on data.
    fn ask(&mut self, seen: &Seen<'_>, piece: &Piece, conflicts: &[Mark]) {
        let block = seen.state.block;
        let part = |touched, spared| Part {
            object: piece.object,
            bytes: seen.bytes(),
            address: piece.address.wrapping_sub(piece.start),
            touched,
            spared,
        };
        let mut asked: SmallVec<[(FindingKind, Option<Mark>, Part); 1]> = SmallVec::new();
        for other in conflicts.iter().filter(|other| self.is_question(other)) {
            let tickets = [&self.mark, other].into_iter().filter(|mark| !mark.is_certain);
            let touched = tickets.map(|mark| mark.ticket).collect();
            asked.push((FindingKind::Race, Some(*other), part(touched, smallvec![])));
        }
        if let Some((touched, spared)) = self.may_read_nothing(seen.state) {
            asked.push((FindingKind::Uninitialised, None, part(touched, spared)));
        }
        for (kind, other, part) in asked {
            let id = |mark: Option<Mark>| mark.map(|mark| (mark.strand, mark.number, mark.site));
            let same = |question: &&mut Question| {
                question.trouble.kind == kind && id(question.trouble.other) == id(other)
            };
            match self.questions.iter_mut().find(same) {
                Some(question) => question.parts.push(part),
                None => {
                    let trouble = trouble(kind, other, block, piece, seen.first, seen.end);
                    self.questions.push(Question { trouble, parts: vec![part] });
                }
            }
        }
    }

    /// Returns the accesses that this access races with, and whether this access reads bytes that were never written.
    fn visit(&mut self, seen: &mut Seen<'_>, piece: &Piece) -> (Conflicts, bool) {
        let mut conflicts = self.conflicts(seen.state);
        let is_plain = self.mark.is_certain && !matches!(seen.state.written, Written::Some { .. });
        if !is_plain || conflicts.iter().any(|other| !other.is_certain) {
            self.ask(seen, piece, &conflicts);
            conflicts.retain(|other| !self.is_question(other));
        }
        let mut reads_nothing = false;
        match seen.state.written {
            Written::Yes => self.found_written = true,
            Written::No => reads_nothing = self.reads_before && self.mark.is_certain,
            Written::Some { number, most_bytes } => {
                self.found_written = true;
                let bytes = (seen.end - seen.first).saturating_mul(seen.rows);
                match self.found_some.iter_mut().find(|some| some.0 == number) {
                    Some(some) => some.2 += bytes,
                    None => self.found_some.push((number, most_bytes, bytes)),
                }
            }
        }
        let state = &mut seen.state;
        match (self.writes, self.mark.is_certain) {
            (true, true) => state.wrote(&self.mark),
            (true, false) => state.may_have_been_written(&self.mark, self.written),
            (false, true) => state.read(&self.mark, self.clock),
            (false, false) => state.may_have_been_read(&self.mark),
        }
        if reads_nothing {
            // Reporting it once is enough.
            state.written = Written::Yes;
        }
        (conflicts, reads_nothing)
    }

    /// Returns whether the access certainly reads bytes that were never written, judged by all its bytes together.
    fn reads_nothing(&self) -> bool {
        let less_was_written = |some: &(u64, u64, u64)| some.2 > some.1;
        self.reads_before
            && match self.mark.is_certain {
                true => self.found_some.iter().any(less_was_written),
                false => !self.found_written,
            }
    }
}

impl Model {
    /// Checks an access by an actor with this clock, and marks its bytes.
    pub(super) fn touch(&mut self, clock: &Clock, mark: Mark, access: &Access, manner: Manner) {
        if access.bytes == 0 {
            return;
        }
        let bytes = Bytes::of(access);
        let (start, is_certain) = (access.start, bytes.is_some());
        let is_whole = bytes.as_ref().is_some_and(|bytes| bytes.end_of_range().is_some());
        let ticket = access.ticket();
        let mark =
            Mark { start, bytes: access.bytes, mode: access.mode, is_certain, is_whole, ticket, ..mark };
        let pieces = self.space.translate(start, access.bytes);
        let writes = access.mode.writes();
        let written = if writes && !is_certain {
            self.some_written(&pieces, access, mark.number)
        } else {
            Written::Yes
        };
        let mut look = Look {
            clock,
            mark,
            reads_before: access.mode != AccessMode::Write && manner != Manner::Reported,
            writes,
            manner,
            written,
            found_written: false,
            found_some: SmallVec::new(),
            holder: None,
            questions: Questions::new(),
        };
        let mut troubles = Troubles::new();
        let whole = bytes.unwrap_or_else(|| Bytes::range(start, start.saturating_add(access.bytes)));
        let mut rest: Parts = smallvec![whole];
        for piece in &pieces {
            let end = piece.address + (piece.end - piece.start);
            let mut beyond = Parts::new();
            for part in rest {
                let (within, after) = part.split(end);
                within.into_iter().for_each(|part| self.touch_part(&mut look, part, piece, &mut troubles));
                beyond.extend(after);
            }
            rest = beyond;
        }
        if let (true, Some(piece)) = (look.reads_nothing(), pieces.first()) {
            let (kind, block) = (FindingKind::Uninitialised, look.holder.unwrap_or_default());
            let found = trouble(kind, None, block, piece, piece.start, piece.start + access.bytes);
            add(&mut troubles, found);
        }
        for trouble in troubles {
            self.report(&trouble, &mark, clock);
        }
        for Question { trouble, parts } in look.questions {
            self.ask(&trouble, parts, &mark, clock);
        }
    }

    /// Returns the state of bytes after an uncertain write. The most bytes that may have been written are the bytes of this write
    /// and of earlier uncertain writes, added up.
    fn some_written(&mut self, pieces: &Pieces, access: &Access, number: u64) -> Written {
        let most_bytes = match access.touch {
            Touch::Some { most_bytes } | Touch::Chosen { most_bytes, .. } => most_bytes,
            _ => access.bytes,
        };
        let mut former: SmallVec<[(u64, u64); 2]> = SmallVec::new();
        for piece in pieces {
            self.space.object(piece.object).shadow.look(piece.start, piece.end, |_, _, state| {
                if let Written::Some { number, most_bytes } = state.written
                    && !former.contains(&(number, most_bytes))
                {
                    former.push((number, most_bytes));
                }
            });
        }
        let most_bytes = former.iter().fold(most_bytes, |sum, (_, most)| sum.saturating_add(*most));
        Written::Some { number, most_bytes }
    }

    /// Checks the part of an access that is in one piece of memory.
    fn touch_part(&mut self, look: &mut Look<'_>, part: Bytes, piece: &Piece, troubles: &mut Troubles) {
        let is_submitted = look.manner == Manner::Submitted;
        if piece.object == ELSEWHERE && is_submitted && self.space.departed(piece.address).is_some() {
            add(troubles, trouble(FindingKind::UseAfterFree, None, 0, piece, piece.start, piece.end));
            return;
        }
        let object = self.space.object(piece.object);
        let has_blocks = object.has_blocks && is_submitted;
        let (first, reach) = (part.start - piece.address + piece.start, part.reach());
        let mut strays = false;
        object.shadow.each(&part.moved(first), look.writes, |mut seen| {
            let (conflicts, reads_nothing) = look.visit(&mut seen, piece);
            let block = seen.state.block;
            let mut say =
                |kind, other| add(troubles, trouble(kind, other, block, piece, seen.first, seen.end));
            for other in conflicts {
                say(kind_of(&other), Some(other));
            }
            if reads_nothing {
                say(FindingKind::Uninitialised, None);
            }
            if *look.holder.get_or_insert(block) != block || block == 0 {
                strays = true;
                if has_blocks {
                    say(FindingKind::OutOfBounds, None);
                }
            }
        });
        let holder = look.holder.unwrap_or_default();
        if has_blocks && !strays && self.blocks.is_freed(holder) {
            add(troubles, trouble(FindingKind::UseAfterFree, None, holder, piece, first, first + reach));
        }
    }

    /// Returns the block that the first byte of an access belongs to.
    pub(super) fn owner(&mut self, address: u64) -> Option<Owner> {
        let piece = *self.space.translate(address, 1).first()?;
        if piece.object == ELSEWHERE && self.space.departed(address).is_some() {
            return None;
        }
        let object = self.space.object(piece.object);
        // The physical memory at an address may be exchanged: that is its purpose.
        let serial = if object.kind == ObjectKind::Physical { 0 } else { object.serial };
        let mut block = 0;
        object.shadow.look(piece.start, piece.end, |_, _, state| block = state.block);
        Some(Owner { block, serial, is_kept: false })
    }

    /// Calls a function with all marks on some bytes.
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

/// Returns the kind of finding to report for work that is not ordered after this mark.
fn kind_of(other: &Mark) -> FindingKind {
    match other.kind {
        MarkKind::Command | MarkKind::Host => FindingKind::Race,
        MarkKind::Allocation => FindingKind::UseBeforeAllocation,
        MarkKind::Free => FindingKind::UseAfterFree,
    }
}

/// Returns a trouble with the bytes from `first` to `end` of a piece's object.
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

/// Adds a trouble, or extends one of the same kind with the same other mark.
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
