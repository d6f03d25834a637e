//! Subscripts: `x.i(i![0, 1..3, ..;2, None, ..., &indices, &mask])` like Python's `x[0, 1:3, ::2, None, ..., indices, mask]`.

use std::borrow::Cow;
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use std::panic::Location;

use thalweg_derive::in_call;
use thalweg_ir::DType;
use thalweg_runtime::{Error, Result};

use crate::dispatch::{Argument, built_in, call};
use crate::operators::truth_values;
use crate::tensor::Tensor;

/// One part of a subscript. [`i!`](crate::i) makes lists of them.
#[derive(Clone, Debug)]
pub enum Index {
    /// One index in a dimension, which is removed; a negative index is counted from the end.
    At(i64),
    /// A part of a dimension: start, end (exclusive) and step. Bounds beyond the ends are clamped.
    Slice(Option<i64>, Option<i64>, i64),
    /// A new dimension of extent 1.
    NewAxis,
    /// All dimensions that the other indices leave, in full.
    Ellipsis,
    /// Integer indices in a dimension; or truth values over one or more dimensions, which select the elements that are true.
    Tensor(Tensor),
}

impl Index {
    fn is_byte_mask(&self) -> bool {
        matches!(self, Self::Tensor(tensor) if tensor.dtype() == DType::U8)
    }

    /// Returns a mask of bytes as one of truth values, with PyTorch's warning.
    fn with_truth_values(&self) -> Result<Self> {
        match self {
            Self::Tensor(tensor) if tensor.dtype() == DType::U8 => truth_values(tensor).map(Self::Tensor),
            other => Ok(other.clone()),
        }
    }

    /// Returns a slice with another step.
    pub fn step(self, step: i64) -> Self {
        match self {
            Self::Slice(start, end, _) => Self::Slice(start, end, step),
            other => other,
        }
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl From<$type> for Index {
            fn from(place: $type) -> Self {
                Self::At(place as i64)
            }
        }

        impl From<Range<$type>> for Index {
            fn from(range: Range<$type>) -> Self {
                Self::Slice(Some(range.start as i64), Some(range.end as i64), 1)
            }
        }

        impl From<RangeFrom<$type>> for Index {
            fn from(range: RangeFrom<$type>) -> Self {
                Self::Slice(Some(range.start as i64), None, 1)
            }
        }

        impl From<RangeTo<$type>> for Index {
            fn from(range: RangeTo<$type>) -> Self {
                Self::Slice(None, Some(range.end as i64), 1)
            }
        }

        impl From<RangeInclusive<$type>> for Index {
            fn from(range: RangeInclusive<$type>) -> Self {
                Self::Slice(Some(*range.start() as i64), index_after(*range.end() as i64), 1)
            }
        }

        impl From<RangeToInclusive<$type>> for Index {
            fn from(range: RangeToInclusive<$type>) -> Self {
                Self::Slice(None, index_after(range.end as i64), 1)
            }
        }
    )*};
}

integers!(i32 i64 usize);

/// Returns the index after one; `None` after the last, which is −1.
fn index_after(place: i64) -> Option<i64> {
    (place != -1).then(|| place.saturating_add(1))
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        Self::Slice(None, None, 1)
    }
}

impl From<&Tensor> for Index {
    fn from(tensor: &Tensor) -> Self {
        Self::Tensor(tensor.clone())
    }
}

impl From<Tensor> for Index {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

/// Makes a subscript for [`Tensor::i`] and [`Tensor::assign`]: integers, ranges with an optional step after a semicolon, `None`
/// for a new dimension, `...` for the remaining dimensions, tensors of integers or of truth values.
///
/// ```
/// # use thalweg_runtime::{Device, Result};
/// # use thalweg_tensor::{Tensor, i};
/// # fn main() -> Result<()> {
/// # let device = Device::sim(0)?;
/// let x = Tensor::from_slice(&[0i64, 1, 2, 3, 4, 5, 6, 7], &[2, 4], &device)?;
/// assert_eq!(x.i(i![-1, 1..3])?.to_vec::<i64>()?, [5, 6]);
/// assert_eq!(x.i(i![..., 0..;2])?.shape(), [2, 2]);
/// assert_eq!(x.i(i![0, None])?.shape(), [1, 4]);
/// x.assign(i![x.gt_scalar(4)?], &Tensor::from_slice(&[9i64], &[], &device)?)?;
/// assert_eq!(x.to_vec::<i64>()?, [0, 1, 2, 3, 4, 9, 9, 9]);
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! i {
    (@list [$($done:expr,)*]) => {
        [$($done),*]
    };
    (@list [$($done:expr,)*] None $(, $($rest:tt)*)?) => {
        $crate::i!(@list [$($done,)* $crate::Index::NewAxis,] $($($rest)*)?)
    };
    (@list [$($done:expr,)*] ... $(, $($rest:tt)*)?) => {
        $crate::i!(@list [$($done,)* $crate::Index::Ellipsis,] $($($rest)*)?)
    };
    (@list [$($done:expr,)*] $range:expr; $step:expr $(, $($rest:tt)*)?) => {
        $crate::i!(@list [$($done,)* $crate::Index::from($range).step($step),] $($($rest)*)?)
    };
    (@list [$($done:expr,)*] $index:expr $(, $($rest:tt)*)?) => {
        $crate::i!(@list [$($done,)* $crate::Index::from($index),] $($($rest)*)?)
    };
    ($($index:tt)*) => {
        $crate::i!(@list [] $($index)*)
    };
}

/// The view that the indices other than tensors select, and the index tensors that remain, per dimension of the view.
struct Subscript {
    view: Tensor,
    tensors: Vec<Option<Tensor>>,
}

/// Returns the indices with masks of bytes converted to truth values.
fn truth_values_of_masks(indices: &[Index]) -> Result<Cow<'_, [Index]>> {
    if !indices.iter().any(Index::is_byte_mask) {
        return Ok(Cow::Borrowed(indices));
    }
    indices.iter().map(Index::with_truth_values).collect::<Result<_>>().map(Cow::Owned)
}

/// Refuses a mask whose shape differs from that of the dimensions that it covers.
fn check_mask(mask: &Tensor, covered: &[usize]) -> Result<()> {
    if mask.shape() == covered {
        return Ok(());
    }
    Err(Error::index(format!(
        "The shape of the mask {:?} does not match the shape of the indexed tensor, {covered:?}",
        mask.shape()
    )))
}

fn out_of_bounds(place: i64, dimension: usize, extent: i64) -> Error {
    Error::index(format!("index {place} is out of bounds for dimension {dimension} with size {extent}"))
}

impl Subscript {
    fn new(tensor: &Tensor, indices: &[Index]) -> Result<Self> {
        if let (0, [Index::At(_)]) = (tensor.rank(), indices) {
            return Err(Error::index(
                "invalid index of a 0-dim tensor. Use `tensor.item()` to convert a 0-dim tensor to a number",
            ));
        }
        let indices = &truth_values_of_masks(indices)?[..];
        let takes = |index: &Index| match index {
            Index::At(_) | Index::Slice(..) => 1,
            Index::NewAxis | Index::Ellipsis => 0,
            Index::Tensor(mask) if mask.dtype() == DType::Bool => mask.rank(),
            Index::Tensor(_) => 1,
        };
        let taken: usize = indices.iter().map(takes).sum();
        if indices.iter().filter(|index| matches!(index, Index::Ellipsis)).count() > 1 {
            return Err(Error::index("an index can only have a single ellipsis ('...')"));
        }
        let Some(left) = tensor.rank().checked_sub(taken) else {
            return Err(Error::index(format!("too many indices for tensor of dimension {}", tensor.rank())));
        };
        let (mut view, mut dim, mut tensors) = (tensor.clone(), 0, Vec::new());
        // `beyond` counts the dimensions that masks cover beyond one each, `own` those of the tensor before `dim` in the view.
        let (mut beyond, mut own) = (0, 0);
        for index in indices {
            let at = dim as i64;
            match index {
                Index::At(place) => {
                    let extent = view.shape()[dim] as i64;
                    if !(-extent..extent).contains(place) {
                        return Err(out_of_bounds(*place, own, extent));
                    }
                    view = view.select(at, place.rem_euclid(extent) as usize)?;
                }
                Index::Slice(start, end, step) => {
                    view = view.slice(at, *start, *end, *step)?;
                    dim += 1;
                }
                Index::NewAxis => {
                    view = view.unsqueeze(at)?;
                    dim += 1;
                }
                Index::Ellipsis => {
                    dim += left;
                    own += left;
                }
                Index::Tensor(tensor) => {
                    tensors.resize(dim - beyond, None);
                    let from = dim;
                    dim += takes(index);
                    match tensor.dtype() {
                        DType::Bool if tensor.rank() == 0 => {
                            // A single truth value covers no dimension: it selects the view once or not at all.
                            view = view.unsqueeze(at)?;
                            dim += 1;
                            tensors.extend(tensor.reshape(&[1])?.nonzero_numpy()?.into_iter().map(Some));
                        }
                        DType::Bool => {
                            check_mask(tensor, &view.shape()[from..dim])?;
                            beyond += tensor.rank() - 1;
                            tensors.push(Some(tensor.clone()));
                        }
                        _ => tensors.push(Some(tensor.clone())),
                    }
                }
            }
            own += takes(index);
        }
        Ok(Self { view, tensors })
    }
}

impl Tensor {
    /// Returns the elements at a subscript that [`i!`](crate::i) makes: a view, or new memory if the indices include a tensor.
    /// Asynchronous, except with a mask: the host then waits for its number of true values.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there are more indices than dimensions, or one is out of bounds.
    #[in_call("i", &[self])]
    pub fn i(&self, indices: impl AsRef<[Index]>) -> Result<Self> {
        let Subscript { view, tensors } = Subscript::new(self, indices.as_ref())?;
        match tensors.is_empty() {
            // A subscript without a part that makes a view, such as `...`, gives a view, too: not the tensor itself.
            true if view.is_same(self) => call(built_in!("alias")?, &[self.into()], None, Location::caller()),
            true => Ok(view),
            false => view.index(&tensors),
        }
    }

    /// Overwrites the elements at a subscript, in place, with those of another tensor, which is broadcast, and converted unless
    /// the subscript contains tensors. Recorded by autograd. Asynchronous, except with a mask and a value of several elements.
    #[in_call("assign", &[self, value])]
    pub fn assign(&self, indices: impl AsRef<[Index]>, value: &Self) -> Result<()> {
        let Subscript { view, tensors } = Subscript::new(self, indices.as_ref())?;
        // Leading extents of 1 beyond the rank of the view are removed, as in PyTorch.
        let spare = value.rank().saturating_sub(view.rank());
        let value = match value.shape()[..spare].iter().all(|&extent| extent == 1) {
            true if tensors.is_empty() => value.reshape(&value.shape()[spare..])?,
            _ => value.clone(),
        };
        if tensors.is_empty() {
            return view.copy_(&value);
        }
        // A value with a single element is converted if there is a mask, as in `masked_fill_`.
        let is_masked = |index: &Tensor| index.dtype() == DType::Bool && index.rank() > 0;
        let fills = value.elements() == 1 && tensors.iter().flatten().all(is_masked);
        let value = if fills { value.to_dtype(view.dtype())? } else { value };
        let arguments = [(&view).into(), Argument::OptionalTensors(&tensors), (&value).into()];
        call(built_in!("index_put_")?, &arguments, None, Location::caller()).map(drop)
    }
}
