//! Steps that read and write memory: operands at the points of a block, and elements that data choose.

use std::cell::Cell;

use super::Fault;
use super::launch::{Launch, Level};
use super::loops::Store;
use super::operand::Source;
use super::processor::vectors;
use super::program::{HostStep, Taken};
use super::register::{Lane, View};
use super::step::Block;
use crate::Scalar;
use crate::kernel::OperandGeometry;

impl Launch<'_> {
    #[inline(never)]
    pub fn load<T: Lane>(
        &self,
        block: &mut Block<'_, '_>,
        step: &HostStep,
        input: u16,
        level: Level,
    ) -> Result<(), Fault> {
        let operand = usize::from(input);
        if self.points == 0 && level == Level::Row && !self.geometry.inner_shape.is_empty() {
            return Err(Fault::new(format!(
                "{}: a row output reads input {operand} at the row's first point, but rows have no points",
                self.program.name
            )));
        }
        let same = self.same(operand, level, block.shape.lines).filter(|_| step.readers == Taken::ByPiece);
        let elements = match &self.inputs[operand] {
            Source::Cells(cells) => {
                let cells = T::cells(cells).expect("operands were checked against the program");
                if let Some([first, line]) = same {
                    block
                        .file
                        .repeat(step.target, block.shape.lines, |_, row| cells[first + row * line].get());
                    return Ok(());
                }
                self.copy(
                    block,
                    step,
                    level,
                    operand,
                    |at| cells[at].get(),
                    |range, target| {
                        for (target, cell) in target.iter_mut().zip(&cells[range]) {
                            *target = cell.get();
                        }
                    },
                );
                return Ok(());
            }
            Source::Slice(slice) => T::slice(slice).expect("operands were checked against the program"),
        };
        if let Some([first, line]) = same {
            block.file.repeat(step.target, block.shape.lines, |_, row| elements[first + row * line]);
            return Ok(());
        }
        let mut view = None;
        self.parts(operand, level, block.count, |_, offset, length, stride| {
            if stride == 1 && length == block.count {
                view = Some(View { input, offset: Some(offset), line: block.shape.length });
            }
        });
        if let Some(view) = view {
            block.file.view::<T>(step.target, view);
        } else {
            self.copy(
                block,
                step,
                level,
                operand,
                |at| elements[at],
                |range, target| {
                    target.copy_from_slice(&elements[range]);
                },
            );
        }
        Ok(())
    }

    /// Returns, if each line of a block repeats one element, the first line's element of an operand and the distance to the next
    /// line's.
    fn same(&self, operand: usize, level: Level, lines: usize) -> Option<[usize; 2]> {
        let is_same = if self.is_along(level) {
            self.takes_lines()
                && self.inner_space.run_stride(operand) == 0
                && self.inner_space.is_flat(operand)
                && (lines == 1 || self.row_space.is_flat(operand))
        } else {
            self.row_space.run_stride(operand) == 0 && (lines > 1 || self.row_space.is_flat(operand))
        };
        let first = self.row.offsets[operand] + self.inner.offsets[operand];
        is_same.then(|| [first, self.line_stride(operand)])
    }

    /// Reads the elements of a block: one by one, or as a range if they are adjacent.
    #[inline(always)]
    fn copy<T: Lane>(
        &self,
        block: &mut Block<'_, '_>,
        step: &HostStep,
        level: Level,
        operand: usize,
        one: impl Fn(usize) -> T,
        range: impl Fn(std::ops::Range<usize>, &mut [T]),
    ) {
        let count = block.count;
        block.file.write(step.target, count, |_, target: &mut [T]| {
            self.parts(operand, level, count, |at, offset, length, stride| {
                let target = &mut target[at..at + length];
                match stride {
                    0 => target.fill(one(offset)),
                    1 => range(offset..offset + length, target),
                    _ => {
                        let mut place = offset;
                        for target in target {
                            *target = one(place);
                            place += stride;
                        }
                    }
                }
            });
        });
    }

    #[inline(never)]
    pub fn store<T: Lane>(&self, block: &mut Block<'_, '_>, register: u16, output: u16, level: Level) {
        let operand = self.program.inputs.len() + usize::from(output);
        let cells =
            T::cells(&self.outputs[usize::from(output)]).expect("operands were checked against the program");
        let values = block.file.read::<T>(block.inputs, register, block.count);
        self.parts(operand, level, block.count, |at, offset, length, stride| {
            let values = &values[at..at + length];
            if stride == 1 {
                vectors(Store { cells: &cells[offset..offset + length], values });
            } else {
                let mut place = offset;
                for &value in values {
                    cells[place].set(value);
                    place += stride;
                }
            }
        });
    }

    #[inline(never)]
    pub fn scatter<T: Lane>(
        &self,
        block: &mut Block<'_, '_>,
        step: &HostStep,
        output: u16,
    ) -> Result<(), Fault> {
        let operand = self.program.inputs.len() + usize::from(output);
        let OperandGeometry::Gathered { elements } = self.geometry.operands[operand] else {
            unreachable!("operands were checked against the program");
        };
        let cells =
            T::cells(&self.outputs[usize::from(output)]).expect("operands were checked against the program");
        let values = block.file.read::<T>(block.inputs, step.operands[0], block.count);
        let places = block.file.read::<i64>(block.inputs, step.operands[1], block.count);
        let guards = block.file.read::<u8>(block.inputs, step.operands[2], block.count);
        for ((&value, &place), _) in values.iter().zip(places).zip(guards).filter(|(_, guard)| **guard != 0) {
            if (place as u64) >= elements {
                return Err(Fault::new(format!(
                    "{}: element {place} of output {output} was written, which has {elements} elements",
                    self.program.name
                )));
            }
            cells[place as usize].set(value);
        }
        self.note(operand, places, guards);
        Ok(())
    }

    /// Reports the indices that are out of range to the observer.
    pub fn report(&self, block: &Block<'_, '_>, step: &HostStep) {
        let Some(report) = self.observer.out_of_range else { return };
        let guards = block.file.read::<u8>(block.inputs, step.operands[0], block.count);
        let [indices, extents] =
            [1, 2].map(|operand| block.file.read::<i64>(block.inputs, step.operands[operand], block.count));
        for ((_, &index), &extent) in
            guards.iter().zip(indices).zip(extents).filter(|((guard, _), _)| **guard != 0)
        {
            report(index, extent);
        }
    }

    /// Reports elements that data chose to the observer.
    fn note(&self, operand: usize, places: &[i64], guards: &[u8]) {
        let Some(noting) = self.observer.chosen else { return };
        for (&place, _) in places.iter().zip(guards).filter(|(_, guard)| **guard != 0) {
            noting(operand, place as u64);
        }
    }

    #[inline(never)]
    pub fn gather<T: Lane>(
        &self,
        block: &mut Block<'_, '_>,
        step: &HostStep,
        input: u16,
        otherwise: Scalar,
    ) -> Result<(), Fault> {
        let operand = usize::from(input);
        let OperandGeometry::Gathered { elements } = self.geometry.operands[operand] else {
            unreachable!("operands were checked against the program");
        };
        block.fill_scalar(step, otherwise);
        let (inputs, count) = (block.inputs, block.count);
        let mut outside = None;
        block.file.write(step.target, count, |file, target: &mut [T]| {
            let places = file.read::<i64>(inputs, step.operands[0], count);
            let guards = file.read::<u8>(inputs, step.operands[1], count);
            self.note(operand, places, guards);
            outside = match &self.inputs[operand] {
                Source::Slice(slice) => {
                    let slice = T::slice(slice).expect("operands were checked against the program");
                    let slice = &slice[..elements as usize];
                    if let Some(run) = whole_run(places, guards, slice) {
                        target.copy_from_slice(run);
                        return;
                    }
                    read_chosen(target, places, guards, |at| slice.get(at).copied())
                }
                Source::Cells(cells) => {
                    let cells = T::cells(cells).expect("operands were checked against the program");
                    let cells = &cells[..elements as usize];
                    read_chosen(target, places, guards, |at| cells.get(at).map(Cell::get))
                }
            };
        });
        match outside {
            None => Ok(()),
            Some(place) => Err(Fault::new(format!(
                "{}: element {place} of input {operand} was read, which has {elements} elements",
                self.program.name
            ))),
        }
    }
}

/// Returns the elements that a block reads, if all guards are true and the places are consecutive: they are then copied as one
/// range.
fn whole_run<'a, T>(places: &[i64], guards: &[u8], elements: &'a [T]) -> Option<&'a [T]> {
    let (&first, &last) = (places.first()?, places.last()?);
    if last.wrapping_sub(first) != places.len() as i64 - 1 {
        return None;
    }
    let follow = places
        .iter()
        .zip(0i64..)
        .fold(true, |follow, (&place, at)| follow & (place.wrapping_sub(at) == first));
    let hold = guards.iter().fold(true, |hold, &guard| hold & (guard != 0));
    (follow && hold)
        .then(|| elements.get(usize::try_from(first).ok()?..=usize::try_from(last).ok()?))
        .flatten()
}

/// Reads the elements whose guard is true. Returns the last position that is outside the input, if there is one.
#[inline(always)]
fn read_chosen<T>(
    target: &mut [T],
    places: &[i64],
    guards: &[u8],
    read: impl Fn(usize) -> Option<T>,
) -> Option<i64> {
    let mut outside = None;
    for ((target, &place), _) in target.iter_mut().zip(places).zip(guards).filter(|(_, guard)| **guard != 0) {
        match read(place as usize) {
            Some(element) => *target = element,
            None => outside = Some(place),
        }
    }
    outside
}
