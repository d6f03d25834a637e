//! Execution: the only place where a lowered loop becomes launches on a stream.
//!
//! [`lower`](thalweg_ops::lower) decides what runs, from dtypes and layouts; this crate adds a device and addresses. A launch is
//! planned and its kernel loaded once per key ([`prepared`]), then queued with the addresses of each call.
//!
//! # Invariants
//! - The only decision made here is the alignment of the addresses.
//! - Memory belongs to the caller: a [`Temporaries`] allocates memory for data passed between the steps of a launch.
#![forbid(unsafe_code)]

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_ops::lower::{LoopLaunch, LowerError, Place, Steps};
use thalweg_runtime::{
    Device, DevicePointer, Environment, Error, KernelKey, Label, PreparedLaunch, Result, Stream,
};

/// The greatest alignment in bytes that kernels use.
const MOST_ALIGNED: u32 = 8;

/// Memory for data that the steps of a launch pass to each other, on the stream of the launch. It is freed after they are queued.
pub trait Temporaries {
    /// Allocates memory for elements of a dtype, and returns its address.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    fn allocate(&mut self, dtype: DType, elements: u64) -> Result<DevicePointer>;
}

/// Converts an error of lowering to an error of the call.
pub fn to_runtime_error(error: LowerError) -> Error {
    match error {
        LowerError::DType(error) if error.is_not_implemented => Error::not_implemented(error.to_string()),
        LowerError::Layout(error) => error.into(),
        error => Error::invalid(error.to_string()),
    }
}

/// Returns the alignment in bytes that all of these addresses have, up to 256.
pub fn alignment_of(pointers: impl IntoIterator<Item = DevicePointer>) -> u64 {
    let addresses = pointers.into_iter().fold(0, |all, pointer| all | pointer.address());
    1 << addresses.trailing_zeros().min(MOST_ALIGNED)
}

/// Returns a launch for addresses of this alignment, planned and loaded once per device.
///
/// # Errors
/// Those of the plan, of the compiler and of the driver.
pub fn prepared(launch: &LoopLaunch, device: &Device, alignment_bytes: u64) -> Result<Arc<PreparedLaunch>> {
    device.prepared_launch(&launch.key(alignment_bytes), || prepare(launch, device, alignment_bytes))
}

/// Plans a launch and loads its kernel.
///
/// # Errors
/// Those of [`prepared`].
pub fn prepare(launch: &LoopLaunch, device: &Device, alignment_bytes: u64) -> Result<PreparedLaunch> {
    let shared_memory_bytes = device.properties().shared_memory_per_block_optin_bytes;
    device.with_clusters(|has_clusters| {
        let plan =
            launch.plan(alignment_bytes, shared_memory_bytes, has_clusters).map_err(to_runtime_error)?;
        if Environment::get().explain {
            eprintln!("{}: {}", launch.name, plan.explain(&launch.body));
        }
        let key = KernelKey { body: launch.id, dtypes: launch.dtypes(), class: plan.class };
        let loaded = device.kernel(&key, || launch.kernel(&plan))?;
        PreparedLaunch::new(device, loaded, &plan.geometry)
    })
}

/// Queues a launch, or the steps of one whose rows are few and long, on a stream. Does not block.
///
/// # Errors
/// Those of [`prepared`], of the allocation of temporaries and of the launch.
pub fn run(
    launch: &LoopLaunch,
    stream: &Stream,
    (inputs, outputs): (&[DevicePointer], &[DevicePointer]),
    temporaries: &mut dyn Temporaries,
    label: Label,
) -> Result<()> {
    match launch.steps().map_err(to_runtime_error)? {
        Some(steps) => run_steps(&steps, &launch.scalars, stream, (inputs, outputs), temporaries, label),
        None => run_single(launch, &launch.scalars, stream, (inputs, outputs), label),
    }
}

/// Queues the steps of a launch with its numbers, as [`run`] does.
///
/// # Errors
/// Those of [`run`].
pub fn run_steps(
    steps: &Steps,
    numbers: &[u64],
    stream: &Stream,
    (inputs, outputs): (&[DevicePointer], &[DevicePointer]),
    temporaries: &mut dyn Temporaries,
    label: Label,
) -> Result<()> {
    let temporaries = (steps.temporaries.iter())
        .map(|&(dtype, elements)| temporaries.allocate(dtype, elements))
        .collect::<Result<SmallVec<[DevicePointer; 8]>>>()?;
    let address = |place: Place, element: u64, dtype: DType| {
        let first = match place {
            Place::Input(number) => inputs[number],
            Place::Output(number) => outputs[number],
            Place::Temporary(number) => temporaries[number],
        };
        first.offset(element * dtype.size_bytes() as u64)
    };
    for step in &steps.list {
        let body = &step.launch.body;
        let read = (step.inputs.iter().zip(&body.inputs))
            .map(|(&(place, element), input)| address(place, element, input.dtype));
        let written = (step.outputs.iter().zip(&body.outputs))
            .map(|(&(place, element), output)| address(place, element, output.dtype));
        let read: SmallVec<[_; 8]> = read.collect();
        let written: SmallVec<[_; 4]> = written.collect();
        run_single(&step.launch, &step.numbers(numbers), stream, (&read, &written), label)?;
    }
    Ok(())
}

fn run_single(
    launch: &LoopLaunch,
    numbers: &[u64],
    stream: &Stream,
    (inputs, outputs): (&[DevicePointer], &[DevicePointer]),
    label: Label,
) -> Result<()> {
    let alignment_bytes = alignment_of(inputs.iter().chain(outputs).copied());
    let prepared = prepared(launch, stream.device(), alignment_bytes)?;
    stream.launch(&prepared, inputs, outputs, numbers, label)
}
