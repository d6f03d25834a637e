//! [`Resolved`]: everything that follows from the dtypes and layouts of a loop operator's call, found once.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use bytemuck::cast_slice;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::{Category, DType, Dimensions, Layout, OutputPlace, Shape, broadcast_shapes, byte_count};
use thalweg_ops::{
    DTypes, ForwardBody, GradientBody, LoopOp, Placement, Signature, Space, default_dtype, forward, gradient,
};
use thalweg_runtime::{Error, PreparedLaunch, Result};

use super::call::{LoopArguments, LoopCall};
use super::kept::kept_layout;
use super::launch::{LoopLaunch, alignment_of, widen};
use crate::tensor::Tensor;

/// Returns the placement of a tensor that is broadcast over the rows of an elementwise operator.
fn broadcast_placement(layout: &Layout, shape: &[usize]) -> Result<Placement> {
    if layout.shape() == shape {
        return Ok(Placement::Strided { rows: widen(layout.strides()), inner: Dimensions::new() });
    }
    let layout = layout.expand(shape)?;
    Ok(Placement::Strided { rows: widen(layout.strides()), inner: Dimensions::new() })
}

/// The dimensions of a row operator: which are rows, which are reduced.
#[derive(Debug)]
pub(crate) struct Split {
    pub(super) rows: SmallVec<[usize; 6]>,
    pub(super) inner: SmallVec<[usize; 6]>,
}

impl Split {
    /// Splits the dimensions of a tensor of this rank; `reduced` lists the inner ones.
    pub(crate) fn new(rank: usize, reduced: &[usize]) -> Self {
        let (inner, rows) = (0..rank).partition(|dimension| reduced.contains(dimension));
        Self { rows, inner }
    }

    pub(super) fn pick(&self, values: &[usize]) -> (Shape, Shape) {
        let of = |dimensions: &[usize]| dimensions.iter().map(|&dimension| values[dimension]).collect();
        (of(&self.rows), of(&self.inner))
    }

    /// Returns the placement of a tensor over all dimensions, or over the rows alone (repeated inside for an input).
    pub(super) fn placement(
        &self,
        layout: &Layout,
        full_rank: usize,
        place: OutputPlace,
        is_output: bool,
    ) -> Placement {
        let strides = layout.strides();
        if layout.rank() == full_rank && place == OutputPlace::Point {
            let (rows, inner) = self.pick(strides);
            return Placement::Strided { rows: widen(&rows), inner: widen(&inner) };
        }
        let inner = if is_output { Dimensions::new() } else { self.inner.iter().map(|_| 0).collect() };
        Placement::Strided { rows: widen(strides), inner }
    }
}

/// The iteration space of a call: extents, and where tensors of the call's kind lie in it.
#[derive(Debug)]
pub(super) enum Extents {
    Elementwise(Shape),
    Rows { split: Split, shape: Shape },
    Coordinates(Shape),
}

impl Extents {
    pub(super) fn new(operator: &LoopOp, tensors: &[&Tensor], arguments: &LoopArguments) -> Result<Self> {
        Ok(match operator.space {
            Space::Elementwise if tensors.is_empty() => Self::Elementwise(arguments.points.extents().into()),
            Space::Elementwise => {
                let mut shape: Shape = tensors[0].shape().into();
                for tensor in &tensors[1..] {
                    shape = broadcast_shapes(&shape, tensor.shape())?;
                }
                Self::Elementwise(shape)
            }
            Space::Rows => {
                let shape: Shape = tensors[0].shape().into();
                Self::Rows { split: Split::new(shape.len(), arguments.points.reduced()), shape }
            }
            Space::Coordinates => Self::Coordinates(arguments.points.extents().into()),
        })
    }

    pub(super) fn rows_and_inner(&self) -> (Shape, Shape) {
        match self {
            Self::Elementwise(shape) | Self::Coordinates(shape) => (shape.clone(), Shape::new()),
            Self::Rows { split, shape } => split.pick(shape),
        }
    }

    /// Returns the shape of an output that is written at a place.
    pub(super) fn output_shape(&self, place: OutputPlace) -> Shape {
        match (self, place) {
            (Self::Rows { shape, .. }, OutputPlace::Point) => shape.clone(),
            _ => self.rows_and_inner().0,
        }
    }

    pub(super) fn input(&self, layout: &Layout) -> Result<Placement> {
        match self {
            Self::Elementwise(shape) | Self::Coordinates(shape) => broadcast_placement(layout, shape),
            Self::Rows { split, shape } => {
                if layout.shape() == shape.as_slice() {
                    return Ok(split.placement(layout, shape.len(), OutputPlace::Point, false));
                }
                let rows = split.pick(shape).0;
                if layout.shape() != rows.as_slice() {
                    return Err(Error::invalid(format!(
                        "shape {:?} must be {rows:?}, one value a row, or {shape:?}",
                        layout.shape()
                    )));
                }
                Ok(split.placement(layout, shape.len(), OutputPlace::Row, false))
            }
        }
    }

    pub(super) fn output(&self, layout: &Layout, place: OutputPlace) -> Placement {
        match self {
            Self::Elementwise(_) | Self::Coordinates(_) => {
                Placement::Strided { rows: widen(layout.strides()), inner: Dimensions::new() }
            }
            Self::Rows { split, shape } => split.placement(layout, shape.len(), place, true),
        }
    }
}

/// A resolved call of a loop operator: all that follows from its tensors' dtypes, shapes, strides and alignment.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(super) signature: Signature,
    pub(super) extents: Extents,
    pub(super) forward: Arc<ForwardBody>,
    /// The shape of each input.
    pub(super) inputs: SmallVec<[Shape; 4]>,
    /// Shape and dtype of each output.
    pub(super) outputs: SmallVec<[(Shape, DType); 2]>,
    /// The places where each input and then each output lies.
    pub(super) placements: SmallVec<[Placement; 8]>,
    /// Whether it runs in stages.
    pub(super) is_staged: bool,
    /// The layout of each output, and the bytes that it takes.
    pub(super) layouts: SmallVec<[(Layout, u64); 2]>,
    /// The launch, once a kernel of the loop is asked for.
    launch: OnceLock<Arc<PreparedLaunch>>,
    /// The alignment of the addresses of inputs and outputs that the launch relies on.
    pub(super) alignment_bytes: u64,
    /// The gradient that was asked for first, with the inputs that it is for.
    gradient: OnceLock<(u32, Arc<GradientBody>)>,
}

/// The number of calls that a thread keeps resolved: a few times what the largest models have.
const RESOLVED: usize = 1 << 12;

thread_local! {
    /// The calls that this thread has resolved. Kept per thread, so that a call that was made before takes no lock and one look-up.
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// Resolved calls by everything that they depend on; emptied when there are too many.
#[derive(Default)]
struct Known {
    /// Room for the key of the call that is looked up.
    key: Vec<u64>,
    calls: FxHashMap<Box<[u64]>, Arc<Resolved>>,
}

impl Resolved {
    /// Resolves a call, or finds it resolved.
    pub(crate) fn of(call: &LoopCall<'_>) -> Result<Arc<Self>> {
        let alignment_bytes = alignment_of(call.tensors.iter().map(|tensor| tensor.pointer()));
        // A thread whose own variables are gone is at its end, and keeps nothing.
        let found = KNOWN.try_with(|known| {
            let Known { key, calls } = &mut *known.borrow_mut();
            Self::write_key(key, call, alignment_bytes);
            calls.get(key.as_slice()).cloned()
        });
        if let Ok(Some(found)) = found {
            return Ok(found);
        }
        let before = Self::key_of(call, alignment_bytes);
        let made = Self::new(call, alignment_bytes).map(Arc::new);
        // Another thread may have given a tensor another layout meanwhile: then this is of neither, and a refusal means nothing.
        let is_of_one = Self::key_of(call, alignment_bytes) == before;
        if made.is_err() && !is_of_one {
            return Self::of(call);
        }
        let made = made?;
        if is_of_one {
            let _ = KNOWN.try_with(|known| {
                let Known { calls, .. } = &mut *known.borrow_mut();
                if calls.len() >= RESOLVED {
                    calls.clear();
                }
                calls.insert(before.into(), Arc::clone(&made));
            });
        }
        Ok(made)
    }

    /// Returns shape and dtype of each output.
    pub(crate) fn outputs(&self) -> &[(Shape, DType)] {
        &self.outputs
    }

    /// Returns what [`write_key`](Self::write_key) writes down.
    fn key_of(call: &LoopCall<'_>, alignment_bytes: u64) -> Vec<u64> {
        let mut key = Vec::new();
        Self::write_key(&mut key, call, alignment_bytes);
        key
    }

    /// Writes down everything that a call depends on beside the values of its numbers.
    fn write_key(key: &mut Vec<u64>, call: &LoopCall<'_>, alignment_bytes: u64) {
        let arguments = &call.arguments;
        let dtype = arguments.dtype.map_or(0, |dtype| dtype as u64 + 1);
        // An operator has one kind of points.
        let integers = arguments.points.integers();
        let kinds = (default_dtype() as u64) << 24
            | dtype << 16
            | (arguments.category() as u64) << 8
            | integers.len() as u64;
        key.clear();
        let operator = std::ptr::from_ref(call.operator).addr() as u64;
        key.extend_from_slice(&[operator, call.device.number(), alignment_bytes << 32 | kinds]);
        key.extend_from_slice(cast_slice(integers));
        for tensor in &call.tensors {
            let layout = tensor.layout();
            key.push((tensor.dtype() as u64) << 8 | layout.rank() as u64);
            for (&extent, &stride) in layout.shape().iter().zip(layout.strides()) {
                key.extend_from_slice(&[extent as u64, stride as u64]);
            }
        }
    }

    fn new(call: &LoopCall<'_>, alignment_bytes: u64) -> Result<Self> {
        let operator = call.operator;
        let signature = signature_of(operator, &call.tensors, &call.arguments)?;
        let extents = Extents::new(operator, &call.tensors, &call.arguments)?;
        let forward = forward(operator, &signature);
        let outputs: SmallVec<[(Shape, DType); 2]> = (forward.body.outputs.iter())
            .map(|output| (extents.output_shape(output.place), output.dtype))
            .collect();
        let mut placements = (call.tensors.iter())
            .map(|tensor| extents.input(tensor.layout()))
            .collect::<Result<SmallVec<[_; 8]>>>()?;
        let kept = outputs.first().and_then(|(shape, _)| kept_layout(operator, &call.tensors, shape));
        let mut layouts = SmallVec::new();
        for ((shape, dtype), &place) in outputs.iter().zip(operator.outputs) {
            // A shape whose bytes cannot be counted has no layout.
            let bytes = byte_count(shape, *dtype)? as u64;
            let layout = kept.clone().unwrap_or_else(|| Layout::contiguous(shape));
            placements.push(extents.output(&layout, place));
            layouts.push((layout, bytes));
        }
        let inputs = call.tensors.iter().map(|tensor| tensor.shape().into()).collect();
        let (launch, gradient) = (OnceLock::new(), OnceLock::new());
        let mut resolved = Self {
            signature,
            extents,
            forward,
            inputs,
            outputs,
            placements,
            is_staged: false,
            layouts,
            launch,
            alignment_bytes,
            gradient,
        };
        let (rows, inner) = resolved.extents.rows_and_inner();
        resolved.is_staged = resolved.planned(call, (&rows, &inner), &[]).in_stages().is_some();
        Ok(resolved)
    }

    /// Returns the launch of the loop over these rows and inner dimensions, which are those of its extents.
    pub(super) fn planned<'a>(
        &'a self,
        call: &LoopCall<'_>,
        (rows, inner): (&'a [usize], &'a [usize]),
        scalars: &'a [u64],
    ) -> LoopLaunch<'a> {
        LoopLaunch {
            id: self.forward.id,
            name: call.operator.name,
            body: &self.forward.body,
            compute: self.signature.compute,
            rows,
            inner,
            placements: self.placements.clone(),
            scalars,
            label: call.label,
        }
    }

    /// Returns the launch, planned and loaded once.
    pub(super) fn launch(&self, call: &LoopCall<'_>) -> Result<&Arc<PreparedLaunch>> {
        if let Some(launch) = self.launch.get() {
            return Ok(launch);
        }
        let launch = self.prepared(call, self.alignment_bytes)?;
        Ok(self.launch.get_or_init(|| launch))
    }

    /// Returns the launch for addresses of this alignment.
    pub(super) fn prepared(&self, call: &LoopCall<'_>, alignment_bytes: u64) -> Result<Arc<PreparedLaunch>> {
        let (rows, inner) = self.extents.rows_and_inner();
        let launch = self.planned(call, (&rows, &inner), &[]);
        launch.check_inputs(&call.tensors)?;
        launch.prepared(call.device, alignment_bytes)
    }

    /// Returns the gradient for the inputs that `wanted` has a bit for.
    pub(crate) fn gradient(&self, operator: &'static LoopOp, wanted: u32) -> Result<Arc<GradientBody>> {
        if let Some((_, gradient)) = self.gradient.get().filter(|(inputs, _)| *inputs == wanted) {
            return Ok(Arc::clone(gradient));
        }
        let gradient = gradient(operator, &self.signature, wanted).map_err(Error::invalid)?;
        // Whichever mask comes first is kept; the others are looked up.
        let _ = self.gradient.set((wanted, Arc::clone(&gradient)));
        Ok(gradient)
    }
}

pub(crate) fn signature_of(
    operator: &LoopOp,
    tensors: &[&Tensor],
    arguments: &LoopArguments,
) -> Result<Signature> {
    let dtypes: DTypes = tensors.iter().map(|tensor| tensor.dtype()).collect();
    // Numbers of a row operator are counts, which convert nothing.
    let scalars = match operator.space {
        Space::Elementwise => arguments.category(),
        Space::Rows | Space::Coordinates => Category::Bool,
    };
    let zero_dimensional = (tensors.iter().enumerate())
        .filter(|(_, tensor)| tensor.rank() == 0)
        .fold(0, |mask, (index, _)| mask | 1 << index);
    operator.signature_of(&dtypes, zero_dimensional, scalars, arguments.dtype).map_err(|error| {
        match error.is_not_implemented {
            true => Error::not_implemented(error.to_string()),
            false => Error::invalid(error.to_string()),
        }
    })
}
