//! The return of memory by the oracle.

use thalweg_snapshot::Action;

use super::{Cell, Oracle, Place, State, page_bytes};

impl Oracle {
    /// Waits for all events; then returns all entirely free segments and, of expandable segments, all free pages.
    pub fn empty_cache(&mut self) {
        let pending = |cell: &Cell| match cell.state {
            State::Pending(id) => Some(id),
            _ => None,
        };
        let waiting: Vec<usize> = self.cells.values().filter_map(pending).collect();
        waiting.into_iter().for_each(|id| self.complete(id));
        for small in [false, true] {
            // A private pool keeps its memory.
            let free: Vec<(u64, Cell)> =
                self.free_cells(|cell| cell.place.small == small && cell.place.pool.is_none()).collect();
            for (address, cell) in free.iter().filter(|(_, cell)| !cell.is_expandable) {
                if self.is_whole(*address, cell) {
                    self.release(*address);
                }
            }
            for (address, cell) in free.iter().filter(|(_, cell)| cell.is_expandable) {
                self.unmap(*address, cell);
            }
        }
    }

    /// Returns whether a cell is all of its segment.
    fn is_whole(&self, address: u64, cell: &Cell) -> bool {
        let others = self.cells.range(cell.segment..).take_while(|(_, other)| other.segment == cell.segment);
        address == cell.segment && others.count() == 1
    }

    fn release(&mut self, address: u64) {
        let cell = self.cells.remove(&address).expect("it is free");
        self.driver.give_back(address, cell.size, cell.place.stream);
        self.given_up(Action::SegmentFree, address, cell.size, cell.place.stream);
    }

    fn given_up(&mut self, action: Action, address: u64, bytes: u64, stream: u64) {
        self.figures.reserved -= bytes;
        self.figures.frees += 1;
        self.note(action, address, bytes, stream);
    }

    fn unmap(&mut self, address: u64, cell: &Cell) {
        let page = page_bytes(cell.place);
        let from = cell.segment + (address - cell.segment).next_multiple_of(page);
        let to = cell.segment + (address + cell.size - cell.segment) / page * page;
        if from >= to {
            return;
        }
        let mut middle = address;
        if from > address {
            self.split(address, from - address);
            middle = from;
        }
        if to < address + cell.size {
            self.split(middle, to - middle);
        }
        let left = self.settle(middle, State::Unmapped);
        self.given_up(Action::SegmentUnmap, from, to - from, cell.place.stream);
        if self.is_whole(left, &self.cells[&left]) {
            let cell = self.cells.remove(&left).expect("it was just made");
            self.driver.give_range_back(left, cell.size);
        }
    }

    /// Returns entirely free cached segments of the shared pool for large requests, the older half first, until few enough are
    /// left.
    pub(super) fn collect(&mut self) {
        let threshold = (self.conf.collect_above * self.allowed.unwrap_or(u64::MAX) as f64) as u64;
        if self.figures.reserved <= threshold {
            return;
        }
        let target = self.figures.reserved - threshold;
        let now = self.now(Place { pool: None, small: false, stream: 0 });
        let mut reclaimed = 0;
        loop {
            let cells = self.free_cells(|cell| !cell.place.small && cell.place.pool.is_none());
            let whole: Vec<(u64, u64, u64)> = cells
                .filter(|(address, cell)| !cell.is_expandable && self.is_whole(*address, cell))
                .filter_map(|(address, cell)| match cell.state {
                    State::Free(since) => Some((address, cell.size, now - since)),
                    _ => None,
                })
                .collect();
            if whole.is_empty() || reclaimed >= target {
                return;
            }
            let average = whole.iter().map(|(.., age)| age).sum::<u64>() as f64 / whole.len() as f64;
            for (address, size, _) in whole.into_iter().filter(|(.., age)| *age as f64 >= average) {
                reclaimed += size;
                self.release(address);
            }
        }
    }

    /// Returns oversize cells of the place: the smallest that is enough on its own, otherwise the largest ones. The result is
    /// whether that was enough.
    pub(super) fn release_oversize(&mut self, size: u64, place: Place) -> bool {
        // PyTorch also takes them out of private pools, on which a graph may rely; this is not imitated (decision 0010).
        if self.conf.max_split == u64::MAX || place.pool.is_some() {
            return false;
        }
        let needed = size.max(self.conf.max_split);
        let mut free: Vec<(u64, u64)> =
            self.free_cells(|cell| cell.place == place).map(|(address, cell)| (cell.size, address)).collect();
        free.sort();
        if let Some(&(_, address)) = free.iter().find(|(size, _)| *size >= needed)
            && !self.cells[&address].is_expandable
        {
            self.release(address);
            return true;
        }
        let mut released = 0;
        let smaller = free.into_iter().rev().filter(|(size, _)| *size < needed);
        for (size, address) in
            smaller.take_while(|(size, _)| *size >= self.conf.max_split).collect::<Vec<_>>()
        {
            if released >= needed {
                break;
            }
            if !self.cells[&address].is_expandable {
                released += size;
                self.release(address);
            }
        }
        released >= needed
    }
}
