//! Modules: functions with parameters (`torch.nn`), with PyTorch's names, and its names and layouts of weights.
//!
//! A module is a structure that derives [`Module`]: its fields are parameters, buffers, other modules, and plain data.
//!
//! ```
//! # use thalweg_runtime::{Device, Result};
//! # use thalweg_tensor::{Tensor, random::Generator};
//! use thalweg_nn::module::{Forward, Linear, Module};
//!
//! #[derive(Module)]
//! struct Network {
//!     hidden: Linear,
//!     #[module(name = "out")]
//!     output: Linear,
//! }
//!
//! impl Forward for Network {
//!     fn forward(&self, input: &Tensor) -> Result<Tensor> {
//!         self.output.forward(&self.hidden.forward(input)?.relu()?)
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! # let (device, mut generator) = (Device::sim(0)?, Generator::new(0));
//! let hidden = Linear::new(4, 8, &mut generator, &device)?;
//! let network = Network { hidden, output: Linear::new(8, 2, &mut generator, &device)? };
//! let names: Vec<String> = network.state_dict().into_keys().collect();
//! assert_eq!(names, ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]);
//! # Ok(())
//! # }
//! ```

mod activation;
mod attention;
mod callable;
mod container;
mod conv;
mod dropout;
mod encoder;
mod linear;
mod loss;
mod norm;
mod packed;
mod pad;
mod pool;
mod recurrent;
mod state;
mod transformer;
mod upsample;
mod weight_only;

use std::any::Any;
use std::panic::Location;

use thalweg_derive::enter;
use thalweg_ir::DType;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::at_line;
use thalweg_tensor::random::Generator;

pub use activation::{
    CELU, ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid, LogSoftmax,
    Mish, PReLU, ReLU, ReLU6, SELU, SiLU, Sigmoid, Softmax, Softmax2d, Softmin, Softplus, Softshrink,
    Softsign, Tanh, Tanhshrink, Threshold,
};
pub use attention::{Attended, AttentionMasks, MultiheadAttention, MultiheadAttentionOptions};
pub use callable::callable;
pub use container::Sequential;
pub use conv::{Conv, ConvTranspose};
pub use dropout::Dropout;
pub use encoder::{
    EncoderDecoder, TransformerDecoder, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer,
    TransformerLayerOptions,
};
pub use linear::{Bilinear, Embedding, Flatten, Identity, Linear, Mlp, Unflatten};
pub use loss::*;
pub use norm::{
    BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormOptions, GroupNorm, InstanceNorm, LayerNorm,
    LocalResponseNorm, RMSNorm,
};
pub use packed::{PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence};
pub use pad::{CircularPad, ConstantPad, ReflectionPad, ReplicationPad, ZeroPad};
pub use pool::{
    AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, FractionalMaxPool, FractionalSize, LPPool, MaxPool,
};
pub use recurrent::{
    Elman, GRU, GRUCell, Gated, LSTM, LSTMCell, LongShortTerm, RNN, RNNCell, Recurrent, RecurrentCell,
    RecurrentOptions, RecurrentStep,
};
pub use state::{IncompatibleKeys, StateDict};
pub use thalweg_derive::Module;
pub use thalweg_runtime::Activation;
pub use transformer::{SelfAttention, Transformer, TransformerBlock, TransformerOptions};
pub use upsample::{PixelShuffle, PixelUnshuffle, Upsample, UpsampleMode};
pub use weight_only::{IntegerFormat, WeightOnlyLinear};

/// Names the modules over one, two and three axes as PyTorch does.
macro_rules! over_axes {
    ($($module:ident: $sequences:ident $images:ident $volumes:ident;)*) => {$(
        #[doc = concat!("[`", stringify!($module), "`] of sequences.")]
        pub type $sequences = $module<1>;
        #[doc = concat!("[`", stringify!($module), "`] of images.")]
        pub type $images = $module<2>;
        #[doc = concat!("[`", stringify!($module), "`] of volumes.")]
        pub type $volumes = $module<3>;
    )*};
}

over_axes! {
    AdaptiveAvgPool: AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d;
    AdaptiveMaxPool: AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d;
    AvgPool: AvgPool1d AvgPool2d AvgPool3d;
    Conv: Conv1d Conv2d Conv3d;
    ConvTranspose: ConvTranspose1d ConvTranspose2d ConvTranspose3d;
    InstanceNorm: InstanceNorm1d InstanceNorm2d InstanceNorm3d;
    LPPool: LPPool1d LPPool2d LPPool3d;
    MaxPool: MaxPool1d MaxPool2d MaxPool3d;
}

/// A part of a module.
pub enum Entry<'a> {
    /// A tensor that is learnt.
    Parameter(&'a Tensor),
    /// A tensor that is saved with the parameters and not learnt.
    Buffer(&'a Tensor),
    /// A module within the module.
    Child(&'a dyn Module),
    /// Whether the module is in training mode.
    Training(&'a bool),
}

/// A part of a module that can be replaced.
pub enum EntryMut<'a> {
    /// A tensor that is learnt.
    Parameter(&'a mut Tensor),
    /// A tensor that is saved with the parameters and not learnt.
    Buffer(&'a mut Tensor),
    /// A module within the module.
    Child(&'a mut dyn Module),
    /// Whether the module is in training mode.
    Training(&'a mut bool),
}

/// A field of a module that holds a tensor: `Tensor`, or `Option<Tensor>` if it is optional.
pub trait TensorField {
    /// Returns the tensor, if there is one.
    fn tensor(&self) -> Option<&Tensor>;

    /// Returns the tensor, if there is one.
    fn tensor_mut(&mut self) -> Option<&mut Tensor>;
}

impl TensorField for Tensor {
    fn tensor(&self) -> Option<&Tensor> {
        Some(self)
    }

    fn tensor_mut(&mut self) -> Option<&mut Tensor> {
        Some(self)
    }
}

impl TensorField for Option<Tensor> {
    fn tensor(&self) -> Option<&Tensor> {
        self.as_ref()
    }

    fn tensor_mut(&mut self) -> Option<&mut Tensor> {
        self.as_mut()
    }
}

/// A module: tensors, modes and other modules by name (`torch.nn.Module`).
///
/// Derive this trait: see [`derive@Module`]. Nested names are joined with a dot, as in PyTorch.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "not a module",
    note = "over a field of a `#[derive(Module)]` structure write `#[module(skip)]` if it holds nothing to be learnt or saved (a size, an \
            option), `#[module(parameter)]` if it is a tensor that is learnt, `#[module(buffer)]` if it is a tensor that is saved"
)]
pub trait Module {
    /// Passes each part of the module to the visitor, with its name, in the order of declaration. Parts of children are not passed.
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>));

    /// Passes each part of the module to the visitor by mutable reference, with its name.
    fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>));

    /// Returns a value that code for this kind of module may downcast and change. Most modules have none.
    fn any_mut(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// Returns the name of the type, for messages.
    fn type_name(&self) -> &'static str {
        let name = std::any::type_name::<Self>();
        let name = name.split('<').next().unwrap_or(name);
        name.rsplit("::").next().unwrap_or(name)
    }

    /// Returns the parameters with their names (`weight`, `bias`; nested ones as `conv1.weight`). A parameter that occurs several
    /// times, such as a tied weight ([`Tensor::is_same`]), is returned once, with the first of its names.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        state::named(&|visitor| self.visit(visitor), |entry| match entry {
            Entry::Parameter(tensor) => Some(tensor),
            _ => None,
        })
    }

    /// Returns the parameters.
    fn parameters(&self) -> Vec<Tensor> {
        state::without_names(self.named_parameters())
    }

    /// Returns each buffer once, with its name.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        state::named(&|visitor| self.visit(visitor), |entry| match entry {
            Entry::Buffer(tensor) => Some(tensor),
            _ => None,
        })
    }

    /// Returns whether any part is in training mode.
    fn is_training(&self) -> bool {
        let mut training = false;
        walk(self, "", &mut |_, entry| training |= matches!(entry, Entry::Training(true)));
        training
    }

    /// Sets whether the module and all modules within it are in training mode (`train`). New modules are in training mode.
    fn train(&mut self, training: bool) {
        walk_mut(self, &mut |entry| {
            if let EntryMut::Training(mode) = entry {
                *mode = training;
            }
        });
    }

    /// Sets the module and all modules within it to evaluation mode.
    fn eval(&mut self) {
        self.train(false);
    }

    /// Removes the gradients of all parameters.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(Tensor::zero_grad);
    }

    /// Sets whether all parameters require gradients (`requires_grad_`).
    #[track_caller]
    fn set_requires_grad(&self, requires_grad: bool) -> Result<()> {
        state::set_requires_grad(&self.parameters(), requires_grad, Location::caller())
    }

    /// Converts the floating-point parameters and buffers to a dtype. They become new tensors, so create the optimizer
    /// afterwards. Tied tensors stay tied. Asynchronous.
    ///
    /// # Errors
    /// [`is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the dtype is not a floating-point dtype. Then
    /// nothing has changed.
    #[track_caller]
    fn to_dtype(&mut self, dtype: DType) -> Result<()> {
        let to_dtype = |tensor: &Tensor| match tensor.dtype().is_floating_point() {
            true => tensor.to_dtype(dtype),
            false => Ok(tensor.clone()),
        };
        let converted = state::converted(&|visitor| self.visit(visitor), Location::caller(), &to_dtype)?;
        walk_mut(self, &mut state::replaced_by(converted));
        Ok(())
    }

    /// Moves all parameters and buffers to a device. They become new tensors, so create the optimizer afterwards. Tied tensors
    /// stay tied. *Blocks* while the values pass through the host.
    ///
    /// # Errors
    /// Those of [`Tensor::to_device`]. Then nothing has changed.
    #[track_caller]
    fn to_device(&mut self, device: &Device) -> Result<()> {
        let to_device = |tensor: &Tensor| tensor.to_device(device);
        let converted = state::converted(&|visitor| self.visit(visitor), Location::caller(), &to_device)?;
        walk_mut(self, &mut state::replaced_by(converted));
        Ok(())
    }

    /// Returns a module whose parameters and buffers are copies (`copy.deepcopy`); Rust's `clone` returns one with the same tensors.
    /// Tied tensors stay tied. Asynchronous.
    ///
    /// ```
    /// # use thalweg_nn::module::{Linear, Module};
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// # let generator = &mut thalweg_tensor::random::Generator::new(0);
    /// let layer = Linear::new(4, 2, generator, &device)?;
    /// let copy = layer.deep_clone()?;
    /// assert!(!copy.weight.shares_storage_with(&layer.weight));
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    fn deep_clone(&self) -> Result<Self>
    where
        Self: Sized + Clone,
    {
        let copies =
            state::converted(&|visitor| self.visit(visitor), Location::caller(), &Tensor::deep_clone)?;
        let mut module = self.clone();
        walk_mut(&mut module, &mut state::replaced_by(copies));
        Ok(module)
    }

    /// Returns parameters and buffers by name. The tensors are those of the module, not copies. If several have the same name, there is
    /// a warning, and only the last of them is in the dictionary.
    fn state_dict(&self) -> StateDict {
        state::state_dict(&|visitor| self.visit(visitor), self.type_name())
    }

    /// Overwrites parameters and buffers, in place, with saved ones of the same names and shapes, converted to their dtypes.
    /// Asynchronous.
    ///
    /// # Errors
    /// [`is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) with all differences, with PyTorch's message, if
    /// names are missing or unknown, shapes differ, or tensors of the module have the same name. Then nothing has changed.
    #[track_caller]
    fn load_state_dict(&self, saved: &StateDict) -> Result<()> {
        state::load(&|visitor| self.visit(visitor), self.type_name(), saved, true, Location::caller())
            .map(drop)
    }

    /// Overwrites those parameters and buffers that were saved (`strict=False`), and returns the names that only one side has.
    /// Asynchronous.
    ///
    /// # Errors
    /// [`is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if shapes differ, or tensors of the module have the same name. Then nothing has changed.
    #[track_caller]
    fn load_state_dict_partially(&self, saved: &StateDict) -> Result<IncompatibleKeys> {
        state::load(&|visitor| self.visit(visitor), self.type_name(), saved, false, Location::caller())
    }
}

/// A module of one input and one result.
///
/// An error of a layer names the line at which its module calls it. With `#[track_caller]` on an implementation it is the line at
/// which the implementation is called.
pub trait Forward: Module {
    /// Returns the result for an input.
    ///
    /// # Errors
    /// Those of the module's operators, if the input does not fit.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;
}

/// Passes every part of a module, and of all modules inside of it, to the visitor with its full name. The name begins with the prefix
/// and a dot, unless the prefix is empty.
pub fn walk<'a, M: Module + ?Sized>(module: &'a M, prefix: &str, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
    walk_parts(&|each| module.visit(each), prefix, visitor);
}

/// A function that passes the parts of a module to a visitor, as [`Module::visit`] does. Functions over every module take it instead
/// of the module, so that they are compiled only once.
type Visit<'v, 'a> = dyn Fn(&mut dyn FnMut(&str, Entry<'a>)) + 'v;

/// Passes every part to the visitor as [`walk`] does.
fn walk_parts<'a>(visit: &Visit<'_, 'a>, prefix: &str, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
    visit(&mut |name, entry| {
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        match entry {
            Entry::Child(child) => walk(child, &name, visitor),
            entry => visitor(&name, entry),
        }
    });
}

/// Passes every part of a module, and of all modules inside of it, to the visitor by mutable reference.
pub fn walk_mut<'a, M: Module + ?Sized>(module: &'a mut M, visitor: &mut dyn FnMut(EntryMut<'a>)) {
    module.visit_mut(&mut |_, entry| match entry {
        EntryMut::Child(child) => walk_mut(child, visitor),
        entry => visitor(entry),
    });
}

/// Returns a parameter with uniform values in ±bound.
#[enter]
fn uniform(shape: &[usize], bound: f64, generator: &mut Generator, device: &Device) -> Result<Tensor> {
    Tensor::uniform(shape, -bound as f32, bound as f32, generator, device)?.requires_grad_()
}

/// Returns a parameter of f32 with one value everywhere.
#[enter]
fn constant(shape: &[usize], value: f64, device: &Device) -> Result<Tensor> {
    Tensor::full(shape, value, DType::F32, device)?.requires_grad_()
}

/// Returns a weight and a bias as PyTorch initializes them: uniform in ±1/√fan_in (`kaiming_uniform_` with a = √5).
#[enter]
fn weight_and_bias(
    shape: &[usize],
    bias: Option<usize>,
    generator: &mut Generator,
    device: &Device,
) -> Result<(Tensor, Option<Tensor>)> {
    let fan_in = at_line(Location::caller(), || Ok(thalweg_ir::element_count(&shape[1..])?))?;
    let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
    let weight = uniform(shape, bound, generator, device)?;
    Ok((weight, bias.map(|count| uniform(&[count], bound, generator, device)).transpose()?))
}
