//! Shadow memory: the state of every byte of one piece of memory.
//!
//! A [`Shadow`] divides its bytes into spans whose bytes have the same history: the last write, the reads since, whether they
//! have been written since they were allocated, and the block of a caching allocator that they belong to. Spans are cut where an
//! access begins or ends inside one, and merged again where a write makes them equal. So their number is bounded by the layout of
//! the data that a program stores there, and not by the number of its accesses.
//!
//! # Strided accesses
//! A column of a matrix has a piece in every row, and the rows are alike: an access to columns is the same in each of them. So a
//! span may be *rows*: repetitions of one row's bytes, with the history of a single row, which is a shadow of its own. An access
//! whose step is the length of the row is then an access to a range of that row, however many rows there are. Rows may consist of
//! rows, as those of a block of a tensor do. An access with other steps, or one that leaves some rows out, splits the rows, in
//! the worst case into single ones: the state is exact for every access.
//!
//! Invariants: the spans cover all bytes without gap or overlap; a span of rows has at least two.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use thalweg_driver::AccessMode;

use super::bytes::Bytes;
use super::clock::{Clock, Strand};
use super::site::SiteId;

/// The number of a block of an allocator; 0 is not a block.
pub(super) type BlockId = u32;

/// The kind of access that touched the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MarkKind {
    /// A command of a stream, or a node of a graph.
    Command,
    /// The allocation of the memory, which comes before all of its uses.
    Allocation,
    /// The free of the memory.
    Free,
    /// A host thread.
    Host,
}

/// The number of an access whose bytes are chosen by data; 0 if they will never be known.
pub(super) type Ticket = u64;

/// A piece of work that touched bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) strand: Strand,
    pub(super) site: SiteId,
    /// The call that the work was part of, if that is a different call; 0 for none.
    pub(super) within: SiteId,
    pub(super) number: u64,
    /// The range that the work touched, as an address.
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// The launch that the work was part of, for nodes of graphs.
    pub(super) launch: SiteId,
    pub(super) mode: AccessMode,
    pub(super) kind: MarkKind,
    /// Whether the work touched these bytes for certain, and not only some bytes of the range.
    pub(super) is_certain: bool,
    /// Whether the work touched every byte of the range.
    pub(super) is_whole: bool,
    /// The ticket under which the bytes of an uncertain access will be reported; 0 if they will never be reported.
    pub(super) ticket: Ticket,
}

impl Mark {
    /// Returns the mark of work that touches no bytes yet; bytes that are given to it are touched for certain.
    pub(super) fn new(strand: Strand, number: u64, site: SiteId, kind: MarkKind) -> Self {
        Self {
            strand,
            site,
            within: 0,
            number,
            start: 0,
            bytes: 0,
            launch: 0,
            mode: AccessMode::Read,
            kind,
            is_certain: true,
            is_whole: false,
            ticket: 0,
        }
    }

    /// Returns whether this access and another one that overlaps it touch a common byte for certain.
    pub(super) fn surely_meets(&self, other: &Self) -> bool {
        let holds = |whole: &Self, some: &Self| {
            whole.is_whole
                && whole.start <= some.start
                && some.start + some.bytes <= whole.start + whole.bytes
        };
        match (self.is_certain, other.is_certain) {
            (true, true) => true,
            (true, false) => holds(self, other),
            (false, true) => holds(other, self),
            (false, false) => false,
        }
    }

    /// Returns whether the work precedes everything that an actor with this clock does next.
    pub(super) fn is_before(&self, clock: &Clock) -> bool {
        clock.covers(self.strand, self.number)
    }
}

/// The state of bytes: whether they have been written since they were allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Written {
    /// None of the bytes have been written.
    #[default]
    No,
    /// All of the bytes have been written.
    Yes,
    /// Some of the bytes that share this number have been written: at most `most_bytes`, and it is not known which.
    Some { number: u64, most_bytes: u64 },
}

/// The maximum number of uncertain accesses that are remembered for each byte since the last certain write.
pub(super) const UNCERTAIN: usize = 64;

/// The known state of the bytes of a span.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ShadowState {
    /// The last write.
    pub(super) write: Option<Mark>,
    /// The accesses since that write: reads, and uncertain writes. Reads that precede other certain accesses are left out.
    pub(super) since: SmallVec<[Mark; 1]>,
    /// Whether the bytes have been written since they were allocated.
    pub(super) written: Written,
    /// The block that the bytes belong to, or belonged to last.
    pub(super) block: BlockId,
}

impl ShadowState {
    /// Returns all remembered marks.
    pub(super) fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.write.iter().chain(&self.since)
    }

    /// Remembers a read of all these bytes by an actor with this clock.
    pub(super) fn read(&mut self, mark: &Mark, clock: &Clock) {
        // Work after this read also comes after the reads before it, so those can be forgotten; but a read does not replace a
        // write.
        self.since.retain(|other| other.mode.writes() || !other.is_before(clock));
        self.since.push(*mark);
    }

    /// Remembers an uncertain read, which may not have touched these bytes. It replaces no other access.
    pub(super) fn may_have_been_read(&mut self, mark: &Mark) {
        self.forget_uncertain();
        self.since.push(*mark);
    }

    /// Forgets the oldest uncertain access if there are too many.
    fn forget_uncertain(&mut self) {
        let is_uncertain = |mark: &&Mark| !mark.is_certain;
        if self.since.len() < UNCERTAIN || self.since.iter().filter(is_uncertain).count() < UNCERTAIN {
            return;
        }
        let oldest = self.since.iter().position(|mark| !mark.is_certain).expect("there are many");
        if self.since.remove(oldest).mode.writes() {
            // The forgotten access may have written the bytes.
            self.written = Written::Yes;
        }
    }

    /// Remembers a write.
    pub(super) fn wrote(&mut self, mark: &Mark) {
        self.write = Some(*mark);
        self.since.clear();
        self.written = Written::Yes;
    }

    /// Remembers an uncertain write, which may not have touched these bytes. It replaces no other access.
    pub(super) fn may_have_been_written(&mut self, mark: &Mark, written: Written) {
        self.forget_uncertain();
        self.since.push(*mark);
        if self.written != Written::Yes {
            self.written = written;
        }
    }
}

/// The bytes of a span, passed to a visitor that may change their state: the range within its first row, and the number of rows.
pub(super) struct Seen<'a> {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) rows: u64,
    around: Option<Around<'a>>,
    pub(super) state: &'a mut ShadowState,
}

impl Seen<'_> {
    /// Returns all bytes, in all rows.
    pub(super) fn bytes(&self) -> Bytes {
        let (mut bytes, mut around) = (Bytes::range(self.first, self.end), self.around);
        while let Some(Around { frame, step, count }) = around {
            bytes = bytes.times(step, count);
            around = frame.around;
        }
        bytes
    }
}

/// A visitor of spans.
type Visit<'a> = &'a mut dyn FnMut(Seen<'_>);

#[derive(Clone, PartialEq, Eq)]
enum Content {
    /// All bytes have this history.
    Even(ShadowState),
    Rows(Box<Rows>),
}

/// Rows with the same history.
#[derive(Clone, PartialEq, Eq)]
struct Rows {
    step: u64,
    /// The history of one row: `step` bytes.
    row: Shadow,
}

#[derive(Clone, PartialEq, Eq)]
struct Span {
    end: u64,
    content: Content,
}

/// The shadow of the bytes of one piece of memory.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Shadow {
    /// The spans, by their first byte.
    spans: BTreeMap<u64, Span>,
}

/// The position of a shadow in the outermost one.
#[derive(Clone, Copy)]
struct Frame<'a> {
    base: u64,
    rows: u64,
    fuses: bool,
    around: Option<Around<'a>>,
}

/// The rows that contain a shadow as one of them.
#[derive(Clone, Copy)]
struct Around<'a> {
    frame: &'a Frame<'a>,
    step: u64,
    count: u64,
}

impl Shadow {
    /// Creates a shadow of `bytes` bytes that were never touched.
    pub(super) fn new(bytes: u64, is_written: bool) -> Self {
        let written = if is_written { Written::Yes } else { Written::No };
        Self::even(bytes, ShadowState { written, ..ShadowState::default() })
    }

    fn even(bytes: u64, state: ShadowState) -> Self {
        Self { spans: BTreeMap::from([(0, Span { end: bytes, content: Content::Even(state) })]) }
    }

    /// Inserts `count` rows.
    fn put(&mut self, start: u64, step: u64, count: u64, row: &Self) {
        match count {
            0 => {}
            1 => {
                let spans = row.spans.iter();
                self.spans.extend(spans.map(|(&first, span)| {
                    (start + first, Span { end: start + span.end, content: span.content.clone() })
                }));
            }
            _ => {
                let content = Content::Rows(Box::new(Rows { step, row: row.clone() }));
                self.spans.insert(start, Span { end: start + step * count, content });
            }
        }
    }

    /// Makes a span begin at a byte.
    fn cut(&mut self, at: u64) {
        let Some((&start, span)) = self.spans.range_mut(..at).next_back() else { return };
        if at >= span.end {
            return;
        }
        match &span.content {
            Content::Even(state) => {
                let right = Span { end: span.end, content: Content::Even(state.clone()) };
                span.end = at;
                self.spans.insert(at, right);
            }
            Content::Rows(_) => {
                let span = self.spans.remove(&start).expect("found above");
                let Content::Rows(rows) = span.content else { unreachable!("looked at above") };
                let (before, all) = ((at - start) / rows.step, (span.end - start) / rows.step);
                let row = start + before * rows.step;
                self.put(start, rows.step, before, &rows.row);
                if row == at {
                    return self.put(at, rows.step, all - before, &rows.row);
                }
                self.put(row, rows.step, 1, &rows.row);
                self.put(row + rows.step, rows.step, all - before - 1, &rows.row);
                self.cut(at);
            }
        }
    }

    /// Visits every span that overlaps some bytes, cut to these bytes. The visitor may change the spans' states. With `fuses`,
    /// spans that are equal afterwards are merged.
    pub(super) fn each(&mut self, bytes: &Bytes, fuses: bool, mut visit: impl FnMut(Seen<'_>)) {
        self.each_of(bytes, Frame { base: 0, rows: 1, fuses, around: None }, &mut visit);
    }

    fn each_of(&mut self, bytes: &Bytes, frame: Frame<'_>, visit: Visit<'_>) {
        match bytes.end_of_range() {
            Some(end) => self.each_in(bytes.start, end, frame, visit),
            None => self.each_row(bytes, frame, visit),
        }
    }

    fn each_in(&mut self, start: u64, end: u64, frame: Frame<'_>, visit: Visit<'_>) {
        // Usually an access has the same range as the one before.
        if let Some(span) = self.spans.get_mut(&start)
            && span.end == end
        {
            return span.show(start, frame, visit);
        }
        self.cut(start);
        self.cut(end);
        let mut count = 0;
        for (&first, span) in self.spans.range_mut(start..end) {
            span.show(first, frame, visit);
            count += 1;
        }
        if count > 1 && frame.fuses {
            self.fuse(start, end);
        }
    }

    /// Visits the pieces of a strided access, together as many as fall into the same rows.
    fn each_row(&mut self, bytes: &Bytes, frame: Frame<'_>, visit: Visit<'_>) {
        let Some((step, count)) = bytes.longest() else { return };
        let one = bytes.repeated(bytes.start);
        let reach = one.reach();
        let mut done = 0;
        while done < count {
            let (at, left) = (bytes.start + done * step, count - done);
            match self.meet(at, reach, step, left) {
                SpanFit::One => {
                    self.each_of(&one.clone().moved(at), frame, visit);
                    done += 1;
                }
                SpanFit::Rows { row, count: found } => {
                    self.cut(row);
                    self.cut(row + found * step);
                    let span = self.spans.get_mut(&row).expect("cut above");
                    let part = one.clone().moved(at - row);
                    span.show_in_rows(row, &part, frame, visit);
                    done += found;
                }
                SpanFit::Across { end } => {
                    let (near, far) = one.moved(at).split(end);
                    for part in near.into_iter().chain(far) {
                        self.each_of(&part.times(step, left), frame, visit);
                    }
                    return;
                }
                SpanFit::Grouped { step: longer, group, count: found } => {
                    let together = one.clone().moved(at).times(step, group).times(longer, found);
                    self.each_of(&together, frame, visit);
                    done += group * found;
                }
            }
        }
    }

    /// Determines how the pieces of an access are placed in the span of the first piece. There are `left` pieces of `reach`
    /// bytes; the first is at `at`, and each further one is a step after the previous one. If possible, divides the span into
    /// rows of that step.
    fn meet(&mut self, at: u64, reach: u64, step: u64, left: u64) -> SpanFit {
        let (&first, span) = self.spans.range(..=at).next_back().expect("spans cover all bytes");
        let end = span.end;
        let rows = match &span.content {
            Content::Even(_) => {
                let within = (at - first) % step;
                let row = if within + reach <= step { at - within } else { at };
                let count = ((end - row) / step).min(left);
                if count >= 2 {
                    self.make_rows(row, step, count);
                    return SpanFit::Rows { row, count };
                }
                return SpanFit::One;
            }
            Content::Rows(rows) => rows.step,
        };
        let within = (at - first) % rows;
        let row = at - within;
        if rows == step {
            if within + reach > step {
                return SpanFit::Across { end: row + step };
            }
            let count = ((end - row) / step).min(left);
            return if count >= 2 { SpanFit::Rows { row, count } } else { SpanFit::One };
        }
        if rows.is_multiple_of(step) {
            let group = rows / step;
            let pieces = (end - at).checked_sub(reach).map_or(0, |rest| rest / step + 1).min(left);
            let count = pieces / group;
            return if count >= 2 { SpanFit::Grouped { step: rows, group, count } } else { SpanFit::One };
        }
        // Rows of a common multiple of both lengths.
        let Some(common) = (step / gcd(step, rows)).checked_mul(rows) else { return SpanFit::One };
        let count = (end - row) / common;
        if count < 2 || left < 2 * (common / step) {
            return SpanFit::One;
        }
        self.make_rows(row, common, count);
        self.meet(at, reach, step, left)
    }

    /// Divides a range into `count` rows of `step` bytes. The range is an even span, or consists of shorter rows, several of
    /// which fit into one new row.
    fn make_rows(&mut self, start: u64, step: u64, count: u64) {
        let end = start + step * count;
        self.cut(start);
        self.cut(end);
        let span = self.spans.get_mut(&start).expect("cut above");
        let content = std::mem::replace(&mut span.content, Content::Even(ShadowState::default()));
        let row = Self { spans: BTreeMap::from([(0, Span { end: step, content })]) };
        span.content = Content::Rows(Box::new(Rows { step, row }));
    }

    /// Visits every span that overlaps a range, without cutting.
    pub(super) fn look(&self, start: u64, end: u64, mut visit: impl FnMut(u64, u64, &ShadowState)) {
        self.look_in(start, end, 0, &mut visit);
    }

    fn look_in(&self, start: u64, end: u64, base: u64, visit: &mut dyn FnMut(u64, u64, &ShadowState)) {
        let before = self.spans.range(..=start).next_back().map_or(start, |(&first, _)| first);
        for (&first, span) in self.spans.range(before..end) {
            if span.end <= start {
                continue;
            }
            let (from, to) = (first.max(start), span.end.min(end));
            match &span.content {
                Content::Even(state) => visit(base + from, base + to, state),
                Content::Rows(rows) => {
                    let within = (from - first) % rows.step;
                    let row = base + from - within;
                    let (past, step) = (within + (to - from), rows.step);
                    rows.row.look_in(within, past.min(step), row, visit);
                    if past > step {
                        // The remaining rows; the first of them, up to the offset where the range begins in it, represents all.
                        let rest = (past - step).min(within);
                        if rest > 0 {
                            rows.row.look_in(0, rest, row + step, visit);
                        }
                    }
                }
            }
        }
    }

    /// Merges equal adjacent spans of a range.
    fn fuse(&mut self, start: u64, end: u64) {
        let mut spans = self.spans.range(start..end);
        let Some((&first, head)) = spans.next() else { return };
        if head.end >= end {
            return;
        }
        let (mut keep, mut keep_end, mut content) = (first, head.end, &head.content);
        let mut gone: SmallVec<[u64; 8]> = SmallVec::new();
        let mut grown: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        for (&next, span) in spans {
            if span.content == *content {
                gone.push(next);
                keep_end = span.end;
            } else {
                grown.push((keep, keep_end));
                (keep, keep_end, content) = (next, span.end, &span.content);
            }
        }
        grown.push((keep, keep_end));
        for next in gone {
            self.spans.remove(&next);
        }
        for (first, end) in grown {
            self.spans.get_mut(&first).expect("it was kept").end = end;
        }
    }

    /// Returns the number of spans, including the spans within rows.
    #[cfg(test)]
    fn size(&self) -> usize {
        let size = |span: &Span| match &span.content {
            Content::Even(_) => 1,
            Content::Rows(rows) => 1 + rows.row.size(),
        };
        self.spans.values().map(size).sum()
    }
}

/// The way in which the pieces of a strided access are placed within a span.
enum SpanFit {
    /// The first piece must be handled separately.
    One,
    /// The next `count` pieces have the same position in their rows. The first of these rows begins at `row`.
    Rows { row: u64, count: u64 },
    /// The pieces have the same position in their rows, and extend beyond the end of the row. `end` is the end of the first row.
    Across { end: u64 },
    /// The rows are longer, and each contains a group of pieces.
    Grouped { step: u64, group: u64, count: u64 },
}

impl Span {
    /// Visits all of the span.
    fn show(&mut self, first: u64, frame: Frame<'_>, visit: Visit<'_>) {
        match &mut self.content {
            Content::Even(state) => {
                let Frame { base, rows, around, .. } = frame;
                visit(Seen { first: base + first, end: base + self.end, rows, around, state })
            }
            Content::Rows(rows) => {
                let whole = Bytes::range(0, rows.step);
                self.show_in_rows(first, &whole, frame, visit);
            }
        }
    }

    /// Visits the same bytes of each of the span's rows.
    fn show_in_rows(&mut self, first: u64, part: &Bytes, frame: Frame<'_>, visit: Visit<'_>) {
        let Content::Rows(rows) = &mut self.content else { unreachable!("a span of rows was asked for") };
        let count = (self.end - first) / rows.step;
        let around = Some(Around { frame: &frame, step: rows.step, count });
        let inner = Frame {
            base: frame.base + first,
            rows: frame.rows.saturating_mul(count),
            fuses: frame.fuses,
            around,
        };
        rows.row.each_of(part, inner, visit);
        if rows.row.spans.len() == 1
            && let Some(Span { content: Content::Even(state), .. }) = rows.row.spans.get(&0)
        {
            self.content = Content::Even(state.clone());
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_driver::{Access, StrideStep, Touch};
    use thalweg_sim::schedules::SplitMix;

    fn write(shadow: &mut Shadow, bytes: &Bytes, block: BlockId) -> u64 {
        let mut count = 0;
        shadow.each(bytes, true, |seen| {
            count += (seen.end - seen.first) * seen.rows;
            seen.bytes().common((0, u64::MAX), &mut |start, end| {
                let mut inside = 0;
                bytes.common((start, end), &mut |start, end| {
                    inside += end - start;
                    true
                });
                assert_eq!(inside, end - start, "what is shown lies in what was asked for: {bytes:?}");
                true
            });
            seen.state.block = block;
        });
        count
    }

    fn blocks(shadow: &Shadow, bytes: u64) -> Vec<BlockId> {
        let of = |at| {
            let mut found = Vec::new();
            shadow.look(at, at + 1, |_, _, state| found.push(state.block));
            assert_eq!(found.len(), 1, "spans cover byte {at} once");
            found[0]
        };
        (0..bytes).map(of).collect()
    }

    #[test]
    fn spans_are_cut_and_fused() {
        let mut shadow = Shadow::new(100, false);
        write(&mut shadow, &Bytes::range(10, 20), 1);
        assert_eq!(shadow.size(), 3);
        write(&mut shadow, &Bytes::range(15, 30), 1);
        assert_eq!(shadow.size(), 4, "what was there before stays in two");
        write(&mut shadow, &Bytes::range(10, 30), 2);
        assert_eq!(shadow.size(), 3);
        write(&mut shadow, &Bytes::range(0, 100), 3);
        assert_eq!(shadow.size(), 1);
    }

    /// Returns a random set of bytes below `bytes`, with nested steps, and the list of its bytes.
    fn random_set(random: &mut SplitMix, bytes: u64) -> (Bytes, Vec<u64>) {
        loop {
            let mut below = |end: u64| random.below(end as usize) as u64;
            let start = below(bytes);
            let chunk_bytes = 1 + below(8);
            let (mut reach, mut steps) = (chunk_bytes, [StrideStep::NONE; thalweg_driver::STEPS]);
            let mut list: Vec<u64> = (start..start + chunk_bytes).collect();
            for step in steps.iter_mut().take(below(4) as usize) {
                // Steps that other sets have too are more likely, as in programs.
                let length = [12, 24, 48, 96, reach, reach + below(20)][below(6) as usize].max(reach);
                *step = StrideStep { bytes: length, count: 1 + below(7) };
                list = list.iter().flat_map(|at| (0..step.count).map(move |i| at + i * length)).collect();
                reach += length * (step.count - 1);
            }
            if start + reach <= bytes {
                let touch = Touch::Strided { chunk_bytes, steps };
                let access = Access::new(start, reach, AccessMode::Write).touching(touch);
                return (Bytes::of(&access).expect("steps are nested"), list);
            }
        }
    }

    #[test]
    fn what_is_known_of_strided_bytes_is_what_a_list_of_bytes_says() {
        const BYTES: u64 = 700;
        let mut random = SplitMix::new(1);
        for _ in 0..300 {
            let (mut shadow, mut model) = (Shadow::new(BYTES, false), vec![0; BYTES as usize]);
            for block in 1..30 {
                // Few values, so that many spans are equal.
                let block = 1 + block % 4;
                let (set, list) = random_set(&mut random, BYTES);
                assert_eq!(
                    write(&mut shadow, &set, block),
                    list.len() as u64,
                    "each byte is shown once: {set:?}"
                );
                list.iter().for_each(|&at| model[at as usize] = block);
                assert_eq!(blocks(&shadow, BYTES), model, "{set:?}");
                let (from, to) = (random.below(600) as u64, 601 + random.below(99) as u64);
                let mut seen: Vec<BlockId> = Vec::new();
                shadow.look(from, to, |_, _, state| seen.push(state.block));
                let mut expected = model[from as usize..to as usize].to_vec();
                for list in [&mut seen, &mut expected] {
                    list.sort_unstable();
                    list.dedup();
                }
                assert_eq!(seen, expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn columns_take_as_many_spans_as_there_are_columns() {
        const ROWS: u64 = 1_000_000;
        let mut shadow = Shadow::new(1 << 30, false);
        let column = |number: u64| {
            let access = Access::new(4096 + number * 8, (ROWS - 1) * 64 + 8, AccessMode::Write);
            Bytes::of(&access.touching(Touch::rows(8, 64, ROWS))).unwrap()
        };
        for number in [3, 0, 7, 1, 2, 4, 6, 5] {
            assert_eq!(write(&mut shadow, &column(number), number as BlockId + 1), ROWS * 8);
            assert!(shadow.size() < 40, "{} spans", shadow.size());
        }
        for at in 0..8 {
            let (mut low, mut high) = (0, 0);
            shadow.look(4096 + at * 8, 4097 + at * 8, |_, _, state| low = state.block);
            let last = 4096 + (ROWS - 1) * 64 + at * 8;
            shadow.look(last, last + 1, |_, _, state| high = state.block);
            assert_eq!((low, high), (at as BlockId + 1, at as BlockId + 1));
        }
    }
}
