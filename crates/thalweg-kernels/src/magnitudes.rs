//! [`Magnitudes`]: the magnitudes of many tensors, summed or compared chunk by chunk, for the clipping and the scaling of
//! gradients.
//!
//! A launch takes up to [`CAPACITY`] tensors of one dtype, each contiguous. A block handles [`CHUNK`] elements of one tensor and
//! writes one number for them, in f32, or in f64 for tensors of f64. Each of its threads takes vectors of 16 bytes at fixed
//! places, and threads are combined in a fixed order, so that the numbers do not depend on timing or on addresses.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use crate::arguments;
use crate::dtypes::FLOATS;
use crate::native::{Accesses, NativeKernel, Placed, Words, along_x, native};
use crate::source::Source;

/// The way in which the magnitudes of a chunk are combined into one number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Magnitude {
    /// The sum of |x| to a power above 0.
    Power(f64),
    /// The greatest |x|; NaN if any x is NaN.
    Greatest,
}

/// A launch over tensors of a dtype.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Magnitudes {
    /// The way in which the magnitudes of a chunk are combined into one number.
    pub magnitude: Magnitude,
    /// The dtype of the tensors: a floating-point type.
    pub dtype: DType,
}

/// The operands of a launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Operands {
    /// The address of each tensor, and the number of its elements, at least one.
    pub tensors: Vec<(DevicePointer, u64)>,
    /// The address at which the numbers of the chunks are written, in the order of the tensors.
    pub numbers: DevicePointer,
}

/// The most tensors of a launch.
pub const CAPACITY: usize = 160;
/// The elements of a block.
pub const CHUNK: u64 = 16384;
/// Threads of a block.
const BLOCK: usize = 256;
/// Bytes that a thread loads at a time.
const VECTOR: usize = 16;

/// The words before the tables: numbers, tensors, power, kind, dtype.
const HEADER: usize = 5;
/// The number of 8-byte words of a launch.
const ARGUMENT_WORDS: usize = HEADER + 3 * CAPACITY;

impl Magnitudes {
    /// Returns the dtype of a chunk's number.
    #[must_use]
    pub fn number_dtype(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// Returns the number of chunks of tensors with these numbers of elements.
    pub fn chunks(elements: impl IntoIterator<Item = u64>) -> u64 {
        elements.into_iter().map(|elements| elements.div_ceil(CHUNK)).sum()
    }

    fn run<T: Element, N: Number>(&self, chunk: &[T]) -> N {
        let width = VECTOR / size_of::<T>();
        let mut lanes = [N::default(); BLOCK];
        for (number, vector) in chunk.chunks(width).enumerate() {
            let lane = &mut lanes[number % BLOCK];
            *lane = vector
                .iter()
                .fold(*lane, |so_far, &x| self.combine(so_far, self.of_element(N::from_f64(x.to_f64()))));
        }
        // The order of the kernel: halves of a warp, then the warps.
        let mut warps: Vec<N> = lanes.chunks(32).map(|warp| self.halves(warp)).collect();
        warps.resize(32, N::default());
        self.halves(&warps)
    }

    fn halves<N: Number>(&self, lanes: &[N]) -> N {
        let mut lanes = lanes.to_vec();
        while lanes.len() > 1 {
            let (low, high) = lanes.split_at(lanes.len() / 2);
            lanes = low.iter().zip(high).map(|(&a, &b)| self.combine(a, b)).collect();
        }
        lanes[0]
    }

    fn of_element<N: Number>(&self, x: N) -> N {
        match self.magnitude {
            Magnitude::Power(2.0) => x.times(x),
            Magnitude::Power(1.0) | Magnitude::Greatest => x.abs(),
            Magnitude::Power(power) => x.abs().power(power),
        }
    }

    fn combine<N: Number>(&self, a: N, b: N) -> N {
        match self.magnitude {
            Magnitude::Power(_) => a.plus(b),
            // The result is NaN in either order if one is NaN.
            Magnitude::Greatest => {
                if b > a || b.is_nan() {
                    b
                } else {
                    a
                }
            }
        }
    }
}

/// The type in which a chunk's number is computed.
trait Number: Copy + Default + PartialOrd + Element {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn abs(self) -> Self;
    fn power(self, power: f64) -> Self;
    fn is_nan(self) -> bool;
}

macro_rules! number {
    ($($T:ident)*) => {$(
        impl Number for $T {
            fn plus(self, other: Self) -> Self { self + other }
            fn times(self, other: Self) -> Self { self * other }
            fn abs(self) -> Self { $T::abs(self) }
            fn power(self, power: f64) -> Self { self.powf(power as $T) }
            fn is_nan(self) -> bool { $T::is_nan(self) }
        }
    )*};
}

number! { f32 f64 }

fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "magnitudes_float16",
        DType::Bf16 => "magnitudes_bfloat16",
        DType::F64 => "magnitudes_float64",
        _ => "magnitudes_float32",
    }
}

/// Returns name and source of every kernel of this module.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    FLOATS.into_iter().map(|dtype| (name(dtype).to_owned(), print(dtype)))
}

fn print(dtype: DType) -> String {
    Source::new(name(dtype))
        .elements(dtype)
        .define("CAPACITY", CAPACITY)
        .define("CHUNK", CHUNK)
        .print(include_str!("magnitudes.cu"))
}

impl Placed<Magnitudes, Operands> {
    fn chunks(&self) -> u64 {
        Magnitudes::chunks(self.at.tensors.iter().map(|&(_, elements)| elements))
    }
}

impl NativeKernel for Placed<Magnitudes, Operands> {
    native! { self: name(self.kernel.dtype), print(self.kernel.dtype), run_on_host }

    fn check(&self) -> Result<(), Fault> {
        let (dtype, count) = (self.kernel.dtype, self.at.tensors.len());
        if !FLOATS.contains(&dtype) {
            return Err(Fault::new(format!("magnitudes: it takes floating-point numbers, not {dtype}")));
        }
        Fault::unless(count <= CAPACITY, || {
            format!("magnitudes: it takes up to {CAPACITY} tensors, not {count}")
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        along_x(self.chunks(), BLOCK as u64)
    }

    fn words(&self) -> Words {
        let Operands { tensors, numbers } = &self.at;
        let (kind, power) = match self.kernel.magnitude {
            Magnitude::Power(power) if power == 2.0 => (0, power),
            Magnitude::Power(power) if power == 1.0 => (1, power),
            Magnitude::Power(power) => (2, power),
            Magnitude::Greatest => (3, 0.0),
        };
        let count = tensors.len() as u64;
        let header: [u64; HEADER] =
            [numbers.address(), count, power.to_bits(), kind, arguments::number_of(self.kernel.dtype)];
        let mut words: Words = header.into_iter().collect();
        let mut table = |values: &mut dyn Iterator<Item = u64>| {
            let end = words.len() + CAPACITY;
            words.extend(values);
            words.resize(end, 0);
        };
        table(&mut tensors.iter().map(|(at, _)| at.address()));
        table(&mut tensors.iter().map(|&(_, elements)| elements));
        table(&mut tensors.iter().scan(0, |next, &(_, elements)| {
            let first = *next;
            *next += elements.div_ceil(CHUNK);
            Some(first)
        }));
        words
    }

    fn accesses(&self) -> Accesses {
        let element = self.kernel.dtype.size_bytes() as u64;
        let mut list = Accesses::new();
        for &(at, elements) in &self.at.tensors {
            let access = Access::read(at, elements * element);
            if !list.contains(&access) {
                list.push(access);
            }
        }
        let bytes = self.chunks() * self.kernel.number_dtype().size_bytes() as u64;
        list.push(Access::write(self.at.numbers, bytes));
        list
    }
}

fn unpack(bytes: &[u8]) -> Option<Placed<Magnitudes, Operands>> {
    let words: [u64; ARGUMENT_WORDS] = arguments::words(bytes)?;
    let (header, tables) = words.split_at(HEADER);
    let (addresses, elements) = (&tables[..CAPACITY], &tables[CAPACITY..2 * CAPACITY]);
    let count = usize::try_from(header[1]).ok().filter(|&count| count <= CAPACITY)?;
    let magnitude =
        if header[3] == 3 { Magnitude::Greatest } else { Magnitude::Power(f64::from_bits(header[2])) };
    let tensors = addresses.iter().zip(elements).take(count);
    Some(Placed {
        kernel: Magnitudes { magnitude, dtype: arguments::dtype_of(header[4])? },
        at: Operands {
            tensors: tensors.map(|(&at, &elements)| (DevicePointer::new(at), elements)).collect(),
            numbers: DevicePointer::new(header[0]),
        },
    })
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let placed = unpack(launch.arguments)
        .ok_or_else(|| HostFault("magnitudes: the arguments are not in their layout".to_owned()))?;
    match placed.kernel.dtype {
        DType::F32 => run_typed::<f32, f32>(launch, &placed),
        DType::F64 => run_typed::<f64, f64>(launch, &placed),
        DType::F16 => run_typed::<f16, f32>(launch, &placed),
        DType::Bf16 => run_typed::<bf16, f32>(launch, &placed),
        other => Err(HostFault(format!("magnitudes: there are none of {other}"))),
    }
}

fn run_typed<T: Element, N: Number>(
    launch: &HostLaunch<'_>,
    placed: &Placed<Magnitudes, Operands>,
) -> Result<(), HostFault> {
    let numbers = launch.write::<N>(placed.at.numbers, placed.chunks() as usize)?;
    let mut next = numbers.iter_mut();
    for &(at, elements) in &placed.at.tensors {
        let values = launch.read::<T>(at, elements as usize)?;
        for (chunk, number) in values.chunks(CHUNK as usize).zip(&mut next) {
            *number = placed.kernel.run(chunk);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_has_the_sum_or_the_greatest_of_its_magnitudes() {
        let values: Vec<f32> = (0..5003).map(|at| (at * 37 % 101) as f32 / 8.0 - 6.0).collect();
        let of = |magnitude| Magnitudes { magnitude, dtype: DType::F32 }.run::<f32, f32>(&values);
        let sum = |power: f64| values.iter().map(|&x| f64::from(x).abs().powf(power)).sum::<f64>();
        for power in [1.0, 2.0, 3.0] {
            let found = f64::from(of(Magnitude::Power(power)));
            assert!((found / sum(power) - 1.0).abs() < 1e-6, "{power}: {found} and {}", sum(power));
        }
        assert_eq!(of(Magnitude::Greatest), values.iter().fold(0.0, |most: f32, x| most.max(x.abs())));
    }

    #[test]
    fn a_nan_anywhere_is_the_greatest() {
        for place in [0, 31, 255, 256, 2048, 4999] {
            let mut values = vec![1.0_f32; 5000];
            values[place] = f32::NAN;
            let kernel = Magnitudes { magnitude: Magnitude::Greatest, dtype: DType::F32 };
            assert!(kernel.run::<f32, f32>(&values).is_nan(), "{place}");
        }
    }

    #[test]
    fn arguments_come_back() {
        let placed = Placed {
            kernel: Magnitudes { magnitude: Magnitude::Power(3.0), dtype: DType::Bf16 },
            at: Operands {
                tensors: vec![(DevicePointer::new(64), 3), (DevicePointer::new(128), CHUNK + 1)],
                numbers: DevicePointer::new(256),
            },
        };
        let bytes: Vec<u8> = placed.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(unpack(&bytes), Some(placed.clone()));
        assert_eq!(placed.launch_shape().unwrap().grid, [3, 1, 1]);
    }
}
