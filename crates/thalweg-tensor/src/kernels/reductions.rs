//! The gradient of products over dimensions.

use thalweg_ir::{Shape, inverse_order};

use crate::autograd::formula::Formula;
use crate::dispatch::Arguments;
use crate::tensor::Tensor;

/// A product's gradient: at each element the product of all others in its row, without a division, so that zeros are handled.
pub(crate) static PRODUCT: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (x, gradient, reduced) = (call.saved(0)?, call.gradient()?, call.ints(1));
            let is_reduced = |dim: &usize| reduced.contains(&(*dim as i64));
            let mut order: Shape = (0..x.rank()).filter(|dim| !is_reduced(dim)).collect();
            let rows: usize = order.iter().map(|&dim| x.shape()[dim]).product();
            order.extend((0..x.rank()).filter(is_reduced));
            let turned = x.permute(&order)?;
            if x.elements() == 0 {
                return x.mul_scalar(0);
            }
            let wide = turned.to_dtype(x.dtype().compute())?.reshape(&[rows, x.elements() / rows])?;
            let one = Tensor::ones(&[rows, 1], wide.dtype(), wide.device())?;
            // The product of the elements before each element.
            let before =
                |x: &Tensor| Tensor::cat(&[one.clone(), x.narrow(1, 0, x.shape()[1] - 1)?], 1)?.cumprod(1);
            let others = before(&wide)?.mul(&before(&wide.flip(&[1])?)?.flip(&[1])?)?;
            let result = others.mul(&gradient.to_dtype(wide.dtype())?.reshape(&[rows, 1])?)?;
            result.reshape(turned.shape())?.permute(&inverse_order(&order))?.to_dtype(x.dtype())
        })
    },
};
