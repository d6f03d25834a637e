//! Views: other layouts over the same storage. Making a view copies nothing and launches nothing.

use thalweg_derive::in_call;
use thalweg_ir::{Layout, Shape, inverse_order};
use thalweg_runtime::{Error, Result, refuse, refuse_if};

use crate::host_room::host_room;
use crate::kernels::reshape::{expand, inferred, view};
use crate::kernels::views::{ViewBackward, record_unbind, record_view};
use crate::sizes::Sizes;
use crate::tensor::Tensor;

impl Tensor {
    /// Changes the layout, also of all clones. The new layout must lie within the storage.
    pub(crate) fn set_layout(&self, layout: Layout) {
        self.0.layouts.set(layout);
        self.bump_version();
    }

    /// Changes the layout of this tensor and of all its clones to one that `view` computes from the current layout. If another thread
    /// changes the layout meanwhile, `view` may have seen a mixture of both layouts, so it is called again.
    pub(crate) fn update_layout(&self, mut view: impl FnMut() -> Result<Self>) -> Result<Self> {
        let layouts = &self.0.layouts;
        loop {
            let changes = layouts.changes();
            match view() {
                Ok(view) if layouts.set_after(Some(changes), view.layout().clone()) => {
                    self.bump_version();
                    return Ok(view);
                }
                Err(error) if layouts.changes() == changes => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn seen_as(&self, layout: Layout, backward: impl FnOnce() -> ViewBackward) -> Self {
        record_view(self, self.viewed(layout), backward)
    }

    /// Permutes the dimensions (`torch.permute`): dimension `i` of the view is dimension `order[i]` of the tensor.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
    /// assert_eq!(x.permute(&[1, 0])?.to_string(), "\
    /// tensor([[1., 3.],
    ///         [2., 4.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("permute", &[self])]
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        let layout = self.layout().permute(order)?;
        Ok(self.seen_as(layout, || ViewBackward::Permute(inverse_order(order))))
    }

    /// Swaps two dimensions (`torch.transpose`); negative numbers are counted from the end.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
    /// assert_eq!(x.transpose(0, 1)?.to_string(), "\
    /// tensor([[1., 3.],
    ///         [2., 4.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("transpose", &[self])]
    pub fn transpose(&self, a: i64, b: i64) -> Result<Self> {
        let mut order: Shape = (0..self.rank()).collect();
        order.swap(self.layout().dimension(a)?, self.layout().dimension(b)?);
        self.permute(&order)
    }

    /// Narrows a dimension to the `length` indices from `start` on (`torch.narrow`).
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
    /// assert_eq!(x.narrow(0, 1, 2)?.to_string(), "tensor([2., 3.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("narrow", &[self])]
    pub fn narrow(&self, dimension: i64, start: usize, length: usize) -> Result<Self> {
        let dimension = self.layout().dimension(dimension)?;
        let layout = self.layout().narrow(dimension, start, length)?;
        Ok(self.seen_as(layout, || {
            let base = Layout::contiguous(self.shape());
            let part = base.narrow(dimension, start, length).expect("what fits the tensor fits its shape");
            ViewBackward::Part { name: "narrow", shape: self.shape().into(), part }
        }))
    }

    /// Selects one index of a dimension, and removes that dimension (`torch.select`).
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
    /// assert_eq!(x.select(0, 1)?.to_string(), "tensor([3., 4.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("select", &[self])]
    pub fn select(&self, dimension: i64, index: usize) -> Result<Self> {
        let at = self.layout().dimension(dimension)?;
        if index >= self.shape()[at] {
            return Err(Error::index(format!(
                "index {index} is out of range: dimension {dimension} of shape {:?} has {} elements",
                self.shape(),
                self.shape()[at]
            )));
        }
        self.narrow(dimension, index, 1)?.squeeze(dimension)
    }

    /// Returns a view per index of a dimension, without that dimension (`torch.unbind`).
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
    /// let parts = x.unbind(0)?;
    /// assert_eq!(parts[0].to_string(), "tensor([1., 2.], device='sim:0')");
    /// assert_eq!(parts[1].to_string(), "tensor([3., 4.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("unbind", &[self])]
    pub fn unbind(&self, dimension: i64) -> Result<Vec<Self>> {
        let at = self.layout().dimension(dimension)?;
        let mut places = host_room(self.shape()[at])?;
        for place in 0..self.shape()[at] {
            places.push(self.one_of_many(self.layout().narrow(at, place, 1)?.squeeze(at)));
        }
        Ok(record_unbind(self, places, at))
    }

    /// Iterates over the indices of the first dimension (`for place in tensor`), each a view without that dimension.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor has no dimension.
    #[in_call("iter", &[self])]
    pub fn iter(&self) -> Result<std::vec::IntoIter<Self>> {
        refuse_if!(self.rank() == 0, "iteration over a 0-d tensor");
        Ok(self.unbind(0)?.into_iter())
    }

    /// Inserts a dimension of extent 1 (`torch.unsqueeze`); a negative position is counted from the end, −1 being after the last
    /// dimension.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// assert_eq!(x.unsqueeze(0)?.to_string(), "tensor([[1., 2.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("unsqueeze", &[self])]
    pub fn unsqueeze(&self, dimension: i64) -> Result<Self> {
        let rank = self.rank() as i64 + 1;
        let at = if dimension < 0 { dimension + rank } else { dimension };
        if !(0..rank).contains(&at) {
            return Err(Error::index(format!(
                "dimension {dimension} is out of range for shape {:?} (expected {} to {})",
                self.shape(),
                -rank,
                rank - 1
            )));
        }
        let layout = self.layout().unsqueeze(at as usize)?;
        Ok(self.seen_as(layout, || ViewBackward::Reshape(self.shape().into())))
    }

    /// Removes a dimension if its extent is 1 (`torch.squeeze`).
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
    /// assert_eq!(x.squeeze(0)?.to_string(), "tensor([1., 2.], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("squeeze", &[self])]
    pub fn squeeze(&self, dimension: i64) -> Result<Self> {
        let layout = self.layout().squeeze(self.layout().dimension(dimension)?);
        Ok(self.seen_as(layout, || ViewBackward::Reshape(self.shape().into())))
    }

    /// Broadcasts to a shape without copying (`torch.Tensor.expand`), in which −1 keeps an extent. The result cannot be written
    /// in place.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], &[2, 1], &device)?;
    /// assert_eq!(x.expand(&[2, 2])?.to_string(), "\
    /// tensor([[1., 1.],
    ///         [2., 2.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("expand", &[self])]
    pub fn expand(&self, shape: impl Sizes) -> Result<Self> {
        expand(self, &shape.sizes())
    }

    /// Broadcasts to a shape, like [`expand`](Self::expand).
    pub(crate) fn expanded(&self, shape: &[usize]) -> Result<Self> {
        let layout = self.layout().expand(shape)?;
        Ok(self.seen_as(layout, || ViewBackward::Expand(self.shape().into())))
    }

    /// Returns the elements, row-major, in another shape, in which one extent may be −1 to be computed from the others
    /// (`torch.reshape`): a view if the strides allow it, else a copy.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
    /// assert_eq!(x.reshape(&[2, 2])?.to_string(), "\
    /// tensor([[1., 2.],
    ///         [3., 4.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[in_call("reshape", &[self])]
    pub fn reshape(&self, shape: impl Sizes) -> Result<Self> {
        self.reshaped(&inferred(&shape.sizes(), self.elements())?)
    }

    /// Returns the elements in another shape, like [`reshape`](Self::reshape).
    pub(crate) fn reshaped(&self, shape: &[usize]) -> Result<Self> {
        match self.layout().reshape(shape)? {
            Some(layout) => Ok(self.seen_as(layout, || ViewBackward::Reshape(self.shape().into()))),
            None => self.contiguous()?.reshaped(shape),
        }
    }

    /// Returns the elements, row-major, in another shape, in which one extent may be −1 (`torch.Tensor.view`): like
    /// [`reshape`](Self::reshape), but never a copy.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
    /// assert_eq!(x.view(&[2, 2])?.to_string(), "\
    /// tensor([[1., 2.],
    ///         [3., 4.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the strides do not allow it, or the sizes do not fit.
    #[in_call("view", &[self])]
    pub fn view(&self, shape: impl Sizes) -> Result<Self> {
        view(self, &inferred(&shape.sizes(), self.elements())?)
    }

    /// Merges all dimensions but the last: the result is a matrix.
    #[in_call("flatten_to_matrix", &[self])]
    pub fn flatten_to_matrix(&self) -> Result<Self> {
        let columns = self.size(-1)?;
        let rows = self.shape()[..self.rank() - 1].iter().product();
        self.reshape(&[rows, columns])
    }

    /// Merges all dimensions from `start` on (`torch.flatten`).
    #[in_call("flatten_from", &[self])]
    pub fn flatten_from(&self, start: usize) -> Result<Self> {
        let Some((kept, merged)) = self.shape().split_at_checked(start) else {
            refuse!("shape {:?} has no dimension {start}", self.shape());
        };
        let shape: Shape = kept.iter().copied().chain([merged.iter().product()]).collect();
        self.reshape(&shape)
    }
}
