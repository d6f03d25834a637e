//! [`Loop`]: a loop of a segment, in its canonical form.

use std::cell::OnceCell;

use smallvec::{SmallVec, smallvec};
use thalweg_ir::{Binary, Class, Dimensions, Node as Expression, OutputPlace, Shape};
use thalweg_ops::Placement;
use thalweg_ops::lower::LoopLaunch;

use crate::embedding::Dim;
use crate::machine::Machine;
use crate::segment::{Memory, Node, Operand, Touched, dtypes, touched};

/// The largest number of primitives of a loop that may be computed again at every point of another loop; and the same for a loop that
/// has a single point.
const CHEAP: usize = 6;
const CHEAP_FOR_A_POINT: usize = 12;

/// A loop of a segment: a node, or several that are fused.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    /// The numbers of the nodes, in program order.
    pub members: SmallVec<[u32; 4]>,
    pub launch: LoopLaunch,
    pub inputs: SmallVec<[Operand; 8]>,
    pub outputs: SmallVec<[Operand; 4]>,
    /// The node and the slot from which each number comes.
    pub numbers: SmallVec<[(u32, u32); 8]>,
    /// The ranges that are touched: those of the inputs, then those of the outputs.
    pub touched: SmallVec<[Touched; 8]>,
    /// The alignment of all addresses, in bytes.
    pub alignment_bytes: u64,
    /// Whether it may become a part of another loop.
    pub is_fusable: bool,
    /// The class for which the planner would compile it, once that is known.
    pub class: OnceCell<Option<Class>>,
}

impl Loop {
    /// Returns a node as a loop.
    pub fn of(number: u32, node: &Node, memories: &[Memory]) -> Self {
        let body = &node.launch.body;
        let numbers = (0..body.scalars.len() as u32).map(|slot| (number, slot)).collect();
        let launch = canonical(&node.launch);
        let body = &launch.body;
        let scatters = body.outputs.iter().any(|output| output.scatter.is_some());
        let is_empty = launch.rows.iter().chain(&launch.inner).any(|&extent| extent == 0);
        let has_idle_inner = body.reductions.is_empty() && !launch.inner.is_empty();
        let mut made = Self {
            members: smallvec![number],
            inputs: SmallVec::from_slice(&node.inputs),
            outputs: SmallVec::from_slice(&node.outputs),
            numbers,
            touched: SmallVec::new(),
            alignment_bytes: 1,
            is_fusable: !scatters && body.report.is_none() && !is_empty && !has_idle_inner,
            class: OnceCell::new(),
            launch,
        };
        made.is_fusable &= body_outputs(&made.launch).all(|strides| is_injective(&strides));
        made.settle(memories);
        made
    }

    /// Derives ranges and alignment from the operands.
    pub fn settle(&mut self, memories: &[Memory]) {
        let operands = || self.inputs.iter().chain(&self.outputs);
        self.touched = (operands().zip(&self.launch.placements).zip(dtypes(&self.launch.body)))
            .map(|((&operand, placement), dtype)| touched(&self.launch, operand, placement, dtype))
            .collect();
        let bits = operands().fold(0, |bits, operand| {
            bits | memories[operand.memory as usize].alignment_bytes | operand.offset
        });
        self.alignment_bytes = 1 << bits.trailing_zeros().min(8);
    }

    /// Renames the nodes that the loop consists of, each of which may then be there once for several.
    pub fn rename(&mut self, mut rename: impl FnMut(&mut u32)) {
        self.members.iter_mut().for_each(&mut rename);
        self.members.sort_unstable();
        self.members.dedup();
        self.numbers.iter_mut().for_each(|(node, _)| rename(node));
    }

    /// Returns the ranges that are read.
    pub fn reads(&self) -> &[Touched] {
        &self.touched[..self.inputs.len()]
    }

    /// Returns the ranges that are written.
    pub fn writes(&self) -> &[Touched] {
        &self.touched[self.inputs.len()..]
    }

    /// Returns whether the order of two loops affects what memory contains.
    pub fn conflicts(&self, other: &Self) -> bool {
        let meet = |a: &[Touched], b: &[Touched]| a.iter().any(|a| b.iter().any(|b| a.overlaps(b)));
        meet(self.writes(), &other.touched) || meet(self.reads(), other.writes())
    }

    /// Returns whether the loop combines points.
    pub fn combines(&self) -> bool {
        !self.launch.body.reductions.is_empty()
    }

    pub fn points(&self) -> u64 {
        self.launch.rows.iter().chain(&self.launch.inner).map(|&extent| extent as u64).product()
    }

    /// Returns extent and stride of each dimension of an operand: the inputs are counted first. `None` if it is gathered from.
    pub fn dims(&self, operand: usize) -> Option<SmallVec<[Dim; 6]>> {
        let extents = self.launch.rows.iter().chain(&self.launch.inner).map(|&extent| extent as u64);
        strides(&self.launch, operand).map(|strides| extents.zip(strides).collect())
    }

    pub fn operand(&self, operand: usize) -> Operand {
        match operand.checked_sub(self.inputs.len()) {
            None => self.inputs[operand],
            Some(output) => self.outputs[output],
        }
    }

    pub fn operand_count(&self) -> usize {
        self.inputs.len() + self.outputs.len()
    }

    /// Returns the class for which the planner would compile the loop on a machine, which is one machine for all calls.
    pub fn class(&self, machine: &Machine) -> Option<Class> {
        *self.class.get_or_init(|| {
            let plan =
                self.launch.plan(self.alignment_bytes, machine.shared_memory_bytes, machine.has_clusters);
            plan.ok().map(|plan| plan.class)
        })
    }
}

/// Returns whether computing a loop again at every point of another one costs little.
pub(crate) fn is_cheap(launch: &LoopLaunch) -> bool {
    let body = &launch.body;
    let costs = |node: &&Expression| {
        !matches!(
            node,
            Expression::Constant(_)
                | Expression::Load { .. }
                | Expression::Scalar { .. }
                | Expression::Cast(_)
        )
    };
    let is_dear = |node: &Expression| match node {
        Expression::Unary(op, _) => op.cuda_name().is_some(),
        Expression::Binary(op, ..) => matches!(op, Binary::Pow | Binary::Atan2 | Binary::Rem),
        Expression::Random(..) | Expression::Gather { .. } => true,
        _ => false,
    };
    let count = body.nodes.iter().filter(costs).count();
    match launch.rows.iter().chain(&launch.inner).all(|&extent| extent == 1) {
        true => count <= CHEAP_FOR_A_POINT,
        false => count <= CHEAP && !body.nodes.iter().any(is_dear),
    }
}

/// Returns the strides of an operand over rows and inner dimensions; `None` if it is gathered from.
pub(crate) fn strides(launch: &LoopLaunch, operand: usize) -> Option<Dimensions> {
    match &launch.placements[operand] {
        Placement::Gathered(_) => None,
        Placement::Strided { rows, inner } => {
            let mut strides = rows.clone();
            strides.extend_from_slice(inner);
            strides.resize(launch.rows.len() + launch.inner.len(), 0);
            Some(strides)
        }
    }
}

/// Returns, for each output, extent and stride of each dimension over which it is written.
fn body_outputs(launch: &LoopLaunch) -> impl Iterator<Item = SmallVec<[Dim; 6]>> + '_ {
    let first = launch.body.inputs.len();
    launch.placements[first..].iter().map(|placement| match placement {
        Placement::Gathered(_) => SmallVec::new(),
        Placement::Strided { rows, inner } => {
            let extents = launch.rows.iter().take(rows.len()).chain(launch.inner.iter().take(inner.len()));
            extents.map(|&extent| extent as u64).zip(rows.iter().chain(inner).copied()).collect()
        }
    })
}

/// Returns whether every point has an element of its own.
fn is_injective(dims: &[Dim]) -> bool {
    let mut dims: SmallVec<[Dim; 6]> = dims.iter().copied().filter(|&(extent, _)| extent > 1).collect();
    dims.sort_by_key(|&(_, stride)| stride);
    let mut span = 0;
    dims.iter().all(|&(extent, stride)| {
        let is_apart = stride > span;
        span += (extent - 1) * stride;
        is_apart
    })
}

/// Returns a launch with as few dimensions as possible, whose points are all rows if it does not combine them.
pub(crate) fn canonical(launch: &LoopLaunch) -> LoopLaunch {
    let mut result = launch.clone();
    if launch.body.uses_coordinates() {
        return result;
    }
    let at_points = launch
        .body
        .outputs
        .iter()
        .all(|output| output.place == OutputPlace::Point && output.scatter.is_none());
    if launch.body.reductions.is_empty() && launch.body.report.is_none() && at_points {
        result.rows.extend(result.inner.drain(..));
        for placement in &mut result.placements {
            if let Placement::Strided { rows, inner } = placement {
                rows.extend(inner.drain(..));
            }
        }
    }
    merge(&mut result.rows, &mut result.placements, true);
    let has_inner = !result.inner.is_empty();
    merge(&mut result.inner, &mut result.placements, false);
    if has_inner && result.inner.is_empty() {
        result.inner.push(1);
        let at_points = |number: usize| {
            let output = number.checked_sub(launch.body.inputs.len());
            output.is_none_or(|output| launch.body.outputs[output].place == OutputPlace::Point)
        };
        for (number, placement) in result.placements.iter_mut().enumerate() {
            if let (Placement::Strided { inner, .. }, true) = (placement, at_points(number)) {
                inner.push(0);
            }
        }
    }
    result
}

/// Merges neighbouring dimensions, rows or inner ones, that every operand traverses like one, and drops those of a single index.
fn merge(extents: &mut Shape, placements: &mut [Placement], is_rows: bool) {
    let of = |placement: &Placement| match placement {
        Placement::Strided { rows, inner } => Some(if is_rows { rows.clone() } else { inner.clone() }),
        Placement::Gathered(_) => None,
    };
    let former: SmallVec<[Option<Dimensions>; 8]> = placements.iter().map(of).collect();
    let walked = || former.iter().flatten().filter(|strides| !strides.is_empty());
    // Per new dimension: the innermost former one, and the extent.
    let mut kept: SmallVec<[(usize, usize); 6]> = SmallVec::new();
    for (number, &extent) in extents.iter().enumerate().filter(|(_, extent)| **extent != 1) {
        match kept.last_mut() {
            Some((last, merged))
                if walked().all(|strides| strides[*last] == strides[number] * extent as u64) =>
            {
                (*last, *merged) = (number, *merged * extent);
            }
            _ => kept.push((number, extent)),
        }
    }
    *extents = kept.iter().map(|&(_, extent)| extent).collect();
    for (placement, former) in placements.iter_mut().zip(&former) {
        let (Placement::Strided { rows, inner }, Some(former)) = (placement, former) else { continue };
        if former.is_empty() {
            continue;
        }
        let strides = kept.iter().map(|&(number, _)| former[number]).collect();
        *(if is_rows { rows } else { inner }) = strides;
    }
}
