//! [`GroupIndices`]: a list of indices, grouped by the row that they name, so that the threads of a row find the indices that
//! name it.
//!
//! Three launches, or two if one block is enough, write for each row the number of indices that name it, and the position in a
//! list at which the numbers of these indices are stored, **in their order**. Counting threads use atomic additions, whose order
//! is not known. That order decides only where in the list a group is and which index of a row is its first; the last launch
//! sorts each group, so that no result depends on it.
//!
//! An index that does not name a row is not in any group.

use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::cuda::{LaunchShape, with_prelude};
use thalweg_ir::host::Fault;

use crate::arguments::{self, arguments, choices};
use crate::native::{Accesses, NativeKernel, Placed, Words};

/// A part of the work. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u64)]
pub enum Phase {
    /// Counts the indices of each row, and numbers them within the row.
    Count = 1,
    /// Allocates a part of the list for each row that several indices name.
    Allocate = 2,
    /// Writes the numbers of the indices to the parts.
    Place = 4,
    /// The three phases before, in one block.
    All = 7,
    /// Sorts each part.
    Sort = 8,
    /// Stores the last index of each row, plus one, instead of a count. It is used without the other phases.
    Last = 16,
}

/// The phases.
const PHASES: [Phase; 6] =
    [Phase::Count, Phase::Allocate, Phase::Place, Phase::All, Phase::Sort, Phase::Last];

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupIndices {
    /// The number of indices.
    pub count: u64,
    /// The number of rows.
    pub rows: u64,
    /// The stride of the indices, in elements.
    pub stride: u64,
    /// The part of the work.
    pub phase: Phase,
}

arguments! { GroupIndices { count, rows, stride, phase } }
choices! { Phase: PHASES }

/// The number of threads of a block that counts or places.
const BLOCK: u64 = 1024;
/// The number of threads of a block that sorts.
const SORT_BLOCK: u64 = 256;
/// The most indices that one block counts and places: this takes less time than two more launches.
const ONE_BLOCK: u64 = 2 * BLOCK;

impl GroupIndices {
    /// The most indices, and the most rows: they are numbered in 32 bits.
    pub const MOST: u64 = (1 << 31) - 1;

    /// Returns the phases that group `count` indices, in order.
    pub fn phases(count: u64) -> &'static [Phase] {
        match count <= ONE_BLOCK {
            true => &[Phase::All, Phase::Sort],
            false => &[Phase::Count, Phase::Allocate, Phase::Place, Phase::Sort],
        }
    }

    /// Returns the number of 32-bit words of the counters: one for each row, and one more. They must be 0 before.
    pub fn counters(rows: u64) -> u64 {
        rows + 1
    }

    /// Returns the number of 32-bit words of the groups: the beginning of each row's group, the number of each index within its
    /// row, and the list.
    pub fn words_of_groups(count: u64, rows: u64) -> u64 {
        rows + 2 * count
    }

    /// Returns the number of elements that the indices span in memory.
    fn span(&self) -> u64 {
        if self.count == 0 { 0 } else { 1 + (self.count - 1) * self.stride }
    }

    /// Returns the indices that name a row: their numbers, and the row.
    fn named<'a>(&'a self, index: &'a [i64]) -> impl Iterator<Item = (usize, usize)> + 'a {
        (0..self.count as usize).filter_map(|k| {
            let row = u64::try_from(index[k * self.stride as usize]).ok()?;
            (row < self.rows).then_some((k, row as usize))
        })
    }

    /// Runs a phase of the grouping on the host.
    fn run(&self, index: &[i64], counters: &mut [i32], groups: &mut [i32]) {
        let (count, rows) = (self.count as usize, self.rows as usize);
        let named = || self.named(index);
        let (offsets, rest) = groups.split_at_mut(rows);
        let (ranks, list) = rest.split_at_mut(count);
        let does = |phase: Phase| self.phase as u64 & phase as u64 != 0;
        if does(Phase::Count) {
            named().for_each(|(k, row)| {
                ranks[k] = counters[row];
                counters[row] += 1;
            });
        }
        if does(Phase::Allocate) {
            for (k, row) in self.named(index) {
                if ranks[k] == 0 && counters[row] > 1 {
                    offsets[row] = counters[rows];
                    counters[rows] += counters[row];
                }
            }
        }
        if does(Phase::Place) {
            named()
                .filter(|&(_, row)| counters[row] > 1)
                .for_each(|(k, row)| list[(offsets[row] + ranks[k]) as usize] = k as i32);
        }
        if does(Phase::Sort) {
            named().filter(|&(k, row)| ranks[k] == 0 && counters[row] > 1).for_each(|(_, row)| {
                list[offsets[row] as usize..][..counters[row] as usize].sort_unstable();
            });
        }
    }
}

/// The name of the entry point that counts and places.
const NAME: &str = "group_indices";
/// The name of the entry point that sorts.
const SORT_NAME: &str = "sort_groups";

/// Returns names and sources of the kernels.
pub(crate) fn sources() -> [(String, String); 2] {
    [
        (NAME.to_owned(), with_prelude(&TEMPLATE.replace("ARGUMENTS", ARGUMENTS))),
        (SORT_NAME.to_owned(), with_prelude(&SORT_TEMPLATE.replace("ARGUMENTS", ARGUMENTS))),
    ]
}

/// Operands: the indices (i64), the counters, and the groups.
impl NativeKernel for Placed<GroupIndices, [DevicePointer; 3]> {
    fn name(&self) -> &str {
        if self.kernel.phase == Phase::Sort { SORT_NAME } else { NAME }
    }

    fn source(&self) -> String {
        let [group, sort] = sources();
        if self.kernel.phase == Phase::Sort { sort.1 } else { group.1 }
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        let GroupIndices { count, rows, .. } = self.kernel;
        match count.max(rows) <= GroupIndices::MOST {
            true => Ok(()),
            false => Err(Fault::new(format!("group_indices: {count} indices of {rows} rows are too many"))),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let GroupIndices { count, phase, .. } = self.kernel;
        let (block, blocks) = match phase {
            Phase::All => (BLOCK, 1),
            Phase::Sort => (SORT_BLOCK, count.div_ceil(SORT_BLOCK)),
            _ => (BLOCK, count.div_ceil(BLOCK)),
        };
        (count > 0).then_some(LaunchShape { grid: [blocks as u32, 1, 1], block: [block as u32, 1, 1] })
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let GroupIndices { count, rows, .. } = self.kernel;
        let [index, counters, groups] = self.at;
        let word = size_of::<i32>() as u64;
        let group_bytes = match self.kernel.phase {
            Phase::Last => 0,
            _ => GroupIndices::words_of_groups(count, rows) * word,
        };
        let groups = match self.kernel.phase {
            Phase::Count | Phase::All => Access::write(groups, group_bytes),
            _ => Access::read_write(groups, group_bytes),
        };
        Accesses::from_iter([
            Access::read(index, self.kernel.span() * size_of::<i64>() as u64),
            Access::read_write(counters, GroupIndices::counters(rows) * word),
            groups,
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (group, addresses, []): (GroupIndices, _, _) = arguments::unpack("group_indices", launch)?;
    let [index, counters, groups]: [DevicePointer; 3] = addresses;
    let index = launch.read::<i64>(index, group.span() as usize)?;
    let counters = launch.write::<i32>(counters, GroupIndices::counters(group.rows) as usize)?;
    if group.phase == Phase::Last {
        group.named(index).for_each(|(k, row)| counters[row] = k as i32 + 1);
        return Ok(());
    }
    let words = GroupIndices::words_of_groups(group.count, group.rows) as usize;
    group.run(index, counters, launch.write::<i32>(groups, words)?);
    Ok(())
}

const ARGUMENTS: &str = "\
struct group_arguments {
    const i64* index;
    u32* counters;
    u32* groups;
    u64 count;
    u64 rows;
    u64 stride;
    u64 phase;
};
";

const TEMPLATE: &str = "\
ARGUMENTS
extern \"C\" __global__ void __launch_bounds__(1024) group_indices(const __grid_constant__ group_arguments x) {
    u32* const offsets = x.groups;
    u32* const ranks = offsets + x.rows;
    u32* const list = ranks + x.count;
    const u32 count = u32(x.count), step = gridDim.x * 1024, first = blockIdx.x * 1024 + threadIdx.x;
    if (x.phase == 16) {
        for (u32 k = first; k < count; k += step) {
            const i64 row = x.index[k * x.stride];
            if (u64(row) < x.rows) {
                atomicMax(&x.counters[row], k + 1);
            }
        }
        return;
    }
    if (x.phase & 1) {
        #pragma unroll 4
        for (u32 k = first; k < count; k += step) {
            const i64 row = x.index[k * x.stride];
            if (u64(row) < x.rows) {
                ranks[k] = atomicAdd(&x.counters[row], 1u);
            }
        }
        __syncthreads();
    }
    if (x.phase & 2) {
        // Whole warps go on: their lanes share one addition.
        for (u32 k = first; k - threadIdx.x % 32 < count; k += step) {
            const i64 row = k < count ? x.index[k * x.stride] : -1;
            u32 size = 0;
            if (u64(row) < x.rows && ranks[k] == 0) {
                size = __ldcg(&x.counters[row]);
                size = size > 1 ? size : 0;
            }
            u32 end = size;
            #pragma unroll
            for (u32 distance = 1; distance < 32; distance *= 2) {
                const u32 other = __shfl_up_sync(0xffffffffu, end, distance);
                end += threadIdx.x % 32 >= distance ? other : 0;
            }
            u32 start = 0;
            if (threadIdx.x % 32 == 31 && end > 0) {
                start = atomicAdd(&x.counters[x.rows], end);
            }
            start = __shfl_sync(0xffffffffu, start, 31);
            if (size > 0) {
                offsets[row] = start + end - size;
            }
        }
        __syncthreads();
    }
    if (x.phase & 4) {
        #pragma unroll 4
        for (u32 k = first; k < count; k += step) {
            const i64 row = x.index[k * x.stride];
            if (u64(row) < x.rows && __ldcg(&x.counters[row]) > 1) {
                list[__ldcg(&offsets[row]) + ranks[k]] = k;
            }
        }
    }
}
";

const SORT_TEMPLATE: &str = "\
ARGUMENTS
extern \"C\" __global__ void __launch_bounds__(256) sort_groups(const __grid_constant__ group_arguments x) {
    __shared__ u32 sorted[2048];
    __shared__ u32 owners[256];
    __shared__ u32 sums[8];
    __shared__ u32 owner_count, is_long;
    const u32* const offsets = x.groups;
    const u32* const ranks = offsets + x.rows;
    u32* const list = x.groups + x.rows + x.count;
    const u32 count = u32(x.count), thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const u32 k = blockIdx.x * 256 + thread;
    if (thread == 0) {
        owner_count = 0;
        is_long = 0;
    }
    __syncthreads();
    if (k < count) {
        const i64 row = x.index[k * x.stride];
        if (u64(row) < x.rows && ranks[k] == 0 && x.counters[row] > 1) {
            owners[atomicAdd(&owner_count, 1u)] = u32(row);
            if (x.counters[row] > 32) {
                is_long = 1;
            }
        }
    }
    __syncthreads();
    // Up to 32: a warp finds how many come before each.
    for (u32 i = warp; i < owner_count; i += 8) {
        const u32 row = owners[i], size = x.counters[row];
        if (size <= 32) {
            u32* const part = list + offsets[row];
            const u32 value = lane < size ? part[lane] : 0xffffffffu;
            u32 rank = 0;
            for (u32 j = 0; j < size; ++j) {
                rank += __shfl_sync(0xffffffffu, value, j) < value;
            }
            if (lane < size) {
                part[rank] = value;
            }
        }
    }
    if (is_long == 0) {
        return;
    }
    for (u32 i = 0; i < owner_count; ++i) {
        const u32 row = owners[i], size = x.counters[row];
        u32* const part = list + offsets[row];
        if (size <= 32) {
            continue;
        }
        if (size <= 2048) {
            // A bitonic sort in shared memory.
            u32 whole = 64;
            while (whole < size) {
                whole *= 2;
            }
            for (u32 j = thread; j < whole; j += 256) {
                sorted[j] = j < size ? part[j] : 0xffffffffu;
            }
            __syncthreads();
            for (u32 run = 2; run <= whole; run *= 2) {
                for (u32 distance = run / 2; distance > 0; distance /= 2) {
                    for (u32 j = thread; j < whole / 2; j += 256) {
                        const u32 low = j / distance * 2 * distance + j % distance, high = low + distance;
                        const u32 a = sorted[low], b = sorted[high];
                        if ((a > b) == ((low & run) == 0)) {
                            sorted[low] = b;
                            sorted[high] = a;
                        }
                    }
                    __syncthreads();
                }
            }
            for (u32 j = thread; j < size; j += 256) {
                part[j] = sorted[j];
            }
            __syncthreads();
            continue;
        }
        // More: all indices again, of which those of the row are kept.
        u32 end = 0;
        for (u32 start = 0; start < count && end < size; start += 1024) {
            u32 found = 0;
            #pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                const u32 at = start + thread * 4 + j;
                found |= u32(at < count && x.index[at * x.stride] == i64(row)) << j;
            }
            const u32 own = __popc(found);
            u32 before = own;
            #pragma unroll
            for (u32 distance = 1; distance < 32; distance *= 2) {
                const u32 other = __shfl_up_sync(0xffffffffu, before, distance);
                before += lane >= distance ? other : 0;
            }
            if (lane == 31) {
                sums[warp] = before;
            }
            __syncthreads();
            u32 at = end + before - own;
            #pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                at += j < warp ? sums[j] : 0;
                end += sums[j];
            }
            #pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                if (found >> j & 1) {
                    part[at++] = start + thread * 4 + j;
                }
            }
            __syncthreads();
        }
    }
}
";
