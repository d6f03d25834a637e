//! One launch: checks its operands, chooses the direction of blocks, and runs the program over rows and points.

use std::cell::Cell;

use super::loops::{PIECE, Shape};
use super::operand::{Cells, Source, represents};
use super::program::{CompiledKernel, HostStep, LoadPlan, Op, Taken, Terms};
use super::reduction::Accumulators;
use super::register::{File, View};
use super::space::{Cursor, Space};
use super::step::{Block, Direct, argument};
use super::{Fault, Observer, Part};
use crate::body::{Dimension, OutputPlace};
use crate::kernel::{Geometry, OperandGeometry};

/// The cost of dispatching a step, in units of one element in a loop.
const STEP_COST: f64 = 48.0;

/// The cost of starting a new run of the innermost dimension, in units of one element in a loop.
const RUN_COST: f64 = 12.0;

/// The cost of an element that is not adjacent to the previous one, in units of the cost of one element in a loop.
const SCATTERED_COST: f64 = 4.0;

/// The most accumulators of a reduction across rows, so that they stay in the second-level cache.
const ACCUMULATORS: usize = 128 * 1024;

/// The least number of elements of a run for which blocks across rows consist of complete runs.
const SHORT_RUN: usize = 32;

/// The most elements that a group of rows reads in a phase and keeps in accumulators; below, the most rows of a group.
const GROUP_ELEMENTS: usize = 256 * 1024;
const MOST_IN_GROUP: usize = 64;

/// The number of elements that the rows of a block along points have together, if several rows fit.
const ELEMENTS_ABREAST: usize = 8192;

thread_local! {
    /// The registers for this thread's launches, kept because allocating them would cost more than a small launch.
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
    // A thread whose thread-local variables are destroyed is ending, and keeps no registers.
    let mut file = FILE.try_with(Cell::take).ok().flatten().unwrap_or_default();
    file.prepare(&launch.program.registers, &launch.program.accumulators, launch.room());
    launch.observer = observer;
    launch.part = part;
    launch.view(&mut file);
    let result = launch.run(&mut file);
    let _ = FILE.try_with(|kept| kept.set(Some(file)));
    result
}

/// Checks the operands against the program and the geometry.
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

/// Returns [`Geometry::span`], or `None` on overflow.
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

/// Returns the space of the rows, and that of the points of a row.
fn spaces(program: &CompiledKernel, geometry: &Geometry) -> [Space; 2] {
    [(&geometry.row_shape, true), (&geometry.inner_shape, false)].map(|(shape, is_of_rows)| {
        let strides = |operand: usize| match &geometry.operands[operand] {
            OperandGeometry::Gathered { .. } => &[][..],
            OperandGeometry::Strided { row_strides, .. } if is_of_rows => row_strides,
            OperandGeometry::Strided { inner_strides, .. } => inner_strides,
        };
        Space::new(shape, geometry.operands.len(), strides, program.uses_coordinates)
    })
}

/// The level at which the current step runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Launch,
    Row,
    Point,
}

/// The dimension along which a block's elements are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    /// Element *i* belongs to row *i* of the block.
    Across,
    /// Element *i* is point *i* of the block's row; if rows are short, a block has the points of several rows, row by row.
    Along,
}

/// A program running on its operands.
pub(super) struct Launch<'l> {
    pub program: &'l CompiledKernel,
    pub geometry: &'l Geometry,
    scalars: &'l [u64],
    pub inputs: &'l [Source<'l>],
    pub outputs: &'l [Cells<'l>],
    pub observer: Observer<'l>,
    /// The part of the launch that this run executes, if the launch is divided.
    part: Option<Part>,
    rows: usize,
    pub points: usize,
    pub row_space: Space,
    pub inner_space: Space,
    pub row: Cursor,
    pub inner: Cursor,
    /// The number of the inner cursor's point.
    point: usize,
    direction: Direction,
    /// The most elements of a block.
    width: usize,
    /// The most rows in a group, which runs its row steps together: if blocks are along points, it has the rows of several
    /// blocks. Then the number of rows of the current group.
    group: usize,
    rows_in_group: usize,
    /// The most rows of a block of points, and the most points of each of its rows.
    abreast: usize,
    length: usize,
    /// The rows of the current block: the number of the first row in its group, and the number of rows.
    first: usize,
    together: usize,
    /// The number of lanes that receive a value. The others keep the neutral value, which does not change a result.
    lanes: usize,
    /// A bit for each of the first 64 operands: whether the elements of every innermost block are adjacent in it.
    dense: u64,
    /// A bit for each of the first 64 operands: whether it is an input of which registers are views during the launch.
    viewed: u64,
}

impl<'l> Launch<'l> {
    fn new(
        program: &'l CompiledKernel,
        geometry: &'l Geometry,
        scalars: &'l [u64],
        inputs: &'l [Source<'l>],
        outputs: &'l [Cells<'l>],
    ) -> Self {
        let [row_space, inner_space] = spaces(program, geometry);
        let (rows, points) = (geometry.rows() as usize, geometry.points() as usize);
        let room = if program.class.shifted { usize::from(program.class.vector) - 1 } else { 0 };
        let lanes = usize::from(program.class.lanes.max(1)).min((points + room).max(1).next_power_of_two());
        let direction = match program.class.shifted {
            // Rows have different shifts.
            true => Direction::Along,
            false => direction(program, (rows, &row_space), (points, &inner_space), lanes),
        };
        let whole = program
            .of_whole_rows(points)
            .filter(|_| direction == Direction::Along && program.class.cascade <= 1);
        let (program, longest) = whole.map_or((program, program.block), |kept| (kept, points));
        let (abreast, length, group) = match direction {
            Direction::Along => {
                let abreast = abreast(program, (rows, points));
                (abreast, points.min(longest), group(program, abreast, (rows, points), lanes))
            }
            Direction::Across if program.reductions.is_empty() => {
                (1, 1, whole_runs(program, &row_space, rows))
            }
            Direction::Across => {
                let accumulators = lanes * usize::from(program.class.cascade);
                (1, 1, rows.min(program.block).min((ACCUMULATORS / accumulators).max(1)))
            }
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
            width: group.max(abreast * length).max(1),
            group: group.max(1),
            rows_in_group: 1,
            abreast,
            length,
            first: 0,
            together: 1,
            lanes,
            dense: 0,
            viewed: 0,
        }
    }

    /// Finds the operands that innermost blocks access in place, and makes registers views of those inputs.
    fn view(&mut self, file: &mut File) {
        let is_dense = |operand: usize| match self.direction {
            Direction::Along => {
                self.inner_space.run_stride(operand) == 1
                    && self.inner_space.is_flat(operand)
                    && (self.abreast == 1 || self.row_space.is_flat(operand))
            }
            Direction::Across => {
                self.row_space.run_stride(operand) == 1
                    && (self.has_lines() || self.row_space.is_flat(operand))
            }
        };
        let operands = self.geometry.operands.len().min(u64::BITS as usize);
        let dense = (0..operands).filter(|&operand| !self.program.is_anywhere(operand) && is_dense(operand));
        self.dense = dense.fold(0, |dense, operand| dense | 1 << operand);
        let [several, length] = match self.direction {
            Direction::Along => [usize::from(self.abreast > 1), self.length],
            Direction::Across => [usize::from(self.has_lines()), self.row_space.run()],
        };
        for &LoadPlan { input, dtype, register, readers } in &self.program.loads {
            let at = usize::from(input);
            let line = self.line_stride(at);
            let by_lines = self.takes_lines() && readers >= Taken::ByLine;
            let fits = by_lines || several == 0 || line == length;
            if fits && bit(self.dense, at) && matches!(self.inputs[at], Source::Slice(_)) {
                self.viewed |= 1 << at;
                with_dtype!(dtype, T => file.view::<T>(register, View { input, offset: None, line }));
            }
        }
    }

    /// Returns whether innermost blocks are processed line by line. Blocks of short rows are not: they are processed as one line.
    pub fn takes_lines(&self) -> bool {
        match self.direction {
            Direction::Along => self.abreast == 1 || self.length >= PIECE,
            Direction::Across => self.has_lines(),
        }
    }

    /// Returns the number of elements of a register: all of a block's, or one piece per line.
    fn room(&self) -> usize {
        let lines = match self.direction {
            Direction::Along => self.abreast,
            Direction::Across if self.has_lines() => self.group / self.row_space.run(),
            Direction::Across => 1,
        };
        self.width.max(lines * PIECE)
    }

    /// Returns whether blocks across rows consist of complete runs of the innermost of two dimensions.
    fn has_lines(&self) -> bool {
        self.program.reductions.is_empty()
            && self.row_space.is_plane()
            && self.row_space.run() >= SHORT_RUN
            && self.group.is_multiple_of(self.row_space.run())
    }

    /// Returns how many lines an innermost block of `count` elements has.
    fn lines(&self, count: usize) -> usize {
        match self.direction {
            Direction::Along => self.together,
            Direction::Across if self.has_lines() => count / self.row_space.run(),
            Direction::Across => 1,
        }
    }

    /// Returns the distance between lines of an innermost block in an operand.
    pub fn line_stride(&self, operand: usize) -> usize {
        match self.direction {
            Direction::Along => self.row_space.run_stride(operand),
            Direction::Across => self.row_space.outer_stride(operand),
        }
    }

    /// Returns whether steps of a level are the innermost ones.
    pub fn is_innermost(&self, level: Level) -> bool {
        level == Level::Point || (level == Level::Row && self.program.class.inner_rank == 0)
    }

    /// Returns whether blocks of a level are along the points of rows.
    pub fn is_along(&self, level: Level) -> bool {
        (self.direction, level) == (Direction::Along, Level::Point)
    }

    /// Stores the position in each operand at which the current block begins.
    fn note_places(&self, file: &mut File) {
        file.places.clear();
        file.places.extend(self.row.offsets.iter().zip(&self.inner.offsets).map(|(row, inner)| row + inner));
    }

    fn run(&mut self, file: &mut File) -> Result<(), Fault> {
        let program = self.program;
        self.steps(file, &program.uniform, Level::Launch, self.width)?;
        let mut first = 0;
        while first < self.rows {
            let count = self.group.min(self.rows - first);
            self.rows(file, count)?;
            self.row_space.advance(&mut self.row, count);
            first += count;
        }
        Ok(())
    }

    /// Runs all phases of a group of rows.
    fn rows(&mut self, file: &mut File, count: usize) -> Result<(), Fault> {
        let program = self.program;
        self.rows_in_group = count;
        self.note_places(file);
        for phase in &program.phases {
            self.steps(file, &phase.row, Level::Row, count)?;
            if phase.point.is_empty() {
                continue;
            }
            if self.direction == Direction::Across {
                self.steps(file, &phase.spread, Level::Row, count)?;
                self.points(file, &phase.point, count)?;
                continue;
            }
            let start = self.row.clone();
            self.first = 0;
            while self.first < count {
                self.together = self.abreast.min(count - self.first);
                self.steps(file, &phase.spread, Level::Row, self.together)?;
                self.points(file, &phase.point, self.together)?;
                self.row_space.advance(&mut self.row, self.together);
                self.first += self.together;
            }
            (self.row, self.first) = (start, 0);
        }
        self.steps(file, &program.stores, Level::Row, count)
    }

    /// Runs steps over all points of a block of rows.
    fn points(&mut self, file: &mut File, steps: &[HostStep], rows: usize) -> Result<(), Fault> {
        while self.point < self.points {
            let length = self.length.min(self.points - self.point);
            self.note_places(file);
            self.steps(file, steps, Level::Point, length * rows)?;
            self.point += length;
            if self.point < self.points {
                self.inner_space.advance(&mut self.inner, length);
            }
        }
        if self.points > self.length {
            self.inner.reset();
        }
        self.point = 0;
        Ok(())
    }

    /// Runs steps over a block of `count` elements.
    fn steps(&self, file: &mut File, steps: &[HostStep], level: Level, count: usize) -> Result<(), Fault> {
        let viewed = if self.is_innermost(level) { self.viewed } else { 0 };
        let lines = if self.is_innermost(level) { self.lines(count) } else { 1 };
        let shape = Shape { lines, length: count / lines };
        for step in steps {
            match (step.op, step.output) {
                (Op::Load { input }, _) if bit(viewed, usize::from(input)) => {}
                (_, None) => {
                    let mut block = Block { file, inputs: self.inputs, count, shape, direct: None };
                    self.step(&mut block, step, level)?;
                }
                (_, Some(output)) => self.step_to_output(file, (step, output), level, shape)?,
            }
        }
        Ok(())
    }

    /// Runs a step whose target is an output.
    #[inline(never)]
    fn step_to_output(
        &self,
        file: &mut File,
        (step, output): (&HostStep, u16),
        level: Level,
        shape: Shape,
    ) -> Result<(), Fault> {
        let count = shape.lines * shape.length;
        let direct = self.place(output, level, shape);
        let mut block = Block { file, inputs: self.inputs, count, shape, direct };
        self.step(&mut block, step, level)?;
        if direct.is_none() {
            let dtype = self.program.outputs[usize::from(output)].0;
            with_dtype!(dtype, T => self.store::<T>(&mut block, step.target, output, level));
        }
        Ok(())
    }

    /// Returns the place of a block in an output, if the elements of its lines are adjacent there.
    fn place(&self, output: u16, level: Level, Shape { lines, length }: Shape) -> Option<Direct<'l>> {
        let output = usize::from(output);
        let operand = self.program.inputs.len() + output;
        let (cells, line) = (self.outputs[output], self.line_stride(operand));
        if self.is_innermost(level) && bit(self.dense, operand) {
            let first = self.row.offsets[operand] + self.inner.offsets[operand];
            return Some(Direct { cells, first, line });
        }
        let mut direct = None;
        self.parts(operand, level, lines * length, |_, first, count, stride| {
            if stride == 1 && count == lines * length {
                direct = Some(Direct { cells, first, line: length });
            }
        });
        direct
    }

    #[inline(never)]
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
            Op::Place { input } => self.places(block, step, input, level),
            Op::Coordinate(dimension) => self.coordinate(block, step, dimension, level),
            Op::Unary(op) => block.unary(op, step),
            Op::Binary(op) => block.binary(op, step),
            Op::Pair(pair) => block.pair(pair, step),
            Op::Fma => block.fma(step),
            Op::Select => block.select(step),
            Op::Random => block.random(step),
            Op::Cast { to } => block.cast(to, step),
            Op::Spread => {
                let pieces = self.direction == Direction::Along && self.takes_lines();
                block.spread(step, self.first, self.length, pieces);
            }
            Op::Start { reduction } => self.accumulators(step, reduction).start(block),
            Op::Accumulate { reduction } => {
                self.accumulate(block, self.accumulators(step, reduction), step.operands[0]);
            }
            Op::AccumulateOf { reduction, terms } => {
                self.accumulate_terms(block, self.accumulators(step, reduction), (terms, step));
            }
            Op::Finish { reduction } => self.accumulators(step, reduction).finish(block, step.target),
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

    /// Combines terms into a reduction's accumulators.
    fn accumulate(&self, block: &mut Block<'_, '_>, accumulators: Accumulators, register: u16) {
        match self.direction {
            Direction::Across => accumulators.across(block, register, self.point),
            Direction::Along => accumulators.along(block, register, self.first, self.shift() + self.point),
        }
    }

    /// Adds the terms of a sum: while they are computed, or after all are computed.
    fn accumulate_terms(
        &self,
        block: &mut Block<'_, '_>,
        accumulators: Accumulators,
        (terms, step): (Terms, &HostStep),
    ) {
        if self.direction == Direction::Along && self.takes_lines() && accumulators.adds_terms() {
            return accumulators.along_of(block, (terms, step), self.first, self.shift() + self.point);
        }
        block.terms(terms, step);
        self.accumulate(block, accumulators, step.target);
    }

    /// Returns the shift of the current row, if the class has one.
    fn shift(&self) -> usize {
        if !self.program.class.shifted {
            return 0;
        }
        let walks = |&input: &usize| {
            !self.program.is_anywhere(input)
                && !self.program.class.repeats(input)
                && self.program.point_operands.contains(&(input as u16))
        };
        let input = (0..self.program.inputs.len()).find(walks);
        let before = |input| self.part.map_or(0, |part| part.offset(self.geometry, input) as usize);
        let start = input.map_or(0, |input| before(input) + self.row.offsets[input]);
        start % usize::from(self.program.class.vector)
    }

    fn accumulators(&self, step: &HostStep, reduction: u16) -> Accumulators {
        let plan = self.program.reductions[usize::from(reduction)];
        Accumulators {
            op: plan.op,
            dtype: step.dtype,
            number: plan.accumulator,
            lanes: self.lanes,
            columns: if self.direction == Direction::Across { self.rows_in_group } else { 1 },
            rows: if self.direction == Direction::Across { 1 } else { self.rows_in_group },
            levels: u32::from(self.program.class.cascade),
        }
    }

    /// Calls `visit(at, offset, length, stride)` for each part of the block whose elements are evenly spaced in an operand.
    #[inline]
    pub fn parts(
        &self,
        operand: usize,
        level: Level,
        count: usize,
        mut visit: impl FnMut(usize, usize, usize, usize),
    ) {
        let (row, inner) = (self.row.offsets[operand], self.inner.offsets[operand]);
        if !self.is_along(level) {
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

    fn places(&self, block: &mut Block<'_, '_>, step: &HostStep, input: u16, level: Level) {
        let operand = usize::from(input);
        let first = self.part.map_or(0, |part| part.offset(self.geometry, operand)) as i64;
        let count = block.count;
        block.file.write(step.target, count, |_, target: &mut [i64]| {
            self.parts(operand, level, count, |at, offset, length, stride| {
                for (number, target) in target[at..at + length].iter_mut().enumerate() {
                    *target = first + (offset + number * stride) as i64;
                }
            });
        });
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

/// Returns how many rows a block across rows has. If several complete runs of the innermost of two dimensions fit, the block
/// consists of complete runs, which are its lines.
fn whole_runs(program: &CompiledKernel, row_space: &Space, rows: usize) -> usize {
    let (most, run) = (rows.min(program.block), row_space.run());
    if row_space.is_plane() && (SHORT_RUN..=most).contains(&run) { most - most % run } else { most }
}

/// Returns a bit of a mask; bits beyond the last are 0.
fn bit(mask: u64, number: usize) -> bool {
    number < u64::BITS as usize && mask >> number & 1 == 1
}

/// Returns how many rows a block along points has: several if rows are short.
fn abreast(program: &CompiledKernel, (rows, points): (usize, usize)) -> usize {
    // Runs of a cascade belong to one row, and so does a shift.
    if program.class.cascade > 1 || program.class.shifted || points == 0 || points > program.block {
        return 1;
    }
    // Blocks of short rows are copied and spread as one piece, so they must stay in the first-level cache.
    let elements = if points < PIECE { program.block } else { program.block.max(ELEMENTS_ABREAST) };
    (elements / points).clamp(1, rows.max(1))
}

/// Returns the number of rows whose row steps run together, given `abreast` rows per block: as many as stay in the second-level cache
/// if several phases read them.
fn group(program: &CompiledKernel, abreast: usize, (rows, points): (usize, usize), lanes: usize) -> usize {
    // Values that are kept for later phases are those of one block.
    if program.class.cascade > 1 || program.keeps || points == 0 {
        return abreast;
    }
    let elements = points * program.point_operands.len() * usize::from(program.phases.len() > 1)
        + lanes * program.reductions.len();
    let most = (GROUP_ELEMENTS / elements.max(1)).min(MOST_IN_GROUP).min(rows);
    (most / abreast * abreast).max(abreast)
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
    let all_steps = program
        .phases
        .iter()
        .map(|phase| phase.row.len() + phase.spread.len() + phase.point.len())
        .sum::<usize>();
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
        cost(rows, abreast(program, (rows, points)), points, all_steps + program.stores.len(), inner_space)
            + (rows * lanes * program.reductions.len()) as f64;
    if along < across { Direction::Along } else { Direction::Across }
}
