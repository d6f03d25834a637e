//! The arithmetic of collectives: from the ranks' inputs to their outputs.
//!
//! Elements are reduced in the order of the ranks, so the result is the same in every run. Floats of 16 bits are reduced in
//! 32 bits and rounded once; a GPU may round in between, and in another order. The inputs are copies, so a rank's output
//! may overwrite its input.

use half::{bf16, f16};
use thalweg_driver::{CollectiveOperation, ElementFormat, Reduction};

/// Returns the output of each rank, by rank; empty for none. `inputs` are the ranks' inputs. For a send and its receive,
/// which are ranks 0 and 1 here, `operation` is the send.
pub(crate) fn outputs(
    operation: CollectiveOperation,
    format: ElementFormat,
    inputs: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    use CollectiveOperation::{AllGather, AllReduce, Broadcast, Receive, Reduce, ReduceScatter, Send};
    let ranks = inputs.len();
    let only = |root: u32, value: Vec<u8>| {
        let mut outputs = vec![Vec::new(); ranks];
        outputs[root as usize] = value;
        outputs
    };
    match operation {
        AllReduce(reduction) => vec![reduce(format, reduction, inputs); ranks],
        Broadcast { root } => vec![inputs[root as usize].clone(); ranks],
        Reduce { root, reduction } => only(root, reduce(format, reduction, inputs)),
        AllGather => vec![inputs.concat(); ranks],
        ReduceScatter(reduction) => {
            let all = reduce(format, reduction, inputs);
            let bytes = all.len() / ranks;
            (0..ranks).map(|rank| all[rank * bytes..(rank + 1) * bytes].to_vec()).collect()
        }
        Send { .. } | Receive { .. } => only(1, inputs[0].clone()),
    }
}

fn reduce(format: ElementFormat, reduction: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
    match format {
        ElementFormat::R_32F => reduce_as::<f32>(reduction, inputs),
        ElementFormat::R_64F => reduce_as::<f64>(reduction, inputs),
        ElementFormat::R_16F => reduce_as::<f16>(reduction, inputs),
        ElementFormat::R_16BF => reduce_as::<bf16>(reduction, inputs),
        ElementFormat::R_8I => reduce_as::<i8>(reduction, inputs),
        ElementFormat::R_8U => reduce_as::<u8>(reduction, inputs),
        ElementFormat::R_32I => reduce_as::<i32>(reduction, inputs),
        ElementFormat::R_32U => reduce_as::<u32>(reduction, inputs),
        ElementFormat::R_64I => reduce_as::<i64>(reduction, inputs),
        ElementFormat::R_64U => reduce_as::<u64>(reduction, inputs),
        ElementFormat(other) => {
            unreachable!("format {other} has no size, so it was refused when it was submitted")
        }
    }
}

fn reduce_as<T: Element>(reduction: Reduction, inputs: &[Vec<u8>]) -> Vec<u8> {
    let read = |input: &[u8]| -> Vec<T::Wide> {
        input.chunks_exact(size_of::<T>()).map(|bytes| T::read(bytes).widen()).collect()
    };
    let (first, rest) = inputs.split_first().expect("a communicator has a rank");
    let mut results = read(first);
    for input in rest {
        for (result, value) in results.iter_mut().zip(read(input)) {
            *result = T::join(reduction, *result, value);
        }
    }
    if reduction == Reduction::Average {
        results.iter_mut().for_each(|result| *result = T::divide(*result, inputs.len()));
    }
    let mut bytes = Vec::with_capacity(first.len());
    results.into_iter().for_each(|result| T::narrow(result).write(&mut bytes));
    bytes
}

/// An element of a reduction, with the type that sums are computed in.
trait Element: Copy {
    type Wide: Copy;

    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut Vec<u8>);
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn join(reduction: Reduction, left: Self::Wide, right: Self::Wide) -> Self::Wide;
    fn divide(sum: Self::Wide, ranks: usize) -> Self::Wide;
}

macro_rules! bytes_of {
    () => {
        fn read(bytes: &[u8]) -> Self {
            Self::from_le_bytes(bytes.try_into().expect("a chunk is one element"))
        }

        fn write(self, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(&self.to_le_bytes());
        }
    };
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Element for $integer {
            type Wide = Self;

            bytes_of!();

            fn widen(self) -> Self {
                self
            }

            fn narrow(wide: Self) -> Self {
                wide
            }

            fn join(reduction: Reduction, left: Self, right: Self) -> Self {
                match reduction {
                    Reduction::Sum | Reduction::Average => left.wrapping_add(right),
                    Reduction::Product => left.wrapping_mul(right),
                    Reduction::Maximum => left.max(right),
                    Reduction::Minimum => left.min(right),
                }
            }

            fn divide(sum: Self, ranks: usize) -> Self {
                sum / <$integer>::try_from(ranks).expect("there are at most 64 devices")
            }
        }
    )*};
}

integers!(i8, u8, i32, u32, i64, u64);

macro_rules! floats {
    ($($float:ty as $wide:ty: $widen:expr, $narrow:expr;)*) => {$(
        impl Element for $float {
            type Wide = $wide;

            bytes_of!();

            fn widen(self) -> $wide {
                $widen(self)
            }

            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }

            fn join(reduction: Reduction, left: $wide, right: $wide) -> $wide {
                match reduction {
                    Reduction::Sum | Reduction::Average => left + right,
                    Reduction::Product => left * right,
                    Reduction::Maximum => left.max(right),
                    Reduction::Minimum => left.min(right),
                }
            }

            fn divide(sum: $wide, ranks: usize) -> $wide {
                sum / ranks as $wide
            }
        }
    )*};
}

floats! {
    f32 as f32: std::convert::identity, std::convert::identity;
    f64 as f64: std::convert::identity, std::convert::identity;
    f16 as f32: f16::to_f32, f16::from_f32;
    bf16 as f32: bf16::to_f32, bf16::from_f32;
}
