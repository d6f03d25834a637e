//! Pages that are in no arena.
//!
//! A page is *spare* when it was created, or taken from its place, for a growth that then failed; or when it was unmapped in
//! order to be returned. Two conditions must be observed before it is used again or returned:
//!
//! - Work in flight may still touch it. A request that collects pages from other streams waits for them on the device; so such a
//!   page is free for later work *on that stream*, and for no other until the host knows that work to be done.
//! - It may still be mapped at its old address: a stale mapping ([`expandable`](super::expandable)). Then it is kept; and if that
//!   mapping stays for as long as a pool does, the page serves only that pool.
//!
//! Statistics are not kept here. Spare pages are reserved memory, of no pool.

use rustc_hash::FxHashSet;
use thalweg_lock::Mutex;

use crate::ids::{ArenaKey, Owner, PoolId, SizeClass, StreamId};
use crate::upstream::{PageId, UpstreamError, VirtualMemory};

/// A page that is in no arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SparePage {
    pub(crate) page: PageId,
    pub(crate) bytes: u64,
    /// The class whose statistics count the page.
    pub(crate) class: SizeClass,
    /// The stream whose later work may use the page; any stream if `None`.
    pub(crate) after: Option<StreamId>,
    /// The pool that the page must stay in, since it may be mapped there at an address that a graph relies on.
    pub(crate) pool: Option<PoolId>,
}

impl SparePage {
    /// Returns whether the arena of `key` may use it as a page of `bytes`.
    pub(crate) fn serves(&self, bytes: u64, key: ArenaKey) -> bool {
        self.bytes == bytes
            && self.after.is_none_or(|after| after == key.stream)
            && self.pool.is_none_or(|pool| key.owner == Owner::Private(pool))
    }
}

/// The spare pages of one allocator. No function is called with their lock held.
#[derive(Debug, Default)]
pub(crate) struct SparePages {
    pages: Mutex<Vec<SparePage>>,
}

impl SparePages {
    pub(crate) fn add(&self, pages: impl IntoIterator<Item = SparePage>) {
        self.pages.lock().extend(pages);
    }

    /// Returns a copy of all spare pages.
    pub(crate) fn copy(&self) -> Vec<SparePage> {
        self.pages.lock().clone()
    }

    /// Returns the number of pages, at most `wanted`, that the arena of `key` may use.
    pub(crate) fn count(&self, wanted: usize, bytes: u64, key: ArenaKey) -> usize {
        self.pages.lock().iter().filter(|spare| spare.serves(bytes, key)).take(wanted).count()
    }

    /// Removes and returns up to `wanted` pages that the arena of `key` may use.
    pub(crate) fn take(&self, wanted: usize, bytes: u64, key: ArenaKey) -> Vec<SparePage> {
        let serves = |spare: &mut SparePage| spare.serves(bytes, key);
        self.pages.lock().extract_if(.., serves).take(wanted).collect()
    }

    /// Releases all pages to the upstream except those that are still `mapped` somewhere, and calls `destroyed` for each.
    /// *Blocks*, by calling `wait`, until work that may touch them is done.
    ///
    /// # Errors
    /// Returns the upstream's error, with the name of the failed call; the remaining pages are still spare.
    pub(crate) fn destroy(
        &self,
        memory: &dyn VirtualMemory,
        mapped: &FxHashSet<PageId>,
        wait: impl Fn(StreamId) -> Result<(), UpstreamError>,
        mut destroyed: impl FnMut(&SparePage),
    ) -> Result<(), (&'static str, UpstreamError)> {
        let streams: FxHashSet<StreamId> = self.pages.lock().iter().filter_map(|spare| spare.after).collect();
        for stream in streams {
            wait(stream).map_err(|error| ("synchronize_stream", error))?;
            let mut pages = self.pages.lock();
            pages.iter_mut().filter(|spare| spare.after == Some(stream)).for_each(|spare| spare.after = None);
        }
        let free = |spare: &mut SparePage| !mapped.contains(&spare.page);
        let mut leaving = Leaving { from: self, pages: self.pages.lock().extract_if(.., free).collect() };
        while let Some(spare) = leaving.pages.last() {
            memory.destroy_page(spare.page).map_err(|error| ("destroy_page", error))?;
            destroyed(spare);
            leaving.pages.pop();
        }
        Ok(())
    }
}

/// Pages that are being destroyed. Pages that are not destroyed, for whatever reason, become spare again when this is dropped.
struct Leaving<'a> {
    from: &'a SparePages,
    pages: Vec<SparePage>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.from.add(self.pages.drain(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeUpstream;
    use crate::upstream::Upstream;

    const PAGE: u64 = 2 << 20;

    #[test]
    fn a_page_goes_when_its_stream_is_done_and_stays_where_that_cannot_be_known() {
        let upstream = FakeUpstream::with_virtual_memory(1 << 30);
        let memory = upstream.virtual_memory().expect("it was asked for");
        let streams = [1, 2].map(StreamId::from_raw);
        let pages = [(); 4].map(|()| memory.create_page(PAGE).expect("there is room"));
        let spare = SparePages::default();
        let after = [Some(streams[0]), Some(streams[1]), Some(streams[0]), None];
        spare.add(pages.into_iter().zip(after).map(|(page, after)| SparePage {
            page,
            bytes: PAGE,
            class: SizeClass::Large,
            after,
            pool: None,
        }));
        let refused = spare.destroy(
            memory,
            &FxHashSet::default(),
            |_| Err(UpstreamError::Other("it is lost".into())),
            |_| panic!("no page goes"),
        );
        assert_eq!(refused.expect_err("no stream can be waited for").0, "synchronize_stream");
        assert_eq!((upstream.live_pages(), spare.copy().len()), (4, 4));
        let waited = std::cell::RefCell::new(Vec::new());
        let wait = |stream| {
            assert_eq!(upstream.live_pages(), 4, "all are waited for before any goes");
            waited.borrow_mut().push(stream);
            Ok(())
        };
        let mapped = FxHashSet::from_iter([pages[0]]);
        let mut gone = Vec::new();
        spare.destroy(memory, &mapped, wait, |spare| gone.push(spare.page)).expect("all are done");
        waited.borrow_mut().sort_unstable();
        gone.sort_unstable();
        assert_eq!((waited.into_inner(), gone), (streams.to_vec(), pages[1..].to_vec()));
        let left: Vec<_> = spare.copy().iter().map(|spare| (spare.page, spare.after)).collect();
        assert_eq!(left, [(pages[0], None)], "what is mapped stays, and waits for nothing any more");
    }

    #[test]
    fn a_page_serves_the_stream_that_it_waits_for_and_the_pool_that_it_must_stay_in() {
        let [stream, other_stream] = [1, 2].map(StreamId::from_raw);
        let [pool, other_pool] = [(); 2].map(|()| PoolId::unique());
        let page = |number, after, pool| SparePage {
            page: PageId::from_raw(number),
            bytes: PAGE,
            class: SizeClass::Large,
            after,
            pool,
        };
        let spare = SparePages::default();
        spare.add([
            page(1, None, None),
            page(2, Some(stream), None),
            page(3, None, Some(pool)),
            page(4, Some(stream), Some(pool)),
        ]);
        let count = |stream, owner| spare.count(9, PAGE, ArenaKey { stream, owner });
        assert_eq!([stream, other_stream].map(|stream| count(stream, Owner::Shared)), [2, 1]);
        assert_eq!([stream, other_stream].map(|stream| count(stream, Owner::Private(pool))), [4, 2]);
        assert_eq!([stream, other_stream].map(|stream| count(stream, Owner::Private(other_pool))), [2, 1]);
        assert_eq!(
            spare.count(9, 2 * PAGE, ArenaKey { stream, owner: Owner::Private(pool) }),
            0,
            "larger pages"
        );
        let taken = spare.take(9, PAGE, ArenaKey { stream: other_stream, owner: Owner::Private(pool) });
        assert_eq!(taken.iter().map(|spare| spare.page.raw()).collect::<Vec<_>>(), [1, 3]);
    }
}
