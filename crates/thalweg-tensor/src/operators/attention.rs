//! Attention, bilinear forms, and convolutions that keep the size.

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_kernels::attention::Dropout;
use thalweg_ops::LoopOp;
use thalweg_ops::structured::{LOG_SOFTMAX_BACKWARD, SOFTMAX_BACKWARD};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Lowered};
use super::create::pad;
use super::random::check_probability;
use super::{operators, single};
use crate::dispatch::{Argument, Arguments, Call, Ints, Operator, built_in};
use crate::loops::{LoopArguments, LoopCall, Points};
use crate::random::default_generator;
use crate::sdp::{Request, attention as attention_by};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns softmax(query · keyᵀ · scale + mask) · value. A mask of truth values selects the keys that are seen; `is_causal`
    /// is the mask of a lower triangle; with `enable_gqa` several heads of the query share one of key and value. Computed by a
    /// fused kernel if [`sdp`](crate::sdp) selects one, else in pieces of the scores, in f32 or f64.
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"
        = Composite(|call| attention(call).map(single)), autocast: Lower;
    /// Returns softmax along a dimension, with 0 in rows that are −∞ throughout.
    "_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor"
        = Composite(|call| {
            let x = call.tensor(0).to_dtype(call.optional_dtype(2).unwrap_or(call.tensor(0).dtype()))?;
            safe_softmax(&x, call.int(1)).map(single)
        });
    /// Returns the gradient of softmax along a dimension from its result.
    "_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"
        = Lowered(|call| softmax_backward(call, &SOFTMAX_BACKWARD));
    /// Returns the gradient of the logarithm of softmax along a dimension from its result.
    "_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"
        = Lowered(|call| softmax_backward(call, &LOG_SOFTMAX_BACKWARD));
    /// Returns input1ᵀ · weight · input2 + bias over the last dimensions: a weight is (out, in1, in2).
    "bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor"
        fn bilinear(input2: tensor, weight: tensor, bias: optional_tensor)
        = Composite(|call| bilinear(call).map(single)), autocast: Widest;
    /// Returns self where it is positive, else self · weight: one weight, or one per channel.
    "prelu(Tensor self, Tensor weight) -> Tensor" = Composite(prelu), autocast: Lower;
    /// Returns the convolution of sequences with `padding='valid'`, or padded with zeros so that the length is kept (`'same'`).
    "conv1d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, str padding=\"valid\", SymInt[1] dilation=1, SymInt groups=1) -> Tensor"
        = Composite(|call| same(call, built_in!("conv1d")?, 1)), autocast: Lower;
    /// Returns the convolution of images with `padding='valid'`, or padded with zeros so that the size is kept (`'same'`).
    "conv2d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, str padding=\"valid\", SymInt[2] dilation=1, SymInt groups=1) -> Tensor"
        = Composite(|call| same(call, built_in!("conv2d")?, 2)), autocast: Lower;
    /// Returns the convolution of volumes with `padding='valid'`, or padded with zeros so that the size is kept (`'same'`).
    "conv3d.padding(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, str padding=\"valid\", SymInt[3] dilation=1, SymInt groups=1) -> Tensor"
        = Composite(|call| same(call, built_in!("conv3d")?, 3)), autocast: Lower;
}

fn softmax_backward<'a>(call: &'a Call<'a>, operator: &'static LoopOp) -> Result<LoopCall<'a>> {
    let (gradient, y) = (call.tensor(0), call.tensor(1));
    if gradient.shape() != y.shape() || gradient.dtype() != y.dtype() || !y.dtype().is_floating_point() {
        refuse!("grad_output and output of a softmax must have the same shape and dtype of floats");
    }
    let dim = match y.rank() {
        0 => None,
        _ => Some(y.layout().dimension(call.int(2))?),
    };
    let arguments = LoopArguments {
        points: Points::Reduced(dim.into_iter().collect()),
        dtype: Some(call.dtype(3)),
        ..LoopArguments::default()
    };
    Ok(LoopCall::new(operator, call, call.tensors, arguments))
}

fn safe_softmax(x: &Tensor, dim: i64) -> Result<Tensor> {
    if x.rank() == 0 {
        return x.softmax(dim);
    }
    // Softmax of such rows and its gradient would be NaN.
    let is_masked = x.detach().eq_scalar(f64::NEG_INFINITY)?.all_dim(dim, true)?;
    let zero = Tensor::zeros(&[], x.dtype(), x.device())?;
    is_masked.select_where(&zero, &is_masked.select_where(&zero, x)?.softmax(dim)?)
}

fn attention(call: &Call<'_>) -> Result<Tensor> {
    let [query, key, value] = [0, 1, 2].map(|place| call.tensor(place));
    let (mask, p, is_causal) = (call.optional_tensor(3), call.float(4), call.bool(5));
    let refused = |why: String| Err(invalid!("scaled_dot_product_attention: {why}"));
    if [query, key, value].iter().any(|tensor| tensor.rank() < 2) {
        return refused("Expected query, key, and value to all be at least 2 dimensional".into());
    }
    if key.dtype() != query.dtype() || value.dtype() != query.dtype() || !query.dtype().is_floating_point() {
        return refused("Expected query, key, and value to have the same dtype of floats".into());
    }
    if let Some(mask) = mask
        && !mask.dtype().is_floating_point()
        && mask.dtype() != DType::Bool
    {
        return refused(format!(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: {} and query.dtype: {}",
            mask.dtype(),
            query.dtype()
        ));
    }
    if is_causal && mask.is_some() {
        return refused("Explicit attn_mask should not be set when is_causal=True".into());
    }
    // Without features all scores are 0, for any scale.
    let width = query.shape()[query.rank() - 1].max(1);
    let scale = call.optional_float(6).unwrap_or(1.0 / (width as f64).sqrt());
    check_probability(p)?;
    let generator = Dropout::of(p).map(|_| default_generator(call.device)).transpose()?;
    let dropout = generator.as_ref().map(|generator| (p, &**generator));
    let request = Request { is_causal, scale, enable_gqa: call.bool(7), mask, dropout };
    attention_by([query, key, value], request, call.label.location)
}

fn bilinear(call: &Call<'_>) -> Result<Tensor> {
    let [x, y, weight] = [0, 1, 2].map(|place| call.tensor(place));
    let &[outputs, left, right] = weight.shape() else {
        refuse!("bilinear(): weight must be 3-D, but got {}-D", weight.rank());
    };
    if x.rank() == 0 || x.rank() != y.rank() || x.shape()[..x.rank() - 1] != y.shape()[..y.rank() - 1] {
        refuse!("bilinear(): input batch dimensions do not match: got {:?} and {:?}", x.shape(), y.shape());
    }
    refuse_if!(
        x.shape()[x.rank() - 1] != left || y.shape()[y.rank() - 1] != right,
        "bilinear(): input sizes {:?} and {:?} do not match those of the weight {:?}",
        x.shape(),
        y.shape(),
        weight.shape()
    );
    if x.dtype() != weight.dtype() || y.dtype() != weight.dtype() {
        refuse!("bilinear(): inputs and weight must have the same dtype");
    }
    let batch: Shape = x.shape()[..x.rank() - 1].into();
    let rows: usize = batch.iter().product();
    let wide = if x.dtype().is_floating_point() { x.dtype().compute() } else { x.dtype() };
    let (a, b) = (x.reshape(&[rows, left])?.to_dtype(wide)?, y.reshape(&[rows, right])?.to_dtype(wide)?);
    let matrix = weight.to_dtype(wide)?.permute(&[1, 0, 2])?.reshape(&[left, outputs * right])?;
    let forms = a.mm(&matrix)?.reshape(&[rows, outputs, right])?;
    let mut result = forms.mul(&b.unsqueeze(1)?)?.sum(&[2], false)?;
    if let Some(bias) = call.optional_tensor(3) {
        if bias.shape() != [outputs] {
            refuse!("bilinear(): bias must have {outputs} elements, not {:?}", bias.shape());
        }
        result = result.add(&bias.to_dtype(wide)?)?;
    }
    let shape: Shape = batch.into_iter().chain([outputs]).collect();
    result.reshape(&shape)?.to_dtype(x.dtype())
}

fn prelu(call: &Call<'_>) -> Result<Tensors> {
    let (x, weight) = (call.tensor(0), call.tensor(1));
    if weight.dtype() != x.dtype() {
        refuse!("prelu: Type promoting not supported. Got {} and {}", x.dtype(), weight.dtype());
    }
    if weight.rank() > 1 {
        refuse!("prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {}", weight.rank());
    }
    let mut shape = Shape::from_elem(1, x.rank());
    if weight.elements() != 1 {
        refuse_if!(x.rank() == 0, "prelu: Not allow zero-dim input tensor.");
        let channels = x.shape().get(1).copied().unwrap_or(1);
        refuse_if!(
            channels != weight.elements(),
            "Mismatch of parameter numbers and input channel size. Found parameter numbers = {} and channel size = {channels}.",
            weight.elements()
        );
        if x.rank() > 1 {
            shape[1] = channels;
        }
    }
    let weight = weight.reshape(&shape)?;
    built_in!("_prelu_kernel")?.call(&[x.into(), (&weight).into()], None, call.label)
}

/// Calls a convolution with a padding given by name.
fn same(call: &Call<'_>, convolution: &'static Operator, axes: usize) -> Result<Tensors> {
    let (x, weight, stride, dilation) = (call.tensor(0), call.tensor(1), call.ints(3), call.ints(5));
    let mut padding = Ints::from_elem(0, axes);
    let mut input = x.clone();
    match call.str(4) {
        "valid" => {}
        "same" => {
            if stride.iter().any(|&stride| stride != 1) {
                refuse!("padding='same' is not supported for strided convolutions");
            }
            refuse_if!(
                weight.rank() != axes + 2 || x.rank() < axes,
                "Expected {0}-dimensional input for {0}-dimensional weight{1:?}, but got {2}-dimensional input of size {3:?} instead",
                weight.rank(),
                weight.shape(),
                x.rank(),
                x.shape()
            );
            if !matches!(dilation.len(), 1 | 3) && dilation.len() != axes {
                refuse!("dilation must either be a single int, or a tuple of {axes} ints, not {dilation:?}");
            }
            // If the two sides differ, the trailing one is one element wider.
            let mut wider: SmallVec<[i64; 6]> = SmallVec::from_elem(0, 2 * axes);
            for axis in 0..axes {
                let dilation = dilation[if dilation.len() == 1 { 0 } else { axis }];
                let total = (weight.shape()[2 + axis] as i64).saturating_sub(1).saturating_mul(dilation);
                refuse_if!(!(0..1 << 40).contains(&total), "a dilation of {dilation} cannot keep the size");
                padding[axis] = total / 2;
                wider[2 * (axes - 1 - axis) + 1] = total % 2;
            }
            input = pad(x, &wider, Scalar::I64(0))?;
        }
        other => return Err(invalid!("Invalid padding string: '{other}'")),
    }
    let arguments = [
        (&input).into(),
        weight.into(),
        Argument::from(call.optional_tensor(2)),
        stride.as_slice().into(),
        padding.as_slice().into(),
        dilation.as_slice().into(),
        call.int(6).into(),
    ];
    convolution.call(&arguments, None, call.label)
}
