//! [`CompiledKernel`]: a kernel as straight lists of steps over registers. See [`host`](super) for levels and phases.
//!
//! Compilation has three parts: the level and the phase at which each expression is needed (a walk back from the outputs), the
//! steps in static single assignment form, and registers for their values by liveness.
//!
//! # Invariants
//! - A step never writes a register that it reads.
//! - A value that outlives its section keeps its register until the end of the last section that reads it, because sections of
//!   points are loops.

use crate::Scalar;
use crate::body::{
    Binary, Dimension, ExprId, InputKind, Node, OutputPlace, ReduceOp, Report, Scatter, Unary,
};
use crate::{Body, Class, DType, Kernel};

use super::allocation::{Allocated, allocate};
use super::register::{BANKS, Lane, bytes_of_element};

/// The least and the most elements that a step handles at a time. The actual number follows from the program's registers, which
/// should stay in the first-level cache, while the choice of a loop should take little time in comparison with running it.
const BLOCKS: [usize; 2] = [512, 8192];

/// The number of bytes that the registers of a block may have, where they are more than the least.
const BLOCK_BYTES: usize = 32 * 1024;

/// The operation of a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Op {
    /// Fills the target with a constant.
    Constant(Scalar),
    /// Fills the target with a scalar argument.
    Argument { slot: u16 },
    /// Reads an input at the point.
    Load { input: u16 },
    /// Reads an input at computed places.
    Gather { input: u16, otherwise: Scalar },
    /// The place of an input's element at the point.
    Place { input: u16 },
    /// The coordinate in a dimension.
    Coordinate(Dimension),
    /// A primitive of one operand.
    Unary(Unary),
    /// A primitive of two operands.
    Binary(Binary),
    /// Two primitives of f32 in sequence, each rounded: the first combines the first two operands, the second combines its result
    /// and the third operand.
    Pair(Pair),
    /// a · b + c, rounded once.
    Fma,
    /// The second operand where the first is true, else the third.
    Select,
    /// The random word for a seed, a subsequence and a position.
    Random,
    /// The operand in another dtype.
    Cast { to: DType },
    /// Copies the value of each row to all its points, or to those of one piece.
    Spread,
    /// Sets a reduction's accumulators to the neutral value.
    Start { reduction: u16 },
    /// Combines the operand into a reduction's accumulators.
    Accumulate { reduction: u16 },
    /// Adds terms, computed from the operands, to a sum's accumulators. The target is scratch space for the terms.
    AccumulateOf { reduction: u16, terms: Terms },
    /// Combines a reduction's accumulators into the target.
    Finish { reduction: u16 },
    /// Writes the operand to an output.
    Store { output: u16 },
    /// Writes the first operand to an output, at the places of the second where the third is true.
    Scatter { output: u16 },
    /// Reports, where the first operand is true, that the second is not in the range of the third.
    Report,
}

impl Op {
    /// Returns whether the operation computes each element of its target from the operands' elements.
    pub const fn is_computed(self) -> bool {
        matches!(
            self,
            Self::Unary(_)
                | Self::Binary(_)
                | Self::Pair(_)
                | Self::Fma
                | Self::Select
                | Self::Random
                | Self::Cast { .. }
        )
    }
}

/// Two of addition, subtraction and multiplication.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Pair {
    pub first: Binary,
    pub second: Binary,
    /// The position of the first result among the operands of the second.
    pub place: Place,
}

/// The terms that a sum adds: computed from two operands, or from three.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Terms {
    Binary(Binary),
    Pair(Pair),
}

/// The position of a value among two operands.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Place {
    Left,
    Right,
    Both,
}

/// One step. Its operands and its target are values during compilation, and registers afterwards.
#[derive(Clone, Debug)]
pub(super) struct HostStep<R = u16> {
    pub op: Op,
    /// The type that the loop works in: that of the operands, or of the target if there are no operands.
    pub dtype: DType,
    /// The register that the step writes; meaningless for `Start`, `Accumulate`, `Store`, `Scatter` and `Report`.
    pub target: R,
    /// The registers that the step reads; only as many are used as the operation has operands.
    pub operands: [R; 3],
    /// The output that the step writes instead of the register, if the block's elements are adjacent there.
    pub output: Option<u16>,
    /// The way in which readers of the target access its elements.
    pub readers: Taken,
}

/// The way in which steps access the elements of a block, the most restrictive first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Taken {
    /// All elements must be written, contiguously.
    Whole,
    /// Line by line, with one line per row: lines may be anywhere.
    ByLine,
    /// Piece by piece: one [piece](super::loops::PIECE) of a line may repeat along the line.
    ByPiece,
}

impl<R> HostStep<R> {
    /// Returns how the step's loop accesses its operands.
    pub fn takes(&self) -> Taken {
        let reduced = |dtype: DType| dtype.compute() != dtype;
        match self.op {
            Op::Binary(Binary::Pow) => Taken::Whole,
            Op::Binary(Binary::Div) if !self.dtype.is_floating_point() => Taken::Whole,
            Op::Cast { to } if reduced(to) || reduced(self.dtype) => Taken::ByLine,
            Op::Accumulate { .. } => Taken::ByLine,
            Op::AccumulateOf { .. } => Taken::ByPiece,
            op if op.is_computed() => Taken::ByPiece,
            _ => Taken::Whole,
        }
    }

    /// Returns the approximate cost of the step, in additions.
    fn cost(&self) -> usize {
        match self.op {
            Op::Unary(Unary::Neg | Unary::Abs | Unary::Not | Unary::Conj) => 1,
            Op::Binary(Binary::Div | Binary::Rem | Binary::Pow | Binary::Atan2)
            | Op::Unary(_)
            | Op::Random => 8,
            Op::Gather { .. } => 8,
            Op::Load { .. } | Op::Spread | Op::Accumulate { .. } => 0,
            _ => 1,
        }
    }
}

impl HostStep {
    /// Returns the bank and the number of the register that the step writes, if it writes one.
    fn written(&self) -> Option<(usize, u16)> {
        let dtype = match self.op {
            Op::Start { .. } | Op::Accumulate { .. } | Op::Store { .. } | Op::Scatter { .. } | Op::Report => {
                return None;
            }
            Op::Binary(op) if op.is_comparison() => DType::Bool,
            Op::Cast { to } => to,
            _ => self.dtype,
        };
        self.output.is_none().then(|| (bank(dtype), self.target))
    }
}

/// A pass over the points of a row, with the steps before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    /// Steps that run once per row.
    pub row: Vec<HostStep>,
    /// Steps that run once per block of points, before the points: they copy values of rows to points.
    pub spread: Vec<HostStep>,
    /// Steps that run once per point.
    pub point: Vec<HostStep>,
}

/// A reduction of the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReductionPlan {
    pub op: ReduceOp,
    /// The index of the reduction's accumulators in their bank.
    pub accumulator: u16,
}

/// An input that the innermost steps read at the point.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadPlan {
    pub input: u16,
    pub dtype: DType,
    pub register: u16,
    pub readers: Taken,
}

/// A compiled kernel.
#[derive(Clone, Debug)]
pub(super) struct CompiledKernel {
    pub name: String,
    pub class: Class,
    pub inputs: Vec<crate::Input>,
    /// For each output, its dtype and place, and whether it is scattered.
    pub outputs: Vec<(DType, OutputPlace, bool)>,
    /// The number of scalars of a launch.
    pub scalars: usize,
    pub uses_coordinates: bool,
    /// Steps that run once per launch.
    pub uniform: Vec<HostStep>,
    /// The passes over the points, in order.
    pub phases: Vec<Phase>,
    /// Steps that run once per row, after every phase: the row outputs.
    pub stores: Vec<HostStep>,
    pub reductions: Vec<ReductionPlan>,
    /// The most elements that a step handles at a time.
    pub block: usize,
    /// A form of the kernel for rows that are one block: a value at points that several phases need is computed in the first of
    /// them and stays in its register. `None` if no phase needs a value of an earlier one.
    pub kept: Option<Box<CompiledKernel>>,
    /// The number of registers of each bank.
    pub registers: [u16; BANKS],
    /// The inputs that the innermost steps read at the point.
    pub loads: Vec<LoadPlan>,
    /// The number of accumulators of each bank.
    pub accumulators: [u16; BANKS],
    /// Whether values at points are kept for later phases.
    pub keeps: bool,
    /// The number of steps that run at points; then their cost, and the numbers of the operands that they access (inputs, then
    /// outputs). The direction is chosen by these.
    pub point_steps: usize,
    pub point_cost: usize,
    pub point_operands: Vec<u16>,
}

/// Compiles a kernel.
pub(super) fn compile(kernel: &Kernel) -> CompiledKernel {
    let mut program = compile_form(kernel, false);
    let kept = (program.phases.len() > 1).then(|| compile_form(kernel, true));
    program.kept = kept.filter(|kept| kept.point_cost + WORTH_KEEPING <= program.point_cost).map(Box::new);
    program
}

/// The cost in additions from which keeping a value at points in memory until a later phase pays.
const WORTH_KEEPING: usize = 4;

/// Compiles one form of a kernel: values at points are computed again in each phase, or kept from the first phase that needs
/// them.
fn compile_form(kernel: &Kernel, keeps: bool) -> CompiledKernel {
    let mut compiler = Compiler::new(kernel, keeps);
    compiler.mark();
    compiler.emit();
    compiler.store_outputs();
    compiler.pair();
    compiler.accumulate_directly();
    compiler.spread();
    compiler.write_directly();
    compiler.find_readers();
    compiler.finish()
}

/// The value of an expression in static single assignment form.
pub(super) type ValueId = u32;

/// The absence of a value.
pub(super) const NONE: ValueId = ValueId::MAX;

/// The section in which a value is computed, and its dtype.
#[derive(Clone, Copy)]
pub(super) struct ValueInfo {
    pub dtype: DType,
    pub section: usize,
}

/// A kernel during compilation to steps.
pub(super) struct Compiler<'k> {
    pub kernel: &'k Kernel,
    /// Whether values at points are kept for later phases.
    keeps: bool,
    /// The expressions that differ from point to point of a row; then those that are constant in a launch.
    point: Vec<bool>,
    uniform: Vec<bool>,
    /// The first phase in which an expression can be computed.
    phase: Vec<usize>,
    pub phases: usize,
    needed_reductions: Vec<bool>,
    needed_at_row: Vec<bool>,
    /// Whether an expression is needed at points, by phase, then by expression.
    needed_at_point: Vec<Vec<bool>>,
    row_values: Vec<ValueId>,
    point_values: Vec<Vec<ValueId>>,
    pub values: Vec<ValueInfo>,
    /// The steps by section. 0: the launch; 1 + 3p: rows of phase p; 2 + 3p: their values at points; 3 + 3p: points of phase p;
    /// last: row outputs.
    pub sections: Vec<Vec<HostStep<ValueId>>>,
}

pub(super) const UNIFORM: usize = 0;

pub(super) fn row_section(phase: usize) -> usize {
    1 + 3 * phase
}

pub(super) fn spread_section(phase: usize) -> usize {
    2 + 3 * phase
}

pub(super) fn point_section(phase: usize) -> usize {
    3 + 3 * phase
}

/// Returns whether a section runs at points. The last one, of row outputs, does not.
pub(super) fn is_of_points(section: usize) -> bool {
    section != UNIFORM && section.is_multiple_of(3)
}

impl<'k> Compiler<'k> {
    fn new(kernel: &'k Kernel, keeps: bool) -> Self {
        let body = &kernel.body;
        let count = body.nodes.len();
        let (mut uniform, mut phase) = (vec![false; count], vec![0; count]);
        let mut reduction_phases = vec![0; body.reductions.len()];
        for (index, node) in body.nodes.iter().enumerate() {
            let latest = node.operands().map(|operand| phase[operand.index()]).max().unwrap_or(0);
            phase[index] = match *node {
                Node::Reduced { reduction } => {
                    let value = body.reductions[usize::from(reduction)].value.index();
                    assert!(value < index, "{}: a reduction's value comes before its result", kernel.name);
                    reduction_phases[usize::from(reduction)] = phase[value];
                    phase[value] + 1
                }
                _ => latest,
            };
            uniform[index] = match node {
                Node::Constant(_) | Node::Scalar { .. } => true,
                Node::Load { .. }
                | Node::Place { .. }
                | Node::Gather { .. }
                | Node::Index(_)
                | Node::Reduced { .. } => false,
                other => other.operands().all(|operand| uniform[operand.index()]),
            };
        }
        let last = body.written().map(|value| phase[value.index()]).max().unwrap_or(0);
        let has_inner = kernel.class.inner_rank > 0;
        Self {
            kernel,
            keeps,
            point: body.point_dependent(|_| has_inner),
            uniform,
            phase,
            phases: last + 1,
            needed_reductions: vec![false; body.reductions.len()],
            needed_at_row: vec![false; count],
            needed_at_point: vec![vec![false; count]; last + 1],
            row_values: vec![NONE; count],
            point_values: vec![vec![NONE; count]; last + 1],
            values: Vec::new(),
            sections: vec![Vec::new(); 3 * (last + 1) + 2],
        }
    }

    fn body(&self) -> &'k Body {
        &self.kernel.body
    }

    /// Returns whether an output is written in the loop over points.
    fn at_points(&self, place: OutputPlace) -> bool {
        place == OutputPlace::Point && self.kernel.class.inner_rank > 0
    }

    /// Marks the expressions that the outputs need, back to front.
    fn mark(&mut self) {
        let body = self.body();
        for output in &body.outputs {
            let value = output.value.index();
            if self.at_points(output.place) {
                self.needed_at_point[self.phases - 1][value] = true;
            } else {
                output.operands().for_each(|id| self.needed_at_row[id.index()] = true);
            }
        }
        body.report.iter().flat_map(Report::operands).for_each(|id| self.needed_at_row[id.index()] = true);
        for (index, node) in body.nodes.iter().enumerate().rev() {
            for phase in 0..self.phases {
                if !self.needed_at_point[phase][index] {
                    continue;
                }
                if self.point[index] {
                    if self.kept_from(phase, index).is_some() {
                        continue;
                    }
                    for operand in node.operands() {
                        self.needed_at_point[phase][operand.index()] = true;
                    }
                } else {
                    self.needed_at_row[index] = true;
                }
            }
            if !self.needed_at_row[index] {
                continue;
            }
            for operand in node.operands() {
                self.needed_at_row[operand.index()] = true;
            }
            if let Node::Reduced { reduction } = *node {
                let value = body.reductions[usize::from(reduction)].value.index();
                self.needed_reductions[usize::from(reduction)] = true;
                self.needed_at_point[self.phase[value]][value] = true;
            }
        }
    }

    /// Returns the earlier phase from which an expression's values at points are kept, if they are.
    fn kept_from(&self, phase: usize, index: usize) -> Option<usize> {
        let earlier = if self.keeps { &self.needed_at_point[..phase] } else { &[] };
        earlier.iter().position(|needed| needed[index])
    }

    /// Writes the steps, front to back.
    fn emit(&mut self) {
        let body = self.body();
        for (index, node) in body.nodes.iter().enumerate() {
            if self.needed_at_row[index] {
                let section = if self.uniform[index] { UNIFORM } else { row_section(self.phase[index]) };
                if let Node::Reduced { reduction } = *node {
                    self.emit_reduction(reduction);
                }
                let operands: Vec<ValueId> =
                    node.operands().map(|operand| self.row_values[operand.index()]).collect();
                self.row_values[index] = self.emit_node(index, &operands, section);
            }
            for phase in 0..self.phases {
                if self.needed_at_point[phase][index] && self.point[index] {
                    if let Some(first) = self.kept_from(phase, index) {
                        self.point_values[phase][index] = self.point_values[first][index];
                        continue;
                    }
                    let operands: Vec<ValueId> =
                        node.operands().map(|operand| self.value_at_point(phase, operand)).collect();
                    self.point_values[phase][index] = self.emit_node(index, &operands, point_section(phase));
                }
            }
        }
    }

    /// Returns the value that a step at points reads for an expression.
    fn value_at_point(&self, phase: usize, id: ExprId) -> ValueId {
        if self.point[id.index()] {
            self.point_values[phase][id.index()]
        } else {
            self.row_values[id.index()]
        }
    }

    fn emit_reduction(&mut self, reduction: u16) {
        let plan = self.body().reductions[usize::from(reduction)];
        let dtype = self.body().dtype(plan.value);
        let supported = match plan.op {
            ReduceOp::Sum | ReduceOp::Product => dtype != DType::Bool && dtype.compute() == dtype,
            ReduceOp::Max | ReduceOp::Min => dtype.compute() == dtype,
        };
        assert!(supported, "{}: {:?} is not defined for {dtype}", self.kernel.name, plan.op);
        let phase = self.phase[plan.value.index()];
        let value = self.value_at_point(phase, plan.value);
        self.push(Op::Start { reduction }, dtype, &[], row_section(phase));
        self.push(Op::Accumulate { reduction }, dtype, &[value], point_section(phase));
    }

    /// Writes the step of an expression and returns its value.
    fn emit_node(&mut self, index: usize, operands: &[ValueId], section: usize) -> ValueId {
        let body = self.body();
        let dtype = body.dtypes[index];
        let op = match body.nodes[index] {
            Node::Constant(value) => Op::Constant(value),
            Node::Load { input } => Op::Load { input },
            Node::Place { input } => Op::Place { input },
            Node::Gather { input, otherwise, .. } => Op::Gather { input, otherwise },
            Node::Scalar { slot } => Op::Argument { slot },
            Node::Index(dimension) => Op::Coordinate(dimension),
            Node::Reduced { reduction } => Op::Finish { reduction },
            Node::Unary(op, _) => Op::Unary(op),
            Node::Binary(op, ..) => Op::Binary(op),
            Node::Fma(..) => Op::Fma,
            Node::Select(..) => Op::Select,
            Node::Random(..) => Op::Random,
            // Only gradients distinguish a detached value from its operand.
            Node::Detach(_) => return operands[0],
            Node::Cast(_) => return self.emit_cast(operands[0], dtype, section),
        };
        let working = match op {
            Op::Binary(_) => self.values[operands[0] as usize].dtype,
            _ => dtype,
        };
        self.check(op, working, operands);
        if dtype == DType::Bool && matches!(op, Op::Load { .. } | Op::Gather { .. }) {
            // A truth value in memory may be any byte, if it was written as a number: every byte but 0 is true.
            let step = self.push(op, DType::U8, operands, section);
            let bytes = self.define(step, DType::U8, section);
            return self.emit_cast(bytes, dtype, section);
        }
        let step = self.push(op, working, operands, section);
        self.define(step, dtype, section)
    }

    /// Casts a value. Casts between a 16-bit float and another type go through f32, those between a complex number and another
    /// type through its real part, those of a float to a narrow integer through a wider one.
    fn emit_cast(&mut self, operand: ValueId, to: DType, section: usize) -> ValueId {
        let from = self.values[operand as usize].dtype;
        let half = |dtype: DType| dtype.compute() != dtype;
        let between = match (from.is_complex(), to.is_complex()) {
            (false, true) => to.real(),
            (true, false) if to != DType::Bool => from.real(),
            _ if half(from) || half(to) => DType::F32,
            _ if from.is_floating_point() => to.from_float(),
            _ => to,
        };
        if from != to && ![from, to].contains(&between) {
            // A cast from complex128 to 16 bits has two intermediate types.
            let operand = self.emit_cast(operand, between, section);
            return self.emit_cast(operand, to, section);
        }
        let step = self.push(Op::Cast { to }, from, &[operand], section);
        self.define(step, to, section)
    }

    /// Panics if the body is ill-formed.
    fn check(&self, op: Op, dtype: DType, operands: &[ValueId]) {
        let of = |operand: usize| self.values[operands[operand] as usize].dtype;
        let computes = dtype.compute() == dtype;
        let (float, integer) = (dtype.is_floating_point() && computes, dtype.is_integer());
        let complex = dtype.is_complex();
        let valid = match op {
            Op::Unary(op) => {
                of(0) == dtype
                    && match op {
                        Unary::Not => dtype == DType::Bool,
                        Unary::Conj => complex,
                        Unary::Neg => float || integer || complex,
                        Unary::Abs => float || integer,
                        _ => float,
                    }
            }
            Op::Binary(op) => {
                of(0) == of(1)
                    && match op {
                        Binary::Pow | Binary::Atan2 => float,
                        Binary::And | Binary::Or | Binary::Xor => integer || dtype == DType::Bool,
                        Binary::Add | Binary::Sub | Binary::Mul | Binary::Div => float || integer || complex,
                        Binary::Rem => float || integer,
                        Binary::Equal => computes,
                        _ => computes && !complex,
                    }
            }
            Op::Fma => (float || integer) && (0..3).all(|operand| of(operand) == dtype),
            Op::Select => of(0) == DType::Bool && of(1) == dtype && of(2) == dtype,
            Op::Random => dtype == DType::I64 && (0..3).all(|operand| of(operand) == dtype),
            Op::Gather { .. } => of(0) == DType::I64 && of(1) == DType::Bool,
            _ => true,
        };
        assert!(valid, "{}: {op:?} is not defined for {dtype} with these operands", self.kernel.name);
    }

    /// Appends a step without a target and returns its number in the section.
    pub fn push(&mut self, op: Op, dtype: DType, operands: &[ValueId], section: usize) -> usize {
        let mut list = [NONE; 3];
        list[..operands.len()].copy_from_slice(operands);
        let step = HostStep { op, dtype, target: NONE, operands: list, output: None, readers: Taken::Whole };
        self.sections[section].push(step);
        self.sections[section].len() - 1
    }

    /// Adds a target to a step and returns its value.
    pub fn define(&mut self, step: usize, dtype: DType, section: usize) -> ValueId {
        let value = self.values.len() as ValueId;
        self.values.push(ValueInfo { dtype, section });
        self.sections[section][step].target = value;
        value
    }

    /// Rounds outputs to their dtypes and writes them.
    fn store_outputs(&mut self) {
        let last = self.phases - 1;
        for (number, output) in self.body().outputs.iter().enumerate() {
            let (section, value) = if self.at_points(output.place) {
                (point_section(last), self.value_at_point(last, output.value))
            } else {
                (self.sections.len() - 1, self.row_values[output.value.index()])
            };
            let dtype = self.values[value as usize].dtype;
            assert!(
                dtype == output.dtype || dtype == output.dtype.compute(),
                "{}: output {number} of {dtype} cannot be stored as {}",
                self.kernel.name,
                output.dtype
            );
            let value =
                if dtype == output.dtype { value } else { self.emit_cast(value, output.dtype, section) };
            let number = number as u16;
            match output.scatter {
                None => self.push(Op::Store { output: number }, output.dtype, &[value], section),
                Some(Scatter { index, guard }) => {
                    let [index, guard] = [index, guard].map(|id| self.row_values[id.index()]);
                    let operands = [value, index, guard];
                    self.push(Op::Scatter { output: number }, output.dtype, &operands, section)
                }
            };
        }
        if let Some(report) = self.body().report {
            let operands = report.operands().map(|id| self.row_values[id.index()]);
            self.push(Op::Report, DType::I64, &operands, self.sections.len() - 1);
        }
    }

    fn finish(self) -> CompiledKernel {
        let body = self.body();
        let mut accumulators = [0; BANKS];
        let reductions = body
            .reductions
            .iter()
            .zip(&self.needed_reductions)
            .map(|(reduction, &needed)| {
                let bank = bank(body.dtype(reduction.value));
                let accumulator = accumulators[bank];
                accumulators[bank] += u16::from(needed);
                ReductionPlan { op: reduction.op, accumulator }
            })
            .collect();
        let has_inner = self.kernel.class.inner_rank > 0;
        let at_points = || (0..self.phases).flat_map(|phase| &self.sections[point_section(phase)]);
        let (point_steps, point_cost) = (at_points().count(), at_points().map(HostStep::cost).sum());
        let point_operands = at_points()
            .filter_map(|step| match (step.op, step.output) {
                (Op::Load { input }, _) => Some(input),
                (Op::Store { output }, _) | (_, Some(output)) => Some(body.inputs.len() as u16 + output),
                _ => None,
            })
            .collect();
        let is_innermost = |section| if has_inner { is_of_points(section) } else { section != UNIFORM };
        let Allocated { mut sections, registers, loads } =
            allocate(self.sections, &self.values, is_innermost);
        let stores = sections.pop().expect("row outputs have a section");
        let mut sections = sections.into_iter();
        let uniform = sections.next().expect("the launch has a section");
        let mut phases = Vec::with_capacity(self.phases);
        while let (Some(row), Some(spread), Some(point)) = (sections.next(), sections.next(), sections.next())
        {
            phases.push(Phase { row, spread, point });
        }
        // Without inner dimensions every step runs once per row, over a block of rows; inputs are usually views.
        let mut points = if has_inner { registers_at_points(&phases) } else { registers };
        if !has_inner {
            loads.iter().for_each(|load| points[bank(load.dtype)] -= 1);
        }
        CompiledKernel {
            name: self.kernel.name.clone(),
            class: self.kernel.class,
            inputs: body.inputs.clone(),
            outputs: body
                .outputs
                .iter()
                .map(|output| (output.dtype, output.place, output.scatter.is_some()))
                .collect(),
            scalars: body.scalars.len(),
            uses_coordinates: body.uses_coordinates(),
            uniform,
            phases,
            stores,
            reductions,
            block: block(&points),
            kept: None,
            keeps: self.keeps,
            registers,
            loads,
            accumulators,
            point_steps,
            point_cost,
            point_operands,
        }
    }
}

/// Returns how many registers of each bank have one element per point: those that steps at points write, and values of rows at
/// all points.
fn registers_at_points(phases: &[Phase]) -> [u16; BANKS] {
    let steps = phases.iter().flat_map(|phase| phase.spread.iter().chain(&phase.point));
    let steps = steps.filter(|step| step.readers != Taken::ByPiece);
    let mut written: Vec<(usize, u16)> = steps.filter_map(HostStep::written).collect();
    written.sort_unstable();
    written.dedup();
    let mut registers = [0; BANKS];
    written.iter().for_each(|&(bank, _)| registers[bank] += 1);
    registers
}

/// The most bytes of a row's registers with kept values, so that they stay in the second-level cache.
const KEPT_BYTES: usize = 256 * 1024;

impl CompiledKernel {
    /// Returns the form for rows of this many points, each of which is one block.
    pub fn of_whole_rows(&self, points: usize) -> Option<&Self> {
        let kept = self.kept.as_deref()?;
        (points <= KEPT_BYTES / bytes_of_element(&kept.registers).max(1)).then_some(kept)
    }
}

/// Returns the number of elements of a block for a program with these registers.
fn block(registers: &[u16; BANKS]) -> usize {
    let [least, most] = BLOCKS;
    let fits = BLOCK_BYTES / bytes_of_element(registers).max(1);
    (fits + 1).next_power_of_two().div_ceil(2).clamp(least, most)
}

pub(super) fn bank(dtype: DType) -> usize {
    with_dtype!(dtype, T => <T as Lane>::BANK)
}

impl CompiledKernel {
    /// Returns how an input is read.
    fn is_gathered(&self, input: usize) -> bool {
        self.inputs[input].kind == InputKind::Gathered
    }

    /// Returns whether an operand (inputs, then outputs) is read or written at computed places.
    pub fn is_anywhere(&self, operand: usize) -> bool {
        match operand.checked_sub(self.inputs.len()) {
            None => self.is_gathered(operand),
            Some(output) => self.outputs[output].2,
        }
    }
}
