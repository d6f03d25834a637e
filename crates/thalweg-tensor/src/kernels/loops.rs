//! Loop operators: from an entry of the table and tensors to a launch, and the node that they record.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use bytemuck::cast_slice;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::{
    Body, Category, DType, Dimension, Dimensions, Layout, Node as Expression, OutputPlace, Shape,
    broadcast_shapes, byte_count,
};
use thalweg_ops::{
    DTypeRule, DTypes, ForwardBody, GradientBody, Iteration, LoopOp, Placement, Signature, Space, forward,
    gradient, gradient_of, kernel, plan, scalar_bits,
};
use thalweg_runtime::{
    Device, DevicePointer, Environment, Error, KernelKey, Label, LaunchKey, PreparedLaunch, RangeOf, Result,
    Stream, Telling,
};

pub(crate) use super::loop_call::{LoopArguments, LoopCall};
use crate::autograd::{Backward, Gradients, Saved, is_grad_enabled, record};
use crate::dispatch::Call;
use crate::tensor::{Tensor, Tensors};

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
    /// Where each input and then each output lies.
    pub placements: SmallVec<[Placement; 8]>,
    /// The bits of the scalars.
    pub scalars: &'a [u64],
    /// Who asked.
    pub label: Label,
}

impl LoopLaunch<'_> {
    /// Plans, loads and queues the launch on the current stream. A launch of this shape is planned once.
    pub(crate) fn run(self, inputs: &[&Tensor], outputs: &[Tensor]) -> Result<()> {
        self.check_inputs(inputs)?;
        self.check_outputs(outputs)?;
        let device = outputs[0].device();
        let input_pointers: SmallVec<[_; 8]> = inputs.iter().map(|tensor| tensor.pointer()).collect();
        let output_pointers: SmallVec<[_; 4]> = outputs.iter().map(Tensor::pointer).collect();
        let alignment_bytes = alignment_of(input_pointers.iter().chain(&output_pointers).copied());
        let prepared = self.prepared(device, alignment_bytes)?;
        let stream = device.current_stream();
        stream.launch(&prepared, &input_pointers, &output_pointers, self.scalars, self.label)
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
        let iteration = Iteration {
            rows: widen(self.rows),
            inner: widen(self.inner),
            operands: self.placements.clone(),
            alignment_bytes,
        };
        let body = self.body;
        let plan = plan(body, &iteration);
        if Environment::get().explain {
            eprintln!("{}: {}", self.name, plan.explain(body));
        }
        let mut dtypes: DTypes = body.inputs.iter().map(|input| input.dtype).collect();
        dtypes.extend(body.outputs.iter().map(|output| output.dtype));
        dtypes.push(self.compute);
        let key = KernelKey { body: self.id, dtypes, class: plan.class };
        let loaded = device.kernel(&key, || kernel(self.name, self.compute, body.clone(), plan.class))?;
        Ok(PreparedLaunch::new(device, loaded, &plan.geometry))
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
            Space::Elementwise if tensors.is_empty() => Self::Elementwise(arguments.sizes.clone()),
            Space::Elementwise => {
                let mut shape: Shape = tensors[0].shape().into();
                for tensor in &tensors[1..] {
                    shape = broadcast_shapes(&shape, tensor.shape())?;
                }
                Self::Elementwise(shape)
            }
            Space::Rows => {
                let shape: Shape = tensors[0].shape().into();
                Self::Rows { split: Split::new(shape.len(), &arguments.sizes), shape }
            }
            Space::Coordinates => Self::Coordinates(arguments.sizes.clone()),
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
    /// Where each input and then each output lies.
    placements: SmallVec<[Placement; 8]>,
    /// The layout of the outputs, where it is not the contiguous one.
    lies: Option<Layout>,
    /// The launch, once a kernel of the loop is asked for.
    launch: OnceLock<Arc<PreparedLaunch>>,
    /// The alignment of the addresses of inputs and outputs that the launch relies on.
    alignment_bytes: u64,
    /// The gradient that was asked for first, with the inputs that it is for.
    gradient: OnceLock<(u32, Arc<GradientBody>)>,
}

/// How many calls a thread keeps resolved: a few times what the largest models have.
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
        let found = KNOWN.with_borrow_mut(|Known { key, calls }| {
            Self::write_key(key, call, alignment_bytes);
            calls.get(key.as_slice()).cloned()
        });
        if let Some(found) = found {
            return Ok(found);
        }
        let made = Arc::new(Self::new(call, alignment_bytes)?);
        KNOWN.with_borrow_mut(|Known { key, calls }| {
            if calls.len() >= RESOLVED {
                calls.clear();
            }
            Self::write_key(key, call, alignment_bytes);
            calls.insert(key.as_slice().into(), Arc::clone(&made));
        });
        Ok(made)
    }

    /// Returns shape and dtype of each output.
    pub(super) fn outputs(&self) -> &[(Shape, DType)] {
        &self.outputs
    }

    /// Writes down everything that a call depends on beside the values of its numbers.
    fn write_key(key: &mut Vec<u64>, call: &LoopCall<'_>, alignment_bytes: u64) {
        let arguments = &call.arguments;
        let dtype = arguments.dtype.map_or(0, |dtype| dtype as u64 + 1);
        let kinds = dtype << 16 | (arguments.category() as u64) << 8 | arguments.sizes.len() as u64;
        key.clear();
        let operator = std::ptr::from_ref(call.operator).addr() as u64;
        key.extend_from_slice(&[operator, call.device.number(), alignment_bytes << 32 | kinds]);
        key.extend_from_slice(cast_slice(&arguments.sizes));
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
        let lies = match &extents {
            Extents::Elementwise(shape) => call.lies_as_inputs(shape)?,
            _ => None,
        };
        for ((shape, dtype), &place) in outputs.iter().zip(operator.outputs) {
            // A shape whose bytes cannot be counted has no layout.
            byte_count(shape, *dtype)?;
            let contiguous = || Layout::contiguous(shape);
            placements.push(extents.output(&lies.clone().unwrap_or_else(contiguous), place));
        }
        let inputs = call.tensors.iter().map(|tensor| tensor.shape().into()).collect();
        let (launch, gradient) = (OnceLock::new(), OnceLock::new());
        Ok(Self {
            signature,
            extents,
            forward,
            inputs,
            outputs,
            placements,
            lies,
            launch,
            alignment_bytes,
            gradient,
        })
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
        let launch = LoopLaunch {
            id: self.forward.id,
            name: call.operator.name,
            body: &self.forward.body,
            compute: self.signature.compute,
            rows: &rows,
            inner: &inner,
            placements: self.placements.clone(),
            scalars: &[],
            label: call.label,
        };
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
    operator
        .signature_of(&dtypes, zero_dimensional, scalars, arguments.dtype)
        .map_err(|error| Error::invalid(error.to_string()))
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
    let mut outputs = Tensors::new();
    for (shape, dtype) in &resolved.outputs {
        let output = Tensor::empty_on(shape, *dtype, &stream, call.label)?;
        outputs.push(match &resolved.lies {
            Some(layout) => output.with_layout(layout.clone()),
            None => output,
        });
    }
    let (mut inputs, mut results) = (SmallVec::<[_; 8]>::new(), SmallVec::<[_; 4]>::new());
    call.tensors.iter().for_each(|tensor| inputs.push(tensor.pointer()));
    outputs.iter().for_each(|tensor| results.push(tensor.pointer()));
    let scalars = bits_of(&resolved.forward.body, &call.arguments);
    let has_classes = matches!(call.operator.rule, DTypeRule::Classes | DTypeRule::WideClasses);
    let _telling = has_classes.then(|| Telling::of(call.label.operator, RangeOf::Classes));
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

/// Runs an operator into given tensors, which may be inputs too where the layouts agree and each thread reads a point before it
/// writes it.
pub(crate) fn run_into(
    operator: &'static LoopOp,
    tensors: &[&Tensor],
    arguments: &LoopArguments,
    outputs: &[Tensor],
    label: Label,
) -> Result<()> {
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

/// Runs a reduction over the `inner` dimensions of a tensor, with these dtypes, into a given tensor of one element a row.
pub(super) fn reduce_into(
    operator: &'static LoopOp,
    signature: &Signature,
    (x, inner): (&Tensor, &[usize]),
    arguments: &LoopArguments,
    output: &Tensor,
    label: Label,
) -> Result<()> {
    let extents = Extents::Rows { split: Split::new(x.rank(), inner), shape: x.shape().into() };
    let body = Prepared { operator, body: &forward(operator, signature), compute: signature.compute };
    launch_into(&body, &extents, &[x], arguments, std::slice::from_ref(output), label)
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

/// Runs a call whose backend kernel is this loop operator's, and records a node whose gradient is derived.
pub(crate) fn autograd(lowered: &LoopCall<'_>, call: &Call<'_>) -> Result<Tensors> {
    let resolved = Resolved::of(lowered)?;
    let mut results = Call { resolved: Some(&resolved), ..*call }.redispatch()?;
    let differentiable = results.iter().any(|result| result.dtype().is_differentiable());
    let wanted = lowered.wanted();
    if !differentiable || wanted == 0 {
        return Ok(results);
    }
    let node = node_of(&resolved, lowered, &results, wanted)?;
    record(Box::new(node), &lowered.tensors, &mut results, call.device.current_stream());
    Ok(results)
}

/// Returns the backward function of a call with these results, for the gradients of the inputs that `wanted` has a bit for.
pub(crate) fn node(call: &LoopCall<'_>, results: &[Tensor], wanted: u32) -> Result<LoopBackward> {
    node_of(&Resolved::of(call)?, call, results, wanted)
}

fn node_of(
    resolved: &Arc<Resolved>,
    call: &LoopCall<'_>,
    results: &[Tensor],
    wanted: u32,
) -> Result<LoopBackward> {
    let derived = resolved.gradient(call.operator, wanted)?;
    Ok(LoopBackward {
        operator: call.operator,
        saved: (derived.saved_inputs.iter().map(|&input| call.tensors[input]))
            .map(Saved::new)
            .chain(derived.saved_outputs.iter().map(|&output| Saved::result(&results[output], output)))
            .collect::<Result<_>>()?,
        scalars: bits_of(&resolved.forward.body, &call.arguments),
        resolved: Arc::clone(resolved),
        derived,
        shapes: None,
        wanted,
        label: call.label,
    })
}

/// The backward function of a loop operator, with the tensors that it saves.
pub(crate) struct LoopBackward {
    operator: &'static LoopOp,
    resolved: Arc<Resolved>,
    derived: Arc<GradientBody>,
    saved: SmallVec<[Saved; 4]>,
    scalars: SmallVec<[u64; 12]>,
    /// The shapes of the operator, where it is itself a gradient.
    shapes: Option<Box<Shapes>>,
    wanted: u32,
    label: Label,
}

/// The operands of a body whose gradient is computed.
struct Shapes {
    inputs: SmallVec<[Shape; 4]>,
    outputs: SmallVec<[(Shape, DType); 2]>,
}

impl LoopBackward {
    /// Returns shape and dtype of each output of the operator.
    fn outputs(&self) -> &[(Shape, DType)] {
        self.shapes.as_ref().map_or(&self.resolved.outputs, |shapes| &shapes.outputs)
    }

    /// Returns the shape of each input of the operator.
    fn inputs(&self) -> &[Shape] {
        self.shapes.as_ref().map_or(&self.resolved.inputs, |shapes| &shapes.inputs)
    }

    /// Returns the gradients of the outputs that the derived body reads; a missing one is zero.
    fn used_gradients(&self, gradients: &[Option<Tensor>], device: &Device) -> Result<Tensors> {
        self.derived
            .used_outputs
            .iter()
            .map(|&output| match &gradients[output] {
                Some(gradient) => Ok(gradient.clone()),
                None => {
                    let (shape, dtype) = &self.outputs()[output];
                    Tensor::zeros(shape, *dtype, device)
                }
            })
            .collect()
    }

    /// Returns where the derived body only hands a gradient on, which of the used ones it is.
    fn passed_on(&self, output: usize) -> Option<usize> {
        let body = &self.derived.body;
        let Expression::Load { input } = body.nodes[body.outputs[output].value.index()] else { return None };
        let same_dtype = body.inputs[usize::from(input)].dtype == body.outputs[output].dtype;
        let elementwise = matches!(self.resolved.extents, Extents::Elementwise(_));
        usize::from(input).checked_sub(self.saved.len()).filter(|_| same_dtype && elementwise)
    }
}

impl Backward for LoopBackward {
    fn name(&self) -> &'static str {
        self.operator.name
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let device =
            gradients.iter().flatten().next().expect("the engine skips nodes without a gradient").device();
        let body = &self.derived.body;
        let used = self.used_gradients(gradients, device)?;
        let passed: SmallVec<[Option<usize>; 4]> =
            (0..body.outputs.len()).map(|output| self.passed_on(output)).collect();
        let full: Tensors = if passed.iter().all(Option::is_some) {
            passed.iter().flatten().map(|&gradient| used[gradient].clone()).collect()
        } else {
            self.launch(&used, device)?
        };
        let mut full = full.into_iter();
        let mut results = Gradients::new();
        for (input, shape) in self.inputs().iter().enumerate() {
            let wanted = self.wanted & (1 << input) != 0;
            results.push(if wanted {
                let gradient = full.next().expect("one output a wanted input");
                let dtype = body.outputs[results.iter().flatten().count()].dtype;
                Some(self.summed(&gradient, shape)?.to_dtype(dtype)?)
            } else {
                None
            });
        }
        Ok(results)
    }

    fn release(&self) {
        self.saved.iter().for_each(Saved::release);
    }
}

impl LoopBackward {
    /// Returns the gradient of an input of this shape from that of every point: an input with one value per row is repeated over
    /// the points of the row, any other is broadcast.
    fn summed(&self, gradient: &Tensor, shape: &[usize]) -> Result<Tensor> {
        if let Extents::Rows { split, shape: points } = &self.resolved.extents
            && shape != points.as_slice()
            && gradient.shape() == points.as_slice()
            && split.pick(points).0.as_slice() == shape
        {
            let inner: SmallVec<[i64; 6]> = split.inner.iter().map(|&dimension| dimension as i64).collect();
            return gradient.sum(&inner, false);
        }
        gradient.sum_to_shape(shape)
    }

    /// Returns the body, whose outputs that are summed afterwards stay in the dtype that is computed in, and its number: a sum of
    /// what was rounded to 16 bits would lose digits.
    fn unrounded(&self) -> (u64, Cow<'_, Body>) {
        let (mut id, mut body) = (self.derived.id, Cow::Borrowed(&self.derived.body));
        let wanted = (0..self.inputs().len()).filter(|input| self.wanted & (1 << input) != 0);
        for (output, input) in wanted.enumerate() {
            let (dtype, place) = (body.outputs[output].dtype, body.outputs[output].place);
            let is_summed = self.inputs()[input] != self.resolved.extents.output_shape(place);
            // The gradient of a gradient is that of the body as it is.
            if is_summed && dtype.compute() != dtype && !is_grad_enabled() {
                body.to_mut().outputs[output].dtype = dtype.compute();
                id = (id ^ (output as u64 + 1)).wrapping_mul(0x94d0_49bb_1331_11eb);
            }
        }
        (id, body)
    }

    fn launch(&self, used: &[Tensor], device: &Device) -> Result<Tensors> {
        let (id, body) = self.unrounded();
        let body = body.as_ref();
        let saved = self.saved.iter().map(Saved::get).collect::<Result<Tensors>>()?;
        let inputs: SmallVec<[&Tensor; 8]> = saved.iter().chain(used).collect();
        let extents = &self.resolved.extents;
        let (rows, inner) = extents.rows_and_inner();
        let stream = device.current_stream();
        let mut outputs = body
            .outputs
            .iter()
            .map(|output| {
                let shape = extents.output_shape(output.place);
                Tensor::empty_on(&shape, output.dtype, &stream, self.label)
            })
            .collect::<Result<Tensors>>()?;
        let mut placements = inputs
            .iter()
            .map(|tensor| extents.input(tensor.layout()))
            .collect::<Result<SmallVec<[_; 8]>>>()?;
        placements.extend(
            outputs
                .iter()
                .zip(&body.outputs)
                .map(|(tensor, output)| extents.output(tensor.layout(), output.place)),
        );
        LoopLaunch {
            id,
            name: &format!("{}_backward", self.operator.name),
            body,
            compute: self.resolved.signature.compute,
            rows: &rows,
            inner: &inner,
            placements,
            scalars: &self.scalars,
            label: self.label,
        }
        .run(&inputs, &outputs)?;
        self.record(&inputs, &mut outputs, stream)?;
        Ok(outputs)
    }

    /// Records a node for the gradient itself, where gradients of gradients are asked for (`create_graph`).
    fn record(&self, inputs: &[&Tensor], outputs: &mut [Tensor], stream: Stream) -> Result<()> {
        if !is_grad_enabled() {
            return Ok(());
        }
        let wanted = (inputs.iter().enumerate())
            .filter(|(_, tensor)| tensor.requires_grad() && tensor.dtype().is_differentiable())
            .fold(0u32, |mask, (input, _)| mask | 1 << input);
        if wanted == 0 {
            return Ok(());
        }
        let derived = gradient_of(self.operator.name, &self.derived, wanted).map_err(Error::invalid)?;
        let shapes = Shapes {
            inputs: inputs.iter().map(|tensor| tensor.shape().into()).collect(),
            outputs: outputs.iter().map(|tensor| (tensor.shape().into(), tensor.dtype())).collect(),
        };
        let node = Self {
            operator: self.operator,
            resolved: Arc::clone(&self.resolved),
            saved: derived
                .saved_inputs
                .iter()
                .map(|&input| Saved::new(inputs[input]))
                .collect::<Result<_>>()?,
            derived,
            scalars: self.scalars.clone(),
            shapes: Some(Box::new(shapes)),
            wanted,
            label: self.label,
        };
        record(Box::new(node), inputs, outputs, stream);
        Ok(())
    }
}
