//! [`Select`]: the first points of a row in the order of a sort, without sorting the row.
//!
//! A point's key followed by its place is an integer that no other point has, so the order of the result is unique. A block reads
//! its row and counts the digits of eleven bits, the highest first, until few points remain up to the last requested one. It
//! gathers these and sorts them. Most rows are read twice.

use std::sync::{Arc, LazyLock};

use bytemuck::Pod;
use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::DType;
use thalweg_ir::cuda::{LaunchShape, with_prelude};
use thalweg_ir::host::Fault;

use super::keys::Keys;
use super::source::{KEYS, element_code};
use super::{SHORT, Sort};
use crate::arguments::{self, arguments};
use crate::native::{Accesses, NativeKernel, Placed, Words};

/// The sizes of a selection: elements are (outer, length, inner), results are (outer, count, inner), without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Select {
    /// The order, and the rows, of floats of up to 32 bits.
    pub sort: Sort,
    /// The number of requested points of each row: up to [`MOST`], and no more than the row has.
    pub count: u64,
}

arguments! { Select { sort, count } }

/// The most points of a row that can be requested.
pub const MOST: u64 = 1024;

/// The number of points above which rows are sorted by many blocks, unless there are at least [`MANY`] rows.
const LONG: u64 = 1 << 18;

/// The least number of rows for which rows longer than [`LONG`] are selected by one block each.
const MANY: u64 = 16;

/// Threads of a block.
const BLOCK: u32 = 1024;

/// The dtypes for which there is a kernel.
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

impl Select {
    /// Returns whether there is a kernel for the description, and something for it to compute.
    pub fn is_possible(&self) -> bool {
        let Sort { length, dtype, .. } = self.sort;
        DTYPES.contains(&dtype)
            && (1..=MOST.min(length)).contains(&self.count)
            && length <= u64::from(u32::MAX)
            && self.sort.rows() > 0
    }

    /// Returns whether a selection is possible and faster than a complete sort.
    pub fn is_better(&self) -> bool {
        let length = self.sort.length;
        self.is_possible() && length > SHORT && (length <= LONG || self.sort.rows() >= MANY)
    }

    /// Returns the name of the entry point, always the same string, because kernels are found by it.
    fn name(&self) -> &'static str {
        static NAMES: LazyLock<[String; DTYPES.len()]> =
            LazyLock::new(|| DTYPES.map(|dtype| format!("select_{}", dtype.name())));
        DTYPES.into_iter().position(|dtype| dtype == self.sort.dtype).map_or("select", |dtype| &NAMES[dtype])
    }

    fn print(&self) -> String {
        let code = TEMPLATE.replace("FUNCTIONS", KEYS);
        with_prelude(&element_code(&code, self.name(), &Keys::new(self.sort.dtype, false)))
    }

    fn results(&self) -> u64 {
        self.sort.rows() * self.count
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().map(|dtype| {
        let sort = Sort { outer: 1, length: 1, inner: 1, descending: false, dtype };
        let select = Select { sort, count: 1 };
        (select.name().to_owned(), select.print())
    })
}

/// Operands: the source; the values that come first, in order; and their places in the source's row (int64).
impl NativeKernel for Placed<Select, [DevicePointer; 3]> {
    fn name(&self) -> &str {
        self.kernel.name()
    }

    fn source(&self) -> String {
        self.kernel.print()
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        let Select { sort, count } = self.kernel;
        let is_inside = count <= MOST.min(sort.length) && sort.length <= u64::from(u32::MAX);
        match DTYPES.contains(&sort.dtype) && is_inside {
            true => Ok(()),
            false => Err(Fault::new(format!(
                "a selection takes up to {MOST} of fewer than 2^32 floats of up to 32 bits, not {count} of {} {}",
                sort.length, sort.dtype
            ))),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let blocks = self.kernel.sort.rows().min((1 << 31) - 1) as u32;
        (self.kernel.results() > 0).then_some(LaunchShape { grid: [blocks, 1, 1], block: [BLOCK, 1, 1] })
    }

    fn words(&self) -> Words {
        arguments::pack(&self.at, &self.kernel)
    }

    fn accesses(&self) -> Accesses {
        let Select { sort, .. } = self.kernel;
        let (size, results) = (sort.dtype.size_bytes() as u64, self.kernel.results());
        let [source, values, places] = self.at;
        Accesses::from_iter([
            Access::read(source, sort.elements() * size),
            Access::write(values, results * size),
            Access::write(places, results * size_of::<i64>() as u64),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (select, at, []): (Select, _, _) = arguments::unpack("select", launch)?;
    match select.sort.dtype.size_bytes() {
        2 => run_bits::<u16>(launch, &select, at),
        4 => run_bits::<u32>(launch, &select, at),
        _ => Err(HostFault(format!("select: {} is not a dtype of it", select.sort.dtype))),
    }
}

/// Selects elements by their bits.
fn run_bits<T: Pod + Into<u64>>(
    launch: &HostLaunch<'_>,
    select: &Select,
    at: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let Select { sort, count } = *select;
    let [source, values, places] = at;
    let keys = Keys::new(sort.dtype, sort.descending);
    let source = launch.read::<T>(source, sort.elements() as usize)?;
    let values = launch.write::<T>(values, select.results() as usize)?;
    let places = launch.write::<i64>(places, select.results() as usize)?;
    let [length, inner, count] = [sort.length, sort.inner, count].map(|extent| extent as usize);
    for row in 0..sort.rows() as usize {
        let (from_first, to_first) = (sort.first(row, sort.length), sort.first(row, select.count));
        let key = |at: usize| keys.of(source[from_first + at * inner].into());
        let mut order: Vec<(u64, usize)> = (0..length).map(|at| (key(at), at)).collect();
        // Keys with their places are all different, so equal keys stay in the order of the row.
        if count < length {
            order.select_nth_unstable(count);
        }
        order.truncate(count);
        order.sort_unstable();
        for (to, (_, from)) in order.into_iter().enumerate() {
            values[to_first + to * inner] = source[from_first + from * inner];
            places[to_first + to * inner] = from as i64;
        }
    }
    Ok(())
}

const TEMPLATE: &str = "\
struct NAME_arguments {
    const ELEMENT* source;
    ELEMENT* values;
    i64* places;
    u64 outer;
    u64 length;
    u64 inner;
    u64 flags;
    u64 dtype;
    u64 count;
};

FUNCTIONS/// The shared memory of a block that selects from a row.
struct NAME_block {
    u32 counts[2048];
    u32 sums[32];
    u64 gathered[2048];
    // The digit that the last wanted point has, how many points have a smaller one, and how many have it.
    u32 digit;
    u32 below;
    u32 same;
    u32 filled;
};

/// Calls a function with the key and place of each point of the row, for a thread its own, eight of them read at once.
template <class F>
static __device__ __forceinline__ void NAME_each(const NAME_arguments& x, u64 begin, F call) {
    const u32 length = u32(x.length);
    for (u64 first = threadIdx.x; first < length; first += 1024 * 8) {
        ELEMENT bits[8] = {};
#pragma unroll
        for (u32 item = 0; item < 8; ++item) {
            const u64 at = first + item * 1024;
            if (at < length) {
                bits[item] = x.source[begin + at * x.inner];
            }
        }
#pragma unroll
        for (u32 item = 0; item < 8; ++item) {
            const u64 at = first + item * 1024;
            if (at < length) {
                call(u64(NAME_key(bits[item], x.flags)) << 32 | at);
            }
        }
    }
}

/// Finds the digit at which the sum of the counts reaches what is wanted. Synchronises the block.
static __device__ __forceinline__ void NAME_find(NAME_block& block, u32 wanted) {
    const u32 lane = threadIdx.x & 31u, warp = threadIdx.x / 32;
    const u32 low = block.counts[threadIdx.x * 2], high = block.counts[threadIdx.x * 2 + 1];
    u32 sum = low + high;
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31) {
        block.sums[warp] = sum;
    }
    __syncthreads();
    u32 before = sum - low - high;
    for (u32 other = 0; other < warp; ++other) {
        before += block.sums[other];
    }
    if (before < wanted && wanted <= before + low + high) {
        const bool is_high = wanted > before + low;
        block.digit = threadIdx.x * 2 + (is_high ? 1 : 0);
        block.below = is_high ? before + low : before;
        block.same = is_high ? high : low;
    }
    __syncthreads();
}

/// Sorts what is gathered, behind which is room up to a power of two. Synchronises the block.
static __device__ __forceinline__ void NAME_order(NAME_block& block) {
    const u32 filled = block.filled;
    u32 size = 2;
    while (size < filled) {
        size *= 2;
    }
    for (u32 at = threadIdx.x; at < size; at += 1024) {
        if (at >= filled) {
            block.gathered[at] = ~0ull;
        }
    }
    __syncthreads();
    for (u32 length = 2; length <= size; length *= 2) {
        for (u32 distance = length / 2; distance > 0; distance /= 2) {
            // A thread has one pair: there are no more than 1024.
            if (threadIdx.x < size / 2) {
                const u32 left = threadIdx.x / distance * distance * 2 + threadIdx.x % distance;
                const u64 a = block.gathered[left], b = block.gathered[left + distance];
                const bool is_rising = (left & length) == 0;
                if ((a > b) == is_rising) {
                    block.gathered[left] = b;
                    block.gathered[left + distance] = a;
                }
            }
            __syncthreads();
        }
    }
}

extern \"C\" __global__ void __launch_bounds__(1024) NAME(const __grid_constant__ NAME_arguments x) {
    __shared__ NAME_block block;
    for (u64 row = blockIdx.x; row < x.outer * x.inner; row += gridDim.x) {
        const u64 begin = NAME_first(x, row);
        // The bits of the last wanted point from `shift` on, how many such points are wanted, and how many points are up to it.
        u64 prefix = 0;
        u32 shift = 32 + BITS, wanted = u32(x.count), candidates = 0;
        do {
            const u32 above = shift;
            shift = shift > 11 ? shift - 11 : 0;
            const u32 digits = (1u << (above - shift)) - 1u;
            block.counts[threadIdx.x] = 0;
            block.counts[threadIdx.x + 1024] = 0;
            __syncthreads();
            NAME_each(x, begin, [&](u64 point) {
                if (above == 32 + BITS || point >> above == prefix) {
                    atomicAdd(&block.counts[u32(point >> shift) & digits], 1u);
                }
            });
            __syncthreads();
            NAME_find(block, wanted);
            prefix = prefix << (above - shift) | block.digit;
            wanted -= block.below;
            candidates = u32(x.count) - wanted + block.same;
        } while (candidates > 2048 && shift > 0);
        if (threadIdx.x == 0) {
            block.filled = 0;
        }
        __syncthreads();
        NAME_each(x, begin, [&](u64 point) {
            if (point >> shift <= prefix) {
                block.gathered[atomicAdd(&block.filled, 1u)] = point;
            }
        });
        __syncthreads();
        NAME_order(block);
        const u64 to = row / x.inner * x.count * x.inner + row % x.inner;
        for (u64 at = threadIdx.x; at < x.count; at += 1024) {
            const u64 place = block.gathered[at] & 0xffffffffull;
            x.values[to + at * x.inner] = x.source[begin + place * x.inner];
            x.places[to + at * x.inner] = i64(place);
        }
        __syncthreads();
    }
}
";
