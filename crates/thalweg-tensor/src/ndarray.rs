//! Arrays of `ndarray` as tensors, and back.

use ::ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};
use thalweg_derive::at_line;
use thalweg_ir::HostElement;
use thalweg_runtime::{Device, Result};

use crate::tensor::Tensor;

impl Tensor {
    /// Returns an array's elements as a tensor, row-major for any layout of the array.
    #[at_line]
    pub fn from_ndarray<T: HostElement, S: Data<Elem = T>, D: Dimension>(
        array: &ArrayBase<S, D>,
        device: &Device,
    ) -> Result<Self> {
        let standard = array.as_standard_layout();
        let elements = standard.as_slice().expect("the standard layout has no gaps");
        Self::from_slice(elements, array.shape(), device)
    }

    /// Returns the elements as an array. *Blocks* until they are on the host.
    #[at_line]
    pub fn to_ndarray<T: HostElement>(&self) -> Result<ArrayD<T>> {
        let elements = self.to_vec::<T>()?;
        Ok(ArrayD::from_shape_vec(IxDyn(self.shape()), elements).expect("as many elements as the shape has"))
    }
}
