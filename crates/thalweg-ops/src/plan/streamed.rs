//! Rows that stream through the shared memory of a cluster of blocks, if one multiprocessor has too few registers for them.

use thalweg_ir::held::Held;
use thalweg_ir::{Body, Class, Geometry, InputKind, OperandGeometry, Streamed};

use super::{Iteration, VECTOR_BYTES};

/// The fewest bytes of the rows of all inputs: one block computes shorter rows at the speed of a copy.
const LEAST_BYTES: u64 = 128 << 10;

/// Shared memory of a block that is reserved for barriers and for values that blocks send each other.
const OWN_BYTES: u64 = 8 << 10;

/// Threads of a group, and groups of a block, the best first. With two groups, one computes while the blocks of the other
/// exchange results; a single group has memory for longer rows.
const GROUPS: [(u64, u8); 2] = [(256, 2), (512, 1)];

/// The most and the fewest rows for which a group has memory.
const STAGES: (u64, u64) = (3, 2);

/// Returns the class in which rows of this geometry stream: if they are long and read more than once, if every piece of them can
/// be copied, and if a cluster has memory for them. The cluster has as few blocks as possible, since not every part of a GPU has
/// enough neighbouring multiprocessors for a large one.
pub(super) fn of(
    body: &Body,
    geometry: &Geometry,
    class: &Class,
    iteration: &Iteration,
    held: &Held,
) -> Option<Class> {
    let points = geometry.points();
    let walking = walking(body, geometry, class)?;
    let bytes_of = |column: bool| -> u64 {
        let sizes = walking.iter().filter(|(_, is_column)| *is_column == column);
        sizes.map(|&(input, _)| body.inputs[input].dtype.size_bytes() as u64).sum()
    };
    let (of_rows, of_columns) = (bytes_of(false), bytes_of(true));
    let is_long = of_rows * points >= LEAST_BYTES && geometry.rows() > 1;
    let is_read_again = |&(input, column): &(usize, bool)| {
        !column && held.pass_range(input).is_some_and(|(first, last)| first < last)
    };
    let is_worth_it = is_long && walking.iter().any(is_read_again);
    if !iteration.has_clusters
        || !is_worth_it
        || !can_be_sent(body, held)
        || !can_be_copied(body, geometry, iteration, &walking)
    {
        return None;
    }
    let columns = walking.iter().filter(|(_, column)| *column).map(|&(input, _)| 1 << input).sum();
    let room = u64::from(iteration.shared_memory_bytes).saturating_sub(OWN_BYTES);
    let vector = u64::from(class.vector);
    GROUPS.iter().find_map(|&(threads, groups)| {
        [2, 4, 8].into_iter().find_map(|cluster: u64| {
            let held = points.div_ceil(cluster * threads * vector);
            let elements = held * threads * vector;
            let left = room.checked_sub(elements * of_columns)?;
            let stages = (left / (elements * of_rows * u64::from(groups))).min(STAGES.0);
            let streamed = Streamed { cluster: cluster as u8, groups, stages: stages as u8, columns };
            (stages >= STAGES.1 && held <= u8::MAX.into()).then_some(Class {
                lanes: (cluster * threads * vector) as u16,
                held: held as u8,
                streamed: Some(streamed),
                ..*class
            })
        })
    })
}

/// Returns the inputs that are read point by point, and whether each is the same for all rows. Returns `None` if rows have
/// several dimensions, or if no input differs from row to row.
fn walking(body: &Body, geometry: &Geometry, class: &Class) -> Option<Vec<(usize, bool)>> {
    if geometry.row_shape.len() != 1 {
        return None;
    }
    let mut walking = Vec::new();
    for (input, operand) in geometry.operands[..body.inputs.len()].iter().enumerate() {
        let OperandGeometry::Strided { row_strides, .. } = operand else { return None };
        if body.inputs[input].kind == InputKind::Strided && body.uses_input(input) && !class.repeats(input) {
            walking.push((input, row_strides.first() == Some(&0)));
        }
    }
    let few = walking.iter().all(|&(input, _)| input < 32);
    (few && walking.iter().any(|(_, column)| !column)).then_some(walking)
}

/// Returns whether something is combined, every combined value has at most 8 bytes, and no reduction depends on the place of a
/// point.
fn can_be_sent(body: &Body, held: &Held) -> bool {
    let is_small = body.reductions.iter().all(|reduction| body.dtype(reduction.value).size_bytes() <= 8);
    held.combines() && is_small && held.picks.iter().all(Option::is_none)
}

/// Returns whether every piece of every row begins and ends at a multiple of 16 bytes, as the copy engine requires.
fn can_be_copied(body: &Body, geometry: &Geometry, iteration: &Iteration, walking: &[(usize, bool)]) -> bool {
    iteration.alignment_bytes.is_multiple_of(VECTOR_BYTES)
        && walking.iter().all(|&(input, _)| {
            let size = body.inputs[input].dtype.size_bytes() as u64;
            let OperandGeometry::Strided { row_strides, .. } = &geometry.operands[input] else {
                return false;
            };
            let strides = row_strides.iter().fold(geometry.points(), |all, stride| all | stride);
            (strides * size).is_multiple_of(VECTOR_BYTES)
        })
}
