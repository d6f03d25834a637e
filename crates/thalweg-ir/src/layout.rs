//! [`Layout`]: shape, strides and offset of a tensor over its storage.

use std::fmt;

use smallvec::SmallVec;

use crate::DType;

/// Extents of dimensions.
pub type Shape = SmallVec<[usize; 6]>;

/// The placement of a tensor's elements in its storage, in elements. Strides are never negative.
#[derive(PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    shape: Shape,
    strides: Shape,
    offset: usize,
}

impl Clone for Layout {
    /// Copies the arrays as blocks: a derived clone copies element by element.
    fn clone(&self) -> Self {
        Self {
            shape: Shape::from_slice(&self.shape),
            strides: Shape::from_slice(&self.strides),
            offset: self.offset,
        }
    }
}

/// The reason why a view of a layout is impossible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutError {
    text: String,
    is_index: bool,
}

impl LayoutError {
    /// Returns whether a dimension is out of range, which PyTorch raises as an `IndexError`.
    pub fn is_index(&self) -> bool {
        self.is_index
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LayoutError {}

fn error<T>(text: String) -> Result<T, LayoutError> {
    Err(LayoutError { text, is_index: false })
}

/// Returns the strides of a row-major tensor of this shape.
pub fn contiguous_strides(shape: &[usize]) -> Shape {
    let mut strides = Shape::from_elem(1, shape.len());
    for dimension in (0..shape.len().saturating_sub(1)).rev() {
        strides[dimension] = strides[dimension + 1] * shape[dimension + 1].max(1);
    }
    strides
}

/// Returns the inverse of a permutation of dimensions.
///
/// ```
/// assert_eq!(thalweg_ir::inverse_order(&[1, 2, 0]).as_slice(), [2, 0, 1]);
/// ```
pub fn inverse_order(order: &[usize]) -> Shape {
    let mut inverse = Shape::from_elem(0, order.len());
    order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
    inverse
}

/// Returns the common shape to which both broadcast (`torch.broadcast_shapes`).
pub fn broadcast_shapes(a: &[usize], b: &[usize]) -> Result<Shape, LayoutError> {
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], dimension: usize| {
        (dimension + shape.len()).checked_sub(rank).map_or(1, |inside| shape[inside])
    };
    (0..rank)
        .map(|dimension| match (at(a, dimension), at(b, dimension)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            (x, y) => error(format!(
                "shapes {a:?} and {b:?} do not broadcast. The size of tensor a ({x}) must match the size of tensor b ({y}) at \
                 non-singleton dimension {dimension}"
            )),
        })
        .collect()
}

/// Returns the number of elements of a shape, or an error if it does not fit the address space. The check ignores extents of 0,
/// so that strides, and products of some of the extents, fit as well.
pub fn element_count(shape: &[usize]) -> Result<usize, LayoutError> {
    shape
        .iter()
        .try_fold(1usize, |count, &extent| count.checked_mul(extent.max(1)))
        .filter(|&count| count <= isize::MAX as usize)
        .map(|count| if shape.contains(&0) { 0 } else { count })
        .map_or_else(
            || {
                let what = if shape.contains(&0) { "Stride" } else { "Storage size" };
                error(format!(
                    "{what} calculation overflowed: shape {shape:?} has more elements than can be addressed"
                ))
            },
            Ok,
        )
}

/// Returns the number of bytes of a contiguous tensor of a shape, or an error if it does not fit the address space.
pub fn byte_count(shape: &[usize], dtype: DType) -> Result<usize, LayoutError> {
    element_count(shape)?
        .checked_mul(dtype.size_bytes())
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .map_or_else(|| error(format!("Storage size calculation overflowed with sizes={shape:?}: as {dtype} they are larger than the address space")), Ok)
}

impl Layout {
    /// Creates a row-major layout with offset 0.
    pub fn contiguous(shape: &[usize]) -> Self {
        Self { shape: Shape::from_slice(shape), strides: contiguous_strides(shape), offset: 0 }
    }

    /// Creates a layout. The caller must ensure that it is inside the storage: [`Layout::span`] returns the number of elements
    /// that it needs.
    pub fn new(shape: &[usize], strides: &[usize], offset: usize) -> Result<Self, LayoutError> {
        if shape.len() != strides.len() {
            return error(format!("shape {shape:?} and strides {strides:?} have different lengths"));
        }
        element_count(shape)?;
        Ok(Self { shape: Shape::from_slice(shape), strides: Shape::from_slice(strides), offset })
    }

    /// Returns the extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the strides, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Returns the position of the first element, counted from the storage's start.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the number of elements of the storage from the first to the last element, both included; 0 for an empty tensor.
    pub fn span(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        1 + self
            .shape
            .iter()
            .zip(&self.strides)
            .map(|(&extent, &stride)| (extent - 1) * stride)
            .sum::<usize>()
    }

    /// Returns whether elements are row-major without gaps. Strides of dimensions of extent 1 do not matter, and no stride
    /// matters if there are no elements.
    pub fn is_contiguous(&self) -> bool {
        if self.elements() == 0 {
            return true;
        }
        let mut expected = 1;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if extent != 1 {
                if stride != expected {
                    return false;
                }
                expected *= extent;
            }
        }
        true
    }

    /// Returns the order of dimensions, outermost first, in which the elements are row-major without gaps. Returns `None` if
    /// there are gaps or elements share memory.
    ///
    /// ```
    /// # use thalweg_ir::Layout;
    /// let turned = Layout::contiguous(&[2, 3, 4]).permute(&[2, 0, 1])?;
    /// assert_eq!(turned.dense_order().as_deref(), Some(&[1, 2, 0][..]));
    /// # Ok::<(), thalweg_ir::LayoutError>(())
    /// ```
    pub fn dense_order(&self) -> Option<Shape> {
        let mut order: Shape = (0..self.rank()).collect();
        order.sort_by_key(|&dimension| std::cmp::Reverse(self.strides[dimension]));
        self.permute(&order).is_ok_and(|layout| layout.is_contiguous()).then_some(order)
    }

    /// Returns the order of dimensions, outermost first, in which a copy without gaps keeps the order that the elements have in
    /// memory. It is PyTorch's (`torch.preserve_format`): larger strides are outside, of equal strides the larger extent, and a
    /// dimension with stride 0 stays where it is.
    ///
    /// ```
    /// # use thalweg_ir::Layout;
    /// let turned = Layout::contiguous(&[2, 3, 8]).permute(&[2, 0, 1])?.narrow(0, 0, 4)?;
    /// assert_eq!(turned.kept_order()[..], [1, 2, 0]);
    /// # Ok::<(), thalweg_ir::LayoutError>(())
    /// ```
    pub fn kept_order(&self) -> Shape {
        let is_inside = |inner: usize, outer: usize| {
            let [of_inner, of_outer] = [inner, outer].map(|dimension| self.strides[dimension]);
            match of_inner == 0 || of_outer == 0 {
                true => None,
                false if of_inner == of_outer => (self.shape[inner] > self.shape[outer]).then_some(false),
                false => Some(of_inner < of_outer),
            }
        };
        // Each dimension moves inwards past those that belong outside of it, up to the first that does not.
        let mut order: Shape = (0..self.rank()).rev().collect();
        for next in 1..order.len() {
            let mut own = next;
            for other in (0..next).rev() {
                match is_inside(order[other], order[own]) {
                    Some(true) => break,
                    Some(false) => {
                        order.swap(other, own);
                        own = other;
                    }
                    None => {}
                }
            }
        }
        order.reverse();
        order
    }

    /// Returns whether two different coordinates may refer to the same element (an expanded tensor): such a tensor cannot be
    /// written.
    pub fn may_overlap(&self) -> bool {
        if self.elements() <= 1 {
            return false;
        }
        let mut dimensions: SmallVec<[(usize, usize); 6]> = self
            .strides
            .iter()
            .zip(&self.shape)
            .filter(|&(_, &extent)| extent > 1)
            .map(|(&stride, &extent)| (stride, extent))
            .collect();
        dimensions.sort_unstable();
        let mut reach = 0;
        for (stride, extent) in dimensions {
            if stride <= reach {
                return true;
            }
            reach += (extent - 1) * stride;
        }
        false
    }

    /// Returns the index of a dimension; negative numbers count from the end.
    pub fn dimension(&self, dimension: i64) -> Result<usize, LayoutError> {
        let rank = self.rank() as i64;
        let index = if dimension < 0 { dimension + rank } else { dimension };
        if (0..rank).contains(&index) {
            Ok(index as usize)
        } else if rank == 0 && (-1..1).contains(&dimension) {
            error(format!("dimension {dimension} was asked for, but the tensor has no dimensions"))
        } else {
            let text = format!(
                "dimension {dimension} is out of range for shape {:?} (expected {} to {})",
                self.shape.as_slice(),
                -rank.max(1),
                rank.max(1) - 1
            );
            Err(LayoutError { text, is_index: true })
        }
    }

    /// Returns the layout with its dimensions in another order.
    pub fn permute(&self, order: &[usize]) -> Result<Self, LayoutError> {
        let mut seen: SmallVec<[bool; 6]> = std::iter::repeat_n(false, self.rank()).collect();
        let valid = order.len() == self.rank()
            && order.iter().all(|&d| d < self.rank() && !std::mem::replace(&mut seen[d], true));
        if !valid {
            return error(format!(
                "{order:?} is not a permutation of the dimensions of {:?}",
                self.shape.as_slice()
            ));
        }
        Ok(Self {
            shape: order.iter().map(|&d| self.shape[d]).collect(),
            strides: order.iter().map(|&d| self.strides[d]).collect(),
            offset: self.offset,
        })
    }

    /// Returns the layout with two dimensions swapped.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self, LayoutError> {
        let mut order: Shape = (0..self.rank()).collect();
        if a >= self.rank() || b >= self.rank() {
            return error(format!("cannot swap dimensions {a} and {b} of shape {:?}", self.shape.as_slice()));
        }
        order.swap(a, b);
        self.permute(&order)
    }

    /// Returns the layout of `length` elements of a dimension, beginning at `start`.
    pub fn narrow(&self, dimension: usize, start: usize, length: usize) -> Result<Self, LayoutError> {
        let extent = self.shape[dimension];
        if start.checked_add(length).is_none_or(|end| end > extent) {
            return error(format!(
                "cannot take {length} elements from {start} on: dimension {dimension} of shape {:?} has {extent}",
                self.shape.as_slice()
            ));
        }
        let mut layout = self.clone();
        layout.shape[dimension] = length;
        layout.offset += start * self.strides[dimension];
        Ok(layout)
    }

    /// Returns the layout of one index of a dimension, without that dimension.
    pub fn select(&self, dimension: usize, index: usize) -> Result<Self, LayoutError> {
        let mut layout = self.narrow(dimension, index, 1)?;
        layout.shape.remove(dimension);
        layout.strides.remove(dimension);
        Ok(layout)
    }

    /// Returns the layout with a new dimension of extent 1.
    pub fn unsqueeze(&self, dimension: usize) -> Result<Self, LayoutError> {
        if dimension > self.rank() {
            return error(format!("cannot add dimension {dimension} to shape {:?}", self.shape.as_slice()));
        }
        let mut layout = self.clone();
        let stride =
            if dimension < self.rank() { self.strides[dimension] * self.shape[dimension].max(1) } else { 1 };
        layout.shape.insert(dimension, 1);
        layout.strides.insert(dimension, stride);
        Ok(layout)
    }

    /// Returns the layout without a dimension of extent 1; unchanged if the extent is another.
    #[must_use]
    pub fn squeeze(&self, dimension: usize) -> Self {
        let mut layout = self.clone();
        if layout.shape.get(dimension) == Some(&1) {
            layout.shape.remove(dimension);
            layout.strides.remove(dimension);
        }
        layout
    }

    /// Returns whether the channels of images or volumes are innermost in memory, though there may be gaps.
    pub fn is_like_channels_last(&self) -> bool {
        let inner: &[usize] = match self.rank() {
            4 => &[1, 3, 2, 0],
            5 => &[1, 4, 3, 2, 0],
            _ => return false,
        };
        let mut least = 0;
        let mut follows = |dimension: usize| {
            let (extent, stride) = (self.shape[dimension], self.strides[dimension]);
            let is_next = extent > 0 && stride >= least && !(dimension == 0 && least == self.strides[1]);
            least = stride.saturating_mul(extent);
            is_next
        };
        self.strides[1] != 0 && inner.iter().all(|&dimension| follows(dimension))
    }

    /// Returns the layout broadcast to a shape: repeated dimensions have stride 0.
    pub fn expand(&self, shape: &[usize]) -> Result<Self, LayoutError> {
        let Some(added) = shape.len().checked_sub(self.rank()) else {
            return error(format!(
                "cannot expand shape {:?} to the shorter {shape:?}",
                self.shape.as_slice()
            ));
        };
        let mut strides: Shape = std::iter::repeat_n(0, added).collect();
        for (dimension, (&extent, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            match shape[added + dimension] {
                wanted if wanted == extent => strides.push(stride),
                _ if extent == 1 => strides.push(0),
                wanted => {
                    return error(format!(
                        "cannot expand shape {:?} to {shape:?}: dimension {dimension} is {extent}, not 1 or {wanted}",
                        self.shape.as_slice()
                    ));
                }
            }
        }
        element_count(shape)?;
        // A new dimension of extent 1 has the stride that `unsqueeze` would choose.
        let reach = |dimension: usize, strides: &[usize]| {
            shape.get(dimension).map_or(1, |extent| extent.saturating_mul(strides[dimension]))
        };
        for dimension in (0..added).rev().filter(|&dimension| shape[dimension] == 1) {
            strides[dimension] = reach(dimension + 1, &strides);
        }
        Ok(Self { shape: Shape::from_slice(shape), strides, offset: self.offset })
    }

    /// Returns the layout viewed as another shape with the same number of elements, or `Ok(None)` if that needs a copy.
    pub fn reshape(&self, shape: &[usize]) -> Result<Option<Self>, LayoutError> {
        if element_count(shape)? != self.elements() {
            return error(format!(
                "cannot see shape {:?} ({} elements) as {shape:?} ({} elements)",
                self.shape.as_slice(),
                self.elements(),
                element_count(shape)?
            ));
        }
        if self.elements() == 0 || self.is_contiguous() {
            return Ok(Some(Self {
                shape: Shape::from_slice(shape),
                strides: contiguous_strides(shape),
                offset: self.offset,
            }));
        }
        Ok(self.view_strides(shape).map(|strides| Self {
            shape: Shape::from_slice(shape),
            strides,
            offset: self.offset,
        }))
    }

    /// Returns strides for a new shape over the same elements: each run of old dimensions that is contiguous may be split
    /// differently (the rule of `torch.Tensor.view`).
    fn view_strides(&self, shape: &[usize]) -> Option<Shape> {
        let mut strides: Shape = std::iter::repeat_n(0, shape.len()).collect();
        let mut new = shape.len();
        let mut old = self.rank();
        while old > 0 {
            old -= 1;
            let base = self.strides[old];
            let mut run = self.shape[old];
            while old > 0 && (self.shape[old - 1] == 1 || self.strides[old - 1] == base * run) {
                old -= 1;
                run *= self.shape[old];
            }
            let mut taken = 1;
            while new > 0 && (taken < run || shape[new - 1] == 1) {
                new -= 1;
                strides[new] = base * taken;
                taken *= shape[new];
            }
            if taken != run {
                return None;
            }
        }
        (new == 0).then_some(strides)
    }
}
