//! The loops that [`vectors`](super::processor::vectors) compiles for the processor, with their operands. Operands are slices, so
//! that the compiler knows that they do not overlap once the loop is inlined.

use std::cell::Cell;

use super::processor::Loop;

/// The most elements of a line that a loop processes at a time.
pub(super) const PIECE: usize = 128;

/// The lines of a block, one per row, and the elements of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub lines: usize,
    pub length: usize,
}

/// The elements of a block that a loop reads: complete lines, or one piece per line that repeats along the line.
#[derive(Clone, Copy)]
pub(super) struct Operand<'l, T> {
    elements: &'l [T],
    /// The distance from one line, or piece, to the next.
    line: usize,
    repeats: bool,
}

impl<'l, T> Operand<'l, T> {
    /// Creates an operand of lines that begin `line` elements apart.
    #[inline(always)]
    pub fn new(elements: &'l [T], line: usize) -> Self {
        Self { elements, line, repeats: false }
    }

    /// Creates an operand that has one piece per line.
    #[inline(always)]
    pub fn repeating(pieces: &'l [T]) -> Self {
        Self { elements: pieces, line: PIECE, repeats: true }
    }

    /// Returns the elements of a line of an operand that has complete lines.
    #[inline(always)]
    pub fn line(&self, number: usize, length: usize) -> &'l [T] {
        debug_assert!(!self.repeats, "a step that takes whole lines reads a piece");
        &self.elements[number * self.line..][..length]
    }

    #[inline(always)]
    fn pieces(&self, number: usize, length: usize) -> Pieces<'l, T> {
        let first = number * self.line;
        if self.repeats {
            let piece = &self.elements[first..][..PIECE];
            return Pieces { whole: piece.as_chunks().0, rest: &piece[..length % PIECE], step: 0 };
        }
        let (whole, rest) = self.elements[first..][..length].as_chunks();
        Pieces { whole, rest, step: 1 }
    }

    /// Returns whether the lines of a block are contiguous.
    #[inline(always)]
    fn is_one(&self, length: usize) -> bool {
        !self.repeats && self.line == length
    }
}

/// A line, piece by piece.
struct Pieces<'l, T> {
    whole: &'l [[T; PIECE]],
    /// The elements after the last complete piece.
    rest: &'l [T],
    /// The distance from one piece to the next; 0 if one piece is repeated.
    step: usize,
}

impl<'l, T> Pieces<'l, T> {
    #[inline(always)]
    fn get(&self, number: usize) -> &'l [T; PIECE] {
        &self.whole[number * self.step]
    }

    /// Returns some elements that are all in one piece.
    #[inline(always)]
    fn part(&self, first: usize, count: usize) -> &'l [T] {
        let piece = self.whole.get(first / PIECE * self.step).map_or(self.rest, |piece| piece);
        &piece[first % PIECE..][..count]
    }

    /// Returns the elements of a tile, which is a piece or a part of one.
    #[inline(always)]
    fn tile<const TILE: usize>(&self, first: usize) -> &'l [T; TILE] {
        self.part(first, TILE).try_into().expect("a tile of the round")
    }
}

/// The elements of a block that a loop writes.
pub(super) struct Target<'l, T> {
    pub cells: &'l [Cell<T>],
    /// The distance from one line to the next.
    pub line: usize,
    pub shape: Shape,
}

impl<'l, T> Target<'l, T> {
    /// Returns the elements of a line.
    #[inline(always)]
    pub fn line(&self, number: usize) -> &'l [Cell<T>] {
        &self.cells[number * self.line..][..self.shape.length]
    }

    /// Merges the lines into one, if the lines of all operands are contiguous as well.
    #[inline(always)]
    fn merged(mut self, operands_are_one: bool) -> Self {
        let Shape { lines, length } = self.shape;
        if operands_are_one && self.line == length {
            self.shape = Shape { lines: 1, length: lines * length };
        }
        self
    }
}

/// target = f(a).
pub(super) struct Map1<'l, A, T, F> {
    pub target: Target<'l, T>,
    pub a: &'l Operand<'l, A>,
    pub f: F,
}

impl<A: Copy, T, F: Fn(A) -> T> Loop for Map1<'_, A, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        #[inline(always)]
        fn each<A: Copy, T>(target: &[Cell<T>], a: &[A], f: impl Fn(A) -> T) {
            for (target, &a) in target.iter().zip(a) {
                target.set(f(a));
            }
        }
        let Self { target, a, f } = self;
        let is_one = a.is_one(target.shape.length);
        let target = target.merged(is_one);
        let Shape { lines, length } = target.shape;
        for line in 0..lines {
            let (whole, rest) = target.line(line).as_chunks::<PIECE>();
            let a = a.pieces(line, length);
            for (at, target) in whole.iter().enumerate() {
                each(target, a.get(at), &f);
            }
            each(rest, a.rest, &f);
        }
    }

    #[inline(always)]
    fn call_on_old_processors(self) {
        #[inline(never)]
        fn each<A: Copy, T>(target: Target<'_, T>, a: &Operand<'_, A>, f: &dyn Fn(A) -> T) {
            Map1 { target, a, f }.call();
        }
        each(self.target, self.a, &self.f);
    }
}

/// target = f(a, b).
pub(super) struct Map2<'l, A, T, F> {
    pub target: Target<'l, T>,
    pub a: &'l Operand<'l, A>,
    pub b: &'l Operand<'l, A>,
    pub f: F,
}

impl<A: Copy, T, F: Fn(A, A) -> T> Loop for Map2<'_, A, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        #[inline(always)]
        fn each<A: Copy, T>(target: &[Cell<T>], a: &[A], b: &[A], f: impl Fn(A, A) -> T) {
            for ((target, &a), &b) in target.iter().zip(a).zip(b) {
                target.set(f(a, b));
            }
        }
        let Self { target, a, b, f } = self;
        let length = target.shape.length;
        let target = target.merged(a.is_one(length) && b.is_one(length));
        let Shape { lines, length } = target.shape;
        for line in 0..lines {
            let (whole, rest) = target.line(line).as_chunks::<PIECE>();
            let (a, b) = (a.pieces(line, length), b.pieces(line, length));
            for (at, target) in whole.iter().enumerate() {
                each(target, a.get(at), b.get(at), &f);
            }
            each(rest, a.rest, b.rest, &f);
        }
    }

    #[inline(always)]
    fn call_on_old_processors(self) {
        #[inline(never)]
        fn each<A: Copy, T>(
            target: Target<'_, T>,
            a: &Operand<'_, A>,
            b: &Operand<'_, A>,
            f: &dyn Fn(A, A) -> T,
        ) {
            Map2 { target, a, b, f }.call();
        }
        each(self.target, self.a, self.b, &self.f);
    }
}

/// target = f(a, b, c).
pub(super) struct Map3<'l, A, T, F> {
    pub target: Target<'l, T>,
    pub a: &'l Operand<'l, A>,
    pub b: &'l Operand<'l, T>,
    pub c: &'l Operand<'l, T>,
    pub f: F,
}

impl<A: Copy, T: Copy, F: Fn(A, T, T) -> T> Loop for Map3<'_, A, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        #[inline(always)]
        fn each<A: Copy, T: Copy>(target: &[Cell<T>], a: &[A], b: &[T], c: &[T], f: impl Fn(A, T, T) -> T) {
            for (((target, &a), &b), &c) in target.iter().zip(a).zip(b).zip(c) {
                target.set(f(a, b, c));
            }
        }
        let Self { target, a, b, c, f } = self;
        let length = target.shape.length;
        let target = target.merged(a.is_one(length) && b.is_one(length) && c.is_one(length));
        let Shape { lines, length } = target.shape;
        for line in 0..lines {
            let (whole, rest) = target.line(line).as_chunks::<PIECE>();
            let (a, b, c) = (a.pieces(line, length), b.pieces(line, length), c.pieces(line, length));
            for (at, target) in whole.iter().enumerate() {
                each(target, a.get(at), b.get(at), c.get(at), &f);
            }
            each(rest, a.rest, b.rest, c.rest, &f);
        }
    }

    #[inline(always)]
    fn call_on_old_processors(self) {
        #[inline(never)]
        fn each<A: Copy, T: Copy>(
            target: Target<'_, T>,
            a: &Operand<'_, A>,
            b: &Operand<'_, T>,
            c: &Operand<'_, T>,
            f: &dyn Fn(A, T, T) -> T,
        ) {
            Map3 { target, a, b, c, f }.call();
        }
        each(self.target, self.a, self.b, self.c, &self.f);
    }
}

/// target = value, at all positions.
pub(super) struct Fill<'l, T> {
    pub target: &'l mut [T],
    pub value: T,
}

impl<T: Copy> Loop for Fill<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.target.fill(self.value);
    }
}

/// target = each value repeated `places` times, in order.
pub(super) struct Spread<'l, T> {
    pub target: &'l mut [T],
    pub values: &'l [T],
    pub places: usize,
}

impl<T: Copy> Loop for Spread<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (target, &value) in self.target.chunks_exact_mut(self.places).zip(self.values) {
            for target in target {
                *target = value;
            }
        }
    }
}

/// cells = values.
pub(super) struct Store<'l, T> {
    pub cells: &'l [Cell<T>],
    pub values: &'l [T],
}

impl<T: Copy> Loop for Store<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (cell, &value) in self.cells.iter().zip(self.values) {
            cell.set(value);
        }
    }
}

/// accumulators = f(accumulators, values), element by element.
pub(super) struct Accumulate<'l, T, F> {
    pub accumulators: &'l mut [T],
    pub values: &'l [T],
    pub f: F,
}

impl<T: Copy, F: Fn(T, T) -> T> Loop for Accumulate<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        #[inline(always)]
        fn each<T: Copy>(accumulators: &mut [T], values: &[T], f: impl Fn(T, T) -> T) {
            for (accumulator, &value) in accumulators.iter_mut().zip(values) {
                *accumulator = f(*accumulator, value);
            }
        }
        each(self.accumulators, self.values, self.f);
    }
}

/// The number of lanes that are kept in processor registers at a time, for reductions with fewer lanes than a [`PIECE`] has
/// elements.
pub(super) const TILE: usize = 32;

/// accumulators = f(accumulators, values) for values that are complete rounds of all lanes. The number of lanes is a multiple of
/// [`TILE`].
pub(super) struct AccumulateRounds<'l, T, F> {
    pub accumulators: &'l mut [T],
    pub values: &'l [T],
    pub f: F,
}

impl<T: Copy, F: Fn(T, T) -> T> Loop for AccumulateRounds<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        #[inline(always)]
        fn rounds<const TILE: usize, T: Copy>(accumulators: &mut [T], values: &[T], f: impl Fn(T, T) -> T) {
            let lanes = accumulators.len();
            for (tile, accumulators) in accumulators.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
                let mut kept = *accumulators;
                for round in values.chunks_exact(lanes) {
                    let values: &[T; TILE] =
                        round[tile * TILE..][..TILE].try_into().expect("a tile of the round");
                    for lane in 0..TILE {
                        kept[lane] = f(kept[lane], values[lane]);
                    }
                }
                *accumulators = kept;
            }
        }
        let Self { accumulators, values, f } = self;
        if accumulators.len().is_multiple_of(PIECE) {
            rounds::<PIECE, T>(accumulators, values, f);
        } else {
            rounds::<TILE, T>(accumulators, values, f);
        }
    }
}

/// accumulators + f(a, b, c) for the elements of lines. Each line has `lanes` lanes of its own, which are used in turn, beginning
/// with lane `lane`.
pub(super) struct SumOf<'l, F> {
    pub accumulators: &'l mut [f32],
    pub lanes: usize,
    pub lane: usize,
    pub a: &'l Operand<'l, f32>,
    pub b: &'l Operand<'l, f32>,
    pub c: &'l Operand<'l, f32>,
    pub length: usize,
    pub f: F,
}

impl<F: Fn(f32, f32, f32) -> f32> Loop for SumOf<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        #[inline(always)]
        fn each(
            accumulators: &mut [f32],
            (a, b, c): (&[f32], &[f32], &[f32]),
            f: impl Fn(f32, f32, f32) -> f32,
        ) {
            for (((accumulator, &a), &b), &c) in accumulators.iter_mut().zip(a).zip(b).zip(c) {
                *accumulator += f(a, b, c);
            }
        }
        type Terms<'l> = (Pieces<'l, f32>, Pieces<'l, f32>, Pieces<'l, f32>);
        #[inline(always)]
        fn rounds<const TILE: usize>(
            accumulators: &mut [f32],
            (a, b, c): &Terms<'_>,
            [first, end]: [usize; 2],
            f: impl Fn(f32, f32, f32) -> f32,
        ) {
            let lanes = accumulators.len();
            for (tile, accumulators) in accumulators.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
                let mut kept = *accumulators;
                let mut at = first + tile * TILE;
                while at < end {
                    let (a, b, c) = (a.tile::<TILE>(at), b.tile::<TILE>(at), c.tile::<TILE>(at));
                    for lane in 0..TILE {
                        kept[lane] += f(a[lane], b[lane], c[lane]);
                    }
                    at += lanes;
                }
                *accumulators = kept;
            }
        }
        let Self { accumulators, lanes, lane, a, b, c, length, f } = self;
        for (line, accumulators) in accumulators.chunks_exact_mut(lanes).enumerate() {
            let terms = (a.pieces(line, length), b.pieces(line, length), c.pieces(line, length));
            let (mut first, mut lane) = (0, lane);
            while first < length {
                let end = first + (length - first) / lanes * lanes;
                let tiles = |tile: usize| {
                    lane == 0 && end > first && lanes.is_multiple_of(tile) && first.is_multiple_of(tile)
                };
                if tiles(PIECE) {
                    rounds::<PIECE>(accumulators, &terms, [first, end], &f);
                    first = end;
                } else if tiles(TILE) {
                    rounds::<TILE>(accumulators, &terms, [first, end], &f);
                    first = end;
                } else {
                    let part = (length - first).min(lanes - lane).min(PIECE - first % PIECE);
                    let (a, b, c) = &terms;
                    let terms = (a.part(first, part), b.part(first, part), c.part(first, part));
                    each(&mut accumulators[lane..lane + part], terms, &f);
                    (first, lane) = (first + part, (lane + part) % lanes);
                }
            }
        }
    }
}

/// The values of trees over every `lanes` neighbours: values[i] = f(values[2 i], values[2 i + 1]) for the first half of all
/// values, and so on until one value per tree is left. The number of lanes is a power of two.
pub(super) struct Trees<'l, T, F> {
    pub values: &'l mut [T],
    pub lanes: usize,
    pub f: F,
}

/// The number of pairs of a tree that are combined at a time if fewer than [`TILE`] are left.
const SMALL_TILE: usize = 8;

impl<T: Copy + Default, F: Fn(T, T) -> T> Loop for Trees<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        /// Combines pairs from pair `first` on while `TILE` of them are left, and returns the number of the next pair.
        #[inline(always)]
        fn tiles<const TILE: usize, T: Copy + Default>(
            values: &mut [T],
            [mut first, end]: [usize; 2],
            f: impl Fn(T, T) -> T,
        ) -> usize {
            while first + TILE <= end {
                // All pairs are read before anything is written, since both are parts of one slice.
                let mut pairs = [[T::default(); 2]; TILE];
                pairs.as_flattened_mut().copy_from_slice(&values[2 * first..][..2 * TILE]);
                for (value, pair) in values[first..][..TILE].iter_mut().zip(pairs) {
                    *value = f(pair[0], pair[1]);
                }
                first += TILE;
            }
            first
        }
        let Self { values, lanes, f } = self;
        let mut half = values.len();
        for _ in 0..lanes.trailing_zeros() {
            half /= 2;
            let first = tiles::<TILE, T>(values, [0, half], &f);
            let first = tiles::<SMALL_TILE, T>(values, [first, half], &f);
            for at in first..half {
                values[at] = f(values[2 * at], values[2 * at + 1]);
            }
        }
    }
}
