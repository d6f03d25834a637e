//! A second implementation of PyTorch's native allocator, from its documentation, as simple as possible: an ordered map of cells,
//! and a linear search for every question. It records its actions as PyTorch does, so that for any program it shows what PyTorch
//! would have recorded, and what it would have reserved under other settings.
//!
//! It shares no code with the allocator under test, and covers more than [`model`](crate::model): expandable segments, garbage
//! collection by the ages of a pool over all streams, the trace, and how each run ends for lack of memory. It does not cover
//! captures.
//!
//! [`program`] makes programs, [`driver`] chooses the addresses of segments.

pub mod driver;
pub mod program;
mod release;

use std::collections::BTreeMap;

use thalweg_memory::StreamId;
use thalweg_snapshot::{Action, TraceEntry};

use driver::Driver;
use program::Op;

pub const MIB: u64 = 1 << 20;

/// The settings, as PyTorch reads them.
#[derive(Clone, Debug)]
pub struct Conf {
    /// The text, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub text: &'static str,
    pub expandable: bool,
    pub max_split: u64,
    pub collect_above: f64,
    pub divisions: u64,
}

impl Conf {
    pub const DEFAULT: Self =
        Self { text: "", expandable: false, max_split: u64::MAX, collect_above: 0.0, divisions: 0 };

    /// Returns the settings that programs are run under.
    pub fn all() -> Vec<Self> {
        let of = |text, change: fn(&mut Self)| {
            let mut conf = Self { text, ..Self::DEFAULT };
            change(&mut conf);
            conf
        };
        vec![
            Self::DEFAULT,
            of("expandable_segments:True", |conf| conf.expandable = true),
            of("max_split_size_mb:40", |conf| conf.max_split = 40 * MIB),
            of("roundup_power2_divisions:8", |conf| conf.divisions = 8),
            of("garbage_collection_threshold:0.6", |conf| conf.collect_above = 0.6),
            of("garbage_collection_threshold:0.8,max_split_size_mb:64", |conf| {
                (conf.collect_above, conf.max_split) = (0.8, 64 * MIB);
            }),
            of("expandable_segments:True,max_split_size_mb:30", |conf| {
                (conf.expandable, conf.max_split) = (true, 30 * MIB);
            }),
            of("expandable_segments:True,garbage_collection_threshold:0.5", |conf| {
                (conf.expandable, conf.collect_above) = (true, 0.5);
            }),
        ]
    }

    fn round(&self, bytes: u64) -> u64 {
        if bytes < 512 {
            return 512;
        }
        if self.divisions > 1 && bytes > 512 * self.divisions && !bytes.is_power_of_two() {
            return bytes.next_multiple_of((1 << bytes.ilog2()) / self.divisions);
        }
        bytes.next_multiple_of(512)
    }
}

fn segment_bytes(size: u64) -> u64 {
    match size {
        ..=MIB => 2 * MIB,
        _ if size < 10 * MIB => 20 * MIB,
        _ => size.next_multiple_of(2 * MIB),
    }
}

/// The owner of a block: free memory of one owner never serves another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub pool: Option<usize>,
    pub small: bool,
    pub stream: u64,
}

/// Returns the page size of expandable segments.
fn page_bytes(place: Place) -> u64 {
    if place.small { 2 * MIB } else { 20 * MIB }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Unmapped,
    /// Free since this number of searches of its pool.
    Free(u64),
    Live(usize),
    /// Freed, and used by another stream until the host sees the event.
    Pending(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub size: u64,
    pub requested: u64,
    pub state: State,
    pub place: Place,
    /// The beginning of its segment.
    pub segment: u64,
    pub is_expandable: bool,
}

/// The results of running a program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Figures {
    pub reserved: u64,
    pub reserved_peak: u64,
    pub allocations: u64,
    pub frees: u64,
    pub retries: u64,
    pub died: bool,
}

pub struct Oracle {
    conf: Conf,
    driver: Driver,
    total: u64,
    allowed: Option<u64>,
    pub cells: BTreeMap<u64, Cell>,
    /// The number of searches for a free block, by pool and class.
    searches: BTreeMap<(Option<usize>, bool), u64>,
    /// The address of each live or pending block.
    at: BTreeMap<usize, u64>,
    /// Pending blocks whose event has passed without the host having seen it.
    passed: Vec<usize>,
    pub trace: Vec<TraceEntry>,
    pub figures: Figures,
}

impl Oracle {
    pub fn new(conf: &Conf, driver: Driver, total: u64, fraction: f64) -> Self {
        let allowed = (fraction < 1.0).then(|| (fraction * total as f64).round() as u64);
        Self {
            conf: conf.clone(),
            driver,
            total,
            allowed,
            cells: BTreeMap::new(),
            searches: BTreeMap::new(),
            at: BTreeMap::new(),
            passed: Vec::new(),
            trace: Vec::new(),
            figures: Figures::default(),
        }
    }

    /// Runs a program, up to the first request that fails.
    pub fn run(&mut self, program: &[Op]) {
        for op in program {
            match *op {
                Op::Allocate { id, bytes, stream, pool } => {
                    if !self.allocate(id, bytes, stream, pool) {
                        self.figures.died = true;
                        return;
                    }
                }
                Op::Free { id, used_elsewhere } => self.free(id, used_elsewhere),
                Op::Pass { id } => self.passed.push(id),
                Op::EmptyCache => self.empty_cache(),
            }
        }
    }

    fn note(&mut self, action: Action, address: u64, bytes: u64, stream: u64) {
        self.trace.push(TraceEntry::new(action, address, bytes, StreamId::from_raw(stream)));
    }

    fn allocate(&mut self, id: usize, bytes: u64, stream: u64, pool: Option<usize>) -> bool {
        self.process();
        let size = self.conf.round(bytes);
        let place = Place { pool, small: size <= MIB, stream };
        let found = self.find(size, place).or_else(|| {
            if self.allowed.is_some() && self.conf.collect_above > 0.0 {
                self.collect();
            }
            self.take_more(size, place)
                .or_else(|| {
                    let released = self.release_oversize(size, place);
                    released.then(|| self.take_more(size, place)).flatten()
                })
                .or_else(|| {
                    self.empty_cache();
                    self.figures.retries += 1;
                    self.take_more(size, place)
                })
        });
        let Some(address) = found else {
            self.note(Action::Oom, 0, size, stream);
            return false;
        };
        self.cut(address, size);
        let cell = self.cells.get_mut(&address).expect("it was found");
        (cell.state, cell.requested) = (State::Live(id), bytes);
        self.at.insert(id, address);
        self.note(Action::Alloc, address, bytes, stream);
        true
    }

    /// Returns the free cell that serves a request, if there is one.
    fn find(&mut self, size: u64, place: Place) -> Option<u64> {
        *self.searches.entry((place.pool, place.small)).or_default() += 1;
        let mut fitting: Vec<(u64, u64)> = self
            .free_cells(|cell| cell.place == place && cell.size >= size)
            .map(|(address, cell)| (cell.size, address))
            .collect();
        fitting.sort();
        let mut best = 0;
        fitting.first()?;
        if self.cells[&fitting[0].1].is_expandable {
            // The next cell is taken as long as it could become less large than the one before it.
            let could_be = |address: u64| {
                let size = self.cells[&address].size;
                let next = self.cells.get(&(address + size)).filter(|next| self.same_segment(address, next));
                size + next.filter(|next| next.state == State::Unmapped).map_or(0, |next| next.size)
            };
            while best + 1 < fitting.len() && could_be(fitting[best + 1].1) < could_be(fitting[best].1) {
                best += 1;
            }
        }
        let (found, address) = fitting[best];
        let fits = match size < self.conf.max_split {
            true => found < self.conf.max_split,
            false => found < size + 20 * MIB,
        };
        fits.then_some(address)
    }

    fn free_cells(&self, which: impl Fn(&Cell) -> bool) -> impl Iterator<Item = (u64, Cell)> {
        let free = move |cell: &Cell| matches!(cell.state, State::Free(_)) && which(cell);
        self.cells.iter().filter(move |(_, cell)| free(cell)).map(|(&address, &cell)| (address, cell))
    }

    fn same_segment(&self, address: u64, other: &Cell) -> bool {
        self.cells[&address].segment == other.segment
    }

    /// Splits the remainder off a found cell, if it should be split.
    fn cut(&mut self, address: u64, size: u64) {
        let cell = self.cells[&address];
        let rest = cell.size - size;
        let cuts = match cell.place.small || self.conf.expandable {
            true => rest >= 512,
            false => size < self.conf.max_split && rest > MIB,
        };
        if cuts {
            self.split(address, size);
        }
    }

    /// Makes a cell end after `size`, and the rest a new cell.
    fn split(&mut self, address: u64, size: u64) {
        let cell = self.cells[&address];
        self.cells.insert(address, Cell { size, ..cell });
        self.cells.insert(address + size, Cell { size: cell.size - size, ..cell });
    }

    fn free(&mut self, id: usize, used_elsewhere: bool) {
        let Cell { requested, place, .. } = self.cells[&self.at[&id]];
        self.note(Action::FreeRequested, self.at[&id], requested, place.stream);
        match used_elsewhere {
            true => self.cells.get_mut(&self.at[&id]).expect("it is live").state = State::Pending(id),
            false => self.complete(id),
        }
    }

    fn complete(&mut self, id: usize) {
        let address = self.at.remove(&id).expect("it is not free yet");
        let Cell { requested, place, .. } = self.cells[&address];
        self.note(Action::FreeCompleted, address, requested, place.stream);
        let since = self.now(place);
        self.settle(address, State::Free(since));
    }

    fn now(&self, place: Place) -> u64 {
        self.searches.get(&(place.pool, place.small)).copied().unwrap_or(0)
    }

    /// Checks which events have passed.
    fn process(&mut self) {
        for id in std::mem::take(&mut self.passed) {
            // A wait for all events may have seen it before.
            if self.at.contains_key(&id) {
                self.complete(id);
            }
        }
    }

    /// Makes a cell free or unmapped, and merges it with neighbours in the same state. Returns its address then.
    fn settle(&mut self, mut address: u64, state: State) -> u64 {
        let alike = |other: State| matches!(other, State::Free(_)) == matches!(state, State::Free(_));
        let joins = |cell: &Cell| matches!(cell.state, State::Free(_) | State::Unmapped) && alike(cell.state);
        let mut cell = Cell { state, requested: 0, ..self.cells[&address] };
        if let Some((&before, other)) = self.cells.range(..address).next_back()
            && other.segment == cell.segment
            && joins(other)
        {
            cell.size += other.size;
            self.cells.remove(&address);
            address = before;
        }
        let end = address + cell.size;
        if let Some(other) =
            self.cells.get(&end).copied().filter(|other| other.segment == cell.segment && joins(other))
        {
            cell.size += other.size;
            self.cells.remove(&end);
        }
        self.cells.insert(address, cell);
        address
    }

    /// Takes a new segment, or more pages. Returns the free cell that serves then.
    fn take_more(&mut self, size: u64, place: Place) -> Option<u64> {
        let bytes = segment_bytes(size);
        if self.allowed.is_some_and(|allowed| self.figures.reserved + bytes > allowed) {
            return None;
        }
        if self.conf.expandable {
            return self.grow(size, place);
        }
        if self.figures.reserved + bytes > self.total {
            return None;
        }
        let address = self.driver.segment(bytes, place.stream);
        let cell = Cell {
            size: bytes,
            requested: 0,
            state: State::Free(0),
            place,
            segment: address,
            is_expandable: false,
        };
        self.cells.insert(address, cell);
        self.reserve(Action::SegmentAlloc, address, bytes, place.stream);
        Some(address)
    }

    fn reserve(&mut self, action: Action, address: u64, bytes: u64, stream: u64) {
        let figures = &mut self.figures;
        figures.reserved += bytes;
        figures.reserved_peak = figures.reserved.max(figures.reserved_peak);
        figures.allocations += 1;
        self.note(action, address, bytes, stream);
    }

    /// Maps pages after the first unmapped cell that has room, together with the cells after it or the free cell before it.
    fn grow(&mut self, size: u64, place: Place) -> Option<u64> {
        let mut address = self.room_to_grow(size, place).unwrap_or_else(|| {
            let bytes = (self.total / 8 * 9).next_multiple_of(page_bytes(place));
            let segment = self.driver.range(bytes);
            let state = State::Unmapped;
            self.cells.insert(
                segment,
                Cell { size: bytes, requested: 0, state, place, segment, is_expandable: true },
            );
            segment
        });
        if self.cells[&address].state == State::Unmapped {
            address = self.map(address, size)?;
        }
        while self.cells[&address].size < size {
            let end = address + self.cells[&address].size;
            address = self.map(end, size - self.cells[&address].size)?;
        }
        Some(address)
    }

    fn room_to_grow(&self, size: u64, place: Place) -> Option<u64> {
        let usable = |cell: &Cell| matches!(cell.state, State::Free(_) | State::Unmapped);
        let unmapped =
            self.cells.iter().filter(|(_, cell)| cell.place == place && cell.state == State::Unmapped);
        for (&address, cell) in unmapped {
            let before = self.cells.range(..address).next_back();
            let first = match before {
                Some((&at, before)) if before.segment == cell.segment && usable(before) => at,
                _ => address,
            };
            let run = self
                .cells
                .range(first..)
                .take_while(|(_, other)| other.segment == cell.segment && usable(other));
            if run.map(|(_, cell)| cell.size).sum::<u64>() >= size {
                return Some(first);
            }
        }
        None
    }

    /// Maps the pages of an unmapped cell that `size` needs, all or none.
    fn map(&mut self, address: u64, size: u64) -> Option<u64> {
        let Cell { place, size: most, .. } = self.cells[&address];
        let bytes = size.min(most).next_multiple_of(page_bytes(place));
        if self.figures.reserved + bytes > self.total {
            return None;
        }
        if bytes < most {
            self.split(address, bytes);
        }
        self.reserve(Action::SegmentMap, address, bytes, place.stream);
        let since = self.now(place);
        Some(self.settle(address, State::Free(since)))
    }
}
