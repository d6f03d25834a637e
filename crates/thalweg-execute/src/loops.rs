//! Loops: [`lower`](thalweg_ops::lower) decides which loop runs, from dtypes and layouts; here it gets a device and addresses. A launch
//! is planned and its kernel loaded once per key ([`prepared`]), then queued with the addresses of each call.
//!
//! # Invariants
//! - The only decision made here is the alignment of the addresses.
//! - Memory for data passed between the steps of a launch comes from the caching allocator, and is freed once the steps are queued:
//!   reuse on the stream is ordered after them.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_ir::{DType, Kernel};
use thalweg_ops::LaunchPlan;
use thalweg_ops::lower::{LoopLaunch, LowerError, Place, Step, Steps};
use thalweg_runtime::{
    Buffer, Device, DevicePointer, Environment, Error, KernelKey, Label, PreparedLaunch, Result, Stream,
};

use crate::rows::whole_rows;
use crate::{Kernels, Work, execute};

/// The greatest alignment in bytes that kernels use.
const MOST_ALIGNED: u32 = 8;

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
pub fn prepared(launch: &LoopLaunch, device: &Device, alignment_bytes: u64) -> Result<Arc<PreparedLaunch>> {
    device.prepared_launch(&launch.key(alignment_bytes), || prepare(launch, device, alignment_bytes))
}

/// Compiles the kernels of launches that will be queued with these inputs and outputs, as far as they are not loaded, by several
/// threads at the same time. An address of 0 is memory that is not allocated yet. Errors are those of the launches.
pub fn compile_ahead<'a>(
    device: &Device,
    wanted: impl IntoIterator<Item = (&'a LoopLaunch, Option<&'a Steps>, Addresses)>,
) {
    let mut kernels: Vec<(KernelKey, Kernel)> = Vec::new();
    for (launch, steps, addresses) in wanted {
        each_kernel(device, launch, steps, addresses, |key, launch, plan| {
            if !device.has_kernel(&key) && kernels.iter().all(|(known, _)| *known != key) {
                kernels.push((key, launch.kernel(&plan)));
            }
        });
    }
    device.compile_ahead(kernels);
}

/// Compiles the kernels of a launch in the background, because it is expected with addresses of this alignment. Does not block. Errors
/// are those of the launch.
pub fn expect(device: &Device, launch: &LoopLaunch, alignment_bytes: u64) {
    let Ok(steps) = launch.steps() else { return };
    let address = DevicePointer::new(alignment_bytes);
    let inputs = SmallVec::from_elem(address, launch.body.inputs.len());
    let outputs = SmallVec::from_elem(address, launch.body.outputs.len());
    each_kernel(device, launch, steps.as_ref(), (inputs, outputs), |key, launch, plan| {
        device.expect_kernel(&key, || launch.kernel(&plan));
    });
}

/// Calls a function with each kernel of a launch, or of its steps. An address of 0 is memory that is not allocated yet. Leaves out what
/// cannot be planned.
fn each_kernel(
    device: &Device,
    launch: &LoopLaunch,
    steps: Option<&Steps>,
    (inputs, outputs): Addresses,
    mut call: impl FnMut(KernelKey, &LoopLaunch, LaunchPlan),
) {
    let mut add = |launch: &LoopLaunch, alignment_bytes: u64| {
        let found =
            device.with_clusters(|has_clusters| planned(launch, device, alignment_bytes, has_clusters));
        if let Ok((key, plan)) = found {
            call(key, launch, plan);
        }
    };
    match steps {
        None if whole_rows(launch, &inputs, &outputs).is_some() => {}
        None => add(launch, alignment_of(inputs.iter().chain(&outputs).copied())),
        Some(steps) => {
            let temporaries = vec![DevicePointer::new(0); steps.temporaries.len()];
            for step in &steps.list {
                let (read, written) = addresses(step, &inputs, &outputs, &temporaries);
                add(&step.launch, alignment_of(read.iter().chain(&written).copied()));
            }
        }
    }
}

/// The addresses of the inputs and of the outputs of a launch.
pub type Addresses = (SmallVec<[DevicePointer; 8]>, SmallVec<[DevicePointer; 4]>);

/// Plans a launch, and returns the key of its kernel.
fn planned(
    launch: &LoopLaunch,
    device: &Device,
    alignment_bytes: u64,
    has_clusters: bool,
) -> Result<(KernelKey, LaunchPlan)> {
    let shared_memory_bytes = device.properties().shared_memory_per_block_optin_bytes;
    let plan = launch.plan(alignment_bytes, shared_memory_bytes, has_clusters).map_err(to_runtime_error)?;
    Ok((KernelKey { body: launch.id, dtypes: launch.dtypes(), class: plan.class }, plan))
}

/// Plans a launch and loads its kernel.
fn prepare(launch: &LoopLaunch, device: &Device, alignment_bytes: u64) -> Result<PreparedLaunch> {
    device.with_clusters(|has_clusters| {
        let (key, plan) = planned(launch, device, alignment_bytes, has_clusters)?;
        if Environment::get().explain {
            eprintln!("{}: {}", launch.name, plan.explain(&launch.body));
        }
        let loaded = device.kernel(&key, || launch.kernel(&plan))?;
        PreparedLaunch::new(device, loaded, &plan.geometry)
    })
}

/// A lowered loop with the numbers of a call.
#[derive(Clone, Copy, Debug)]
pub struct Lowered<'a> {
    /// The launch.
    pub launch: &'a LoopLaunch,
    /// Its steps, if its rows are few and long.
    pub steps: Option<&'a Steps>,
    /// The numbers that its body reads.
    pub numbers: &'a [u64],
    /// The place in which its launch is kept for the next call; otherwise it is looked up by its key.
    pub kept: Option<&'a Kept>,
}

/// A launch that is kept, once it is planned and loaded, for addresses of an alignment.
#[derive(Debug)]
pub struct Kept {
    alignment_bytes: u64,
    launch: OnceLock<Arc<PreparedLaunch>>,
}

impl Kept {
    /// Returns a place for a launch whose addresses have this alignment in bytes.
    #[must_use]
    pub const fn new(alignment_bytes: u64) -> Self {
        Self { alignment_bytes, launch: OnceLock::new() }
    }

    /// Returns the alignment in bytes.
    pub const fn alignment_bytes(&self) -> u64 {
        self.alignment_bytes
    }

    /// Returns whether the launch is kept already.
    pub fn is_loaded(&self) -> bool {
        self.launch.get().is_some()
    }
}

/// Queues a launch, or the steps of one whose rows are few and long, on a stream. Does not block.
pub fn run(
    launch: &LoopLaunch,
    stream: &Stream,
    addresses: (&[DevicePointer], &[DevicePointer]),
    label: Label,
) -> Result<()> {
    let steps = launch.steps().map_err(to_runtime_error)?;
    let lowered = Lowered { launch, steps: steps.as_ref(), numbers: &launch.scalars, kept: None };
    execute(&lowered, addresses, stream, label)
}

impl Work<(&[DevicePointer], &[DevicePointer])> for &Lowered<'_> {
    fn queue(
        self,
        (inputs, outputs): (&[DevicePointer], &[DevicePointer]),
        stream: &Stream,
        label: Label,
    ) -> Result<()> {
        let &Lowered { launch, steps, numbers, kept } = self;
        if let Some(steps) = steps {
            return run_steps(steps, numbers, stream, (inputs, outputs), label);
        }
        if let Some(rows) = whole_rows(launch, inputs, outputs) {
            return execute(Kernels(rows), [inputs[0], inputs[1], outputs[0]], stream, label);
        }
        let alignment_bytes = alignment_of(inputs.iter().chain(outputs).copied());
        // Memory may come from an upstream with a smaller alignment than the caching allocator's.
        let Some(kept) = kept.filter(|kept| alignment_bytes >= kept.alignment_bytes) else {
            let prepared = prepared(launch, stream.device(), alignment_bytes)?;
            return stream.launch(&prepared, inputs, outputs, numbers, label);
        };
        let prepared = match kept.launch.get() {
            Some(prepared) => prepared,
            None => {
                let prepared = prepared(launch, stream.device(), kept.alignment_bytes)?;
                kept.launch.get_or_init(|| prepared)
            }
        };
        stream.launch(prepared, inputs, outputs, numbers, label)
    }
}

/// Queues the steps of a launch with its numbers.
fn run_steps(
    steps: &Steps,
    numbers: &[u64],
    stream: &Stream,
    (inputs, outputs): (&[DevicePointer], &[DevicePointer]),
    label: Label,
) -> Result<()> {
    let temporaries = (steps.temporaries.iter())
        .map(|&(dtype, elements)| allocated(stream, dtype, elements, label))
        .collect::<Result<SmallVec<[Buffer; 4]>>>()?;
    let pointers: SmallVec<[DevicePointer; 4]> = temporaries.iter().map(Buffer::pointer).collect();
    for step in &steps.list {
        let (read, written) = addresses(step, inputs, outputs, &pointers);
        let numbers = step.numbers(numbers);
        let lowered = Lowered { launch: &step.launch, steps: None, numbers: &numbers, kept: None };
        execute(&lowered, (read.as_slice(), written.as_slice()), stream, label)?;
    }
    Ok(())
}

/// Returns the addresses of a step, from those of the inputs, outputs and temporaries of the entire launch.
pub fn addresses(
    step: &Step,
    inputs: &[DevicePointer],
    outputs: &[DevicePointer],
    temporaries: &[DevicePointer],
) -> Addresses {
    let address = |place: Place, element: u64, dtype: DType| {
        let first = match place {
            Place::Input(number) => inputs[number],
            Place::Output(number) => outputs[number],
            Place::Temporary(number) => temporaries[number],
        };
        first.offset(element * dtype.size_bytes() as u64)
    };
    let body = &step.launch.body;
    let read = (step.inputs.iter().zip(&body.inputs))
        .map(|(&(place, element), input)| address(place, element, input.dtype));
    let written = (step.outputs.iter().zip(&body.outputs))
        .map(|(&(place, element), output)| address(place, element, output.dtype));
    (read.collect(), written.collect())
}

/// Returns memory for elements of a dtype.
fn allocated(stream: &Stream, dtype: DType, elements: u64, label: Label) -> Result<Buffer> {
    let bytes = elements
        .checked_mul(dtype.size_bytes() as u64)
        .ok_or_else(|| Error::invalid("the parts of a reduction have more elements than can be addressed"))?;
    Buffer::labelled(stream, bytes, label)
}
