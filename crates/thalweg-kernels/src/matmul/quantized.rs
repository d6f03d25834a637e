//! [`QuantizedMatmul`]: few rows times the transpose of a weight of 8-bit or 4-bit integers with scales: a step of a decoder,
//! whose time is that of reading its weights.
//!
//! Sums are in f32, rounded once, and combined in a fixed order, so that a row has the same bits in any batch. For float16 and
//! bfloat16 a GPU uses the tensor cores, and needs compute capability 8.0. Integers are converted on the way to floats of the
//! input's dtype: int8 exactly; 4-bit integers times their scale, plus their zero, rounded once, as in PyTorch. For float32 a
//! warp handles one column of the result, and each of its lanes loads 16 bytes of the weight at a time.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, LaunchMode};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use super::few_rows::cuda::{SHARED_BYTES, needs_tensor_cores};
use super::few_rows::{MOST_BLOCKS, shared_by};
use crate::arguments::{self, Argument, arguments};
use crate::native::{Accesses, NativeKernel, Placed, Words, native};
use crate::source::Source;

/// The way in which a weight (n, k) and its scales, of the input's dtype, are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Quantization {
    /// int8, row by row, with a scale for each row: w = q · scale.
    Int8,
    /// Two numbers of 0 to 15 per byte, row by row, the first in the upper half; scales and zeros (k / group, n, 2): w = (q − 8)
    /// · scale + zero.
    Int4 {
        /// The number of neighbours in a row that share a scale and a zero: a power of two of at least 32.
        group: u64,
    },
}

/// A product with a quantized weight. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QuantizedMatmul {
    /// The number of rows of the input, of columns of the result, and of terms of a sum.
    pub sizes: [u64; 3],
    /// The way in which the weight is stored.
    pub quantization: Quantization,
    /// The dtype of input, scales and result: one of [`DTYPES`].
    pub dtype: DType,
}

arguments! { QuantizedMatmul { sizes, quantization, dtype } }

/// Written as the size of a group, or 0 for int8.
impl Argument for Quantization {
    fn write(&self, words: &mut Words) {
        words.push(match self {
            Self::Int8 => 0,
            Self::Int4 { group } => *group,
        });
    }

    fn read(words: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
        Some(match words.next()? {
            0 => Self::Int8,
            &group => Self::Int4 { group },
        })
    }
}

/// The dtypes for which there is a kernel.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// The most rows for which the weight is better read in its quantized form; with more, converting it pays.
const MOST_ROWS: u64 = 16;
/// The number of rows that a thread handles at a time, without tensor cores.
const ROWS: u64 = 4;
/// The number of threads of a block.
const BLOCK: u32 = 256;
/// The number of lanes of a warp.
const LANES: usize = 32;
/// The bytes of a weight that a lane loads at a time.
const VECTOR: u64 = 16;

/// The operands of a launch: the input (m, k), the weight, its scales, and the result (m, n), without gaps.
type Operands = [DevicePointer; 4];

impl QuantizedMatmul {
    /// Returns whether a product has few rows that the kernel supports.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.check().is_ok() && (1..=MOST_ROWS).contains(&self.sizes[0]) && self.sizes[1] > 0
    }

    fn check(&self) -> Result<(), Fault> {
        let [m, n, k] = self.sizes;
        let is_whole = match self.quantization {
            Quantization::Int8 => true,
            Quantization::Int4 { group } => {
                group.is_power_of_two() && group >= self.terms() && k.is_multiple_of(group)
            }
        };
        let fits = DTYPES.contains(&self.dtype) && m < 1 << 16 && n < 1 << 31 && k < 1 << 31;
        Fault::unless(fits && is_whole && k.is_multiple_of(self.terms()), || {
            format!(
                "quantized product: it takes float32, float16 and bfloat16, and terms in multiples of {} that groups divide into whole \
                 ones, not {m} × {n} × {k} of {} by {:?}",
                self.terms(),
                self.dtype,
                self.quantization
            )
        })
    }

    /// Returns the number of terms in the bytes that a lane loads at a time.
    fn terms(&self) -> u64 {
        if self.quantization == Quantization::Int8 { VECTOR } else { 2 * VECTOR }
    }

    /// Returns the number of bytes of the weight, and the number of elements of the scales.
    fn weight(&self) -> [u64; 2] {
        let [_, n, k] = self.sizes;
        match self.quantization {
            Quantization::Int8 => [n * k, n],
            Quantization::Int4 { group } => [n * k / 2, k / group * n * 2],
        }
    }

    /// Returns the number of warps that share a row of the weight.
    fn split(&self) -> u64 {
        let [_, n, _] = self.sizes;
        shared_by(n, self.weight()[0] / n.max(1))
    }

    /// Returns the sum of a row of the input and a row of the weight, in the order of the kernel.
    fn sum<T: Element>(&self, row: &[T], column: usize, weight: &[u8], scales: &[T]) -> f32 {
        let (terms, n) = (self.terms() as usize, self.sizes[1] as usize);
        let mut lanes = [0.0_f32; LANES];
        for (chunk, (x, bytes)) in row.chunks(terms).zip(weight.chunks(VECTOR as usize)).enumerate() {
            let (mut dot, mut sum) = (0.0_f32, 0.0_f32);
            for (i, x) in x.iter().enumerate() {
                let (x, byte) = (x.to_f64() as f32, bytes[i * VECTOR as usize / terms]);
                let number = match (self.quantization, i % 2) {
                    (Quantization::Int8, _) => f32::from(byte as i8),
                    (_, 0) => f32::from(byte >> 4) - 8.0,
                    _ => f32::from(byte & 15) - 8.0,
                };
                dot += number * x;
                sum += x;
            }
            let lane = &mut lanes[chunk % LANES];
            *lane += match self.quantization {
                Quantization::Int8 => dot,
                Quantization::Int4 { group } => {
                    let at = (chunk * terms / group as usize * n + column) * 2;
                    let [scale, zero] = [scales[at], scales[at + 1]].map(|number| number.to_f64() as f32);
                    scale * dot + zero * sum
                }
            };
        }
        let mut count = LANES / 2;
        while count > 0 {
            (0..count).for_each(|lane| lanes[lane] += lanes[lane + count]);
            count /= 2;
        }
        match self.quantization {
            Quantization::Int8 => lanes[0] * scales[column].to_f64() as f32,
            Quantization::Int4 { .. } => lanes[0],
        }
    }

    fn run<T: Element>(&self, input: &[T], weight: &[u8], scales: &[T], result: &mut [T]) {
        let [_, n, k] = self.sizes.map(|size| size as usize);
        let bytes = (self.weight()[0] as usize / n.max(1)).max(1);
        for (row, result) in input.chunks(k.max(1)).zip(result.chunks_mut(n.max(1))) {
            for (column, (result, weight)) in result.iter_mut().zip(weight.chunks(bytes)).enumerate() {
                *result = T::from_f64(f64::from(self.sum(row, column, weight, scales)));
            }
        }
    }
}

fn name(dtype: DType, quantization: Quantization, rows: u64) -> &'static str {
    let is_int8 = quantization == Quantization::Int8;
    match (dtype, is_int8, rows) {
        (DType::F16, true, ..=8) => "quantized_matmul_int8_float16_8",
        (DType::F16, true, _) => "quantized_matmul_int8_float16_16",
        (DType::F16, false, ..=8) => "quantized_matmul_int4_float16_8",
        (DType::F16, false, _) => "quantized_matmul_int4_float16_16",
        (DType::Bf16, true, ..=8) => "quantized_matmul_int8_bfloat16_8",
        (DType::Bf16, true, _) => "quantized_matmul_int8_bfloat16_16",
        (DType::Bf16, false, ..=8) => "quantized_matmul_int4_bfloat16_8",
        (DType::Bf16, false, _) => "quantized_matmul_int4_bfloat16_16",
        (_, true, _) => "quantized_matmul_int8_float32",
        _ => "quantized_matmul_int4_float32",
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let kinds = [Quantization::Int8, Quantization::Int4 { group: 32 }];
    let all = DTYPES.into_iter().flat_map(move |dtype| kinds.map(|kind| (dtype, kind)));
    let all = all.flat_map(|(dtype, kind)| {
        let rows: &[u64] = if needs_tensor_cores(dtype) { &[8, 16] } else { &[MOST_ROWS] };
        rows.iter().map(move |&rows| (dtype, kind, rows))
    });
    all.map(|(dtype, kind, rows)| (name(dtype, kind, rows).to_owned(), print(dtype, kind, rows)))
}

/// Returns the translation unit of the kernel for up to `rows` rows.
fn print(dtype: DType, quantization: Quantization, rows: u64) -> String {
    if needs_tensor_cores(dtype) {
        print_tensor_cores(dtype, quantization, rows)
    } else {
        print_lanes(quantization)
    }
}

fn print_tensor_cores(dtype: DType, quantization: Quantization, rows: u64) -> String {
    let (is_int8, rows) = (quantization == Quantization::Int8, if rows <= 8 { 8 } else { 16 });
    // The number of steps whose terms of A are loaded together: as many as fit the registers.
    let together = match (is_int8, rows) {
        (true, rows) => 32 / rows,
        (false, 8) => 4,
        (false, _) => 1,
    };
    Source::new(name(dtype, quantization, rows))
        .elements(dtype)
        .flag("IS_INT8", is_int8)
        .flag("IS_BF16", dtype == DType::Bf16)
        .define("TOGETHER", together)
        .define("ROWS", rows)
        .print(include_str!("quantized/tensor_cores.cu"))
}

fn print_lanes(quantization: Quantization) -> String {
    Source::new(name(DType::F32, quantization, MOST_ROWS))
        .elements(DType::F32)
        .flag("IS_INT8", quantization == Quantization::Int8)
        .define("ROWS", ROWS)
        .print(include_str!("quantized/lanes.cu"))
}

impl NativeKernel for Placed<QuantizedMatmul, Operands> {
    native! {
        self: name(self.kernel.dtype, self.kernel.quantization, self.kernel.sizes[0]), print(self.kernel.dtype, self.kernel.quantization, self.kernel.sizes[0]), run_on_host
    }

    fn check(&self) -> Result<(), Fault> {
        self.kernel.check()?;
        let rows = self.kernel.sizes[0];
        if needs_tensor_cores(self.kernel.dtype) && rows > MOST_ROWS {
            return Err(Fault::new(format!(
                "quantized product: it takes up to {MOST_ROWS} rows, not {rows}"
            )));
        }
        Fault::unless(self.at[..3].iter().all(|at| at.address().is_multiple_of(VECTOR)), || {
            "quantized product: input, weight and scales begin at multiples of 16 bytes".to_owned().to_owned()
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let [m, n, _] = self.kernel.sizes;
        let grid = if needs_tensor_cores(self.kernel.dtype) {
            [n.div_ceil(8 * (8 / self.kernel.split())).min(MOST_BLOCKS) as u32, 1, 1]
        } else {
            [n.div_ceil(u64::from(BLOCK) / LANES as u64) as u32, m.div_ceil(ROWS) as u32, 1]
        };
        (m > 0 && n > 0).then_some(LaunchShape { grid, block: [BLOCK, 1, 1] })
    }

    fn shared_memory_bytes(&self) -> u32 {
        if needs_tensor_cores(self.kernel.dtype) { SHARED_BYTES as u32 } else { 0 }
    }

    fn mode(&self) -> LaunchMode {
        LaunchMode::Programmatic
    }

    fn words(&self) -> Words {
        let mut words = arguments::pack(&self.at, &self.kernel);
        words.push(self.kernel.split());
        words
    }

    fn accesses(&self) -> Accesses {
        let ([m, n, k], [bytes, scales]) = (self.kernel.sizes, self.kernel.weight());
        let ([input, weight, scale, result], size) = (self.at, self.kernel.dtype.size_bytes() as u64);
        Accesses::from_iter([
            Access::read(input, m * k * size),
            Access::read(weight, bytes),
            Access::read(scale, scales * size),
            Access::write(result, m * n * size),
        ])
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (kernel, at, [_split]): (QuantizedMatmul, _, _) = arguments::unpack("quantized product", launch)?;
    match kernel.dtype {
        DType::F32 => run_typed::<f32>(launch, &kernel, at),
        DType::F16 => run_typed::<f16>(launch, &kernel, at),
        DType::Bf16 => run_typed::<bf16>(launch, &kernel, at),
        other => Err(HostFault(format!("quantized product: there is none of {other}"))),
    }
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    kernel: &QuantizedMatmul,
    [input, weight, scale, result]: Operands,
) -> Result<(), HostFault> {
    let ([m, n, k], [bytes, scales]) = (kernel.sizes, kernel.weight());
    let input = launch.read::<T>(input, (m * k) as usize)?;
    let weight = launch.read::<u8>(weight, bytes as usize)?;
    let scales = launch.read::<T>(scale, scales as usize)?;
    kernel.run(input, weight, scales, launch.write::<T>(result, (m * n) as usize)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_weights_that_numbers_stand_for() {
        for quantization in [Quantization::Int8, Quantization::Int4 { group: 64 }] {
            let kernel = QuantizedMatmul { sizes: [3, 5, 1088], quantization, dtype: DType::F32 };
            assert!(kernel.fits());
            let words = arguments::pack(&[1_u64, 2, 3, 4], &kernel);
            assert_eq!(arguments::read(&words), Some((kernel, [1_u64, 2, 3, 4], [])));
            let [bytes, scales] = kernel.weight();
            let number = |at: u64, of: u64| (at * 7919 % of) as f32;
            let weight: Vec<u8> = (0..bytes).map(|at| (at * 7919 % 251) as u8).collect();
            let scales: Vec<f32> = (0..scales).map(|at| number(at, 17) / 64.0 - 0.1).collect();
            let input: Vec<f32> = (0..3 * 1088).map(|at| number(at, 33) / 16.0 - 1.0).collect();
            let mut result = [0.0_f32; 15];
            kernel.run(&input, &weight, &scales, &mut result);
            for (at, &found) in result.iter().enumerate() {
                let (row, column) = (at / 5, at % 5);
                let term = |i: usize| {
                    let w = match quantization {
                        Quantization::Int8 => {
                            f64::from(weight[column * 1088 + i] as i8) * f64::from(scales[column])
                        }
                        Quantization::Int4 { .. } => {
                            let byte = weight[column * 544 + i / 2];
                            let q = if i.is_multiple_of(2) { byte / 16 } else { byte % 16 };
                            let at = (i / 64 * 5 + column) * 2;
                            (f64::from(q) - 8.0) * f64::from(scales[at]) + f64::from(scales[at + 1])
                        }
                    };
                    w * f64::from(input[row * 1088 + i])
                };
                let (sum, size) =
                    (0..1088).map(term).fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                assert!(
                    (f64::from(found) - sum).abs() <= 1e-5 * size,
                    "{quantization:?} {at}: {found} and {sum}"
                );
            }
        }
    }
}
