//! The launches of a gradient: which of its outputs each computes, from which operands, in which layouts.
//!
//! An input that was broadcast has the sum of its gradients over the points that read an element. The values that are summed are computed
//! by the launch that sums them, and are not stored; inputs that were broadcast over the same dimensions share a launch.
//!
//! Plans are made without memory, so that a gradient can be compiled before its backward pass begins.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_execute::to_runtime_error;
use thalweg_ir::{Body, DType, Layout, OutputPlace, Shape};
use thalweg_ops::lower::{Extents, LoopLaunch, Operand, Split, layout_like};
use thalweg_ops::{GradientBody, summed};
use thalweg_runtime::Result;

use super::backward::LoopBackward;
use super::operands;
use crate::autograd::is_grad_enabled;
use crate::tensor::Tensor;

/// The most points of a row, adjacent in memory, that a block reads for a sum and for values at its points in one launch.
const SHORT_ROW: usize = 1 << 12;

type Dimensions = SmallVec<[usize; 6]>;

/// The tensors of a gradient's computation.
pub(super) struct Known<'a> {
    pub derived: Arc<GradientBody>,
    /// The saved tensors that the derived body reads.
    pub saved: SmallVec<[&'a Tensor; 4]>,
    /// The gradients of the operator's results that it reads.
    pub used: SmallVec<[&'a Tensor; 2]>,
}

impl<'a> Known<'a> {
    /// Returns all operands in the order of the body's inputs.
    pub(super) fn operands(&self) -> SmallVec<[&'a Tensor; 8]> {
        self.saved.iter().chain(&self.used).copied().collect()
    }

    /// Returns the layout of a result at the points of this shape: like that of the gradient, which PyTorch's operators take first.
    fn layout(&self, shape: &[usize]) -> Layout {
        let layouts = self.used.iter().chain(&self.saved).map(|tensor| tensor.layout());
        layout_like(layouts, shape).unwrap_or_else(|| Layout::contiguous(shape))
    }
}

/// A launch of a gradient, without memory for its results.
pub(super) struct Plan<'a> {
    pub launch: LoopLaunch,
    pub inputs: SmallVec<[&'a Tensor; 8]>,
    pub outputs: SmallVec<[PlannedOutput; 4]>,
}

/// A gradient that a launch computes.
pub(super) struct PlannedOutput {
    /// Its number among the wanted gradients.
    pub number: usize,
    pub dtype: DType,
    /// The layout in which it is written.
    pub layout: Layout,
    /// The shape in which the same elements are returned.
    pub shape: Shape,
}

/// Returns the dimensions of points over which an input of this shape was broadcast.
fn broadcast_over(points: &[usize], input: &[usize]) -> Dimensions {
    let added = points.len() - input.len();
    (0..points.len()).filter(|&d| points[d] != 1 && (d < added || input[d - added] == 1)).collect()
}

impl LoopBackward {
    /// Returns the launches that compute the gradients that are not `passed` on.
    pub(super) fn plans<'a>(&self, known: &Known<'a>, passed: &[bool]) -> Result<SmallVec<[Plan<'a>; 2]>> {
        let mut plans = SmallVec::new();
        let mut missing: SmallVec<[bool; 4]> = passed.iter().map(|is_passed| !is_passed).collect();
        self.add_sums(known, &mut missing, &mut plans)?;
        if missing.contains(&true) {
            plans.push(self.plan(known, &missing)?);
        }
        Ok(plans)
    }

    /// Adds the launches that compute sums among the `missing` gradients, together with gradients that can share a launch with them,
    /// and removes these from `missing`. Gradients that are sums of gradients passed on are left out, unless others are summed over
    /// the same dimensions. Adds nothing if gradients of gradients are recorded.
    fn add_sums<'a>(
        &self,
        known: &Known<'a>,
        missing: &mut [bool],
        plans: &mut SmallVec<[Plan<'a>; 2]>,
    ) -> Result<()> {
        let Extents::Elementwise(points) = self.extents() else { return Ok(()) };
        let Some(gradient) = known.used.first().filter(|_| !is_grad_enabled() && !points.contains(&0)) else {
            return Ok(());
        };
        let over: SmallVec<[Dimensions; 4]> =
            self.wanted_inputs().map(|shape| broadcast_over(points, shape)).collect();
        for first in 0..over.len() {
            if !missing[first] || over[first].is_empty() {
                continue;
            }
            let is_short = is_short_row(points, &over[first], gradient.layout());
            let is_summed = |output: usize| over[output] == over[first];
            let is_kept = |output: usize| is_short && over[output].is_empty() && missing[output];
            let places: SmallVec<[Option<OutputPlace>; 4]> = (0..over.len())
                .map(|output| match output {
                    output if is_summed(output) => Some(OutputPlace::Row),
                    output if is_kept(output) => Some(OutputPlace::Point),
                    _ => None,
                })
                .collect();
            let split = Split::new(points.len(), &over[first]);
            let Some(plan) = self.plan_of_sums(known, &places, (split, points))? else { return Ok(()) };
            plan.outputs.iter().for_each(|output| missing[output.number] = false);
            plans.push(plan);
        }
        Ok(())
    }

    /// Returns the launch that computes gradients at these places: sums over rows, and values at points. `None` if the gradients
    /// cannot be summed so.
    fn plan_of_sums<'a>(
        &self,
        known: &Known<'a>,
        places: &[Option<OutputPlace>],
        (split, points): (Split, &Shape),
    ) -> Result<Option<Plan<'a>>> {
        let signature = &self.lowered().signature;
        let Some(gradient) = summed(signature, &known.derived, places) else { return Ok(None) };
        let all = known.operands();
        let inputs: SmallVec<[&Tensor; 8]> = gradient.inputs.iter().map(|&input| all[input]).collect();
        let layouts = inputs
            .iter()
            .map(|tensor| Ok(tensor.layout().expand(points)?))
            .collect::<Result<SmallVec<[Layout; 8]>>>()?;
        let read = inputs.iter().zip(&layouts);
        let read = read.map(|(tensor, layout)| Operand { dtype: tensor.dtype(), layout });
        let extents = Extents::Rows { split, shape: points.clone() };
        let shapes: SmallVec<[&Shape; 4]> = self.wanted_inputs().collect();
        let numbers = (0..places.len()).filter(|&number| places[number].is_some());
        let outputs: SmallVec<[PlannedOutput; 4]> = numbers
            .zip(&gradient.body.outputs)
            .map(|(number, output)| {
                let own = extents.output_shape(output.place);
                let (layout, shape) = match output.place {
                    OutputPlace::Point => (known.layout(&own), own),
                    OutputPlace::Row => (Layout::contiguous(&own), shapes[number].clone()),
                };
                PlannedOutput { number, dtype: output.dtype, layout, shape }
            })
            .collect();
        let body = (gradient.id, Arc::clone(&gradient.body));
        let launch = self.launch_of(&extents, body, &read.collect::<SmallVec<[_; 8]>>(), &outputs)?;
        Ok(Some(Plan { launch, inputs, outputs }))
    }

    /// Returns the launch that computes the `missing` gradients, each at its own places.
    fn plan<'a>(&self, known: &Known<'a>, missing: &[bool]) -> Result<Plan<'a>> {
        let (id, body) = self.unrounded(&known.derived, missing);
        let inputs = known.operands();
        let rows_alone = self.of_rows(&known.derived.body, &inputs);
        let rows_alone = rows_alone.map(|(split, shape)| Extents::Elementwise(split.pick(shape).0));
        let extents = rows_alone.as_ref().unwrap_or(self.extents());
        let is_of_points = matches!(self.extents(), Extents::Elementwise(_));
        let numbers = (0..missing.len()).filter(|&number| missing[number]);
        let outputs: SmallVec<[PlannedOutput; 4]> = numbers
            .zip(&body.outputs)
            .map(|(number, output)| {
                let shape = extents.output_shape(output.place);
                let layout = if is_of_points { known.layout(&shape) } else { Layout::contiguous(&shape) };
                PlannedOutput { number, dtype: output.dtype, layout, shape }
            })
            .collect();
        let launch = self.launch_of(extents, (id, body), &operands(inputs.iter().copied()), &outputs)?;
        Ok(Plan { launch, inputs, outputs })
    }

    fn launch_of(
        &self,
        extents: &Extents,
        (id, body): (u64, Arc<Body>),
        read: &[Operand<'_>],
        outputs: &[PlannedOutput],
    ) -> Result<LoopLaunch> {
        let written = outputs.iter().map(|output| Operand { dtype: output.dtype, layout: &output.layout });
        let written: SmallVec<[Operand<'_>; 4]> = written.collect();
        let compute = self.lowered().signature.compute;
        let body = (id, self.kernel_name().into(), body);
        extents.launch(body, compute, (read, &written), self.numbers()).map_err(to_runtime_error)
    }

    /// Returns the body with only the `missing` outputs, and its number. Outputs that are summed afterwards stay in the
    /// dtype of the computation: a sum of values that were rounded to 16 bits would lose digits.
    fn unrounded(&self, derived: &GradientBody, missing: &[bool]) -> (u64, Arc<Body>) {
        let (mut id, mut body) = (derived.id, Arc::clone(&derived.body));
        for (output, shape) in self.wanted_inputs().enumerate() {
            let (dtype, place) = (body.outputs[output].dtype, body.outputs[output].place);
            let is_summed = *shape != self.extents().output_shape(place);
            // The gradient of a gradient is derived from the unchanged body.
            if is_summed && dtype.compute() != dtype && !is_grad_enabled() {
                Arc::make_mut(&mut body).outputs[output].dtype = dtype.compute();
                id = (id ^ (output as u64 + 1)).wrapping_mul(0x94d0_49bb_1331_11eb);
            }
        }
        for output in (0..missing.len()).rev().filter(|&output| !missing[output]) {
            Arc::make_mut(&mut body).outputs.remove(output);
            id = (id ^ (output as u64 + 1)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        }
        (id, body)
    }
}

/// Returns whether the points of a row, which are those of dimensions `over`, are few, and adjacent in this layout.
fn is_short_row(points: &[usize], over: &[usize], layout: &Layout) -> bool {
    let count: usize = over.iter().map(|&dimension| points[dimension]).product();
    let added = points.len() - layout.rank();
    let is_adjacent = |&dimension: &usize| dimension >= added && layout.strides()[dimension - added] == 1;
    count <= SHORT_ROW && over.iter().any(is_adjacent)
}
