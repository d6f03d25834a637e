//! Operators over two-dimensional windows: unfold, fold, max-pooling.

use smallvec::SmallVec;
use thalweg_ir::{DType, Shape};
use thalweg_ops::structured::{
    FOLD2D, MAX_POOL2D, MAX_POOL2D_BACKWARD, UNFOLD2D, WINDOWS, windows_of_a_pixel,
};
use thalweg_ops::{DTypes, LoopOp, Placement, forward};
use thalweg_runtime::{Error, Label, Result};

use super::loops::{LoopArguments, LoopLaunch, widen};
use crate::autograd::{Backward, Gradients, Saved, record};
use crate::dispatch::{Arguments, Call, internal};
use crate::tensor::{Tensor, Tensors};

/// Returns whether an operator of the table is one of this module's.
pub(crate) fn is_window(operator: &LoopOp) -> bool {
    let planes = [&UNFOLD2D, &FOLD2D, &MAX_POOL2D, &MAX_POOL2D_BACKWARD];
    planes.iter().chain(WINDOWS).any(|window| window.name == operator.name)
}

/// The sizes of a window operator over a batch of images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub images: usize,
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    pub kernel: [usize; 2],
    pub output: [usize; 2],
    pub stride: [usize; 2],
    pub padding: usize,
    pub dilation: usize,
}

impl Window {
    /// Returns the window of an image tensor (images, channels, height, width).
    pub(crate) fn new(
        shape: &[usize],
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: usize,
        dilation: usize,
    ) -> Result<Self> {
        let &[images, channels, height, width] = shape else {
            return Err(Error::invalid(format!(
                "images are (count, channels, height, width), not {shape:?}"
            )));
        };
        if stride.contains(&0) || dilation == 0 || kernel.contains(&0) {
            return Err(Error::invalid(format!(
                "kernel {kernel:?}, stride {stride:?} and dilation {dilation} must each be at least 1"
            )));
        }
        let extent = |size: usize, kernel: usize, stride: usize| {
            let reach = dilation.checked_mul(kernel - 1)?.checked_add(1)?;
            let padded = padding.checked_mul(2)?.checked_add(size)?;
            let padded = (padded <= isize::MAX as usize).then_some(padded)?;
            Some(padded.checked_sub(reach)? / stride + 1)
        };
        let heights = extent(height, kernel[0], stride[0]);
        let (Some(output_height), Some(output_width)) = (heights, extent(width, kernel[1], stride[1])) else {
            return Err(Error::invalid(format!(
                "a kernel of {kernel:?} with dilation {dilation} is larger than {height}×{width} images with padding {padding}"
            )));
        };
        let output = [output_height, output_width];
        let window = Self { images, channels, height, width, kernel, output, stride, padding, dilation };
        // Every other shape of these operators is a part of this one.
        thalweg_ir::element_count(&window.column_rows())?;
        if window.numbers().iter().any(|&number| number > isize::MAX as usize) {
            return Err(Error::invalid(format!(
                "stride {stride:?}, padding {padding} and dilation {dilation} must be below 2⁶³"
            )));
        }
        Ok(window)
    }

    /// Returns the window as an operator's arguments.
    pub(crate) fn arguments(&self) -> LoopArguments {
        LoopArguments { sizes: self.numbers().into_iter().collect(), ..LoopArguments::default() }
    }

    fn numbers(&self) -> [usize; 12] {
        let Self { images, channels, height, width, kernel, output, stride, padding, dilation } = *self;
        [
            images, channels, height, width, kernel[0], kernel[1], output[0], output[1], stride[0],
            stride[1], padding, dilation,
        ]
    }

    /// Returns the window of a call, whose argument at this place it is.
    pub(crate) fn of(call: &Call<'_>, place: usize) -> Result<Self> {
        let sizes: Shape = (call.ints(place).iter())
            .map(|&size| usize::try_from(size))
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| Error::invalid("the sizes of a window must be at least 0"))?;
        let &[
            images,
            channels,
            height,
            width,
            kernel_height,
            kernel_width,
            output_height,
            output_width,
            stride_height,
            stride_width,
            padding,
            dilation,
        ] = sizes.as_slice()
        else {
            return Err(Error::invalid("a window operator takes the twelve sizes of its window"));
        };
        let (kernel, output) = ([kernel_height, kernel_width], [output_height, output_width]);
        let stride = [stride_height, stride_width];
        let window = Self::new(&[images, channels, height, width], kernel, stride, padding, dilation)?;
        if window.output != output {
            return Err(Error::invalid(format!(
                "the window gives {:?} results an image and channel, not {output:?}",
                window.output
            )));
        }
        Ok(window)
    }

    /// Returns the window of a pool: kernel, stride, padding and dilation are the arguments behind the images.
    fn of_pool(call: &Call<'_>) -> Result<Self> {
        Self::moving(call, call.tensor(0).shape(), pair(&call.ints(1))?, 2)
    }

    /// Returns the window of a convolution: stride, padding and dilation are the arguments behind images and weight.
    pub(crate) fn of_convolution(call: &Call<'_>) -> Result<Self> {
        let (images, weight) = (call.tensor(0), call.tensor(1));
        let &[_, channels, height, width] = weight.shape() else {
            return Err(Error::invalid(format!(
                "the weight is (out, in, height, width), not {:?}",
                weight.shape()
            )));
        };
        let window = Self::moving(call, images.shape(), [height, width], 2)?;
        if window.channels != channels {
            return Err(Error::invalid(format!(
                "the images have {} channels, the weight takes {channels}",
                window.channels
            )));
        }
        Ok(window)
    }

    /// Returns the window of a kernel over images whose stride, padding and dilation are the arguments from a place on.
    fn moving(call: &Call<'_>, images: &[usize], kernel: [usize; 2], place: usize) -> Result<Self> {
        let stride = pair(&call.ints(place))?;
        let [padding, dilation] = pair(&[call.int(place + 1), call.int(place + 2)])?;
        Self::new(images, kernel, stride, padding, dilation)
    }

    pub(crate) fn image_shape(&self) -> [usize; 4] {
        [self.images, self.channels, self.height, self.width]
    }

    fn pooled_shape(&self) -> [usize; 4] {
        [self.images, self.channels, self.output[0], self.output[1]]
    }

    /// Columns: (channels · kernel, images · output).
    pub(crate) fn column_shape(&self) -> [usize; 2] {
        let kernel = self.kernel[0] * self.kernel[1];
        [self.channels * kernel, self.images * self.output[0] * self.output[1]]
    }

    /// Returns how many windows a pixel can lie in, in y and in x.
    fn windows_of_a_pixel(&self) -> [usize; 2] {
        [0, 1].map(|axis| windows_of_a_pixel(self.kernel[axis], self.stride[axis], self.dilation))
    }

    fn column_rows(&self) -> [usize; 6] {
        [self.channels, self.kernel[0], self.kernel[1], self.images, self.output[0], self.output[1]]
    }

    /// Launches a window operator: the inputs are made contiguous and gathered from.
    fn run(
        &self,
        operator: &'static LoopOp,
        inputs: &[&Tensor],
        rows: &[usize],
        inner: &[usize],
        outputs: &[(&[usize], DType)],
        label: Label,
    ) -> Result<Tensors> {
        let inputs = inputs.iter().map(|tensor| tensor.contiguous()).collect::<Result<Tensors>>()?;
        let inputs: SmallVec<[&Tensor; 4]> = inputs.iter().collect();
        let dtypes: DTypes = inputs.iter().map(|tensor| tensor.dtype()).collect();
        let signature =
            operator.signature(&dtypes, false, None).map_err(|error| Error::invalid(error.to_string()))?;
        let prepared = forward(operator, &signature);
        let stream = inputs[0].device().current_stream();
        let outputs = outputs
            .iter()
            .map(|&(shape, dtype)| Tensor::empty_on(shape, dtype, &stream, label))
            .collect::<Result<Tensors>>()?;
        let mut placements: SmallVec<[Placement; 8]> =
            inputs.iter().map(|tensor| Placement::Gathered(tensor.elements() as u64)).collect();
        let strides = widen(&thalweg_ir::contiguous_strides(rows));
        placements.extend(
            outputs.iter().map(|_| Placement::Strided { rows: strides.clone(), inner: Default::default() }),
        );
        let scalars: SmallVec<[u64; 12]> = self.numbers().iter().map(|&number| number as u64).collect();
        LoopLaunch {
            id: prepared.id,
            name: operator.name,
            body: &prepared.body,
            compute: signature.compute,
            rows,
            inner,
            placements,
            scalars: &scalars,
            label,
        }
        .run(&inputs, &outputs)?;
        Ok(outputs)
    }
}

/// Returns two numbers that are at least 0.
fn pair(numbers: &[i64]) -> Result<[usize; 2]> {
    let number = |number: i64| usize::try_from(number).ok();
    match *numbers {
        [a, b] => number(a).zip(number(b)).map(<[usize; 2]>::from),
        _ => None,
    }
    .ok_or_else(|| Error::invalid(format!("{numbers:?} are not two numbers of at least 0")))
}

fn expect_shape(tensor: &Tensor, shape: &[usize]) -> Result<()> {
    if tensor.shape() == shape {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "shape {:?} does not fit the window, which takes {shape:?}",
            tensor.shape()
        )))
    }
}

pub(crate) fn unfold(call: &Call<'_>) -> Result<Tensors> {
    let window = Window::of(call, 1)?;
    let image = call.tensors[0];
    expect_shape(image, &window.image_shape())?;
    let shape = window.column_shape();
    window.run(&UNFOLD2D, &[image], &window.column_rows(), &[], &[(&shape, image.dtype())], call.label)
}

pub(crate) fn fold(call: &Call<'_>) -> Result<Tensors> {
    let window = Window::of(call, 1)?;
    let columns = call.tensors[0];
    expect_shape(columns, &window.column_shape())?;
    let shape = window.image_shape();
    window.run(
        &FOLD2D,
        &[columns],
        &shape,
        &window.windows_of_a_pixel(),
        &[(&shape, columns.dtype())],
        call.label,
    )
}

pub(crate) fn max_pool(call: &Call<'_>) -> Result<Tensors> {
    let window = Window::of_pool(call)?;
    let image = call.tensors[0];
    let shape = window.pooled_shape();
    let outputs = [(shape.as_slice(), image.dtype()), (shape.as_slice(), DType::I64)];
    window.run(&MAX_POOL2D, &[image], &shape, &window.kernel, &outputs, call.label)
}

/// Returns the autograd kernel of an operator whose gradient is another operator with the same arguments.
pub(crate) fn transposed(call: &Call<'_>, names: &'static [&'static str; 2]) -> Result<Tensors> {
    let mut results = call.redispatch()?;
    let node = TransposedBackward { names, arguments: Window::of(call, 1)?.arguments(), label: call.label };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct TransposedBackward {
    names: &'static [&'static str; 2],
    arguments: LoopArguments,
    label: Label,
}

impl Backward for TransposedBackward {
    fn name(&self) -> &'static str {
        self.names[0]
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let Some(gradient) = &gradients[0] else { return Ok(Gradients::from_elem(None, 1)) };
        let operator = internal(self.names[1])?;
        let results = operator.call_loop(&[gradient], &self.arguments, None, self.label)?;
        Ok(results.into_iter().map(Some).collect())
    }
}

pub(crate) fn max_pool_autograd(call: &Call<'_>) -> Result<Tensors> {
    let mut results = call.redispatch()?;
    let node = MaxPoolBackward {
        window: Window::of_pool(call)?,
        winners: Saved::new(&results[1])?,
        label: call.label,
    };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct MaxPoolBackward {
    window: Window,
    winners: Saved,
    label: Label,
}

impl Backward for MaxPoolBackward {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let Some(gradient) = &gradients[0] else { return Ok(Gradients::from_elem(None, 1)) };
        let shape = self.window.image_shape();
        let results = self.window.run(
            &MAX_POOL2D_BACKWARD,
            &[gradient, &self.winners.get()?],
            &shape,
            &self.window.windows_of_a_pixel(),
            &[(&shape, gradient.dtype())],
            self.label,
        )?;
        Ok(results.into_iter().map(Some).collect())
    }

    fn is_recorded(&self) -> bool {
        false
    }

    fn release(&self) {
        self.winners.release();
    }
}

/// Returns the shape of a convolution's columns as a view: (channels, kernel y, kernel x, images, output y, output x).
pub(crate) fn output_plane(window: &Window) -> Shape {
    [window.images, window.output[0], window.output[1]].into_iter().collect()
}
