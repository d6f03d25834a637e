//! Bodies in stages: a reduction of few long rows becomes a reduction of parts of the rows, followed by one of the parts'
//! results.
//!
//! A block of threads works on a row, so reducing a large tensor to one value would keep only one block busy. [`stages`] divides
//! a body with reductions into bodies that fill a GPU. For each level of reductions (those that need no other's result are on the
//! first) there is one body over parts of rows, and one that combines the results of the parts. Then there is a body for outputs
//! that are written once per row, which combines the parts of the last level itself if no output is written at points, and a body
//! for outputs at points.
//!
//! # Moments
//! A sum together with the sum of squared distances from its mean, as in a variance, is on one level. A part computes its count
//! nᵢ, its mean mᵢ and the sum of squares Mᵢ about that mean. For the mean m of all points, the sum of squares about it is Σ Mᵢ +
//! nᵢ (mᵢ − m)² (Chan, Golub and LeVeque). A part is read once: it sums distances from its first point, so Mᵢ loses at most as
//! many digits as the number of its points has.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_ir::{
    Binary, Body, BodyBuilder, DType, Dimension, ExprId, InputKind, Node, Output, OutputPlace, ReduceOp,
    Value,
};

use crate::definition::DTypes;
use crate::gradient::{Cache, keep, without_unused_inputs};

/// The origin of an input of a stage's body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// An input of the original body.
    Input(usize),
    /// An input of the original body, at the first point of each part.
    First(usize),
    /// The index of the first point of each part in the inner dimension, an i64.
    Start,
    /// The result of a reduction, one per row.
    Reduced(usize),
    /// A result of each part, by its index among the outputs of the level's first body.
    Part(usize),
}

/// One of the bodies of a divided body.
#[derive(Clone, PartialEq, Debug)]
pub struct Stage {
    /// A number that distinguishes this body from every other body with these dtypes.
    pub id: u64,
    /// The part of the stage's name that follows the name of the original body.
    pub suffix: String,
    /// The body. Its scalars are those of the original body.
    pub body: Arc<Body>,
    /// The origins of its inputs.
    pub sources: SmallVec<[Source; 8]>,
}

/// The reductions that need only results of earlier levels.
#[derive(Clone, PartialEq, Debug)]
pub struct Level {
    /// The numbers of the reductions.
    pub reductions: SmallVec<[usize; 4]>,
    /// The body over the points of a part. If it has one scalar more than the original body, that is the number of points of a
    /// part.
    pub part: Stage,
    /// The body that combines parts, with one output per reduction. `None` for the last level if the stage of rows combines its
    /// parts.
    pub combine: Option<Stage>,
}

/// A body in stages, in the order in which they run.
#[derive(Clone, PartialEq, Debug)]
pub struct Stages {
    /// The levels of reductions.
    pub levels: Vec<Level>,
    /// The body of the outputs that are written once per row, with the numbers of these outputs.
    pub rows: Option<(Stage, SmallVec<[usize; 4]>)>,
    /// The body of the outputs that are written at points, with the numbers of these outputs. Its inputs are at points or one per
    /// row.
    pub points: Option<(Stage, SmallVec<[usize; 4]>)>,
}

impl Stages {
    /// Returns whether the points are read once and nothing is written at them.
    pub fn is_one_pass(&self) -> bool {
        self.levels.len() == 1 && self.points.is_none()
    }
}

/// Returns the stages of the body with this number. Returns `None` if the body has no reductions, uses coordinates other than
/// that of a single inner dimension, or reads or writes elsewhere than at its points and rows.
pub fn stages(id: u64, body: &Body) -> Option<Arc<Stages>> {
    static STAGES: Cache<(u64, DTypes), Option<Arc<Stages>>> = OnceLock::new();
    let dtypes = (body.inputs.iter().map(|input| input.dtype))
        .chain(body.outputs.iter().map(|output| output.dtype))
        .collect();
    keep(&STAGES, (id, dtypes), || is_divisible(body).then(|| Arc::new(Whole::new(id, body).stages())))
}

fn is_divisible(body: &Body) -> bool {
    let is_row = |node: &Node| matches!(node, Node::Index(dimension) if *dimension != Dimension::Inner(0));
    !body.reductions.is_empty()
        && !body.nodes.iter().any(is_row)
        && body.report.is_none()
        && body.inputs.iter().all(|input| input.kind == InputKind::Strided)
        && body.outputs.iter().all(|output| output.scatter.is_none())
}

/// A sum, together with the sum of squared distances from its mean.
#[derive(Clone, Copy)]
struct Moments {
    sum: usize,
    squares: usize,
    /// The value that is summed.
    value: ExprId,
    /// The mean, once per row.
    mean: ExprId,
}

impl Moments {
    /// Returns the pair whose second reduction has this number.
    fn of(body: &Body, squares: usize) -> Option<Self> {
        let node = |id: ExprId| body.nodes[id.index()];
        let reduction = body.reductions[squares];
        let Node::Binary(Binary::Mul, centred, other) = node(reduction.value) else { return None };
        let Node::Binary(Binary::Sub, value, mean) = node(centred) else { return None };
        let Node::Binary(Binary::Div, total, count) = node(mean) else { return None };
        let Node::Reduced { reduction: sum } = node(total) else { return None };
        let sum = usize::from(sum);
        let first = body.reductions[sum];
        let is_number = |id: ExprId| match node(id) {
            Node::Cast(id) => matches!(node(id), Node::Scalar { .. }),
            node => matches!(node, Node::Scalar { .. } | Node::Constant(_)),
        };
        let matches = centred == other
            && reduction.op == ReduceOp::Sum
            && first.op == ReduceOp::Sum
            && first.value == value
            && is_number(count)
            && matches!(body.dtype(value), DType::F32 | DType::F64);
        matches.then_some(Self { sum, squares, value, mean })
    }
}

/// The kinds of bodies that are built.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// The body over parts, for a level.
    Points(usize),
    /// The body that combines parts, for a level.
    Combine(usize),
    /// The body of the rows' outputs, which combines the parts of a level or takes all results as inputs.
    Rows(Option<usize>),
    /// The body of the points' outputs.
    Outputs,
}

/// The original body, which is divided.
struct Whole<'a> {
    id: u64,
    body: &'a Body,
    /// The level of each reduction.
    levels: Vec<usize>,
    moments: Vec<Moments>,
}

/// A body under construction from the original body's expressions.
struct Copying<'w, 'b> {
    whole: &'w Whole<'w>,
    builder: &'b BodyBuilder,
    part: Part,
    /// The copies of the original body's expressions.
    copies: Vec<Value<'b>>,
    /// The results of the original body's reductions that were read.
    results: Vec<Option<Value<'b>>>,
    sources: SmallVec<[Source; 8]>,
}

impl<'a> Whole<'a> {
    fn new(id: u64, body: &'a Body) -> Self {
        let mut moments: Vec<Moments> = Vec::new();
        for number in 0..body.reductions.len() {
            let found = Moments::of(body, number).filter(|_| !body.uses_coordinates());
            let is_new = |pair: &Moments| {
                moments.iter().all(|known| known.sum != pair.sum && known.squares != pair.sum)
            };
            moments.extend(found.filter(is_new));
        }
        let mut levels = vec![0; body.reductions.len()];
        let mut of_nodes = vec![0; body.nodes.len()];
        for (index, node) in body.nodes.iter().enumerate() {
            of_nodes[index] = match node {
                Node::Reduced { reduction } => {
                    let number = usize::from(*reduction);
                    let pair = moments.iter().find(|pair| pair.squares == number);
                    let value = pair.map_or(body.reductions[number].value, |pair| pair.value);
                    levels[number] = of_nodes[value.index()];
                    levels[number] + 1
                }
                node => node.operands().map(|operand| of_nodes[operand.index()]).max().unwrap_or(0),
            };
        }
        Self { id, body, levels, moments }
    }

    fn stages(&self) -> Stages {
        let of = |place: OutputPlace| -> SmallVec<[usize; 4]> {
            let outputs = self.body.outputs.iter().enumerate();
            outputs.filter(|(_, output)| output.place == place).map(|(number, _)| number).collect()
        };
        let (rows, points) = (of(OutputPlace::Row), of(OutputPlace::Point));
        let count = self.levels.iter().max().map_or(0, |level| level + 1);
        let merged = points.is_empty().then(|| count - 1);
        let levels = (0..count).map(|level| Level {
            reductions: (0..self.levels.len()).filter(|&number| self.levels[number] == level).collect(),
            part: self.stage(Part::Points(level), &[]),
            combine: (merged != Some(level)).then(|| self.stage(Part::Combine(level), &[])),
        });
        let levels = levels.collect();
        let with = |numbers: SmallVec<[usize; 4]>, part: Part| {
            (!numbers.is_empty()).then(|| (self.stage(part, &numbers), numbers))
        };
        Stages { levels, rows: with(rows, Part::Rows(merged)), points: with(points, Part::Outputs) }
    }

    fn stage(&self, part: Part, outputs: &[usize]) -> Stage {
        let (number, suffix) = match part {
            Part::Points(level) => (4 * level, format!("part{level}")),
            Part::Combine(level) => (4 * level + 1, format!("parts{level}")),
            Part::Rows(_) => (2, "rows".to_owned()),
            Part::Outputs => (3, "points".to_owned()),
        };
        let builder = BodyBuilder::new();
        let sources = self.build(&builder, part, outputs);
        let (body, kept) = without_unused_inputs(&builder.finish().pruned());
        Stage {
            id: (self.id ^ (number as u64 + 1)).wrapping_mul(0xd6e8_feb8_6659_fd93),
            suffix,
            body: Arc::new(body),
            sources: kept.iter().map(|&input| sources[input]).collect(),
        }
    }

    /// Builds a stage's body and returns the origins of its inputs.
    fn build(&self, builder: &BodyBuilder, part: Part, outputs: &[usize]) -> SmallVec<[Source; 8]> {
        let body = self.body;
        body.scalars.iter().for_each(|&dtype| _ = builder.scalar(dtype));
        let is_counted = |pair: &Moments| part == Part::Points(self.levels[pair.sum]);
        if self.moments.iter().any(is_counted) {
            builder.scalar(DType::F64);
        }
        let mut copying = Copying {
            whole: self,
            builder,
            part,
            copies: Vec::with_capacity(body.nodes.len()),
            results: vec![None; body.reductions.len()],
            sources: SmallVec::new(),
        };
        for input in 0..body.inputs.len() {
            copying.input(Source::Input(input), body.inputs[input].dtype);
        }
        copying.copy();
        match part {
            Part::Points(level) => copying.write_parts(level),
            Part::Combine(level) => {
                for number in self.of_level(level) {
                    let value = copying.results[number].unwrap_or_else(|| copying.combined(number));
                    builder.output(value, value.dtype(), OutputPlace::Row);
                }
            }
            Part::Rows(_) | Part::Outputs => {
                for &number in outputs {
                    let Output { value, dtype, place, .. } = body.outputs[number];
                    builder.output(copying.copies[value.index()], dtype, place);
                }
            }
        }
        copying.sources
    }

    /// Returns the reductions of a level.
    fn of_level(&self, level: usize) -> impl Iterator<Item = usize> {
        (0..self.levels.len()).filter(move |&number| self.levels[number] == level)
    }

    /// Returns the index of a reduction's result among the outputs of its level's body over parts. Mean, sum of squares and count
    /// of moments are adjacent, at the index of the squares.
    fn place(&self, number: usize) -> usize {
        let results =
            |number| match self.moments.iter().find(|pair| [pair.sum, pair.squares].contains(&number)) {
                None => 1,
                Some(pair) if pair.squares == number => 3,
                Some(_) => 0,
            };
        self.of_level(self.levels[number]).take_while(|&other| other != number).map(results).sum()
    }
}

impl<'b> Copying<'_, 'b> {
    /// Adds an input, unless it exists, and loads it.
    fn input(&mut self, source: Source, dtype: DType) -> Value<'b> {
        let known = self.sources.iter().position(|&other| other == source);
        let number = known.unwrap_or(self.sources.len());
        if known.is_none() {
            self.sources.push(source);
            self.builder.input(dtype);
        }
        self.builder.node(Node::Load { input: number as u16 }, dtype)
    }

    /// Copies the original body's expressions, with the available results of its reductions.
    fn copy(&mut self) {
        let body = self.whole.body;
        for (node, &dtype) in body.nodes.iter().zip(&body.dtypes) {
            let copy = match *node {
                Node::Reduced { reduction } => {
                    let value = self.reduced(usize::from(reduction));
                    self.results[usize::from(reduction)] = Some(value);
                    value
                }
                Node::Index(_) if matches!(self.part, Part::Points(_)) => {
                    let start = self.input(Source::Start, DType::I64);
                    self.builder.node(*node, dtype) + start
                }
                // The coordinate of a row's first point.
                Node::Index(_) if self.part != Part::Outputs => self.builder.constant(0, dtype),
                node => self.builder.node(node.with_operands(|id| self.copies[id.index()].id()), dtype),
            };
            self.copies.push(copy);
        }
    }

    /// Returns the result of a reduction. If it is not available yet, returns a 0 that is never used.
    fn reduced(&mut self, number: usize) -> Value<'b> {
        let level = self.whole.levels[number];
        let dtype = self.whole.body.dtype(self.whole.body.reductions[number].value);
        let is_known = match self.part {
            Part::Points(current) | Part::Combine(current) => level < current,
            Part::Rows(combined) => combined != Some(level),
            Part::Outputs => true,
        };
        let is_combined =
            matches!(self.part, Part::Combine(current) | Part::Rows(Some(current)) if current == level);
        if is_known {
            self.input(Source::Reduced(number), dtype)
        } else if is_combined {
            self.combined(number)
        } else {
            self.builder.constant(0, dtype)
        }
    }

    /// Computes the result of a reduction from those of its parts.
    fn combined(&mut self, number: usize) -> Value<'b> {
        let whole = self.whole;
        let reduction = whole.body.reductions[number];
        let dtype = whole.body.dtype(reduction.value);
        let pair = whole.moments.iter().find(|pair| pair.sum == number || pair.squares == number);
        let Some(&pair) = pair else {
            let parts = self.input(Source::Part(whole.place(number)), dtype);
            return self.builder.reduce(reduction.op, parts);
        };
        let place = whole.place(pair.squares);
        let [mean, squares, count] = [0, 1, 2].map(|result| self.input(Source::Part(place + result), dtype));
        if pair.sum == number {
            return self.builder.reduce(ReduceOp::Sum, mean * count);
        }
        let distance = mean - self.copies[pair.mean.index()];
        self.builder.reduce(ReduceOp::Sum, squares + count * (distance * distance))
    }

    /// Writes the results of a part.
    fn write_parts(&mut self, level: usize) {
        let whole = self.whole;
        for number in whole.of_level(level) {
            let reduction = whole.body.reductions[number];
            let values = if let Some(pair) = whole.moments.iter().find(|pair| pair.squares == number) {
                let [mean, squares, count] = self.moments_of_part(pair);
                SmallVec::<[Value<'b>; 3]>::from_slice(&[mean, squares, count])
            } else if whole.moments.iter().any(|pair| pair.sum == number) {
                continue;
            } else {
                SmallVec::from_slice(&[self
                    .builder
                    .reduce(reduction.op, self.copies[reduction.value.index()])])
            };
            values.iter().for_each(|&value| self.builder.output(value, value.dtype(), OutputPlace::Row));
        }
    }

    /// Returns the mean, the sum of squares about it, and the number of a part's points.
    fn moments_of_part(&mut self, pair: &Moments) -> [Value<'b>; 3] {
        let value = self.copies[pair.value.index()];
        let first = self.at_first_point(pair.value);
        // Subtracting a shift that is not finite would destroy all other values.
        let is_finite = first.abs().lt(f64::INFINITY);
        let shift = is_finite.select(first, first.like(0.0));
        let distance = value - shift;
        let builder = self.builder;
        let sum = builder.reduce(ReduceOp::Sum, distance);
        let squares = builder.reduce(ReduceOp::Sum, distance * distance);
        // The shift is the same at every point; a reduction makes that explicit in the body.
        let shift = builder.reduce(ReduceOp::Max, shift);
        let slot = self.whole.body.scalars.len() as u16;
        let count = builder.node(Node::Scalar { slot }, DType::F64).to(value.dtype());
        let centred = (squares - sum * (sum / count)).maximum(0.0);
        let overflows = squares.eq(f64::INFINITY).and(sum.abs().lt(f64::INFINITY));
        [shift + sum / count, overflows.select(squares, centred), count]
    }

    /// Returns an expression at the first point of the part.
    fn at_first_point(&mut self, value: ExprId) -> Value<'b> {
        let body = self.whole.body;
        let mut firsts: Vec<Value<'b>> = Vec::with_capacity(body.nodes.len());
        for index in 0..=value.index() {
            let copy = match body.nodes[index] {
                Node::Load { input } => self.input(Source::First(usize::from(input)), body.dtypes[index]),
                // Results of reductions are already one per row.
                Node::Reduced { .. } => self.copies[index],
                node => {
                    let operand = |id: ExprId| firsts[id.index()].id();
                    self.builder.node(node.with_operands(operand), body.dtypes[index])
                }
            };
            firsts.push(copy);
        }
        firsts[value.index()]
    }
}
