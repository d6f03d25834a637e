//! [`LoweredLoop`]: a call of a loop operator, lowered.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_ir::{Body, Category, DType, Layout, Shape, byte_count};

use super::extents::Extents;
use super::kept_layout::kept_layout;
use super::launch::{LaunchNumbers, LoopLaunch};
use super::{LoopArguments, Operand, Result, Steps};
use crate::definition::{DTypes, LoopOp, Signature, Space, scalar_bits};
use crate::gradient::{ForwardBody, GradientBody, forward, forward_into, gradient};

/// A result of a lowered call, which is to be allocated.
#[derive(Clone, Debug)]
pub struct LoweredOutput {
    /// The dtype.
    pub dtype: DType,
    /// The layout: PyTorch's for these operands.
    pub layout: Layout,
    /// The size in bytes.
    pub bytes: u64,
}

impl LoweredOutput {
    /// Returns the output as an operand.
    pub fn operand(&self) -> Operand<'_> {
        Operand { dtype: self.dtype, layout: &self.layout }
    }
}

/// A lowered call of a loop operator: everything derived from the dtypes, shapes and strides of its operands.
#[derive(Debug)]
pub struct LoweredLoop {
    /// The operator.
    pub operator: &'static LoopOp,
    /// The dtypes of the call.
    pub signature: Signature,
    /// The iteration space.
    pub extents: Extents,
    /// The shape of each input.
    pub inputs: SmallVec<[Shape; 4]>,
    /// The results.
    pub outputs: SmallVec<[LoweredOutput; 2]>,
    forward: Arc<ForwardBody>,
    /// The launch, without the numbers, which each call supplies.
    launch: LoopLaunch,
    /// The launches as which it is executed, if its rows are few and long.
    steps: Option<Steps>,
    /// The gradient that was requested first, which is kept for later calls: the inputs that it is taken with respect to, and its
    /// body.
    gradient: OnceLock<(u32, Arc<GradientBody>)>,
}

impl LoweredLoop {
    /// Lowers a call whose results are to be allocated.
    ///
    /// # Errors
    /// Returns an error if the operator refuses the dtypes or the shapes.
    pub fn new(operator: &'static LoopOp, inputs: &[Operand<'_>], arguments: &LoopArguments) -> Result<Self> {
        let signature = signature_of(operator, inputs, arguments)?;
        Self::of_signature(operator, signature, inputs, arguments)
    }

    /// Lowers a call with these dtypes, whose results are to be allocated.
    ///
    /// # Errors
    /// Returns an error if the operator refuses the shapes.
    pub fn of_signature(
        operator: &'static LoopOp,
        signature: Signature,
        inputs: &[Operand<'_>],
        arguments: &LoopArguments,
    ) -> Result<Self> {
        let extents = Extents::new(operator, inputs, arguments)?;
        let forward = forward(operator, &signature);
        let places = || forward.body.outputs.iter();
        let kept = places()
            .next()
            .and_then(|output| kept_layout(operator, inputs, &extents.output_shape(output.place)));
        let outputs = places()
            .map(|output| {
                let (dtype, shape) = (output.dtype, extents.output_shape(output.place));
                // A shape whose size in bytes overflows has no layout.
                let bytes = byte_count(&shape, dtype)? as u64;
                let layout = kept.clone().unwrap_or_else(|| Layout::contiguous(&shape));
                Ok(LoweredOutput { dtype, layout, bytes })
            })
            .collect::<Result<SmallVec<[_; 2]>>>()?;
        let parts = (forward.id, operator.name.into(), Arc::clone(&forward.body));
        let launch = {
            let results: SmallVec<[Operand<'_>; 4]> = outputs.iter().map(LoweredOutput::operand).collect();
            extents.launch(parts, signature.compute, (inputs, &results), LaunchNumbers::new())?
        };
        let steps = launch.steps()?;
        let inputs = inputs.iter().map(|operand| operand.layout.shape().into()).collect();
        let gradient = OnceLock::new();
        Ok(Self { operator, signature, extents, inputs, outputs, forward, launch, steps, gradient })
    }

    /// Returns the body.
    pub fn body(&self) -> &Arc<Body> {
        &self.forward.body
    }

    /// Returns the launch. It has no numbers: [`numbers`](Self::numbers) returns those of a call.
    pub fn launch(&self) -> &LoopLaunch {
        &self.launch
    }

    /// Returns the launches as which it is executed, if its rows are few and long.
    pub fn steps(&self) -> Option<&Steps> {
        self.steps.as_ref()
    }

    /// Returns the launch into results of other layouts, with the numbers of a call. Results of other dtypes are converted as they are
    /// written.
    ///
    /// # Errors
    /// Returns an error if the inputs are not those of the call.
    pub fn launch_into(
        &self,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
        arguments: &LoopArguments,
    ) -> Result<LoopLaunch> {
        let dtypes = outputs.iter().map(|output| output.dtype).collect();
        let forward = forward_into(self.operator, &self.signature, &dtypes);
        let parts = (forward.id, self.operator.name.into(), Arc::clone(&forward.body));
        self.extents.launch(parts, self.signature.compute, (inputs, outputs), self.numbers(arguments))
    }

    /// Returns the bits of a call's numbers, in the forms in which the body reads them.
    pub fn numbers(&self, arguments: &LoopArguments) -> LaunchNumbers {
        numbers_of(&self.forward.body, arguments)
    }

    /// Returns the gradient for the inputs whose bits are set in `wanted`.
    ///
    /// # Errors
    /// The reason why there is no gradient, as text.
    pub fn gradient(&self, wanted: u32) -> Result<Arc<GradientBody>, String> {
        if let Some((_, gradient)) = self.gradient.get().filter(|(inputs, _)| *inputs == wanted) {
            return Ok(Arc::clone(gradient));
        }
        let gradient = gradient(self.operator, &self.signature, wanted)?;
        // The first mask is kept here; the others are looked up.
        let _ = self.gradient.set((wanted, Arc::clone(&gradient)));
        Ok(gradient)
    }
}

impl LoopLaunch {
    /// Lowers a call with given results.
    ///
    /// # Errors
    /// Returns an error if the operator refuses the dtypes or the shapes.
    pub fn into_outputs(
        operator: &'static LoopOp,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
        arguments: &LoopArguments,
    ) -> Result<Self> {
        let signature = signature_of(operator, inputs, arguments)?;
        let extents = match operator.space {
            Space::Elementwise | Space::Coordinates => Extents::Elementwise(outputs[0].layout.shape().into()),
            Space::Rows => Extents::new(operator, inputs, arguments)?,
        };
        let forward = forward(operator, &signature);
        let parts = (forward.id, operator.name.into(), Arc::clone(&forward.body));
        extents.launch(parts, signature.compute, (inputs, outputs), numbers_of(&forward.body, arguments))
    }
}

/// Returns the bits of numbers, in the forms in which a body reads them.
fn numbers_of(body: &Body, arguments: &LoopArguments) -> LaunchNumbers {
    let slots = arguments.scalars.iter().zip(&body.scalars);
    slots.map(|(&scalar, &slot)| scalar_bits(scalar, slot)).collect()
}

/// Returns the dtypes of a call.
///
/// # Errors
/// Returns an error if the operator refuses the dtypes of its operands.
pub fn signature_of(
    operator: &LoopOp,
    inputs: &[Operand<'_>],
    arguments: &LoopArguments,
) -> Result<Signature> {
    let dtypes: DTypes = inputs.iter().map(|operand| operand.dtype).collect();
    // Numbers of a row operator are counts, which do not affect the promotion.
    let scalars = match operator.space {
        Space::Elementwise => arguments.category(),
        Space::Rows | Space::Coordinates => Category::Bool,
    };
    let zero_dimensional = (inputs.iter().enumerate())
        .filter(|(_, operand)| operand.layout.rank() == 0)
        .fold(0, |mask, (index, _)| mask | 1 << index);
    Ok(operator.signature_of(&dtypes, zero_dimensional, scalars, arguments.dtype)?)
}
