//! Iteration over a group of dimensions in row-major order with one offset per operand, incrementally: without a division per
//! element.

use smallvec::SmallVec;

/// Extents, and every operand's strides, of the row dimensions or of the inner ones. There is at least one dimension.
#[derive(Debug)]
pub(super) struct Space {
    extents: SmallVec<[usize; 6]>,
    /// The strides of dimension 0 for each operand, then those of dimension 1 …
    strides: SmallVec<[usize; 24]>,
    operands: usize,
    /// One bit for each of the first 64 operands: set if all dimensions can be traversed as one.
    flat: u64,
}

/// A position in a [`Space`].
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    /// The coordinates.
    pub position: SmallVec<[usize; 6]>,
    /// The offset of each operand at that position, in elements.
    pub offsets: SmallVec<[usize; 8]>,
}

impl Cursor {
    /// Moves back to the first position.
    pub fn reset(&mut self) {
        self.position.fill(0);
        self.offsets.fill(0);
    }
}

impl Space {
    /// Creates a space of this shape. `strides` returns an operand's strides; none if the operand does not move in this space.
    /// Dimensions that every operand traverses as one are merged, unless the caller needs them separate.
    pub fn new<'s>(
        shape: &[u64],
        operands: usize,
        strides: impl Fn(usize) -> &'s [u64],
        keep_apart: bool,
    ) -> Self {
        let stride =
            |operand: usize, dimension: usize| strides(operand).get(dimension).map_or(0, |&s| s as usize);
        let room = shape.len().max(1) * operands;
        let mut space =
            Self { extents: SmallVec::new(), strides: SmallVec::from_elem(0, room), operands, flat: 0 };
        for (dimension, &extent) in shape.iter().enumerate() {
            let extent = extent as usize;
            if extent == 1 && !keep_apart {
                continue;
            }
            let merges = !keep_apart
                && !space.extents.is_empty()
                && (0..operands).all(|operand| {
                    space.stride(operand, space.last()) == stride(operand, dimension).wrapping_mul(extent)
                });
            if merges {
                let last = space.last();
                space.extents[last] *= extent;
            } else {
                space.extents.push(extent);
            }
            let last = space.last() * operands;
            for (operand, slot) in space.strides[last..last + operands].iter_mut().enumerate() {
                *slot = stride(operand, dimension);
            }
        }
        if space.extents.is_empty() {
            space.extents.push(1);
        }
        for operand in 0..operands.min(64) {
            let flat = (1..=space.last()).all(|inner| {
                space.stride(operand, inner - 1)
                    == space.stride(operand, inner).wrapping_mul(space.extents[inner])
            });
            space.flat |= u64::from(flat) << operand;
        }
        space
    }

    /// Returns the innermost dimension.
    fn last(&self) -> usize {
        self.extents.len() - 1
    }

    /// Returns the extent of the innermost dimension.
    pub fn run(&self) -> usize {
        self.extents[self.last()]
    }

    /// Returns an operand's stride in the innermost dimension.
    pub fn run_stride(&self, operand: usize) -> usize {
        self.stride(operand, self.last())
    }

    /// Returns whether there are two dimensions.
    pub fn is_plane(&self) -> bool {
        self.extents.len() == 2
    }

    /// Returns an operand's stride in the outermost dimension.
    pub fn outer_stride(&self, operand: usize) -> usize {
        self.stride(operand, 0)
    }

    /// Returns whether an operand traverses all dimensions as one, with [`Space::run_stride`] between elements.
    pub fn is_flat(&self, operand: usize) -> bool {
        operand < 64 && self.flat >> operand & 1 == 1
    }

    /// Returns whether an operand's elements are evenly spaced over the `count` places that begin at the cursor.
    pub fn is_one_run(&self, cursor: &Cursor, operand: usize, count: usize) -> bool {
        self.is_flat(operand) || cursor.position[self.last()] + count <= self.run()
    }

    fn stride(&self, operand: usize, dimension: usize) -> usize {
        self.strides[dimension * self.operands + operand]
    }

    /// Returns the first place.
    pub fn start(&self) -> Cursor {
        Cursor {
            position: SmallVec::from_elem(0, self.extents.len()),
            offsets: SmallVec::from_elem(0, self.operands),
        }
    }

    /// Advances the cursor by `count` positions.
    pub fn advance(&self, cursor: &mut Cursor, count: usize) {
        let last = self.last();
        cursor.position[last] += count;
        let strides = &self.strides[last * self.operands..];
        for (offset, stride) in cursor.offsets.iter_mut().zip(strides) {
            *offset += count * stride;
        }
        if cursor.position[last] < self.extents[last] || last == 0 {
            return;
        }
        for dimension in (1..=last).rev() {
            let extent = self.extents[dimension];
            if cursor.position[dimension] < extent {
                break;
            }
            cursor.position[dimension - 1] += cursor.position[dimension] / extent;
            cursor.position[dimension] %= extent;
        }
        for operand in 0..self.operands {
            cursor.offsets[operand] = (0..=last).map(|d| cursor.position[d] * self.stride(operand, d)).sum();
        }
    }

    /// Calls `visit(at, offset, length)` for each evenly spaced run among the `count` places that begin at the cursor. Elements
    /// `at..at + length` of the block are at the operand's `offset` and after it, [`Space::run_stride`] apart.
    #[inline]
    pub fn runs(
        &self,
        cursor: &Cursor,
        operand: usize,
        count: usize,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        let last = self.last();
        let mut offset = cursor.offsets[operand];
        if self.is_one_run(cursor, operand, count) {
            return visit(0, offset, count);
        }
        let mut position = cursor.position.clone();
        let mut at = 0;
        while at < count {
            let length = (self.extents[last] - position[last]).min(count - at);
            visit(at, offset, length);
            at += length;
            position[last] += length;
            offset += length * self.stride(operand, last);
            let mut dimension = last;
            while dimension > 0 && position[dimension] == self.extents[dimension] {
                position[dimension] = 0;
                offset -= self.extents[dimension] * self.stride(operand, dimension);
                dimension -= 1;
                position[dimension] += 1;
                offset += self.stride(operand, dimension);
            }
        }
    }

    /// Writes the coordinates in one dimension of the places that begin at the cursor. `first` is the dimension's first
    /// coordinate.
    pub fn coordinates(&self, cursor: &Cursor, dimension: usize, first: i64, target: &mut [i64]) {
        if dimension == self.last() {
            return self.last_coordinates(cursor.position[dimension], first, target);
        }
        // The number of consecutive places that share a coordinate, and how many of them remain at the cursor.
        let repeat: usize = self.extents[dimension + 1..].iter().product();
        let inside = cursor.position[dimension + 1..]
            .iter()
            .zip(&self.extents[dimension + 1..])
            .fold(0, |place, (&position, &extent)| place * extent + position);
        let mut left = repeat - inside;
        let mut coordinate = cursor.position[dimension];
        let mut rest = target;
        while !rest.is_empty() {
            let (run, tail) = rest.split_at_mut(left.min(rest.len()));
            run.fill(first + coordinate as i64);
            rest = tail;
            left = repeat;
            coordinate += 1;
            if coordinate == self.extents[dimension] {
                coordinate = 0;
            }
        }
    }

    /// Writes the coordinates in the innermost dimension, which are consecutive.
    fn last_coordinates(&self, mut position: usize, first: i64, target: &mut [i64]) {
        let mut rest = target;
        while !rest.is_empty() {
            let (run, tail) = rest.split_at_mut((self.run() - position).min(rest.len()));
            let start = first + position as i64;
            for (at, coordinate) in run.iter_mut().enumerate() {
                *coordinate = start + at as i64;
            }
            (rest, position) = (tail, 0);
        }
    }
}
