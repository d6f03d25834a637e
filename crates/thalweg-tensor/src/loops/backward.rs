//! The nodes that calls of loop operators record, and the computation of their gradients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use thalweg_execute::alignment_of;
use thalweg_ir::{Body, Layout, Node as Expression, Output, OutputPlace, Shape};
use thalweg_ops::lower::{Extents, LaunchNumbers, LoweredLoop, Split};
use thalweg_ops::schema::Schema;
use thalweg_ops::{GradientBody, LoopOp, gradient_of, without};
use thalweg_runtime::{Device, Error, Label, Result, Stream};

use super::gradient_plans::{Known, Plan};
use super::resolved::Resolved;
use super::{LoopCall, launch};
use crate::autograd::{Backward, Gradients, Saved, SavedPlace, freed, is_grad_enabled, no_grad, record};
use crate::deferred;
use crate::dispatch::Call;
use crate::tensor::{Tensor, Tensors};

/// Runs a call of a loop operator, and records a node whose gradient is derived.
pub(crate) fn autograd(lowered: &LoopCall<'_>, call: &Call<'_>) -> Result<Tensors> {
    let resolved = Resolved::of(lowered)?;
    let mut results = Call { resolved: Some(&resolved), ..*call }.redispatch()?;
    let differentiable = results.iter().any(|result| result.dtype().is_differentiable());
    let wanted = lowered.wanted();
    if !differentiable || wanted == 0 {
        return Ok(results);
    }
    let node = node_of(&resolved, lowered, &results, wanted)?;
    if resolved.is_first_gradient(wanted) {
        node.expect(lowered, &results);
    }
    record(Box::new(node), &lowered.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

/// Returns the backward function of a call with these results, for the gradients of the inputs whose bits are set in `wanted`.
pub(crate) fn node(call: &LoopCall<'_>, results: &[Tensor], wanted: u32) -> Result<LoopBackward> {
    node_of(&Resolved::of(call)?, call, results, wanted)
}

fn node_of(
    resolved: &Arc<Resolved>,
    call: &LoopCall<'_>,
    results: &[Tensor],
    wanted: u32,
) -> Result<LoopBackward> {
    let derived = resolved.lowered.gradient(wanted).map_err(Error::invalid)?;
    Ok(LoopBackward {
        operator: call.operator,
        saved: (derived.saved_inputs.iter().map(|&input| call.tensors[input]))
            .map(Saved::new)
            .chain(derived.saved_outputs.iter().map(|&output| Saved::result(&results[output], output)))
            .collect::<Result<_>>()?,
        numbers: resolved.lowered.numbers(&call.arguments),
        resolved: Arc::clone(resolved),
        derived,
        is_freed: AtomicBool::new(false),
        shapes: None,
        wanted,
        label: call.label,
    })
}

/// The backward function of a loop operator, with the tensors that it saves.
pub(crate) struct LoopBackward {
    operator: &'static LoopOp,
    resolved: Arc<Resolved>,
    derived: Arc<GradientBody>,
    saved: SmallVec<[Saved; 4]>,
    numbers: LaunchNumbers,
    /// Whether a pass has freed a number that the gradient reads (`keeps_operand`).
    is_freed: AtomicBool,
    /// The shapes of the operator's inputs, if it is itself a gradient.
    shapes: Option<Box<[Shape]>>,
    wanted: u32,
    label: Label,
}

/// The computation of one backward pass: terms with an absent gradient of an output are left out.
struct Pass<'a> {
    derived: Arc<GradientBody>,
    saved: SmallVec<[&'a Saved; 4]>,
    /// The gradients of outputs that the derived body reads.
    used: Tensors,
    /// The wanted gradients that have no term left (one bit each).
    without_terms: u32,
}

impl LoopBackward {
    /// Returns the operator's lowered call.
    pub(super) fn lowered(&self) -> &LoweredLoop {
        &self.resolved.lowered
    }

    /// Returns the iteration space of the operator.
    pub(super) fn extents(&self) -> &Extents {
        &self.lowered().extents
    }

    /// Returns the shape of each input of the operator.
    fn inputs(&self) -> &[Shape] {
        self.shapes.as_ref().map_or(&self.lowered().inputs, |shapes| shapes)
    }

    /// Returns the shape of each input whose gradient is wanted.
    pub(super) fn wanted_inputs(&self) -> impl Iterator<Item = &Shape> {
        let inputs = self.inputs().iter().enumerate();
        inputs.filter(|&(input, _)| self.wanted & (1 << input) != 0).map(|(_, shape)| shape)
    }

    /// Returns the numbers of the operator's call.
    pub(super) fn numbers(&self) -> LaunchNumbers {
        self.numbers.clone()
    }

    /// Returns the name of the kernels of the gradient.
    pub(super) fn kernel_name(&self) -> String {
        format!("{}_backward", self.operator.name)
    }

    /// Compiles the kernels of the gradient in the background, for gradients of the results in the results' own layouts. An error is the
    /// backward pass's.
    fn expect(&self, call: &LoopCall<'_>, results: &[Tensor]) {
        if deferred::is_on() || !call.device.compiles_in_background() {
            return;
        }
        let derived = Arc::clone(&self.derived);
        let of_results = |outputs: &[usize]| outputs.iter().map(|&output| &results[output]).collect();
        let used: SmallVec<[&Tensor; 2]> = of_results(&derived.used_outputs);
        let inputs = derived.saved_inputs.iter().map(|&input| call.tensors[input]);
        let outputs: SmallVec<[&Tensor; 2]> = of_results(&derived.saved_outputs);
        let known = Known { saved: inputs.chain(outputs).collect(), used, derived };
        let plans = no_grad(|| {
            let passed = self.passed_on(&known.derived, &known.used)?;
            self.plans(&known, &passed.iter().map(Option::is_some).collect::<SmallVec<[bool; 4]>>())
        });
        for plan in plans.into_iter().flatten() {
            let alignment = alignment_of(plan.inputs.iter().map(|tensor| tensor.aligned_like()));
            thalweg_execute::expect(call.device, &plan.launch, alignment);
        }
    }

    /// Returns whether the gradient reads a number in the place of a tensor (`x * 2`). PyTorch keeps such a number as a tensor,
    /// which a pass frees.
    fn keeps_operand(&self) -> bool {
        let is_number = |node: &Expression| matches!(node, Expression::Scalar { slot: 0 });
        self.derived.body.nodes.iter().any(is_number) && self.operator.schema().contains("Scalar other")
    }

    /// Returns the computation for these gradients of outputs.
    fn pass<'a>(&'a self, gradients: &[Option<Tensor>]) -> Pass<'a> {
        let used = self.derived.used_outputs.iter().enumerate();
        let absent = used
            .filter(|&(_, &output)| gradients[output].is_none())
            .fold(0u32, |mask, (place, _)| mask | 1 << place);
        let (derived, saved, without_terms) = match absent {
            0 => (Arc::clone(&self.derived), self.saved.iter().collect(), 0),
            _ => {
                let partial = without(&self.lowered().signature, &self.derived, absent);
                let saved = partial.saved.iter().map(|&place| &self.saved[place]).collect();
                (partial.derived, saved, partial.absent_outputs)
            }
        };
        let used = derived.used_outputs.iter().filter_map(|&output| gradients[output].clone()).collect();
        Pass { derived, saved, used, without_terms }
    }

    /// Returns, for each wanted gradient, the gradient of a result if the derived body only passes it on: itself, or a view of it that
    /// repeats the value of each row at all its points.
    fn passed_on(&self, derived: &GradientBody, used: &[&Tensor]) -> Result<SmallVec<[Option<Tensor>; 4]>> {
        let (body, saved) = (&derived.body, derived.saved_inputs.len() + derived.saved_outputs.len());
        let of_output = |output: &Output| {
            let mut value = body.nodes[output.value.index()];
            if let Expression::Cast(id) = value {
                value = body.nodes[id.index()];
            }
            let Expression::Load { input } = value else { return Ok(None) };
            // A number that was widened for the computation is rounded back to its former value.
            let same_dtype = body.inputs[usize::from(input)].dtype == output.dtype;
            let Some(gradient) = usize::from(input).checked_sub(saved).filter(|_| same_dtype) else {
                return Ok(None);
            };
            match self.extents() {
                Extents::Elementwise(_) => Ok(Some(used[gradient].clone())),
                Extents::Rows { split, shape } => repeated(split, used[gradient], shape),
                Extents::Coordinates(_) => Ok(None),
            }
        };
        body.outputs.iter().map(of_output).collect()
    }

    /// Returns the dimensions if the derived body can be computed once per row, because nothing that it reads varies within a
    /// row, and the shape over which its results are then repeated.
    pub(super) fn of_rows(&self, body: &Body, inputs: &[&Tensor]) -> Option<(&Split, &Shape)> {
        let Extents::Rows { split, shape } = self.extents() else { return None };
        let rows = split.pick(shape).0;
        let is_of_rows =
            inputs.iter().all(|tensor| tensor.shape() == rows.as_slice() && tensor.rank() < shape.len());
        let is_plain = body.reductions.is_empty() && !body.uses_coordinates();
        let at_points = body.outputs.iter().all(|output| output.place == OutputPlace::Point);
        (is_of_rows && is_plain && at_points && !is_grad_enabled()).then_some((split, shape))
    }
}

/// Returns a view of a tensor with one value per row that repeats each value at all points of this shape; the tensor itself, if
/// it has one value per point.
fn repeated(split: &Split, tensor: &Tensor, shape: &[usize]) -> Result<Option<Tensor>> {
    if tensor.shape() == shape {
        return Ok(Some(tensor.clone()));
    }
    if tensor.shape() != split.pick(shape).0.as_slice() {
        return Ok(None);
    }
    if is_grad_enabled() {
        let mut kept: Shape = shape.into();
        split.inner.iter().for_each(|&dimension| kept[dimension] = 1);
        return tensor.reshape(&kept)?.expand(shape).map(Some);
    }
    let mut strides = Shape::from_elem(0, shape.len());
    for (&dimension, &stride) in split.rows.iter().zip(tensor.layout().strides()) {
        strides[dimension] = stride;
    }
    Ok(Some(tensor.with_layout(Layout::new(shape, &strides, tensor.layout().offset())?)))
}

impl Backward for LoopBackward {
    fn name(&self) -> &'static str {
        self.operator.name
    }

    fn is_of_loops(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        if self.is_freed.load(Ordering::Relaxed) {
            return Err(freed());
        }
        let device =
            gradients.iter().flatten().next().expect("the engine skips nodes without a gradient").device();
        let pass = self.pass(gradients);
        let mut found =
            self.passed_on(&pass.derived, &pass.used.iter().collect::<SmallVec<[&Tensor; 2]>>())?;
        if !found.iter().all(Option::is_some) {
            if is_grad_enabled() {
                // The gradient of the gradient is derived from the body with all its outputs.
                found.iter_mut().for_each(|gradient| *gradient = None);
            }
            let saved = pass.saved.iter().map(|saved| saved.get()).collect::<Result<Tensors>>()?;
            let known = Known {
                derived: Arc::clone(&pass.derived),
                saved: saved.iter().collect(),
                used: pass.used.iter().collect(),
            };
            let is_passed: SmallVec<[bool; 4]> = found.iter().map(Option::is_some).collect();
            for plan in self.plans(&known, &is_passed)? {
                self.run(&plan, &known, device, &mut found)?;
            }
        }
        let mut found = found.into_iter().flatten().zip(&pass.derived.body.outputs).enumerate();
        let mut results = Gradients::new();
        for (input, shape) in self.inputs().iter().enumerate() {
            let wanted = self.wanted & (1 << input) != 0;
            results.push(if wanted {
                let (place, (gradient, output)) = found.next().expect("one output a wanted input");
                match pass.without_terms & (1 << place) {
                    0 => Some(self.summed(&gradient, shape)?.to_dtype(output.dtype)?),
                    _ => None,
                }
            } else {
                None
            });
        }
        Ok(results)
    }

    fn release(&self) {
        self.saved.iter().for_each(Saved::release);
        if self.saved.is_empty() && self.keeps_operand() {
            self.is_freed.store(true, Ordering::Relaxed);
        }
    }

    fn saved(&self) -> Vec<SavedPlace<'_>> {
        // The tensors that a gradient of a gradient keeps have no names in any signature.
        let Some(schema) = Schema::parse(&self.operator.schema()).ok().filter(|_| self.shapes.is_none())
        else {
            return Vec::new();
        };
        let inputs = self.derived.saved_inputs.len();
        let place = |(place, saved)| match self.derived.saved_inputs.get(place) {
            Some(&input) => SavedPlace::input(&schema, input, saved),
            None => SavedPlace::result(&schema, self.derived.saved_outputs[place - inputs], saved),
        };
        self.saved.iter().enumerate().map(place).collect()
    }
}

impl LoopBackward {
    /// Returns the gradient of an input of this shape from the gradients at all points: an input with one value per row is
    /// repeated over the points of the row, any other is broadcast.
    fn summed(&self, gradient: &Tensor, shape: &[usize]) -> Result<Tensor> {
        if let Extents::Rows { split, shape: points } = self.extents()
            && shape != points.as_slice()
            && gradient.shape() == points.as_slice()
            && split.pick(points).0.as_slice() == shape
        {
            let inner: SmallVec<[i64; 6]> = split.inner.iter().map(|&dimension| dimension as i64).collect();
            return gradient.sum(&inner, false);
        }
        gradient.sum_to_shape(shape)
    }

    /// Launches a plan, and puts its gradients among those that were found.
    fn run(
        &self,
        plan: &Plan<'_>,
        known: &Known<'_>,
        device: &Device,
        found: &mut [Option<Tensor>],
    ) -> Result<()> {
        let stream = device.current_stream();
        let results = plan.outputs.iter().map(|output| {
            let result = Tensor::empty_on(output.layout.shape(), output.dtype, &stream, self.label)?;
            Ok(match output.layout.is_contiguous() {
                true => result,
                false => result.with_layout(output.layout.clone()),
            })
        });
        let mut results = results.collect::<Result<Tensors>>()?;
        launch(&plan.launch, &plan.inputs, &results, self.label)?;
        self.record(&known.derived, &plan.inputs, &mut results, stream)?;
        let of_rows = self.of_rows(&known.derived.body, &plan.inputs);
        for (output, result) in plan.outputs.iter().zip(results) {
            found[output.number] = match of_rows {
                Some((split, shape)) => repeated(split, &result, shape)?,
                None if output.layout.shape() == output.shape.as_slice() => Some(result),
                None => Some(result.with_layout(Layout::contiguous(&output.shape))),
            };
        }
        Ok(())
    }

    /// Records a node for the gradient itself, if gradients of gradients are requested (`create_graph`).
    fn record(
        &self,
        derived: &GradientBody,
        inputs: &[&Tensor],
        outputs: &mut [Tensor],
        stream: Stream,
    ) -> Result<()> {
        if !is_grad_enabled() {
            return Ok(());
        }
        let wanted = (inputs.iter().enumerate())
            .filter(|(_, tensor)| tensor.requires_grad() && tensor.dtype().is_differentiable())
            .fold(0u32, |mask, (input, _)| mask | 1 << input);
        if wanted == 0 {
            return Ok(());
        }
        let derived = gradient_of(self.operator.name, &self.lowered().signature, derived, wanted)
            .map_err(Error::invalid)?;
        let inputs_of = inputs.iter().map(|tensor| tensor.shape().into()).collect();
        let node = Self {
            operator: self.operator,
            resolved: Arc::clone(&self.resolved),
            saved: derived
                .saved_inputs
                .iter()
                .map(|&input| Saved::new(inputs[input]))
                .collect::<Result<_>>()?,
            derived,
            numbers: self.numbers.clone(),
            is_freed: AtomicBool::new(false),
            shapes: Some(inputs_of),
            wanted,
            label: self.label,
        };
        record(Box::new(node), inputs, outputs, stream);
        Ok(())
    }
}
