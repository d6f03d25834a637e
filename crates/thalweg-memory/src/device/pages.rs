//! The physical pages of an expandable segment, pages that have moved away, and the progress of a stream with respect to free
//! memory as far as the host knows it.
//!
//! When pages are mapped and moved is decided in [`expandable`](super::expandable).

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::blocks::Span;
use super::pending::EventContext;
use crate::ids::StreamId;
use crate::upstream::{EventId, PageId, Upstream};

/// The physical pages of one expandable segment.
#[derive(Debug)]
pub(crate) struct PageTable {
    pub(super) address: u64,
    pub(super) page_bytes: u64,
    /// The page at each index up to the last page that was ever mapped: a segment has addresses for far more.
    pub(super) pages: Vec<Option<PageId>>,
}

impl PageTable {
    pub(super) fn range(&self, span: Span) -> Range<usize> {
        let page = |address: u64| ((address - self.address) / self.page_bytes) as usize;
        debug_assert!((span.address - self.address).is_multiple_of(self.page_bytes));
        page(span.address)..page(span.end())
    }

    pub(super) fn put(&mut self, span: Span, pages: &[PageId]) {
        let range = self.range(span);
        if range.end > self.pages.len() {
            self.pages.resize(range.end, None);
        }
        for (slot, page) in self.pages[range].iter_mut().zip(pages) {
            assert!(slot.replace(*page).is_none(), "an unmapped address has no page");
        }
    }

    pub(super) fn take(&mut self, span: Span) -> Vec<PageId> {
        let range = self.range(span);
        self.pages[range].iter_mut().map(|slot| slot.take().expect("a mapped address has a page")).collect()
    }

    /// Returns the pages with their addresses.
    pub(crate) fn places(&self) -> impl Iterator<Item = (PageId, u64)> + '_ {
        let places = (0u64..).map(|place| self.address + place * self.page_bytes);
        self.pages.iter().zip(places).filter_map(|(page, address)| Some(((*page)?, address)))
    }

    /// Returns the whole pages within a free block.
    pub(super) fn whole_pages(&self, span: Span) -> Option<Span> {
        let from = (span.address - self.address).next_multiple_of(self.page_bytes);
        let end = span.end() - self.address;
        let to = end / self.page_bytes * self.page_bytes;
        (from < to).then(|| Span { address: self.address + from, size_bytes: to - from, ..span })
    }
}

/// The progress of a stream, as far as the host knows it.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    /// Events that have not passed yet, and the clocks of the classes when they were recorded.
    pub(super) fence: Option<Fence>,
    /// The clocks of the classes whose fence has passed: memory that became free before is idle.
    pub(super) passed: Option<[u64; 2]>,
}

#[derive(Debug)]
pub(super) struct Fence {
    events: SmallVec<[EventId; 1]>,
    pub(super) searches: [u64; 2],
}

impl Fence {
    /// Records an event on an arena's stream, and on the other streams that may touch the arena's free memory; `None` if no event
    /// can be recorded.
    pub(super) fn record(
        context: &EventContext<'_>,
        stream: StreamId,
        others: &[StreamId],
        searches: [u64; 2],
    ) -> Option<Self> {
        let mut events = smallvec![context.record(stream).ok()?.event];
        let others = others.iter().filter(|other| **other != stream);
        events.extend(others.filter_map(|other| Some(context.record(*other).ok()?.event)));
        Some(Self { events, searches })
    }

    pub(super) fn is_over(&self, upstream: &dyn Upstream) -> bool {
        self.events.iter().all(|event| upstream.query_event(*event).unwrap_or(false))
    }

    pub(super) fn release(self, upstream: &dyn Upstream) {
        self.events.into_iter().for_each(|event| upstream.release_event(event));
    }
}

/// A range whose pages have moved away, but are still mapped there too. It is a taken block that no caller holds.
#[derive(Debug)]
pub(crate) struct StaleMapping {
    /// The pages that are still mapped at this range.
    pub(crate) pages: Vec<PageId>,
    /// Whether the mapping stays because a graph may access its addresses. Otherwise it is removed when its event has passed.
    pub(crate) is_alias: bool,
}
