//! Register allocation for the values of a program, by liveness.

use super::program::{HostStep, LoadPlan, NONE, Op, UNIFORM, ValueId, ValueInfo, bank};
use super::register::BANKS;

/// Steps over registers.
pub(super) struct Allocated {
    pub sections: Vec<Vec<HostStep>>,
    /// The number of registers of each bank.
    pub registers: [u16; BANKS],
    /// The inputs that innermost sections read.
    pub loads: Vec<LoadPlan>,
}

/// The registers that were assigned so far.
struct Registers<'v> {
    values: &'v [ValueInfo],
    /// For each value, the section and the number of the step that reads it last.
    last_use: Vec<(usize, usize)>,
    assigned: Vec<u16>,
    /// For each value, whether it is an input in the input's own register, which is never released.
    stays: Vec<bool>,
    free: [Vec<u16>; BANKS],
    count: [u16; BANKS],
    loads: Vec<LoadPlan>,
}

/// Assigns registers to values, separately in each bank. Inputs that innermost sections read have registers of their own, usually
/// views.
pub(super) fn allocate(
    sections: Vec<Vec<HostStep<ValueId>>>,
    values: &[ValueInfo],
    is_innermost: impl Fn(usize) -> bool,
) -> Allocated {
    let mut registers = Registers {
        values,
        last_use: last_uses(&sections, values.len()),
        assigned: vec![0; values.len()],
        stays: vec![false; values.len()],
        free: Default::default(),
        count: [0; BANKS],
        loads: Vec::new(),
    };
    let mut allocated = Vec::with_capacity(sections.len());
    for (section, steps) in sections.into_iter().enumerate() {
        let mut list = Vec::with_capacity(steps.len());
        for (number, step) in steps.into_iter().enumerate() {
            if step.target != NONE {
                registers.assign(&step, is_innermost(section));
            }
            let register = |value: ValueId| match value {
                NONE => 0,
                _ => registers.assigned[value as usize],
            };
            list.push(HostStep {
                op: step.op,
                dtype: step.dtype,
                target: register(step.target),
                operands: step.operands.map(register),
                output: step.output,
                readers: step.readers,
            });
            registers.release_operands(&step, (section, number));
        }
        allocated.push(list);
        registers.release_of_section(section);
    }
    Allocated { sections: allocated, registers: registers.count, loads: registers.loads }
}

/// Returns the section and the number of the step that reads each value last.
fn last_uses(sections: &[Vec<HostStep<ValueId>>], values: usize) -> Vec<(usize, usize)> {
    let mut last_use = vec![(usize::MAX, 0); values];
    for (section, steps) in sections.iter().enumerate() {
        for (number, step) in steps.iter().enumerate() {
            // A spread is repeated for each block of points, so its operand is read until the end of that section.
            let place = if step.op == Op::Spread { (section + 1, usize::MAX) } else { (section, number) };
            for &operand in step.operands.iter().filter(|&&operand| operand != NONE) {
                last_use[operand as usize] = place;
            }
        }
    }
    last_use
}

impl Registers<'_> {
    /// Assigns a register to the target of a step.
    fn assign(&mut self, step: &HostStep<ValueId>, is_innermost: bool) {
        let value = step.target as usize;
        let bank = bank(self.values[value].dtype);
        let count = &mut self.count[bank];
        let mut new = || {
            *count += 1;
            *count - 1
        };
        self.assigned[value] = match step.op {
            Op::Load { input } if is_innermost => {
                self.stays[value] = true;
                let HostStep { dtype, readers, .. } = *step;
                match self.loads.iter_mut().find(|known| known.input == input) {
                    Some(known) => {
                        known.readers = known.readers.min(readers);
                        known.register
                    }
                    None => {
                        let register = new();
                        self.loads.push(LoadPlan { input, dtype, register, readers });
                        register
                    }
                }
            }
            _ => self.free[bank].pop().unwrap_or_else(new),
        };
    }

    /// Releases the registers of values that a step reads last, in the section that computes them.
    fn release_operands(&mut self, step: &HostStep<ValueId>, place: (usize, usize)) {
        for (at, &operand) in step.operands.iter().enumerate() {
            let ends = operand != NONE
                && self.last_use[operand as usize] == place
                && self.values[operand as usize].section == place.0
                && !step.operands[..at].contains(&operand);
            if ends {
                self.release(operand as usize);
            }
        }
    }

    /// Releases the registers of values of earlier sections that a section reads last. This waits for the section's end, because
    /// the section may be a loop.
    fn release_of_section(&mut self, section: usize) {
        for value in 0..self.values.len() {
            let own = self.values[value].section;
            if self.last_use[value].0 == section && own != section && own != UNIFORM {
                self.release(value);
            }
        }
    }

    fn release(&mut self, value: usize) {
        if !self.stays[value] {
            self.free[bank(self.values[value].dtype)].push(self.assigned[value]);
        }
    }
}
