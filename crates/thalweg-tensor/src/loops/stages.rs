//! Launches of a body in stages: parts of its rows first, then what combines them ([`thalweg_ops::stages`]).

use smallvec::SmallVec;
use thalweg_ir::{DType, Dimensions, Layout, Scalar, Shape};
use thalweg_ops::stages::{Level, Source, Stage, Stages};
use thalweg_ops::structured::ARANGE;
use thalweg_ops::{Divided, Placement};
use thalweg_runtime::{Result, Stream};

use super::{LoopArguments, LoopLaunch, Points, run_into, widen};
use crate::tensor::{Tensor, Tensors};

/// Runs a launch in stages.
pub(super) fn run(
    launch: &LoopLaunch<'_>,
    stages: &Stages,
    divided: &Divided,
    inputs: &[&Tensor],
    outputs: &[Tensor],
) -> Result<()> {
    let rows = launch.rows.into();
    let mut staged = Staged {
        launch,
        divided,
        inputs,
        row_strides: contiguous(&widen(launch.rows)),
        rows,
        reduced: vec![None; launch.body.reductions.len()],
        parts: Tensors::new(),
        stream: outputs[0].device().current_stream(),
    };
    for level in &stages.levels {
        staged.run_level(level)?;
    }
    let written =
        |numbers: &[usize]| -> Tensors { numbers.iter().map(|&number| outputs[number].clone()).collect() };
    if let Some((stage, numbers)) = &stages.rows {
        staged.run_rows(stage, &written(numbers), Some(numbers))?;
    }
    if let Some((stage, numbers)) = &stages.points {
        staged.run_points(stage, &written(numbers), numbers)?;
    }
    Ok(())
}

/// A launch with what its stages have written so far.
struct Staged<'a> {
    launch: &'a LoopLaunch<'a>,
    divided: &'a Divided,
    inputs: &'a [&'a Tensor],
    /// The extents of the rows.
    rows: Shape,
    /// The strides of a contiguous tensor of the rows.
    row_strides: Dimensions,
    /// The result of each reduction, where it is known: one element a row.
    reduced: Vec<Option<Tensor>>,
    /// The results of the current level's parts: (parts, rows).
    parts: Tensors,
    stream: Stream,
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
    fn empty(&self, shape: &[usize], stage: &Stage) -> Result<Tensors> {
        let outputs = stage.body.outputs.iter();
        outputs.map(|output| Tensor::empty_on(shape, output.dtype, &self.stream, self.launch.label)).collect()
    }

    /// Returns the strides of an operand of the whole body over rows and inner dimensions.
    fn strides(&self, operand: usize) -> (&Dimensions, &Dimensions) {
        match &self.divided.iteration.operands[operand] {
            Placement::Strided { rows, inner } => (rows, inner),
            Placement::Gathered(_) => unreachable!("a body that gathers has no stages"),
        }
    }

    fn reduced(&self, number: usize) -> &Tensor {
        self.reduced[number].as_ref().expect("a stage reads reductions of earlier levels")
    }

    /// Combines the points of each part, then the parts if the level has a stage for it.
    fn run_level(&mut self, level: &Level) -> Result<()> {
        let shape: Shape =
            narrow(&self.divided.parts()).into_iter().chain(self.rows.iter().copied()).collect();
        self.parts = self.empty(&shape, &level.part)?;
        let (wholes, rest) = self.divided.wholes_and_rest();
        if wholes > 0 {
            self.run_parts(&level.part, 0, wholes, self.divided.cut)?;
        }
        if rest > 0 {
            self.run_parts(&level.part, wholes, 1, rest)?;
        }
        if let Some(stage) = &level.combine {
            let results = self.empty(&self.rows, stage)?;
            self.run_rows(stage, &results, None)?;
            for (&number, result) in level.reductions.iter().zip(results) {
                self.reduced[number] = Some(result);
            }
        }
        Ok(())
    }

    /// Returns where the parts of a single inner dimension begin.
    fn starts(&self) -> Result<Tensor> {
        let count = self.divided.iteration.inner[0].div_ceil(self.divided.cut) as usize;
        let starts = Tensor::empty_on(&[count], DType::I64, &self.stream, self.launch.label)?;
        let arguments = LoopArguments {
            scalars: SmallVec::from_slice(&[Scalar::I64(0), Scalar::I64(self.divided.cut as i64)]),
            points: Points::Result(Shape::from_slice(&[count])),
            dtype: Some(DType::I64),
        };
        run_into(&ARANGE, &[], &arguments, std::slice::from_ref(&starts), self.launch.label)?;
        Ok(starts)
    }

    /// Combines the points of `count` parts of the dimension that is cut, from a part on, with so many of its indices each.
    fn run_parts(&self, stage: &Stage, first: u64, count: u64, cut: u64) -> Result<()> {
        let (divided, apart) = (self.divided, self.divided.apart);
        let extents = &divided.iteration.inner;
        let all: Dimensions = joined(&[&divided.parts(), &widen(&self.rows)]);
        let result_strides = contiguous(&all);
        let row_rank = self.rows.len();
        let (mut tensors, mut placements) = (Tensors::new(), SmallVec::new());
        for source in &stage.sources {
            match *source {
                Source::Input(number) | Source::First(number) => {
                    let (rows, inner) = self.strides(number);
                    let part = inner[apart] * divided.cut;
                    tensors.push(at(self.inputs[number], first * part)?);
                    let inside = match source {
                        Source::First(_) => zeros(extents.len() - apart),
                        _ => inner[apart..].into(),
                    };
                    placements.push(Placement::Strided {
                        rows: joined(&[&inner[..apart], &[part], rows]),
                        inner: inside,
                    });
                }
                Source::Reduced(number) => {
                    tensors.push(self.reduced(number).clone());
                    let rows = joined(&[&zeros(apart + 1), &self.row_strides]);
                    placements.push(Placement::Strided { rows, inner: zeros(extents.len() - apart) });
                }
                Source::Start => {
                    tensors.push(at(&self.starts()?, first)?);
                    let rows = joined(&[&[1], &zeros(row_rank)]);
                    placements.push(Placement::Strided { rows, inner: zeros(1) });
                }
                Source::Part(_) => unreachable!("parts are what the stage makes"),
            }
        }
        let mut outputs = Tensors::new();
        for result in &self.parts {
            outputs.push(at(result, first * result_strides[apart])?);
            placements.push(Placement::Strided { rows: result_strides.clone(), inner: Dimensions::new() });
        }
        let rows = joined(&[&extents[..apart], &[count], &all[all.len() - row_rank..]]);
        let inner = joined(&[&[cut], &extents[apart + 1..]]);
        let mut scalars: SmallVec<[u64; 12]> = self.launch.scalars.into();
        if stage.body.scalars.len() > scalars.len() {
            scalars.push((divided.points(cut) as f64).to_bits());
        }
        self.launch_stage(
            stage,
            [&narrow(&rows), &narrow(&inner)],
            placements,
            &scalars,
            (&tensors, &outputs),
        )
    }

    /// Runs a stage over the rows, whose inner dimensions are the parts if it combines any. `written` are the numbers of the whole
    /// body's outputs that it writes; without them it writes results of reductions.
    fn run_rows(&self, stage: &Stage, outputs: &[Tensor], written: Option<&[usize]>) -> Result<()> {
        let parts = match stage.body.reductions.is_empty() {
            true => Dimensions::new(),
            false => self.divided.parts(),
        };
        let part_strides = contiguous(&joined(&[&parts, &widen(&self.rows)]));
        let (mut tensors, mut placements) = (Tensors::new(), SmallVec::new());
        for source in &stage.sources {
            let mut inner = zeros(parts.len());
            let (tensor, rows) = match *source {
                Source::Input(number) => (self.inputs[number], self.strides(number).0),
                Source::Reduced(number) => (self.reduced(number), &self.row_strides),
                Source::Part(number) => {
                    inner = part_strides[..parts.len()].into();
                    (&self.parts[number], &self.row_strides)
                }
                Source::First(_) | Source::Start => unreachable!("rows have no parts"),
            };
            tensors.push(tensor.clone());
            placements.push(Placement::Strided { rows: rows.clone(), inner });
        }
        for output in 0..outputs.len() {
            let rows = match written {
                Some(numbers) => self.strides(self.inputs.len() + numbers[output]).0,
                None => &self.row_strides,
            };
            placements.push(Placement::Strided { rows: rows.clone(), inner: Dimensions::new() });
        }
        let extents: [&[usize]; 2] = [&self.rows, &narrow(&parts)];
        self.launch_stage(stage, extents, placements, self.launch.scalars, (&tensors, outputs))
    }

    /// Runs the stage that writes at points.
    fn run_points(&self, stage: &Stage, outputs: &[Tensor], written: &[usize]) -> Result<()> {
        let iteration = &self.divided.iteration;
        let (mut tensors, mut placements) = (Tensors::new(), SmallVec::new());
        for source in &stage.sources {
            match *source {
                Source::Reduced(number) => {
                    tensors.push(self.reduced(number).clone());
                    let inner = zeros(iteration.inner.len());
                    placements.push(Placement::Strided { rows: self.row_strides.clone(), inner });
                }
                Source::Input(number) => {
                    tensors.push(self.inputs[number].clone());
                    placements.push(iteration.operands[number].clone());
                }
                Source::First(_) | Source::Start | Source::Part(_) => unreachable!("points need no parts"),
            }
        }
        placements
            .extend(written.iter().map(|&number| iteration.operands[self.inputs.len() + number].clone()));
        let extents: [&[usize]; 2] = [&self.rows, &narrow(&iteration.inner)];
        self.launch_stage(stage, extents, placements, self.launch.scalars, (&tensors, outputs))
    }

    fn launch_stage(
        &self,
        stage: &Stage,
        [rows, inner]: [&[usize]; 2],
        placements: SmallVec<[Placement; 8]>,
        scalars: &[u64],
        (inputs, outputs): (&[Tensor], &[Tensor]),
    ) -> Result<()> {
        let inputs: SmallVec<[&Tensor; 8]> = inputs.iter().collect();
        LoopLaunch {
            id: stage.id,
            name: &format!("{}_{}", self.launch.name, stage.suffix),
            body: &stage.body,
            compute: self.launch.compute,
            rows,
            inner,
            placements,
            scalars,
            label: self.launch.label,
        }
        .run(&inputs, outputs)
    }
}

/// Returns a tensor that begins so many elements behind another one, for its address.
fn at(tensor: &Tensor, elements: u64) -> Result<Tensor> {
    if elements == 0 {
        return Ok(tensor.clone());
    }
    let offset = tensor.layout().offset() + elements as usize;
    Ok(tensor.with_layout(Layout::new(&[1], &[1], offset)?))
}
