//! Convolution as a call of cuDNN.
//!
//! Output, input gradient and weight gradient of a convolution are the same sum of products, so that one operator computes any of
//! the three from the other two. Its gradients are calls of the operator itself, and gradients of gradients need no separate
//! formula. On the simulator it is a host function.

use std::panic::Location;

use thalweg_execute::backends::cudnn;
use thalweg_execute::{execute, library};
use thalweg_ir::{DType, Shape};
use thalweg_kernels::depthwise::{Depthwise, DepthwisePass};
use thalweg_ops::table;
use thalweg_runtime::{
    ConvolutionEpilogue, ConvolutionPass, ConvolutionShape, ElementFormat, Error, Label, Result,
    element_format, invalid, refuse, refuse_if,
};

use crate::autograd::formula::Formula;
use crate::deterministic::are_deterministic_algorithms_enabled;
use crate::dispatch::{self, Argument, Arguments, Call, Ints, built_in};
use crate::loops::{LoopArguments, run_into};
use crate::memory_format::{empty_in, is_channels_last, laid_out};
use crate::tensor::{Tensor, Tensors};

/// The operand that a call computes. The other two are passed in the order output, input, weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Computed {
    /// The output, from input and weight.
    Output,
    /// The input's gradient, or a transposed convolution, from output and weight.
    Input,
    /// The weight's gradient, from output and input.
    Weight,
}

impl Computed {
    fn of(number: i64) -> Result<Self> {
        match number {
            0 => Ok(Self::Output),
            1 => Ok(Self::Input),
            2 => Ok(Self::Weight),
            _ => Err(invalid!(
                "convolution: `computed` is {number}; 0 is the output, 1 the input, 2 the weight"
            )),
        }
    }

    const fn pass(self) -> ConvolutionPass {
        match self {
            Self::Output => ConvolutionPass::Forward,
            Self::Input => ConvolutionPass::InputGradient,
            Self::Weight => ConvolutionPass::WeightGradient,
        }
    }
}

/// Returns whether a convolution of these tensors is to be a call of cuDNN, if it is present and enabled, or of the simulator's
/// host function for it.
pub fn library_convolves(input: &Tensor, weight: &Tensor) -> bool {
    let device = input.device();
    device.properties().libraries.convolution
        && cudnn::enabled()
        && format_of(input.dtype()).is_some()
        && ![input, weight].iter().any(|tensor| tensor.shape().contains(&0))
}

/// Returns the format of elements that the library convolves.
fn format_of(dtype: DType) -> Option<ElementFormat> {
    element_format(dtype).filter(|&format| format != ElementFormat::R_64F)
}

/// Calls the operator with the size of the result, followed by stride, padding and dilation of each axis. A bias is added to the
/// result. If no gradient is recorded, the rectified linear unit may be applied to an output with a bias.
pub(crate) fn call(
    [first, second]: [&Tensor; 2],
    computed: Computed,
    size: &Ints,
    window: &[Ints; 3],
    groups: i64,
    (bias, relu): (Option<&Tensor>, bool),
) -> Result<Tensor> {
    let [stride, padding, dilation] = window;
    let lists = [size, stride, padding, dilation].map(|list| Argument::Ints(list));
    let mut arguments: Vec<Argument<'_>> = vec![first.into(), second.into(), (computed as i64).into()];
    arguments.extend(lists);
    arguments.extend([groups.into(), bias.map_or(Argument::None, Argument::from), relu.into()]);
    dispatch::call(built_in!("thalweg::convolution")?, &arguments, None, Location::caller())
}

/// Returns a tensor whose elements are laid out as the library reads them.
fn readable(tensor: &Tensor, channels_last: bool, label: Label) -> Result<Tensor> {
    let tensor = tensor.detach();
    let laid = laid_out(&tensor, channels_last)?;
    if laid.pointer().address().is_multiple_of(16) {
        return Ok(laid);
    }
    let stream = tensor.device().current_stream();
    let moved = empty_in(tensor.shape(), tensor.dtype(), (channels_last, &stream), label)?;
    moved.copy_(&laid)?;
    Ok(moved)
}

/// Returns the sizes of a call, without its layout, from the shapes of input, weight and output.
fn shape_of(
    call: &Call<'_>,
    [input, weight, output]: [&[usize]; 3],
    dtype: DType,
) -> Result<ConvolutionShape> {
    let rank = input.len();
    let window = [4, 5, 6].map(|place| call.ints(place));
    let fits = (3..=5).contains(&rank)
        && [weight.len(), output.len()] == [rank; 2]
        && window.iter().all(|list| list.len() == rank - 2 && list.iter().all(|&number| number >= 0))
        && call.int(7) > 0;
    let groups = call.int(7) as u64;
    let agree = fits
        && (input[0], output[1]) == (output[0], weight[0])
        && (weight[1] as u64).checked_mul(groups) == Some(input[1] as u64);
    let (true, Some(format)) = (agree, format_of(dtype)) else {
        refuse!(
            "convolution: an input {input:?}, a weight {weight:?} and an output {output:?} of {dtype} in {} groups do not belong together",
            call.int(7)
        );
    };
    let axes = |numbers: &mut dyn Iterator<Item = u64>, rest: u64| {
        let mut all = [rest; 3];
        all[5 - rank..].iter_mut().zip(numbers).for_each(|(place, number)| *place = number);
        all
    };
    let extents = |shape: &[usize]| axes(&mut shape[2..].iter().map(|&extent| extent as u64), 1);
    let [stride, padding, dilation] = [0, 1, 2]
        .map(|place| axes(&mut window[place].iter().map(|&number| number as u64), u64::from(place != 1)));
    let shape = ConvolutionShape {
        batch: input[0] as u64,
        input_channels: input[1] as u64,
        output_channels: output[1] as u64,
        groups,
        input: extents(input),
        kernel: extents(weight),
        output: extents(output),
        stride,
        padding,
        dilation,
        format,
        channels_last: false,
    };
    match shape.fault() {
        None => Ok(shape),
        Some(fault) => Err(invalid!("convolution: {fault}")),
    }
}

/// Returns a bias in the form that the library reads, for a result of so many channels.
fn readable_bias(call: &Call<'_>, bias: &Tensor, channels: usize) -> Result<Tensor> {
    let (of, dtype) = (call.tensor(0).dtype(), bias.dtype());
    if bias.shape() != [channels] || dtype != of {
        refuse!("convolution: a bias {:?} of {dtype} for {channels} channels of {of}", bias.shape());
    }
    readable(bias, false, call.label)
}

/// Returns whether the library is to add the bias of an output in the kernel that convolves. On an H200 its kernels with a bias are
/// faster than a second kernel if channels are innermost and fill vectors of 16 bytes, or if there is one point; elsewhere they
/// take up to 20 times as long as those without.
fn adds_bias_itself(shape: &ConvolutionShape) -> bool {
    let is_of_one_point = shape.output == [1; 3];
    let fills_vectors = shape.channels_last && shape.output_channels.is_multiple_of(8);
    shape.groups == 1 && (is_of_one_point || fills_vectors)
}

/// Adds a bias to each channel of a result.
fn add_bias(result: &Tensor, bias: &Tensor, label: Label) -> Result<()> {
    let mut shape = Shape::from_elem(1, result.rank());
    shape[1] = bias.elements();
    let arguments = LoopArguments { dtype: Some(result.dtype()), ..LoopArguments::default() };
    run_into(&table::add, &[result, &bias.reshape(&shape)?], &arguments, std::slice::from_ref(result), label)
}

/// Returns an operand of a depthwise convolution. One along a single axis is contiguous: neighbouring threads read neighbouring points.
fn depthwise_operand(tensor: &Tensor) -> Result<Tensor> {
    match tensor.detach() {
        line if line.rank() == 3 => line.contiguous(),
        image => Ok(image),
    }
}

/// Returns a convolution whose groups have one channel each, or a gradient of it, by a kernel of ours; `None` if there is none.
fn depthwise(call: &Call<'_>, shape: &ConvolutionShape, computed: Computed) -> Result<Option<Tensor>> {
    let [_, high, wide] = shape.kernel;
    let is_depthwise = [shape.input_channels, shape.output_channels] == [shape.groups; 2]
        && (3..=4).contains(&call.tensor(0).rank())
        && (high == wide || high == 1 || wide == 1)
        && shape.stride[1] == shape.stride[2]
        && shape.dilation == [1; 3];
    if !is_depthwise || call.bool(9) {
        return Ok(None);
    }
    let (first, second) = (call.tensor(0), call.tensor(1));
    // The elements of a window that is a line are along the last axis.
    let is_turned = wide == 1;
    let is_last = |x: &Tensor| x.layout().is_like_channels_last();
    let channels_last = is_last(first) || computed == Computed::Weight && is_last(second);
    let last_two = |list: [u64; 3]| if is_turned { [list[2], list[1]] } else { [list[1], list[2]] };
    let strides = |x: &Tensor| -> [u64; 4] {
        match x.layout().strides() {
            &[image, channel, point] => [image, channel, 0, point],
            &[image, channel, row, column] if is_turned => [image, channel, column, row],
            all => std::array::from_fn(|dim| all[dim]),
        }
        .map(|stride| stride as u64)
    };
    let mut kernel = Depthwise {
        images: shape.batch,
        channels: shape.groups,
        input: last_two(shape.input),
        output: last_two(shape.output),
        padding: last_two(shape.padding),
        strides: [[0; 4]; 2],
        channels_last,
        kernel: last_two(shape.kernel),
        stride: shape.stride[1],
        dtype: first.dtype(),
        pass: match computed {
            Computed::Output => DepthwisePass::Output,
            Computed::Input => DepthwisePass::Input,
            Computed::Weight => DepthwisePass::Weight,
        },
    };
    if !kernel.is_taken() {
        return Ok(None);
    }
    let (first, second) = (depthwise_operand(first)?, depthwise_operand(second)?);
    kernel.strides = [strides(&first), strides(&second)];
    let stream = call.device.current_stream();
    let size: Shape = call.ints(3).iter().map(|&extent| extent as usize).collect();
    if computed == Computed::Weight {
        let parts = kernel.parts() as usize;
        let sum = if parts == 1 { kernel.dtype } else { kernel.dtype.compute() };
        let results = call.new_result(&[parts, size.iter().product()], sum)?;
        call.launch(kernel, [Some(&first), Some(&second), Some(&results), None])?;
        let result = if parts == 1 { results } else { results.sum(&[0], false)?.to_dtype(kernel.dtype)? };
        return result.reshape(&size).map(Some);
    }
    let bias = call.optional_tensor(8).map(|bias| readable_bias(call, bias, size[1])).transpose()?;
    let (weight, result) =
        (second.contiguous()?, empty_in(&size, kernel.dtype, (channels_last, &stream), call.label)?);
    kernel.strides = match computed {
        Computed::Output => [strides(&result), strides(&first)],
        _ => [strides(&first), strides(&result)],
    };
    call.launch(kernel, [Some(&first), Some(&weight), Some(&result), bias.as_ref()])?;
    Ok(Some(result))
}

/// Computes one of input, weight and output from the other two.
pub(crate) fn backend(call: &Call<'_>) -> Result<Tensors> {
    let (first, second, computed) = (call.tensor(0), call.tensor(1), Computed::of(call.int(2))?);
    refuse_if!(
        first.dtype() != second.dtype(),
        "convolution: Input type ({}) and weight type ({}) should be the same",
        first.dtype(),
        second.dtype()
    );
    let size: Option<Shape> = call.ints(3).iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let size = size.ok_or_else(|| invalid!("convolution: a size of the result is negative"))?;
    let shapes: [&[usize]; 3] = match computed {
        Computed::Output => [first.shape(), second.shape(), &size],
        Computed::Input => [&size, second.shape(), first.shape()],
        Computed::Weight => [second.shape(), &size, first.shape()],
    };
    let shape = shape_of(call, shapes, first.dtype())?;
    if let Some(result) = depthwise(call, &shape, computed)? {
        return Ok(Tensors::from_iter([result]));
    }
    let bias = call.optional_tensor(8).map(|bias| readable_bias(call, bias, size[1])).transpose()?;
    let wants_last = first.rank() > 3 && (is_channels_last(first) || is_channels_last(second));
    let run = |channels_last: bool| -> Result<Tensor> {
        let stream = call.device.current_stream();
        let (a, b) =
            (readable(first, channels_last, call.label)?, readable(second, channels_last, call.label)?);
        let result = empty_in(&size, first.dtype(), (channels_last, &stream), call.label)?;
        let [a, b, made] = [&a, &b, &result].map(Tensor::pointer);
        let at = match computed {
            Computed::Output => [a, b, made],
            Computed::Input => [made, b, a],
            Computed::Weight => [b, made, a],
        };
        let shape = ConvolutionShape { channels_last, ..shape };
        let is_deterministic = are_deterministic_algorithms_enabled();
        let relu = call.bool(9);
        let adds_itself = relu || call.device.is_simulated() || adds_bias_itself(&shape);
        let is_fused = computed == Computed::Output && adds_itself;
        let (fused, separate) = bias.as_ref().map_or((None, None), |bias| match is_fused {
            true => (Some(ConvolutionEpilogue { bias: bias.pointer(), relu }), None),
            false => (None, Some(bias)),
        });
        let convolution = library::Convolution {
            shape: &shape,
            pass: computed.pass(),
            deterministic: is_deterministic,
            epilogue: fused,
        };
        execute(convolution, at, &stream, call.label)?;
        separate.map_or(Ok(()), |bias| add_bias(&result, bias, call.label))?;
        Ok(result)
    };
    let result = match run(wants_last) {
        Err(error) if wants_last && error.is_not_supported() => run(false),
        result => result,
    };
    Ok(Tensors::from_iter([result?]))
}

/// The gradients of [`backend`]: the same sum with the result's gradient in place of the result.
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1],
    outputs: &[],
    backward: |gradient_call| {
        let gradient = gradient_call.gradient()?;
        let computed = Computed::of(gradient_call.int(2))?;
        let window = [4, 5, 6].map(|place| gradient_call.ints(place));
        if gradient_call.bool(9) {
            refuse!("convolution: with the rectified linear unit in it, it has no gradient");
        }
        gradient_call.each(|place| {
            if place == 2 {
                let dims: Ints = (0..gradient.rank() as i64).filter(|&dim| dim != 1).collect();
                return gradient.sum(&dims, false).map(Some);
            }
            let size: Ints = gradient_call.shape(place).iter().map(|&extent| extent as i64).collect();
            let other = gradient_call.saved(1 - place)?;
            let (wanted, operands) = match (computed, place) {
                (Computed::Output, 0) => (Computed::Input, [&gradient, &other]),
                (Computed::Output, _) => (Computed::Weight, [&gradient, &other]),
                (Computed::Input, 0) => (Computed::Output, [&gradient, &other]),
                (Computed::Input, _) => (Computed::Weight, [&other, &gradient]),
                (Computed::Weight, 0) => (Computed::Output, [&other, &gradient]),
                (Computed::Weight, _) => (Computed::Input, [&other, &gradient]),
            };
            call(operands, wanted, &size, &window, gradient_call.int(7), (None, false)).map(Some)
        })
    },
};
