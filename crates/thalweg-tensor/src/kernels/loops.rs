//! Loop operators: from an entry of the table and tensors to a launch, and the node that they record.

mod backward;
mod kept;
mod stages;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use thalweg_ops::default_dtype;

use bytemuck::cast_slice;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::{
    Body, Category, DType, Dimension, Dimensions, Layout, Node as Expression, OutputPlace, Shape,
    broadcast_shapes, byte_count,
};
use thalweg_ops::stages::{Stages, stages as stages_of};
use thalweg_ops::{
    DTypeRule, DTypes, Divided, ForwardBody, GradientBody, Iteration, LEAST_DIVIDED, LoopOp, Placement,
    Signature, Space, divided, forward, gradient, kernel, plan, scalar_bits,
};
use thalweg_runtime::{
    Device, DevicePointer, Environment, Error, KernelKey, Label, LaunchKey, PreparedLaunch, RangeOf, Result,
    Telling,
};

pub(crate) use backward::{LoopBackward, autograd, node};

pub(crate) use super::loop_call::{LoopArguments, LoopCall, Points};

use self::kept::kept_layout;
use crate::destination;
use crate::tensor::{Tensor, Tensors, check_memory};

/// A body with everything that a launch of it needs.
pub(crate) struct LoopLaunch<'a> {
    /// A number that tells the body from every other one of these dtypes.
    pub id: u64,
    /// The name from which the kernel's is made.
    pub name: &'a str,
    /// The body.
    pub body: &'a Body,
    /// The dtype that the body computes in.
    pub compute: DType,
    /// The extents of rows and inner dimensions.
    pub rows: &'a [usize],
    /// The extents of the inner dimensions.
    pub inner: &'a [usize],
    /// The places where each input and then each output lies.
    pub placements: SmallVec<[Placement; 8]>,
    /// The bits of the scalars.
    pub scalars: &'a [u64],
    /// The operator and the line that asked for it.
    pub label: Label,
}

impl LoopLaunch<'_> {
    /// Plans, loads and queues the launch on the current stream. A launch of this shape is planned once.
    pub(crate) fn run(self, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<()> {
        self.check_inputs(inputs)?;
        self.check_outputs(outputs)?;
        if let Some((stages, divided)) = self.in_stages() {
            return stages::run(&self, &stages, &divided, inputs, outputs);
        }
        let device = outputs[0].device();
        let input_pointers: SmallVec<[_; 8]> = inputs.iter().map(|tensor| tensor.pointer()).collect();
        let output_pointers: SmallVec<[_; 4]> = outputs.iter().map(Tensor::pointer).collect();
        let alignment_bytes = alignment_of(input_pointers.iter().chain(&output_pointers).copied());
        let prepared = self.prepared(device, alignment_bytes)?;
        let stream = device.current_stream();
        stream.launch(&prepared, &input_pointers, &output_pointers, self.scalars, self.label)
    }

    /// Returns the stages of the launch and the parts of its rows, where they are few and long.
    fn in_stages(&self) -> Option<(Arc<Stages>, Divided)> {
        let points: usize = self.inner.iter().product();
        if self.body.reductions.is_empty() || points < LEAST_DIVIDED {
            return None;
        }
        let stages = stages_of(self.id, self.body)?;
        let divided = divided(self.body, &stages, &self.iteration(1, 0, false))?;
        Some((stages, divided))
    }

    fn iteration(&self, alignment_bytes: u64, shared_memory_bytes: u32, has_clusters: bool) -> Iteration {
        Iteration {
            rows: widen(self.rows),
            inner: widen(self.inner),
            operands: self.placements.clone(),
            alignment_bytes,
            shared_memory_bytes,
            has_clusters,
        }
    }

    /// Returns the launch without addresses and numbers, planned and loaded once.
    fn prepared(&self, device: &Device, alignment_bytes: u64) -> Result<Arc<PreparedLaunch>> {
        device.prepared_launch(&self.key(alignment_bytes), || self.prepare(device, alignment_bytes))
    }

    /// Refuses tensors of another dtype than the body reads: it would read beyond them.
    fn check_inputs(&self, tensors: &[&Tensor]) -> Result<()> {
        let wanted = self.body.inputs.iter().map(|input| input.dtype);
        tensors.iter().zip(wanted).try_for_each(|(tensor, dtype)| check_dtype(tensor, dtype))
    }

    /// Refuses tensors of another dtype than the body writes.
    fn check_outputs(&self, tensors: &[Tensor]) -> Result<()> {
        let wanted = self.body.outputs.iter().map(|output| output.dtype);
        tensors.iter().zip(wanted).try_for_each(|(tensor, dtype)| check_dtype(tensor, dtype))
    }

    /// Refuses an iteration space that has not the dimensions whose coordinates the body reads.
    fn check_rank(&self) -> Result<()> {
        let missing = self.body.nodes.iter().any(|node| match node {
            Expression::Index(Dimension::Row(dimension)) => usize::from(*dimension) >= self.rows.len(),
            Expression::Index(Dimension::Inner(dimension)) => usize::from(*dimension) >= self.inner.len(),
            _ => false,
        });
        if !missing {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the operator takes more dimensions than rows {:?} of points {:?}",
            self.rows, self.inner
        )))
    }

    /// Returns the key of a prepared launch: everything that the plan depends on.
    fn key(&self, alignment_bytes: u64) -> LaunchKey {
        let body = self.body;
        let inputs = body.inputs.iter().map(|input| input.dtype);
        let dtypes = inputs.chain(body.outputs.iter().map(|output| output.dtype)).chain([self.compute]);
        let mut key = LaunchKey::new();
        key.push(self.id);
        key.push(alignment_bytes << 32 | (self.rows.len() as u64) << 16 | self.inner.len() as u64);
        // Eight dtypes a word. How many there are follows from the body.
        let mut packed = 0;
        for (index, dtype) in dtypes.enumerate() {
            packed = packed << 8 | dtype as u64;
            if index % 8 == 7 {
                key.push(packed);
            }
        }
        key.push(packed);
        key.extend(self.rows.iter().chain(self.inner).map(|&extent| extent as u64));
        for placement in &self.placements {
            match placement {
                // A placement has strides for all inner dimensions, or for none.
                Placement::Strided { rows, inner } => {
                    key.push(u64::from(inner.is_empty()));
                    key.extend_from_slice(rows);
                    key.extend_from_slice(inner);
                }
                Placement::Gathered(elements) => key.extend_from_slice(&[2, *elements]),
            }
        }
        key
    }

    fn prepare(&self, device: &Device, alignment_bytes: u64) -> Result<PreparedLaunch> {
        self.check_rank()?;
        device.with_clusters(|has_clusters| self.prepare_with(device, alignment_bytes, has_clusters))
    }

    fn prepare_with(
        &self,
        device: &Device,
        alignment_bytes: u64,
        has_clusters: bool,
    ) -> Result<PreparedLaunch> {
        let body = self.body;
        let shared_memory_bytes = device.properties().shared_memory_per_block_optin_bytes;
        let plan = plan(body, &self.iteration(alignment_bytes, shared_memory_bytes, has_clusters));
        if Environment::get().explain {
            eprintln!("{}: {}", self.name, plan.explain(body));
        }
        let mut dtypes: DTypes = body.inputs.iter().map(|input| input.dtype).collect();
        dtypes.extend(body.outputs.iter().map(|output| output.dtype));
        dtypes.push(self.compute);
        let key = KernelKey { body: self.id, dtypes, class: plan.class };
        let loaded = device.kernel(&key, || kernel(self.name, self.compute, body.clone(), plan.class))?;
        PreparedLaunch::new(device, loaded, &plan.geometry)
    }
}

fn check_dtype(tensor: &Tensor, dtype: DType) -> Result<()> {
    if tensor.dtype() == dtype {
        return Ok(());
    }
    Err(Error::invalid(format!("a tensor {:?} must be {dtype}, not {}", tensor.shape(), tensor.dtype())))
}

pub(crate) fn widen(sizes: &[usize]) -> Dimensions {
    sizes.iter().map(|&size| size as u64).collect()
}

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
    rows: SmallVec<[usize; 6]>,
    inner: SmallVec<[usize; 6]>,
}

impl Split {
    /// Splits the dimensions of a tensor of this rank; `reduced` lists the inner ones.
    pub(crate) fn new(rank: usize, reduced: &[usize]) -> Self {
        let (inner, rows) = (0..rank).partition(|dimension| reduced.contains(dimension));
        Self { rows, inner }
    }

    fn pick(&self, values: &[usize]) -> (Shape, Shape) {
        let of = |dimensions: &[usize]| dimensions.iter().map(|&dimension| values[dimension]).collect();
        (of(&self.rows), of(&self.inner))
    }

    /// Returns the placement of a tensor over all dimensions, or over the rows alone (repeated inside for an input).
    fn placement(&self, layout: &Layout, full_rank: usize, place: OutputPlace, is_output: bool) -> Placement {
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
enum Extents {
    Elementwise(Shape),
    Rows { split: Split, shape: Shape },
    Coordinates(Shape),
}

impl Extents {
    fn new(operator: &LoopOp, tensors: &[&Tensor], arguments: &LoopArguments) -> Result<Self> {
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

    fn rows_and_inner(&self) -> (Shape, Shape) {
        match self {
            Self::Elementwise(shape) | Self::Coordinates(shape) => (shape.clone(), Shape::new()),
            Self::Rows { split, shape } => split.pick(shape),
        }
    }

    /// Returns the shape of an output that is written at a place.
    fn output_shape(&self, place: OutputPlace) -> Shape {
        match (self, place) {
            (Self::Rows { shape, .. }, OutputPlace::Point) => shape.clone(),
            _ => self.rows_and_inner().0,
        }
    }

    fn input(&self, layout: &Layout) -> Result<Placement> {
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

    fn output(&self, layout: &Layout, place: OutputPlace) -> Placement {
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
    signature: Signature,
    extents: Extents,
    forward: Arc<ForwardBody>,
    /// The shape of each input.
    inputs: SmallVec<[Shape; 4]>,
    /// Shape and dtype of each output.
    outputs: SmallVec<[(Shape, DType); 2]>,
    /// The places where each input and then each output lies.
    placements: SmallVec<[Placement; 8]>,
    /// Whether it runs in stages.
    is_staged: bool,
    /// The layout of each output, and the bytes that it takes.
    layouts: SmallVec<[(Layout, u64); 2]>,
    /// The launch, once a kernel of the loop is asked for.
    launch: OnceLock<Arc<PreparedLaunch>>,
    /// The alignment of the addresses of inputs and outputs that the launch relies on.
    alignment_bytes: u64,
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
    pub(super) fn of(call: &LoopCall<'_>) -> Result<Arc<Self>> {
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
    pub(super) fn outputs(&self) -> &[(Shape, DType)] {
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
    fn planned<'a>(
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
    fn launch(&self, call: &LoopCall<'_>) -> Result<&Arc<PreparedLaunch>> {
        if let Some(launch) = self.launch.get() {
            return Ok(launch);
        }
        let launch = self.prepared(call, self.alignment_bytes)?;
        Ok(self.launch.get_or_init(|| launch))
    }

    /// Returns the launch for addresses of this alignment.
    fn prepared(&self, call: &LoopCall<'_>, alignment_bytes: u64) -> Result<Arc<PreparedLaunch>> {
        let (rows, inner) = self.extents.rows_and_inner();
        let launch = self.planned(call, (&rows, &inner), &[]);
        launch.check_inputs(&call.tensors)?;
        launch.prepared(call.device, alignment_bytes)
    }

    /// Returns the gradient for the inputs that `wanted` has a bit for.
    pub(super) fn gradient(&self, operator: &'static LoopOp, wanted: u32) -> Result<Arc<GradientBody>> {
        if let Some((_, gradient)) = self.gradient.get().filter(|(inputs, _)| *inputs == wanted) {
            return Ok(Arc::clone(gradient));
        }
        let gradient = gradient(operator, &self.signature, wanted).map_err(Error::invalid)?;
        // Whichever mask comes first is kept; the others are looked up.
        let _ = self.gradient.set((wanted, Arc::clone(&gradient)));
        Ok(gradient)
    }
}

/// Returns the alignment that all of these addresses have, up to 256 bytes.
fn alignment_of(pointers: impl IntoIterator<Item = DevicePointer>) -> u64 {
    let addresses = pointers.into_iter().fold(0, |all, pointer| all | pointer.address());
    1 << addresses.trailing_zeros().min(8)
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

/// Returns the bits of a call's scalars, in the forms in which the body reads them.
fn bits_of(body: &Body, arguments: &LoopArguments) -> SmallVec<[u64; 12]> {
    let mut bits = SmallVec::new();
    for (&scalar, &slot) in arguments.scalars.iter().zip(&body.scalars) {
        bits.push(scalar_bits(scalar, slot));
    }
    bits
}

/// Runs a loop operator below autograd: allocates the results and launches. `resolved` is the resolved call, if an earlier kernel
/// has it.
pub(crate) fn run(call: &LoopCall<'_>, resolved: Option<&Resolved>) -> Result<Tensors> {
    let own;
    let resolved = match resolved {
        Some(resolved) => resolved,
        None => {
            own = Resolved::of(call)?;
            &own
        }
    };
    let stream = call.device.current_stream();
    let is_pointwise = call.operator.space == Space::Elementwise;
    let (mut outputs, mut are_as_planned) = (Tensors::new(), true);
    for ((layout, bytes), (_, dtype)) in resolved.layouts.iter().zip(&resolved.outputs) {
        outputs.push(
            match destination::for_loop((layout, call.device), *dtype, &call.tensors, is_pointwise) {
                Some(target) => {
                    are_as_planned &= target.layout().strides() == layout.strides();
                    target
                }
                None => Tensor::empty_in(layout.clone(), *bytes, *dtype, &stream, call.label)?,
            },
        );
    }
    if !are_as_planned {
        let (body, compute) = (&resolved.forward, resolved.signature.compute);
        let prepared = Prepared { operator: call.operator, body, compute };
        let _telling = telling(call);
        launch_into(&prepared, &resolved.extents, &call.tensors, &call.arguments, &outputs, call.label)?;
        return Ok(outputs);
    }
    if resolved.is_staged {
        let (rows, inner) = resolved.extents.rows_and_inner();
        let scalars = bits_of(&resolved.forward.body, &call.arguments);
        resolved.planned(call, (&rows, &inner), &scalars).run(&call.tensors, &outputs)?;
        return Ok(outputs);
    }
    let (mut inputs, mut results) = (SmallVec::<[_; 8]>::new(), SmallVec::<[_; 4]>::new());
    call.tensors.iter().for_each(|tensor| inputs.push(tensor.pointer()));
    outputs.iter().for_each(|tensor| results.push(tensor.pointer()));
    let scalars = bits_of(&resolved.forward.body, &call.arguments);
    let _telling = telling(call);
    let results_alignment = alignment_of(results.iter().copied());
    let own;
    let launch = if results_alignment >= resolved.alignment_bytes {
        resolved.launch(call)?
    } else {
        // Memory of an upstream that aligns less than the caching allocator does.
        own = resolved.prepared(call, results_alignment)?;
        &own
    };
    stream.launch(launch, &inputs, &results, &scalars, call.label)?;
    Ok(outputs)
}

/// Lets the kernel tell of classes that are out of range, where the operator reads some.
fn telling(call: &LoopCall<'_>) -> Option<Telling> {
    let has_classes = matches!(call.operator.rule, DTypeRule::Classes | DTypeRule::WideClasses);
    has_classes.then(|| Telling::of(call.label.operator, RangeOf::Classes))
}

/// Runs an operator into given tensors, which may be inputs too where the layouts agree and each thread reads a point before it
/// writes it.
pub(crate) fn run_into(
    operator: &'static LoopOp,
    tensors: &[&Tensor],
    arguments: &LoopArguments,
    outputs: &[Tensor],
    label: Label,
) -> Result<()> {
    tensors.iter().copied().chain(outputs).try_for_each(check_memory)?;
    let signature = signature_of(operator, tensors, arguments)?;
    let extents = match operator.space {
        Space::Elementwise | Space::Coordinates => Extents::Elementwise(outputs[0].shape().into()),
        Space::Rows => Extents::new(operator, tensors, arguments)?,
    };
    let body = Prepared { operator, body: &forward(operator, &signature), compute: signature.compute };
    launch_into(&body, &extents, tensors, arguments, outputs, label)?;
    outputs.iter().for_each(Tensor::bump_version);
    Ok(())
}

/// An operator with its body for the dtypes of a call.
struct Prepared<'a> {
    operator: &'static LoopOp,
    body: &'a ForwardBody,
    compute: DType,
}

fn launch_into(
    prepared: &Prepared<'_>,
    extents: &Extents,
    tensors: &[&Tensor],
    arguments: &LoopArguments,
    outputs: &[Tensor],
    label: Label,
) -> Result<()> {
    let &Prepared { operator, body: &ForwardBody { id, ref body }, compute } = prepared;
    let mut placements =
        tensors.iter().map(|tensor| extents.input(tensor.layout())).collect::<Result<SmallVec<[_; 8]>>>()?;
    placements.extend(
        outputs.iter().zip(operator.outputs).map(|(tensor, &place)| extents.output(tensor.layout(), place)),
    );
    let (rows, inner) = extents.rows_and_inner();
    LoopLaunch {
        id,
        name: operator.name,
        body,
        compute,
        rows: &rows,
        inner: &inner,
        placements,
        scalars: &bits_of(body, arguments),
        label,
    }
    .run(tensors, outputs)
}
