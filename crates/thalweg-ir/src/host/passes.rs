//! Passes that reduce the number or the cost of a program's steps after they are written.

use super::program::{
    Compiler, HostStep, NONE, Op, Pair, Place, Taken, Terms, UNIFORM, ValueId, ValueInfo, is_of_points,
    point_section, row_section, spread_section,
};
use crate::DType;
use crate::body::{Binary, ReduceOp};

/// Returns the primitive of a step that is an addition, a subtraction or a multiplication of f32.
fn plain(step: &HostStep<ValueId>) -> Option<Binary> {
    match step.op {
        Op::Binary(op @ (Binary::Add | Binary::Sub | Binary::Mul)) if step.dtype == DType::F32 => Some(op),
        _ => None,
    }
}

impl Compiler<'_> {
    /// Merges two steps into one if only the second reads the first's result, which is then not written.
    pub fn pair(&mut self) {
        let reads = self.reads();
        for section in &mut self.sections {
            let mut paired: Vec<HostStep<ValueId>> = Vec::with_capacity(section.len());
            for mut step in section.drain(..) {
                let [a, b, _] = step.operands;
                let writer = |value: ValueId, wanted: u32, steps: &[HostStep<ValueId>]| {
                    let at = steps.iter().rposition(|step| step.target == value)?;
                    let first = plain(&steps[at])?;
                    (reads[value as usize] == wanted).then_some((at, first))
                };
                let found = plain(&step).and_then(|second| {
                    if a == b {
                        let (at, first) = writer(a, 2, &paired)?;
                        return (second == Binary::Mul)
                            .then_some((at, Pair { first, second, place: Place::Both }));
                    }
                    let left = writer(a, 1, &paired).map(|found| (found, Place::Left));
                    let ((at, first), place) =
                        left.or_else(|| Some((writer(b, 1, &paired)?, Place::Right)))?;
                    Some((at, Pair { first, second, place }))
                });
                if let Some((at, pair)) = found {
                    let [first, second, _] = paired.remove(at).operands;
                    let other = match pair.place {
                        Place::Left => b,
                        Place::Right => a,
                        Place::Both => first,
                    };
                    (step.op, step.operands) = (Op::Pair(pair), [first, second, other]);
                }
                paired.push(step);
            }
            *section = paired;
        }
    }

    /// Merges a sum of f32 and the step that computes its terms, if nothing else reads the terms.
    pub fn accumulate_directly(&mut self) {
        let reads = self.reads();
        for section in &mut self.sections {
            let mut kept: Vec<HostStep<ValueId>> = Vec::with_capacity(section.len());
            for mut step in section.drain(..) {
                let sum = match step.op {
                    Op::Accumulate { reduction } if step.dtype == DType::F32 => Some(reduction),
                    _ => None,
                };
                let is_sum = |reduction: &u16| {
                    self.kernel.body.reductions[usize::from(*reduction)].op == ReduceOp::Sum
                };
                let found = sum.filter(is_sum).and_then(|reduction| {
                    let at = kept.iter().rposition(|earlier| earlier.target == step.operands[0])?;
                    let terms = match kept[at].op {
                        Op::Pair(pair) => Terms::Pair(pair),
                        _ => Terms::Binary(plain(&kept[at])?),
                    };
                    (reads[step.operands[0] as usize] == 1)
                        .then_some((at, Op::AccumulateOf { reduction, terms }))
                });
                if let Some((at, op)) = found {
                    step = HostStep { op, ..kept.remove(at) };
                }
                kept.push(step);
            }
            *section = kept;
        }
    }

    /// Makes steps at points read values of rows from separate registers, in which each row's value is at all its points.
    pub fn spread(&mut self) {
        for phase in 0..self.phases {
            let mut spread = vec![NONE; self.values.len()];
            let mut steps = std::mem::take(&mut self.sections[point_section(phase)]);
            for operand in
                steps.iter_mut().flat_map(|step| &mut step.operands).filter(|value| **value != NONE)
            {
                let ValueInfo { dtype, section } = self.values[*operand as usize];
                if section == UNIFORM || is_of_points(section) {
                    continue;
                }
                let value = *operand as usize;
                if spread[value] == NONE {
                    let section = spread_section(phase);
                    let step = self.push(Op::Spread, dtype, &[*operand], section);
                    spread[value] = self.define(step, dtype, section);
                }
                *operand = spread[value];
            }
            self.sections[point_section(phase)] = steps;
        }
    }

    /// Determines how the readers of inputs and of values of rows access the elements.
    pub fn find_readers(&mut self) {
        let mut readers = vec![Taken::ByPiece; self.values.len()];
        for step in self.sections.iter().flatten() {
            for &value in step.operands.iter().filter(|&&value| value != NONE) {
                readers[value as usize] = readers[value as usize].min(step.takes());
            }
        }
        for step in self.sections.iter_mut().flatten() {
            if matches!(step.op, Op::Spread | Op::Load { .. }) {
                step.readers = readers[step.target as usize];
            }
        }
    }

    /// Returns how many times each value is read.
    fn reads(&self) -> Vec<u32> {
        let mut reads = vec![0; self.values.len()];
        let operands = self.sections.iter().flatten().flat_map(|step| step.operands);
        operands.filter(|&operand| operand != NONE).for_each(|operand| reads[operand as usize] += 1);
        reads
    }

    /// Makes a step write directly to an output, if only that output reads the result. An output may overwrite an input, so no
    /// memory is read after such a step.
    pub fn write_directly(&mut self) {
        let reads = self.reads();
        let last = self.sections.len() - 1;
        let [from, to] = match self.kernel.class.inner_rank {
            0 => [row_section(self.phases - 1), last],
            _ => [point_section(self.phases - 1); 2],
        };
        let reads_memory = |step: &HostStep<ValueId>| matches!(step.op, Op::Load { .. } | Op::Gather { .. });
        let first = self.sections[from].iter().rposition(reads_memory).map_or(0, |at| at + 1);
        let mut may = vec![false; self.values.len()];
        for step in self.sections[from][first..].iter().filter(|step| step.op.is_computed()) {
            may[step.target as usize] = reads[step.target as usize] == 1;
        }
        let mut outputs = vec![None; self.values.len()];
        self.sections[to].retain(|step| match step.op {
            Op::Store { output } if may[step.operands[0] as usize] => {
                outputs[step.operands[0] as usize] = Some(output);
                false
            }
            _ => true,
        });
        for step in self.sections[from].iter_mut().filter(|step| step.target != NONE) {
            step.output = outputs[step.target as usize];
        }
    }
}
