//! Tables of embeddings: rows at indices, their gradients, and bags of rows.

use thalweg_ir::{DType, Scalar};
use thalweg_kernels::scatter::Combine;
use thalweg_runtime::{Error, OutOfRangeReport, RangeOf, Result};

use super::Body::{Composite, Differentiable};
use super::index::{gathered, long, number_like};
use super::view::extents;
use super::{call as call_operator, operators, single};
use crate::autograd::formula::Formula;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::kernels::indexing::{self, call_scatter as scatter};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the rows of a weight (embeddings, features) at indices of any shape. The row `padding_idx` has no gradient; with
    /// `scale_grad_by_freq` a row's gradient is divided by how often it was read.
    "embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"
        = Differentiable(embedding, &EMBEDDING);
    /// Returns the gradient of a table of embeddings from the gradient of the rows that were read.
    "embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor"
        = Differentiable(|call| {
            let (gradient, indices) = (call.tensor(0), long(call.tensor(1), "embedding_dense_backward")?);
            let rows = extents(&[call.int(2)])?[0];
            embedding_dense_backward(call, gradient, &indices, rows, (call.int(3), call.bool(4))).map(single)
        }, &EMBEDDING_BACKWARD);
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

/// The gradient of a weight's rows.
static EMBEDDING: Formula = Formula {
    inputs: &[1],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (rows, padding) = (call.shape(0)[0] as i64, call.int(2));
            let (gradient, indices) = (call.gradient()?, call.saved(1)?);
            let arguments =
                [(&gradient).into(), (&indices).into(), rows.into(), padding.into(), call.bool(3).into()];
            let operator = built_in!("embedding_dense_backward")?;
            Ok(operator.call(&arguments, None, call.label())?.swap_remove(0))
        })
    },
};

/// The gradient of the embedding's gradient: each gradient that was added to a row has that row's gradient.
static EMBEDDING_BACKWARD: Formula = Formula {
    inputs: &[1],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            if call.bool(4) {
                return Err(Error::invalid(
                    "embedding: a gradient that is scaled by frequency cannot be differentiated again",
                ));
            }
            let (gradient, indices) = (call.gradient()?, call.saved(1)?);
            let arguments = [Argument::Tensor(&gradient), Argument::Tensor(&indices)];
            let read = built_in!("thalweg::embedding")?.call(&arguments, None, call.label())?.swap_remove(0);
            let padding = number_like(&indices, Scalar::I64(call.int(3)))?;
            let zero = number_like(&read, Scalar::F64(0.0))?;
            indices.eq(&padding)?.unsqueeze(-1)?.select_where(&zero, &read)
        })
    },
};

fn embedding(call: &Call<'_>) -> Result<Tensors> {
    let (weight, indices) = (call.tensor(0), long(call.tensor(1), "embedding")?);
    if weight.rank() != 2 {
        return Err(Error::invalid("'weight' must be 2-D"));
    }
    if call.bool(4) {
        return Err(Error::invalid("embedding: there are no sparse gradients; leave `sparse` out"));
    }
    let arguments = [weight.into(), (&indices).into(), Argument::Scalar(Scalar::I64(call.int(2)))];
    super::call(built_in!("thalweg::embedding")?, &arguments, None, call.label.location).map(single)
}

/// Returns the gradient of a table of this many rows; `padding` is the row that has none, and `scales` is whether a row's
/// gradient is divided by how often it was read.
fn embedding_dense_backward(
    call: &Call<'_>,
    gradient: &Tensor,
    indices: &Tensor,
    rows: usize,
    (padding, scales): (i64, bool),
) -> Result<Tensor> {
    let count = indices.elements();
    let features = gradient.shape().last().copied().unwrap_or(0);
    if gradient.rank() != indices.rank() + 1 || gradient.shape()[..indices.rank()] != *indices.shape() {
        return Err(Error::invalid(format!(
            "the gradient {:?} must have the shape of the indices {:?}, and features",
            gradient.shape(),
            indices.shape()
        )));
    }
    if !gradient.dtype().is_floating_point() {
        return Err(Error::invalid(format!("the gradient must be of floats, not {}", gradient.dtype())));
    }
    let mut gradient = gradient.reshape(&[count, features])?;
    if scales {
        let index = indices.reshape(&[1, count, 1])?;
        let (ones, zeros) = ([1, count, 1], [1, rows, 1]);
        let ones = Tensor::ones(&ones, gradient.dtype(), call.device)?;
        let counts =
            scatter(&Tensor::zeros(&zeros, gradient.dtype(), call.device)?, &index, &ones, Combine::Sum)?;
        gradient = gradient.div(&gathered(&counts, &index)?.reshape(&[count, 1])?)?;
    }
    indexing::embedding_gradient(&gradient, indices, [rows, features], padding, call.label)
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
