//! Loops that copy whole rows at indices, which a native kernel does faster.

use thalweg_kernels::gather::GatherRows;
use thalweg_ops::Placement;
use thalweg_ops::lower::LoopLaunch;
use thalweg_ops::structured::{GATHER, GATHER_REPORTED};
use thalweg_runtime::DevicePointer;

/// Returns the kernel that copies what a loop gathers, if that are rows of whole vectors at a list of indices.
pub(crate) fn whole_rows(
    launch: &LoopLaunch,
    inputs: &[DevicePointer],
    outputs: &[DevicePointer],
) -> Option<GatherRows> {
    use Placement::{Gathered, Strided};
    let [Gathered(elements), Strided { rows: index, .. }, _, Strided { rows: to, .. }] =
        launch.placements.as_slice()
    else {
        return None;
    };
    if ![GATHER.name, GATHER_REPORTED.name].contains(&&*launch.name) {
        return None;
    }
    let &[outer, count, inner] = launch.rows.as_slice() else { return None };
    let extents = [outer, count, inner].map(|extent| extent as u64);
    let [outer, count, inner] = extents;
    let has_strides = |strides: &[u64], wanted: [u64; 3]| {
        (0..3).all(|dimension| extents[dimension] <= 1 || strides[dimension] == wanted[dimension])
    };
    let dtype = launch.body.inputs[0].dtype;
    let (fill, row_bytes) = (GatherRows::fill_of(dtype)?, inner * dtype.size_bytes() as u64);
    let is_whole = elements * outer * count * inner > 0
        && has_strides(index, [0, index[1], 0])
        && has_strides(to, [count * inner, inner, 1])
        && GatherRows::takes(row_bytes, [inputs[0], outputs[0]]);
    let vectors = GatherRows::vectors_of(outer * count * row_bytes);
    is_whole.then(|| GatherRows {
        sizes: [outer, elements / (outer * inner), count, row_bytes],
        index_stride: index[1],
        fill,
        vectors,
    })
}
