//! New tensors as functions of [`Tensor`]: random ones from the device's default generator, ranges, the identity; copies.

use std::panic::Location;

use thalweg_derive::at_line;
use thalweg_ir::{DType, HostElement, Scalar};
use thalweg_runtime::{Device, Result};

use super::call;
use crate::dispatch::{Argument, as_ints, built_in};
use crate::tensor::Tensor;

impl Tensor {
    /// Returns numbers in [0, 1) of a real floating-point dtype, drawn from the device's
    /// [default generator](crate::random::default_generator) (`torch.rand`). Asynchronous; each replay of a captured call draws anew.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::rand(&[2, 3], DType::F32, &device)?.shape(), [2, 3]);
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn rand(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let arguments = [as_ints(shape).into(), dtype.into()];
        call(built_in!("rand")?, &arguments, Some(device), Location::caller())
    }

    /// Returns numbers with mean 0 and variance 1 of a real floating-point dtype, drawn from the device's
    /// [default generator](crate::random::default_generator) (`torch.randn`). Asynchronous; each replay of a captured call draws anew.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::randn(&[2, 3], DType::F32, &device)?.shape(), [2, 3]);
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn randn(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let arguments = [as_ints(shape).into(), dtype.into()];
        call(built_in!("randn")?, &arguments, Some(device), Location::caller())
    }

    /// Returns integers in [low, high), drawn from the device's [default generator](crate::random::default_generator)
    /// (`torch.randint`). Asynchronous; each replay of a captured call draws anew.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::randint(7, 8, &[2], DType::I64, &device)?.to_string(), "tensor([7, 7], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`](thalweg_runtime::Error::is_invalid_argument) if `low` is not below `high`.
    #[track_caller]
    pub fn randint(low: i64, high: i64, shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let arguments = [low.into(), high.into(), as_ints(shape).into(), dtype.into()];
        call(built_in!("randint.low")?, &arguments, Some(device), Location::caller())
    }

    /// Returns integers in [low, high), with the tensor's shape, dtype and device (`torch.randint_like`), drawn as
    /// [`randint`](Self::randint) does. Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// assert_eq!(x.randint_like(7, 8)?.to_string(), "tensor([7., 7.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn randint_like(&self, low: i64, high: i64) -> Result<Self> {
        let arguments = [self.into(), low.into(), high.into()];
        call(built_in!("randint_like.low_dtype")?, &arguments, None, Location::caller())
    }

    /// Returns the numbers 0 to `count` − 1 in random order, drawn from the device's
    /// [default generator](crate::random::default_generator) (`torch.randperm`). Asynchronous.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let [sorted, _places] = Tensor::randperm(3, DType::I64, &device)?.sort(0, false)?;
    /// assert_eq!(sorted.to_string(), "tensor([0, 1, 2], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn randperm(count: usize, dtype: DType, device: &Device) -> Result<Self> {
        let arguments = [Argument::Int(count as i64), dtype.into()];
        call(built_in!("randperm")?, &arguments, Some(device), Location::caller())
    }

    /// Returns the matrix with ones on its main diagonal and zeros elsewhere (`torch.eye`). Asynchronous.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::eye(2, 2, DType::F32, &device)?.to_string(), "\
    /// tensor([[1., 0.],
    ///         [0., 1.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn eye(rows: usize, columns: usize, dtype: DType, device: &Device) -> Result<Self> {
        let arguments = [Argument::Int(rows as i64), Argument::Int(columns as i64), dtype.into()];
        call(built_in!("eye.m")?, &arguments, Some(device), Location::caller())
    }

    /// Returns `count` numbers from `start` to `end`, both included and equidistant (`torch.linspace`). Asynchronous.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::linspace(0, 1, 3, DType::F32, &device)?.to_string(), "tensor([0.0000, 0.5000, 1.0000], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn linspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        count: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let bounds = [start.into(), end.into()].map(Argument::Scalar);
        let arguments = [bounds[0], bounds[1], Argument::Int(count as i64), dtype.into()];
        call(built_in!("linspace")?, &arguments, Some(device), Location::caller())
    }

    /// Returns a tensor of one dimension with the values of an iterator, in its order. `device` copies them as
    /// [`from_slice`](Self::from_slice) does.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::from_values([1.0f32, 2.0], &device)?.to_string(), "tensor([1., 2.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[at_line]
    pub fn from_values<T: HostElement>(values: impl IntoIterator<Item = T>, device: &Device) -> Result<Self> {
        let values: Vec<T> = values.into_iter().collect();
        Self::from_slice(&values, &[values.len()], device)
    }

    /// Returns a copy of the elements in new memory (`torch.clone`; Rust's `clone` returns the same tensor). The copy keeps the
    /// strides if the tensor has no gaps, otherwise it is contiguous. Gradients flow through it. Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// assert!(!x.deep_clone()?.shares_storage_with(&x));
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn deep_clone(&self) -> Result<Self> {
        call(built_in!("clone")?, &[self.into()], None, Location::caller())
    }
}
