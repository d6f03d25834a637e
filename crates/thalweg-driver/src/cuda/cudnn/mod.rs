//! Attention and convolution through cuDNN's graph interface, and recurrent networks.
//!
//! - `graph` is a graph of operations as data, `attention` the graphs of attention and its backward pass.
//! - `descriptors` turns a graph into the library's objects, and those into a *plan*: the first engine of its heuristics
//!   that supports the graph.
//!
//! Making a plan takes some tenths of a second, so it is kept under everything that it depends on: sizes, strides, format,
//! mask and device, but not addresses or the scale. A pass therefore always runs the same engine in a process, captured or
//! not. The failure to make a plan is kept, too.
//!
//! The library allows one thread at a time on a handle; one lock per device orders them.

mod attention;
mod convolution;
mod descriptors;
mod graph;
pub(in crate::cuda) mod recurrent;
#[cfg(test)]
mod tests;

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use thalweg_lock::Mutex;

use self::attention::{Recipe, Strides};
use self::convolution::{ConvolutionPlan, ConvolutionRecipe};
use self::descriptors::{Api, Descriptor};
use self::graph::Role;
use self::recurrent::RecurrentPlan;
use super::search::SearchEnvironment;
use super::sys::RawStream;
use super::workspace::{PART, workspace_of};
use crate::library::ElementFormat;
use crate::library::attention::{
    AttentionCall, AttentionGradients, AttentionMask, AttentionOperand, AttentionShape,
};
use crate::library::recurrent::RecurrentShape;
use crate::{Code, DevicePointer, Error, Result};

#[cfg(test)]
pub(super) use self::descriptors::{CudnnTable, HEURISTIC_MODES, NOT_SUPPORTED, attribute};

/// The oldest version that clears its sums itself.
const OLDEST: usize = 90_600;

/// Versions whose attention is known to be wrong, by the support surface of cudnn-frontend.
const BROKEN: [usize; 2] = [91_000, 91_001];

/// The last version whose backward pass reads beyond a sequence whose length is not a multiple of [`LENGTH_MULTIPLE`],
/// unless lengths are passed (cudnn-frontend does the same; pytorch/pytorch#169849).
const NEEDS_LENGTHS: usize = 91_500;
const LENGTH_MULTIPLE: u64 = 128;

/// The first version that accepts an infinite score for masked positions.
const TAKES_INFINITY: usize = 91_000;

/// The number of a device's plans at which its cache is emptied.
const PLANS: usize = 1024;

/// The plan of a pass, without addresses.
struct AttentionPlan {
    descriptor: Descriptor,
    /// The memory and the scalars that the graph names, and their ids.
    roles: Vec<Role>,
    ids: Vec<i64>,
    /// The offsets of our own scratch memory in the workspace, after the library's.
    scratch: Vec<(Role, u64)>,
    workspace_bytes: u64,
}

#[derive(Default)]
struct DeviceState {
    /// The library's handle, made in the device's context.
    handle: Option<usize>,
    plans: FxHashMap<Recipe, Result<Arc<AttentionPlan>>>,
    convolutions: FxHashMap<ConvolutionRecipe, Result<Arc<ConvolutionPlan>>>,
    networks: FxHashMap<RecurrentShape, Result<Arc<RecurrentPlan>>>,
}

/// The library, with its handles and plans.
pub(super) struct Cudnn {
    api: Arc<Api>,
    devices: Vec<Mutex<DeviceState>>,
}

fn describe(call: &AttentionCall) -> String {
    let AttentionShape { batch, heads, kv_heads, queries, keys, head_size, causal, format } = call.shape;
    let pass = if call.gradients.is_some() { "backward" } else { "forward" };
    let kind = if causal { "causal" } else { "full" };
    let mask = if call.mask.is_some() { " with a mask" } else { "" };
    format!(
        "{kind} attention{mask}, {pass}, {batch} × {heads} heads of {head_size} over {kv_heads} of keys and values, {queries} queries, \
         {keys} keys, element format {}",
        format.0
    )
}

/// Returns the strides of an operand for the library, or why they are not possible.
fn strides(
    name: &str,
    operand: &AttentionOperand,
    sizes: [u64; 4],
    is_written: bool,
) -> Result<Strides, String> {
    let address = operand.address.address();
    if !address.is_multiple_of(16) {
        return Err(format!("the address of {name}, {address:#x}, is not aligned to 16 bytes"));
    }
    let [_, heads, positions, head_size] = sizes;
    let contiguous = [heads * positions * head_size, positions * head_size, head_size];
    let mut strides = [0; 3];
    for (dimension, stride) in strides.iter_mut().enumerate() {
        // A dimension of one element has no next one, so its stride does not matter.
        let own = if sizes[dimension] == 1 { contiguous[dimension] } else { operand.strides[dimension] };
        if own == 0 && is_written {
            return Err(format!("{name} is written, and its elements would lie in one place"));
        }
        *stride = i64::try_from(own).ok().filter(|own| own % 8 == 0).ok_or_else(|| {
            format!("stride {own} of {name} is not a multiple of 8 elements, or more than 2^63 - 1")
        })?;
    }
    Ok(strides)
}

/// Returns the strides of a mask for the library, or why they are not possible.
fn mask_strides(AttentionMask { address, strides }: AttentionMask) -> Result<Strides, String> {
    let address = address.address();
    if !address.is_multiple_of(16) {
        return Err(format!("the address of the mask, {address:#x}, is not aligned to 16 bytes"));
    }
    match strides.iter().find(|stride| !stride.is_multiple_of(8) || i64::try_from(**stride).is_err()) {
        Some(stride) => {
            Err(format!("stride {stride} of the mask is not a multiple of 8 elements, or more than 2^63 - 1"))
        }
        None => Ok(strides.map(|stride| stride as i64)),
    }
}

impl Recipe {
    /// Creates the recipe of a call; the error is the reason why its sizes or strides are invalid.
    fn new(call: &AttentionCall, version: usize) -> Result<Self, String> {
        let AttentionShape { batch, heads, kv_heads, queries, keys, head_size, .. } = call.shape;
        let sizes = [batch, heads, kv_heads, queries, keys, head_size];
        if sizes.iter().any(|&size| size == 0 || size > i32::MAX as u64) {
            return Err("a size is 0, or more than 2^31 - 1".to_owned());
        }
        if heads % kv_heads != 0 {
            return Err(format!("{heads} heads do not divide evenly over {kv_heads}"));
        }
        let elements = [batch, heads, queries.max(keys), head_size]
            .into_iter()
            .try_fold(8_u64, |product, size| product.checked_mul(size));
        if elements.is_none_or(|bytes| i64::try_from(bytes).is_err()) {
            return Err("the operands are larger than any memory".to_owned());
        }
        let rows = [batch, heads, queries, head_size];
        let columns = [batch, kv_heads, keys, head_size];
        let is_backward = call.gradients.is_some();
        let gradients = call
            .gradients
            .map(|AttentionGradients { output, query, key, value }| {
                Ok::<_, String>([
                    strides("the output's gradient", &output, rows, false)?,
                    strides("the query's gradient", &query, rows, true)?,
                    strides("the key's gradient", &key, columns, true)?,
                    strides("the value's gradient", &value, columns, true)?,
                ])
            })
            .transpose()?;
        if !call.log_sum_exp.address().is_multiple_of(16) {
            return Err("the address of the logarithms is not aligned to 16 bytes".to_owned());
        }
        Ok(Self {
            shape: call.shape,
            query: strides("the query", &call.query, rows, false)?,
            key: strides("the key", &call.key, columns, false)?,
            value: strides("the value", &call.value, columns, false)?,
            mask: call.mask.map(mask_strides).transpose()?,
            output: strides("the output", &call.output, rows, !is_backward)?,
            gradients,
            deterministic: is_backward && call.deterministic,
            lengths: Self::reports_lengths(&call.shape, is_backward, version),
        })
    }

    /// Returns whether a version needs lengths that are passed in memory.
    const fn reports_lengths(shape: &AttentionShape, is_backward: bool, version: usize) -> bool {
        let whole =
            shape.keys.is_multiple_of(LENGTH_MULTIPLE) && shape.queries.is_multiple_of(LENGTH_MULTIPLE);
        is_backward && !whole && version <= NEEDS_LENGTHS
    }

    /// Returns the size of a role, if it is our own scratch memory.
    const fn scratch_bytes(&self, role: Role) -> Option<u64> {
        let AttentionShape { batch, heads, queries, head_size, .. } = self.shape;
        match role {
            Role::RowProducts => Some(4 * batch * heads * queries),
            Role::QuerySums => Some(4 * batch * heads * queries * head_size),
            Role::QueryLengths | Role::KeyLengths => Some(4 * batch),
            _ => None,
        }
    }
}

/// Returns the plan for a recipe, which is made at the first call. That a recipe is not supported is remembered, too; other
/// failures are not. When there are [`PLANS`] plans, all are dropped.
fn kept<R: Clone + Eq + Hash, P>(
    plans: &mut FxHashMap<R, Result<Arc<P>>>,
    recipe: &R,
    make: impl FnOnce() -> Result<P>,
) -> Result<Arc<P>> {
    if let Some(plan) = plans.get(recipe) {
        return plan.clone();
    }
    let plan = make().map(Arc::new);
    if plans.len() >= PLANS {
        plans.clear();
    }
    if plan.as_ref().is_ok() || plan.as_ref().is_err_and(Error::is_not_supported) {
        plans.insert(recipe.clone(), plan.clone());
    }
    plan
}

impl Cudnn {
    pub(super) fn load(environment: &SearchEnvironment, devices: usize) -> Result<Self> {
        let api = Api::load(environment)?;
        let version = api.version_text();
        if api.version < OLDEST || BROKEN.contains(&api.version) {
            let detail = format!(
                "cuDNN {version} is installed: attention and convolution want 9.6 or later, other than 9.10.0 and 9.10.1"
            );
            return Err(Error::new(Code::LibraryMissing, "cudnnGetVersion", detail));
        }
        Ok(Self { api, devices: (0..devices).map(|_| Mutex::default()).collect() })
    }

    fn recipe(&self, call: &AttentionCall, detail: impl Fn() -> String) -> Result<Recipe> {
        let name = "cudnnBackendExecute";
        if ![ElementFormat::R_16F, ElementFormat::R_16BF].contains(&call.shape.format) {
            let detail = format!("attention is of 16-bit floats: {}", detail());
            return Err(Error::new(Code::NotSupported, name, detail));
        }
        Recipe::new(call, self.api.version)
            .map_err(|why| Error::new(Code::InvalidValue, name, format!("{why}: {}", detail())))
    }

    /// Returns a device's handle, made at the first call.
    fn handle(&self, device: u32, state: &mut DeviceState) -> Result<usize> {
        match state.handle {
            Some(handle) => Ok(handle),
            None => Ok(*state.handle.insert(self.api.handle(device)?)),
        }
    }

    /// Returns the handle and the plan for a recipe, made at the first call.
    fn plan(
        &self,
        device: u32,
        state: &mut DeviceState,
        recipe: &Recipe,
    ) -> Result<(usize, Arc<AttentionPlan>)> {
        let handle = self.handle(device, state)?;
        let plan = kept(&mut state.plans, recipe, || self.make_plan(handle, recipe))?;
        Ok((handle, plan))
    }

    #[cold]
    fn make_plan(&self, handle: usize, recipe: &Recipe) -> Result<AttentionPlan> {
        let graph = recipe.graph();
        let (descriptor, library_bytes) = descriptors::plan(&self.api, handle, &graph)?;
        let (mut roles, mut ids, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        let mut workspace_bytes = library_bytes;
        for (index, tensor) in graph.tensors.iter().enumerate() {
            let Some(role) = tensor.role else { continue };
            roles.push(role);
            ids.push(descriptors::id(index));
            if let Some(bytes) = recipe.scratch_bytes(role) {
                let start = workspace_bytes.next_multiple_of(PART);
                scratch.push((role, start));
                workspace_bytes = start + bytes;
            }
        }
        Ok(AttentionPlan { descriptor, roles, ids, scratch, workspace_bytes })
    }

    /// Returns the bytes of scratch memory that a call needs. The device's context is current.
    pub(super) fn workspace(&self, device: u32, call: &AttentionCall) -> Result<u64> {
        let detail = || describe(call);
        let recipe = self.recipe(call, detail)?;
        let mut state = self.devices[device as usize].lock();
        let (_, plan) =
            self.plan(device, &mut state, &recipe).map_err(|error| error.with_detail(&detail()))?;
        Ok(plan.workspace_bytes)
    }

    /// Queues a pass. The device's context is current; `fill` queues a fill of a number of 32-bit words.
    pub(super) fn attention(
        &self,
        device: u32,
        stream: RawStream,
        call: &AttentionCall,
        fill: impl Fn(DevicePointer, u32, u64) -> Result<()>,
        label: impl Fn() -> String,
    ) -> Result<()> {
        let detail = || format!("{}, for {}", describe(call), label());
        let recipe = self.recipe(call, detail)?;
        let mut state = self.devices[device as usize].lock();
        let (handle, plan) =
            self.plan(device, &mut state, &recipe).map_err(|error| error.with_detail(&detail()))?;
        let workspace = workspace_of(call.workspace, plan.workspace_bytes).map_err(|why| {
            Error::new(Code::InvalidValue, "cudnnBackendExecute", format!("{why}: {}", detail()))
        })?;
        for &(role, start) in &plan.scratch {
            let length = match role {
                Role::QueryLengths => call.shape.queries,
                Role::KeyLengths => call.shape.keys,
                _ => continue,
            };
            // A length is less than 2^31, which the recipe has checked.
            fill(workspace.offset(start), length as u32, call.shape.batch)?;
        }
        let masked = if self.api.version < TAKES_INFINITY { f32::MIN } else { f32::NEG_INFINITY };
        let numbers = [call.scale, 1.0, masked];
        let pointers: Vec<u64> = plan
            .roles
            .iter()
            .map(|&role| match role {
                Role::Scale => (&raw const numbers[0]) as u64,
                Role::One => (&raw const numbers[1]) as u64,
                Role::Masked => (&raw const numbers[2]) as u64,
                _ => address_of(call, role).unwrap_or_else(|| {
                    let part = plan.scratch.iter().find(|(own, _)| *own == role);
                    workspace.offset(part.map_or(0, |(_, start)| *start)).address()
                }),
            })
            .collect();
        let bindings = (plan.ids.as_slice(), pointers.as_slice());
        // SAFETY: the lock is held, so only this thread uses the handle and the device's plans. The scalars live until the
        // call returns; the other addresses are used by kernels only, and the contract leaves those to the caller.
        let outcome =
            unsafe { self.api.execute(handle, stream, &plan.descriptor, bindings, workspace.address()) };
        outcome.map_err(|error| error.with_detail(&detail()))
    }
}

/// Returns the address that a call passes for a role; `None` for scratch memory in the workspace.
fn address_of(call: &AttentionCall, role: Role) -> Option<u64> {
    let gradients = call.gradients;
    let address = match role {
        Role::Query => call.query.address,
        Role::Key => call.key.address,
        Role::Value => call.value.address,
        Role::Mask => call.mask?.address,
        Role::Output => call.output.address,
        Role::LogSumExp => call.log_sum_exp,
        Role::OutputGradient => gradients?.output.address,
        Role::QueryGradient => gradients?.query.address,
        Role::KeyGradient => gradients?.key.address,
        Role::ValueGradient => gradients?.value.address,
        _ => return None,
    };
    Some(address.address())
}
