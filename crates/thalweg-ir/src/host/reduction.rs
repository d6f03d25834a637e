//! The accumulators of reductions, and the loops that combine them.

use super::arithmetic::Number;
use super::loops::{Accumulate, AccumulateRounds, Fill, Shape, TILE, Trees};
use super::processor::{Loop as _, vectors};
use super::program::{HostStep, Terms};
use super::register::{Elements, File, Lane};
use super::step::Block;
use crate::DType;
use crate::body::ReduceOp;
use crate::kernel::RUN;

/// Returns the value that a reduction starts with.
fn neutral<T: Number>(op: ReduceOp) -> T {
    match op {
        ReduceOp::Sum => T::ZERO,
        ReduceOp::Product => T::ONE,
        ReduceOp::Max => T::LOWEST,
        ReduceOp::Min => T::HIGHEST,
    }
}

/// Computes accumulators = op(accumulators, values), element by element.
fn combine<T: Number>(op: ReduceOp, accumulators: &mut [T], values: &[T]) {
    #[inline(always)]
    fn each<T: Number>(accumulators: &mut [T], values: &[T], f: impl Fn(T, T) -> T) {
        // For a few elements, choosing a vectorised loop costs more than it saves.
        if values.len() < 32 {
            return Accumulate { accumulators, values, f }.call();
        }
        vectors(Accumulate { accumulators, values, f });
    }
    match op {
        ReduceOp::Sum => each(accumulators, values, T::add),
        ReduceOp::Product => each(accumulators, values, T::mul),
        ReduceOp::Max => each(accumulators, values, T::greater),
        ReduceOp::Min => each(accumulators, values, T::smaller),
    }
}

/// Computes accumulators = op(accumulators, values) for values that are complete rounds of all lanes, with as many lanes at a
/// time as fit the processor's registers.
fn combine_rounds<T: Number>(op: ReduceOp, accumulators: &mut [T], values: &[T]) {
    #[inline(always)]
    fn rounds<T: Number>(accumulators: &mut [T], values: &[T], f: impl Fn(T, T) -> T) {
        vectors(AccumulateRounds { accumulators, values, f });
    }
    match op {
        ReduceOp::Sum => rounds(accumulators, values, T::add),
        ReduceOp::Product => rounds(accumulators, values, T::mul),
        ReduceOp::Max => rounds(accumulators, values, T::greater),
        ReduceOp::Min => rounds(accumulators, values, T::smaller),
    }
}

/// Combines every `lanes` neighbours, a power of two, as a tree, neighbours first. The results are placed first.
fn combine_trees<T: Number>(op: ReduceOp, values: &mut [T], lanes: usize) {
    #[inline(always)]
    fn each<T: Number>((values, lanes): (&mut [T], usize), f: impl Fn(T, T) -> T) {
        vectors(Trees { values, lanes, f });
    }
    let values = (values, lanes);
    match op {
        ReduceOp::Sum => each(values, T::add),
        ReduceOp::Product => each(values, T::mul),
        ReduceOp::Max => each(values, T::greater),
        ReduceOp::Min => each(values, T::smaller),
    }
}

/// Returns op(… op(accumulator, first value) …, last value).
fn fold<T: Number>(op: ReduceOp, accumulator: T, values: &[T]) -> T {
    let values = values.iter().copied();
    match op {
        ReduceOp::Sum => values.fold(accumulator, T::add),
        ReduceOp::Product => values.fold(accumulator, T::mul),
        ReduceOp::Max => values.fold(accumulator, T::greater),
        ReduceOp::Min => values.fold(accumulator, T::smaller),
    }
}

/// The accumulators of a reduction in a launch: for each level of the cascade, `lanes` groups of `columns` elements, one per row
/// of the block. The lowest level comes first. If blocks are along points, these are the lanes of each of `rows` rows.
#[derive(Clone, Copy)]
pub(super) struct Accumulators {
    pub op: ReduceOp,
    pub dtype: DType,
    pub number: u16,
    pub lanes: usize,
    pub columns: usize,
    pub rows: usize,
    pub levels: u32,
}

/// Evaluates an expression with `$type` bound to the arithmetic type of a dtype.
macro_rules! with_number {
    ($dtype:expr, $type:ident => $body:expr) => {
        with_dtype!($dtype,
            bool => {
                type $type = u8;
                $body
            },
            integer $type => $body,
            reduced $type => unreachable!("arithmetic is done in compute types"),
            float $type => $body,
        )
    };
}

impl Accumulators {
    fn of<'f, T: Lane>(&self, file: &'f mut File) -> &'f mut Elements<T> {
        &mut T::bank_mut(file).accumulators[usize::from(self.number)]
    }

    /// Returns the value that every accumulator starts with.
    fn neutral<T: Number>(&self) -> T {
        match (self.dtype, neutral::<T>(self.op)) {
            // The highest bool is 1, not 255.
            (DType::Bool, value) => value.smaller(T::ONE),
            (_, value) => value,
        }
    }

    /// Returns the number of accumulators of a level.
    const fn level(&self) -> usize {
        self.lanes * self.columns * self.rows
    }

    /// Sets every accumulator to the neutral value.
    pub fn start(&self, block: &mut Block<'_, '_>) {
        with_number!(self.dtype, T => {
            let value = self.neutral::<T>();
            let accumulators = self.of::<T>(block.file);
            let count = self.level() * self.levels as usize;
            accumulators.reserve(count);
            vectors(Fill { target: &mut accumulators[..count], value });
        });
    }

    /// Returns the number of points of a row that the runs of a level cover together.
    fn points_of_runs(&self, level: u32) -> usize {
        self.lanes * (RUN as usize).pow(level)
    }

    /// Moves the results of runs that end before point `end` up a level.
    fn go_up<T: Number>(&self, accumulators: &mut [T], end: usize) {
        for level in 1..self.levels {
            if !end.is_multiple_of(self.points_of_runs(level)) {
                return;
            }
            self.combine_up(accumulators, level);
        }
    }

    /// Combines the accumulators of the level below into those of a level, and resets the lower ones.
    fn combine_up<T: Number>(&self, accumulators: &mut [T], level: u32) {
        let (below, above) = accumulators[(level as usize - 1) * self.level()..].split_at_mut(self.level());
        combine(self.op, &mut above[..self.level()], below);
        below.fill(self.neutral());
    }

    /// Combines a block across rows, which has point `point` of each row.
    pub fn across(&self, block: &mut Block<'_, '_>, register: u16, point: usize) {
        let first = (point & (self.lanes - 1)) * self.columns;
        with_number!(self.dtype, T => {
            let mut accumulators = std::mem::take(self.of::<T>(block.file));
            let values = block.file.read::<T>(block.inputs, register, block.count);
            combine(self.op, &mut accumulators[first..first + self.columns], values);
            self.go_up(&mut accumulators, point + 1);
            *self.of(block.file) = accumulators;
        });
    }

    /// Combines a block along the points of rows, beginning with row `first` and point `point`.
    pub fn along(&self, block: &mut Block<'_, '_>, register: u16, first: usize, point: usize) {
        let Shape { lines, length } = block.shape;
        with_number!(self.dtype, T => {
            let mut accumulators = std::mem::take(self.of::<T>(block.file));
            let values = block.file.operand::<T>(block.inputs, register, block.shape);
            if self.levels == 1 {
                let rows = accumulators[first * self.lanes..].chunks_exact_mut(self.lanes).take(lines);
                for (line, accumulators) in rows.enumerate() {
                    self.along_lanes(accumulators, values.line(line, length), point);
                }
                *self.of(block.file) = accumulators;
                return;
            }
            let (mut values, mut point) = (values.line(0, length), point);
            while !values.is_empty() {
                let run = self.points_of_runs(1);
                let (now, later) = values.split_at(values.len().min(run - point % run));
                self.along_lanes(&mut accumulators[..self.lanes], now, point);
                (values, point) = (later, point + now.len());
                self.go_up(&mut accumulators, point);
            }
            *self.of(block.file) = accumulators;
        });
    }

    /// Returns whether [`along_of`](Self::along_of) adds terms as they are computed.
    pub const fn adds_terms(&self) -> bool {
        self.levels == 1 && self.lanes >= TILE
    }

    /// Adds the terms of a sum, in the order of [`along`](Self::along).
    pub fn along_of(&self, block: &mut Block<'_, '_>, terms: (Terms, &HostStep), first: usize, point: usize) {
        let mut accumulators = std::mem::take(self.of::<f32>(block.file));
        let lanes = &mut accumulators[first * self.lanes..][..block.shape.lines * self.lanes];
        block.add_terms(terms, lanes, (self.lanes, point & (self.lanes - 1)));
        *self.of(block.file) = accumulators;
    }

    /// Combines values into the lanes of the lowest level, beginning with point `point`.
    fn along_lanes<T: Number>(&self, accumulators: &mut [T], mut values: &[T], point: usize) {
        if let [accumulator] = accumulators {
            *accumulator = fold(self.op, *accumulator, values);
            return;
        }
        let mut lane = point & (self.lanes - 1);
        if lane == 0 && self.lanes.is_multiple_of(TILE) && self.lanes < values.len() {
            let (whole, rest) = values.split_at(values.len() - values.len() % self.lanes);
            combine_rounds(self.op, accumulators, whole);
            values = rest;
        }
        while !values.is_empty() {
            let (now, later) = values.split_at(values.len().min(self.lanes - lane));
            combine(self.op, &mut accumulators[lane..], now);
            (values, lane) = (later, 0);
        }
    }

    /// Combines the lanes as a tree, neighbours first, and writes the results to a register, one per row of the block.
    pub fn finish(&self, block: &mut Block<'_, '_>, register: u16) {
        with_number!(self.dtype, T => {
            let mut all = std::mem::take(self.of::<T>(block.file));
            (1..self.levels).for_each(|level| self.combine_up(&mut all, level));
            let accumulators = &mut all[(self.levels as usize - 1) * self.level()..][..self.level()];
            let (columns, mut lanes) = (self.columns, self.lanes);
            if columns == 1 {
                combine_trees(self.op, accumulators, lanes);
                lanes = 1;
            }
            while lanes > 1 {
                lanes /= 2;
                for lane in 0..lanes {
                    let (first, second) = accumulators.split_at_mut((2 * lane + 1) * columns);
                    combine(self.op, &mut first[2 * lane * columns..], &second[..columns]);
                    first.copy_within(2 * lane * columns.., lane * columns);
                }
            }
            block.file.write(register, block.count, |_, target: &mut [T]| {
                target.copy_from_slice(&accumulators[..target.len()]);
            });
            *self.of(block.file) = all;
        });
    }
}
