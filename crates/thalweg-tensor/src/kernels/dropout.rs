//! The gradient of dropout: the same elements, times the same scale.

use smallvec::SmallVec;
use thalweg_ir::{Scalar, Shape};
use thalweg_runtime::{Label, Result};

use crate::autograd::{Backward, Gradients, Saved, record};
use crate::dispatch::{Arguments, Call, built_in};
use crate::loops::LoopArguments;
use crate::tensor::{Tensor, Tensors};

/// Runs dropout, and records a node that saves which elements were kept: the generator has advanced when backward runs.
pub(crate) fn autograd(call: &Call<'_>) -> Result<Tensors> {
    let mut results = call.redispatch()?;
    let node = DropoutBackward {
        kept: Saved::new(&results[1])?,
        shape: call.tensors[0].shape().into(),
        scale: 1.0 / call.scalar(4).to_f64(),
        label: call.label,
    };
    record(Box::new(node), call.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

struct DropoutBackward {
    kept: Saved,
    /// The shape of x, which is broadcast.
    shape: Shape,
    scale: f64,
    label: Label,
}

impl Backward for DropoutBackward {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        // The gradients of x, seed and offset.
        let mut results = Gradients::from_elem(None, 3);
        if let Some(gradient) = &gradients[0] {
            let arguments = LoopArguments {
                scalars: SmallVec::from_slice(&[Scalar::F64(self.scale)]),
                ..LoopArguments::default()
            };
            let scaled = built_in!("thalweg::masked_scale")?.call_loop(
                &[gradient, &self.kept.get()?],
                &arguments,
                None,
                self.label,
            )?;
            results[0] = Some(scaled[0].sum_to_shape(&self.shape)?);
        }
        Ok(results)
    }

    fn release(&self) {
        self.kept.release();
    }
}
