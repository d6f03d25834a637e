//! The loops that [`vectors`](super::vectors::vectors) compiles for the processor, with what they take: slices, which the compiler knows not to overlap
//! once the loop is inlined there.

use std::cell::Cell;

use super::vectors::Loop;

/// target = f(a).
pub(super) struct Map1<'l, A, T, F> {
    pub target: &'l [Cell<T>],
    pub a: &'l [A],
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
        each(self.target, self.a, self.f);
    }
}

/// target = f(a, b).
pub(super) struct Map2<'l, A, T, F> {
    pub target: &'l [Cell<T>],
    pub a: &'l [A],
    pub b: &'l [A],
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
        each(self.target, self.a, self.b, self.f);
    }
}

/// target = f(a, b, c).
pub(super) struct Map3<'l, A, T, F> {
    pub target: &'l [Cell<T>],
    pub a: &'l [A],
    pub b: &'l [T],
    pub c: &'l [T],
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
        each(self.target, self.a, self.b, self.c, self.f);
    }
}

/// Each value at so many places of target, one value after the other.
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

/// The number of lanes that [`AccumulateRounds`] keeps in registers of the processor at a time.
pub(super) const TILE: usize = 32;

/// accumulators = f(accumulators, values) for values that are whole rounds of all lanes, which are a multiple of [`TILE`].
pub(super) struct AccumulateRounds<'l, T, F> {
    pub accumulators: &'l mut [T],
    pub values: &'l [T],
    pub f: F,
}

impl<T: Copy, F: Fn(T, T) -> T> Loop for AccumulateRounds<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { accumulators, values, f } = self;
        let lanes = accumulators.len();
        let (tiles, []) = accumulators.as_chunks_mut::<TILE>() else {
            unreachable!("lanes are a multiple of the tile")
        };
        for (tile, accumulators) in tiles.iter_mut().enumerate() {
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
}

/// The values of trees over every `lanes` neighbours: values[i] = f(values[2 i], values[2 i + 1]) for the first half of all values, and so on until
/// each tree has one value left. Lanes are a power of two.
pub(super) struct Trees<'l, T, F> {
    pub values: &'l mut [T],
    pub lanes: usize,
    pub f: F,
}

/// The number of pairs of a tree that are combined at a time where fewer than [`TILE`] are left.
const SMALL_TILE: usize = 8;

impl<T: Copy + Default, F: Fn(T, T) -> T> Loop for Trees<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        /// Combines pairs from pair number `first` on, as long as there are `TILE` of them, and returns the number of the next.
        #[inline(always)]
        fn tiles<const TILE: usize, T: Copy + Default>(
            values: &mut [T],
            [mut first, end]: [usize; 2],
            f: impl Fn(T, T) -> T,
        ) -> usize {
            while first + TILE <= end {
                // Read as a whole before anything is written, since both are one slice.
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
