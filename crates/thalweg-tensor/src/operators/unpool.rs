//! Inverses of pools, pools with random windows, and bags of embeddings.

use thalweg_ir::{DType, Shape};
use thalweg_runtime::{Error, OutOfRangeReport, RangeOf, Result};

use super::Body::{Composite, Differentiable};
use super::index::long;
use super::view::{extents, format_of, in_format};
use super::{call as call_operator, operators, single};
use crate::autograd::formula::Formula;
use crate::dispatch::{Arguments, Call, built_in};
use crate::kernels::indexing;
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
                return Err(Error::invalid(format!("strides should be greater than zero, but got stride: {:?}", call.ints(3))));
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
    /// Returns the sums of the rows of a table at indices in bags: `bag` is that of each index, in order.
    "thalweg::sums_of_bags(Tensor weight, Tensor indices, Tensor bag, int bags) -> Tensor"
        = Differentiable(indexing::sums_of_bags, &SUMS_OF_BAGS);
    /// Returns the sum (0), mean (1) or maximum (2) of the rows of each bag, which are at the indices from its offset to the next
    /// one's; the bag of each index; the number of rows that count in each bag; and, for a maximum, its row.
    "embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)"
        = Composite(|call| embedding_bag(call, call.optional_int(8))), autocast: Parts;
    /// Returns the sum, mean or maximum of the rows of each bag, the bag of each index, the number of rows that count in each,
    /// and the maximum's row.
    "_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)"
        = Composite(|call| embedding_bag(call, Some(call.int(8)).filter(|&padding| padding >= 0)));
    /// Returns the gradient of the weights of the samples of bags that are summed: the product of the gradient of a sample's bag
    /// with its row.
    "_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor"
        = Composite(|call| of_sample_weights(call).map(single));
    /// Returns the sum, mean or maximum of the rows of each bag, the bag of each index, the number of rows in each, and the
    /// maximum's row.
    "embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False) -> (Tensor, Tensor, Tensor, Tensor)"
        fn embedding_bag(indices: tensor, offsets: tensor, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: optional_tensor, include_last_offset: bool) -> 4
        = Composite(|call| embedding_bag(call, None)), autocast: Parts;
}

fn unpool(call: &Call<'_>, axes: usize) -> Result<Tensor> {
    let (x, indices) = (call.tensor(0), call.tensor(1));
    let size = extents(&call.ints(2))?;
    if indices.dtype() != DType::I64 {
        return Err(Error::invalid(format!(
            "elements in indices should be type int64 but got: {}",
            indices.dtype()
        )));
    }
    if size.len() != axes {
        return Err(Error::invalid(format!(
            "There should be exactly {axes} elements in output_size, but got {}",
            size.len()
        )));
    }
    if !(axes + 1..=axes + 2).contains(&x.rank()) {
        return Err(Error::invalid(format!(
            "Input to max_unpooling{axes}d should be a {}d or {}d Tensor, but got a tensor with {} dimensions.",
            axes + 1,
            axes + 2,
            x.rank()
        )));
    }
    if x.shape() != indices.shape() {
        return Err(Error::invalid(format!(
            "Expected shape of indices to be same as that of the input tensor ({:?}) but got indices tensor with shape: {:?}",
            x.shape(),
            indices.shape()
        )));
    }
    let front = x.rank() - axes;
    if x.shape()[front - 1..].contains(&0) {
        return Err(Error::invalid(format!(
            "max_unpooling: Expected input to have non-zero size for non-batch dimensions, but got {:?}",
            x.shape()
        )));
    }
    let planes: usize = x.shape()[..front].iter().product();
    let shape: Shape = x.shape()[..front].iter().copied().chain(size.iter().copied()).collect();
    let rows = |tensor: &Tensor| tensor.reshape(&[planes, x.elements() / planes.max(1)]);
    let zeros = Tensor::zeros(&[planes, size.iter().product()], x.dtype(), x.device())?;
    zeros.scatter(1, &rows(indices)?, &rows(x)?)?.reshape(&shape)
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
    let refused = |why: String| Err(Error::invalid(format!("fractional_max_pool{axes}d(): {why}")));
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

fn check_bags(call: &Call<'_>) -> Result<()> {
    let (weight, indices, offsets, mode) = (call.tensor(0), call.tensor(1), call.tensor(2), call.int(4));
    let refused = |why: &str| Err(Error::invalid(format!("embedding_bag: {why}")));
    if weight.rank() != 2 || !weight.dtype().is_floating_point() {
        return refused("the weight has to be a matrix of floats");
    }
    if indices.rank() != 1 || offsets.rank() != 1 {
        return refused("input and offsets have to be 1D tensors");
    }
    if !(0..=2).contains(&mode) {
        return refused("mode has to be 0 (sum), 1 (mean) or 2 (max)");
    }
    if call.bool(7) && offsets.elements() == 0 {
        return refused("include_last_offset: number of offsets should be at least 1");
    }
    if let Some(weights) = call.optional_tensor(6) {
        if mode != 0 {
            return refused(
                "per_sample_weights was not None. per_sample_weights is only supported for mode='sum'",
            );
        }
        if weights.shape() != indices.shape() || weights.dtype() != weight.dtype() {
            return refused("expected per_sample_weights of the weight's dtype, and of the indices' shape");
        }
    }
    Ok(())
}

/// Returns the sums of the rows at indices, which are checked, in bags.
fn sums_of_bags(
    call: &Call<'_>,
    weight: &Tensor,
    [indices, bag]: [&Tensor; 2],
    bags: usize,
) -> Result<Tensor> {
    {
        let _report = OutOfRangeReport::of("embedding_bag", RangeOf::Dimension(0));
        let arguments = [indices.into(), (weight.shape()[0] as i64).into()];
        call_operator(built_in!("thalweg::index_check")?, &arguments, None, call.label.location)?;
    }
    let arguments = [weight.into(), indices.into(), bag.into(), (bags as i64).into()];
    call_operator(built_in!("thalweg::sums_of_bags")?, &arguments, None, call.label.location)
}

/// The gradient of sums in bags: each row's is the sum of the gradients of the bags that read it.
static SUMS_OF_BAGS: Formula = Formula {
    inputs: &[1, 2],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (indices, bag) = (call.saved(1)?, call.saved(2)?);
            let gradient = call.gradient()?.index_select(0, &bag)?;
            let rows = call.shape(0)[0] as i64;
            let arguments =
                [(&gradient).into(), (&indices).into(), rows.into(), (-1i64).into(), false.into()];
            call_operator(built_in!("embedding_dense_backward")?, &arguments, None, call.label().location)
        })
    },
};

fn embedding_bag(call: &Call<'_>, padding: Option<i64>) -> Result<Tensors> {
    check_bags(call)?;
    let (weight, mode) = (call.tensor(0), call.int(4));
    let (indices, offsets) = (long(call.tensor(1), "embedding_bag")?, long(call.tensor(2), "embedding_bag")?);
    let (count, rows) = (indices.elements(), weight.shape()[0] as i64);
    let padding = match padding {
        Some(padding) if !(-rows..rows).contains(&padding) => {
            return Err(Error::invalid("padding_idx must be within the number of embeddings"));
        }
        Some(padding) => Some(padding.rem_euclid(rows)),
        None => None,
    };
    let bags = offsets.elements() - usize::from(call.bool(7));
    let device = call.device;
    // Each offset begins a bag; the first is 0.
    let ones = Tensor::ones(&[bags], DType::I64, device)?;
    let begins =
        Tensor::zeros(&[count + 1], DType::I64, device)?.index_add(0, &offsets.narrow(0, 0, bags)?, &ones)?;
    let bag = begins.narrow(0, 0, count)?.cumsum(0)?.sub_scalar(1)?;
    let counted = match padding {
        Some(padding) => indices.ne_scalar(padding)?,
        None => Tensor::ones(&[count], DType::Bool, device)?,
    };
    let sizes =
        Tensor::zeros(&[bags], DType::I64, device)?.index_add(0, &bag, &counted.to_dtype(DType::I64)?)?;
    let width = weight.shape()[1];
    let nothing = || Tensor::zeros(&[0, width], DType::I64, device);
    let is_wide = weight.dtype().compute() == weight.dtype();
    let is_plain = padding.is_none() && call.optional_tensor(6).is_none() && rows > 0;
    if is_plain && (mode == 0 || mode == 1 && is_wide) {
        let sums = sums_of_bags(call, weight, [&indices, &bag], bags)?;
        let result = match mode {
            0 => sums,
            _ => sums.div(&sizes.clamp_min(1)?.to_dtype(weight.dtype())?.unsqueeze(1)?)?,
        };
        return Ok(Tensors::from_iter([result, bag, sizes, nothing()?]));
    }
    let read = {
        let _report = OutOfRangeReport::of("embedding_bag", RangeOf::Dimension(0));
        weight.index_select(0, &indices)?
    };
    let wide = weight.dtype().compute();
    let zeros = Tensor::zeros(&[bags, width], wide, device)?;
    let kept = counted.unsqueeze(1)?;
    let zero = Tensor::zeros(&[], weight.dtype(), device)?;
    let result = if mode == 2 {
        let lowest = Tensor::full(&[], f64::NEG_INFINITY, weight.dtype(), device)?;
        let index = bag.unsqueeze(1)?.expand(&[count, width])?;
        let source = kept.select_where(&read, &lowest)?;
        let most = Tensor::full(&[bags, width], f64::NEG_INFINITY, weight.dtype(), device)?
            .scatter_reduce(0, &index, &source, "amax", true)?;
        sizes.gt_scalar(0)?.unsqueeze(1)?.select_where(&most, &zero)?
    } else {
        let weighted = match call.optional_tensor(6) {
            Some(weights) => read.to_dtype(wide)?.mul(&weights.to_dtype(wide)?.unsqueeze(1)?)?,
            None => read.to_dtype(wide)?,
        };
        let source = kept.select_where(&weighted, &zero.to_dtype(wide)?)?;
        let sum = zeros.index_add(0, &bag, &source)?;
        match mode {
            1 => sum.div(&sizes.clamp_min(1)?.to_dtype(wide)?.unsqueeze(1)?)?,
            _ => sum,
        }
        .to_dtype(weight.dtype())?
    };
    let maxima = Tensor::zeros(&[if mode == 2 { bags } else { 0 }, width], DType::I64, device)?;
    Ok(Tensors::from_iter([result, bag, sizes, maxima]))
}

fn of_sample_weights(call: &Call<'_>) -> Result<Tensor> {
    let [gradient, weight, indices, bag] = [0, 1, 2, 4].map(|place| call.tensor(place));
    if call.int(5) != 0 {
        return Err(Error::invalid(
            "embedding_bag_backward: per_sample_weights only supported for mode='sum'",
        ));
    }
    let fits = gradient.rank() == 2
        && weight.rank() == 2
        && gradient.shape()[1] == weight.shape()[1]
        && gradient.dtype() == weight.dtype()
        && indices.rank() == 1
        && bag.shape() == indices.shape();
    if !fits {
        return Err(Error::invalid(format!(
            "embedding_bag_backward: a gradient {:?} {}, a weight {:?} {}, indices {:?} and their bags {:?} do not fit together",
            gradient.shape(),
            gradient.dtype(),
            weight.shape(),
            weight.dtype(),
            indices.shape(),
            bag.shape()
        )));
    }
    let (indices, bag) = (long(indices, "embedding_bag")?, long(bag, "embedding_bag")?);
    let wide = weight.dtype().compute();
    let rows = |tensor: &Tensor, index: &Tensor| tensor.index_select(0, index)?.to_dtype(wide);
    let products = rows(gradient, &bag)?.mul(&rows(weight, &indices)?)?.sum(&[1], false)?;
    let padding = call.int(6);
    let products = match padding {
        0.. => indices.eq_scalar(padding)?.select_where(&products.zeros_like()?, &products)?,
        _ => products,
    };
    products.to_dtype(weight.dtype())
}
