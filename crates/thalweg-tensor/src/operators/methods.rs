//! The operators as methods of [`Tensor`].
//!
//! The elementwise methods are generated from the table's entries and not listed again here.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_derive::in_call;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_ops::structured;
use thalweg_runtime::{Device, Error, Result, refuse, refuse_if};

use crate::autograd::Saved;
use crate::caller::{creating, in_call, label_at};
use crate::dispatch::{Argument, as_ints, built_in, check_conversion};
use crate::kernels::recorded_write::{Recording, Write};
use crate::loops::{LoopArguments, run_into};
use crate::operators::call;
use crate::operators::view::in_order_like;
use crate::tensor::Tensor;

macro_rules! methods {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident($first:ident $(, $other:ident)* $(; $($number:ident),+)?) $(: $schema:literal)? $rule:ident { $($rest:tt)* }
    )*) => {
        impl Tensor {$(
            $(#[doc = $doc])+
            ///
            /// An elementwise operator: the inputs are broadcast against each other. Asynchronous.
            #[cfg_attr(any(doc, doctest), doc = $crate::operators::examples::example!($name))]
            #[track_caller]
            pub fn $name(&self $(, $other: &Tensor)* $($(, $number: impl Into<Scalar>)+)?) -> Result<Tensor> {
                call(
                    built_in!(methods!(@schema $name $($schema)?))?,
                    &[self.into() $(, $other.into())* $($(, Argument::Scalar($number.into()))+)?],
                    None,
                    Location::caller(),
                )
            }
        )*}
    };
    (@schema $name:ident) => { stringify!($name) };
    (@schema $name:ident $schema:literal) => { $schema };
}

thalweg_ops::elementwise_operators!(methods);

impl Tensor {
    /// Returns the Gaussian error linear unit with the tanh approximation of Φ: `gelu` with `approximate='tanh'`. Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([-1.0f32, 0.0, 1.0], &device)?;
    /// assert_eq!(x.gelu_tanh()?.to_string(), "tensor([-0.1588,  0.0000,  0.8412], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn gelu_tanh(&self) -> Result<Self> {
        call(built_in!("gelu")?, &[self.into(), "tanh".into()], None, Location::caller())
    }

    // ---- Creation and conversion ----------------------------------------------------------------------------------

    /// Returns a tensor with one value everywhere (`torch.full`). For `Bool`, the elements are true if the value is not 0.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::full(&[2], 7, DType::F32, &device)?.to_string(), "tensor([7., 7.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the value is beyond the range of the dtype.
    #[track_caller]
    pub fn full(shape: &[usize], value: impl Into<Scalar>, dtype: DType, device: &Device) -> Result<Self> {
        let arguments = [Argument::Scalar(value.into()), as_ints(shape).into(), dtype.into()];
        call(built_in!("thalweg::full")?, &arguments, Some(device), Location::caller())
    }

    /// Returns a tensor of zeros.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::zeros(&[2], DType::F32, &device)?.to_string(), "tensor([0., 0.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        creating("zeros", (shape, dtype, device), Location::caller(), || {
            Self::full(shape, 0.0, dtype, device)
        })
    }

    /// Returns a tensor of ones.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::ones(&[2], DType::F32, &device)?.to_string(), "tensor([1., 1.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn ones(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        creating("ones", (shape, dtype, device), Location::caller(), || Self::full(shape, 1.0, dtype, device))
    }

    /// Returns `count` numbers from `start` on, at distance `step`.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::arange(3, 1, 2, DType::I64, &device)?.to_string(), "tensor([1, 3, 5], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn arange(
        count: usize,
        start: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let (start, step) = (Argument::Scalar(start.into()), Argument::Scalar(step.into()));
        let count = [count];
        let arguments = [start, step, as_ints(&count).into(), dtype.into()];
        call(built_in!("thalweg::arange")?, &arguments, Some(device), Location::caller())
    }

    /// Returns the elements in another dtype, in the order of dimensions that the tensor has in memory; the tensor itself if it has that
    /// dtype.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.5f32, 2.0], &device)?;
    /// assert_eq!(x.to_dtype(DType::I64)?.to_string(), "tensor([1, 2], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        in_call("to_dtype", &[self], Location::caller(), || self.cast(dtype, None, Location::caller()))
    }

    /// Returns a copy of the elements in another dtype and in a memory format; without one, in the order of dimensions that the tensor
    /// has.
    pub(crate) fn cast(
        &self,
        dtype: DType,
        format: Option<i64>,
        location: &'static Location<'static>,
    ) -> Result<Self> {
        check_conversion(self.dtype(), dtype)?;
        let copy = built_in!("thalweg::copy")?;
        in_order_like(self, format, |x| call(copy, &[x.into(), dtype.into()], None, location))
    }

    /// Returns the elements row-major without gaps; the tensor itself if they already are.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
    /// assert!(x.t()?.contiguous()?.is_contiguous());
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        self.copied(Location::caller())
    }

    /// Returns the elements in another dtype, row-major without gaps; the tensor itself if they already are.
    #[track_caller]
    pub(crate) fn contiguous_as(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype() { self.contiguous() } else { self.cast(dtype, Some(0), Location::caller()) }
    }

    /// Returns a copy of the elements in new memory.
    pub(crate) fn copied(&self, location: &'static Location<'static>) -> Result<Self> {
        call(built_in!("thalweg::copy")?, &[self.into(), self.dtype().into()], None, location)
    }

    /// Overwrites the elements, in place, with those of another tensor, which is broadcast and converted, and moved from another
    /// device as [`to_device`](Self::to_device) does. Recorded by autograd: gradients flow to the source, and to the elements of
    /// this tensor, or of its base, that are not overwritten. Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// let y = Tensor::from_values([3.0f32, 4.0], &device)?;
    /// x.copy_(&y)?;
    /// assert_eq!(x.to_string(), "tensor([3., 4.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] outside `no_grad` if this is a leaf that requires a gradient, or a view of one; if several
    /// of its elements share memory; or if the source does not broadcast to its shape.
    #[in_call("copy_", &[self, source])]
    pub fn copy_(&self, source: &Self) -> Result<()> {
        self.check_writable()?;
        let source = &source.to_device(self.device())?;
        let recording = Recording::new(self, source)?;
        let write = Write::Copy { shape: source.shape().into(), dtype: source.dtype() };
        let arguments = LoopArguments { dtype: Some(self.dtype()), ..LoopArguments::default() };
        let label = label_at("copy_", Location::caller());
        // A source that overlaps the target in another layout is read completely before the first write.
        let aside;
        let source = if source.shares_storage_with(self) && source.layout() != self.layout() {
            aside = source.detach().copied(Location::caller())?;
            &aside
        } else {
            source
        };
        run_into(&structured::COPY, &[source], &arguments, std::slice::from_ref(self), label)?;
        if let Some(recording) = recording {
            recording.record(write);
        }
        Ok(())
    }

    /// Writes slices of a source, in place, at indices of a dimension (`torch.Tensor.index_copy_`): `index`, of i64 with one
    /// dimension or none, is in device memory and never read by the host, so this can be captured, and a replay writes at the
    /// indices of that time. An index out of range writes nothing; if indices are equal, it is unspecified which slice is
    /// written. Recorded by autograd like [`Tensor::copy_`]; the gradient of a slice whose index is out of range is NaN.
    /// Asynchronous.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
    /// let i = Tensor::from_values([0i64, 2], &device)?;
    /// let y = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// x.index_copy_(0, &i, &y)?;
    /// assert_eq!(x.to_string(), "tensor([1., 0., 2.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("index_copy_", &[self, index, source])]
    pub fn index_copy_(&self, dimension: i64, index: &Self, source: &Self) -> Result<()> {
        self.check_writable()?;
        let recording = Recording::new(self, source)?;
        let at = self.layout().dimension(dimension)?;
        let mut wanted: Shape = self.shape().into();
        wanted[at] = index.elements();
        let fits = index.dtype() == DType::I64
            && index.rank() <= 1
            && source.shape() == wanted.as_slice()
            && source.dtype() == self.dtype()
            && [index, source].iter().all(|tensor| tensor.device() == self.device());
        refuse_if!(
            !fits,
            "along dimension {dimension} of {self:?} the index {index:?} must be int64 of one dimension, and \
                 the source {source:?} {wanted:?} {}, on the same device",
            self.dtype()
        );
        if source.shares_storage_with(self) {
            refuse!("the source shares memory with the target; copy it first");
        }
        let label = label_at("index_copy_", Location::caller());
        let index = index.reshape(&[index.elements()])?.contiguous()?;
        let recorded = match recording {
            Some(recording) => Some((recording, Saved::new(&index)?)),
            None => None,
        };
        crate::kernels::indexing::index_copy(self, at, &index, &source.detach(), label)?;
        if let Some((recording, index)) = recorded {
            recording.record(Write::IndexCopy { dimension: at, index, label });
        }
        Ok(())
    }

    /// Refuses a write in place that the layout forbids.
    fn check_writable(&self) -> Result<()> {
        refuse_if!(
            self.layout().may_overlap(),
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please \
             clone() the tensor before performing the operation."
        );
        Ok(())
    }

    /// Returns the sum over the dimensions that broadcasting added or repeated: the gradient of `expand`.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
    /// assert_eq!(x.sum_to_shape(&[2])?.to_string(), "tensor([4., 6.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("sum_to_shape", &[self])]
    pub fn sum_to_shape(&self, shape: &[usize]) -> Result<Self> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let Some(added) = self.rank().checked_sub(shape.len()) else {
            refuse!("shape {:?} does not sum to {shape:?}", self.shape());
        };
        let summed: SmallVec<[i64; 6]> = (0..self.rank())
            .filter(|&d| d < added || (shape[d - added] == 1 && self.shape()[d] != 1))
            .map(|d| d as i64)
            .collect();
        let result = if summed.is_empty() { self.clone() } else { self.sum(&summed, true)? };
        result.reshape(shape)
    }
}
