//! Recurrent networks through cuDNN's own interface for them, which takes descriptors of the network, of its sequences and of its
//! states.
//!
//! The library decides where the parts of a network lie in the buffer of weights. Its answer is checked: the gates of a part
//! must follow one another in the order of [`RecurrentKind`]. Between layers nothing is dropped here; callers that drop elements
//! make one call per layer.
//!
//! This module and its parent use each other: the parent keeps the plans of networks, which are made here with its handle.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::descriptors::{Api, CudnnTable};
use super::{Cudnn, DeviceState, kept};
use crate::cuda::sys::RawStream;
use crate::cuda::table::CallStatus;
use crate::cuda::workspace::workspace_of;
use crate::library::ElementFormat;
use crate::library::recurrent::{
    RecurrentCall, RecurrentKind, RecurrentMemory, RecurrentPart, RecurrentPass, RecurrentShape,
    RecurrentStates,
};
use crate::{Code, DevicePointer, Error, Result};

const NAME: &str = "cudnnSetRNNDescriptor_v8";

/// The algorithm that runs any network (`CUDNN_RNN_ALGO_STANDARD`).
pub(in crate::cuda) const STANDARD: u32 = 0;
/// One kernel over all steps that keeps the weights on the chip (`CUDNN_RNN_ALGO_PERSIST_STATIC`).
pub(in crate::cuda) const PERSISTENT: u32 = 1;
/// One kernel over all steps that keeps the weights of few features in registers (`CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H`).
pub(in crate::cuda) const PERSISTENT_SMALL: u32 = 3;
/// No biases, and both of them (`cudnnRNNBiasMode_t`).
pub(in crate::cuda) const BIASES: [u32; 2] = [0, 2];
/// The input is multiplied by a weight (`CUDNN_LINEAR_INPUT`).
pub(in crate::cuda) const LINEAR_INPUT: u32 = 0;
/// Math types (`cudnnMathType_t`): the library's choice, tensor cores, and no tensor cores.
pub(in crate::cuda) const MATH: [u32; 3] = [0, 1, 3];
/// Passes (`cudnnForwardMode_t`): inference and training.
pub(in crate::cuda) const FORWARD: [u32; 2] = [0, 1];
/// Gradients are added to those in memory (`CUDNN_WGRAD_MODE_ADD`), the only mode that the library has.
pub(in crate::cuda) const ADD: u32 = 0;
/// Layouts of rows (`cudnnRNNDataLayout_t`): sequences of one length, and packed ones.
pub(in crate::cuda) const LAYOUTS: [u32; 2] = [0, 1];
/// Flags (`auxFlags`): rows of packed sequences, and of sequences of one length (`CUDNN_RNN_PADDED_IO_ENABLED`).
const PADDED: [u32; 2] = [0, 1];
/// The number under which the library knows the weight of a projection.
const PROJECTION: i32 = 8;

/// Returns the library's number of a kind (`cudnnRNNMode_t`).
pub(in crate::cuda) const fn mode(kind: RecurrentKind) -> u32 {
    match kind {
        RecurrentKind::Relu => 0,
        RecurrentKind::Tanh => 1,
        RecurrentKind::LongShortTerm => 2,
        RecurrentKind::Gated => 3,
    }
}

/// Returns the library's number of a format (`cudnnDataType_t`).
pub(in crate::cuda) const fn data_type(format: ElementFormat) -> Option<u32> {
    match format {
        ElementFormat::R_32F => Some(0),
        ElementFormat::R_64F => Some(1),
        ElementFormat::R_16F => Some(2),
        ElementFormat::R_16BF => Some(9),
        _ => None,
    }
}

/// Returns the algorithm for a network. Those of one kernel take sequences of one length; their limits, of both passes, and where
/// they are faster, are known from PyTorch's use of the library.
fn algorithm(shape: &RecurrentShape) -> u32 {
    let RecurrentShape { kind, inputs, hidden, layers, bidirectional, format, .. } = *shape;
    let is_even = shape.lengths.first() == shape.lengths.last();
    if shape.projected > 0 || !is_even || format == ElementFormat::R_64F {
        return STANDARD;
    }
    let is_simple = matches!(kind, RecurrentKind::Relu | RecurrentKind::Tanh);
    if hidden <= if is_simple { 256 } else { 128 } {
        return PERSISTENT_SMALL;
    }
    let has_blocks = hidden <= 1024 && hidden.is_multiple_of(128) && inputs.is_multiple_of(128);
    let sequences = shape.sequences();
    let is_one_layer = layers == 1 && !bidirectional;
    let is_few = sequences.is_multiple_of(8) && sequences <= 128;
    let is_ahead = match kind {
        RecurrentKind::Gated => false,
        RecurrentKind::LongShortTerm => is_few,
        RecurrentKind::Relu | RecurrentKind::Tanh => is_few && (sequences < 96 || hidden < 896),
    };
    match format == ElementFormat::R_16F && is_one_layer && has_blocks && is_ahead {
        true => PERSISTENT,
        false => STANDARD,
    }
}

/// An object of the library that is destroyed when it is dropped.
struct Owned {
    api: Arc<Api>,
    raw: usize,
    destroy: unsafe fn(&CudnnTable, usize) -> CallStatus,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `raw` is an object of the kind that `destroy` destroys, and this is its only owner.
        let _ = unsafe { (self.destroy)(&self.api.table, self.raw) };
    }
}

impl Owned {
    fn new(
        api: &Arc<Api>,
        create: unsafe fn(&CudnnTable, *mut usize) -> CallStatus,
        destroy: unsafe fn(&CudnnTable, usize) -> CallStatus,
    ) -> Result<Self> {
        let mut raw = 0_usize;
        // SAFETY: the function writes one handle.
        let outcome = unsafe { create(&api.table, &raw mut raw) };
        api.check(outcome, || "a descriptor of a recurrent network".to_owned())?;
        Ok(Self { api: Arc::clone(api), raw, destroy })
    }

    fn tensor(api: &Arc<Api>) -> Result<Self> {
        Self::new(api, CudnnTable::tensor_create, CudnnTable::tensor_destroy)
    }
}

/// The library's objects for a shape, and the memory that its calls need.
pub(super) struct RecurrentPlan {
    network: Owned,
    /// Kept alive for `network`, which refers to it.
    _dropout: Owned,
    input: Owned,
    output: Owned,
    hidden: Owned,
    cell: Owned,
    weight_bytes: usize,
    memory: RecurrentMemory,
}

/// Returns a size of a shape in the library's type. It fits, which [`RecurrentShape::fault`] has checked.
fn number(size: u64) -> i32 {
    size as i32
}

fn describe(shape: &RecurrentShape) -> String {
    let RecurrentShape { kind, inputs, hidden, projected, layers, bidirectional, has_biases, format, .. } =
        shape;
    format!(
        "a recurrent network, {kind:?}, {layers} layers of {hidden} from {inputs} features, projected to {projected} (0: not), \
         {} directions, {} biases, {} sequences of {} rows, element format {}",
        1 + u8::from(*bidirectional),
        if *has_biases { "with" } else { "without" },
        shape.sequences(),
        shape.rows(),
        format.0
    )
}

/// A builder of a plan.
struct Maker<'a> {
    api: &'a Arc<Api>,
    handle: usize,
    shape: &'a RecurrentShape,
    data_type: u32,
}

impl Maker<'_> {
    /// Returns the description of no dropout.
    fn dropout(&self) -> Result<Owned> {
        let dropout = Owned::new(self.api, CudnnTable::dropout_create, CudnnTable::dropout_destroy)?;
        // SAFETY: handle and descriptor are alive; without dropout there are no states.
        let outcome = unsafe { self.api.table.dropout_set(dropout.raw, self.handle, 0.0, null_mut(), 0, 0) };
        self.api.check(outcome, || "no dropout".to_owned())?;
        Ok(dropout)
    }

    fn is_even(&self) -> bool {
        self.shape.lengths.first() == self.shape.lengths.last()
    }

    fn network(&self, dropout: &Owned) -> Result<Owned> {
        let shape = self.shape;
        let network = Owned::new(self.api, CudnnTable::network_create, CudnnTable::network_destroy)?;
        let math = match shape.format {
            ElementFormat::R_16F | ElementFormat::R_16BF => MATH[1],
            ElementFormat::R_32F if !shape.allow_tf32 => MATH[2],
            _ => MATH[0],
        };
        // Products of 16-bit floats are added up in 32 bits.
        let precision = u32::from(shape.format == ElementFormat::R_64F);
        // SAFETY: both descriptors are alive.
        let outcome = unsafe {
            self.api.table.network_set(
                network.raw,
                algorithm(shape),
                mode(shape.kind),
                BIASES[usize::from(shape.has_biases)],
                u32::from(shape.bidirectional),
                LINEAR_INPUT,
                self.data_type,
                precision,
                math,
                number(shape.inputs),
                number(shape.hidden),
                number(if shape.projected > 0 { shape.projected } else { shape.hidden }),
                number(shape.layers),
                dropout.raw,
                PADDED[usize::from(self.is_even())],
            )
        };
        self.api.check(outcome, || "the network".to_owned())?;
        Ok(network)
    }

    /// Returns the description of the rows of all sequences, each of some features.
    fn rows(&self, features: u64) -> Result<Owned> {
        let data = Owned::new(self.api, CudnnTable::rows_create, CudnnTable::rows_destroy)?;
        let lengths: Vec<c_int> =
            self.shape.lengths.iter().map(|&length| number(u64::from(length))).collect();
        let (layout, sequences) = (LAYOUTS[usize::from(!self.is_even())], number(self.shape.sequences()));
        let mut padding = [0_u64; 1];
        // SAFETY: the descriptor is alive; the lengths, one for each sequence, and the number for padding, of at most 8 bytes,
        // are read before the call returns.
        let outcome = unsafe {
            self.api.table.rows_set(
                data.raw,
                self.data_type,
                layout,
                lengths[0],
                sequences,
                number(features),
                lengths.as_ptr(),
                padding.as_mut_ptr().cast::<c_void>(),
            )
        };
        self.api.check(outcome, || format!("rows of {features} features"))?;
        Ok(data)
    }

    /// Returns the description of states with some features.
    fn states(&self, features: u64) -> Result<Owned> {
        let layers = number(self.shape.layers * self.shape.directions());
        let sizes = [layers, number(self.shape.sequences()), number(features)];
        let strides = [sizes[1] * sizes[2], sizes[2], 1];
        let states = Owned::tensor(self.api)?;
        // SAFETY: the descriptor is alive; three sizes and strides are read before the call returns.
        let outcome = unsafe {
            self.api.table.tensor_set(states.raw, self.data_type, 3, sizes.as_ptr(), strides.as_ptr())
        };
        self.api.check(outcome, || format!("states of {features} features"))?;
        Ok(states)
    }

    fn weight_bytes(&self, network: &Owned) -> Result<usize> {
        let mut bytes = 0_usize;
        // SAFETY: handle and descriptor are alive; writes one number.
        let outcome = unsafe { self.api.table.weight_bytes(self.handle, network.raw, &raw mut bytes) };
        self.api.check(outcome, || "the size of the weights".to_owned())?;
        Ok(bytes)
    }

    /// Returns workspace and reserve, in bytes.
    fn room(&self, network: &Owned, input: &Owned) -> Result<[u64; 2]> {
        let (mut most, mut reserve) = (0, 0);
        for mode in FORWARD {
            let (mut workspace, mut kept) = (0_usize, 0_usize);
            // SAFETY: the handle and both descriptors are alive; writes two numbers.
            let outcome = unsafe {
                let (workspace, kept) = (&raw mut workspace, &raw mut kept);
                self.api.table.room(self.handle, network.raw, mode, input.raw, workspace, kept)
            };
            self.api.check(outcome, || "the size of the workspace".to_owned())?;
            most = most.max(workspace as u64);
            reserve = kept as u64;
        }
        Ok([most, reserve])
    }

    /// Returns the offsets, in elements, of the matrix and of the bias that the library knows under a number; `None` for one that
    /// it does not have.
    fn offsets(&self, network: &Owned, bytes: usize, layer: i32, place: i32) -> Result<[Option<u64>; 2]> {
        /// An address at which the library may believe the weights to be. It computes with it, and reads nothing there.
        const BASE: u64 = 1 << 32;
        let (matrix, bias) = (Owned::tensor(self.api)?, Owned::tensor(self.api)?);
        let mut found = [0_u64; 2];
        let [of_matrix, of_bias] = &mut found;
        // SAFETY: the handle and the descriptors are alive; writes two addresses, which are only compared here.
        let outcome = unsafe {
            self.api.table.weight_part(
                self.handle,
                network.raw,
                layer,
                bytes,
                BASE,
                place,
                matrix.raw,
                of_matrix,
                bias.raw,
                of_bias,
            )
        };
        self.api.check(outcome, || format!("part {place} of layer {layer} of the weights"))?;
        let width = self.shape.format.bytes().unwrap_or(1);
        Ok(found.map(|address| address.checked_sub(BASE).map(|offset| offset / width)))
    }

    /// Returns the start of a part whose gates follow one another, and of their biases.
    fn part(
        &self,
        (network, bytes): (&Owned, usize),
        layer: i32,
        first: u64,
        gate_elements: u64,
    ) -> Result<[Option<u64>; 2]> {
        let gates = self.shape.kind.gates();
        let start = self.offsets(network, bytes, layer, number(first))?;
        for gate in 1..gates {
            let found = self.offsets(network, bytes, layer, number(first + gate))?;
            let steps = [gate_elements, self.shape.hidden];
            for ((start, found), step) in start.iter().zip(found).zip(steps) {
                if start.map(|start| start + gate * step) != found {
                    let detail = format!("gates {first} to {} do not follow one another", first + gate);
                    return Err(Error::new(Code::NotSupported, "cudnnGetRNNWeightParams", detail));
                }
            }
        }
        Ok(start)
    }

    fn parts(&self, network: &Owned, bytes: usize) -> Result<Vec<RecurrentPart>> {
        let shape = self.shape;
        let missing = || {
            Error::new(
                Code::NotSupported,
                "cudnnGetRNNWeightParams",
                "a part of the weights is missing".to_owned(),
            )
        };
        let mut parts = Vec::new();
        for place in 0..shape.layers * shape.directions() {
            let layer = number(place);
            let within = (network, bytes);
            let inputs = shape.inputs_of(place / shape.directions());
            let input = self.part(within, layer, 0, shape.hidden * inputs)?;
            let hidden = self.part(within, layer, shape.kind.gates(), shape.hidden * shape.outputs())?;
            let biases = match shape.has_biases {
                true => Some([input[1].ok_or_else(missing)?, hidden[1].ok_or_else(missing)?]),
                false => None,
            };
            let projection = match shape.projected {
                0 => None,
                _ => Some(self.offsets(network, bytes, layer, PROJECTION)?[0].ok_or_else(missing)?),
            };
            parts.push(RecurrentPart {
                of_input: input[0].ok_or_else(missing)?,
                of_hidden: hidden[0].ok_or_else(missing)?,
                biases,
                projection,
            });
        }
        Ok(parts)
    }

    fn plan(&self) -> Result<RecurrentPlan> {
        let shape = self.shape;
        let dropout = self.dropout()?;
        let network = self.network(&dropout)?;
        let input = self.rows(shape.inputs)?;
        let output = self.rows(shape.outputs() * shape.directions())?;
        let (hidden, cell) = (self.states(shape.outputs())?, self.states(shape.hidden)?);
        let weight_bytes = self.weight_bytes(&network)?;
        let [workspace_bytes, reserve_bytes] = self.room(&network, &input)?;
        let parts = self.parts(&network, weight_bytes)?;
        let weight_elements = weight_bytes as u64 / shape.format.bytes().unwrap_or(1);
        let memory = RecurrentMemory { weight_elements, parts, reserve_bytes, workspace_bytes };
        Ok(RecurrentPlan { network, _dropout: dropout, input, output, hidden, cell, weight_bytes, memory })
    }
}

/// Returns the addresses of hidden states and cells; 0 for those that the call does not have.
fn addresses(states: Option<RecurrentStates>) -> [u64; 2] {
    let hidden = states.map_or(0, |states| states.hidden.address());
    [hidden, states.and_then(|states| states.cell).map_or(0, DevicePointer::address)]
}

impl Cudnn {
    fn recurrent_plan(
        &self,
        device: u32,
        state: &mut DeviceState,
        shape: &RecurrentShape,
    ) -> Result<(usize, Arc<RecurrentPlan>)> {
        if let Some(fault) = shape.fault() {
            return Err(Error::new(Code::InvalidValue, NAME, fault));
        }
        let Some(data_type) = data_type(shape.format) else {
            let detail = format!("elements of format {} are not floats of the library", shape.format.0);
            return Err(Error::new(Code::NotSupported, NAME, detail));
        };
        let handle = self.handle(device, state)?;
        let plan =
            kept(&mut state.networks, shape, || Maker { api: &self.api, handle, shape, data_type }.plan())?;
        Ok((handle, plan))
    }

    /// Returns the layout of a network's weights, and the memory that its passes need. The device's context is current.
    pub(in crate::cuda) fn recurrent_memory(
        &self,
        device: u32,
        shape: &RecurrentShape,
    ) -> Result<RecurrentMemory> {
        let mut state = self.devices[device as usize].lock();
        let (_, plan) = self
            .recurrent_plan(device, &mut state, shape)
            .map_err(|error| error.with_detail(&describe(shape)))?;
        Ok(plan.memory.clone())
    }

    /// Queues a pass of a recurrent network. The device's context is current.
    pub(in crate::cuda) fn recurrent(
        &self,
        device: u32,
        stream: RawStream,
        call: &RecurrentCall,
        label: impl Fn() -> String,
    ) -> Result<()> {
        let detail = || format!("{}, for {}", describe(&call.shape), label());
        let mut state = self.devices[device as usize].lock();
        let (handle, plan) = self
            .recurrent_plan(device, &mut state, &call.shape)
            .map_err(|error| error.with_detail(&detail()))?;
        let refuse = |why: String| Error::new(Code::InvalidValue, NAME, format!("{why}: {}", detail()));
        let workspace = workspace_of(call.workspace, plan.memory.workspace_bytes).map_err(refuse)?;
        let needs_reserve = !matches!(call.pass, RecurrentPass::Forward { .. });
        let reserve = match call.reserve {
            Some((_, bytes)) if bytes < plan.memory.reserve_bytes => {
                let needed = plan.memory.reserve_bytes;
                return Err(refuse(format!("a reserve of {bytes} bytes; {needed} are needed")));
            }
            None if needs_reserve => return Err(refuse("a backward pass has a reserve".to_owned())),
            given => given.map(|(start, _)| start.address()),
        };
        // SAFETY: the handle and the stream are alive.
        let set = unsafe { self.api.set_stream(handle, stream) };
        self.api.check(set, || "the stream".to_owned()).map_err(|error| error.with_detail(&detail()))?;
        let run = Run {
            table: &self.api.table,
            handle,
            plan: &plan,
            call,
            workspace: workspace.address(),
            reserve: reserve.unwrap_or(0),
        };
        // SAFETY: the lock is held, so only this thread uses the handle and the device's plans. Workspace and reserve have the
        // sizes of the plan; the addresses are used by kernels only, and the contract leaves those to the caller.
        let outcome = unsafe {
            match call.pass {
                RecurrentPass::Forward { last } => run.forward(last),
                RecurrentPass::Backward { output, last, input, first } => {
                    run.backward([output, input].map(DevicePointer::address), last, first)
                }
                RecurrentPass::Weights { weights } => run.weights(weights.address()),
            }
        };
        self.api.check(outcome, || "the pass".to_owned()).map_err(|error| error.with_detail(&detail()))
    }
}

/// A pass with everything that the library's calls need.
struct Run<'r> {
    table: &'r CudnnTable,
    handle: usize,
    plan: &'r RecurrentPlan,
    call: &'r RecurrentCall,
    workspace: u64,
    /// 0 for a forward pass that keeps nothing.
    reserve: u64,
}

/// The lengths of sequences on the device: the library wants none, since they are part of the descriptions.
const NO_LENGTHS: u64 = 0;

impl Run<'_> {
    /// Returns the addresses of input, output and weights.
    fn operands(&self) -> [u64; 3] {
        [self.call.input, self.call.output, self.call.weights].map(DevicePointer::address)
    }

    /// Returns the sizes of workspace and reserve.
    fn sizes(&self) -> [usize; 2] {
        let reserve = if self.reserve == 0 { 0 } else { self.plan.memory.reserve_bytes };
        [self.plan.memory.workspace_bytes, reserve].map(|bytes| bytes as usize)
    }

    /// Queues the forward pass.
    ///
    /// # Safety
    /// No other thread uses the handle or the plan, which belong to each other; workspace and reserve are as long as the plan
    /// says. The same holds for the other passes.
    #[rustfmt::skip]
    unsafe fn forward(&self, last: RecurrentStates) -> CallStatus {
        let Self { table, handle, plan, workspace, reserve, .. } = *self;
        let ([x, y, weights], [room, kept]) = (self.operands(), self.sizes());
        let ([hx, cx], [hy, cy]) = (addresses(Some(self.call.first)), addresses(Some(last)));
        let mode = FORWARD[usize::from(reserve != 0)];
        // SAFETY: the caller's promise.
        unsafe {
            table.forward(
                handle, plan.network.raw, mode, NO_LENGTHS, plan.input.raw, x, plan.output.raw, y, plan.hidden.raw, hx, hy,
                plan.cell.raw, cx, cy, plan.weight_bytes, weights, room, workspace, kept, reserve,
            )
        }
    }

    /// Queues the pass of the gradients of input and first states.
    ///
    /// # Safety
    /// That of the forward pass.
    #[rustfmt::skip]
    unsafe fn backward(
        &self,
        [dy, dx]: [u64; 2],
        last: Option<RecurrentStates>,
        first: RecurrentStates,
    ) -> CallStatus {
        let Self { table, handle, plan, workspace, reserve, .. } = *self;
        let ([_, y, weights], [room, kept]) = (self.operands(), self.sizes());
        let [hx, cx] = addresses(Some(self.call.first));
        let ([dhy, dcy], [dhx, dcx]) = (addresses(last), addresses(Some(first)));
        // SAFETY: the caller's promise.
        unsafe {
            table.backward(
                handle, plan.network.raw, NO_LENGTHS, plan.output.raw, y, dy, plan.input.raw, dx, plan.hidden.raw, hx, dhy, dhx,
                plan.cell.raw, cx, dcy, dcx, plan.weight_bytes, weights, room, workspace, kept, reserve,
            )
        }
    }

    /// Queues the pass of the weights' gradients.
    ///
    /// # Safety
    /// That of the forward pass.
    #[rustfmt::skip]
    unsafe fn weights(&self, gradient: u64) -> CallStatus {
        let Self { table, handle, plan, workspace, reserve, .. } = *self;
        let ([x, y, _], [room, kept]) = (self.operands(), self.sizes());
        let [hx, _] = addresses(Some(self.call.first));
        // SAFETY: the caller's promise.
        unsafe {
            table.backward_weights(
                handle, plan.network.raw, ADD, NO_LENGTHS, plan.input.raw, x, plan.hidden.raw, hx, plan.output.raw, y,
                plan.weight_bytes, gradient, room, workspace, kept, reserve,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kernel_runs_networks_of_few_features_and_even_sequences() {
        let shape = RecurrentShape {
            kind: RecurrentKind::LongShortTerm,
            inputs: 256,
            hidden: 128,
            projected: 0,
            layers: 2,
            bidirectional: true,
            has_biases: true,
            lengths: vec![5; 64].into(),
            format: ElementFormat::R_32F,
            allow_tf32: true,
        };
        assert_eq!(algorithm(&shape), PERSISTENT_SMALL);
        for other in [
            RecurrentShape { hidden: 129, ..shape.clone() },
            RecurrentShape { projected: 8, ..shape.clone() },
            RecurrentShape { lengths: vec![5, 4].into(), ..shape.clone() },
            RecurrentShape { format: ElementFormat::R_64F, ..shape.clone() },
        ] {
            assert_eq!(algorithm(&other), STANDARD, "{other:?}");
        }
        let short = RecurrentShape {
            hidden: 768,
            layers: 1,
            bidirectional: false,
            format: ElementFormat::R_16F,
            ..shape.clone()
        };
        assert_eq!(algorithm(&short), PERSISTENT);
        assert_eq!(algorithm(&RecurrentShape { kind: RecurrentKind::Gated, ..short.clone() }), STANDARD);
        assert_eq!(algorithm(&RecurrentShape { inputs: 40, ..short }), STANDARD);
    }
}
