//! Rows that fit into the registers of their threads.

use thalweg_ir::held::{BYTES_OF_A_THREAD, Held, MOST_THREADS_WITH_VALUES};
use thalweg_ir::online::Online;
use thalweg_ir::{Body, Class, Geometry, OperandGeometry, OutputPlace};

use super::{POINTS_OF_A_LANE, SERIAL_POINTS, VECTOR_BYTES, WARP_POINTS};

/// Points of a thread, at most, so that a lane's chain of additions stays short.
const POINTS_OF_A_THREAD: u64 = 64;

/// Points of a thread that keeps values, at most: with more, a warp has no room for its neighbours' loads.
const POINTS_WITH_VALUES: u64 = 32;

/// Threads of a row, at least, if it has a vector for each: a whole warp reads without gaps.
const WARP: u64 = 32;

/// Threads of a block that keeps elements alone, at least: two such share a multiprocessor.
const BLOCK_OF_ELEMENTS: u64 = 512;

/// The most threads of a block.
const BLOCK: u64 = 1024;

/// Points of a thread that reads a row online, at least, and the most threads of such a row: with more, fewer rows would be under way
/// while some wait for their last elements.
const POINTS_ONLINE: u64 = 32;
const THREADS_ONLINE: u64 = 256;

/// Returns the class in which rows of this geometry are read online, if the body allows it and the points are one dimension as for rows
/// that are held. Shorter rows are held, since then a warp has several of them under way.
pub(super) fn online(body: &Body, geometry: &Geometry, class: Class, alignment_bytes: u64) -> Option<Class> {
    let points = geometry.points();
    if class.inner_rank != 1 || points <= WARP_POINTS {
        return None;
    }
    let class = Class { repeated: repeated(body, geometry)?, ..class };
    Online::of(body, &class)?;
    let vector = vector(body, geometry, &class, alignment_bytes);
    let threads = points.div_ceil(POINTS_ONLINE).next_power_of_two().min(THREADS_ONLINE);
    let lanes = (threads * u64::from(vector)) as u16;
    Some(Class { lanes, vector, online: true, ..class })
}

/// Returns the class in which threads hold rows of this geometry, if they can: the points are one dimension that every operand
/// walks one by one, or stays on, and there are registers for them. A block of the most threads there are holds what it has registers
/// for, and loads the rest again.
pub(super) fn held(body: &Body, geometry: &Geometry, class: Class, alignment_bytes: u64) -> Option<Class> {
    let points = geometry.points();
    if body.reductions.is_empty() || class.inner_rank != 1 || points <= SERIAL_POINTS {
        return None;
    }
    let class = Class { repeated: repeated(body, geometry)?, ..class };
    let class = Class { vector: vector(body, geometry, &class, alignment_bytes), ..class };
    let vector = u64::from(class.vector);
    [true, false].into_iter().find_map(|values| {
        let bytes = Held::of(body, &class, values)?.bytes_of_a_point(body, class.vector);
        let most = if values { POINTS_WITH_VALUES } else { POINTS_OF_A_THREAD };
        let room = most.min((BYTES_OF_A_THREAD / bytes) as u64) / vector * vector;
        let fitting = points.div_ceil(room.max(1)).next_power_of_two();
        let reading = points.div_ceil(vector).next_power_of_two().clamp(2, WARP);
        let threads = if values { fitting.max(reading) } else { fitting.clamp(BLOCK_OF_ELEMENTS, BLOCK) };
        let held = points.div_ceil(threads * vector);
        let is_short = vector > 1 && held <= POINTS_OF_A_LANE;
        let fits = if values {
            room > 0 && threads <= u64::from(MOST_THREADS_WITH_VALUES)
        } else {
            room > 0 && fitting <= BLOCK || is_short
        };
        fits.then(|| Class { lanes: (threads * vector) as u16, held: held as u8, ..class })
    })
}

/// Returns the inputs that stay on one element for a whole row, as bits. `None` if an operand is neither such an input nor
/// walks point by point, or if all inputs stay.
fn repeated(body: &Body, geometry: &Geometry) -> Option<u32> {
    let (mut repeated, mut walks) = (0, false);
    for (number, operand) in geometry.operands.iter().enumerate() {
        let OperandGeometry::Strided { inner_strides, .. } = operand else { continue };
        match inner_strides.first() {
            Some(1) => walks |= number < body.inputs.len(),
            Some(0) if number < body.inputs.len().min(32) => repeated |= 1 << number,
            Some(_) => return None,
            // An output of rows.
            None => {}
        }
    }
    walks.then_some(repeated)
}

/// Returns the widest vector that every row of every operand begins with and consists of.
fn vector(body: &Body, geometry: &Geometry, class: &Class, alignment_bytes: u64) -> u8 {
    let inputs = body.inputs.iter().map(|input| (input.dtype, OutputPlace::Point));
    let outputs = body.outputs.iter().map(|output| (output.dtype, output.place));
    let (mut largest, mut common) = (1, geometry.points());
    for (number, ((dtype, place), operand)) in inputs.chain(outputs).zip(&geometry.operands).enumerate() {
        let OperandGeometry::Strided { row_strides, .. } = operand else { continue };
        if place == OutputPlace::Row || class.repeats(number) && number < body.inputs.len() {
            continue;
        }
        largest = largest.max(dtype.size_bytes() as u64);
        let strides = geometry.row_shape.iter().zip(row_strides).filter(|(extent, _)| **extent > 1);
        common = strides.fold(common, |common, (_, stride)| common | stride);
    }
    let mut vector = (VECTOR_BYTES / largest).clamp(1, 8);
    while vector > 1 && !(common.is_multiple_of(vector) && alignment_bytes.is_multiple_of(vector * largest)) {
        vector /= 2;
    }
    vector as u8
}
