//! The memory that was taken from the upstream, and the limit on further memory.
//!
//! Only the slow path, which has one lock, takes and returns segments; so these figures are plain numbers guarded by it, and
//! exact whatever the number of threads.

use std::collections::BTreeMap;

use crate::ids::{Owner, PoolId, SizeClass};
use crate::statistics::stats::{DeviceStatistics, Statistic};
use crate::trace::history::StackId;

/// The number of entries of private pools that are kept even if the pools have no memory.
const MOST_PRIVATE: usize = 1024;

/// The statistics that only the slow path updates.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The fields for segments and driver calls. The other fields are summed from the arenas on request.
    pub(crate) statistics: DeviceStatistics,
    /// The memory that each private pool has taken. A pool's entry outlives the pool until the next reset, or until there are
    /// many entries.
    pub(crate) private: BTreeMap<PoolId, Statistic>,
    /// The number of entries that were left when entries without memory were last removed.
    private_left: usize,
    /// The most memory that may be taken from the upstream.
    pub(crate) allowed_bytes: Option<u64>,
    /// The greatest amount of active memory that was seen when memory was searched for, since all free memory was last returned.
    pub(crate) most_active_bytes: u64,
    /// The bytes of pages that have moved since then.
    pub(crate) moved_bytes: u64,
    /// The stack of the call that is returning memory, if stacks are recorded.
    pub(crate) given_back_at: Option<StackId>,
}

/// The number of moves of pages after which a page may be made instead of moved, and the most that such pages may take, as a part of
/// the most memory that was ever active.
const MOVES_OF_A_PAGE: u64 = 32;
const MOST_EARNED: f64 = 0.08;

impl Ledger {
    /// Returns the memory that was taken and not returned.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.statistics.reserved_bytes.all.current
    }

    /// Returns the bytes up to which pages are made instead of moved: a little more than was ever active (`stitching_slack`), and a page
    /// for each [`MOVES_OF_A_PAGE`] that moved.
    pub(crate) fn bytes_at_rest(&self, slack: f64) -> u64 {
        let active_bytes = self.most_active_bytes as f64;
        let earned_bytes = (self.moved_bytes / MOVES_OF_A_PAGE).min((active_bytes * MOST_EARNED) as u64);
        (active_bytes * (1.0 + slack)) as u64 + earned_bytes
    }

    /// Sets the peak of every figure to the present value of the figure, and forgets pools that have no memory any more.
    pub(crate) fn reset_peak(&mut self) {
        self.statistics.reset_peak();
        self.private.retain(|_, statistic| statistic.current > 0);
        self.private.values_mut().for_each(Statistic::reset_peak);
    }

    /// Sets every sum and every counter to 0.
    pub(crate) fn reset_accumulated(&mut self) {
        self.statistics.reset_accumulated();
        self.private.values_mut().for_each(Statistic::reset_accumulated);
    }

    /// Sets the number of oversize segments; a change of policy may change it.
    pub(crate) fn recount_oversize(&mut self, segments: u64) {
        let statistic = &mut self.statistics.oversize_segments;
        if segments > statistic.current {
            statistic.increase(segments - statistic.current);
        } else {
            statistic.decrease(statistic.current - segments);
        }
    }

    /// Returns whether taking `bytes` more would exceed the limit.
    pub(crate) fn would_exceed(&self, bytes: u64) -> bool {
        self.allowed_bytes.is_some_and(|allowed| self.reserved_bytes().saturating_add(bytes) > allowed)
    }

    /// Counts a plain segment that was taken.
    pub(crate) fn segment_taken(&mut self, owner: Owner, class: SizeClass, bytes: u64, oversize: bool) {
        self.statistics.segment.increase(class, 1);
        if oversize {
            self.statistics.oversize_segments.increase(1);
        }
        self.bytes_taken(owner, class, bytes);
    }

    /// Counts a plain segment that was returned.
    pub(crate) fn segment_returned(&mut self, owner: Owner, class: SizeClass, bytes: u64, oversize: bool) {
        self.statistics.segment.decrease(class, 1);
        if oversize {
            self.statistics.oversize_segments.decrease(1);
        }
        self.bytes_returned(owner, class, bytes);
    }

    /// Counts pages that were created and mapped in one operation.
    pub(crate) fn bytes_taken(&mut self, owner: Owner, class: SizeClass, bytes: u64) {
        self.statistics.reserved_bytes.increase(class, bytes);
        self.statistics.num_device_alloc += 1;
        if let Owner::Private(pool) = owner {
            self.of_pool(pool).increase(bytes);
        }
    }

    /// Returns a pool's entry. If there are too many entries, removes the entries of the oldest pools without memory.
    fn of_pool(&mut self, pool: PoolId) -> &mut Statistic {
        // The number must have doubled since the last removal, so that its cost is amortised.
        let most = MOST_PRIVATE.max(2 * self.private_left);
        if self.private.len() >= most && !self.private.contains_key(&pool) {
            let mut surplus = self.private.len() / 2;
            self.private.retain(|_, statistic| {
                let stays = statistic.current > 0 || surplus == 0;
                surplus -= usize::from(!stays);
                stays
            });
            self.private_left = self.private.len();
        }
        self.private.entry(pool).or_default()
    }

    /// Counts pages of `owner` that become spare; they are not returned yet.
    pub(crate) fn bytes_spared(&mut self, owner: Owner, bytes: u64) {
        if let Owner::Private(pool) = owner {
            self.private.entry(pool).or_default().decrease(bytes);
        }
    }

    /// Counts spare pages, or pages of another pool, that are moved to `owner`.
    pub(crate) fn bytes_moved_to(&mut self, owner: Owner, bytes: u64) {
        if let Owner::Private(pool) = owner {
            self.of_pool(pool).increase(bytes);
        }
    }

    /// Counts a spare page that was returned.
    pub(crate) fn page_destroyed(&mut self, class: SizeClass, bytes: u64) {
        self.statistics.reserved_bytes.decrease(class, bytes);
    }

    fn bytes_returned(&mut self, owner: Owner, class: SizeClass, bytes: u64) {
        self.statistics.reserved_bytes.decrease(class, bytes);
        self.statistics.num_device_free += 1;
        if let Owner::Private(pool) = owner {
            self.private.entry(pool).or_default().decrease(bytes);
        }
    }

    /// Counts pages that moved from one class to the other.
    pub(crate) fn bytes_moved(&mut self, from: SizeClass, to: SizeClass, bytes: u64) {
        self.statistics.num_pages_moved += 1;
        self.moved_bytes += bytes;
        if from != to {
            let reserved = &mut self.statistics.reserved_bytes;
            let (small, large) = (&mut reserved.small_pool, &mut reserved.large_pool);
            let (source, target) = if from == SizeClass::Small { (small, large) } else { (large, small) };
            source.decrease(bytes);
            target.increase(bytes);
        }
    }
}
