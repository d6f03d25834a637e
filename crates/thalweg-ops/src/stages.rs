//! Bodies in stages: a reduction of few long rows is one of parts of the rows first, then of the results of the parts.
//!
//! A block of threads works on a row, so a tensor that is reduced as a whole would keep one block busy. [`stages`] divides a body
//! with reductions into bodies that fill a GPU: for each level of reductions (those that need no other's result are of the first) a
//! body over parts of rows, and one that combines what the parts gave; then a body for what is written once per row, which
//! combines the parts of the last level itself where nothing is written at points, and one for what is written at points.
//!
//! # Moments
//! A sum with the sum of squared distances from its mean, as variances have them, is of one level: a part gives its count nᵢ, its
//! mean mᵢ and its squares' sum Mᵢ about that mean, and whatever the mean m of all is, the squares' sum about it is
//! Σ Mᵢ + nᵢ (mᵢ − m)² (Chan, Golub and LeVeque). A part is read once: it sums distances from its first point, of which
//! Mᵢ loses at most as many digits as its number of points has.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_ir::{
    Binary, Body, BodyBuilder, DType, Dimension, ExprId, InputKind, Node, Output, OutputPlace, ReduceOp,
    Value,
};

use crate::definition::DTypes;
use crate::gradient::{Kept, keep, without_unused_inputs};

/// The origin of an input of a stage's body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// An input of the whole body.
    Input(usize),
    /// An input of the whole body, at the first point of each part.
    First(usize),
    /// The place of the first point of each part in the inner dimension: an i64.
    Start,
    /// The result of a reduction, one per row.
    Reduced(usize),
    /// A result of each part: its place among the outputs of the level's first body.
    Part(usize),
}

/// One body of several.
#[derive(Clone, PartialEq, Debug)]
pub struct Stage {
    /// A number that tells it from every other body of these dtypes.
    pub id: u64,
    /// The part of its name that follows the name of the whole body.
    pub suffix: String,
    /// The body. Its scalars are those of the whole body.
    pub body: Arc<Body>,
    /// The origins of its inputs.
    pub sources: SmallVec<[Source; 8]>,
}

/// The reductions that need no result but those of earlier levels.
#[derive(Clone, PartialEq, Debug)]
pub struct Level {
    /// Their numbers.
    pub reductions: SmallVec<[usize; 4]>,
    /// The body over the points of a part. Where it has one scalar more than the whole body, that is how many points a part has.
    pub part: Stage,
    /// The body that combines parts, with an output for each of the reductions. The last level has none where the stage
    /// of rows does it.
    pub combine: Option<Stage>,
}

/// A body in stages, in the order in which they run.
#[derive(Clone, PartialEq, Debug)]
pub struct Stages {
    /// The levels of reductions.
    pub levels: Vec<Level>,
    /// The body of what is written once per row, with the numbers of these outputs.
    pub rows: Option<(Stage, SmallVec<[usize; 4]>)>,
    /// The body of what is written at points, with the numbers of these outputs. Its inputs are at points or one per row.
    pub points: Option<(Stage, SmallVec<[usize; 4]>)>,
}

impl Stages {
    /// Returns whether the points are read once, and nothing is written at them.
    pub fn is_one_pass(&self) -> bool {
        self.levels.len() == 1 && self.points.is_none()
    }
}

/// Returns the stages of a body with this number; `None` if it has no reductions, asks for other coordinates than that of a single
/// inner dimension, or reads or writes elsewhere than at its points and rows.
pub fn stages(id: u64, body: &Body) -> Option<Arc<Stages>> {
    static STAGES: Kept<(u64, DTypes), Option<Arc<Stages>>> = OnceLock::new();
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

/// A sum, and the sum of squared distances from its mean.
#[derive(Clone, Copy)]
struct Moments {
    sum: usize,
    squares: usize,
    /// The value that is summed.
    value: ExprId,
    /// The mean: once per row.
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

/// One of the bodies that are made.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// That over parts, of a level.
    Points(usize),
    /// That which combines parts, of a level.
    Combine(usize),
    /// That of the rows' outputs, which combines the parts of a level or takes all results.
    Rows(Option<usize>),
    /// That of the points' outputs.
    Outputs,
}

/// A body that is divided.
struct Whole<'a> {
    id: u64,
    body: &'a Body,
    /// The level of each reduction.
    levels: Vec<usize>,
    moments: Vec<Moments>,
}

/// A body that is made of the whole one's expressions.
struct Copying<'w, 'b> {
    whole: &'w Whole<'w>,
    builder: &'b BodyBuilder,
    part: Part,
    /// The expressions of the whole body.
    copies: Vec<Value<'b>>,
    /// The results of its reductions, where they are read.
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

    /// Builds a stage's body; what each of its inputs is.
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

    /// Returns the place of a reduction's result among the outputs of its level's body over parts. Mean, squares' sum and count of
    /// moments lie together, at the place of the squares.
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
    /// Adds an input, or finds it, and loads it.
    fn input(&mut self, source: Source, dtype: DType) -> Value<'b> {
        let known = self.sources.iter().position(|&other| other == source);
        let number = known.unwrap_or(self.sources.len());
        if known.is_none() {
            self.sources.push(source);
            self.builder.input(dtype);
        }
        self.builder.node(Node::Load { input: number as u16 }, dtype)
    }

    /// Copies the whole body's expressions, with what there is of its reductions.
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
                // That of a row's first point.
                Node::Index(_) if self.part != Part::Outputs => self.builder.constant(0, dtype),
                node => self.builder.node(node.with_operands(|id| self.copies[id.index()].id()), dtype),
            };
            self.copies.push(copy);
        }
    }

    /// Returns the result of a reduction; a 0 that nothing needs where it is not known yet.
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

    /// Returns the result of a reduction, of those of its parts.
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

    /// Returns mean, squares' sum about it and number of a part's points.
    fn moments_of_part(&mut self, pair: &Moments) -> [Value<'b>; 3] {
        let value = self.copies[pair.value.index()];
        let first = self.at_first_point(pair.value);
        // A shift that is not finite would leave nothing of the others.
        let is_finite = first.abs().lt(f64::INFINITY);
        let shift = is_finite.select(first, first.like(0.0));
        let distance = value - shift;
        let builder = self.builder;
        let sum = builder.reduce(ReduceOp::Sum, distance);
        let squares = builder.reduce(ReduceOp::Sum, distance * distance);
        // It is the same at every point, and a reduction is how a body says so.
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
                // What is known of reductions is one per row already.
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
