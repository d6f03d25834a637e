//! Images at the points of a grid: the kernel, and the gradients of images and grid in one launch.

use std::panic::Location;

use thalweg_ir::element_count;
use thalweg_kernels::grid_sample::{GridSample, Interpolation, Padding};
use thalweg_runtime::{Error, Result, refuse, refuse_if};

use crate::autograd::formula::{Formula, GradientCall};
use crate::autograd::{Gradients, is_grad_enabled};
use crate::dispatch::{self, Argument, Arguments, Call, built_in};
use crate::native::launch;
use crate::tensor::{Tensor, Tensors};

/// Returns images (batch, channels, height, width) at the points of a grid (batch, height, width, 2).
pub(crate) fn grid_sample(
    x: &Tensor,
    grid: &Tensor,
    [interpolation, padding]: [i64; 2],
    align_corners: bool,
) -> Result<Tensor> {
    let arguments =
        [x.into(), grid.into(), interpolation.into(), padding.into(), Argument::Bool(align_corners)];
    dispatch::call(built_in!("thalweg::grid_sample")?, &arguments, None, Location::caller())
}

fn strides(tensor: &Tensor) -> [u64; 4] {
    let list = tensor.layout().strides();
    std::array::from_fn(|dim| list[dim] as u64)
}

/// Describes a call over these tensors; the last is the result, or its gradient.
fn described(call: &impl Arguments, [x, grid, output]: [&Tensor; 3], backward: bool) -> Result<GridSample> {
    let choice = |place: usize| usize::try_from(call.int(place)).unwrap_or(usize::MAX);
    let (interpolation, padding) = (Interpolation::ALL.get(choice(2)), Padding::ALL.get(choice(3)));
    let (Some(&interpolation), Some(&padding)) = (interpolation, padding) else {
        refuse!("grid_sample: there is no interpolation {} with padding {}", call.int(2), call.int(3));
    };
    let extent = |tensor: &Tensor, dim: usize| tensor.shape()[dim] as u64;
    Ok(GridSample {
        batch: extent(x, 0),
        channels: extent(x, 1),
        extents: [extent(x, 2), extent(x, 3)],
        points: [extent(grid, 1), extent(grid, 2)],
        input_strides: strides(x),
        grid_strides: strides(grid),
        output_strides: strides(output),
        interpolation,
        padding,
        align_corners: call.bool(4),
        dtype: x.dtype(),
        backward,
    })
}

/// Computes the operator.
pub(crate) fn forward(call: &Call<'_>) -> Result<Tensors> {
    let (x, grid) = (call.tensor(0).detach(), call.tensor(1).detach());
    let fits = x.rank() == 4 && grid.rank() == 4 && x.shape()[0] == grid.shape()[0] && grid.shape()[3] == 2;
    refuse_if!(
        !fits || x.dtype() != grid.dtype() || x.shape()[2..].contains(&0),
        "grid_sample: images {:?} {} and a grid {:?} {} do not fit together",
        x.shape(),
        x.dtype(),
        grid.shape(),
        grid.dtype()
    );
    let shape = [x.shape()[0], x.shape()[1], grid.shape()[1], grid.shape()[2]];
    element_count(&shape)?;
    let result = call.new_result(&shape, x.dtype())?;
    let kernel = described(call, [&x, &grid, &result], false)?;
    call.launch(kernel, [Some(&x), Some(&grid), Some(&result), None, None])?;
    Ok(Tensors::from_iter([result]))
}

/// The gradients of [`forward`].
pub(crate) static GRADIENT: Formula = Formula {
    inputs: &[0, 1],
    outputs: &[],
    backward: |call| if is_grad_enabled() { recorded(call) } else { by_kernel(call) },
};

fn by_kernel(call: &GradientCall<'_>) -> Result<Gradients> {
    let (x, grid, gradient) = (call.saved(0)?.detach(), call.saved(1)?.detach(), call.gradient()?.detach());
    let stream = call.device().current_stream();
    let wide = x.dtype().compute();
    let of_input = call.wants(0).then(|| Tensor::zeros(x.shape(), wide, x.device())).transpose()?;
    let of_grid = call.wants(1).then(|| Tensor::empty_on(grid.shape(), grid.dtype(), &stream, call.label()));
    let of_grid = of_grid.transpose()?;
    let kernel = described(call, [&x, &grid, &gradient], true)?;
    let operands = [Some(&x), Some(&grid), Some(&gradient), of_input.as_ref(), of_grid.as_ref()];
    launch(kernel, operands, call.label())?;
    let of_input = of_input.map(|sum| sum.to_dtype(x.dtype())).transpose()?;
    Ok(Gradients::from_iter([of_input, of_grid]))
}

/// Returns the gradients by operators that record their own.
fn recorded(call: &GradientCall<'_>) -> Result<Gradients> {
    let inputs = [call.saved(0)?, call.saved(1)?];
    let numbers = [call.int(2).into(), call.int(3).into(), Argument::Bool(call.bool(4))];
    let arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).chain(numbers).collect();
    let operator = built_in!("thalweg::grid_sample_by_operators")?;
    let result = dispatch::call(operator, &arguments, None, Location::caller())?;
    call.recorded(&[result], &inputs)
}
