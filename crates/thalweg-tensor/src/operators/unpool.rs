//! Inverses of pools, and pools with random windows.

use thalweg_ir::{DType, Shape};
use thalweg_kernels::scatter::Combine;
use thalweg_runtime::{Error, RangeOf, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::index::{checked, name_of};
use super::view::{extents, format_of, in_format};
use super::{operators, single};
use crate::dispatch::{Arguments, Call};
use crate::dtype_name::named;
use crate::kernels::indexing::call_scatter as scatter;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns images of this size with the elements at the indices that a maximum pool returned, and zeros elsewhere.
    "max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor"
        fn max_unpool2d(indices: tensor, output_size: ints)
        = Composite(|call| in_format(&unpool(call, 2)?, format_of(call.tensor(0))).map(single));
    /// Returns volumes of this size with the elements at the indices that a maximum pool returned, and zeros elsewhere.
    "max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding) -> Tensor"
        fn max_unpool3d(indices: tensor, output_size: ints, stride: ints, padding: ints)
        = Composite(|call| {
            if call.ints(3).iter().any(|&stride| stride <= 0) {
                refuse!("strides should be greater than zero, but got stride: {:?}", call.ints(3));
            }
            unpool(call, 3).map(single)
        });
    /// Returns the greatest element of each of `output_size` windows, which random numbers place, and its index (B. Graham,
    /// *Fractional Max-Pooling*, 2014).
    "fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor random_samples) -> (Tensor, Tensor)"
        fn fractional_max_pool2d(kernel_size: ints, output_size: ints, random_samples: tensor) -> 2
        = Composite(|call| fractional(call, 2));
    /// Returns the greatest element of each of `output_size` windows of volumes, which random numbers place, and its index.
    "fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor random_samples) -> (Tensor, Tensor)"
        fn fractional_max_pool3d(kernel_size: ints, output_size: ints, random_samples: tensor) -> 2
        = Composite(|call| fractional(call, 3));
}

fn unpool(call: &Call<'_>, axes: usize) -> Result<Tensor> {
    let (x, indices) = (call.tensor(0), call.tensor(1));
    let size = extents(&call.ints(2))?;
    if indices.dtype() != DType::I64 {
        refuse!("elements in indices should be type int64 but got: {}", indices.dtype());
    }
    if size.len() != axes {
        refuse!("There should be exactly {axes} elements in output_size, but got {}", size.len());
    }
    refuse_if!(
        !(axes + 1..=axes + 2).contains(&x.rank()),
        "Input to max_unpooling{axes}d should be a {}d or {}d Tensor, but got a tensor with {} dimensions.",
        axes + 1,
        axes + 2,
        x.rank()
    );
    refuse_if!(
        x.shape() != indices.shape(),
        "Expected shape of indices to be same as that of the input tensor ({:?}) but got indices tensor with shape: {:?}",
        x.shape(),
        indices.shape()
    );
    if !x.dtype().is_floating_point() {
        let dtype = named(x.dtype());
        return Err(Error::not_implemented(format!("\"max_unpool{axes}d\" not implemented for '{dtype}'")));
    }
    let front = x.rank() - axes;
    refuse_if!(
        x.shape()[front - 1..].contains(&0),
        "max_unpooling: Expected input to have non-zero size for non-batch dimensions, but got {:?}",
        x.shape()
    );
    let planes: usize = x.shape()[..front].iter().product();
    let shape: Shape = x.shape()[..front].iter().copied().chain(size.iter().copied()).collect();
    let volume: usize = size.iter().product();
    let zeros = Tensor::zeros(&[planes, volume, 1], x.dtype(), x.device())?;
    if volume == 0 || x.elements() == 0 {
        // Without elements the result still depends on the input, with a gradient of 0.
        return zeros.reshape(&shape)?.add(&x.narrow(0, 0, 0)?.sum(&[], false)?);
    }
    let rows = |tensor: &Tensor| tensor.reshape(&[planes, x.elements() / planes, 1]);
    let volumes = RangeOf::Volume([0, 1, 2].map(|axis| size.get(axis).copied().unwrap_or(0)));
    let places = checked(&rows(indices)?, (0, volume), (name_of(call), volumes))?;
    scatter(&zeros, &places, &rows(x)?, Combine::Replace)?.reshape(&shape)
}

/// Returns the first indices of the windows of an axis (planes, windows), from a random number per plane.
fn starts(sample: &Tensor, extent: usize, kernel: usize, windows: usize) -> Result<Tensor> {
    let device = sample.device();
    let last = (extent - kernel) as i64;
    if windows == 1 {
        return Tensor::full(&[sample.elements(), 1], last, DType::I64, device);
    }
    let alpha = (extent - kernel) as f64 / (windows as f64 - 1.0);
    let sample = sample.to_dtype(DType::F64)?.unsqueeze(1)?;
    let places = Tensor::arange(windows - 1, 0, 1, DType::F64, device)?;
    let start = |place: Tensor| place.mul_scalar(alpha)?.trunc()?.to_dtype(DType::I64);
    let list = start(sample.add(&places)?)?.sub(&start(sample.clone())?)?.clamp(0, last)?;
    Tensor::cat(&[list, Tensor::full(&[sample.elements(), 1], last, DType::I64, device)?], 1)
}

fn fractional(call: &Call<'_>, axes: usize) -> Result<Tensors> {
    let (x, kernel, size, samples) = (call.tensor(0), call.ints(1), call.ints(2), call.tensor(3));
    let refused = |why: String| Err(invalid!("fractional_max_pool{axes}d(): {why}"));
    if kernel.len() != axes || size.len() != axes {
        return refused(format!(
            "kernel_size and output_size must either be a single int or have {axes} elements"
        ));
    }
    if !(axes + 1..=axes + 2).contains(&x.rank()) || x.shape()[x.rank() - axes - 1..].contains(&0) {
        return refused(format!(
            "Expected a {}D or {}D tensor with non-zero size for non-batch dimensions, but got: {:?}",
            axes + 1,
            axes + 2,
            x.shape()
        ));
    }
    if x.dtype() != samples.dtype() || !x.dtype().is_floating_point() {
        return refused("Expect _random_samples to have the same dtype as input".into());
    }
    let front = x.rank() - axes;
    let planes: usize = x.shape()[..front].iter().product();
    // Samples may be those of a larger batch, of which the first are used.
    let (batch, channels) = (planes.checked_div(x.shape()[front - 1]).unwrap_or(0), x.shape()[front - 1]);
    let found = samples.shape();
    if found.len() != 3 || found[0] < batch || found[1] != channels || found[2] != axes {
        return refused(format!(
            "Expect _random_samples of a batch of {batch}, {channels} channels and {axes} axes, but got {found:?}"
        ));
    }
    let samples = samples.narrow(0, 0, batch)?;
    let spatial = &x.shape()[front..];
    for axis in 0..axes {
        let fits = kernel[axis] > 0
            && size[axis] > 0
            && size[axis].checked_add(kernel[axis]).is_some_and(|sum| sum - 1 <= spatial[axis] as i64);
        if !fits {
            return refused(format!(
                "pool height or width too large relative to input: {kernel:?} and {size:?} of {spatial:?}"
            ));
        }
    }
    // The positions of all windows' elements: (planes, windows, elements of a window), added axis by axis.
    let list = samples.detach().reshape(&[planes, axes])?;
    let mut index = Tensor::zeros(&[planes, 1, 1], DType::I64, x.device())?;
    for axis in 0..axes {
        // PyTorch's numbers start with the last axis.
        let sample = list.select(1, axes - 1 - axis)?.contiguous()?;
        let (count, windows) = (kernel[axis] as usize, size[axis] as usize);
        let inside = Tensor::arange(count, 0, 1, DType::I64, x.device())?;
        let own = starts(&sample, spatial[axis], count, windows)?.unsqueeze(2)?.add(&inside)?;
        let (former, places) = (index.shape()[1], index.shape()[2]);
        let outer = index.mul_scalar(spatial[axis] as i64)?.unsqueeze(2)?.unsqueeze(4)?;
        index = outer.add(&own.unsqueeze(1)?.unsqueeze(3)?)?.reshape(&[
            planes,
            former * windows,
            places * count,
        ])?;
    }
    let [windows, places] = [index.shape()[1], index.shape()[2]];
    let flat = x.reshape(&[planes, spatial.iter().product()])?;
    let elements =
        flat.gather(1, &index.reshape(&[planes, windows * places])?)?.reshape(&[planes, windows, places])?;
    let [values, chosen] = elements.max_dim(2, false)?;
    let chosen = index.gather(2, &chosen.unsqueeze(2)?)?.squeeze(2)?;
    let shape: Shape =
        x.shape()[..front].iter().copied().chain(size.iter().map(|&size| size as usize)).collect();
    Ok(Tensors::from_iter([values.reshape(&shape)?, chosen.reshape(&shape)?.contiguous()?]))
}
