//! Loop operators: from a call with tensors to a launch, and the node that it records. [`thalweg_ops::lower`] decides what runs;
//! here are tensors, the memory of results, and what a thread keeps of its calls.

mod backward;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use bytemuck::cast_slice;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_execute::{Temporaries, alignment_of, prepared, refused, run_steps};
use thalweg_ir::{DType, Dimensions};
use thalweg_ops::lower::{LoopLaunch, LoweredLoop, Operand, signature_of};
use thalweg_ops::{DTypeRule, DTypes, LoopOp, Placement, Signature, Space, default_dtype, forward};
use thalweg_runtime::{
    Buffer, DevicePointer, Error, Label, PreparedLaunch, RangeOf, Result, Stream, Telling,
};

pub(crate) use backward::{LoopBackward, autograd, node};

pub(crate) use super::loop_call::{LoopArguments, LoopCall, Points};

use crate::destination;
use crate::tensor::{Tensor, Tensors, check_memory};

/// The operands of a call.
pub(crate) type Operands<'a> = SmallVec<[Operand<'a>; 8]>;

/// Returns tensors as lowering sees them.
pub(crate) fn operands<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Operands<'a> {
    let operand = |tensor: &'a Tensor| Operand { dtype: tensor.dtype(), layout: tensor.layout() };
    tensors.into_iter().map(operand).collect()
}

pub(crate) fn widen(sizes: &[usize]) -> Dimensions {
    sizes.iter().map(|&size| size as u64).collect()
}

/// Memory of a launch's steps from the caching allocator, freed when it is dropped: reuse on the stream is ordered after them.
struct Rooms<'a> {
    stream: &'a Stream,
    label: Label,
    buffers: SmallVec<[Buffer; 4]>,
}

impl Temporaries for Rooms<'_> {
    fn allocate(&mut self, dtype: DType, elements: u64) -> Result<DevicePointer> {
        let bytes = elements.checked_mul(dtype.size_bytes() as u64).ok_or_else(|| {
            Error::invalid("the parts of a reduction have more elements than can be addressed")
        })?;
        let buffer = Buffer::labelled(self.stream, bytes, self.label)?;
        let pointer = buffer.pointer();
        self.buffers.push(buffer);
        Ok(pointer)
    }
}

/// Carries out a launch on the current stream.
pub(super) fn launch(
    launch: &LoopLaunch,
    inputs: &[&Tensor],
    outputs: &[Tensor],
    label: Label,
) -> Result<()> {
    let stream = outputs[0].device().current_stream();
    let read: SmallVec<[_; 8]> = inputs.iter().map(|tensor| tensor.pointer()).collect();
    let written: SmallVec<[_; 4]> = outputs.iter().map(Tensor::pointer).collect();
    let mut rooms = Rooms { stream: &stream, label, buffers: SmallVec::new() };
    thalweg_execute::run(launch, &stream, (&read, &written), &mut rooms, label)
}

/// Launches an operator whose operands have placements of their own over rows and inner dimensions.
pub(super) fn launch_placed(
    operator: &'static LoopOp,
    (rows, inner): (&[usize], &[usize]),
    (inputs, outputs): (&[&Tensor], &[Tensor]),
    placements: SmallVec<[Placement; 8]>,
    scalars: &[u64],
    label: Label,
) -> Result<()> {
    let dtypes: DTypes = inputs.iter().map(|tensor| tensor.dtype()).collect();
    let signature =
        operator.signature(&dtypes, false, None).map_err(|error| Error::invalid(error.to_string()))?;
    let forward = forward(operator, &signature);
    let is_written = outputs.iter().zip(&forward.body.outputs);
    if let Some((tensor, output)) =
        is_written.into_iter().find(|(tensor, output)| tensor.dtype() != output.dtype)
    {
        return Err(Error::invalid(format!("a result must be {}, not {}", output.dtype, tensor.dtype())));
    }
    let lowered = LoopLaunch {
        id: forward.id,
        name: operator.name.into(),
        body: Arc::clone(&forward.body),
        compute: signature.compute,
        rows: rows.into(),
        inner: inner.into(),
        placements,
        scalars: scalars.into(),
    };
    launch(&lowered, inputs, outputs, label)
}

/// A resolved call of a loop operator: all that follows from its tensors' dtypes, shapes, strides and alignment.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(super) lowered: LoweredLoop,
    /// The launch, once a kernel of the loop is asked for.
    launch: OnceLock<Arc<PreparedLaunch>>,
    /// The alignment of the addresses of inputs and outputs that the launch relies on.
    alignment_bytes: u64,
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

    /// Returns the key that [`write_key`](Self::write_key) writes.
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
        let operands = operands(call.tensors.iter().copied());
        let lowered = LoweredLoop::new(call.operator, &operands, &call.arguments).map_err(refused)?;
        Ok(Self { lowered, launch: OnceLock::new(), alignment_bytes })
    }

    /// Returns the launch, planned and loaded once.
    fn launch(&self, call: &LoopCall<'_>) -> Result<&Arc<PreparedLaunch>> {
        if let Some(launch) = self.launch.get() {
            return Ok(launch);
        }
        let launch = prepared(self.lowered.launch(), call.device, self.alignment_bytes)?;
        Ok(self.launch.get_or_init(|| launch))
    }

    /// Allocates the results, or takes memory that is offered for them. Returns also whether their layouts are as planned.
    fn results(&self, call: &LoopCall<'_>, stream: &Stream) -> Result<(Tensors, bool)> {
        let is_pointwise = call.operator.space == Space::Elementwise;
        let (mut results, mut are_as_planned) = (Tensors::new(), true);
        for output in &self.lowered.outputs {
            let (layout, dtype) = (&output.layout, output.dtype);
            results.push(
                match destination::for_loop((layout, call.device), dtype, &call.tensors, is_pointwise) {
                    Some(target) => {
                        are_as_planned &= target.layout().strides() == layout.strides();
                        target
                    }
                    None => Tensor::empty_in(layout.clone(), output.bytes, dtype, stream, call.label)?,
                },
            );
        }
        Ok((results, are_as_planned))
    }
}

/// Returns the dtypes of a call of an operator with these tensors.
pub(crate) fn signature(
    operator: &LoopOp,
    tensors: &[&Tensor],
    arguments: &LoopArguments,
) -> Result<Signature> {
    signature_of(operator, &operands(tensors.iter().copied()), arguments).map_err(refused)
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
    let (stream, lowered) = (call.device.current_stream(), &resolved.lowered);
    let (outputs, are_as_planned) = resolved.results(call, &stream)?;
    let _telling = telling(call);
    if !are_as_planned {
        let into = {
            let (read, written) = (operands(call.tensors.iter().copied()), operands(&outputs));
            lowered.launch_into(&read, &written, &call.arguments).map_err(refused)?
        };
        launch(&into, &call.tensors, &outputs, call.label)?;
        return Ok(outputs);
    }
    let (mut inputs, mut results) = (SmallVec::<[_; 8]>::new(), SmallVec::<[_; 4]>::new());
    call.tensors.iter().for_each(|tensor| inputs.push(tensor.pointer()));
    outputs.iter().for_each(|tensor| results.push(tensor.pointer()));
    let numbers = lowered.numbers(&call.arguments);
    if let Some(steps) = lowered.steps() {
        let mut rooms = Rooms { stream: &stream, label: call.label, buffers: SmallVec::new() };
        run_steps(steps, &numbers, &stream, (&inputs, &results), &mut rooms, call.label)?;
        return Ok(outputs);
    }
    let results_alignment = alignment_of(results.iter().copied());
    let own;
    let launch = if results_alignment >= resolved.alignment_bytes {
        resolved.launch(call)?
    } else {
        // Memory of an upstream that aligns less than the caching allocator does.
        own = prepared(lowered.launch(), call.device, results_alignment)?;
        &own
    };
    stream.launch(launch, &inputs, &results, &numbers, call.label)?;
    Ok(outputs)
}

/// Lets the kernel report classes that are out of range, where the operator reads some.
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
    let (read, written) = (operands(tensors.iter().copied()), operands(outputs));
    let into = LoopLaunch::into_outputs(operator, &read, &written, arguments).map_err(refused)?;
    launch(&into, tensors, outputs, label)?;
    outputs.iter().for_each(Tensor::bump_version);
    Ok(())
}
