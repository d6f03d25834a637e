//! Convolutions and transposed convolutions.

use std::panic::Location;

use thalweg_derive::enter;
use thalweg_runtime::{Device, Error, Result, refuse_if};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::at_line;
use thalweg_tensor::random::Generator;

use super::{Forward, Module, weight_and_bias};
use crate::functional::{self, ConvOptions};

/// A convolution over one to three axes: (batch, in, …) or (in, …) to (batch, out, …) or (out, …).
#[derive(Module, Clone, Debug)]
pub struct Conv<const AXES: usize> {
    /// The weight, (out, in / groups, kernel …).
    #[module(parameter)]
    pub weight: Tensor,
    /// The bias, (out).
    #[module(parameter)]
    pub bias: Option<Tensor>,
    /// Stride, padding, dilation and groups.
    #[module(skip)]
    pub options: ConvOptions<AXES>,
}

/// Returns a weight and, for a layer that has one, a bias. A transposed layer's weight has the input's channels first.
#[enter]
fn parameters<const AXES: usize>(
    [inputs, outputs]: [usize; 2],
    kernel: [usize; AXES],
    groups: usize,
    (is_transposed, has_bias): (bool, bool),
    generator: &mut Generator,
    device: &Device,
) -> Result<(Tensor, Option<Tensor>)> {
    at_line(Location::caller(), || {
        refuse_if!(groups == 0, "groups must be a positive integer");
        for (name, channels) in [("in_channels", inputs), ("out_channels", outputs)] {
            refuse_if!(!channels.is_multiple_of(groups), "{name} must be divisible by groups");
        }
        Ok(())
    })?;
    let channels = if is_transposed { [inputs, outputs / groups] } else { [outputs, inputs / groups] };
    let shape: Vec<usize> = channels.into_iter().chain(kernel).collect();
    weight_and_bias(&shape, has_bias.then_some(outputs), generator, device)
}

/// Defines the constructors of a layer, whose further fields have these values.
macro_rules! constructors {
    ($layer:ident, $is_transposed:literal $(, $field:ident: $value:expr)?) => {
        impl<const AXES: usize> $layer<AXES> {
            /// Makes a layer from `inputs` to `outputs` channels, with random parameters.
            ///
            /// # Errors
            /// [`Error::is_invalid_argument`] if the groups do not divide the channels.
            #[track_caller]
            pub fn new(
                inputs: usize,
                outputs: usize,
                kernel: [usize; AXES],
                options: ConvOptions<AXES>,
                generator: &mut Generator,
                device: &Device,
            ) -> Result<Self> {
                let (channels, form) = ([inputs, outputs], ($is_transposed, true));
                let (weight, bias) = parameters(channels, kernel, options.groups, form, generator, device)?;
                Ok(Self { weight, bias, options $(, $field: $value)? })
            }

            /// Makes a layer without a bias.
            #[track_caller]
            pub fn without_bias(
                inputs: usize,
                outputs: usize,
                kernel: [usize; AXES],
                options: ConvOptions<AXES>,
                generator: &mut Generator,
                device: &Device,
            ) -> Result<Self> {
                let (channels, form) = ([inputs, outputs], ($is_transposed, false));
                let (weight, bias) = parameters(channels, kernel, options.groups, form, generator, device)?;
                Ok(Self { weight, bias, options $(, $field: $value)? })
            }
        }
    };
}

constructors! { Conv, false }
constructors! { ConvTranspose, true, output_padding: [0; AXES] }

impl<const AXES: usize> Forward for Conv<AXES> {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::conv(input, &self.weight, self.bias.as_ref(), self.options)
    }
}

/// A transposed convolution over one to three axes: (batch, in, …) or (in, …) to (batch, out, …) or (out, …).
#[derive(Module, Clone, Debug)]
pub struct ConvTranspose<const AXES: usize> {
    /// The weight, (in, out / groups, kernel …).
    #[module(parameter)]
    pub weight: Tensor,
    /// The bias, (out).
    #[module(parameter)]
    pub bias: Option<Tensor>,
    /// Stride, padding, dilation and groups of the convolution that is transposed.
    #[module(skip)]
    pub options: ConvOptions<AXES>,
    /// The size added to one side of each output axis, to choose among the output sizes that the convolution maps to the same
    /// input size.
    #[module(skip)]
    pub output_padding: [usize; AXES],
}

impl<const AXES: usize> Forward for ConvTranspose<AXES> {
    #[enter]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::conv_transpose(input, &self.weight, self.bias.as_ref(), self.options, self.output_padding)
    }
}
