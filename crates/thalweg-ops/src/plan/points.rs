//! Strided points: the order of their dimensions, vectors along the last dimension, and tiles if operands disagree on it.

use smallvec::SmallVec;
use thalweg_ir::{Body, Class, DType, Dimensions, Geometry, InputKind, Node, OperandGeometry, OutputPlace};

use super::{Iteration, Placement, VECTOR_BYTES};

/// The fewest points of a tile in a dimension: with fewer, most of a block's threads would have none.
const LEAST_TILED: u64 = 16;

/// The shared memory of a block that needs no opt-in, in bytes.
const SHARED_BYTES: u64 = 48 << 10;

/// The elements of a tile: 64 rows of 64 elements, with padding between rows.
const TILE_ELEMENTS: u64 = 64 * 66;

/// The size of the largest element of which a thread loads more than one vector at a time if it is read again for each row.
pub(super) const REREAD_BYTES: u64 = 4;

/// The bytes that a thread moves at once to or from a tile.
const TILE_VECTOR_BYTES: u64 = 4;

/// Returns the iteration with its points as rows, which are equivalent if nothing is combined and every output is written at
/// points. Returns `None` if there are no points, or if the body distinguishes rows from points.
pub(super) fn as_rows(body: &Body, iteration: &Iteration) -> Option<Iteration> {
    let at_points = body.outputs.iter().all(|output| output.place == OutputPlace::Point);
    if iteration.inner.is_empty() || !at_points || !is_plain(body) || body.report.is_some() {
        return None;
    }
    let joined = |rows: &Dimensions, inner: &Dimensions| rows.iter().chain(inner).copied().collect();
    let operands = iteration.operands.iter().map(|operand| match operand {
        Placement::Strided { rows, inner } => {
            Placement::Strided { rows: joined(rows, inner), inner: Dimensions::new() }
        }
        gathered @ Placement::Gathered(_) => gathered.clone(),
    });
    Some(Iteration {
        rows: joined(&iteration.rows, &iteration.inner),
        inner: Dimensions::new(),
        operands: operands.collect(),
        ..*iteration
    })
}

/// Returns the iteration with its dimensions in the memory order of the first output. Returns `None` if they are in that order
/// already, or if the body distinguishes dimensions.
pub(super) fn in_order_of_outputs(body: &Body, iteration: &Iteration) -> Option<Iteration> {
    let Placement::Strided { rows: strides, .. } = iteration.operands.get(body.inputs.len())? else {
        return None;
    };
    if !is_plain(body) || !iteration.inner.is_empty() || strides.is_sorted_by(|a, b| a >= b) {
        return None;
    }
    let mut order: SmallVec<[usize; 6]> = (0..strides.len()).collect();
    order.sort_by_key(|&dimension| std::cmp::Reverse(strides[dimension]));
    let reorder = |values: &[u64]| order.iter().map(|&dimension| values[dimension]).collect();
    let operands = iteration.operands.iter().map(|operand| match operand {
        Placement::Strided { rows, inner } => {
            Placement::Strided { rows: reorder(rows), inner: inner.clone() }
        }
        gathered @ Placement::Gathered(_) => gathered.clone(),
    });
    Some(Iteration {
        rows: reorder(&iteration.rows),
        inner: iteration.inner.clone(),
        operands: operands.collect(),
        ..*iteration
    })
}

/// Returns whether all points are handled the same way: nothing is combined or scattered, no coordinate is read, and the places of what
/// is gathered follow from those of an input.
fn is_plain(body: &Body) -> bool {
    body.reductions.is_empty()
        && !body.uses_coordinates()
        && (body.has_places() || body.inputs.iter().all(|input| input.kind == InputKind::Strided))
        && body.outputs.iter().all(|output| output.scatter.is_none())
}

/// Returns the dtype and the strides of each operand, the inputs first.
fn operands<'a>(body: &'a Body, geometry: &'a Geometry) -> impl Iterator<Item = (DType, &'a [u64])> {
    let inputs = body.inputs.iter().map(|input| input.dtype);
    let dtypes = inputs.chain(body.outputs.iter().map(|output| output.dtype));
    dtypes.zip(&geometry.operands).map(|(dtype, operand)| match operand {
        OperandGeometry::Strided { row_strides, .. } => (dtype, row_strides.as_slice()),
        OperandGeometry::Gathered { .. } => (dtype, &[][..]),
    })
}

/// Returns the widest vector of at most `bytes` bytes in which every operand can be traversed along the dimension that is paired
/// with it. The operand's other strides, and the dimension's extent, are multiples of it.
fn widest<'a>(
    extents: &[u64],
    walks: impl Iterator<Item = ((DType, &'a [u64]), usize)>,
    bytes: u64,
    alignment_bytes: u64,
) -> u8 {
    let (mut largest, mut aligned, mut common) = (1, 1, 0);
    for ((dtype, strides), dimension) in walks {
        let size = dtype.size_bytes() as u64;
        let others = || (0..strides.len()).filter(|&other| other != dimension && extents[other] > 1);
        // A vector that is read again for each row, such as numbers per channel, is in a cache: several loads of it cost little.
        let is_reread =
            size <= REREAD_BYTES && others().next().is_some() && others().all(|other| strides[other] == 0);
        largest = if is_reread { largest } else { largest.max(size) };
        aligned = aligned.max(size);
        common |= extents[dimension];
        common = others().fold(common, |common, other| common | strides[other]);
    }
    let mut vector = (bytes / largest).clamp(1, 8);
    let fits = |vector: u64| {
        common.is_multiple_of(vector) && alignment_bytes.is_multiple_of((vector * aligned).min(VECTOR_BYTES))
    };
    while vector > 1 && !fits(vector) {
        vector /= 2;
    }
    vector as u8
}

/// Returns the class of tiles, if inputs are contiguous in a different dimension than the outputs, which are contiguous in the last.
pub(super) fn transposed_class(
    body: &Body,
    geometry: &Geometry,
    class: Class,
    alignment_bytes: u64,
) -> Option<Class> {
    let extents = &geometry.row_shape;
    let last = extents.len().checked_sub(1)?;
    if !is_plain(body) || body.has_places() || class.inner_rank != 0 || body.inputs.len() > 32 {
        return None;
    }
    let count = body.inputs.len();
    if operands(body, geometry).skip(count).any(|(_, strides)| strides[last] != 1) {
        return None;
    }
    let is_transposed = |strides: &[u64], dimension: usize| strides[dimension] == 1 && strides[last] > 1;
    let transposed = (0..last).rev().find(|&dimension| {
        extents[dimension].min(extents[last]) >= LEAST_TILED
            && operands(body, geometry).take(count).any(|(_, strides)| is_transposed(strides, dimension))
    })?;
    let inputs: Vec<(usize, (DType, &[u64]))> = operands(body, geometry)
        .take(count)
        .enumerate()
        .filter(|(_, (_, strides))| is_transposed(strides, transposed))
        .collect();
    let shared: u64 = inputs.iter().map(|(_, (dtype, _))| TILE_ELEMENTS * dtype.size_bytes() as u64).sum();
    let walks = inputs.iter().map(|(_, operand)| (*operand, transposed));
    let walks = walks.chain(operands(body, geometry).skip(count).map(|operand| (operand, last)));
    (shared <= SHARED_BYTES).then(|| Class {
        transposed: transposed as u8 + 1,
        transposed_inputs: inputs.iter().fold(0, |bits, (number, _)| bits | 1 << number),
        vector: widest(extents, walks, TILE_VECTOR_BYTES, alignment_bytes),
        ..class
    })
}

/// Returns the class in which strided points are handled as vectors along the last dimension: every operand is contiguous there,
/// or is an input that repeats one element, and what is gathered is contiguous there, too.
pub(super) fn vectors(body: &Body, geometry: &Geometry, class: Class, alignment_bytes: u64) -> Option<Class> {
    let extents = &geometry.row_shape;
    let last = extents.len().checked_sub(1)?;
    if class.contiguous || !is_plain(body) || class.inner_rank != 0 || body.inputs.len() > 32 {
        return None;
    }
    let mut repeated = 0;
    let is_strided = |(_, (_, strides)): &(usize, (DType, &[u64]))| !strides.is_empty();
    for (number, (_, strides)) in operands(body, geometry).enumerate().filter(is_strided) {
        match strides[last] {
            1 => {}
            0 if number < body.inputs.len() => repeated |= 1 << number,
            _ => return None,
        }
    }
    let is_repeated = |input: usize| repeated >> input & 1 == 1;
    let mut gathers = body.nodes.iter().filter(|node| matches!(node, Node::Gather { .. }));
    if !gathers.all(|gather| body.is_gather_in_line(gather, is_repeated)) {
        return None;
    }
    let walks = operands(body, geometry).enumerate().filter(is_strided);
    let walks = walks.filter(|(number, _)| repeated >> number & 1 == 0);
    let walks = walks.map(|(_, operand)| (operand, last));
    let vector = widest(extents, walks, VECTOR_BYTES, alignment_bytes);
    (vector > 1).then_some(Class { vector, repeated, ..class })
}
