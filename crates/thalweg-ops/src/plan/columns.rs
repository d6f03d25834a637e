//! Rows that are adjacent in memory, like the columns of a matrix.

use thalweg_ir::{Body, Class, Dimension, Geometry, Node, OperandGeometry, OutputPlace};

use super::points::REREAD_BYTES;
use super::{ROWS_ABREAST, ROWS_FOR_A_THREAD_EACH, SERIAL_POINTS, VECTOR_BYTES, cascade};

/// Threads of a block.
const THREADS: u64 = 256;

/// The most and the fewest threads of a block that handle neighbouring vectors: a line of memory is eight vectors.
const ABREAST: [u64; 3] = [32, 16, 8];

/// Threads of a block that handle neighbouring vectors of short rows, each of which a thread reduces alone.
const ABREAST_OF_SHORT: [u64; 4] = [THREADS, 128, 64, 32];

/// The number of neighbouring vectors, the most elements of each, and the threads of a block that handles few rows, or rows with few
/// neighbours.
const NARROW: u64 = 4;
const MOST_OF_NARROW: u64 = 4;
const THREADS_OF_NARROW: u64 = 512;

/// The number of blocks that fill a GPU, and the number with which each has many loads in flight instead.
const MANY_BLOCKS: u64 = 256;
const SOME_BLOCKS: u64 = 32;

/// The fewest points of a lane: the loads that a thread has in flight.
const POINTS_OF_A_LANE: u64 = 4;

/// The most bytes of a row's result that are taken into account when the width of a vector is chosen. They are if the row is short,
/// or has so many points that its result is only a few stores after many loads.
const ROW_BYTES: [u64; 2] = [4, 2];

/// Returns the class in which threads handle vectors of neighbouring rows, if there are enough rows for many blocks of such
/// threads.
pub(super) fn side_by_side(
    body: &Body,
    geometry: &Geometry,
    class: Class,
    alignment_bytes: u64,
) -> Option<Class> {
    let (points, last) = (geometry.points(), geometry.row_shape.len().checked_sub(1)?);
    let neighbours = geometry.row_shape[last];
    let at_points = body.point_dependent(|_| true);
    let reads_rows = body.nodes.iter().any(|node| matches!(node, Node::Index(Dimension::Row(_))));
    let of_rows = body.outputs.iter().filter(|output| output.place == OutputPlace::Row);
    let reads_elements = of_rows.clone().any(|output| at_points[output.value.index()]);
    let scatters = of_rows.clone().any(|output| output.scatter.is_some());
    if body.reductions.is_empty() || body.has_offsets() || class.inner_rank != 1 || class.contiguous {
        return None;
    }
    if reads_rows || reads_elements || scatters || body.report.is_some() || body.inputs.len() > 32 {
        return None;
    }
    let (vector, repeated) = vectors(body, geometry, alignment_bytes)?;
    if vector == 1 || repeated.count_ones() as usize == body.inputs.len() {
        return None;
    }
    let is_short = points <= SERIAL_POINTS;
    let widths = if is_short { &ABREAST_OF_SHORT[..] } else { &ABREAST };
    let wide = widths.iter().copied().find(|abreast| {
        // The vectors of a thread that has a row of its own need not lie next to those of other threads.
        geometry.rows() / (abreast * vector) >= MANY_BLOCKS && (is_short || neighbours >= abreast * vector)
    });
    let (abreast, vector, threads) = match wide {
        Some(abreast) => (abreast, vector, THREADS),
        None if is_short => return None,
        None => (NARROW, narrow_vector(geometry, vector)?, THREADS_OF_NARROW),
    };
    let lanes = (threads / abreast).min((points / POINTS_OF_A_LANE).next_power_of_two());
    let lanes = if is_short { 1 } else { lanes };
    Some(Class {
        lanes: lanes as u16,
        vector: vector as u8,
        rows_abreast: (abreast * vector) as u16,
        cascade: cascade(body, geometry, lanes as u16),
        repeated,
        ..class
    })
}

/// Returns the width of vectors of which [`NARROW`] are neighbours, for rows that are few or have few neighbours; `None` if blocks of single
/// elements fill a GPU.
fn narrow_vector(geometry: &Geometry, vector: u64) -> Option<u64> {
    let (rows, neighbours) = (geometry.rows(), *geometry.row_shape.last()?);
    let blocks_of_elements = rows / u64::from(ROWS_ABREAST);
    if (MANY_BLOCKS..ROWS_FOR_A_THREAD_EACH / u64::from(ROWS_ABREAST)).contains(&blocks_of_elements) {
        return None;
    }
    let most =
        if rows / (NARROW * MOST_OF_NARROW) >= SOME_BLOCKS { MOST_OF_NARROW } else { MOST_OF_NARROW / 2 };
    let vector = vector.min(most);
    (neighbours >= NARROW * vector).then_some(vector)
}

/// Returns the width of the vectors in which every operand can be traversed along the last dimension of rows, and the inputs that are
/// the same for neighbouring rows, as bits. Returns `None` if an operand has gaps there.
fn vectors(body: &Body, geometry: &Geometry, alignment_bytes: u64) -> Option<(u64, u32)> {
    let (points, last) = (geometry.points(), geometry.row_shape.len().checked_sub(1)?);
    let neighbours = geometry.row_shape[last];
    let inputs = body.inputs.iter().map(|input| (input.dtype, OutputPlace::Point));
    let dtypes = inputs.chain(body.outputs.iter().map(|output| (output.dtype, output.place)));
    let (mut repeated, mut largest, mut widest, mut common) = (0u32, 1, 1, neighbours);
    for (number, ((dtype, place), operand)) in dtypes.zip(&geometry.operands).enumerate() {
        let OperandGeometry::Strided { row_strides, inner_strides } = operand else { return None };
        let mut rows = geometry.row_shape.iter().zip(row_strides).filter(|(extent, _)| **extent > 1);
        let is_same_for_neighbours = row_strides[last] == 0 || rows.all(|(_, stride)| *stride == 0);
        if number < body.inputs.len() && is_same_for_neighbours {
            repeated |= 1 << number;
            continue;
        }
        if row_strides[last] != 1 {
            return None;
        }
        let bytes = dtype.size_bytes() as u64;
        widest = widest.max(bytes);
        // A number for each row is loaded once, or again from a cache.
        let is_of_row = number < body.inputs.len()
            && bytes <= REREAD_BYTES
            && inner_strides.iter().all(|&stride| stride == 0);
        if is_of_row {
            common = row_strides[..last].iter().fold(common, |common, stride| common | stride);
            continue;
        }
        let most = ROW_BYTES[usize::from(points > SERIAL_POINTS)];
        largest = largest.max(if place == OutputPlace::Row { bytes.min(most) } else { bytes });
        let others = row_strides[..last].iter().chain(inner_strides);
        common = others.fold(common, |common, stride| common | stride);
    }
    let mut vector = (VECTOR_BYTES / largest).clamp(1, 8);
    while vector > 1
        && !(common.is_multiple_of(vector)
            && alignment_bytes.is_multiple_of((vector * widest).min(VECTOR_BYTES)))
    {
        vector /= 2;
    }
    Some((vector, repeated))
}
