//! Tables of embeddings: rows at indices, their gradients, and bags of rows.

use thalweg_ir::Scalar;
use thalweg_kernels::bags::BagMode;
use thalweg_kernels::scatter::Combine;
use thalweg_runtime::{Error, OutOfRangeReport, RangeOf, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::index::{gathered, long, number_like};
use super::view::extents;
use super::{call as call_operator, complex, operators, single};
use crate::autograd::formula::{Formula, GradientCall};
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::kernels::bags;
use crate::kernels::indexing::{self, call_scatter as scatter};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the rows of a weight (embeddings, features) at indices of any shape. The row `padding_idx` has no gradient; with
    /// `scale_grad_by_freq` a row's gradient is divided by how often it was read.
    "embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"
        = Differentiable(embedding, &EMBEDDING), complex: Parts(|call| of_complex(call).map(single));
    /// Returns the gradient of a table of embeddings from the gradient of the rows that were read.
    "embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor"
        = Differentiable(|call| {
            let (gradient, indices) = (call.tensor(0), long(call.tensor(1), "embedding_dense_backward")?);
            let rows = extents(&[call.int(2)])?[0];
            embedding_dense_backward(call, gradient, &indices, rows, (call.int(3), call.bool(4))).map(single)
        }, &EMBEDDING_BACKWARD);
    /// Returns the sum (0), mean (1) or maximum (2) of the rows of a table in bags, the bag of each index, the number of rows that
    /// count in each bag, and the index of each maximum, -1 in a bag without rows. Rows of a sum may have factors. `padding` is an index
    /// that does not count, -1 if there is none.
    "thalweg::bags(Tensor weight, Tensor indices, Tensor offsets, Tensor? per_sample_weights, int mode, int padding, int bags, bool scale_grad_by_freq) -> (Tensor, Tensor, Tensor, Tensor)"
        = Differentiable(bags::bags, &BAGS);
    /// Returns the scalar product of each index's row of a table with the gradient of its bag, 0 for the index `padding`.
    "thalweg::bag_products(Tensor grad, Tensor weight, Tensor indices, Tensor bag, int padding) -> Tensor"
        = Differentiable(bags::products, &BAG_PRODUCTS);
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

/// Returns the rows of a table of complex numbers, part by part.
fn of_complex(call: &Call<'_>) -> Result<Tensor> {
    let rows = |part: &Tensor| {
        let arguments = [
            part.into(),
            call.tensor(1).into(),
            call.int(2).into(),
            call.bool(3).into(),
            call.bool(4).into(),
        ];
        call_operator(call.operator, &arguments, None, call.label.location)
    };
    let [re, im] = complex::parts(call.tensor(0))?;
    complex::of_parts(&rows(&re)?, &rows(&im)?)
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
                refuse!("embedding: a gradient that is scaled by frequency cannot be differentiated again");
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
    refuse_if!(weight.rank() != 2, "'weight' must be 2-D");
    refuse_if!(call.bool(4), "embedding: there are no sparse gradients; leave `sparse` out");
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
    refuse_if!(
        gradient.rank() != indices.rank() + 1 || gradient.shape()[..indices.rank()] != *indices.shape(),
        "the gradient {:?} must have the shape of the indices {:?}, and features",
        gradient.shape(),
        indices.shape()
    );
    if !gradient.dtype().is_floating_point() {
        refuse!("the gradient must be of floats, not {}", gradient.dtype());
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
    let refused = |why: &str| Err(invalid!("embedding_bag: {why}"));
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

/// The gradients of bags: of a row, the sum of the gradients of the bags that have it; of a factor, a product.
static BAGS: Formula = Formula {
    inputs: &[0, 1, 3],
    outputs: &[1, 2, 3],
    backward: |call| {
        let (mode, gradient) = (bags::mode_of(call, 4)?, call.gradient()?);
        let (indices, bag) = (call.saved(1)?, call.result(1)?);
        call.each(|tensor| match (tensor, mode) {
            (0, BagMode::Max) => of_maxima(&gradient, &call.result(3)?, call.shape(0)[0]).map(Some),
            (0, _) => of_table(call, mode, [&gradient, &indices, &bag]).map(Some),
            _ => {
                let weight = call.saved(0)?;
                let arguments = [
                    (&gradient).into(),
                    (&weight).into(),
                    (&indices).into(),
                    (&bag).into(),
                    call.int(5).into(),
                ];
                call_operator(built_in!("thalweg::bag_products")?, &arguments, None, call.label().location)
                    .map(Some)
            }
        })
    },
};

/// Returns the gradient of the table of a call of `thalweg::bags` that sums or averages rows.
fn of_table(
    call: &GradientCall<'_>,
    mode: BagMode,
    [gradient, indices, bag]: [&Tensor; 3],
) -> Result<Tensor> {
    let gradient = match mode {
        BagMode::Mean => {
            let sizes = call.result(2)?.clamp_min(1)?.to_dtype(gradient.dtype())?;
            gradient.div(&sizes.unsqueeze(1)?)?
        }
        _ => gradient.clone(),
    };
    let gradient = gradient.index_select(0, bag)?;
    let gradient = match call.tensor_count() > 3 {
        true => gradient.mul(&call.saved(3)?.unsqueeze(1)?)?,
        false => gradient,
    };
    let rows = call.shape(0)[0] as i64;
    let arguments =
        [(&gradient).into(), indices.into(), rows.into(), call.int(5).into(), call.bool(7).into()];
    call_operator(built_in!("embedding_dense_backward")?, &arguments, None, call.label().location)
}

/// Returns the gradient of a table with this many rows, where the gradient of each maximum flows to the given index; −1 means that
/// the bag is empty.
fn of_maxima(gradient: &Tensor, maxima: &Tensor, rows: usize) -> Result<Tensor> {
    let zero = number_like(gradient, Scalar::F64(0.0))?;
    let gradient = maxima.ge_scalar(0)?.select_where(gradient, &zero)?;
    let width = gradient.shape()[1];
    Tensor::zeros(&[rows, width], gradient.dtype(), gradient.device())?.scatter_add(
        0,
        &maxima.clamp_min(0)?,
        &gradient,
    )
}

/// The gradients of products with bags' gradients: those of the products times the other rows, summed per bag and per row.
static BAG_PRODUCTS: Formula = Formula {
    inputs: &[0, 1, 2, 3],
    outputs: &[],
    backward: |call| {
        let (indices, bag) = (call.saved(2)?, call.saved(3)?);
        let gradient = match call.int(4) {
            padding @ 0.. => {
                let zero = number_like(&call.gradient()?, Scalar::F64(0.0))?;
                indices.eq_scalar(padding)?.select_where(&zero, &call.gradient()?)?
            }
            _ => call.gradient()?,
        };
        let gradient = gradient.unsqueeze(1)?;
        call.each(|tensor| {
            let (other, own) = if tensor == 0 { (&indices, &bag) } else { (&bag, &indices) };
            let rows = call.saved(1 - tensor)?.index_select(0, other)?.mul(&gradient)?;
            let zeros = Tensor::zeros(call.shape(tensor), rows.dtype(), call.device())?;
            zeros.index_add(0, own, &rows).map(Some)
        })
    },
};

fn embedding_bag(call: &Call<'_>, padding: Option<i64>) -> Result<Tensors> {
    check_bags(call)?;
    let weight = call.tensor(0);
    let (indices, offsets) = (long(call.tensor(1), "embedding_bag")?, long(call.tensor(2), "embedding_bag")?);
    let rows = weight.shape()[0] as i64;
    let padding = match padding {
        Some(padding) if !(-rows..rows).contains(&padding) => {
            refuse!("padding_idx must be within the number of embeddings");
        }
        Some(padding) => padding.rem_euclid(rows),
        None => -1,
    };
    let bags = (offsets.elements() - usize::from(call.bool(7))) as i64;
    let factors = call.optional_tensor(6);
    let arguments = [
        weight.into(),
        (&indices).into(),
        (&offsets).into(),
        factors.map_or(Argument::None, Argument::Tensor),
        call.int(4).into(),
        padding.into(),
        bags.into(),
        call.bool(3).into(),
    ];
    let _report = OutOfRangeReport::of("embedding_bag", RangeOf::Dimension(0));
    built_in!("thalweg::bags")?.call(&arguments, None, call.label)
}

fn of_sample_weights(call: &Call<'_>) -> Result<Tensor> {
    refuse_if!(call.int(5) != 0, "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
    let (indices, bag) = (long(call.tensor(2), "embedding_bag")?, long(call.tensor(4), "embedding_bag")?);
    let arguments =
        [call.tensor(0).into(), call.tensor(1).into(), (&indices).into(), (&bag).into(), call.int(6).into()];
    call_operator(built_in!("thalweg::bag_products")?, &arguments, None, call.label.location)
}
