//! The node of a leaf, which accumulates its gradient.

use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use thalweg_ir::Shape;
use thalweg_runtime::Result;

use super::{Backward, Gradients};
use crate::tensor::Tensor;

/// A leaf: adds what arrives to the leaf's gradient.
pub(crate) struct Accumulate {
    gradient: Arc<Mutex<Option<Tensor>>>,
    shape: Shape,
}

impl Accumulate {
    pub(crate) fn new(gradient: Arc<Mutex<Option<Tensor>>>, shape: &[usize]) -> Self {
        Self { gradient, shape: shape.into() }
    }

    /// Returns a gradient in memory that it does not share, since a leaf's gradient may be written in place: `arrived` itself where
    /// only this pass holds it, a copy where another leaf, a saved tensor or the caller does.
    fn own(&self, arrived: &Tensor) -> Result<Tensor> {
        let is_ours = Arc::strong_count(&arrived.0) == 1 && Arc::strong_count(arrived.storage()) == 1;
        if is_ours && !arrived.layout().may_overlap() {
            Ok(arrived.clone())
        } else {
            arrived.copied(Location::caller())
        }
    }
}

impl Backward for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let Some(arrived) = &gradients[0] else { return Ok(Gradients::new()) };
        debug_assert_eq!(arrived.shape(), self.shape.as_slice(), "a gradient has its leaf's shape");
        loop {
            // Stays where it is until the sum is there: a sum that fails leaves it.
            let earlier = self.leaf_gradient();
            let sum = match &earlier {
                // A new tensor, never a sum in place: the caller may hold the present one.
                Some(earlier) => {
                    earlier.record_stream(&earlier.device().current_stream());
                    earlier.add(arrived)?
                }
                None => self.own(arrived)?,
            };
            let mut slot = self.gradient.lock().unwrap_or_else(PoisonError::into_inner);
            let is_unchanged = match (&*slot, &earlier) {
                (Some(now), Some(earlier)) => Arc::ptr_eq(&now.0, &earlier.0),
                (now, earlier) => now.is_none() && earlier.is_none(),
            };
            // Else another thread's backward pass, over this leaf too, was faster.
            if is_unchanged {
                // What was there is dropped without the lock.
                let _earlier = slot.replace(sum);
                drop(slot);
                return Ok(Gradients::new());
            }
        }
    }

    fn leaf_gradient(&self) -> Option<Tensor> {
        self.gradient.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
