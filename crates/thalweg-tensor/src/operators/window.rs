//! Windows over images of one, two or three axes: columns, convolutions.

use thalweg_execute::if_supported;
use thalweg_ir::{DType, Shape};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Differentiable};
use super::{call as call_operator, operators, single};
use crate::autograd::formula::Formula;
use crate::autograd::is_grad_enabled;
use crate::dispatch::{Argument, Arguments, Call, Ints, built_in};
use crate::kernels::convolution::{self, Computed};
use crate::kernels::geometry::{Geometry, PerAxis, Placing};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the windows of images (batch, channels, …) as columns (batch, channels · elements of a window, windows).
    "thalweg::unfold(Tensor self, int[] kernel_size, int[] dilation, int[] padding, int[] stride) -> Tensor"
        = Differentiable(unfold, &UNFOLD);
    /// Returns the sum of all window entries at each point of images: the transpose of unfolding.
    "thalweg::fold(Tensor self, int[] output_size, int[] kernel_size, int[] dilation, int[] padding, int[] stride, int[] windows) -> Tensor"
        = Differentiable(fold, &FOLD);
    /// Returns the convolution of images with a weight, plus bias; or its transpose.
    "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor"
        = Composite(|call| {
            let [stride, padding, dilation] = [3, 4, 5].map(|place| call.ints(place));
            let output_padding = call.bool(6).then(|| call.ints(7));
            Convolution { stride, padding, dilation, output_padding, groups: call.int(8) }.run(call)
        }), autocast: Lower;
    /// Returns the gradients of a convolution for input, weight and bias, those that the mask selects; the others are empty.
    "convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
        = Composite(convolution_backward);
    /// Returns the convolution of images or volumes with a weight, plus bias, with negative elements set to 0: one call of cuDNN
    /// if it supports that and no gradient is recorded.
    "cudnn_convolution_relu(Tensor self, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups) -> Tensor"
        = Composite(convolution_relu), autocast: Lower;
    /// Returns the convolution of sequences (batch, channels, length) with a weight (out, in / groups, length), plus bias.
    "conv1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, SymInt[1] padding=0, SymInt[1] dilation=1, SymInt groups=1) -> Tensor"
        = Composite(|call| Convolution::plain(call).run(call)), autocast: Lower;
    /// Returns the convolution of images (batch, channels, height, width) with a weight (out, in / groups, height, width), plus
    /// bias.
    "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1) -> Tensor"
        = Composite(|call| Convolution::plain(call).run(call)), autocast: Lower;
    /// Returns the convolution of volumes (batch, channels, depth, height, width) with a weight, plus bias.
    "conv3d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, SymInt[3] padding=0, SymInt[3] dilation=1, SymInt groups=1) -> Tensor"
        = Composite(|call| Convolution::plain(call).run(call)), autocast: Lower;
    /// Returns the transpose of a convolution of sequences; its weight is (in, out / groups, length).
    "conv_transpose1d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[1] stride=1, SymInt[1] padding=0, SymInt[1] output_padding=0, SymInt groups=1, SymInt[1] dilation=1) -> Tensor"
        = Composite(|call| Convolution::transposed(call).run(call)), autocast: Lower;
    /// Returns the transpose of a convolution of images; its weight is (in, out / groups, height, width).
    "conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] output_padding=0, SymInt groups=1, SymInt[2] dilation=1) -> Tensor"
        = Composite(|call| Convolution::transposed(call).run(call)), autocast: Lower;
    /// Returns the transpose of a convolution of volumes; its weight is (in, out / groups, depth, height, width).
    "conv_transpose3d.input(Tensor input, Tensor weight, Tensor? bias=None, SymInt[3] stride=1, SymInt[3] padding=0, SymInt[3] output_padding=0, SymInt groups=1, SymInt[3] dilation=1) -> Tensor"
        = Composite(|call| Convolution::transposed(call).run(call)), autocast: Lower;
}

/// Returns numbers per axis as the last of three; the others are `rest`. A single number applies to every axis.
pub(super) fn per_axis(name: &str, list: &[i64], axes: usize, rest: usize) -> Result<PerAxis> {
    if list.len() != axes && list.len() != 1 {
        refuse!("{name} must either be a single int, or a tuple of {axes} ints, not {list:?}");
    }
    let mut numbers = [rest; 3];
    for axis in 0..axes {
        let number = list[if list.len() == 1 { 0 } else { axis }];
        // Half of the range, so that sums of a few stay inside it.
        numbers[3 - axes + axis] = usize::try_from(number)
            .ok()
            .filter(|&number| number <= isize::MAX as usize / 4)
            .ok_or_else(|| invalid!("{name} must be at least 0 and below 2⁶¹, not {number}"))?;
    }
    Ok(numbers)
}

/// Returns the extents of the last axes of a shape.
pub(super) fn extents_of(shape: &[usize], axes: usize) -> PerAxis {
    let mut extents = [1; 3];
    extents[3 - axes..].copy_from_slice(&shape[shape.len() - axes..]);
    extents
}

/// Refuses empty windows, and a stride of 0.
pub(super) fn check_positive(numbers: [PerAxis; 3]) -> Result<()> {
    match ["kernel size", "stride", "dilation"].iter().zip(numbers).find(|(_, list)| list.contains(&0)) {
        Some((name, _)) => Err(invalid!("{name} must be greater than zero, but got 0")),
        None => Ok(()),
    }
}

/// Returns the extents of dilated windows over the last axes, and the number that fits.
pub(super) fn strided(
    extents: PerAxis,
    [kernel, stride, padding, dilation]: [PerAxis; 4],
    axes: usize,
    ceil_mode: bool,
) -> Result<Geometry> {
    let mut windows = [0; 3];
    check_positive([kernel, stride, dilation])?;
    for axis in 0..3 {
        let reach = dilation[axis].checked_mul(kernel[axis] - 1).and_then(|reach| reach.checked_add(1));
        let padded = extents[axis] + 2 * padding[axis];
        // Rounding up, the last window may begin where it does not fit.
        let beyond = if ceil_mode { stride[axis] - 1 } else { 0 };
        let Some(room) = reach.and_then(|reach| (padded + beyond).checked_sub(reach)) else {
            let joined = |number: &dyn Fn(usize) -> u128| {
                (3 - axes..3).map(|axis| number(axis).to_string()).collect::<Vec<_>>().join(" x ")
            };
            refuse!(
                "Calculated padded input size per channel: ({}). Kernel size: ({}). Kernel size can't be greater than actual input size",
                joined(&|axis| extents[axis] as u128 + 2 * padding[axis] as u128),
                joined(&|axis| dilation[axis] as u128 * (kernel[axis] as u128 - 1) + 1)
            );
        };
        let rounded = room / stride[axis];
        // The last window begins inside the image or the padding before it.
        let begins_behind =
            ceil_mode && rounded.saturating_mul(stride[axis]) >= extents[axis] + padding[axis];
        windows[axis] = rounded + 1 - usize::from(begins_behind && rounded > 0);
    }
    let placing = Placing::Strided { kernel, stride, padding, dilation, counts_padding: true, divisor: 0 };
    Ok(Geometry { extents, windows, placing })
}

/// Images (batch, channels, …) and their windows.
struct Columns {
    geometry: Geometry,
    batch: usize,
    channels: usize,
}

impl Columns {
    /// Returns the windows of a call of `thalweg::unfold` over an image of this shape.
    fn of(call: &impl Arguments, shape: &[usize]) -> Result<Self> {
        let Some(axes) = shape.len().checked_sub(2).filter(|axes| (1..=3).contains(axes)) else {
            refuse!("images are (batch, channels, …) of 1 to 3 axes, not {shape:?}");
        };
        let numbers = |name: &str, place: usize, rest| per_axis(name, &call.ints(place), axes, rest);
        let kernel = numbers("kernel_size", 1, 1)?;
        let list = [kernel, numbers("stride", 4, 1)?, numbers("padding", 3, 0)?, numbers("dilation", 2, 1)?];
        let geometry = strided(extents_of(shape, axes), list, axes, false)?;
        Ok(Self { geometry, batch: shape[0], channels: shape[1] })
    }

    /// Returns the windows of a call of `thalweg::fold` over columns of this shape, and the shape of the images.
    fn folded(call: &impl Arguments, shape: &[usize]) -> Result<(Self, Shape)> {
        let output = call.ints(1);
        let axes = output.len();
        refuse_if!(!(1..=3).contains(&axes), "images have 1 to 3 axes, not {output:?}");
        let numbers = |name: &str, place: usize, rest| per_axis(name, &call.ints(place), axes, rest);
        let extents = numbers("output_size", 1, 1)?;
        let list = [
            numbers("kernel_size", 2, 1)?,
            numbers("stride", 5, 1)?,
            numbers("padding", 4, 0)?,
            numbers("dilation", 3, 1)?,
        ];
        let mut geometry = strided(extents, list, axes, false)?;
        let windows = numbers("windows", 6, 1)?;
        if (0..3).any(|axis| windows[axis] > geometry.windows[axis]) {
            refuse!("{windows:?} windows do not fit into {extents:?}");
        }
        geometry.windows = windows;
        let places = geometry.places()?;
        match *shape {
            [batch, rows, count] if rows % places == 0 && count == geometry.window_count()? => {
                let channels = rows / places;
                let shape =
                    [batch, channels].into_iter().chain(extents[3 - axes..].iter().copied()).collect();
                Ok((Self { geometry, batch, channels }, shape))
            }
            _ => Err(invalid!(
                "columns of shape {shape:?} are not (batch, channels · {places}, {})",
                geometry.window_count()?
            )),
        }
    }

    fn planes(&self) -> usize {
        self.batch * self.channels
    }

    fn unfold(&self, x: &Tensor, label: thalweg_runtime::Label) -> Result<Tensor> {
        let places = self.geometry.places()?;
        let rows = thalweg_ir::element_count(&[self.channels, places])?;
        self.geometry.unfold(x, self.planes(), label)?.reshape(&[
            self.batch,
            rows,
            self.geometry.window_count()?,
        ])
    }
}

fn unfold(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0).detach();
    Columns::of(call, x.shape())?.unfold(&x, call.label).map(single)
}

static UNFOLD: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let columns = Columns::of(call, call.shape(0))?;
            let axes = call.shape(0).len() - 2;
            let last = |numbers: PerAxis| -> Ints {
                numbers[3 - axes..].iter().map(|&number| number as i64).collect()
            };
            let (output, windows) = (last(columns.geometry.extents), last(columns.geometry.windows));
            let [kernel, dilation, padding, stride] = [1, 2, 3, 4].map(|place| call.ints(place));
            folded(&call.gradient()?, [&output, &kernel, &dilation, &padding, &stride, &windows])
        })
    },
};

fn fold(call: &Call<'_>) -> Result<Tensors> {
    let x = call.tensor(0).detach();
    let (columns, shape) = Columns::folded(call, x.shape())?;
    columns.geometry.fold(&x, columns.planes(), &shape, call.label).map(single)
}

static FOLD: Formula = Formula {
    inputs: &[],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let [kernel, dilation, padding, stride] = [2, 3, 4, 5].map(|place| call.ints(place));
            let columns = unfolded(&call.gradient()?, [&kernel, &dilation, &padding, &stride])?;
            if columns.shape() == call.shape(0) {
                return Ok(columns);
            }
            // There were fewer windows than would fit.
            let (folded, shape) = Columns::folded(call, call.shape(0))?;
            let axes = shape.len() - 2;
            let rows = call.shape(0)[1];
            let fitting = strided_of(&folded.geometry)?;
            let mut all: Shape = [shape[0], rows].into_iter().collect();
            all.extend_from_slice(&fitting[3 - axes..]);
            let mut part = columns.reshape(&all)?;
            for axis in 0..axes {
                part = part.narrow(2 + axis as i64, 0, folded.geometry.windows[3 - axes + axis])?;
            }
            part.reshape(call.shape(0))
        })
    },
};

/// Returns the number of windows that fit along each axis.
fn strided_of(geometry: &Geometry) -> Result<PerAxis> {
    let Placing::Strided { kernel, stride, padding, dilation, .. } = geometry.placing else {
        return Ok(geometry.windows);
    };
    Ok(strided(geometry.extents, [kernel, stride, padding, dilation], 3, false)?.windows)
}

/// Calls `thalweg::unfold`.
pub(super) fn unfolded(x: &Tensor, [kernel, dilation, padding, stride]: [&Ints; 4]) -> Result<Tensor> {
    let lists = [kernel, dilation, padding, stride].map(|list| Argument::Ints(list));
    let arguments: Vec<_> = [x.into()].into_iter().chain(lists).collect();
    call_operator(built_in!("thalweg::unfold")?, &arguments, None, std::panic::Location::caller())
}

/// Calls `thalweg::fold`.
pub(super) fn folded(x: &Tensor, lists: [&Ints; 6]) -> Result<Tensor> {
    let lists = lists.map(|list| Argument::Ints(list));
    let arguments: Vec<_> = [x.into()].into_iter().chain(lists).collect();
    call_operator(built_in!("thalweg::fold")?, &arguments, None, std::panic::Location::caller())
}

/// Returns an image without a batch dimension as a batch of one, and whether the dimension was added.
pub(super) fn in_batch(x: &Tensor, rank: usize) -> Result<(Tensor, bool)> {
    match rank.checked_sub(x.rank()) {
        Some(0) => Ok((x.clone(), false)),
        Some(1) => Ok((x.unsqueeze(0)?, true)),
        _ => Err(invalid!(
            "Expected {}D or {rank}D (batch mode) tensor, but got input of size: {:?}",
            rank - 1,
            x.shape()
        )),
    }
}

/// Returns a result without the batch dimension that was added to the input.
pub(super) fn out_of_batch(result: Tensor, was_made: bool) -> Result<Tensors> {
    if was_made { result.squeeze(0).map(single) } else { Ok(single(result)) }
}

/// Returns one value per channel as a view that is broadcast over images of this rank.
fn per_channel(values: &Tensor, rank: usize) -> Result<Tensor> {
    let mut shape = Shape::from_elem(1, rank);
    shape[1] = values.elements();
    values.reshape(&shape)
}

/// Returns a tensor of 16-bit floats in the dtype in which their sums are computed, and other tensors unchanged.
fn widened(tensor: &Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F16 | DType::Bf16 => tensor.to_dtype(DType::F32),
        _ => Ok(tensor.clone()),
    }
}

/// Returns whether a call with these tensors records a gradient.
pub(super) fn is_recorded(tensors: &[&Tensor]) -> bool {
    is_grad_enabled() && tensors.iter().any(|tensor| tensor.requires_grad())
}

fn convolution_relu(call: &Call<'_>) -> Result<Tensors> {
    let convolution = Convolution::plain(call);
    match convolution.rectified(call)? {
        Some(result) => Ok(result),
        None => Ok(single(convolution.run(call)?[0].relu()?)),
    }
}

/// The numbers of a convolution; the transpose of one has an output padding.
struct Convolution {
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    output_padding: Option<Ints>,
    groups: i64,
}

impl Convolution {
    fn plain(call: &Call<'_>) -> Self {
        let [stride, padding, dilation] = [3, 4, 5].map(|place| call.ints(place));
        Self { stride, padding, dilation, output_padding: None, groups: call.int(6) }
    }

    fn transposed(call: &Call<'_>) -> Self {
        let [stride, padding, output_padding, dilation] = [3, 4, 5, 7].map(|place| call.ints(place));
        Self { stride, padding, dilation, output_padding: Some(output_padding), groups: call.int(6) }
    }

    /// Returns an input without a batch dimension as a batch of one, and whether the dimension was added.
    fn in_batch(&self, input: &Tensor, rank: usize) -> Result<(Tensor, bool)> {
        in_batch(input, rank).map_err(|_| {
            let name = if self.output_padding.is_some() { "conv_transpose" } else { "conv" };
            invalid!(
                "Expected {}D (unbatched) or {rank}D (batched) input to {name}{}d, but got input of size: {:?}",
                rank - 1,
                rank - 2,
                input.shape()
            )
        })
    }

    /// Returns the convolution of the first two tensors of a call, plus the third.
    fn run(&self, call: &Call<'_>) -> Result<Tensors> {
        let (input, weight, bias) = (call.tensor(0), call.tensor(1), call.optional_tensor(2));
        let rank = weight.rank();
        refuse_if!(
            !(3..=5).contains(&rank),
            "weight should have at least three dimensions, and at most five, but has shape {:?}",
            weight.shape()
        );
        self.check_signs()?;
        let (input, made) = self.in_batch(input, rank)?;
        let groups = self.check(&input, weight, bias)?;
        // A bias is added to the result before rounding, except on a GPU with the library, where PyTorch adds it to a rounded one.
        let (dtype, is_simulated) = (input.dtype(), input.device().is_simulated());
        let is_transposed = self.output_padding.is_some();
        let widened_if = |is_wide: bool, tensor: &Tensor| match is_wide && bias.is_some() {
            true => widened(tensor),
            false => Ok(tensor.clone()),
        };
        // The library of a simulated GPU adds a bias before rounding, too, unless the convolution is transposed.
        let for_library = |tensor: &Tensor| widened_if(is_simulated && is_transposed, tensor);
        let own = bias.map(for_library).transpose()?;
        let found = self.by_library(&for_library(&input)?, &for_library(weight)?, own.as_ref(), false)?;
        if let Some(result) = found {
            return out_of_batch(result.to_dtype(dtype)?, made);
        }
        let wide = |tensor: &Tensor| widened_if(is_simulated || is_transposed, tensor);
        let (input, weight, bias) = (wide(&input)?, wide(weight)?, bias.map(wide).transpose()?);
        let result = match (&self.output_padding, &bias) {
            (None, bias) => self.forward(&input, &weight, bias.as_ref(), groups)?,
            (Some(padding), None) => self.backward(&input, &weight, groups, padding)?,
            (Some(padding), Some(bias)) => {
                self.backward(&input, &weight, groups, padding)?.add(&per_channel(bias, rank)?)?
            }
        };
        let result = result.to_dtype(dtype)?;
        out_of_batch(result, made)
    }

    /// Returns the convolution of the first two tensors of a call, plus the third, rectified, in one call of cuDNN; `None` if it
    /// does not support that.
    fn rectified(&self, call: &Call<'_>) -> Result<Option<Tensors>> {
        let (input, weight, Some(bias)) = (call.tensor(0), call.tensor(1), call.optional_tensor(2)) else {
            return Ok(None);
        };
        if !(3..=5).contains(&weight.rank()) || is_recorded(&[input, weight, bias]) {
            return Ok(None);
        }
        self.check_signs()?;
        let (input, made) = self.in_batch(input, weight.rank())?;
        self.check(&input, weight, Some(bias))?;
        let result = self.by_library(&input, weight, Some(bias), true)?;
        result.map(|result| out_of_batch(result, made)).transpose()
    }

    /// Returns the convolution by cuDNN, with its bias, and with the rectified linear unit if it is not transposed; `None` if
    /// cuDNN does not support it.
    fn by_library(
        &self,
        input: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        relu: bool,
    ) -> Result<Option<Tensor>> {
        if !convolution::library_convolves(input, weight) {
            return Ok(None);
        }
        let axes = weight.rank() - 2;
        let kernel: Ints = weight.shape()[2..].iter().map(|&extent| extent as i64).collect();
        let numbers = self.numbers(&kernel, axes)?;
        let (computed, channels, extents) = match &self.output_padding {
            None => {
                let geometry = strided(extents_of(input.shape(), axes), numbers, axes, false)?;
                let windows = geometry.windows[3 - axes..].iter().map(|&count| count as i64).collect();
                (Computed::Output, weight.shape()[0], windows)
            }
            Some(padding) => {
                let extra = per_axis("output_padding", padding, axes, 0)?;
                if (3 - axes..3).any(|axis| extra[axis] >= numbers[1][axis]) {
                    // There are more windows over a result of this length than the input has elements.
                    return Ok(None);
                }
                let extents =
                    Self::transposed_extents(extents_of(input.shape(), axes), numbers, padding, axes)?;
                (Computed::Input, weight.shape()[1] * self.groups as usize, extents)
            }
        };
        let size: Ints =
            [input.shape()[0], channels].into_iter().map(|count| count as i64).chain(extents).collect();
        self.library_call([input, weight], computed, &size, numbers, (bias, relu))
    }

    /// Returns the result, of this size, of a call of cuDNN with two operands; `None` if cuDNN does not support it.
    fn library_call(
        &self,
        operands: [&Tensor; 2],
        computed: Computed,
        size: &Ints,
        [_, stride, padding, dilation]: [PerAxis; 4],
        after: (Option<&Tensor>, bool),
    ) -> Result<Option<Tensor>> {
        let axes = size.len() - 2;
        let of_axes = |numbers: PerAxis| numbers[3 - axes..].iter().map(|&number| number as i64).collect();
        let window = [stride, padding, dilation].map(of_axes);
        if_supported(convolution::call(operands, computed, size, &window, self.groups, after))
    }

    /// Refuses numbers that are negative, or 0 where that is not valid, with PyTorch's message.
    fn check_signs(&self) -> Result<()> {
        let rules = [
            (&self.padding, 0, "negative padding is not supported"),
            (&self.stride, 1, "non-positive stride is not supported"),
            (&self.dilation, 1, "dilation should be greater than zero"),
        ];
        match rules.iter().find(|(list, least, _)| list.iter().any(|number| number < least)) {
            Some((list, _, why)) => Err(invalid!("{why}, but got {list:?}")),
            None => Ok(()),
        }
    }

    /// Returns the number of groups, if shapes and dtypes fit.
    fn check(&self, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<usize> {
        let fail = |why: String| Err(Error::invalid(why));
        let Some(groups) = usize::try_from(self.groups).ok().filter(|&groups| groups > 0) else {
            return fail("non-positive groups is not supported".into());
        };
        let is_transposed = self.output_padding.is_some();
        let (channels, out) = match is_transposed {
            false => (weight.shape()[1].saturating_mul(groups), weight.shape()[0]),
            true => (weight.shape()[0], weight.shape()[1].saturating_mul(groups)),
        };
        if !weight.shape()[0].is_multiple_of(groups) || weight.shape()[0] < groups {
            return fail(format!(
                "Given groups={groups}, expected weight to be at least {groups} at dimension 0, and divisible by it, but got weight \
                 of size {:?} instead",
                weight.shape()
            ));
        }
        if input.shape()[1] != channels {
            return fail(format!(
                "Given groups={groups}, weight of size {:?}, expected input{:?} to have {channels} channels, but got {} channels \
                 instead",
                weight.shape(),
                input.shape(),
                input.shape()[1]
            ));
        }
        if let Some(bias) = bias
            && bias.shape() != [out]
        {
            return fail(format!(
                "Given weight of size {:?}, expected bias to be 1-dimensional with {out} elements, but got bias of size {:?} instead",
                weight.shape(),
                bias.shape()
            ));
        }
        for tensor in [Some(weight), bias].into_iter().flatten() {
            if tensor.dtype() != input.dtype() {
                return fail(format!(
                    "Input type ({}) and weight or bias type ({}) should be the same",
                    input.dtype(),
                    tensor.dtype()
                ));
            }
        }
        if input.dtype() == DType::Bool {
            return fail("\"convolution\" not implemented for 'bool'".into());
        }
        Ok(groups)
    }

    /// Returns weight · columns + bias for each image and group, where the columns are the input's windows.
    fn forward(
        &self,
        input: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        groups: usize,
    ) -> Result<Tensor> {
        let axes = weight.rank() - 2;
        let kernel: Ints = weight.shape()[2..].iter().map(|&extent| extent as i64).collect();
        let columns = unfolded(input, [&kernel, &self.dilation, &self.padding, &self.stride])?;
        let numbers = self.numbers(&kernel, axes)?;
        let geometry = strided(extents_of(input.shape(), axes), numbers, axes, false)?;
        let (batch, out) = (input.shape()[0], weight.shape()[0]);
        let rows: usize = weight.shape()[1..].iter().product();
        let columns = columns.reshape(&[batch * groups, rows, geometry.window_count()?])?;
        let mut weight = weight.reshape(&[groups, out / groups, rows])?;
        let mut bias = bias.map(|bias| bias.reshape(&[groups, out / groups, 1])).transpose()?;
        if groups > 1 {
            let of_all = |tensor: &Tensor| {
                let [groups, out, rows] = [0, 1, 2].map(|dim| tensor.shape()[dim]);
                tensor.expand(&[batch, groups, out, rows])?.reshape(&[batch * groups, out, rows])
            };
            weight = of_all(&weight)?;
            bias = bias.as_ref().map(of_all).transpose()?;
        }
        let shape: Shape =
            [batch, out].into_iter().chain(geometry.windows[3 - axes..].iter().copied()).collect();
        let location = std::panic::Location::caller();
        let result = match bias {
            // The sum is rounded once.
            Some(bias) if input.dtype().is_floating_point() => {
                let one = Argument::Scalar(1.0.into());
                let arguments = [(&bias).into(), (&weight).into(), (&columns).into(), one, one];
                call_operator(built_in!("thalweg::addmm")?, &arguments, None, location)?
            }
            bias => {
                let product = weight.matmul(&columns)?;
                bias.map_or(Ok(product.clone()), |bias| product.add(&bias))?
            }
        };
        result.reshape(&shape)
    }

    fn numbers(&self, kernel: &Ints, axes: usize) -> Result<[PerAxis; 4]> {
        Ok([
            per_axis("kernel_size", kernel, axes, 1)?,
            per_axis("stride", &self.stride, axes, 1)?,
            per_axis("padding", &self.padding, axes, 0)?,
            per_axis("dilation", &self.dilation, axes, 1)?,
        ])
    }

    /// Returns the extents of a transposed convolution's result.
    fn transposed_extents(
        windows: PerAxis,
        [kernels, stride, padding, dilation]: [PerAxis; 4],
        output_padding: &Ints,
        axes: usize,
    ) -> Result<Ints> {
        let extra = per_axis("output_padding", output_padding, axes, 0)?;
        let mut output = Ints::new();
        for axis in 3 - axes..3 {
            if extra[axis] >= stride[axis].max(dilation[axis]) {
                refuse!("output padding must be smaller than either stride or dilation, but got more");
            }
            let extent = (windows[axis] as i128 - 1) * stride[axis] as i128 - 2 * padding[axis] as i128
                + dilation[axis] as i128 * (kernels[axis] as i128 - 1)
                + extra[axis] as i128
                + 1;
            refuse_if!(
                extent < 1 || extent > i128::from(i64::MAX / 8),
                "Given input size per channel: {:?}. Calculated output size per channel: ({extent}). Output size is too small",
                &windows[3 - axes..]
            );
            output.push(extent as i64);
        }
        Ok(output)
    }

    /// Returns weightᵀ · input for each image and group, folded as columns of the result, without rounding in between.
    fn backward(
        &self,
        input: &Tensor,
        weight: &Tensor,
        groups: usize,
        output_padding: &Ints,
    ) -> Result<Tensor> {
        let axes = weight.rank() - 2;
        let kernel: Ints = weight.shape()[2..].iter().map(|&extent| extent as i64).collect();
        let windows = extents_of(input.shape(), axes);
        let output = Self::transposed_extents(windows, self.numbers(&kernel, axes)?, output_padding, axes)?;
        let (batch, channels) = (input.shape()[0], input.shape()[1]);
        let rows: usize = weight.shape()[1..].iter().product();
        let count: usize = windows.iter().product();
        let matrix = widened(weight)?.reshape(&[groups, channels / groups, rows])?.transpose(1, 2)?;
        let columns =
            matrix.matmul(&widened(input)?.reshape(&[batch, groups, channels / groups, count])?)?;
        let columns = columns.reshape(&[batch, groups * rows, count])?;
        let windows: Ints = windows[3 - axes..].iter().map(|&count| count as i64).collect();
        folded(&columns, [&output, &kernel, &self.dilation, &self.padding, &self.stride, &windows])?
            .to_dtype(input.dtype())
    }
}

fn convolution_backward(call: &Call<'_>) -> Result<Tensors> {
    let (gradient, input, weight) = (call.tensor(0), call.tensor(1), call.tensor(2));
    let Argument::Bools(&[of_input, of_weight, of_bias]) = call.argument(10) else {
        refuse!("output_mask has three truth values: for input, weight and bias");
    };
    let rank = weight.rank();
    refuse_if!(
        !(3..=5).contains(&rank) || input.rank() != rank || gradient.rank() != rank,
        "convolution_backward: gradient {:?}, input {:?} and weight {:?} must have 1 to 3 axes behind batch and channels",
        gradient.shape(),
        input.shape(),
        weight.shape()
    );
    let [stride, padding, dilation] = [4, 5, 6].map(|place| call.ints(place));
    let is_transposed = call.bool(7);
    let output_padding = is_transposed.then(|| call.ints(8));
    let convolution = Convolution { stride, padding, dilation, output_padding, groups: call.int(9) };
    let groups = convolution.check(input, weight, None)?;
    let empty = || Tensor::empty(&[0], input.dtype(), input.device());
    let dims: Ints = [0].into_iter().chain(2..rank as i64).collect();
    let of_operand = |is_wanted: bool, place: usize| match is_wanted {
        false => empty(),
        true => match convolution.gradient_by_library(gradient, [input, weight], place)? {
            Some(result) => Ok(result),
            None if place == 0 => convolution.of_input(gradient, input, weight, groups),
            None => convolution.of_weight(gradient, input, weight, groups),
        },
    };
    Ok(Tensors::from_iter([
        of_operand(of_input, 0)?,
        of_operand(of_weight, 1)?,
        if of_bias { gradient.sum(&dims, false)? } else { empty()? },
    ]))
}

impl Convolution {
    /// Returns the gradient of the input or the weight, computed by the library that autograd calls for it; `None` if the library
    /// does not support the call.
    fn gradient_by_library(
        &self,
        gradient: &Tensor,
        [input, weight]: [&Tensor; 2],
        place: usize,
    ) -> Result<Option<Tensor>> {
        if !convolution::library_convolves(input, weight) || gradient.dtype() != input.dtype() {
            return Ok(None);
        }
        let axes = weight.rank() - 2;
        let kernel: Ints = weight.shape()[2..].iter().map(|&extent| extent as i64).collect();
        let numbers = self.numbers(&kernel, axes)?;
        let is_transposed = self.output_padding.is_some();
        let (operands, computed) = match (is_transposed, place) {
            (false, 0) => ([gradient, weight], Computed::Input),
            (false, _) => ([gradient, input], Computed::Weight),
            (true, 0) => ([gradient, weight], Computed::Output),
            (true, _) => ([input, gradient], Computed::Weight),
        };
        let size: Ints = [input, weight][place].shape().iter().map(|&extent| extent as i64).collect();
        self.library_call(operands, computed, &size, numbers, (None, false))
    }

    /// Returns the gradient of the input: the transposed convolution of the result's, or of a transposed one the convolution.
    fn of_input(&self, gradient: &Tensor, input: &Tensor, weight: &Tensor, groups: usize) -> Result<Tensor> {
        let axes = weight.rank() - 2;
        if self.output_padding.is_some() {
            return self.forward(gradient, weight, None, groups);
        }
        let kernel: Ints = weight.shape()[2..].iter().map(|&extent| extent as i64).collect();
        let [kernels, stride, padding, dilation] = self.numbers(&kernel, axes)?;
        let (extents, windows) = (extents_of(input.shape(), axes), extents_of(gradient.shape(), axes));
        let rest: Ints = (3 - axes..3)
            .map(|axis| {
                let reach = (windows[axis] as i64 - 1) * stride[axis] as i64
                    + 1
                    + dilation[axis] as i64 * (kernels[axis] as i64 - 1);
                extents[axis] as i64 + 2 * padding[axis] as i64 - reach
            })
            .collect();
        self.backward(gradient, weight, groups, &rest)
    }

    /// Returns the gradient of the weight: one image's windows times the other's points, summed over the batch.
    fn of_weight(&self, gradient: &Tensor, input: &Tensor, weight: &Tensor, groups: usize) -> Result<Tensor> {
        let kernel: Ints = weight.shape()[2..].iter().map(|&extent| extent as i64).collect();
        let (image, points) =
            if self.output_padding.is_some() { (gradient, input) } else { (input, gradient) };
        let columns = unfolded(image, [&kernel, &self.dilation, &self.padding, &self.stride])?;
        let (batch, outer) = (points.shape()[0], weight.shape()[0]);
        let rows: usize = weight.shape()[1..].iter().product();
        let count: usize = points.shape()[2..].iter().product();
        refuse_if!(
            columns.shape() != [batch, groups * rows, count] || points.shape()[1] != outer,
            "convolution_backward: a gradient {:?} is not that of an input {:?} with a weight {:?}",
            gradient.shape(),
            input.shape(),
            weight.shape()
        );
        let columns = columns.reshape(&[batch, groups, rows, count])?;
        let points = points.reshape(&[batch, groups, outer / groups, count])?;
        points.matmul(&columns.transpose(2, 3)?)?.sum(&[0], false)?.reshape(weight.shape())
    }
}
