//! [`Layouts`]: the successive layouts of one tensor.
//!
//! `resize_`, `squeeze_` and the like change a tensor that other code may hold, too. A new layout is appended to the former ones,
//! which are never moved, since references to them exist.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_ir::Layout;
use thalweg_lock::Mutex;

/// The successive layouts of a tensor, one of which is current.
pub(crate) struct Layouts {
    first: Layout,
    later: OnceLock<Box<Later>>,
}

/// The number of most recent layouts that are searched for one to reuse.
const RECENT: usize = 16;

/// Layouts that have followed the first, numbered from 1. Block b has room for 2ᵇ of them.
struct Later {
    /// The number of the current layout; 0 is the first layout.
    now: AtomicUsize,
    blocks: [OnceLock<Box<[OnceLock<Layout>]>>; 32],
    /// The number of layouts after the first.
    count: Mutex<usize>,
    /// The number of times that a layout was made the current one. Written with `count` locked.
    changes: AtomicUsize,
}

impl Later {
    fn slot(&self, number: usize) -> &OnceLock<Layout> {
        let block = number.ilog2();
        let slots = self.blocks[block as usize]
            .get_or_init(|| std::iter::repeat_with(OnceLock::new).take(1 << block).collect());
        &slots[number - (1 << block)]
    }

    fn get(&self, number: usize) -> &Layout {
        self.slot(number).get().expect("a layout has its number once it is there")
    }
}

impl Layouts {
    pub(crate) const fn new(first: Layout) -> Self {
        Self { first, later: OnceLock::new() }
    }

    /// Returns the current layout.
    pub(crate) fn now(&self) -> &Layout {
        match self.later.get() {
            None => &self.first,
            Some(later) => match later.now.load(Ordering::Acquire) {
                0 => &self.first,
                number => later.get(number),
            },
        }
    }

    /// Returns the number of times that a layout was made the current one.
    pub(crate) fn changes(&self) -> usize {
        self.later.get().map_or(0, |later| later.changes.load(Ordering::Acquire))
    }

    /// Makes another layout the current one.
    pub(crate) fn set(&self, layout: Layout) {
        self.set_after(None, layout);
    }

    /// Makes another layout the current one if that was done `changes` times so far; at any count if `changes` is `None`.
    /// Returns whether it was made the current one.
    pub(crate) fn set_after(&self, changes: Option<usize>, layout: Layout) -> bool {
        let later = self.later.get_or_init(|| {
            Box::new(Later {
                now: AtomicUsize::new(0),
                blocks: [const { OnceLock::new() }; 32],
                count: Mutex::new(0),
                changes: AtomicUsize::new(0),
            })
        });
        let mut count = later.count.lock();
        if changes.is_some_and(|changes| changes != later.changes.load(Ordering::Relaxed)) {
            return false;
        }
        let mut recent = (count.saturating_sub(RECENT) + 1..=*count).rev();
        let known = match layout == self.first {
            true => Some(0),
            false => recent.find(|&number| *later.get(number) == layout),
        };
        let number = known.unwrap_or_else(|| {
            *count += 1;
            later.slot(*count).get_or_init(|| layout);
            *count
        });
        later.now.store(number, Ordering::Release);
        later.changes.fetch_add(1, Ordering::Release);
        true
    }
}
