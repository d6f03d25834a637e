//! One launch: checks its operands, chooses the direction of blocks, and runs the program over rows and points.

use std::cell::Cell;

use super::loops::Store;
use super::operand::{Cells, Source, represents};
use super::program::{CompiledKernel, HostStep, Op};
use super::register::{File, Lane, View};
use super::space::{Cursor, Space};
use super::step::{Accumulators, Block, argument};
use super::vectors::vectors;
use super::{Fault, Observer, Part};
use crate::Scalar;
use crate::body::{Dimension, OutputPlace};
use crate::kernel::{Geometry, OperandGeometry};

/// The cost of deciding on a step, in elements that a loop handles meanwhile.
const STEP_COST: f64 = 48.0;

/// The cost of starting on a new run of the innermost dimension, likewise.
const RUN_COST: f64 = 12.0;

/// The cost of an element that is not next to the one before it.
const SCATTERED_COST: f64 = 4.0;

/// The most accumulators of a reduction across rows, so that they stay in the second-level cache.
const ACCUMULATORS: usize = 128 * 1024;

thread_local! {
    /// The registers of this thread's launches, kept because allocating them would cost more than a small launch.
    static FILE: Cell<Option<Box<File>>> = const { Cell::new(None) };
}

/// Runs a program. See [`HostProgram::run`](super::HostProgram::run).
pub(super) fn run(
    program: &CompiledKernel,
    geometry: &Geometry,
    scalars: &[u64],
    inputs: &[Source<'_>],
    outputs: &[Cells<'_>],
    observer: Observer<'_>,
    part: Option<Part>,
) -> Result<(), Fault> {
    check(program, geometry, scalars, inputs, outputs)?;
    if geometry.rows() == 0 {
        return Ok(());
    }
    let mut launch = Launch::new(program, geometry, scalars, inputs, outputs);
    let mut file = FILE.take().unwrap_or_default();
    file.prepare(&launch.program.registers, &launch.program.accumulators, launch.width);
    launch.observer = observer;
    launch.part = part;
    let result = launch.run(&mut file);
    FILE.set(Some(file));
    result
}

/// Holds the operands against the program and the geometry.
fn check(
    program: &CompiledKernel,
    geometry: &Geometry,
    scalars: &[u64],
    inputs: &[Source<'_>],
    outputs: &[Cells<'_>],
) -> Result<(), Fault> {
    let fault = |text: String| Err(Fault::new(format!("{}: {text}", program.name)));
    let given = [inputs.len(), outputs.len(), scalars.len(), geometry.operands.len()];
    let (ins, outs) = (program.inputs.len(), program.outputs.len());
    if given != [ins, outs, program.scalars, ins + outs] {
        return fault(format!(
            "the kernel takes {ins} inputs, {outs} outputs and {} scalars; given are {}, {} and {}, with the geometry of {} operands",
            program.scalars, given[0], given[1], given[2], given[3]
        ));
    }
    let ranks = [geometry.row_shape.len(), geometry.inner_shape.len()];
    if ranks != [program.class.row_rank, program.class.inner_rank].map(usize::from) {
        return fault(format!(
            "the kernel is compiled for {} row and {} inner dimensions; the geometry has {} and {}",
            program.class.row_rank, program.class.inner_rank, ranks[0], ranks[1]
        ));
    }
    let sources = inputs.iter().zip(&program.inputs).enumerate().map(|(number, (source, input))| {
        ("input", number, source.len(), source.dtype(), input.dtype, OutputPlace::Point)
    });
    let targets =
        outputs.iter().zip(&program.outputs).enumerate().map(|(number, (cells, &(dtype, place, _)))| {
            ("output", number, cells.len(), cells.dtype(), dtype, place)
        });
    for (operand, (name, number, length, actual, wanted, place)) in sources.chain(targets).enumerate() {
        if !represents(actual, wanted) {
            return fault(format!("{name} {number} is of {wanted}; given are elements of {actual}"));
        }
        let inner_rank = if place == OutputPlace::Point { ranks[1] } else { 0 };
        let fits = match &geometry.operands[operand] {
            OperandGeometry::Gathered { .. } => program.is_anywhere(operand),
            OperandGeometry::Strided { row_strides, inner_strides } => {
                !program.is_anywhere(operand)
                    && row_strides.len() == ranks[0]
                    && inner_strides.len() == inner_rank
            }
        };
        if !fits {
            return fault(format!(
                "the geometry of {name} {number} is not of the kind that the kernel reads or writes"
            ));
        }
        let Some(span) = span(geometry, operand) else {
            return fault(format!("{name} {number} is larger than can be addressed"));
        };
        if (length as u64) < span {
            return fault(format!("{name} {number} takes {span} elements; given are {length}"));
        }
    }
    Ok(())
}

/// Returns [`Geometry::span`], or `None` where a number does not fit.
fn span(geometry: &Geometry, operand: usize) -> Option<u64> {
    let count = |shape: &[u64]| shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent));
    let (rows, points) = (count(&geometry.row_shape)?, count(&geometry.inner_shape)?);
    let last = |shape: &[u64], strides: &[u64]| {
        shape
            .iter()
            .zip(strides)
            .try_fold(0u64, |sum, (&extent, &stride)| sum.checked_add((extent - 1).checked_mul(stride)?))
    };
    let span = match &geometry.operands[operand] {
        OperandGeometry::Gathered { elements } => *elements,
        OperandGeometry::Strided { inner_strides, .. }
            if rows == 0 || (!inner_strides.is_empty() && points == 0) =>
        {
            0
        }
        OperandGeometry::Strided { row_strides, inner_strides } => last(&geometry.row_shape, row_strides)?
            .checked_add(last(&geometry.inner_shape, inner_strides)?)?
            .checked_add(1)?,
    };
    (rows.max(points).max(span) <= isize::MAX as u64).then_some(span)
}

/// The level at which the step at hand runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Launch,
    Row,
    Point,
}

/// The way in which the elements of a block lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    /// Element *i* belongs to row *i* of the block.
    Across,
    /// Element *i* is point *i* of the block's row; where rows are short, a block has the points of several, row by row.
    Along,
}

struct Launch<'l> {
    program: &'l CompiledKernel,
    geometry: &'l Geometry,
    scalars: &'l [u64],
    inputs: &'l [Source<'l>],
    outputs: &'l [Cells<'l>],
    observer: Observer<'l>,
    /// The part of the launch that this is.
    part: Option<Part>,
    rows: usize,
    points: usize,
    row_space: Space,
    inner_space: Space,
    row: Cursor,
    inner: Cursor,
    /// The number of the inner cursor's point.
    point: usize,
    direction: Direction,
    /// The number of elements that a block has at most.
    width: usize,
    /// The number of rows that a block along points has at most, and how many the one at hand has.
    group: usize,
    together: usize,
    /// The number of lanes that get a value at all: those beyond keep the neutral value, which changes nothing.
    lanes: usize,
}

impl<'l> Launch<'l> {
    fn new(
        program: &'l CompiledKernel,
        geometry: &'l Geometry,
        scalars: &'l [u64],
        inputs: &'l [Source<'l>],
        outputs: &'l [Cells<'l>],
    ) -> Self {
        let operands = geometry.operands.len();
        let space = |shape: &[u64], rows: bool| {
            let strides = |operand: usize| match &geometry.operands[operand] {
                OperandGeometry::Gathered { .. } => &[][..],
                OperandGeometry::Strided { row_strides, .. } if rows => row_strides,
                OperandGeometry::Strided { inner_strides, .. } => inner_strides,
            };
            Space::new(shape, operands, strides, program.uses_coordinates)
        };
        let (row_space, inner_space) =
            (space(&geometry.row_shape, true), space(&geometry.inner_shape, false));
        let (rows, points) = (geometry.rows() as usize, geometry.points() as usize);
        let lanes = usize::from(program.class.lanes.max(1)).min(points.max(1).next_power_of_two());
        let direction = direction(program, (rows, &row_space), (points, &inner_space), lanes);
        let whole = program
            .of_whole_rows(points)
            .filter(|_| direction == Direction::Along && program.class.cascade <= 1);
        let (program, longest) = whole.map_or((program, program.block), |kept| (kept, points));
        let group = match direction {
            Direction::Along => group(program, (rows, points)),
            Direction::Across => 1,
        };
        let width = match direction {
            Direction::Across if program.reductions.is_empty() => rows.min(program.block),
            Direction::Across => {
                let accumulators = lanes * usize::from(program.class.cascade);
                rows.min(program.block).min((ACCUMULATORS / accumulators).max(1))
            }
            Direction::Along => group * points.min(longest),
        };
        let (row, inner) = (row_space.start(), inner_space.start());
        Self {
            program,
            geometry,
            scalars,
            inputs,
            outputs,
            observer: Observer::default(),
            part: None,
            rows,
            points,
            row_space,
            inner_space,
            row,
            inner,
            point: 0,
            direction,
            width: width.max(1),
            group,
            together: 1,
            lanes,
        }
    }

    fn run(&mut self, file: &mut File) -> Result<(), Fault> {
        let program = self.program;
        self.steps(file, &program.uniform, Level::Launch, self.width)?;
        let rows_at_once = if self.direction == Direction::Across { self.width } else { self.group };
        let mut first = 0;
        while first < self.rows {
            let count = rows_at_once.min(self.rows - first);
            self.rows(file, count)?;
            self.row_space.advance(&mut self.row, count);
            first += count;
        }
        Ok(())
    }

    /// Returns all phases of a block of rows.
    fn rows(&mut self, file: &mut File, count: usize) -> Result<(), Fault> {
        let program = self.program;
        if self.direction == Direction::Along {
            self.together = count;
        }
        for phase in &program.phases {
            if self.point != 0 {
                self.inner.reset();
                self.point = 0;
            }
            self.steps(file, &phase.row, Level::Row, count)?;
            if phase.point.is_empty() {
                continue;
            }
            while self.point < self.points {
                let (step, count) = match self.direction {
                    Direction::Across => (1, count),
                    Direction::Along => {
                        let step = (self.width / self.group).min(self.points - self.point);
                        (step, step * count)
                    }
                };
                self.steps(file, &phase.point, Level::Point, count)?;
                self.inner_space.advance(&mut self.inner, step);
                self.point += step;
            }
        }
        if self.point != 0 {
            self.inner.reset();
            self.point = 0;
        }
        self.steps(file, &program.stores, Level::Row, count)
    }

    /// Runs steps over a block of `count` elements.
    #[inline]
    fn steps(&self, file: &mut File, steps: &[HostStep], level: Level, count: usize) -> Result<(), Fault> {
        for step in steps {
            let direct = step.output.and_then(|output| self.place(output, level, count));
            let mut block = Block { file, inputs: self.inputs, count, direct };
            self.step(&mut block, step, level)?;
            if let (Some(output), None) = (step.output, direct) {
                let dtype = self.program.outputs[usize::from(output)].0;
                with_dtype!(dtype, T => self.store::<T>(&mut block, step.target, output, level));
            }
        }
        Ok(())
    }

    /// Returns an output with the element that a block begins at, if the block's elements are next to each other in it.
    fn place(&self, output: u16, level: Level, count: usize) -> Option<(Cells<'l>, usize)> {
        let mut first = None;
        let output = usize::from(output);
        self.parts(self.program.inputs.len() + output, level, count, |_, offset, length, stride| {
            if stride == 1 && length == count {
                first = Some(offset);
            }
        });
        first.map(|first| (self.outputs[output], first))
    }

    fn step(&self, block: &mut Block<'_, '_>, step: &HostStep, level: Level) -> Result<(), Fault> {
        match step.op {
            Op::Constant(value) => block.fill_scalar(step, value),
            Op::Argument { slot } => {
                block.fill_scalar(step, argument(step.dtype, self.scalars[usize::from(slot)]));
            }
            Op::Load { input } => {
                return with_dtype!(step.dtype, T => self.load::<T>(block, step, input, level));
            }
            Op::Gather { input, otherwise } => {
                return with_dtype!(step.dtype, T => self.gather::<T>(block, step, input, otherwise));
            }
            Op::Coordinate(dimension) => self.coordinate(block, step, dimension, level),
            Op::Unary(op) => block.unary(op, step),
            Op::Binary(op) => block.binary(op, step),
            Op::Pair(pair) => block.pair(pair, step),
            Op::Fma => block.fma(step),
            Op::Select => block.select(step),
            Op::Random => block.random(step),
            Op::Cast { to } => block.cast(to, step),
            Op::Spread => block.spread(step, self.places()),
            Op::Start { reduction } => self.accumulators(step, reduction, block.count).start(block),
            Op::Accumulate { reduction } => {
                let accumulators = self.accumulators(step, reduction, block.count);
                match self.direction {
                    Direction::Across => accumulators.across(block, step.operands[0], self.point),
                    Direction::Along => accumulators.along(block, step.operands[0], self.point),
                }
            }
            Op::Finish { reduction } => {
                self.accumulators(step, reduction, block.count).finish(block, step.target)
            }
            Op::Store { output } => {
                with_dtype!(step.dtype, T => self.store::<T>(block, step.operands[0], output, level));
            }
            Op::Scatter { output } => {
                return with_dtype!(step.dtype, T => self.scatter::<T>(block, step, output));
            }
            Op::Report => self.report(block, step),
        }
        Ok(())
    }

    fn accumulators(&self, step: &HostStep, reduction: u16, count: usize) -> Accumulators {
        let plan = self.program.reductions[usize::from(reduction)];
        Accumulators {
            op: plan.op,
            dtype: step.dtype,
            number: plan.accumulator,
            lanes: self.lanes,
            columns: if self.direction == Direction::Across { count } else { 1 },
            together: self.together,
            levels: u32::from(self.program.class.cascade),
        }
    }

    /// Returns at how many places of a block each of its rows stands.
    fn places(&self) -> usize {
        if self.direction == Direction::Across { 1 } else { self.width / self.group }
    }

    /// Calls `visit(at, offset, length, stride)` for each part of the block whose elements lie evenly in an operand.
    #[inline]
    fn parts(
        &self,
        operand: usize,
        level: Level,
        count: usize,
        mut visit: impl FnMut(usize, usize, usize, usize),
    ) {
        let (row, inner) = (self.row.offsets[operand], self.inner.offsets[operand]);
        if (self.direction, level) != (Direction::Along, Level::Point) {
            let stride = self.row_space.run_stride(operand);
            return self.row_space.runs(&self.row, operand, count, |at, offset, length| {
                visit(at, inner + offset, length, stride);
            });
        }
        let stride = self.inner_space.run_stride(operand);
        if self.together == 1 {
            return self.inner_space.runs(&self.inner, operand, count, |at, offset, length| {
                visit(at, row + offset, length, stride);
            });
        }
        let row_stride = self.row_space.run_stride(operand);
        let is_one_run = self.inner_space.is_flat(operand)
            && row_stride == stride.wrapping_mul(self.points)
            && self.row_space.is_one_run(&self.row, operand, self.together);
        if is_one_run {
            return visit(0, row + inner, count, stride);
        }
        self.row_space.runs(&self.row, operand, self.together, |first, row, rows| {
            for at in 0..rows {
                self.inner_space.runs(&self.inner, operand, self.points, |place, offset, length| {
                    visit((first + at) * self.points + place, row + at * row_stride + offset, length, stride);
                });
            }
        });
    }

    #[inline(never)]
    fn load<T: Lane>(
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
        let source = match &self.inputs[operand] {
            Source::Cells(cells) => {
                let cells = T::cells(cells).expect("operands were checked against the program");
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
            Source::Slice(slice) => slice,
        };
        let elements = T::slice(source).expect("operands were checked against the program");
        let mut view = None;
        self.parts(operand, level, block.count, |_, offset, length, stride| {
            if stride == 1 && length == block.count {
                view = Some(View { input, offset });
            }
        });
        if view.is_some() {
            T::bank_mut(block.file).registers[usize::from(step.target)].view = view;
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

    /// Reads the elements of a block: one by one, or a range where they are next to each other.
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
    fn store<T: Lane>(&self, block: &mut Block<'_, '_>, register: u16, output: u16, level: Level) {
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
    fn scatter<T: Lane>(&self, block: &mut Block<'_, '_>, step: &HostStep, output: u16) -> Result<(), Fault> {
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

    /// Tells of the indices that are out of range.
    fn report(&self, block: &Block<'_, '_>, step: &HostStep) {
        let Some(tell) = self.observer.out_of_range else { return };
        let guards = block.file.read::<u8>(block.inputs, step.operands[0], block.count);
        let [indices, extents] =
            [1, 2].map(|operand| block.file.read::<i64>(block.inputs, step.operands[operand], block.count));
        for ((_, &index), &extent) in
            guards.iter().zip(indices).zip(extents).filter(|((guard, _), _)| **guard != 0)
        {
            tell(index, extent);
        }
    }

    /// Notes elements that data chose.
    fn note(&self, operand: usize, places: &[i64], guards: &[u8]) {
        let Some(noting) = self.observer.chosen else { return };
        for (&place, _) in places.iter().zip(guards).filter(|(_, guard)| **guard != 0) {
            noting(operand, place as u64);
        }
    }

    #[inline(never)]
    fn gather<T: Lane>(
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

    fn coordinate(&self, block: &mut Block<'_, '_>, step: &HostStep, dimension: Dimension, level: Level) {
        let (of_rows, dimension) = match dimension {
            Dimension::Row(dimension) => (true, usize::from(dimension)),
            Dimension::Inner(dimension) => (false, usize::from(dimension)),
        };
        let moves = match self.direction {
            Direction::Across => of_rows,
            Direction::Along => of_rows == (level == Level::Row),
        };
        let (space, cursor) =
            if of_rows { (&self.row_space, &self.row) } else { (&self.inner_space, &self.inner) };
        let first = match self.part {
            Some(part) if of_rows && part.dimension == dimension => part.first as i64,
            _ => 0,
        };
        if moves {
            let count = if of_rows { block.count } else { block.count / self.together };
            block.file.write(step.target, block.count, |_, target: &mut [i64]| {
                space.coordinates(cursor, dimension, first, &mut target[..count]);
                (count..target.len()).step_by(count).for_each(|at| target.copy_within(..count, at));
            });
        } else {
            block.fill(step.target, first + cursor.position[dimension] as i64);
        }
    }
}

/// Returns the elements that a block reads, if all guards hold and the places follow one another: then it is copied as a whole.
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

/// Reads the elements whose guard holds, and returns the last place at which there is none.
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

/// Returns how many rows a block along points has: several where they are short.
fn group(program: &CompiledKernel, (rows, points): (usize, usize)) -> usize {
    // Runs of a cascade are those of one row.
    if program.class.cascade > 1 || points == 0 { 1 } else { (program.block / points).clamp(1, rows.max(1)) }
}

/// Returns the cheaper direction for the loops over points.
fn direction(
    program: &CompiledKernel,
    (rows, row_space): (usize, &Space),
    (points, inner_space): (usize, &Space),
    lanes: usize,
) -> Direction {
    if program.point_steps == 0 || points == 0 {
        return Direction::Across;
    }
    let all_steps = program.phases.iter().map(|phase| phase.row.len() + phase.point.len()).sum::<usize>();
    let cost = |serial: usize, together: usize, extent: usize, steps: usize, space: &Space| {
        let blocks = serial.div_ceil(together) as f64 * extent.div_ceil(program.block) as f64;
        let elements = serial as f64 * extent as f64;
        let memory: f64 = program
            .point_operands
            .iter()
            .map(|&operand| {
                let operand = usize::from(operand);
                let runs = if space.is_flat(operand) { 0.0 } else { elements / space.run() as f64 };
                let element = if space.run_stride(operand) > 1 { SCATTERED_COST } else { 1.0 };
                elements * element + runs * RUN_COST
            })
            .sum();
        blocks * steps as f64 * STEP_COST + memory
    };
    let across = cost(points, 1, rows, program.point_steps, row_space);
    let along =
        cost(rows, group(program, (rows, points)), points, all_steps + program.stores.len(), inner_space)
            + (rows * lanes * program.reductions.len()) as f64;
    if along < across { Direction::Along } else { Direction::Across }
}
