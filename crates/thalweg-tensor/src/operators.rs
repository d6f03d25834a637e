//! The operators as methods of [`Tensor`].
//!
//! The elementwise methods are made from the table's entries; nothing is listed here a second time.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_ops::structured;
use thalweg_runtime::{Device, Error, Result};

use crate::autograd::Saved;
use crate::autograd::in_place::{Recording, Write};
use crate::caller::{in_call, label_at};
use crate::dispatch::{Arguments, Operator, built_in};
use crate::kernels::loops::run_into;
use crate::tensor::Tensor;

/// Calls an operator that gives one tensor.
fn call(
    operator: &'static Operator,
    tensors: &[&Tensor],
    arguments: &Arguments,
    device: Option<&Device>,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    let label = label_at(operator.name(), location);
    let mut results = operator.call(tensors, arguments, device, label)?;
    Ok(results.swap_remove(0))
}

macro_rules! methods {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident($first:ident $(, $other:ident)* $(; $($number:ident),+)?) $rule:ident { $($rest:tt)* }
    )*) => {
        impl Tensor {$(
            $(#[doc = $doc])+
            ///
            /// An elementwise operator: the inputs are broadcast against each other. Asynchronous.
            #[track_caller]
            pub fn $name(&self $(, $other: &Tensor)* $($(, $number: impl Into<Scalar>)+)?) -> Result<Tensor> {
                let arguments = Arguments {
                    scalars: SmallVec::from_slice(&[$($($number.into()),+)?]),
                    ..Arguments::default()
                };
                call(built_in!(stringify!($name))?, &[self $(, $other)*], &arguments, None, Location::caller())
            }
        )*}
    };
}

thalweg_ops::elementwise_operators!(methods);

impl Tensor {
    // ---- Creation and conversion ----------------------------------------------------------------------------------

    /// A tensor with one value everywhere (`torch.full`). Of `Bool` it is whether the value is not 0.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the value is beyond what the dtype holds.
    #[track_caller]
    pub fn full(shape: &[usize], value: impl Into<Scalar>, dtype: DType, device: &Device) -> Result<Self> {
        let arguments = Arguments {
            scalars: SmallVec::from_slice(&[value.into()]),
            sizes: shape.into(),
            dtype: Some(dtype),
        };
        call(built_in!("full")?, &[], &arguments, Some(device), Location::caller())
    }

    /// A tensor of zeros.
    #[track_caller]
    pub fn zeros(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        Self::full(shape, 0.0, dtype, device)
    }

    /// A tensor of ones.
    #[track_caller]
    pub fn ones(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        Self::full(shape, 1.0, dtype, device)
    }

    /// `count` numbers from `start` on, `step` apart.
    #[track_caller]
    pub fn arange(
        count: usize,
        start: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let arguments = Arguments {
            scalars: SmallVec::from_slice(&[start.into(), step.into()]),
            sizes: SmallVec::from_slice(&[count]),
            dtype: Some(dtype),
        };
        call(built_in!("arange")?, &[], &arguments, Some(device), Location::caller())
    }

    /// The elements in another dtype; the tensor itself where it has that dtype.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        in_call("to_dtype", &[self], Location::caller(), || {
            let arguments = Arguments { dtype: Some(dtype), ..Arguments::default() };
            call(built_in!("copy")?, &[self], &arguments, None, Location::caller())
        })
    }

    /// The elements row-major with no gaps; the tensor itself where they lie so.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() {
            return Ok(self.clone());
        }
        self.copied(Location::caller())
    }

    /// The elements in memory of their own.
    pub(crate) fn copied(&self, location: &'static Location<'static>) -> Result<Self> {
        let arguments = Arguments { dtype: Some(self.dtype()), ..Arguments::default() };
        call(built_in!("copy")?, &[self], &arguments, None, location)
    }

    /// Overwrites the elements, in place, with those of another tensor, which is broadcast and converted. Recorded by autograd:
    /// gradients flow to the source, and to what is left of this tensor, or of that which it is a view of. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] outside `no_grad` if this is a leaf that requires a gradient, or a view of one; if several
    /// of its elements share memory; or if the source does not broadcast to its shape or lies on another device.
    #[track_caller]
    pub fn copy_(&self, source: &Self) -> Result<()> {
        in_call("copy_", &[self, source], Location::caller(), || {
            self.check_writable()?;
            let recording = Recording::new(self, source)?;
            let write = Write::Copy { shape: source.shape().into(), dtype: source.dtype() };
            let arguments = Arguments { dtype: Some(self.dtype()), ..Arguments::default() };
            let label = label_at("copy_", Location::caller());
            // A source that overlaps the target in another layout is read whole before the first write.
            let aside;
            let source = if source.shares_storage_with(self) && source.layout() != self.layout() {
                aside = source.detach().copied(Location::caller())?;
                &aside
            } else {
                source
            };
            if source.device() != self.device() {
                return Err(Error::invalid(format!(
                    "the source is on {}, the target on {}",
                    source.device(),
                    self.device()
                )));
            }
            run_into(&structured::COPY, &[source], &arguments, std::slice::from_ref(self), label)?;
            if let Some(recording) = recording {
                recording.record(write);
            }
            Ok(())
        })
    }

    /// Writes slices of a source, in place, at indices of a dimension (`torch.Tensor.index_copy_`): `index`, of i64 with one
    /// dimension or none, lies in device memory and is never read by the host, so this can be captured, and a replay writes
    /// where the index then says. An index out of range writes nothing; of equal indices it is not said which one wins. Recorded
    /// by autograd as [`Tensor::copy_`] is; the gradient of a slice whose index is out of range is NaN. Asynchronous.
    #[track_caller]
    pub fn index_copy_(&self, dimension: isize, index: &Self, source: &Self) -> Result<()> {
        in_call("index_copy_", &[self, index, source], Location::caller(), || {
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
            if !fits {
                return Err(Error::invalid(format!(
                    "along dimension {dimension} of {self:?} the index {index:?} must be int64 of one dimension, and \
                     the source {source:?} {wanted:?} {}, on the same device",
                    self.dtype()
                )));
            }
            if source.shares_storage_with(self) {
                return Err(Error::invalid("the source shares memory with the target; copy it first"));
            }
            let label = label_at("index_copy_", Location::caller());
            let index = index.reshape(&[index.elements()])?.contiguous()?;
            crate::kernels::indexing::index_copy(self, at, &index, &source.detach(), label)?;
            if let Some(recording) = recording {
                recording.record(Write::IndexCopy { dimension: at, index: Saved::new(&index), label });
            }
            Ok(())
        })
    }

    /// Refuses a write in place that the layout forbids.
    fn check_writable(&self) -> Result<()> {
        if self.layout().may_overlap() {
            return Err(Error::invalid(
                "several elements of the tensor share memory (an expanded tensor); make it contiguous first",
            ));
        }
        Ok(())
    }

    // ---- Reductions -----------------------------------------------------------------------------------------------

    /// Dimensions, negative ones counted from the end, sorted; an empty list is all of them.
    fn dimensions(&self, dimensions: &[isize]) -> Result<Shape> {
        let mut list: Shape = if dimensions.is_empty() {
            (0..self.rank()).collect()
        } else if self.rank() == 0 && matches!(dimensions, [0 | -1]) {
            // As in PyTorch, the only dimension that a tensor without any may be asked for.
            Shape::new()
        } else {
            dimensions.iter().map(|&d| self.layout().dimension(d)).collect::<Result<_, _>>()?
        };
        list.sort_unstable();
        if list.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!(
                "dimensions {dimensions:?} of shape {:?} repeat",
                self.shape()
            )));
        }
        Ok(list)
    }

    fn reduce(
        &self,
        operator: &'static Operator,
        dimensions: &[isize],
        keep_dimensions: bool,
        scalars: impl FnOnce(usize) -> SmallVec<[Scalar; 12]>,
        location: &'static Location<'static>,
    ) -> Result<Self> {
        let sizes = self.dimensions(dimensions)?;
        let count = sizes.iter().map(|&dimension| self.shape()[dimension]).product();
        if sizes.is_empty() {
            // A scalar has nothing to reduce over: give it one dimension.
            return self.unsqueeze(0)?.reduce(operator, &[0], false, scalars, location);
        }
        let kept: Shape = self
            .shape()
            .iter()
            .enumerate()
            .map(|(d, &extent)| if sizes.contains(&d) { 1 } else { extent })
            .collect();
        let arguments = Arguments { scalars: scalars(count), sizes, dtype: None };
        let result = call(operator, &[self], &arguments, None, location)?;
        if keep_dimensions { result.reshape(&kept) } else { Ok(result) }
    }

    /// The sum over dimensions (all of them where the list is empty). Integers are summed as i64.
    #[track_caller]
    pub fn sum(&self, dimensions: &[isize], keep_dimensions: bool) -> Result<Self> {
        in_call("sum", &[self], Location::caller(), || {
            self.reduce(
                built_in!("sum")?,
                dimensions,
                keep_dimensions,
                |_| SmallVec::new(),
                Location::caller(),
            )
        })
    }

    /// The mean over dimensions (all of them where the list is empty), of floats.
    #[track_caller]
    pub fn mean(&self, dimensions: &[isize], keep_dimensions: bool) -> Result<Self> {
        in_call("mean", &[self], Location::caller(), || {
            let count = |count: usize| SmallVec::from_slice(&[Scalar::F64(count as f64)]);
            self.reduce(built_in!("mean")?, dimensions, keep_dimensions, count, Location::caller())
        })
    }

    /// The greatest element over dimensions; NaN where there is one.
    #[track_caller]
    pub fn amax(&self, dimensions: &[isize], keep_dimensions: bool) -> Result<Self> {
        in_call("amax", &[self], Location::caller(), || {
            self.check_not_empty(dimensions)?;
            self.reduce(
                built_in!("amax")?,
                dimensions,
                keep_dimensions,
                |_| SmallVec::new(),
                Location::caller(),
            )
        })
    }

    /// The smallest element over dimensions; NaN where there is one.
    #[track_caller]
    pub fn amin(&self, dimensions: &[isize], keep_dimensions: bool) -> Result<Self> {
        in_call("amin", &[self], Location::caller(), || {
            self.check_not_empty(dimensions)?;
            self.reduce(
                built_in!("amin")?,
                dimensions,
                keep_dimensions,
                |_| SmallVec::new(),
                Location::caller(),
            )
        })
    }

    /// The place of the greatest element along a dimension, as i64: the first of equals.
    #[track_caller]
    pub fn argmax(&self, dimension: isize) -> Result<Self> {
        in_call("argmax", &[self], Location::caller(), || {
            self.check_not_empty(&[dimension])?;
            self.reduce(built_in!("argmax")?, &[dimension], false, |_| SmallVec::new(), Location::caller())
        })
    }

    fn check_not_empty(&self, dimensions: &[isize]) -> Result<()> {
        let empty = self.dimensions(dimensions)?.iter().any(|&dimension| self.shape()[dimension] == 0);
        if empty {
            return Err(Error::invalid(format!("shape {:?} has nothing to choose from", self.shape())));
        }
        Ok(())
    }

    /// Softmax along a dimension, of floats.
    #[track_caller]
    pub fn softmax(&self, dimension: isize) -> Result<Self> {
        in_call("softmax", &[self], Location::caller(), || {
            self.along(built_in!("softmax")?, dimension, Location::caller())
        })
    }

    /// The logarithm of softmax along a dimension, of floats.
    #[track_caller]
    pub fn log_softmax(&self, dimension: isize) -> Result<Self> {
        in_call("log_softmax", &[self], Location::caller(), || {
            self.along(built_in!("log_softmax")?, dimension, Location::caller())
        })
    }

    /// An operator along one dimension that keeps the shape.
    fn along(
        &self,
        operator: &'static Operator,
        dimension: isize,
        location: &'static Location<'static>,
    ) -> Result<Self> {
        let arguments = Arguments { sizes: self.dimensions(&[dimension])?, ..Arguments::default() };
        if arguments.sizes.is_empty() {
            return self.unsqueeze(0)?.along(operator, 0, location)?.squeeze(0);
        }
        call(operator, &[self], &arguments, None, location)
    }

    /// The sum over whatever dimensions broadcasting added or repeated: the gradient of `expand`.
    #[track_caller]
    pub fn sum_to_shape(&self, shape: &[usize]) -> Result<Self> {
        in_call("sum_to_shape", &[self], Location::caller(), || {
            if self.shape() == shape {
                return Ok(self.clone());
            }
            let Some(added) = self.rank().checked_sub(shape.len()) else {
                return Err(Error::invalid(format!("shape {:?} does not sum to {shape:?}", self.shape())));
            };
            let summed: SmallVec<[isize; 6]> = (0..self.rank())
                .filter(|&d| d < added || (shape[d - added] == 1 && self.shape()[d] != 1))
                .map(|d| d as isize)
                .collect();
            let result = if summed.is_empty() { self.clone() } else { self.sum(&summed, true)? };
            result.reshape(shape)
        })
    }

    // ---- Products -------------------------------------------------------------------------------------------------

    /// The matrix product: (m, k) · (k, n), with a batch first on either side or both.
    #[track_caller]
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        call(built_in!("matmul")?, &[self, other], &Arguments::default(), None, Location::caller())
    }
}
