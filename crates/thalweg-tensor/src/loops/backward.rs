//! The nodes that calls of loop operators record, and the computation of their gradients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use thalweg_execute::to_runtime_error;
use thalweg_ir::{Body, Layout, Node as Expression, OutputPlace, Shape};
use thalweg_ops::lower::{Extents, LaunchNumbers, Split, layout_like};
use thalweg_ops::schema::Schema;
use thalweg_ops::{GradientBody, LoopOp, gradient_of, without};
use thalweg_runtime::{Device, Error, Label, Result, Stream};

use super::resolved::Resolved;
use super::{LoopCall, launch, operands};
use crate::autograd::{Backward, Gradients, Saved, SavedPlace, freed, is_grad_enabled, record};
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
}

impl LoopBackward {
    /// Returns the iteration space of the operator.
    fn extents(&self) -> &Extents {
        &self.resolved.lowered.extents
    }

    /// Returns the shape of each input of the operator.
    fn inputs(&self) -> &[Shape] {
        self.shapes.as_ref().map_or(&self.resolved.lowered.inputs, |shapes| shapes)
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
        let (derived, saved) = match absent {
            0 => (Arc::clone(&self.derived), self.saved.iter().collect()),
            _ => {
                let partial = without(&self.resolved.lowered.signature, &self.derived, absent);
                (partial.derived, partial.saved.iter().map(|&place| &self.saved[place]).collect())
            }
        };
        let used = derived.used_outputs.iter().filter_map(|&output| gradients[output].clone()).collect();
        Pass { derived, saved, used }
    }

    /// Returns the gradient of an input, by its index among the required ones, if the derived body only passes on one of the used
    /// gradients: that gradient, or a view of it that repeats the value of each row at all its points.
    fn passed_on(&self, output: usize, pass: &Pass<'_>) -> Result<Option<Tensor>> {
        let (body, used) = (&pass.derived.body, &pass.used);
        let mut value = body.nodes[body.outputs[output].value.index()];
        if let Expression::Cast(id) = value {
            value = body.nodes[id.index()];
        }
        let Expression::Load { input } = value else { return Ok(None) };
        // A number that was widened for the computation is rounded back to its former value.
        let same_dtype = body.inputs[usize::from(input)].dtype == body.outputs[output].dtype;
        let Some(gradient) = usize::from(input).checked_sub(pass.saved.len()).filter(|_| same_dtype) else {
            return Ok(None);
        };
        match self.extents() {
            Extents::Elementwise(_) => Ok(Some(used[gradient].clone())),
            Extents::Rows { split, shape } => repeated(split, &used[gradient], shape),
            Extents::Coordinates(_) => Ok(None),
        }
    }

    /// Returns the dimensions if the derived body can be computed once per row, because nothing that it reads varies within a
    /// row, and the shape over which its results are then repeated.
    fn of_rows(&self, body: &Body, inputs: &[&Tensor]) -> Option<(&Split, &Shape)> {
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

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        if self.is_freed.load(Ordering::Relaxed) {
            return Err(freed());
        }
        let device =
            gradients.iter().flatten().next().expect("the engine skips nodes without a gradient").device();
        let pass = self.pass(gradients);
        let body = &pass.derived.body;
        let mut passed = (0..body.outputs.len())
            .map(|output| self.passed_on(output, &pass))
            .collect::<Result<SmallVec<[Option<Tensor>; 4]>>>()?;
        if is_grad_enabled() && !passed.iter().all(Option::is_some) {
            // The gradient of the gradient is derived from the body with all its outputs.
            passed.iter_mut().for_each(|gradient| *gradient = None);
        }
        let mut computed = match passed.iter().all(Option::is_some) {
            true => Tensors::new(),
            false => self.launch(&pass, &passed, device)?,
        }
        .into_iter();
        let mut full = passed.into_iter().map(|gradient| gradient.or_else(|| computed.next()));
        let mut results = Gradients::new();
        for (input, shape) in self.inputs().iter().enumerate() {
            let wanted = self.wanted & (1 << input) != 0;
            results.push(if wanted {
                let gradient = full.next().flatten().expect("one output a wanted input");
                let dtype = body.outputs[results.iter().flatten().count()].dtype;
                Some(self.summed(&gradient, shape)?.to_dtype(dtype)?)
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

    /// Returns the body without the outputs that are `passed` on, and its number. Outputs that are summed afterwards stay in the
    /// dtype of the computation: a sum of values that were rounded to 16 bits would lose digits.
    fn unrounded(&self, derived: &GradientBody, passed: &[Option<Tensor>]) -> (u64, Arc<Body>) {
        let (mut id, mut body) = (derived.id, Arc::clone(&derived.body));
        let wanted = (0..self.inputs().len()).filter(|input| self.wanted & (1 << input) != 0);
        for (output, input) in wanted.enumerate() {
            let (dtype, place) = (body.outputs[output].dtype, body.outputs[output].place);
            let is_summed = self.inputs()[input] != self.extents().output_shape(place);
            // The gradient of a gradient is derived from the unchanged body.
            if is_summed && dtype.compute() != dtype && !is_grad_enabled() {
                Arc::make_mut(&mut body).outputs[output].dtype = dtype.compute();
                id = (id ^ (output as u64 + 1)).wrapping_mul(0x94d0_49bb_1331_11eb);
            }
        }
        for output in (0..passed.len()).rev().filter(|&output| passed[output].is_some()) {
            Arc::make_mut(&mut body).outputs.remove(output);
            id = (id ^ (output as u64 + 1)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        }
        (id, body)
    }

    /// Computes the gradients that are not `passed` on.
    fn launch(&self, pass: &Pass<'_>, passed: &[Option<Tensor>], device: &Device) -> Result<Tensors> {
        let (id, body) = self.unrounded(&pass.derived, passed);
        let saved = pass.saved.iter().map(|saved| saved.get()).collect::<Result<Tensors>>()?;
        let inputs: SmallVec<[&Tensor; 8]> = saved.iter().chain(&pass.used).collect();
        let of_rows = self.of_rows(&pass.derived.body, &inputs);
        let rows_alone = of_rows.map(|(split, shape)| Extents::Elementwise(split.pick(shape).0));
        let extents = rows_alone.as_ref().unwrap_or(self.extents());
        let stream = device.current_stream();
        let mut outputs = body
            .outputs
            .iter()
            .map(|output| {
                let shape = extents.output_shape(output.place);
                let result = Tensor::empty_on(&shape, output.dtype, &stream, self.label)?;
                // PyTorch's operators of gradients take the result's gradient first.
                let layouts = || pass.used.iter().chain(&saved).map(Tensor::layout);
                let is_of_points = matches!(self.extents(), Extents::Elementwise(_));
                let kept = is_of_points.then(|| layout_like(layouts(), &shape)).flatten();
                Ok(match kept {
                    Some(layout) => result.with_layout(layout),
                    None => result,
                })
            })
            .collect::<Result<Tensors>>()?;
        let name = format!("{}_backward", self.operator.name);
        let compute = self.resolved.lowered.signature.compute;
        let lowered = {
            let operands = (&*operands(inputs.iter().copied()), &*operands(&outputs));
            extents.launch((id, name.into(), body), compute, operands, self.numbers.clone())
        };
        launch(&lowered.map_err(to_runtime_error)?, &inputs, &outputs, self.label)?;
        self.record(&pass.derived, &inputs, &mut outputs, stream)?;
        match of_rows {
            None => Ok(outputs),
            Some((split, shape)) => {
                let at_points =
                    |output: &Tensor| Ok(repeated(split, output, shape)?.expect("it is of the rows"));
                outputs.iter().map(at_points).collect()
            }
        }
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
        let derived = gradient_of(self.operator.name, &self.resolved.lowered.signature, derived, wanted)
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
