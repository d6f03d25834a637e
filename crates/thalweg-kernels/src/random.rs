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
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, philox};

use crate::arguments::{self, arguments, choices};
use crate::dtypes::{FLOATS, with_float};
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x};
use crate::source::Source;

/// The numbers that are computed from the words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Distribution {
    /// Numbers in [low, high). Low and high are the two numbers of the launch.
    Uniform,
    /// Numbers of a normal distribution with a mean and a deviation: sine and cosine halves of Box-Muller pairs.
    Normal,
    /// Elements of a tensor times a scale, each kept with a probability and 0 otherwise; and a mask of the kept elements.
    Dropout,
    /// Truth values, each true with a probability: the mask of [`Dropout`](Self::Dropout) by itself.
    Kept,
}

impl Distribution {
    /// Every distribution.
    pub const ALL: [Self; 4] = [Self::Uniform, Self::Normal, Self::Dropout, Self::Kept];

    fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Normal => "normal",
            Self::Dropout => "dropout",
            Self::Kept => "kept",
        }
    }

    /// Returns the dtypes of the elements.
    fn dtypes(self) -> &'static [DType] {
        if self == Self::Kept { &[DType::Bool] } else { &FLOATS }
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
    /// Low and high, mean and deviation, or probability and scale (of truth values the probability alone).
    pub numbers: [f64; 2],
    /// The dtype of the elements: a floating-point type, or bool for [`Distribution::Kept`].
    pub dtype: DType,
}

/// The seed and the offset (an int64 each); the elements that dropout keeps or drops; the result; and the mask of the elements that
/// were kept. The addresses of elements and mask are 0 for other distributions.
type Operands = [DevicePointer; 5];

arguments! { Draw { elements, threads, numbers, dtype, distribution } }
choices! { Distribution: Distribution::ALL }

/// Threads of a block.
const BLOCK: u64 = 256;

/// The most rows of blocks of a grid.
const MOST_ROWS: u64 = 65_535;

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
    let all =
        Distribution::ALL.into_iter().flat_map(|kind| kind.dtypes().iter().map(move |&dtype| (kind, dtype)));
    all.map(|(kind, dtype)| (name(kind, dtype), print(kind, dtype)))
}

fn print(distribution: Distribution, dtype: DType) -> String {
    Source::new(&name(distribution, dtype))
        .elements(dtype)
        .define("DISTRIBUTION", distribution as u64)
        .define("WIDE", vector(dtype))
        .print(include_str!("random.cu"))
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

/// Returns the number of words whose parts are less than a probability: they are the first ones, since parts grow with words.
fn bound(probability: f64) -> u64 {
    let (mut below, mut from) = (0, u64::from(u32::MAX));
    while below < from {
        let middle = below.midpoint(from);
        match part(middle as u32, 1.0) < probability as f32 {
            true => below = middle + 1,
            false => from = middle,
        }
    }
    below
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
        if !distribution.dtypes().contains(&dtype) {
            return Err(Fault::new(format!("{} does not take {dtype}", distribution.name())));
        }
        Fault::unless((1..=MOST_THREADS).contains(&threads), || {
            format!("random numbers of {threads} threads, not of 1 to {MOST_THREADS}")
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let Draw { elements, threads, .. } = self.kernel;
        let shape = along_x((threads / self.vector()).div_ceil(BLOCK), BLOCK).filter(|_| elements > 0)?;
        let rounds = self.kernel.rounds().min(MOST_ROWS) as u32;
        Some(LaunchShape { grid: [shape.grid[0], rounds, 1], ..shape })
    }

    fn words(&self) -> Words {
        let mut words = arguments::pack(&self.at, &self.kernel);
        let Draw { distribution, numbers, .. } = self.kernel;
        let keeps = matches!(distribution, Distribution::Dropout | Distribution::Kept);
        words.extend([self.vector(), if keeps { bound(numbers[0]) } else { 0 }]);
        words
    }

    fn accesses(&self) -> Accesses {
        let Draw { distribution, elements, dtype, .. } = self.kernel;
        let (word, bytes) = (size_of::<i64>() as u64, elements * dtype.size_bytes() as u64);
        let [seed, offset, source, result, mask] = self.at;
        let mut list = Accesses::from_iter([
            Access::read(seed, word),
            Access::read(offset, word),
            Access::write(result, bytes),
        ]);
        if distribution == Distribution::Dropout {
            list.push(Access::read(source, bytes));
            list.push(Access::write(mask, elements));
        }
        list
    }
}

impl Placed<Draw, Operands> {
    /// Returns the number of neighbouring subsequences that a thread draws from.
    fn vector(&self) -> u64 {
        let [_, _, source, result, mask] = self.at;
        let aligned = [source, result, mask].iter().all(|at| at.address().is_multiple_of(VECTOR_BYTES));
        let vector = vector(self.kernel.dtype);
        let is_wide = self.kernel.elements >= LEAST_WIDE && self.kernel.threads.is_multiple_of(vector);
        if aligned && is_wide { vector } else { 1 }
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (draw, at, [_, _]): (Draw, Operands, _) = arguments::unpack("random numbers", launch)?;
    let [seed, offset, source, result, mask] = at;
    let state = [launch.read::<i64>(seed, 1)?[0], launch.read::<i64>(offset, 1)?[0]];
    if draw.distribution == Distribution::Kept {
        let (kept, probability) =
            (launch.write::<u8>(result, draw.elements as usize)?, draw.numbers[0] as f32);
        draw.each(state, |place, number| kept[place] = u8::from(number < probability));
        return Ok(());
    }
    with_float!("random numbers", draw.dtype, T => run::<T>(launch, &draw, state, [source, result, mask]))
}

fn run<T: Element>(
    launch: &HostLaunch<'_>,
    draw: &Draw,
    state: [i64; 2],
    [source, result, mask]: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let count = draw.elements as usize;
    let result = launch.write::<T>(result, count)?;
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
            let source = launch.read::<T>(source, count)?;
            let mask = launch.write::<u8>(mask, count)?;
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
        Distribution::Kept => return Err(HostFault("truth values are not drawn as floats".to_owned())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{bound, part};

    #[test]
    fn words_below_the_bound_are_those_whose_part_is_less_than_the_probability() {
        assert_eq!(bound(0.0), 0);
        for step in 0..=1000 {
            let probability = f64::from(step) / 1000.0;
            let bound = bound(probability);
            let is_less = |word: u64| part(word as u32, 1.0) < probability as f32;
            assert!(bound == 0 || is_less(bound - 1), "{probability}");
            assert!(!is_less(bound), "{probability}");
        }
    }
}
