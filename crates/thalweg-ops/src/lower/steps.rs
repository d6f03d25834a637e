//! [`Steps`]: a launch of few long rows as several: first parts of its rows, then launches that combine them
//! ([`stages`](crate::stages)).

use smallvec::SmallVec;
use thalweg_ir::{DType, Dimensions, Layout, OutputPlace, Scalar, Shape};

use super::extents::widen;
use super::launch::{LaunchNumbers, LoopLaunch};
use super::{LoopArguments, Operand, Points, Result};
use crate::plan::{Divided, Placement};
use crate::stages::{Level, Source, Stage, Stages};
use crate::structured::ARANGE;

/// The memory of an operand of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// The memory of an input of the entire launch.
    Input(usize),
    /// The memory of an output of the entire launch.
    Output(usize),
    /// Temporary memory of the launch.
    Temporary(usize),
}

/// The memory of each input, and the element at which it begins.
type Inputs = SmallVec<[(Place, u64); 8]>;

/// The memory of each output, and the element at which it begins.
type Outputs = SmallVec<[(Place, u64); 4]>;

/// One of several launches.
#[derive(Clone, Debug)]
pub struct Step {
    /// The launch. Its numbers follow those of the entire launch, or are the only ones.
    pub launch: LoopLaunch,
    /// Whether the step takes the numbers of the entire launch.
    pub takes_numbers: bool,
    /// The memory of each input, and the element at which it begins.
    pub inputs: Inputs,
    /// The memory of each output, and the element at which it begins.
    pub outputs: Outputs,
}

impl Step {
    /// Returns the numbers of the step, from those of the entire launch.
    pub fn numbers(&self, whole: &[u64]) -> LaunchNumbers {
        let taken = if self.takes_numbers { whole } else { &[] };
        taken.iter().chain(&self.launch.scalars).copied().collect()
    }
}

/// The launches that one launch of few long rows consists of, in their order.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// The dtype and the number of elements of each temporary.
    pub temporaries: Vec<(DType, u64)>,
    /// The launches.
    pub list: Vec<Step>,
}

impl From<LoopLaunch> for Steps {
    /// Returns a single step, which takes the numbers of a call.
    fn from(launch: LoopLaunch) -> Self {
        let inputs = (0..launch.body.inputs.len()).map(|number| (Place::Input(number), 0)).collect();
        let outputs = (0..launch.body.outputs.len()).map(|number| (Place::Output(number), 0)).collect();
        let step = Step { launch, takes_numbers: true, inputs, outputs };
        Self { temporaries: Vec::new(), list: vec![step] }
    }
}

impl Steps {
    /// Divides a launch.
    ///
    /// # Errors
    /// Returns an error if a size overflows.
    pub(super) fn new(launch: &LoopLaunch, stages: &Stages, divided: &Divided) -> Result<Self> {
        let mut staged = Staged {
            launch,
            divided,
            row_strides: contiguous(&widen(&launch.rows)),
            reduced: vec![None; launch.body.reductions.len()],
            parts: Vec::new(),
            starts: None,
            steps: Self::default(),
        };
        for level in &stages.levels {
            staged.add_level(level)?;
        }
        if let Some((stage, numbers)) = &stages.rows {
            let places = numbers.iter().map(|&number| Place::Output(number)).collect();
            staged.add_rows(stage, places, Some(numbers));
        }
        if let Some((stage, numbers)) = &stages.points {
            staged.add_points(stage, numbers);
        }
        Ok(staged.steps)
    }
}

/// A launch, and the temporaries that its steps have written so far.
struct Staged<'a> {
    launch: &'a LoopLaunch,
    divided: &'a Divided,
    /// The strides of a contiguous tensor of the rows.
    row_strides: Dimensions,
    /// The temporary with the result of each reduction, if it is known: one element per row.
    reduced: Vec<Option<usize>>,
    /// The temporaries with the results of the current level's parts: (parts, rows).
    parts: Vec<usize>,
    /// The temporary with the first point of each part.
    starts: Option<usize>,
    steps: Steps,
}

/// Returns the strides of a contiguous tensor.
fn contiguous(shape: &[u64]) -> Dimensions {
    let mut strides: Dimensions =
        shape.iter().rev().scan(1, |next, &extent| Some(std::mem::replace(next, *next * extent))).collect();
    strides.reverse();
    strides
}

fn joined(parts: &[&[u64]]) -> Dimensions {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

fn zeros(count: usize) -> Dimensions {
    Dimensions::from_elem(0, count)
}

fn narrow(sizes: &[u64]) -> Shape {
    sizes.iter().map(|&size| size as usize).collect()
}

impl Staged<'_> {
    /// Adds a temporary for each output of a stage.
    fn temporaries(&mut self, elements: u64, stage: &Stage) -> Vec<usize> {
        let outputs = stage.body.outputs.iter();
        outputs.map(|output| self.temporary(output.dtype, elements)).collect()
    }

    fn temporary(&mut self, dtype: DType, elements: u64) -> usize {
        self.steps.temporaries.push((dtype, elements));
        self.steps.temporaries.len() - 1
    }

    /// Returns the strides of an operand of the entire body over rows and inner dimensions.
    fn strides(&self, operand: usize) -> (&Dimensions, &Dimensions) {
        match &self.divided.iteration.operands[operand] {
            Placement::Strided { rows, inner } => (rows, inner),
            Placement::Gathered(_) => unreachable!("a body that gathers has no stages"),
        }
    }

    fn reduced(&self, number: usize) -> Place {
        Place::Temporary(self.reduced[number].expect("a stage reads reductions of earlier levels"))
    }

    /// Adds the launches that combine the points of each part, and then the parts if the level has a stage for it.
    fn add_level(&mut self, level: &Level) -> Result<()> {
        let rows: u64 = self.launch.rows.iter().map(|&extent| extent as u64).product();
        let parts: u64 = self.divided.parts().iter().product();
        self.parts = self.temporaries(parts * rows, &level.part);
        let (wholes, rest) = self.divided.wholes_and_rest();
        if wholes > 0 {
            self.add_parts(&level.part, 0, wholes, self.divided.cut)?;
        }
        if rest > 0 {
            self.add_parts(&level.part, wholes, 1, rest)?;
        }
        if let Some(stage) = &level.combine {
            let results = self.temporaries(rows, stage);
            let places = results.iter().map(|&result| Place::Temporary(result)).collect();
            self.add_rows(stage, places, None);
            for (&number, result) in level.reductions.iter().zip(results) {
                self.reduced[number] = Some(result);
            }
        }
        Ok(())
    }

    /// Returns the temporary with the first point of each part of a single inner dimension.
    fn starts(&mut self) -> Result<usize> {
        if let Some(starts) = self.starts {
            return Ok(starts);
        }
        let count = self.divided.iteration.inner[0].div_ceil(self.divided.cut);
        let starts = self.temporary(DType::I64, count);
        let shape = Shape::from_slice(&[count as usize]);
        let arguments = LoopArguments {
            scalars: SmallVec::from_slice(&[Scalar::I64(0), Scalar::I64(self.divided.cut as i64)]),
            points: Points::Result(shape.clone()),
            dtype: Some(DType::I64),
        };
        let output = Operand { dtype: DType::I64, layout: &Layout::contiguous(&shape) };
        self.steps.list.push(Step {
            launch: LoopLaunch::into_outputs(&ARANGE, &[], &[output], &arguments)?,
            takes_numbers: false,
            inputs: SmallVec::new(),
            outputs: SmallVec::from_slice(&[(Place::Temporary(starts), 0)]),
        });
        self.starts = Some(starts);
        Ok(starts)
    }

    /// Adds the launch that combines the points of `count` parts of the divided dimension, from part `first` on, with `cut`
    /// indices each.
    fn add_parts(&mut self, stage: &Stage, first: u64, count: u64, cut: u64) -> Result<()> {
        let starts = match stage.sources.contains(&Source::Start) {
            true => Some(self.starts()?),
            false => None,
        };
        let cut_dimension = self.divided.cut_dimension;
        let extents = &self.divided.iteration.inner;
        let all: Dimensions = joined(&[&self.divided.parts(), &widen(&self.launch.rows)]);
        let result_strides = contiguous(&all);
        let row_rank = self.launch.rows.len();
        let (mut inputs, mut placements) = (SmallVec::new(), SmallVec::new());
        for source in &stage.sources {
            let (input, placement) = match *source {
                Source::Input(number) | Source::First(number) => {
                    let (rows, inner) = self.strides(number);
                    let part = inner[cut_dimension] * self.divided.cut;
                    let inside = match source {
                        Source::First(_) => zeros(extents.len() - cut_dimension),
                        _ => inner[cut_dimension..].into(),
                    };
                    let rows = joined(&[&inner[..cut_dimension], &[part], rows]);
                    ((Place::Input(number), first * part), Placement::Strided { rows, inner: inside })
                }
                Source::Reduced(number) => {
                    let rows = joined(&[&zeros(cut_dimension + 1), &self.row_strides]);
                    let inner = zeros(extents.len() - cut_dimension);
                    ((self.reduced(number), 0), Placement::Strided { rows, inner })
                }
                Source::Start => {
                    let starts = Place::Temporary(starts.expect("the stage reads starts"));
                    let rows = joined(&[&[1], &zeros(row_rank)]);
                    ((starts, first), Placement::Strided { rows, inner: zeros(1) })
                }
                Source::Part(_) => unreachable!("the stage makes the parts"),
            };
            inputs.push(input);
            placements.push(placement);
        }
        let mut outputs = SmallVec::new();
        for &result in &self.parts {
            outputs.push((Place::Temporary(result), first * result_strides[cut_dimension]));
            placements.push(Placement::Strided { rows: result_strides.clone(), inner: Dimensions::new() });
        }
        let rows = joined(&[&extents[..cut_dimension], &[count], &all[all.len() - row_rank..]]);
        let inner = joined(&[&[cut], &extents[cut_dimension + 1..]]);
        let mut numbers = LaunchNumbers::new();
        if stage.body.scalars.len() > self.launch.body.scalars.len() {
            numbers.push((self.divided.points(cut) as f64).to_bits());
        }
        self.add(stage, [narrow(&rows), narrow(&inner)], placements, numbers, (inputs, outputs));
        Ok(())
    }

    /// Adds the launch of a stage over the rows, whose inner dimensions are the parts if it combines any. `written` are the
    /// numbers of the entire body's outputs that the stage writes; without them it writes results of reductions.
    fn add_rows(&mut self, stage: &Stage, outputs: Vec<Place>, written: Option<&[usize]>) {
        let parts = match stage.body.reductions.is_empty() {
            true => Dimensions::new(),
            false => self.divided.parts(),
        };
        let part_strides = contiguous(&joined(&[&parts, &widen(&self.launch.rows)]));
        let (mut inputs, mut placements) = (SmallVec::new(), SmallVec::new());
        for source in &stage.sources {
            let mut inner = zeros(parts.len());
            let (place, rows) = match *source {
                Source::Input(number) => (Place::Input(number), self.strides(number).0),
                Source::Reduced(number) => (self.reduced(number), &self.row_strides),
                Source::Part(number) => {
                    inner = part_strides[..parts.len()].into();
                    (Place::Temporary(self.parts[number]), &self.row_strides)
                }
                Source::First(_) | Source::Start => unreachable!("rows have no parts"),
            };
            inputs.push((place, 0));
            placements.push(Placement::Strided { rows: rows.clone(), inner });
        }
        for output in 0..outputs.len() {
            let rows = match written {
                Some(numbers) => self.strides(self.launch.body.inputs.len() + numbers[output]).0,
                None => &self.row_strides,
            };
            placements.push(Placement::Strided { rows: rows.clone(), inner: Dimensions::new() });
        }
        let outputs = outputs.into_iter().map(|place| (place, 0)).collect();
        let extents = [self.launch.rows.clone(), narrow(&parts)];
        self.add(stage, extents, placements, LaunchNumbers::new(), (inputs, outputs));
    }

    /// Adds the launch of the stage that writes at points.
    fn add_points(&mut self, stage: &Stage, written: &[usize]) {
        let iteration = &self.divided.iteration;
        let (mut inputs, mut placements) = (SmallVec::new(), SmallVec::new());
        for source in &stage.sources {
            match *source {
                Source::Reduced(number) => {
                    inputs.push((self.reduced(number), 0));
                    let inner = zeros(iteration.inner.len());
                    placements.push(Placement::Strided { rows: self.row_strides.clone(), inner });
                }
                Source::Input(number) => {
                    inputs.push((Place::Input(number), 0));
                    placements.push(iteration.operands[number].clone());
                }
                Source::First(_) | Source::Start | Source::Part(_) => unreachable!("points need no parts"),
            }
        }
        let first = self.launch.body.inputs.len();
        placements.extend(written.iter().map(|&number| iteration.operands[first + number].clone()));
        debug_assert!(stage.body.outputs.iter().all(|output| output.place == OutputPlace::Point));
        let outputs = written.iter().map(|&number| (Place::Output(number), 0)).collect();
        let extents = [self.launch.rows.clone(), narrow(&iteration.inner)];
        self.add(stage, extents, placements, LaunchNumbers::new(), (inputs, outputs));
    }

    fn add(
        &mut self,
        stage: &Stage,
        [rows, inner]: [Shape; 2],
        placements: SmallVec<[Placement; 8]>,
        scalars: LaunchNumbers,
        (inputs, outputs): (Inputs, Outputs),
    ) {
        let launch = LoopLaunch {
            id: stage.id,
            name: format!("{}_{}", self.launch.name, stage.suffix).into(),
            body: stage.body.clone(),
            compute: self.launch.compute,
            rows,
            inner,
            placements,
            scalars,
            lanes: None,
        };
        self.steps.list.push(Step { launch, takes_numbers: true, inputs, outputs });
    }
}
