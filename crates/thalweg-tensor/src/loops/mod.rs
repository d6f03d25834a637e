//! Loop operators: from an entry of the table and tensors to a launch, and the node that they record.

mod backward;
mod call;
mod kept;
mod launch;
mod resolved;
mod stages;

use smallvec::SmallVec;
use thalweg_ir::{Body, DType};
use thalweg_ops::{DTypeRule, ForwardBody, LoopOp, Space, forward, scalar_bits};
use thalweg_runtime::{Label, RangeOf, Result, Telling};

use self::launch::alignment_of;
use self::resolved::Extents;
use crate::destination;
use crate::tensor::{Tensor, Tensors, check_memory};

pub(crate) use self::backward::{LoopBackward, autograd, node};
pub(crate) use self::call::{LoopArguments, LoopCall, Points};
pub(crate) use self::launch::{LoopLaunch, widen};
pub(crate) use self::resolved::{Resolved, signature_of};

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
