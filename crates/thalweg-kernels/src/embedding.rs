//! [`EmbeddingBackward`]: the gradient of a table of embeddings, from the gradients of the places that read it. It is not a loop
//! over a body, because the data determine how many places a row's gradient is summed over.
//!
//! A row of the table receives the sum of the gradients of all places that have its index, in the order of the places, so that
//! the result does not depend on timing. The first place of an index computes the sum. On a GPU that is one warp per 256
//! features, which finds the others by comparing all indices with its own. The eight warps of a block share the indices that they
//! compare, 2,048 at a time in shared memory. The cost is that of the sum, and of comparing each index with every other: little
//! compared with the rest of a network for up to some hundred thousand indices.
//!
//! Rows that no place reads are not written: they are zero before the launch. An index out of range, and the padding index, write
//! nothing.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, Touch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element};

use crate::arguments::{self, arguments};
use crate::dtypes::with_float;
use crate::native::{Accesses, NativeKernel, Placed, native};
use crate::source::Source;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EmbeddingBackward {
    /// The number of places that read the table: indices, and rows of gradients.
    pub indices: u64,
    /// Rows of the table.
    pub embeddings: u64,
    /// Elements of a row.
    pub features: u64,
    /// The index whose row gets no gradient; −1 if there is no such index.
    pub padding: i64,
    /// The dtype of gradients and result: a floating-point type. 16-bit floats are summed in f32 and rounded once.
    pub dtype: DType,
}

arguments! { EmbeddingBackward { indices, embeddings, features, padding, dtype } }

/// Threads of a block.
const BLOCK: u64 = 256;
/// The number of places that a block sums for: one per warp.
const PLACES: u64 = 8;
/// The number of features of a place that a block sums: eight per lane of a warp.
const FEATURES: u64 = 256;

impl EmbeddingBackward {
    /// Returns the numbers of elements of gradients, indices and result.
    #[must_use]
    pub fn spans(&self) -> [u64; 3] {
        [self.indices * self.features, self.indices, self.embeddings * self.features]
    }

    /// Returns the row of the table for an index, or `None` if the index gets no gradient.
    fn row(&self, index: i64) -> Option<usize> {
        let row = u64::try_from(index).ok().filter(|&row| row < self.embeddings)?;
        (index != self.padding).then_some(row as usize)
    }

    /// Runs the kernel on the host, with the same bits as on a GPU.
    ///
    /// # Panics
    /// If an operand is shorter than its span.
    pub fn run<T: Element>(&self, gradient: &[T], indices: &[i64], result: &mut [T]) {
        let features = self.features as usize;
        let add = |sum: f64, value: f64| match T::DTYPE {
            DType::F64 => sum + value,
            _ => f64::from(sum as f32 + value as f32),
        };
        let mut sums = vec![0.0; if indices.is_empty() { 0 } else { result.len() }];
        let mut reads = vec![false; self.embeddings as usize];
        for (place, row) in
            indices.iter().enumerate().filter_map(|(place, &index)| Some((place, self.row(index)?)))
        {
            reads[row] = true;
            let gradient = &gradient[place * features..][..features];
            let sums = &mut sums[row * features..][..features];
            sums.iter_mut().zip(gradient).for_each(|(sum, value)| *sum = add(*sum, value.to_f64()));
        }
        for row in (0..reads.len()).filter(|&row| reads[row]) {
            let part = row * features..(row + 1) * features;
            result[part.clone()]
                .iter_mut()
                .zip(&sums[part])
                .for_each(|(result, &sum)| *result = T::from_f64(sum));
        }
    }

    /// Returns the launch. The grid is never empty: the caller must skip tables and lists without elements.
    pub fn launch_shape(&self) -> LaunchShape {
        let blocks = self.indices.div_ceil(PLACES).saturating_mul(self.features.div_ceil(FEATURES));
        LaunchShape { grid: [blocks.clamp(1, (1 << 31) - 1) as u32, 1, 1], block: [BLOCK as u32, 1, 1] }
    }
}

/// Returns the name of the entry point for a dtype.
///
/// # Panics
/// If the dtype is not a floating-point type.
pub fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "embedding_backward_float16",
        DType::Bf16 => "embedding_backward_bfloat16",
        DType::F32 => "embedding_backward_float32",
        DType::F64 => "embedding_backward_float64",
        other => panic!("embedding_backward on {other}: gradients are floats"),
    }
}

/// Returns the translation unit for a dtype, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point,
/// [`name`], takes the [words](NativeKernel::words) of a launch as one structure by value.
///
/// # Panics
/// If the dtype is not a floating-point type.
pub fn print(dtype: DType) -> String {
    Source::new(name(dtype)).elements(dtype).print(include_str!("embedding.cu"))
}

/// Operands: the gradients of the places (contiguous rows), their indices (i64), and a result of zeros (contiguous).
impl NativeKernel for Placed<EmbeddingBackward, [DevicePointer; 3]> {
    native! { self: name(self.kernel.dtype), print(self.kernel.dtype), run_on_host, words }

    fn check(&self) -> Result<(), Fault> {
        let dtype = self.kernel.dtype;
        Fault::unless(dtype.is_floating_point() && !dtype.is_float8(), || {
            format!("embedding_backward: gradients are floats, not {dtype}")
        })
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        (!self.kernel.spans().contains(&0)).then(|| self.kernel.launch_shape())
    }

    fn accesses(&self) -> Accesses {
        let ([gradients, indices, _], element) = (self.kernel.spans(), self.kernel.dtype.size_bytes() as u64);
        let [gradient, index, result] = self.at;
        Accesses::from_iter([
            Access::read(gradient, gradients * element),
            Access::read(index, indices * size_of::<i64>() as u64),
            // The other rows keep their values.
            result_of(&self.kernel, result).touching(Touch::chosen(gradients * element)),
        ])
    }
}

/// Returns the access to the whole table, of which a launch touches the rows that the indices name.
fn result_of(sizes: &EmbeddingBackward, result: DevicePointer) -> Access {
    Access::read_write(result, sizes.spans()[2] * sizes.dtype.size_bytes() as u64)
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, addresses, []): (EmbeddingBackward, _, _) = arguments::unpack("embedding_backward", launch)?;
    with_float!("embedding_backward", sizes.dtype, T => run_typed::<T>(launch, &sizes, addresses))
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &EmbeddingBackward,
    addresses: [DevicePointer; 3],
) -> Result<(), HostFault> {
    let [gradient, indices, result] = addresses;
    let [gradients, count, results] = sizes.spans().map(|span| span as usize);
    let (gradient, indices) = (launch.read::<T>(gradient, gradients)?, launch.read::<i64>(indices, count)?);
    sizes.run(gradient, indices, launch.write::<T>(result, results)?);
    if launch.has_tickets() {
        let row_bytes = sizes.features * size_of::<T>() as u64;
        let rows = indices.iter().filter_map(|&index| sizes.row(index));
        let parts = rows.map(|row| (result.address() + row as u64 * row_bytes, row_bytes));
        launch.touched(&result_of(sizes, result), parts);
    }
    Ok(())
}
