//! The methods of [`Tensor`] that write in place: each calls the in-place form of an operator.

use std::panic::Location;

use thalweg_derive::in_call;
use thalweg_ir::Scalar;
use thalweg_runtime::Result;

use crate::dispatch::{built_in, in_place};
use crate::tensor::Tensor;

/// In-place methods that each make one call.
macro_rules! in_place {
    ($($(#[doc = $doc:literal])+ $schema:literal fn $name:ident($($parameter:ident: $kind:ident),*);)*) => {
        impl Tensor {$(
            $(#[doc = $doc])+
            ///
            /// In place, and asynchronous. Recorded by autograd as [`Tensor::copy_`] is.
            #[cfg_attr(any(doc, doctest), doc = $crate::operators::examples::example!($name))]
            ///
            /// # Errors
            /// Those of [`Tensor::copy_`]; [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the result has another shape, or a dtype of a higher
            /// category.
            #[track_caller]
            pub fn $name(&self $(, $parameter: $crate::operators::parameter!($kind))*) -> Result<()> {
                $crate::operators::call(
                    built_in!($schema)?,
                    &[self.into() $(, $crate::operators::argument!($kind, $parameter))*],
                    None,
                    Location::caller(),
                )
                .map(drop)
            }
        )*}
    };
}

in_place! {
    /// Adds other.
    "add_.Tensor" fn add_(other: tensor);
    /// Adds a number.
    "add_.Scalar" fn add_scalar_(other: scalar);
    /// Subtracts other.
    "sub_.Tensor" fn sub_(other: tensor);
    /// Subtracts a number.
    "sub_.Scalar" fn sub_scalar_(other: scalar);
    /// Multiplies by other.
    "mul_.Tensor" fn mul_(other: tensor);
    /// Multiplies by a number.
    "mul_.Scalar" fn mul_scalar_(other: scalar);
    /// Divides by other.
    "div_.Tensor" fn div_(other: tensor);
    /// Divides by a number.
    "div_.Scalar" fn div_scalar_(other: scalar);
    /// Raises to the power of a number.
    "pow_.Tensor_Scalar" fn pow_scalar_(exponent: scalar);
    /// Clamps every element between two numbers.
    "clamp_" fn clamp_(min: scalar, max: scalar);
    /// Replaces negative elements by 0.
    "relu_" fn relu_();
    /// Negates every element.
    "neg_" fn neg_();
    /// Computes the exponential.
    "exp_" fn exp_();
    /// Computes the square root.
    "sqrt_" fn sqrt_();
    /// Computes the sigmoid.
    "sigmoid_" fn sigmoid_();
    /// Computes the hyperbolic tangent.
    "tanh_" fn tanh_();
    /// Moves towards end by weight times the distance.
    "lerp_.Scalar" fn lerp_(end: tensor, weight: scalar);
    /// Adds value · tensor1 · tensor2.
    "addcmul_" fn addcmul_(tensor1: tensor, tensor2: tensor, value: scalar);
    /// Adds value · tensor1 / tensor2.
    "addcdiv_" fn addcdiv_(tensor1: tensor, tensor2: tensor, value: scalar);
    /// Writes a number where a mask is true.
    "masked_fill_.Scalar" fn masked_fill_(mask: tensor, value: scalar);
    /// Writes a number at a list of indices of a dimension.
    "index_fill_.int_Scalar" fn index_fill_(dim: int, index: tensor, value: scalar);
    /// Adds the slices of a source to those at a list of indices of a dimension.
    "index_add_" fn index_add_(dim: int, index: tensor, source: tensor);
    /// Writes the elements of a source at indices of a dimension.
    "scatter_.src" fn scatter_(dim: int, index: tensor, src: tensor);
    /// Adds the elements of a source to those at indices of a dimension.
    "scatter_add_" fn scatter_add_(dim: int, index: tensor, src: tensor);
    /// Writes values at indices, one list per dimension from the first on; with `accumulate` adds them.
    "index_put_" fn index_put_(indices: optional_tensors, values: tensor, accumulate: bool);
    /// Adds the product of two matrices.
    "addmm_" fn addmm_(mat1: tensor, mat2: tensor);
    /// Computes the cumulative sum along a dimension.
    "cumsum_" fn cumsum_(dim: int);
    /// Draws numbers in [from, to) from the default generator.
    "uniform_" fn uniform_(from: float, to: float);
    /// Draws numbers of a normal distribution from the default generator.
    "normal_" fn normal_(mean: float, std: float);
    /// Draws 1 with a probability, else 0, from the default generator.
    "bernoulli_.float" fn bernoulli_(p: float);
    /// Draws numbers of an exponential distribution from the default generator.
    "exponential_" fn exponential_(lambd: float);
    /// Draws integers in [from, to) from the default generator.
    "random_.from" fn random_(from: int, to: int);
}

impl Tensor {
    /// Sets every element to a number, in place. Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// x.fill_(7)?;
    /// assert_eq!(x.to_string(), "tensor([7., 7.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Tensor::copy_`]; [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if the dtype
    /// cannot represent the number.
    #[in_call("fill_", &[self])]
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        let value: Scalar = value.into();
        let value = Self::full(&[], value, self.dtype(), self.device())?;
        match self.layout().may_overlap() {
            true => in_place::write_once(self, &value.expand(self.shape())?),
            false => self.copy_(&value),
        }
    }

    /// Sets every element to 0, in place. Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// x.zero_()?;
    /// assert_eq!(x.to_string(), "tensor([0., 0.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0)
    }
}
