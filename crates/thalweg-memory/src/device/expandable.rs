//! The sources of an arena's memory, and its return.
//!
//! There are two kinds of segments. A *plain* one is taken from the upstream in one piece, and is returned when all of it is
//! free. An *expandable* one is a large range of addresses, in which physical pages are mapped as they are needed, the lowest
//! address first; each page can be returned as soon as it is free. So fragmentation of addresses costs nothing.
//!
//! # Stitching
//!
//! A free page can also move. If no free block is large enough, but there are enough free pages in pieces, they are mapped side
//! by side after a range that is too short, before more is taken from the upstream. The page is mapped at its new address at
//! once, and stays mapped at the old one (the same memory at two addresses) until work in flight that may touch it there is done:
//! so moving waits for nothing. Meanwhile the old range is a *stale mapping*, which is not handed out.
//!
//! ```text
//! before    [ live ][free A][ live ][free B][ live ][    unmapped     ]
//! after     [ live ][stale ][ live ][stale ][ live ][ A  B ][unmapped ]     stale mappings are unmapped when their event has passed
//! ```
//!
//! Pages are taken from the smallest free blocks first, which are the least likely to serve a request.
//!
//! The order of accesses is guaranteed by the stream: the work that used the page at its old address, and the work that will use
//! it at the new one, are on the same stream, or the second stream waits for the first ([`Idle`](super::pages::Idle)).
//!
//! Mapping a page takes some 30 us on an H100, and unmapping it as much, whether the page is new or moves. A program that repeats
//! itself may move the same pages in every step, and stay slower for that as long as it runs. So pages are created, not moved, as
//! long as that costs next to no memory (`stitching_slack`): then there is soon a free block for every request.
//!
//! In pools of graphs, whose addresses must not lose their pages, the old range stays mapped permanently
//! ([`aliases`](crate::graph_pools::aliases)).
//!
//! # Idle
//!
//! Free memory of one stream may serve another stream when the first has finished with it. This needs no mark at every free: at
//! the first request for such memory an event is recorded after all work so far. When that event has passed, all memory that was
//! free at that time, and still is, may serve any stream.

use std::ops::Range;

use thalweg_snapshot::Action;

use super::arena::{Arena, ArenaState};
use super::bins;
use super::blocks::{BlockId, BlockUse, Span};
use super::gauges::Quantity;
use super::ledger::Ledger;
use super::pages::{Fence, PageTable, StaleMapping};
use super::pending::Use;
use super::spare::SparePage;
use crate::error::AllocationError;
use crate::ids::{SegmentKind, SizeClass};
use crate::policy::Request;
use crate::upstream::{PageId, UpstreamError, VirtualMemory};

/// The rule by which blocks of an arena may serve another stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Eligibility {
    /// The blocks that the arena's stream has finished with.
    Idle([u64; 2]),
    /// All blocks: the other stream waits for this one, or is this one.
    Ordered,
    /// All blocks, for a request of the arena's own stream. The pages also stay mapped at their old addresses.
    Aliased,
}

/// A request for pages of an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageDemand {
    /// The request that the pages are for.
    pub(crate) request: Request,
    /// The rule for blocks whose pages may be taken.
    pub(crate) eligibility: Eligibility,
    /// Whether the pages are for the arena that they are taken from.
    pub(crate) own: bool,
    /// The greatest number of pages to take.
    pub(crate) wanted: usize,
}

/// The place where an arena could grow.
struct GrowthPlan {
    /// The first block of the range: free, or unmapped.
    first: BlockId,
    /// The address at which the range ends.
    end: u64,
    pages: usize,
}

/// Turns the upstream's out-of-memory error into `None`, so that the caller continues with the next stage.
pub(crate) fn found<T>(
    call: &'static str,
    answer: Result<T, UpstreamError>,
) -> Result<Option<T>, AllocationError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(UpstreamError::OutOfMemory) => Ok(None),
        Err(error) => Err(AllocationError::upstream(call, error)),
    }
}

/// Plain segments.
impl ArenaState {
    /// Registers a range from the upstream as a free block, which is in no bin yet.
    pub(crate) fn add_plain(
        &mut self,
        arena: &Arena,
        ledger: &mut Ledger,
        class: SizeClass,
        address: u64,
        size_bytes: u64,
    ) -> Span {
        let registration = match arena.source {
            // Addresses of an external source have no meaning; the segment registered first is used first.
            Some(_) => u32::try_from(ledger.statistics.num_device_alloc).unwrap_or(u32::MAX),
            None => 0,
        };
        let tag = SegmentKind { class, is_expandable: false, registration };
        let since = self.now(arena, class);
        let span = self.blocks.add_segment(address, size_bytes, BlockUse::Free { since }, tag);
        let oversize = size_bytes >= self.policy.max_split_bytes;
        ledger.segment_taken(arena.key.owner, class, size_bytes, oversize);
        span
    }

    /// Releases the plain segment that consists of one free block to its source.
    pub(crate) fn release_plain(
        &mut self,
        arena: &Arena,
        ledger: &mut Ledger,
        span: Span,
    ) -> Result<(), AllocationError> {
        assert!(!self.blocks.is_split(span.block), "only whole segments go back");
        let SegmentKind { class, registration, .. } = self.blocks.tag(span.block);
        arena
            .return_segment(span.address, span.size_bytes)
            .map_err(|error| AllocationError::upstream("free", error))?;
        self.report_lost(arena, Action::SegmentFree, span, ledger.given_back_at);
        self.free[class as usize].remove(span, registration);
        self.blocks.remove_segment(span.block);
        let oversize = span.size_bytes >= self.policy.max_split_bytes;
        ledger.segment_returned(arena.key.owner, class, span.size_bytes, oversize);
        Ok(())
    }
}

/// Expandable segments.
impl ArenaState {
    /// Adds a range of addresses without memory, to map pages in.
    pub(crate) fn add_expandable(
        &mut self,
        class: SizeClass,
        bytes: u64,
        memory: &dyn VirtualMemory,
    ) -> Result<bool, AllocationError> {
        let page_bytes = self.policy.page_bytes[class as usize];
        let bytes = bytes.next_multiple_of(page_bytes);
        let checked = |address| bins::checked(address, bytes, || memory.free_addresses(address, bytes));
        let reserved = memory.reserve_addresses(bytes).and_then(checked);
        let Some(address) = found("reserve_addresses", reserved)? else { return Ok(false) };
        let tag = SegmentKind { class, is_expandable: true, registration: 0 };
        let span = self.blocks.add_segment(address, bytes, BlockUse::Unmapped, tag);
        let segment = self.blocks.segment_of(span.block).id;
        self.pages.insert(segment, PageTable { address, page_bytes, pages: Vec::new() });
        self.unmapped[class as usize].insert(address, span.block);
        Ok(true)
    }

    /// Returns where `request` could be served by mapping pages, and how many: the place that lacks the fewest pages, and the
    /// lowest of several. PyTorch takes the lowest of all.
    fn plan(&self, request: &Request) -> Option<GrowthPlan> {
        let unmapped = self.unmapped[request.class as usize].values();
        let mut plans = unmapped.filter_map(|&unmapped| self.plan_at(request, unmapped));
        if self.policy.stitching { plans.min_by_key(|plan| plan.pages) } else { plans.next() }
    }

    /// Returns how `request` could be served by mapping pages from an unmapped block on, after the free block before it if there
    /// is one.
    fn plan_at(&self, request: &Request, unmapped: BlockId) -> Option<GrowthPlan> {
        let page_bytes = self.policy.page_bytes[request.class as usize];
        if self.page_bytes_of(unmapped) != page_bytes {
            return None;
        }
        let is_free = |block: &BlockId| matches!(self.blocks.usage(*block), BlockUse::Free { .. });
        let first = self.blocks.previous(unmapped).filter(is_free).unwrap_or(unmapped);
        let (mut covered, mut pages) = (0, 0);
        let (mut next, mut end) = (Some(first), 0);
        while covered < request.size_bytes {
            let block = next?;
            let span = self.blocks.span(block);
            let size_bytes = span.size_bytes;
            end = span.end();
            match self.blocks.usage(block) {
                BlockUse::Taken { .. } => return None,
                BlockUse::Free { .. } => covered += size_bytes,
                BlockUse::Unmapped => {
                    let missing = (request.size_bytes - covered).next_multiple_of(page_bytes);
                    let mapped = missing.min(size_bytes);
                    covered += mapped;
                    pages += (mapped / page_bytes) as usize;
                }
            }
            next = self.blocks.next(block);
        }
        Some(GrowthPlan { first, end, pages })
    }

    /// Returns the pages that contain a taken block of an expandable segment: the address of the first, the size of each, and
    /// their identifiers.
    pub(crate) fn pages_after(&self, block: BlockId) -> (u64, u64, Vec<PageId>) {
        let span = self.blocks.span(block);
        let table = &self.pages[&self.blocks.segment_of(block).id];
        let from = (span.address - table.address) / table.page_bytes;
        let to = (span.end() - table.address).div_ceil(table.page_bytes);
        let slots = &table.pages[from as usize..to as usize];
        let pages = slots.iter().map(|page| page.expect("a mapped address has a page")).collect();
        (table.address + from * table.page_bytes, table.page_bytes, pages)
    }

    fn page_bytes_of(&self, block: BlockId) -> u64 {
        self.pages[&self.blocks.segment_of(block).id].page_bytes
    }

    /// Returns how many pages `request` lacks at the place that would serve it; `None` if no place could.
    pub(crate) fn missing_pages(&self, request: &Request) -> Option<usize> {
        self.plan(request).map(|plan| plan.pages)
    }

    /// Maps pages where they serve `request`. Returns the free block that serves it, which is in no bin, and the number of ranges
    /// in which pages were mapped. Pages that are not needed stay in `supply`.
    ///
    /// # Errors
    /// Returns the upstream's error. Pages that were mapped before it are free memory now.
    pub(crate) fn grow(
        &mut self,
        arena: &Arena,
        request: &Request,
        supply: &mut Vec<PageId>,
        memory: &dyn VirtualMemory,
    ) -> Result<Option<(Span, u64)>, AllocationError> {
        let class = request.class as usize;
        let page_bytes = self.policy.page_bytes[class];
        let plan = self.plan(request).filter(|plan| plan.pages <= supply.len());
        let Some(plan) = plan else { return Ok(None) };
        self.note_free(arena);
        let (mut span, mut ranges) = (self.blocks.span(plan.first), 0);
        loop {
            let is_unmapped = self.blocks.usage(span.block) == BlockUse::Unmapped;
            if !is_unmapped && span.size_bytes >= request.size_bytes {
                break;
            }
            let target =
                if is_unmapped { span.block } else { self.blocks.next(span.block).expect("planned") };
            let target = self.blocks.span(target);
            let covered = if is_unmapped { 0 } else { span.size_bytes };
            let bytes = (request.size_bytes - covered).next_multiple_of(page_bytes).min(target.size_bytes);
            let pages = supply.len() - (bytes / page_bytes) as usize;
            let mapped = found("map", memory.map(target.address, page_bytes, &supply[pages..]))?;
            if mapped.is_none() {
                return Ok(None);
            }
            let part = Span { size_bytes: bytes, ..target };
            span = self.mapped(part, &supply[pages..]);
            supply.truncate(pages);
            let part = Span { block: span.block, ..part };
            self.report_gained(arena, Action::SegmentMap, part, request.stack);
            ranges += 1;
        }
        self.free[class].remove(span, 0);
        Ok(Some((span, ranges)))
    }

    /// Returns the address of the highest unmapped block of a class.
    pub(crate) fn last_unmapped(&self, class: SizeClass) -> Option<u64> {
        self.unmapped[class as usize].keys().next_back().copied()
    }

    /// Maps new pages from `address` on. Returns whether this was possible: the range consists of whole unmapped pages, and the
    /// upstream has room.
    pub(crate) fn map_at(
        &mut self,
        address: u64,
        bytes: u64,
        class: SizeClass,
        memory: &dyn VirtualMemory,
    ) -> Result<bool, AllocationError> {
        let unmapped = &mut self.unmapped[class as usize];
        let Some((_, &block)) = unmapped.range(..=address).next_back() else { return Ok(false) };
        let whole = self.blocks.span(block);
        let page_bytes = self.pages[&self.blocks.segment_of(block).id].page_bytes;
        let offset = address - whole.address;
        let is_whole = offset.is_multiple_of(page_bytes) && bytes.is_multiple_of(page_bytes) && bytes > 0;
        if !is_whole || offset.saturating_add(bytes) > whole.size_bytes {
            return Ok(false);
        }
        let mut pages = Vec::new();
        for _ in 0..bytes / page_bytes {
            match found("create_page", memory.create_page(page_bytes))? {
                Some(page) => pages.push(page),
                None => return Ok(false),
            }
        }
        if found("map", memory.map(address, page_bytes, &pages))?.is_none() {
            return Ok(false);
        }
        let mut target = whole;
        if offset > 0 {
            target = self.blocks.split(block, offset);
            self.unmapped[class as usize].insert(target.address, target.block);
        }
        self.mapped(Span { size_bytes: bytes, ..target }, &pages);
        Ok(true)
    }

    /// Marks the beginning of an unmapped block, where pages were mapped, as free.
    fn mapped(&mut self, span: Span, pages: &[PageId]) -> Span {
        let class = self.blocks.tag(span.block).class as usize;
        let segment = self.blocks.segment_of(span.block).id;
        self.pages.get_mut(&segment).expect("a segment that is_expandable has pages").put(span, pages);
        self.unmapped[class].remove(&span.address);
        if span.size_bytes < self.blocks.span(span.block).size_bytes {
            let rest = self.blocks.split(span.block, span.size_bytes);
            self.unmapped[class].insert(rest.address, rest.block);
        }
        let merged = self.blocks.map(span.block, self.searches[class]);
        for neighbour in merged.absorbed.into_iter().flatten() {
            self.free[class].remove(neighbour, 0);
        }
        self.free[class].insert(merged.span, 0);
        merged.span
    }

    /// Cuts `part` out of the free block `whole`, which is in a bin. The part is then in no bin; the rest is.
    pub(crate) fn carve(&mut self, whole: Span, part: Span) -> BlockId {
        let SegmentKind { class, is_expandable, registration } = self.blocks.tag(whole.block);
        let was_split = self.blocks.is_split(whole.block);
        let bins = &mut self.free[class as usize];
        bins.remove(whole, registration);
        let (mut block, mut parts) = (whole.block, 1);
        if part.address > whole.address {
            let before_bytes = part.address - whole.address;
            bins.insert(Span { size_bytes: before_bytes, ..whole }, registration);
            block = self.blocks.split(block, before_bytes).block;
            parts += 1;
        }
        if part.end() < whole.end() {
            bins.insert(self.blocks.split(block, part.size_bytes), registration);
            parts += 1;
        }
        if !is_expandable && parts > 1 {
            let (before, before_bytes) = if was_split { (1, whole.size_bytes) } else { (0, 0) };
            self.gauges.change(class, Quantity::InactiveSplit, parts, before);
            self.gauges.change(class, Quantity::InactiveSplitBytes, whole.size_bytes, before_bytes);
        }
        block
    }

    /// Removes the pages of a free block that is in no bin: its addresses become unmapped.
    fn unmapped(&mut self, block: BlockId) -> Vec<PageId> {
        let span = self.blocks.span(block);
        let segment = self.blocks.segment_of(block).id;
        let pages = self.pages.get_mut(&segment).expect("a segment that is_expandable has pages").take(span);
        let merged = self.blocks.unmap(block);
        self.note_unmapped(merged);
        pages
    }

    pub(crate) fn note_unmapped(&mut self, merged: super::blocks::Merged) {
        let unmapped = &mut self.unmapped[self.blocks.tag(merged.span.block).class as usize];
        for neighbour in merged.absorbed.into_iter().flatten() {
            unmapped.remove(&neighbour.address);
        }
        unmapped.insert(merged.span.address, merged.span.block);
    }

    /// Returns the whole pages for requests of a class within free blocks that may be taken away, each with its block. Pages in
    /// the range `keep` are left out.
    fn movable(
        &self,
        class: SizeClass,
        eligibility: Eligibility,
        keep: Range<u64>,
    ) -> impl Iterator<Item = (Span, Span)> + '_ {
        let page_bytes = self.policy.page_bytes[class as usize];
        let both = self.free[0].iter().chain(self.free[1].iter());
        both.filter(move |entry| !keep.contains(&entry.address) && self.is_eligible(entry.block, eligibility))
            .filter(|entry| self.blocks.tag(entry.block).is_expandable)
            .filter_map(move |entry| {
                let table = &self.pages[&self.blocks.segment_of(entry.block).id];
                let pages = table.whole_pages(entry.span()).filter(|_| table.page_bytes == page_bytes);
                pages.map(|pages| (entry.span(), pages))
            })
    }

    /// Returns the number of pages that this arena could supply under `order`, at most the requested number.
    pub(crate) fn count_pages(&self, order: &PageDemand) -> usize {
        let PageDemand { request, eligibility, own, wanted } = *order;
        let page_bytes = self.policy.page_bytes[request.class as usize];
        let movable = self.movable(request.class, eligibility, self.kept_for(&request, own));
        let bytes: u64 = movable.map(|(_, pages)| pages.size_bytes).sum();
        wanted.min((bytes / page_bytes) as usize)
    }

    /// Returns the addresses where a request of this same arena will be served when it has pages: none are taken away there.
    fn kept_for(&self, request: &Request, own: bool) -> Range<u64> {
        let plan = if own { self.plan(request) } else { None };
        plan.map_or(0..0, |plan| self.blocks.span(plan.first).address..plan.end)
    }

    /// Takes free pages away according to `order`, the smallest blocks' pages first. Skips pages where the request itself will
    /// grow, if the request is for this arena. Does not wait.
    pub(crate) fn give_pages(
        &mut self,
        arena: &Arena,
        ledger: &mut Ledger,
        order: &PageDemand,
        pages: &mut Vec<PageId>,
    ) {
        let PageDemand { request, eligibility, own, wanted } = *order;
        let page_bytes = self.policy.page_bytes[request.class as usize];
        let keep = self.kept_for(&request, own);
        let mut movable: Vec<(Span, Span)> = self.movable(request.class, eligibility, keep).collect();
        movable.sort_by_key(|(whole, _)| (whole.size_bytes, whole.address));
        let mut missing = wanted;
        for (whole, mut part) in movable {
            if missing == 0 {
                break;
            }
            // Taken from the end, so that the remainder of the block stays in one piece at its beginning.
            let bytes = part.size_bytes.min(missing as u64 * page_bytes);
            part = Span { address: part.end() - bytes, size_bytes: bytes, ..part };
            let class = self.blocks.tag(whole.block).class;
            match eligibility {
                Eligibility::Idle(_) => {
                    let Some(memory) = arena.common.upstream.virtual_memory() else { return };
                    if memory.unmap(part.address, part.size_bytes).is_err() {
                        continue;
                    }
                    let block = self.carve(whole, part);
                    self.report_lost(arena, Action::SegmentUnmap, Span { block, ..part }, None);
                    pages.extend(self.unmapped(block));
                    ledger.bytes_moved(class, request.class, bytes);
                }
                Eligibility::Ordered | Eligibility::Aliased => {
                    ledger.bytes_moved(class, request.class, bytes);
                    self.leave_stale_mapping(
                        arena,
                        whole,
                        part,
                        matches!(eligibility, Eligibility::Aliased),
                        pages,
                    );
                }
            }
            missing -= (bytes / page_bytes) as usize;
        }
        self.process_events(arena);
    }

    /// Removes the pages of a range from the arena, but leaves them mapped: work in flight may still touch them, or, with
    /// `is_alias`, future work.
    fn leave_stale_mapping(
        &mut self,
        arena: &Arena,
        whole: Span,
        part: Span,
        is_alias: bool,
        pages: &mut Vec<PageId>,
    ) {
        let block = self.carve(whole, part);
        self.report_lost(arena, Action::SegmentUnmap, Span { block, ..part }, None);
        let segment = self.blocks.segment_of(block).id;
        let moved = self.pages.get_mut(&segment).expect("a segment that is_expandable has pages").take(part);
        pages.extend(&moved);
        self.blocks.take(block, 0);
        arena.common.pending_lists.stale.insert(arena.number);
        self.stale_mappings.insert(block, StaleMapping { pages: moved, is_alias });
        if !is_alias {
            self.note_waiting(arena);
            let uses = vec![Use::noted(arena.key.stream)];
            self.pending.free(block, uses, &arena.common.event_context());
        }
    }

    /// Unmaps the first stale mapping that is ready: no work in flight touches it any more.
    pub(crate) fn unmap_first_stale(&mut self, arena: &Arena, block: BlockId) {
        let Span { address, size_bytes, .. } = self.blocks.span(block);
        let memory =
            arena.common.upstream.virtual_memory().expect("stale mappings were made with virtual memory");
        let unmapped = memory.unmap(address, size_bytes);
        self.pending.pop_ready();
        if unmapped.is_err() {
            // The unmapping is tried again after a later event. Nothing else needs the addresses meanwhile.
            self.note_waiting(arena);
            self.pending.free(block, vec![Use::noted(arena.key.stream)], &arena.common.event_context());
            return;
        }
        self.stale_mappings.remove(&block);
        let merged = self.blocks.release_unmapped(block);
        self.note_unmapped(merged);
    }

    /// Unmaps whole pages of a free block of an expandable segment, from its end, until they make up `bytes`; they become spare
    /// pages. No work in flight touches them. Returns the number of unmapped bytes.
    pub(crate) fn release_pages(
        &mut self,
        arena: &Arena,
        ledger: &mut Ledger,
        whole: Span,
        bytes: u64,
        memory: &dyn VirtualMemory,
    ) -> Result<u64, AllocationError> {
        let table = &self.pages[&self.blocks.segment_of(whole.block).id];
        let Some(all) = table.whole_pages(whole) else { return Ok(0) };
        let size_bytes =
            bytes.checked_next_multiple_of(table.page_bytes).unwrap_or(u64::MAX).min(all.size_bytes);
        let part = Span { address: all.end() - size_bytes, size_bytes, ..all };
        memory
            .unmap(part.address, part.size_bytes)
            .map_err(|error| AllocationError::upstream("unmap", error))?;
        let class = self.blocks.tag(whole.block).class;
        let block = self.carve(whole, part);
        self.report_lost(arena, Action::SegmentUnmap, Span { block, ..part }, ledger.given_back_at);
        let pages = self.unmapped(block);
        let page_bytes = part.size_bytes / pages.len() as u64;
        ledger.bytes_spared(arena.key.owner, part.size_bytes);
        let spare = |page| SparePage { page, bytes: page_bytes, class, after: None, pool: None };
        arena.common.spare.add(pages.into_iter().map(spare));
        ledger.statistics.num_device_free += 1;
        Ok(part.size_bytes)
    }

    /// Frees a segment in whatever state it is, when the arena is dropped: its pages become spare. Memory that the upstream
    /// refuses is leaked.
    pub(crate) fn destroy_expandable(
        &mut self,
        arena: &Arena,
        segment: super::blocks::SegmentView<SegmentKind>,
        memory: &dyn VirtualMemory,
    ) {
        let stale_mappings =
            self.blocks.blocks_of(segment).filter(|block| self.stale_mappings.contains_key(block));
        for Span { address, size_bytes, .. } in stale_mappings.map(|block| self.blocks.span(block)) {
            let _ = memory.unmap(address, size_bytes);
        }
        let table = self.pages.remove(&segment.id).expect("a segment that is_expandable has pages");
        for (place, _) in (0u64..).zip(&table.pages).filter(|(_, page)| page.is_some()) {
            let _ = memory.unmap(segment.address + place * table.page_bytes, table.page_bytes);
        }
        let spare = |page| SparePage {
            page,
            bytes: table.page_bytes,
            class: segment.tag.class,
            after: None,
            pool: None,
        };
        arena.common.spare.add(table.pages.iter().copied().flatten().map(spare));
        let _ = memory.free_addresses(segment.address, segment.size_bytes);
    }

    /// Frees the addresses of segments that have no memory left.
    pub(crate) fn release_addresses(&mut self, memory: &dyn VirtualMemory) -> Result<(), AllocationError> {
        for class in 0..2 {
            let empty: Vec<Span> = self.unmapped[class]
                .values()
                .filter(|block| !self.blocks.is_split(**block))
                .map(|block| self.blocks.span(*block))
                .collect();
            for span in empty {
                memory
                    .free_addresses(span.address, span.size_bytes)
                    .map_err(|error| AllocationError::upstream("free_addresses", error))?;
                self.unmapped[class].remove(&span.address);
                let segment = self.blocks.remove_segment(span.block);
                self.pages.remove(&segment);
                self.forget_segment(segment);
            }
        }
        Ok(())
    }
}

/// Memory that may go to another stream.
impl ArenaState {
    fn is_eligible(&self, block: BlockId, eligibility: Eligibility) -> bool {
        match (eligibility, self.blocks.usage(block)) {
            (Eligibility::Ordered | Eligibility::Aliased, _) => true,
            (Eligibility::Idle(passed), BlockUse::Free { since }) => {
                let passed = passed[self.blocks.tag(block).class as usize];
                since <= passed
            }
            (Eligibility::Idle(_), _) => false,
        }
    }

    /// Returns the memory that this arena's stream is known to have finished with, after checking its progress. Does not wait.
    pub(crate) fn look_how_idle(&mut self, arena: &Arena) -> Option<Eligibility> {
        if arena.common.is_capturing() {
            return None;
        }
        if self.idle.fence.is_none() {
            let bins = self.free.iter().flat_map(|bins| bins.iter());
            let eligibility = self.idle.passed.map(Eligibility::Idle);
            let mut unknown = bins.filter(|entry| {
                !eligibility.is_some_and(|eligibility| self.is_eligible(entry.block, eligibility))
            });
            if unknown.next().is_some()
                && let Some(fence) = Fence::record(
                    &arena.common.event_context(),
                    arena.key.stream,
                    &arena.common.unrecorded_users(),
                    self.searches,
                )
            {
                self.idle.fence = Some(fence);
                // Memory that is freed from now on gets a later time.
                self.searches = self.searches.map(|searches| searches + 1);
            }
        }
        let upstream = &*arena.common.upstream;
        if let Some(fence) = self.idle.fence.take_if(|fence| fence.is_over(upstream)) {
            self.idle.passed = Some(fence.searches);
            fence.release(upstream);
        }
        self.idle.passed.map(Eligibility::Idle)
    }

    /// Waits until all free memory here is idle, and returns the memory that may then serve another stream. *Blocks*. Returns
    /// `None` if there are no pages for requests of `class`, or the stream cannot be waited for, for example because it captures.
    pub(crate) fn wait_until_idle(&mut self, arena: &Arena, class: SizeClass) -> Option<Eligibility> {
        let must_wait = self.movable(class, Eligibility::Ordered, 0..0).next().is_some();
        if !must_wait || arena.wait_for_users(self).is_err() {
            return None;
        }
        let passed = self.searches;
        // Memory that is freed from now on gets a later time.
        self.searches = passed.map(|searches| searches + 1);
        self.idle.passed = Some(passed);
        Some(Eligibility::Idle(passed))
    }

    /// Releases the fence's event, when the arena is dropped.
    pub(crate) fn abandon(&mut self, arena: &Arena) {
        self.pending.abandon(&*arena.common.upstream);
        if let Some(fence) = self.idle.fence.take() {
            fence.release(&*arena.common.upstream);
        }
    }

    /// Returns the blocks that wait for uses on other streams and would serve, the oldest first.
    pub(crate) fn waiting_for_uses(&self, request: &Request) -> Vec<BlockId> {
        let serves = |block: &BlockId| {
            let size_bytes = self.blocks.span(*block).size_bytes;
            !self.stale_mappings.contains_key(block)
                && self.blocks.tag(*block).class == request.class
                && size_bytes >= request.size_bytes
                && self.policy.may_serve(request.size_bytes, size_bytes)
        };
        self.pending.iter().filter(serves).collect()
    }

    /// Returns a free block for a request of another stream; it is still in its bin. With `lenient` every block that is large
    /// enough serves, whatever its class and size.
    pub(crate) fn find_to_borrow(
        &self,
        request: &Request,
        eligibility: Eligibility,
        lenient: bool,
    ) -> Option<Span> {
        let classes = [request.class, request.class.other()];
        let entry = classes[..if lenient { 2 } else { 1 }].iter().find_map(|class| {
            self.free[*class as usize].at_least(request.size_bytes).find(|entry| {
                self.is_eligible(entry.block, eligibility)
                    && (lenient || self.policy.may_serve(request.size_bytes, entry.size_bytes))
            })
        })?;
        Some(entry.span())
    }
}
