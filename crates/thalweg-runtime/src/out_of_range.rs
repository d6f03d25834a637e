//! Indices out of range, which only a device can detect: kernels report them, and the host's next wait for the device returns an
//! error.
//!
//! A kernel whose body has a [report](thalweg_ir::Report) writes the index, and the extent plus one, to two words, the *slot* of
//! its launch. A slot belongs to a line of the program: the operator, the indexed dimension or object, and the location of the
//! call. So the error names that line however late it is reported, and a graph that was captured there continues to name it.
//! Slots are never freed; a device has [`SLOTS`] of them. The first is for launches outside of every [`OutOfRangeReport`], and is never
//! read.
//!
//! On a GPU the words are in pinned memory, which the host reads after it has waited; a simulated GPU has them in host memory.
//! They are not part of the ranges that a launch touches, because any of several values that are written concurrently is good
//! enough.
//!
//! # Invariants
//! - The second word of a slot is 0, unless a kernel found an index out of range at that line and no wait has reported it.
//! - The state of the device is not damaged: a kernel reads and writes nothing at such an index.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use thalweg_driver::{Driver, HostFlags, HostPointer, ImageKind, Label};
use thalweg_lock::{Mutex, RwLock};

use crate::memory::outside_capture;
use crate::{Error, ErrorClass, Result};

/// The number of lines of a program that have a slot of their own. Further lines share the last slot.
const SLOTS: usize = 4096;

/// The bytes of a slot: the index, and the extent plus one.
const SLOT_BYTES: u64 = 16;

/// The kind of object that indices refer to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RangeOf {
    /// Positions along a dimension.
    Dimension(usize),
    /// All elements, row-major.
    Elements,
    /// Classes.
    Classes,
    /// Elements of an image or a volume of these extents, row-major; a missing last extent is 0.
    Volume([usize; 3]),
}

impl RangeOf {
    /// Returns a description of the error, in PyTorch's words.
    fn words(self, index: i64, extent: i64) -> String {
        match self {
            Self::Dimension(dimension) => {
                format!("index {index} is out of bounds for dimension {dimension} with size {extent}")
            }
            Self::Elements => {
                format!("out of range: tried to access index {index} on a tensor of {extent} elements.")
            }
            Self::Classes => format!("Target {index} is out of bounds: there are {extent} classes."),
            Self::Volume(extents) => {
                let extents: Vec<_> =
                    extents.iter().filter(|&&extent| extent > 0).map(ToString::to_string).collect();
                format!(
                    "Found an invalid max index: {index} (output volumes are of size {})",
                    extents.join("x")
                )
            }
        }
    }

    /// Returns the class of PyTorch's exception.
    const fn class(self) -> ErrorClass {
        match self {
            Self::Dimension(_) | Self::Elements | Self::Classes => ErrorClass::Index,
            Self::Volume(_) => ErrorClass::Runtime,
        }
    }
}

thread_local! {
    /// The operator whose launches report indices out of range, and the kind of object that they index.
    static TOLD: Cell<Option<(&'static str, RangeOf)>> = const { Cell::new(None) };
}

/// A guard: while it lives, launches of this thread report indices out of range.
#[must_use = "launches tell only while the guard lives"]
#[derive(Debug)]
pub struct OutOfRangeReport {
    former: Option<(&'static str, RangeOf)>,
}

impl OutOfRangeReport {
    /// Makes launches of this thread report indices out of range under the name of an operator. Launches outside of such a guard
    /// do not report: they use indices that were already checked, for example in a gradient. An operator that is called by
    /// another one reports under the name of the caller.
    pub fn of(operator: &'static str, indexed: RangeOf) -> Self {
        let former = TOLD.get();
        TOLD.set(Some((former.map_or(operator, |(outer, _)| outer), indexed)));
        Self { former }
    }

    /// Returns whether launches of this thread report indices out of range.
    pub fn is_wanted() -> bool {
        TOLD.get().is_some()
    }
}

impl Drop for OutOfRangeReport {
    fn drop(&mut self) {
        TOLD.set(self.former);
    }
}

/// A line of the program that has a slot.
type Line = (Label, RangeOf);

/// The lines that have a slot; their slots follow the first.
#[derive(Default)]
struct Lines {
    list: Vec<Line>,
    /// The slot of a line, keyed by the addresses of its names: a line whose names exist at two addresses has two slots.
    slots: FxHashMap<(usize, usize, RangeOf), usize>,
}

/// The slots of one device.
pub(crate) struct OutOfRange {
    /// The words of a simulated device.
    words: Arc<[AtomicI64]>,
    /// The words of a GPU, from the first reporting launch on.
    pinned: OnceLock<HostPointer>,
    pinning: Mutex<()>,
    lines: RwLock<Lines>,
}

impl OutOfRange {
    /// Creates the slots of a device that runs this kind of code.
    pub(crate) fn new(image_kind: ImageKind) -> Self {
        let words = if image_kind == ImageKind::Host { 2 * SLOTS } else { 0 };
        Self {
            words: (0..words).map(|_| AtomicI64::new(0)).collect(),
            pinned: OnceLock::new(),
            pinning: Mutex::default(),
            lines: RwLock::default(),
        }
    }

    /// Returns the words that host functions write to.
    pub(crate) fn words(&self) -> HostWords {
        HostWords(self.words.clone())
    }

    /// Returns the last scalar of a launch whose body reports, for the calling thread: the address or the index of its slot.
    pub(crate) fn scalar(&self, driver: &Arc<dyn Driver>, label: Label) -> Result<u64> {
        let slot = match TOLD.get() {
            None => 0,
            Some((operator, indexed)) => self.slot_of((Label { operator, ..label }, indexed)),
        };
        if !self.words.is_empty() {
            return Ok(slot as u64);
        }
        Ok(self.pinned(driver)?.offset(slot as u64 * SLOT_BYTES).address())
    }

    fn slot_of(&self, line: Line) -> usize {
        let (label, indexed) = line;
        let (operator, place) = label.key();
        let key = (operator, place, indexed);
        if let Some(&slot) = self.lines.read().slots.get(&key) {
            return slot;
        }
        let mut lines = self.lines.write();
        if lines.list.len() == SLOTS - 1 {
            lines.list.pop();
        }
        lines.list.push(line);
        let slot = lines.list.len();
        *lines.slots.entry(key).or_insert(slot)
    }

    fn pinned(&self, driver: &Arc<dyn Driver>) -> Result<HostPointer> {
        if let Some(&pointer) = self.pinned.get() {
            return Ok(pointer);
        }
        let _pinning = self.pinning.lock();
        if let Some(&pointer) = self.pinned.get() {
            return Ok(pointer);
        }
        let bytes = SLOTS as u64 * SLOT_BYTES;
        let pointer = outside_capture(driver, || driver.host_allocate(bytes, HostFlags::default()))?;
        Ok(*self.pinned.get_or_init(|| pointer))
    }

    /// Returns an error if a completed kernel found an index out of range. If several lines did, the error names the one that was
    /// called first; all reports are cleared.
    pub(crate) fn check(&self, driver: &Arc<dyn Driver>) -> Result<()> {
        let count = self.lines.read().list.len();
        if count == 0 {
            return Ok(());
        }
        let Some((slot, index, extent)) = self.take(driver, count)? else { return Ok(()) };
        let lines = self.lines.read();
        let (label, indexed) = lines.list[slot - 1];
        Err(Error::out_of_range(indexed.class(), indexed.words(index, extent), label))
    }

    /// Takes the reports of the first `count` lines, and returns the first report found.
    fn take(&self, driver: &Arc<dyn Driver>, count: usize) -> Result<Option<(usize, i64, i64)>> {
        let mut found = None;
        let mut find = |slot: usize, [index, mark]: [i64; 2]| {
            if mark != 0 {
                found.get_or_insert((slot, index, mark.wrapping_sub(1)));
            }
            mark != 0
        };
        if !self.words.is_empty() {
            for slot in 1..=count {
                let mark = self.words[2 * slot + 1].swap(0, Ordering::Acquire);
                find(slot, [self.words[2 * slot].load(Ordering::Relaxed), mark]);
            }
            return Ok(found);
        }
        let Some(&pointer) = self.pinned.get() else { return Ok(None) };
        let mut words = vec![[0i64; 2]; count];
        driver.host_read(pointer.offset(SLOT_BYTES), bytemuck::cast_slice_mut(&mut words))?;
        for (at, words) in words.into_iter().enumerate() {
            if find(at + 1, words) {
                driver.host_write(pointer.offset((at as u64 + 1) * SLOT_BYTES), &[0; SLOT_BYTES as usize])?;
            }
        }
        Ok(found)
    }

    /// Frees the pinned memory, when the device is dropped.
    pub(crate) fn free(&mut self, driver: &dyn Driver) {
        if let Some(pointer) = self.pinned.take() {
            // Memory that cannot be freed on a lost device is lost with it.
            let _ = driver.host_free(pointer);
        }
    }
}

/// The words of a simulated device, shared with its host functions.
#[derive(Clone, Debug)]
pub(crate) struct HostWords(Arc<[AtomicI64]>);

impl HostWords {
    /// Returns words without a slot: reports are dropped.
    pub(crate) fn none() -> Self {
        Self(Arc::new([]))
    }

    /// Reports an index that is out of range, in the slot that the launch's last scalar names.
    pub(crate) fn report_index(&self, slot: u64, index: i64, extent: i64) {
        let at = usize::try_from(slot).ok().and_then(|slot| slot.checked_mul(2));
        let Some([first, second]) = at.and_then(|at| self.0.get(at..at.saturating_add(2))) else { return };
        first.store(index, Ordering::Relaxed);
        second.store(extent.wrapping_add(1), Ordering::Release);
    }
}
