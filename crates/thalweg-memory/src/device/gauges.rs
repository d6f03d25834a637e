//! Counting without a shared counter.
//!
//! Every allocation and every free changes a dozen figures. If they were kept once for the device, all streams would contend for
//! their cache line: an exact global counter costs more than the allocation itself. So each arena counts its own figures
//! ([`Gauges`], under the arena's lock), and sums are computed on request. Sums are enough for the present values (`current`) and
//! for running totals (`allocated`, `freed`). They are not enough for `peak`, since arenas do not peak at the same moment. There
//! are two ways to determine the peak of a sum:
//!
//! - **One thread.** As long as only one arena changes, the peak of the sum is its own peak plus the present figures of the
//!   others. The arena that changes is called *exclusive*; when the thread turns to another arena, the first is *folded*: its
//!   peak is merged into the total. So the peaks are exact, and an allocation pays one load to check that nothing has changed.
//! - **Several threads.** Once a second thread has used an arena while another is exclusive, no arena is exclusive any more. Each
//!   arena *publishes* a figure that is at least its own, and at most [`SLACK_BYTES`] more, and the peak is that of the published
//!   sum. A shared line is written only when a figure leaves its band. So `peak` is never too small, and too large by at most 1
//!   MiB per stream (half per size class), and by [`SLACK_COUNT`] blocks per class.
//!
//! Active memory is allocated memory plus pending memory, and hardly anything is ever pending. So a free that has to wait is
//! counted as pending, and the figures of active memory are derived from that ([`Gauges::derive`]).
//!
//! Segments and driver calls are counted elsewhere ([`stats`](crate::statistics::stats)): only the slow path changes them, and it
//! has one lock anyway.

use std::ops::Range;

use crate::ids::SizeClass;
use crate::statistics::stats::{ByPool, DeviceStatistics, Statistic};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, ThreadId, fence, thread};

/// The amount by which a published sum of bytes may be above the true one, for each class of each arena.
const SLACK_BYTES: u64 = 512 << 10;
/// The amount by which a published count of blocks may be above the true one, for each class of each arena.
const SLACK_COUNT: u64 = 64;

/// A quantity that is counted on every allocation. The names are the field names of [`DeviceStatistics`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quantity {
    Allocation,
    Active,
    InactiveSplit,
    AllocatedBytes,
    ActiveBytes,
    InactiveSplitBytes,
    RequestedBytes,
    OversizeAllocations,
}

const QUANTITIES: usize = 8;
/// The quantities that are counted. The model checker checks only one, because they are independent.
const COUNTED: Range<usize> = if cfg!(loom) { 3..4 } else { 0..QUANTITIES };
const SLACK: [u64; QUANTITIES] =
    [SLACK_COUNT, SLACK_COUNT, SLACK_COUNT, SLACK_BYTES, SLACK_BYTES, SLACK_BYTES, SLACK_BYTES, SLACK_COUNT];

/// The value of `exclusive` when several threads use arenas: no arena is exclusive, and none will be.
const SHARED: u64 = u64::MAX;
/// The value of `exclusive` before any arena is used.
const UNUSED: u64 = u64::MAX - 1;

type Row = [u64; QUANTITIES];

/// A function that runs another function on the gauges of the arena with a given number, under the arena's lock. Returns whether
/// that arena was found.
pub(crate) type With<'a> = dyn Fn(u64, &mut dyn FnMut(&mut Gauges)) -> bool + 'a;
/// A function that runs another function on the gauges of all arenas, one arena after the other, each under its lock.
pub(crate) type Each<'a> = dyn Fn(&mut dyn FnMut(&mut Gauges)) + 'a;

/// The figures of one arena.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// The present values by class, as in the fields below.
    current: [Row; 2],
    allocated: [Row; 2],
    /// The greatest values since the arena was last folded.
    peak: [Row; 2],
    /// The peaks of both classes together.
    peak_all: Row,
    published: [Row; 2],
    /// The number of pending blocks, and their bytes, by class. While there are any, the rows of active memory are kept up to
    /// date; otherwise they are derived when they are read.
    pending: [[u64; 2]; 2],
}

/// Returns whether a figure is larger than its published value, or smaller by more than `slack`.
#[inline]
fn is_outside(current: u64, published: u64, slack: u64) -> bool {
    published.wrapping_sub(current) > slack
}

/// The rows of active memory, each with the row of the part that is allocated.
const DERIVED: [(usize, usize); 2] = [
    (Quantity::Active as usize, Quantity::Allocation as usize),
    (Quantity::ActiveBytes as usize, Quantity::AllocatedBytes as usize),
];

impl Gauges {
    /// Counts a block that is handed to a caller.
    #[inline]
    pub(crate) fn taken(&mut self, class: SizeClass, size_bytes: u64, requested_bytes: u64) {
        self.add(class, Quantity::Allocation, 1);
        self.add(class, Quantity::AllocatedBytes, size_bytes);
        self.add(class, Quantity::RequestedBytes, requested_bytes);
        if self.has_pending() {
            self.derive();
        }
    }

    /// Counts a block that a caller frees and that becomes free at once.
    #[inline]
    pub(crate) fn returned(&mut self, class: SizeClass, size_bytes: u64, requested_bytes: u64) {
        self.subtract(class, Quantity::Allocation, 1);
        self.subtract(class, Quantity::AllocatedBytes, size_bytes);
        self.subtract(class, Quantity::RequestedBytes, requested_bytes);
    }

    /// Counts a block that a caller frees and that is pending.
    pub(crate) fn held(&mut self, class: SizeClass, size_bytes: u64) {
        // If nothing was pending, the memory that was active so far was allocated.
        self.derive();
        self.subtract(class, Quantity::Allocation, 1);
        self.subtract(class, Quantity::AllocatedBytes, size_bytes);
        let [blocks, bytes] = &mut self.pending[class as usize];
        (*blocks, *bytes) = (*blocks + 1, *bytes + size_bytes);
    }

    /// Counts a pending block that no longer waits for anything.
    ///
    /// # Panics
    /// If it was not pending.
    pub(crate) fn passed(&mut self, class: SizeClass, size_bytes: u64, requested_bytes: u64) {
        self.subtract(class, Quantity::RequestedBytes, requested_bytes);
        let [blocks, bytes] = &mut self.pending[class as usize];
        let less = |figure: u64, by| figure.checked_sub(by).expect("what is pending was counted");
        (*blocks, *bytes) = (less(*blocks, 1), less(*bytes, size_bytes));
    }

    #[inline]
    fn has_pending(&self) -> bool {
        self.pending[0][0] + self.pending[1][0] > 0
    }

    /// Updates the rows of active memory. Active memory is never less than allocated memory, and equals it while nothing is
    /// pending. The peak is therefore exact if this was called at every increase while anything was pending.
    fn derive(&mut self) {
        (0..2).for_each(|class| self.derive_current(class));
        for (active, allocated) in DERIVED {
            for class in 0..2 {
                self.allocated[class][active] = self.allocated[class][allocated];
                let (current, peak) = (self.current[class][active], &mut self.peak[class]);
                peak[active] = peak[active].max(peak[allocated]).max(current);
            }
            let current = self.current[0][active] + self.current[1][active];
            let peak = &mut self.peak_all;
            peak[active] = peak[active].max(peak[allocated]).max(current);
        }
    }

    /// Updates the present active memory of one class. Peaks are not updated: the peaks of an arena that publishes are never
    /// read.
    #[inline]
    fn derive_current(&mut self, class: usize) {
        for (pending, (active, allocated)) in DERIVED.into_iter().enumerate() {
            self.current[class][active] = self.current[class][allocated] + self.pending[class][pending];
        }
    }

    /// Returns whether a figure of a class has left the band below its published value. Computed without a branch per figure,
    /// because hardly any figure ever has.
    #[inline]
    fn leaves_band(&self, class: usize) -> bool {
        let (current, published) = (&self.current[class], &self.published[class]);
        COUNTED.fold(false, |leaves, one| leaves | is_outside(current[one], published[one], SLACK[one]))
    }

    #[inline]
    pub(crate) fn add(&mut self, class: SizeClass, quantity: Quantity, amount: u64) {
        let (class, quantity) = (class as usize, quantity as usize);
        let current = self.current[class][quantity] + amount;
        self.current[class][quantity] = current;
        self.allocated[class][quantity] += amount;
        self.raise(class, quantity, current);
    }

    /// Subtracts an amount.
    ///
    /// # Panics
    /// If the present value is less: then something is removed that was never added.
    #[inline]
    pub(crate) fn subtract(&mut self, class: SizeClass, quantity: Quantity, amount: u64) {
        let current = &mut self.current[class as usize][quantity as usize];
        *current = current.checked_sub(amount).expect("a statistic never falls below zero");
    }

    /// Adds or subtracts the net change. Counts nothing if the net change is 0.
    #[inline]
    pub(crate) fn change(&mut self, class: SizeClass, quantity: Quantity, added: u64, removed: u64) {
        let (class, quantity) = (class as usize, quantity as usize);
        let current = self.current[class][quantity] + added;
        let current = current.checked_sub(removed).expect("a statistic never falls below zero");
        self.current[class][quantity] = current;
        // The sign cannot be predicted, so this has no branch.
        self.allocated[class][quantity] += added.saturating_sub(removed);
        self.raise(class, quantity, current);
    }

    #[inline]
    fn raise(&mut self, class: usize, quantity: usize, current: u64) {
        // Peaks are rare: a comparison that is predicted correctly costs less than a store.
        if current > self.peak[class][quantity] {
            self.peak[class][quantity] = current;
        }
        let all = current + self.current[1 - class][quantity];
        if all > self.peak_all[quantity] {
            self.peak_all[quantity] = all;
        }
    }

    /// Returns the present value of a quantity in one class.
    pub(crate) fn current_of(&self, class: SizeClass, quantity: Quantity) -> u64 {
        let (current, pending) = (&self.current[class as usize], &self.pending[class as usize]);
        match quantity {
            Quantity::Active => current[Quantity::Allocation as usize] + pending[0],
            Quantity::ActiveBytes => current[Quantity::AllocatedBytes as usize] + pending[1],
            _ => current[quantity as usize],
        }
    }

    /// Returns the present value of a quantity in both classes.
    pub(crate) fn current(&self, quantity: Quantity) -> u64 {
        self.current_of(SizeClass::Small, quantity) + self.current_of(SizeClass::Large, quantity)
    }
}

#[derive(Debug, Default)]
struct Calm {
    /// The only thread that has used arenas so far.
    thread: Option<ThreadId>,
    /// The value of each quantity when the sums were last reset.
    base: [Row; 2],
    /// The sums of arenas that no longer exist.
    gone: [Row; 2],
}

/// The figures that the arenas of one allocator share.
#[derive(Debug)]
pub(crate) struct Totals {
    /// The number of the only arena that changes, or [`SHARED`], or [`UNUSED`].
    exclusive: AtomicU64,
    /// The sums of the published figures, by class.
    published: [[AtomicU64; QUANTITIES]; 2],
    /// The peaks of these sums: small, large, both together.
    peak: [[AtomicU64; QUANTITIES]; 3],
    calm: Mutex<Calm>,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            exclusive: AtomicU64::new(UNUSED),
            published: Default::default(),
            peak: Default::default(),
            calm: Mutex::default(),
        }
    }
}

impl Totals {
    fn calm(&self) -> MutexGuard<'_, Calm> {
        self.calm.lock()
    }

    /// Returns whether arena `number` may change its gauges without notice. If not, call [`turn_to`](Self::turn_to) first,
    /// without any arena's lock, and check again. While the arena's lock is held, `true` stays valid.
    #[inline]
    pub(crate) fn is_quiet(&self, number: u64) -> bool {
        let exclusive = self.exclusive.load(Ordering::Relaxed);
        exclusive == number || exclusive == SHARED
    }

    /// Prepares a change of arena `number` by the calling thread. `with` runs a function on the gauges of an arena, under its
    /// lock, and returns whether it could. Returns `false` if it could not, or if `patient` is not set and another thread is in
    /// this function; then nothing has changed.
    #[cold]
    pub(crate) fn turn_to(&self, number: u64, patient: bool, with: &With<'_>) -> bool {
        let mut calm = match self.calm.try_lock() {
            Some(calm) => calm,
            None if patient => self.calm(),
            None => return false,
        };
        let before = self.exclusive.load(Ordering::Relaxed);
        if before == number || before == SHARED {
            return true;
        }
        let thread = thread::current().id();
        let alone = *calm.thread.get_or_insert(thread) == thread;
        let next = if alone { UNUSED } else { SHARED };
        // A thread that takes the lock of the formerly exclusive arena after this publishes its changes; earlier changes are
        // folded, under the same lock.
        let folded = before == UNUSED
            || with(before, &mut |gauges| {
                // In this order: as long as the arena is exclusive, the figures of the others do not change.
                self.fold(gauges);
                self.exclusive.store(next, Ordering::Relaxed);
            });
        if !folded {
            return false;
        }
        self.exclusive.store(next, Ordering::Relaxed);
        !alone
            || with(number, &mut |gauges| {
                self.fold(gauges);
                self.exclusive.store(number, Ordering::Relaxed);
            })
    }

    /// Publishes the gauges of arena `number` after they have changed in `class`. The caller holds the arena's lock.
    #[inline]
    pub(crate) fn changed(&self, number: u64, gauges: &mut Gauges, class: SizeClass) {
        if self.exclusive.load(Ordering::Relaxed) != number {
            self.publish(gauges, class as usize);
        }
    }

    /// Publishes the figures of a class that have left their band. Not inlined, so that a single thread, which never publishes,
    /// has less code to skip.
    #[inline(never)]
    fn publish(&self, gauges: &mut Gauges, class: usize) {
        gauges.derive_current(class);
        if gauges.leaves_band(class) {
            self.publish_anew(gauges, class);
        }
    }

    #[cold]
    fn publish_anew(&self, gauges: &mut Gauges, class: usize) {
        for quantity in COUNTED {
            let slack = SLACK[quantity];
            let (current, published) = (gauges.current[class][quantity], gauges.published[class][quantity]);
            if is_outside(current, published, slack) {
                // Half of the slack above, so that small steps in both directions stay within the band.
                let headroom = if current > published { slack / 2 } else { 0 };
                self.set_published(gauges, class, quantity, current + headroom);
                self.raise_peaks(class, quantity);
            }
        }
    }

    fn set_published(&self, gauges: &mut Gauges, class: usize, quantity: usize, value: u64) {
        let change = value.wrapping_sub(gauges.published[class][quantity]);
        if change == 0 {
            return;
        }
        gauges.published[class][quantity] = value;
        self.published[class][quantity].fetch_add(change, Ordering::Relaxed);
    }

    /// Merges the published sums into the peaks.
    fn raise_peaks(&self, class: usize, quantity: usize) {
        // If two threads publish at the same time, each in one class, at least one of them sees both.
        fence(Ordering::SeqCst);
        let sum = self.published[class][quantity].load(Ordering::Relaxed);
        self.peak[class][quantity].fetch_max(sum, Ordering::Relaxed);
        let other = self.published[1 - class][quantity].load(Ordering::Relaxed);
        self.peak[2][quantity].fetch_max(sum + other, Ordering::Relaxed);
    }

    /// Merges an arena's own peaks into the totals, and publishes its exact figures.
    fn fold(&self, gauges: &mut Gauges) {
        gauges.derive();
        for quantity in COUNTED {
            let sums = [0, 1].map(|class: usize| self.published[class][quantity].load(Ordering::Relaxed));
            let others = [0, 1].map(|class| sums[class].wrapping_sub(gauges.published[class][quantity]));
            for (class, others) in others.into_iter().enumerate() {
                let peak = others.wrapping_add(gauges.peak[class][quantity]);
                self.peak[class][quantity].fetch_max(peak, Ordering::Relaxed);
            }
            let peak = others[0].wrapping_add(others[1]).wrapping_add(gauges.peak_all[quantity]);
            self.peak[2][quantity].fetch_max(peak, Ordering::Relaxed);
            for class in 0..2 {
                self.set_published(gauges, class, quantity, gauges.current[class][quantity]);
            }
        }
        gauges.peak = gauges.current;
        for quantity in COUNTED {
            gauges.peak_all[quantity] = gauges.current[0][quantity] + gauges.current[1][quantity];
        }
    }

    /// Folds the exclusive arena, if there is one.
    fn fold_exclusive(&self, with: &With<'_>) {
        let exclusive = self.exclusive.load(Ordering::Relaxed);
        if exclusive < UNUSED {
            // An arena that no longer exists was folded when it was dropped.
            let _ = with(exclusive, &mut |gauges| self.fold(gauges));
        }
    }

    /// Writes the sums over all arenas into `statistics`.
    pub(crate) fn read(&self, statistics: &mut DeviceStatistics, with: &With<'_>, each: &Each<'_>) {
        let calm = self.calm();
        self.fold_exclusive(with);
        let (mut current, mut allocated) = ([[0; QUANTITIES]; 2], calm.gone);
        each(&mut |gauges| {
            gauges.derive();
            for class in 0..2 {
                for quantity in 0..QUANTITIES {
                    current[class][quantity] += gauges.current[class][quantity];
                    allocated[class][quantity] += gauges.allocated[class][quantity];
                }
            }
        });
        let statistic = |index: usize, quantity: usize| {
            let of = |rows: &[Row; 2]| match index {
                2 => rows[0][quantity] + rows[1][quantity],
                class => rows[class][quantity],
            };
            let (current, allocated) = (of(&current), of(&allocated));
            let peak = self.peak[index][quantity].load(Ordering::Relaxed).max(current);
            Statistic {
                current,
                peak,
                allocated,
                freed: (allocated + of(&calm.base)).saturating_sub(current),
            }
        };
        let by_pool = |quantity: Quantity| {
            let [small_pool, large_pool, all] = [0, 1, 2].map(|index| statistic(index, quantity as usize));
            ByPool { all, small_pool, large_pool }
        };
        statistics.allocation = by_pool(Quantity::Allocation);
        statistics.active = by_pool(Quantity::Active);
        statistics.inactive_split = by_pool(Quantity::InactiveSplit);
        statistics.allocated_bytes = by_pool(Quantity::AllocatedBytes);
        statistics.active_bytes = by_pool(Quantity::ActiveBytes);
        statistics.inactive_split_bytes = by_pool(Quantity::InactiveSplitBytes);
        statistics.requested_bytes = by_pool(Quantity::RequestedBytes);
        statistics.oversize_allocations = statistic(2, Quantity::OversizeAllocations as usize);
    }

    /// Returns the sum of a quantity over all arenas, and whether it is exact. If several threads count, it is not exact, but
    /// never too small.
    pub(crate) fn sum(&self, quantity: Quantity, with: &With<'_>) -> (u64, bool) {
        let _calm = self.calm();
        self.fold_exclusive(with);
        let sum = [0, 1].map(|class: usize| self.published[class][quantity as usize].load(Ordering::Relaxed));
        (sum[0].wrapping_add(sum[1]), self.exclusive.load(Ordering::Relaxed) != SHARED)
    }

    /// Sets the peak of every figure to the present value of the figure.
    pub(crate) fn reset_peak(&self, with: &With<'_>, each: &Each<'_>) {
        let _calm = self.calm();
        self.fold_exclusive(with);
        each(&mut |gauges| {
            gauges.derive();
            for class in 0..2 {
                for quantity in COUNTED {
                    self.set_published(gauges, class, quantity, gauges.current[class][quantity]);
                }
            }
        });
        for quantity in COUNTED {
            let sums = [0, 1].map(|class: usize| self.published[class][quantity].load(Ordering::Relaxed));
            self.peak[0][quantity].store(sums[0], Ordering::Relaxed);
            self.peak[1][quantity].store(sums[1], Ordering::Relaxed);
            self.peak[2][quantity].store(sums[0] + sums[1], Ordering::Relaxed);
            // Another thread may have published a figure meanwhile, whose own raise of the peak is undone here.
            (0..2).for_each(|class| self.raise_peaks(class, quantity));
        }
    }

    /// Forgets an arena that is empty, but keeps its sums.
    pub(crate) fn forget(&self, arena: &Each<'_>) {
        let mut calm = self.calm();
        let shared = self.exclusive.load(Ordering::Relaxed) == SHARED;
        arena(&mut |gauges| {
            gauges.derive();
            if shared {
                // The arena's own peak is from another time than the present figures of the others.
                gauges.peak = gauges.current;
                gauges.peak_all =
                    std::array::from_fn(|quantity| gauges.current[0][quantity] + gauges.current[1][quantity]);
            }
            self.fold(gauges);
            for class in 0..2 {
                for quantity in COUNTED {
                    calm.gone[class][quantity] += gauges.allocated[class][quantity];
                    gauges.allocated[class][quantity] = 0;
                }
            }
        });
    }

    /// Sets every sum of additions and removals to 0.
    pub(crate) fn reset_accumulated(&self, each: &Each<'_>) {
        let mut calm = self.calm();
        calm.base = Default::default();
        calm.gone = Default::default();
        each(&mut |gauges| {
            gauges.derive();
            gauges.allocated = Default::default();
            for class in 0..2 {
                for quantity in 0..QUANTITIES {
                    calm.base[class][quantity] += gauges.current[class][quantity];
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::model::Builder;
    use loom::sync::Arc;

    use super::*;

    /// Arenas that contain only their gauges, and follow the protocol of [`Arena`](super::super::arena::Arena).
    #[derive(Default)]
    struct Model {
        totals: Totals,
        arenas: [Mutex<Gauges>; 2],
        /// The lower bound of the value, with its peak. A change happens at some moment while the arena's lock is held: for the
        /// lower bound, additions are counted late and removals early; for the upper bound, the reverse.
        least: thalweg_lock::Mutex<(u64, u64)>,
        most: thalweg_lock::Mutex<(u64, u64)>,
    }

    impl Model {
        fn with(&self) -> impl Fn(u64, &mut dyn FnMut(&mut Gauges)) -> bool + '_ {
            |number, change| {
                change(&mut self.arenas[number as usize].lock());
                true
            }
        }

        fn change(&self, number: u64, class: SizeClass, added: u64, removed: u64) {
            let mut gauges = self.arenas[number as usize].lock();
            while !self.totals.is_quiet(number) {
                drop(gauges);
                assert!(self.totals.turn_to(number, true, &self.with()));
                gauges = self.arenas[number as usize].lock();
            }
            let count = |truth: &thalweg_lock::Mutex<(u64, u64)>, added, removed| {
                let mut truth = truth.lock();
                truth.0 = truth.0 + added - removed;
                truth.1 = truth.1.max(truth.0);
            };
            count(&self.least, 0, removed);
            count(&self.most, added, 0);
            gauges.change(class, Quantity::AllocatedBytes, added, removed);
            self.totals.changed(number, &mut gauges, class);
            count(&self.least, added, 0);
            count(&self.most, 0, removed);
        }

        fn read(&self) -> Statistic {
            let mut statistics = DeviceStatistics::default();
            let each = |change: &mut dyn FnMut(&mut Gauges)| {
                self.arenas.iter().for_each(|arena| change(&mut arena.lock()));
            };
            self.totals.read(&mut statistics, &self.with(), &each);
            statistics.allocated_bytes.all
        }
    }

    const MIB: u64 = 1 << 20;

    fn check(threads: &'static [&'static [(u64, SizeClass, u64, u64)]]) {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let model = Arc::new(Model::default());
            let handles: Vec<_> = threads[1..]
                .iter()
                .map(|steps| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || {
                        steps.iter().for_each(|&(n, class, a, r)| model.change(n, class, a, r))
                    })
                })
                .collect();
            threads[0].iter().for_each(|&(n, class, a, r)| model.change(n, class, a, r));
            handles.into_iter().for_each(|handle| handle.join().expect("no thread panics"));
            let read = model.read();
            let [least, most] = [&model.least, &model.most].map(|truth| *truth.lock());
            assert_eq!(read.current, least.0);
            assert!(read.peak >= least.1, "the peak is {}, not {}", read.peak, least.1);
            // Two arenas, each with up to the slack above the true value in each class.
            let slack = 4 * SLACK_BYTES;
            assert!(read.peak <= most.1 + slack, "the peak is {}, not {}", read.peak, most.1);
        });
    }

    use SizeClass::{Large, Small};

    #[test]
    fn loom_two_threads_with_an_arena_each() {
        check(&[&[(0, Large, 10 * MIB, 0), (0, Large, 0, 10 * MIB)], &[(1, Large, 5 * MIB, 0)]]);
    }

    #[test]
    fn loom_two_threads_in_two_classes_of_one_arena_and_another() {
        check(&[
            &[(0, Large, 10 * MIB, 0), (1, Small, 3 * MIB, 0)],
            &[(0, Large, 5 * MIB, 0), (0, Large, 0, 5 * MIB)],
        ]);
    }

    #[test]
    fn loom_three_threads_of_which_two_meet_in_one_arena() {
        check(&[
            &[(0, Large, 4 * MIB, 0), (1, Large, 20 * MIB, 0), (1, Large, 0, 20 * MIB)],
            &[(0, Large, 6 * MIB, 0)],
            &[(0, Large, 2 * MIB, 0)],
        ]);
    }
}
