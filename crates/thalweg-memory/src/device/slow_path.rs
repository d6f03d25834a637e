//! Finding memory for a request that no cached block serves, from the cheapest way to the last.
//!
//! | stage | attempt | PyTorch |
//! |---|---|---|
//! | 1 | a cached block after all: another thread may have freed one, or a callback frees one | yes |
//! | 2 | a block that waits for uses on other streams: the stream is made to wait for the oldest | |
//! | 3 | above the threshold, old cached segments are returned first | yes |
//! | 4 | stitching: new pages while there is slack, then free ones of this stream, then of idle ones | |
//! | 5 | a free block of another stream that has finished with it | |
//! | 6 | more from the upstream | yes |
//! | 7 | pools that serve other requests when memory is short | yes |
//! | 8 | with `max_split_size`: oversize blocks are returned, no more than needed, and 6 again | yes |
//! | 9 | whatever a device-side wait makes available: waiting blocks, pages and blocks of other streams | |
//! | 10 | as much as is missing is returned, of pages of the other size if there are any, and 6 again | |
//! | | the host waits for all events, all free memory is returned, and 6 again | yes |
//! | | then a free block after all: for example part of a segment that is still in use | |
//! | 11 | as 1, 4 and 6, without rounding, with more [aliases](crate::graph_pools::aliases), and for a large request with the pages of small ones; then any free block that is large enough, whatever its size class | |
//! | 12 | an error that describes the memory situation | yes |
//!
//! With `policy:pytorch` only PyTorch's stages exist, and they decide as PyTorch does. While a capture is under way nothing may
//! be waited for or returned, so stages 2 to 5 and 8 to 10 are left out, and stage 11 only uses the stream's own blocks. Pools
//! whose memory may have two addresses ([`aliases`](crate::graph_pools::aliases)) are also stitched then.
//!
//! If the upstream is out of memory, the next stage follows; any other error of the upstream ends the slow path and is returned
//! to the caller. In both cases the state is as valid as before.
//!
//! One lock is held for the entire slow path, and an arena's only for a stage: actions of other threads between two stages may
//! make it longer, never wrong, since each stage ends either with a block for the caller or with nothing.

use std::sync::Arc;

use thalweg_lock::MutexGuard;
use thalweg_snapshot::Action;

use super::allocator::DeviceAllocator;
use super::arena::{Arena, ArenaState};
use super::blocks::{BlockId, Span};
use super::central::Central;
use super::expandable::{Eligibility, PageDemand, found};
use super::pending_list::MOST_ASKED;
use super::reentry::Outside;
use super::spare::SparePage;
use crate::error::AllocationError;
use crate::ids::{ArenaKey, Owner, SizeClass, StreamId};
use crate::policy::{Policy, Request};
use crate::settings::CrossStreamReuse;
use crate::upstream::{EventId, PageId, VirtualMemory};

/// A block for the caller, and the arena that it belongs to.
pub(crate) type Obtained = (Arc<Arena>, Span);

/// A request on the slow path.
struct SlowPath<'a> {
    allocator: &'a DeviceAllocator,
    /// The locked central state; `None` only while the upstream is called without the lock.
    central: Option<MutexGuard<'a, Central>>,
    arena: &'a Arc<Arena>,
    request: Request,
    policy: Policy,
    /// Pages that are mapped nowhere, collected for the request.
    pages: Vec<PageId>,
    /// Pages that were just created and are not counted yet.
    made: Vec<PageId>,
    /// Events that this stream was made to wait for.
    waits: Vec<EventId>,
    /// The number of further events that this stream may be made to wait for before memory is short.
    waits_left: usize,
    /// Whether everything else has been tried.
    is_last_resort: bool,
}

impl DeviceAllocator {
    /// Finds memory for a request that no cached block serves.
    pub(crate) fn obtain_on_slow_path(
        &self,
        arena: &Arc<Arena>,
        request: Request,
    ) -> Result<Obtained, AllocationError> {
        SlowPath::new(self, arena, request).obtain()
    }
}

type Found = Result<Option<Obtained>, AllocationError>;

impl<'a> SlowPath<'a> {
    fn new(allocator: &'a DeviceAllocator, arena: &'a Arc<Arena>, request: Request) -> Self {
        let central = Some(allocator.central());
        let state = arena.lock();
        let policy = state.policy.clone();
        let waits_left = policy.cross_stream_wait_limit.saturating_sub(state.pending.waits_in_flight());
        drop(state);
        let (pages, made, waits) = (Vec::new(), Vec::new(), Vec::new());
        let is_last_resort = false;
        Self { allocator, central, arena, request, policy, pages, made, waits, waits_left, is_last_resort }
    }

    fn central(&mut self) -> &mut Central {
        self.central.as_mut().expect("the lock is held between two stages")
    }

    /// Runs all stages. Repeats them once if other threads have freed enough memory meanwhile.
    fn obtain(mut self) -> Result<Obtained, AllocationError> {
        self.central().ledger.given_back_at = self.request.stack;
        let obtained = self.run_twice();
        self.central().ledger.given_back_at = None;
        obtained
    }

    fn run_twice(&mut self) -> Result<Obtained, AllocationError> {
        let (allocator, arena, request) = (self.allocator, self.arena, self.request);
        if let Some(obtained) = self.run()? {
            return Ok(obtained);
        }
        // PyTorch does not check again.
        if !self.policy.processes_all
            && allocator.would_fit_now(self.central(), arena, &request)
            && let Some(obtained) = self.run()?
        {
            return Ok(obtained);
        }
        Err(allocator.out_of_memory(self.central(), arena, &request))
    }

    fn run(&mut self) -> Found {
        self.is_last_resort = false;
        self.central().addresses_are_short = false;
        let stages: [fn(&mut Self) -> Found; 13] = [
            Self::cached,
            Self::after_callbacks,
            Self::order_oldest,
            Self::collect_garbage,
            Self::stitch,
            Self::borrow_idle,
            Self::take_more,
            Self::helping_pools,
            Self::release_oversize,
            Self::order_anything,
            Self::release_some,
            Self::release_cached,
            Self::last_resort,
        ];
        for stage in stages {
            if let Some(obtained) = stage(self)? {
                return Ok(Some(obtained));
            }
        }
        Ok(None)
    }

    /// Returns whether a capture is under way. Each stage that waits or returns memory checks this itself: the lock may have been
    /// released since the last stage (`release_lock_on_cudamalloc`), and no capture begins while it is held.
    fn is_capturing(&self) -> bool {
        self.arena.common.is_capturing()
    }

    /// Hands out a block that was found in `arena`.
    fn hand_out(&self, arena: &Arc<Arena>, state: &mut ArenaState, span: Span) -> Obtained {
        (Arc::clone(arena), state.hand_out(arena, &self.request, span))
    }

    fn cached(&mut self) -> Found {
        let mut state = self.arena.lock();
        state.process_events(self.arena);
        let found = state.search(&self.request);
        Ok(found.map(|span| self.hand_out(self.arena, &mut state, span)))
    }

    fn after_callbacks(&mut self) -> Found {
        let callbacks = self.central().free_memory_callbacks.clone();
        let outside = Outside::enter();
        // All callbacks are called: each may free memory that the others cannot.
        let freed = callbacks.iter().filter(|callback| callback()).count();
        drop(outside);
        if freed > 0 { self.cached() } else { Ok(None) }
    }

    /// Makes the stream wait for the oldest block that would serve and that waits for uses on other streams. Does so only if
    /// there are enough such blocks to keep the device busy meanwhile.
    fn order_oldest(&mut self) -> Found {
        let Some(depth) = self.policy.record_use_depth else { return Ok(None) };
        let mut state = self.arena.lock();
        let candidates = state.waiting_for_uses(&self.request);
        if candidates.is_empty() || candidates.len() < depth || self.waits_left == 0 {
            return Ok(None);
        }
        self.order_before(&mut state, candidates[0])
    }

    fn order_before(&self, state: &mut ArenaState, block: BlockId) -> Found {
        if self.is_capturing() {
            return Ok(None);
        }
        let context = self.arena.common.event_context();
        // Work that cannot be waited for on the device is waited for by the host, in a later stage.
        let ordered = state.pending.order_before(block, self.arena.key.stream, &context).unwrap_or(false);
        state.collect_ready(self.arena);
        if !ordered {
            return Ok(None);
        }
        self.arena.common.count_wait();
        let found = state.cached(self.arena, &self.request);
        Ok(found.map(|span| self.hand_out(self.arena, state, span)))
    }

    /// Releases old cached segments if there is a limit and the cache is near it, as PyTorch does: those that are older than the
    /// average, repeatedly, until there is enough.
    fn collect_garbage(&mut self) -> Found {
        let threshold = self.policy.garbage_collection_threshold;
        let allowed = self.central().ledger.allowed_bytes.filter(|_| threshold > 0.0 && !self.is_capturing());
        let Some(allowed) = allowed else { return Ok(None) };
        let limit = (threshold * allowed as f64) as u64;
        let reserved = self.central().ledger.reserved_bytes();
        if reserved <= limit {
            return Ok(None);
        }
        let mut missing = (reserved - limit) as i64;
        let mut segments = Vec::new();
        for arena in self.arena.common.arenas_with_free(Owner::Shared, usize::MAX) {
            let mut state = arena.lock();
            let now = state.now(&arena, SizeClass::Large);
            let whole = state.free[SizeClass::Large as usize].iter().filter(|entry| {
                !state.blocks.tag(entry.block).is_expandable && !state.blocks.is_split(entry.block)
            });
            let aged = whole.map(|entry| (entry.span(), now - state.free_since(entry.block)));
            segments.extend(aged.map(|(span, age)| (Arc::clone(&arena), span, age)));
        }
        let mut total_age: u64 = segments.iter().map(|(.., age)| age).sum();
        let mut freed = true;
        while missing > 0 && freed && !segments.is_empty() {
            let average = total_age as f64 / segments.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) =
                segments.into_iter().partition(|(.., age)| *age as f64 >= average);
            freed = !old.is_empty();
            for (arena, span, age) in old {
                missing -= span.size_bytes as i64;
                total_age -= age;
                let ledger = &mut self.central().ledger;
                arena.lock().release_plain(&arena, ledger, span)?;
            }
            segments = young;
        }
        Ok(None)
    }

    /// Maps free pages of this stream and of idle streams side by side; missing ones are created.
    fn stitch(&mut self) -> Found {
        let owner = self.arena.key.owner;
        if !self.policy.stitching {
            Ok(None)
        } else if self.central().pools.may_alias(owner) {
            self.grow_with(Donors::Own)
        } else if self.is_capturing() {
            // A page leaves its old address when an event has passed, and there are no events during a capture.
            Ok(None)
        } else {
            self.grow_with(Donors::Idle)
        }
    }

    /// Returns whether `pages` pages may be created although free ones could move: the reserved memory then hardly exceeds the
    /// most that was ever in use. A page that moves costs as much as a new one, and may have to move again in each step.
    fn has_slack(&mut self, pages: usize) -> bool {
        let (bytes, slack) = (pages as u64 * self.page_bytes(), self.policy.stitching_slack);
        let known_bytes = self.central().ledger.most_active_bytes.saturating_sub(self.request.size_bytes);
        let active_bytes = self.arena.common.active_bytes(known_bytes) + self.request.size_bytes;
        let ledger = &mut self.central().ledger;
        ledger.most_active_bytes = ledger.most_active_bytes.max(active_bytes);
        let at_rest = ledger.bytes_at_rest(slack);
        slack > 0.0 && ledger.reserved_bytes() + bytes <= at_rest && !ledger.would_exceed(bytes)
    }

    /// Maps pages where the request fits best: first pages that `donors` can supply, then new ones.
    fn grow_with(&mut self, donors: Donors) -> Found {
        let upstream = Arc::clone(&self.arena.common.upstream);
        let Some(memory) = upstream.virtual_memory().filter(|_| self.is_expandable()) else {
            return Ok(None);
        };
        let Some(missing) = self.make_room_to_grow(memory)? else { return Ok(None) };
        let within_slack = matches!(donors, Donors::Idle | Donors::Own) && self.has_slack(missing);
        let enough = within_slack && self.create_pages(memory, missing)?
            || self.gather_pages(memory, donors, missing)?;
        let obtained = if enough { self.map_pages(memory) } else { Ok(None) };
        self.spare_pages();
        obtained
    }

    /// Gathers free pages of `donors`, and creates the missing ones. Returns whether there are `wanted`. No free memory is taken
    /// apart if growing then fails, so the missing pages are created first.
    fn gather_pages(
        &mut self,
        memory: &dyn VirtualMemory,
        donors: Donors,
        wanted: usize,
    ) -> Result<bool, AllocationError> {
        let (mut offers, mut offered) = (Vec::new(), 0);
        for donor in self.donors(donors) {
            if offered >= wanted {
                break;
            }
            if let Some((demand, pages)) = self.look_for_pages(&donor, donors, wanted - offered) {
                offers.push((donor, demand));
                offered += pages;
            }
        }
        if !self.create_pages(memory, wanted - offered)? {
            return Ok(false);
        }
        for (donor, demand) in offers {
            let missing = wanted - self.pages.len();
            if missing > 0 {
                self.collect_pages(&donor, PageDemand { wanted: missing, ..demand });
            }
        }
        // There are fewer than were counted if, for example, a stream could not be waited for.
        let missing = wanted - self.pages.len();
        self.create_pages(memory, missing)
    }

    /// Keeps the pages that were not mapped.
    fn spare_pages(&mut self) {
        let (page_bytes, class, owner) = (self.page_bytes(), self.request.class, self.arena.key.owner);
        if let Some(central) = &mut self.central {
            let made_bytes = self.made.len() as u64 * page_bytes;
            if made_bytes > 0 {
                central.ledger.bytes_taken(owner, class, made_bytes);
                self.pages.append(&mut self.made);
            }
            central.ledger.bytes_spared(owner, self.pages.len() as u64 * page_bytes);
            // Some may come from streams that only this one was made to wait for.
            let after = Some(self.arena.key.stream);
            let pool = owner.pool().filter(|_| central.pools.may_alias(owner));
            let spare = |page| SparePage { page, bytes: page_bytes, class, after, pool };
            self.arena.common.spare.add(self.pages.drain(..).map(spare));
        }
    }

    fn page_bytes(&self) -> u64 {
        self.policy.page_bytes[self.request.class as usize]
    }

    fn is_expandable(&self) -> bool {
        self.policy.expandable && self.arena.source.is_none()
    }

    /// Returns the number of missing pages at the place where the request fits best. If it fits nowhere, a new range of addresses
    /// is reserved, as large as allowed and available.
    fn make_room_to_grow(&mut self, memory: &dyn VirtualMemory) -> Result<Option<usize>, AllocationError> {
        let missing = self.arena.lock().missing_pages(&self.request);
        if missing.is_some() {
            return Ok(missing);
        }
        let size_bytes = self.request.size_bytes;
        let reserve_bytes = self.allocator.segment_reserve_bytes(self.arena.key.stream, size_bytes)?;
        let Some(mut reserve_bytes) = reserve_bytes else { return Ok(None) };
        let mut state = self.arena.lock();
        while !state.add_expandable(self.request.class, reserve_bytes, memory)? {
            // Addresses are short. A smaller range serves as well, as long as the request fits in.
            if !self.policy.stitching || reserve_bytes == size_bytes {
                self.central().addresses_are_short = true;
                return Ok(None);
            }
            reserve_bytes = (reserve_bytes / 2).max(size_bytes);
        }
        Ok(state.missing_pages(&self.request))
    }

    fn map_pages(&mut self, memory: &dyn VirtualMemory) -> Found {
        let arena = self.arena;
        let mut state = arena.lock();
        let Some((span, ranges)) = state.grow(arena, &self.request, &mut self.pages, memory)? else {
            return Ok(None);
        };
        if !self.policy.stitching {
            // All pages were created at once, for this request; PyTorch creates and counts the pages of each range separately.
            self.central().ledger.statistics.num_device_alloc += ranges.saturating_sub(1);
        }
        Ok(Some(self.hand_out(arena, &mut state, span)))
    }

    /// Takes spare pages, then creates new ones, until there are `wanted` more. Returns `false` if the limit or the upstream has
    /// no room.
    fn create_pages(&mut self, memory: &dyn VirtualMemory, wanted: usize) -> Result<bool, AllocationError> {
        let (page_bytes, class, owner) = (self.page_bytes(), self.request.class, self.arena.key.owner);
        // The spare pages stay where they are until the others exist.
        let spare = self.arena.common.spare.count(wanted, page_bytes, self.arena.key);
        if spare < wanted && !self.make_pages(memory, wanted - spare)? {
            return Ok(false);
        }
        let spare = self.arena.common.spare.take(spare, page_bytes, self.arena.key);
        for SparePage { page, bytes, class: from, .. } in spare {
            let ledger = &mut self.central().ledger;
            ledger.bytes_moved(from, class, bytes);
            ledger.bytes_moved_to(owner, bytes);
            self.pages.push(page);
        }
        Ok(true)
    }

    /// Creates new pages. Returns `false`, and creates none, if the limit or the upstream has no room for all of them.
    fn make_pages(&mut self, memory: &dyn VirtualMemory, wanted: usize) -> Result<bool, AllocationError> {
        let (page_bytes, class, owner) = (self.page_bytes(), self.request.class, self.arena.key.owner);
        if self.policy.stitching && self.exceeds_limit(wanted as u64 * page_bytes)? {
            return Ok(false);
        }
        let made = loop {
            if self.made.len() == wanted {
                break Ok(true);
            }
            match found("create_page", memory.create_page(page_bytes)) {
                Ok(Some(page)) => self.made.push(page),
                Ok(None) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        if matches!(made, Ok(true)) {
            self.central().ledger.bytes_taken(owner, class, wanted as u64 * page_bytes);
            self.pages.append(&mut self.made);
        } else {
            // Too few pages are useless. A page that the upstream refuses becomes spare.
            self.made.retain(|page| memory.destroy_page(*page).is_err());
        }
        made
    }

    /// Returns whether taking `bytes` more would exceed the memory fraction.
    ///
    /// # Errors
    /// If it would, and the request must be refused at once, without an attempt to make room.
    fn exceeds_limit(&mut self, bytes: u64) -> Result<bool, AllocationError> {
        let exceeds = self.central().ledger.would_exceed(bytes);
        if exceeds && self.policy.throw_on_cudamalloc_oom {
            let (allocator, arena, request) = (self.allocator, self.arena, self.request);
            return Err(allocator.rejected(self.central(), arena, &request));
        }
        Ok(exceeds)
    }

    /// Returns the arenas that may supply pages to this one, its own first. No address that something relies on loses its page.
    fn donors(&mut self, donors: Donors) -> Vec<Arc<Arena>> {
        let owner = self.arena.key.owner;
        match donors {
            Donors::None => Vec::new(),
            Donors::Own => {
                let mut all = Vec::new();
                if self.may_alias_more() {
                    all.push(Arc::clone(self.arena));
                }
                if self.is_capturing() {
                    all.extend(self.arena.common.arenas_with_free(Owner::Shared, usize::MAX));
                }
                all
            }
            Donors::Idle | Donors::All if self.central().pools.is_releasable(owner) => {
                self.block_donors(donors)
            }
            Donors::Idle | Donors::All => Vec::new(),
        }
    }

    /// Returns whether less memory is mapped at old addresses here than its pool has reserved. Aliases stay for as long as the
    /// pool is held, so a long-running program accumulates more and more. Beyond this limit, only requests that would fail
    /// otherwise create aliases.
    fn may_alias_more(&mut self) -> bool {
        if self.is_last_resort {
            return true;
        }
        let alias_bytes = self.arena.lock().alias_bytes();
        let pool = self.arena.key.owner.pool();
        let reserved = pool.and_then(|pool| self.central().ledger.private.get(&pool));
        alias_bytes == 0 || reserved.is_some_and(|reserved| alias_bytes < reserved.current)
    }

    /// Returns the arenas that may lend blocks to this one, its own first; not all possibly idle ones before memory is short.
    fn block_donors(&self, donors: Donors) -> Vec<Arc<Arena>> {
        let mut all = vec![Arc::clone(self.arena)];
        // Memory of another stream becomes eligible by an event, and there are no events while a capture is under way.
        if self.policy.cross_stream_reuse != CrossStreamReuse::Never && !self.is_capturing() {
            let ArenaKey { owner, .. } = self.arena.key;
            let is_urgent = donors != Donors::Idle || self.is_last_resort;
            let most = if is_urgent { usize::MAX } else { MOST_ASKED };
            let others = self.arena.common.arenas_with_free(owner, most).into_iter();
            all.extend(others.filter(|one| one.number != self.arena.number));
        }
        all
    }

    /// Returns the rule by which memory of `donor` may be taken now.
    fn eligibility(&self, donor: &Arc<Arena>, state: &mut ArenaState, donors: Donors) -> Option<Eligibility> {
        let own = donor.number == self.arena.number;
        match (own, donors) {
            (true, Donors::Own) => return Some(Eligibility::Aliased),
            (true, _) => return Some(Eligibility::Ordered),
            (false, _) if !state.has_free(donor) => return None,
            (false, Donors::Own) => return state.wait_until_idle(donor, self.request.class),
            (false, _) if !self.arena.common.may_reuse_across(donor.key.stream, self.arena.key.stream) => {
                return None;
            }
            (false, _) => {}
        }
        let idle = state.look_how_idle(donor);
        match (donors, self.policy.cross_stream_reuse) {
            (Donors::All, _) => Some(Eligibility::Ordered),
            (Donors::Idle, CrossStreamReuse::Ordered) if self.waits_left > 0 => Some(Eligibility::Ordered),
            _ => idle,
        }
    }

    /// Returns the number of pages, up to `wanted`, that `donor` could supply now, and the demand to pass to it.
    fn look_for_pages(
        &self,
        donor: &Arc<Arena>,
        donors: Donors,
        wanted: usize,
    ) -> Option<(PageDemand, usize)> {
        let mut state = donor.lock();
        let eligibility = self.eligibility(donor, &mut state, donors)?;
        let own = donor.number == self.arena.number;
        let demand = PageDemand { request: self.request, eligibility, own, wanted };
        let pages = state.count_pages(&demand);
        (pages > 0).then_some((demand, pages))
    }

    fn collect_pages(&mut self, donor: &Arc<Arena>, demand: PageDemand) {
        let mut state = donor.lock();
        let must_wait = !demand.own && matches!(demand.eligibility, Eligibility::Ordered);
        if must_wait && !self.wait_for(donor) {
            return;
        }
        let (owner, before) = (self.arena.key.owner, self.pages.len());
        let ledger = &mut self.central.as_mut().expect("the lock is held between two stages").ledger;
        state.give_pages(donor, ledger, &demand, &mut self.pages);
        if donor.key.owner != owner {
            let moved_bytes = (self.pages.len() - before) as u64 * self.page_bytes();
            self.central().ledger.bytes_moved_to(owner, moved_bytes);
        }
    }

    /// Makes this stream wait for all work so far of `donor`'s stream and of other streams that may use its memory. Returns
    /// whether this was possible.
    fn wait_for(&mut self, donor: &Arc<Arena>) -> bool {
        let donor_stream = donor.key.stream;
        if !self.wait_for_stream(donor_stream) {
            return false;
        }
        for stream in self.arena.common.unrecorded_users() {
            let is_waited_for = stream == donor_stream || stream == self.arena.key.stream;
            // A stream that the driver no longer has counts as done.
            let _ = is_waited_for || self.wait_for_stream(stream);
        }
        self.arena.common.count_wait();
        self.waits_left = self.waits_left.saturating_sub(1);
        true
    }

    fn wait_for_stream(&mut self, stream: StreamId) -> bool {
        let context = self.arena.common.event_context();
        let Ok(recorded) = context.record(stream) else { return false };
        // Stored first, so that it is not lost in a panic.
        self.waits.push(recorded.event);
        if context.events.wait_event(self.arena.key.stream, recorded.event).is_err() {
            self.waits.pop();
            context.events.release_event(recorded.event);
            return false;
        }
        true
    }

    /// Returns a free block of a stream that has finished with it.
    fn borrow_idle(&mut self) -> Found {
        let reuse = self.policy.cross_stream_reuse;
        if reuse == CrossStreamReuse::Never || self.is_capturing() {
            return Ok(None);
        }
        self.borrow(Donors::Idle, false)
    }

    fn borrow(&mut self, donors: Donors, lenient: bool) -> Found {
        for donor in self.block_donors(donors) {
            let own = donor.number == self.arena.number;
            if own && !lenient {
                continue;
            }
            let mut state = donor.lock();
            let Some(eligibility) = self.eligibility(&donor, &mut state, donors) else { continue };
            let Some(span) = state.find_to_borrow(&self.request, eligibility, lenient) else { continue };
            let must_wait = !own && matches!(eligibility, Eligibility::Ordered);
            if must_wait && !self.wait_for(&donor) {
                continue;
            }
            state.take_out(span);
            return Ok(Some(self.hand_out(&donor, &mut state, span)));
        }
        Ok(None)
    }

    /// Takes more memory from the upstream: a plain segment, or pages.
    fn take_more(&mut self) -> Found {
        let is_expandable = self.is_expandable() && self.arena.common.upstream.virtual_memory().is_some();
        let bytes = self.policy.segment_size(self.request.size_bytes);
        // PyTorch checks the limit with the size of a plain segment, even for one page. The code that moves pages knows its need.
        let asks_later = is_expandable && self.policy.stitching;
        if !asks_later && self.exceeds_limit(bytes)? {
            return Ok(None);
        }
        if is_expandable {
            let grown = self.grow_with(Donors::None)?;
            if grown.is_some() || !self.central().addresses_are_short {
                return Ok(grown);
            }
            // No range of addresses is left to map pages in, but the driver may still have a segment.
            if asks_later && self.exceeds_limit(bytes)? {
                return Ok(None);
            }
        }
        if self.policy.release_lock_on_cudamalloc {
            self.central = None;
        }
        let address = self.arena.take_segment(bytes);
        if self.central.is_none() {
            self.central = Some(self.allocator.central());
            self.central().ledger.given_back_at = self.request.stack;
        }
        let Some(address) = found("allocate", address)? else { return Ok(None) };
        let mut state = self.arena.lock();
        let ledger = &mut self.central.as_mut().expect("it was just taken").ledger;
        let span = state.add_plain(self.arena, ledger, self.request.class, address, bytes);
        state.report_gained(self.arena, Action::SegmentAlloc, span, self.request.stack);
        Ok(Some(self.hand_out(self.arena, &mut state, span)))
    }

    /// Takes a cached block of a pool that serves other requests when memory is short. Only requests to the shared pool are
    /// served this way.
    fn helping_pools(&mut self) -> Found {
        if self.arena.key.owner.pool().is_some() {
            return Ok(None);
        }
        let stream = self.arena.key.stream;
        for arena in self.central().pools.helping_out(stream) {
            let mut state = arena.lock();
            if let Some(span) = state.cached(&arena, &self.request) {
                return Ok(Some(self.hand_out(&arena, &mut state, span)));
            }
        }
        Ok(None)
    }

    /// Releases oversize blocks of the request's stream: the smallest that makes enough room on its own, otherwise
    /// the largest ones until there is enough. Then calls the upstream again.
    fn release_oversize(&mut self) -> Found {
        let max_split_bytes = self.policy.max_split_bytes;
        let owner = self.arena.key.owner;
        if self.is_capturing() || max_split_bytes == u64::MAX || !self.central().pools.is_releasable(owner) {
            return Ok(None);
        }
        let needed_bytes = self.request.size_bytes.max(max_split_bytes);
        let mut released_bytes = 0;
        {
            let mut state = self.arena.lock();
            let bins = &state.free[self.request.class as usize];
            let is_plain = |span: &Span| {
                !state.blocks.tag(span.block).is_expandable && !state.blocks.is_split(span.block)
            };
            let single = bins.best_fit(needed_bytes).map(|entry| entry.span()).filter(is_plain);
            let chosen: Vec<Span> = match single {
                Some(span) => vec![span],
                None => {
                    let largest = bins.iter().rev().filter(|entry| entry.size_bytes < needed_bytes);
                    let oversize = largest.take_while(|entry| entry.size_bytes >= max_split_bytes);
                    oversize.map(|entry| entry.span()).filter(is_plain).collect()
                }
            };
            let ledger = &mut self.central.as_mut().expect("the lock is held between two stages").ledger;
            for span in chosen {
                if released_bytes >= needed_bytes {
                    break;
                }
                state.release_plain(self.arena, ledger, span)?;
                released_bytes += span.size_bytes;
            }
        }
        if released_bytes >= needed_bytes { self.take_more() } else { Ok(None) }
    }

    /// Takes memory that becomes eligible if this stream waits on the device. The alternative would be to make the host wait for
    /// everything.
    fn order_anything(&mut self) -> Found {
        if self.is_capturing() {
            return Ok(None);
        }
        if self.policy.record_use_depth.is_some() {
            let mut state = self.arena.lock();
            for block in state.waiting_for_uses(&self.request) {
                if let Some(obtained) = self.order_before(&mut state, block)? {
                    return Ok(Some(obtained));
                }
            }
        }
        if self.policy.cross_stream_reuse == CrossStreamReuse::Never {
            return Ok(None);
        }
        if let Some(obtained) = self.borrow(Donors::All, false)? {
            return Ok(Some(obtained));
        }
        if self.policy.stitching { self.grow_with(Donors::All) } else { Ok(None) }
    }

    /// Releases the missing bytes, in pages of the other size if there are any, and calls the upstream again. *Blocks*.
    fn release_some(&mut self) -> Found {
        if self.is_capturing() || !self.policy.stitching || !self.is_expandable() {
            return Ok(None);
        }
        let (request, page_bytes) = (self.request, self.page_bytes());
        let missing = self.arena.lock().missing_pages(&request).map(|pages| pages as u64 * page_bytes);
        let bytes = missing.unwrap_or(request.size_bytes.next_multiple_of(page_bytes));
        let allocator = self.allocator;
        if allocator.release_some(self.central(), bytes, request.class)? == 0 {
            return Ok(None);
        }
        let obtained = self.take_more()?;
        self.central().ledger.statistics.num_alloc_retries += u64::from(obtained.is_some());
        Ok(obtained)
    }

    /// Waits for all events, returns all free memory, and calls the upstream again. *Blocks*.
    fn release_cached(&mut self) -> Found {
        if self.is_capturing() {
            return Ok(None);
        }
        let allocator = self.allocator;
        allocator.release_cached(self.central(), None)?;
        self.central().ledger.statistics.num_alloc_retries += 1;
        if let Some(obtained) = self.take_more()? {
            return Ok(Some(obtained));
        }
        // PyTorch does not check the blocks that the wait has made free.
        if self.policy.processes_all { Ok(None) } else { self.cached() }
    }

    /// Takes any free block, or any room, that is large enough for the request without its rounding (`roundup_power2_divisions`).
    /// Neither that rounding nor the size of large pages may make a request fail.
    fn last_resort(&mut self) -> Found {
        if !self.policy.last_resort {
            return Ok(None);
        }
        self.is_last_resort = true;
        let rounded = self.request;
        self.request = rounded.unrounded();
        let owner = self.arena.key.owner;
        if (self.request.size_bytes < rounded.size_bytes || self.central().pools.may_alias(owner))
            && let Some(obtained) = self.find_or_grow()?
        {
            return Ok(Some(obtained));
        }
        let class = self.request.class;
        if self.policy.stitching && class == SizeClass::Large {
            // Blocks are counted, and returned, by the class of their segment.
            self.request.class = SizeClass::Small;
            if let Some(obtained) = self.find_or_grow()? {
                return Ok(Some(obtained));
            }
            self.request.class = class;
        }
        let obtained = self.borrow(Donors::All, true)?;
        if obtained.is_none() {
            self.request = rounded;
        }
        Ok(obtained)
    }

    fn find_or_grow(&mut self) -> Found {
        for stage in [Self::cached, Self::stitch, Self::take_more] {
            if let Some(obtained) = stage(self)? {
                return Ok(Some(obtained));
            }
        }
        Ok(None)
    }
}

impl Drop for SlowPath<'_> {
    /// Keeps the pages and events that the slow path still has, whatever ended it. Does not call the upstream.
    fn drop(&mut self) {
        self.spare_pages();
        self.arena.add_waits(self.waits.drain(..));
    }
}

/// The arenas that may supply pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Donors {
    /// No arena: new pages are created.
    None,
    /// This stream, whose pages also stay mapped at their old addresses; and, for a capture, shared memory that the host knows to
    /// be idle.
    Own,
    /// This stream, and blocks of other streams that those streams have finished with.
    Idle,
    /// All streams; this one waits for them.
    All,
}
