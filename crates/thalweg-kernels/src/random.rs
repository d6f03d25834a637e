//! [`Draw`]: random numbers, drawn as PyTorch's CUDA generator draws them, and dropout.
//!
//! Seed and offset are read from device memory. With `threads` subsequences, element *i* takes the word at `offset + i / threads`
//! of subsequence `i % threads`. A grid of `threads` threads that draws four words at a time and steps through the elements
//! (`distribution_nullary_kernel`) assigns the same words, so the numbers are PyTorch's, and each element is a function of its
//! index only. The offset is a multiple of four, so that the four elements *i*, *i* + `threads`, … take one block of words.
//!
//! A thread takes the blocks of neighbouring subsequences, and so has four runs of neighbouring elements, which it stores 16
//! bytes at a time. For few elements, or if an operand is not aligned to 16 bytes, it takes one block.
//!
//! Numbers are drawn in f32 for every result dtype; PyTorch draws f64 with twice as many bits.

use std::f64::consts::TAU;
use std::sync::Arc;

use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::cuda::{LaunchShape, with_prelude};
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, philox};

use crate::arguments::{self, arguments, choices};
use crate::dtypes::FLOATS;
use crate::dtypes::{names, with_float};
use crate::native::{Accesses, NativeKernel, Placed, Words};

/// The numbers that are computed from the words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Distribution {
    /// Numbers in [low, high). Low and high are the two numbers of the launch.
    Uniform,
    /// Numbers of a normal distribution with a mean and a deviation: sine and cosine halves of Box-Muller pairs.
    Normal,
    /// Elements of a tensor times a scale, each kept with a probability and 0 otherwise; and a mask of the kept elements.
    Dropout,
}

impl Distribution {
    /// Every distribution.
    pub const ALL: [Self; 3] = [Self::Uniform, Self::Normal, Self::Dropout];

    fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Normal => "normal",
            Self::Dropout => "dropout",
        }
    }
}

/// A launch over contiguous elements. See the [module](self).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Draw {
    /// The kind of numbers that are drawn.
    pub distribution: Distribution,
    /// The number of elements.
    pub elements: u64,
    /// The number of subsequences whose words the elements take in turn, at most 2³¹.
    pub threads: u64,
    /// Low and high, mean and deviation, or probability and scale.
    pub numbers: [f64; 2],
    /// The dtype of the elements: a floating-point type.
    pub dtype: DType,
}

/// The addresses at which the operands of a [`Draw`] begin. Source and mask are used by dropout only, and are null otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operands {
    /// The seed, an int64.
    pub seed: DevicePointer,
    /// The offset, an int64.
    pub offset: DevicePointer,
    /// The elements that dropout keeps or drops.
    pub source: DevicePointer,
    /// The result.
    pub result: DevicePointer,
    /// The mask of the elements that were kept.
    pub mask: DevicePointer,
}

arguments! { Draw { elements, threads, numbers, dtype, distribution } }
arguments! { Operands { seed, offset, source, result, mask } }
choices! { Distribution: Distribution::ALL }

/// Threads of a block.
const BLOCK: u64 = 256;

/// The most subsequences.
const MOST_THREADS: u64 = 1 << 31;

/// The number of words of a block of Philox.
const WORDS: u64 = 4;

/// The fewest elements for which a thread stores 16 bytes at a time: with fewer, more threads are better than long runs.
const LEAST_WIDE: u64 = 1 << 20;

/// The bytes that a thread stores at a time.
const VECTOR_BYTES: u64 = 16;

/// The distance between the numbers of neighbouring words: a word w is the number (w + ½) · this.
const UNIT: f64 = 1.0 / (1u64 << 32) as f64;

fn name(distribution: Distribution, dtype: DType) -> String {
    format!("draw_{}_{}", distribution.name(), dtype.name())
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let all = Distribution::ALL.into_iter().flat_map(|kind| FLOATS.map(|dtype| (kind, dtype)));
    all.map(|(kind, dtype)| (name(kind, dtype), print(kind, dtype)))
}

fn print(distribution: Distribution, dtype: DType) -> String {
    let [element, sum, load, store] = names(dtype);
    let (points, with_source) = match distribution {
        Distribution::Uniform => (UNIFORM, false),
        Distribution::Normal => (NORMAL, false),
        Distribution::Dropout => (DROPOUT, true),
    };
    let [load_source, store_mask] = if with_source { [LOAD_SOURCE, STORE_MASK] } else { [""; 2] };
    let mask = if with_source { "pack<u8, VECTOR> kept[4];" } else { "" };
    let literal = |value: f64| format!("{:?}f", value as f32);
    let code = TEMPLATE
        .replace("POINTS", points)
        .replace("READ_SOURCE", load_source)
        .replace("WRITE_MASK", store_mask)
        .replace("DECLARE_MASK", mask)
        .replace("HALF_UNIT", &literal(UNIT / 2.0))
        .replace("HALF_ANGLE", &literal(TAU * UNIT / 2.0))
        .replace("UNIT", &literal(UNIT))
        .replace("ANGLE", &literal(TAU * UNIT))
        .replace("WIDE", &vector(dtype).to_string())
        .replace("NAME", &name(distribution, dtype))
        .replace("ELEMENT", &element)
        .replace("SUM", &sum)
        .replace("LOAD", &load)
        .replace("STORE", &store);
    with_prelude(&code)
}

/// Returns the number of elements that a thread stores at a time: 16 bytes, but at most four elements, for each of which it keeps
/// four words.
fn vector(dtype: DType) -> u64 {
    (VECTOR_BYTES / dtype.size_bytes() as u64).min(4)
}

impl Draw {
    /// Returns the number of blocks of words that are drawn from a subsequence.
    fn rounds(&self) -> u64 {
        self.elements.div_ceil(self.threads.saturating_mul(WORDS).max(1))
    }

    /// Calls a function with each element's index and a number drawn from its words: in (0, 1], or normally distributed.
    fn each(&self, [seed, offset]: [i64; 2], mut write: impl FnMut(usize, f32)) {
        let key = [seed as u32, (seed >> 32) as u32];
        for round in 0..self.rounds() {
            let number = (offset as u64 / WORDS).wrapping_add(round);
            let first = round * WORDS * self.threads;
            for subsequence in 0..self.threads.min(self.elements - first) {
                let halves = |value: u64| [value as u32, (value >> 32) as u32];
                let ([low, high], [thread, above]) = (halves(number), halves(subsequence));
                let words = philox::block([low, high, thread, above], key);
                let numbers = match self.distribution {
                    Distribution::Normal => normals(words),
                    _ => words.map(|word| part(word, 1.0)),
                };
                for (place, number) in
                    (first + subsequence..self.elements).step_by(self.threads as usize).zip(numbers)
                {
                    write(place as usize, number);
                }
            }
        }
    }
}

/// Returns `whole` · (word + ½) / 2³², rounded once.
fn part(word: u32, whole: f64) -> f32 {
    (word as f32).mul_add((whole * UNIT) as f32, (whole * UNIT / 2.0) as f32)
}

/// Returns two Box-Muller pairs.
fn normals(words: [u32; 4]) -> [f32; 4] {
    let pair = |first: u32, second: u32| {
        let radius = (-2.0 * f64::from(part(first, 1.0)).ln() as f32).sqrt();
        let angle = part(second, TAU);
        [radius * angle.sin(), radius * angle.cos()]
    };
    let [first, second, third, fourth] = words;
    let ([a, b], [c, d]) = (pair(first, second), pair(third, fourth));
    [a, b, c, d]
}

static NAMES: std::sync::OnceLock<[[String; DType::ALL.len()]; Distribution::ALL.len()]> =
    std::sync::OnceLock::new();

impl NativeKernel for Placed<Draw, Operands> {
    fn name(&self) -> &str {
        // Kernels are found by name, so a name must be the same string each time.
        NAMES.get_or_init(|| Distribution::ALL.map(|kind| DType::ALL.map(|dtype| name(kind, dtype))))
            [self.kernel.distribution as usize][self.kernel.dtype as usize]
            .as_str()
    }

    fn source(&self) -> String {
        print(self.kernel.distribution, self.kernel.dtype)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(run_on_host)
    }

    fn check(&self) -> Result<(), Fault> {
        let Draw { distribution, threads, dtype, .. } = self.kernel;
        if !FLOATS.contains(&dtype) {
            return Err(Fault::new(format!("{} does not take {dtype}", distribution.name())));
        }
        match (1..=MOST_THREADS).contains(&threads) {
            true => Ok(()),
            false => {
                Err(Fault::new(format!("random numbers of {threads} threads, not of 1 to {MOST_THREADS}")))
            }
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let Draw { elements, threads, .. } = self.kernel;
        let runs = self.kernel.rounds().saturating_mul(threads) / self.vector();
        (elements > 0).then(|| LaunchShape {
            grid: [runs.div_ceil(BLOCK).min((1 << 31) - 1) as u32, 1, 1],
            block: [BLOCK as u32, 1, 1],
        })
    }

    fn words(&self) -> Words {
        let mut words = arguments::pack(&self.at, &self.kernel);
        words.push(self.vector());
        words
    }

    fn accesses(&self) -> Accesses {
        let Draw { distribution, elements, dtype, .. } = self.kernel;
        let (word, bytes) = (size_of::<i64>() as u64, elements * dtype.size_bytes() as u64);
        let mut list = Accesses::from_iter([
            Access::read(self.at.seed, word),
            Access::read(self.at.offset, word),
            Access::write(self.at.result, bytes),
        ]);
        if distribution == Distribution::Dropout {
            list.push(Access::read(self.at.source, bytes));
            list.push(Access::write(self.at.mask, elements));
        }
        list
    }
}

impl Placed<Draw, Operands> {
    /// Returns the number of neighbouring subsequences that a thread draws from.
    fn vector(&self) -> u64 {
        let Operands { source, result, mask, .. } = self.at;
        let aligned = [source, result, mask].iter().all(|at| at.address().is_multiple_of(VECTOR_BYTES));
        let vector = vector(self.kernel.dtype);
        let is_wide = self.kernel.elements >= LEAST_WIDE && self.kernel.threads.is_multiple_of(vector);
        if aligned && is_wide { vector } else { 1 }
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (draw, at, [_]): (Draw, _, _) = arguments::unpack("random numbers", launch)?;
    with_float!("random numbers", draw.dtype, T => run::<T>(launch, &draw, at))
}

fn run<T: Element>(launch: &HostLaunch<'_>, draw: &Draw, at: Operands) -> Result<(), HostFault> {
    let state = [launch.read::<i64>(at.seed, 1)?[0], launch.read::<i64>(at.offset, 1)?[0]];
    let count = draw.elements as usize;
    let result = launch.write::<T>(at.result, count)?;
    let [first, second] = draw.numbers.map(|number| number as f32);
    match draw.distribution {
        Distribution::Uniform => {
            let bounds = [first, second].map(|bound| T::from_f64(f64::from(bound)));
            draw.each(state, |place, number| {
                let value = T::from_f64(f64::from(number.mul_add(second - first, first)));
                // Drawn from (low, high]; the upper bound, even if only reached by rounding, becomes the lower.
                result[place] = if value.to_f64() == bounds[1].to_f64() { bounds[0] } else { value };
            });
        }
        Distribution::Normal => draw.each(state, |place, number| {
            result[place] = T::from_f64(f64::from(number.mul_add(second, first)));
        }),
        Distribution::Dropout => {
            let source = launch.read::<T>(at.source, count)?;
            let mask = launch.write::<u8>(at.mask, count)?;
            let is_double = T::DTYPE == DType::F64;
            draw.each(state, |place, number| {
                let kept = number < first;
                let x = source[place].to_f64();
                result[place] = if is_double {
                    T::from_f64(x * f64::from(u8::from(kept)) * draw.numbers[1])
                } else {
                    T::from_f64(f64::from(x as f32 * f32::from(u8::from(kept)) * second))
                };
                mask[place] = u8::from(kept);
            });
        }
    }
    Ok(())
}

const UNIFORM: &str = "\
            const f32 low = f32(x.first), high = f32(x.second);
            const ELEMENT bound = STORE(high);
            #pragma unroll
            for (u32 r = 0; r < 4; ++r) {
                // Drawn from (low, high]; the upper bound, also one that rounding reaches, becomes the lower.
                const ELEMENT value = STORE(fmaf(fmaf(f32(words[r]), UNIT, HALF_UNIT), high - low, low));
                values[r].element[v] = LOAD(value) == LOAD(bound) ? STORE(low) : value;
            }";

const NORMAL: &str = "\
            const f32 mean = f32(x.first), deviation = f32(x.second);
            #pragma unroll
            for (u32 r = 0; r < 4; r += 2) {
                const f32 radius = sqrtf(-2.0f * logf(fmaf(f32(words[r]), UNIT, HALF_UNIT)));
                f32 sine, cosine;
                sincosf(fmaf(f32(words[r + 1]), ANGLE, HALF_ANGLE), &sine, &cosine);
                values[r].element[v] = STORE(fmaf(radius * sine, deviation, mean));
                values[r + 1].element[v] = STORE(fmaf(radius * cosine, deviation, mean));
            }";

const DROPOUT: &str = "\
            const f32 probability = f32(x.first);
            #pragma unroll
            for (u32 r = 0; r < 4; ++r) {
                const bool is_kept = fmaf(f32(words[r]), UNIT, HALF_UNIT) < probability;
                // In this order, and as a product, so that the gradient has the same bits at a gradient of x.
                values[r].element[v] = STORE(LOAD(values[r].element[v]) * SUM(is_kept) * SUM(x.second));
                kept[r].element[v] = is_kept;
            }";

const LOAD_SOURCE: &str = "\
        #pragma unroll
        for (u32 r = 0; r < 4; ++r) {
            const u64 place = first + r * x.threads;
            if (place + VECTOR <= x.elements) {
                values[r] = *(const pack<ELEMENT, VECTOR>*)(x.source + place);
            } else {
                #pragma unroll
                for (u32 v = 0; v < VECTOR; ++v) {
                    if (place + v < x.elements) {
                        values[r].element[v] = x.source[place + v];
                    }
                }
            }
        }";

const STORE_MASK: &str = "\
                *(pack<u8, VECTOR>*)(x.mask + place) = kept[r];
            } else {
                #pragma unroll
                for (u32 v = 0; v < VECTOR; ++v) {
                    if (place + v < x.elements) {
                        x.mask[place + v] = kept[r].element[v];
                    }
                }
            }
            if (place + VECTOR <= x.elements) {";

const TEMPLATE: &str = "\
struct NAME_arguments {
    const i64* seed;
    const i64* offset;
    const ELEMENT* source;
    ELEMENT* result;
    u8* mask;
    u64 elements;
    u64 threads;
    f64 first;
    f64 second;
    u64 dtype;
    u64 distribution;
    u64 vector;
};

// The elements of a block of words of each of VECTOR neighbouring subsequences.
template <u32 VECTOR>
static __device__ __forceinline__ void NAME_runs(const NAME_arguments& x, const u64 seed, const u64 offset) {
    const u64 runs = x.threads / VECTOR;
    const u64 rounds = divide<u64>(x.elements - 1, x.threads * 4) + 1;
    for (u64 run = u64(blockIdx.x) * 256 + threadIdx.x; run < rounds * runs; run += u64(gridDim.x) * 256) {
        const u64 round = divide<u64>(run, runs);
        const u64 subsequence = (run - round * runs) * VECTOR;
        const u64 first = round * 4 * x.threads + subsequence;
        pack<ELEMENT, VECTOR> values[4];
        DECLARE_MASK
READ_SOURCE
        #pragma unroll
        for (u32 v = 0; v < VECTOR; ++v) {
            philox_words philox = {};
            philox.word(seed, subsequence + v, offset + round * 4);
            const u32 words[4] = {philox.c0, philox.c1, philox.c2, philox.c3};
POINTS
        }
        #pragma unroll
        for (u32 r = 0; r < 4; ++r) {
            const u64 place = first + r * x.threads;
            if (place + VECTOR <= x.elements) {
WRITE_MASK
                *(pack<ELEMENT, VECTOR>*)(x.result + place) = values[r];
            } else {
                #pragma unroll
                for (u32 v = 0; v < VECTOR; ++v) {
                    if (place + v < x.elements) {
                        x.result[place + v] = values[r].element[v];
                    }
                }
            }
        }
    }
}

extern \"C\" __global__ void __launch_bounds__(256) NAME(const __grid_constant__ NAME_arguments x) {
    const u64 seed = u64(*x.seed), offset = u64(*x.offset);
    if (x.vector == 1) {
        NAME_runs<1>(x, seed, offset);
    } else {
        NAME_runs<WIDE>(x, seed, offset);
    }
}
";
