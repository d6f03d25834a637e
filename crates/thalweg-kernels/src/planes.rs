//! Launches in which each thread computes one point of several planes, with the same position and the same weights in each
//! (`shared/planes.cuh`).

use thalweg_ir::cuda::LaunchShape;

/// Threads of a block over planes of at least [`LARGE`] points; half as many over smaller ones, of which they leave fewer idle.
const BLOCK: u64 = 256;
/// The number of points of a large plane.
const LARGE: u64 = 1 << 11;
/// The number of blocks from which on a thread has several planes.
const BLOCKS: u64 = 1 << 11;
/// The number of planes that a thread reads at once, if it has more than one.
const AT_ONCE: u64 = 4;
/// The most blocks along the second axis of a grid.
const MOST_SHARES: u64 = 65_535;

/// The number of planes up to which they have numbers that the kernels can add steps to.
pub(crate) const MOST_PLANES: u64 = 1 << 30;

/// Returns the launch over planes of this many points each; `None` if there is no point.
pub(crate) fn over_planes(points: u64, planes: u64) -> Option<LaunchShape> {
    over_planes_of(points, planes, 1)
}

/// Returns the launch over several sets of planes, of which blocks along the third axis of the grid have one each.
pub(crate) fn over_planes_of(points: u64, planes: u64, sets: u64) -> Option<LaunchShape> {
    if points * planes * sets == 0 {
        return None;
    }
    let block = if points < LARGE { BLOCK / 2 } else { BLOCK };
    let blocks = points.div_ceil(block);
    // Planes that are smaller than a block are in it side by side.
    let rounds = planes.div_ceil((block / points).max(1));
    let shares = BLOCKS.div_ceil(blocks * sets).min(rounds);
    let each = match rounds.div_ceil(shares) {
        1 => 1,
        each => each.next_multiple_of(AT_ONCE),
    };
    let shares = rounds.div_ceil(each).min(MOST_SHARES);
    Some(LaunchShape { grid: [blocks as u32, shares as u32, sets as u32], block: [block as u32, 1, 1] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plane_has_a_thread_for_each_point() {
        for (points, planes) in
            [(1, 1), (1, 1 << 20), (49, 128), (127, 3), (2047, 9), (1 << 20, 3), (1 << 30, 7), (300, 1 << 22)]
        {
            let shape = over_planes(points, planes).expect("there are points");
            let [blocks, shares, _] = shape.grid.map(u64::from);
            let block = u64::from(shape.block[0]);
            assert!(blocks * block >= points && (points < block || (blocks - 1) * block < points));
            let step = shares * (block / points).max(1);
            assert!(
                step <= planes.next_multiple_of((block / points).max(1)),
                "no share of {points} x {planes} is empty"
            );
        }
        assert!(over_planes(0, 5).is_none() && over_planes(5, 0).is_none());
    }
}
