//! Autocast (`torch.autocast`): a region whose operators choose the dtype that they compute in.
//!
//! Products and convolutions cast their tensors to a 16-bit dtype; functions that would lose too much precision there cast theirs
//! to f32; operators of several tensors cast to the widest of their dtypes. Each is a kernel under [`DispatchKey::Autocast`],
//! above autograd, so that casts are recorded and gradients arrive in the dtype of the leaves. Each operator's entry specifies
//! its rule ([`Autocast`]), following PyTorch's lists for CUDA; in-place and `out=` forms compute in the dtypes that they are
//! passed.
//!
//! A leaf that requires a gradient, such as a weight, is cast once per region: the cast is kept until the outermost region ends.
//! Operators in a row that read the same result share its cast (`last`).
//! The cast of a parameter of a fused optimizer is kept across regions, and the optimizer's launch updates it together with the
//! parameter ([`KeptCast`]). Backward passes cast nothing: their operators compute in the dtypes of the forward pass, unless a
//! function in the pass opens a region. The gradient of such a leaf is a product or a sum computed in f32, where PyTorch rounds
//! it to 16 bits and casts it back. It is rounded here too if a hook, anomaly mode or a pass that is itself recorded can observe
//! it.

mod kept;
mod last;

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_ops::Autocast;
use thalweg_runtime::{Device, Error, Result, invalid, options};

use crate::autograd::{Backward, Gradients, is_grad_enabled, no_grad, record};
use crate::caller::{CallLocation, outermost};
use crate::dispatch::{
    Argument, Call, DispatchKey, ExcludeKeyGuard, KernelFunction, is_excluded, set_excluded, set_included,
};
use crate::scoped::{Guard, Replaced, nothing_replaced};
use crate::tensor::{Tensor, Tensors};

pub use kept::KeptCast;

options! {
    /// The options of a region, with PyTorch's defaults.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct AutocastOptions {
        /// The 16-bit dtype of products and convolutions.
        pub dtype: DType = DType::F16,
        /// Whether operators cast. A region with `false` may be nested in one with `true`.
        pub enabled: bool = true,
        /// Whether casts of leaves are kept until the outermost region ends.
        pub cache_enabled: bool = true,
    }
}

thread_local! {
    /// The options of the innermost region of this thread.
    static CURRENT: Cell<Option<AutocastOptions>> = const { Cell::new(None) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// For each region of this thread, the state outside it.
    static OUTSIDE: Replaced<Outside> = const { nothing_replaced() };
    /// Casts of leaves, by the leaf and the dtype. The leaf is kept alive too, so that its address is not reused.
    static CASTS: RefCell<FxHashMap<(usize, DType), CastOfLeaf>> = RefCell::default();
}

/// Runs a function in a region that casts to `dtype` (`torch.autocast("cuda", dtype)`): bf16 or f16.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the dtype is neither of these; and those of the function.
#[track_caller]
pub fn autocast<T>(dtype: DType, function: impl FnOnce() -> Result<T>) -> Result<T> {
    let options = AutocastOptions { dtype, ..AutocastOptions::default() };
    let _region = Region::enter_at(options, Location::caller())?;
    function()
}

/// Runs a function in a region like that of [`autocast`], with options.
#[track_caller]
pub fn autocast_with<T>(options: AutocastOptions, function: impl FnOnce() -> Result<T>) -> Result<T> {
    let _region = Region::enter_at(options, Location::caller())?;
    function()
}

/// Returns the options of the innermost region of this thread.
pub(crate) fn current_options() -> Option<AutocastOptions> {
    CURRENT.get()
}

/// Runs a function in a region with these options, or directly if there are none.
pub(crate) fn autocast_again<T>(
    options: Option<AutocastOptions>,
    function: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(options) = options else { return function() };
    autocast_with(options, function)
}

/// Returns whether the innermost region keeps casts of leaves (`torch.is_autocast_cache_enabled`).
pub fn is_autocast_cache_enabled() -> bool {
    CURRENT.get().unwrap_or_default().cache_enabled
}

/// Returns whether operators of this thread cast.
pub fn is_autocast_enabled() -> bool {
    CURRENT.get().is_some_and(|options| options.enabled)
}

/// Discards the casts that this thread keeps. Call it after a leaf was written inside a region.
pub fn clear_autocast_cache() {
    last::clear();
    let _dropped_outside = CASTS.try_with(RefCell::take);
}

/// The region that the forward pass of a custom function was in, for its backward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForwardRegion(AutocastOptions);

/// Runs the forward pass of a custom function ([`record_function`](crate::autograd::record_function)) and returns its result and
/// the region for [`custom_bwd`] (`torch.amp.custom_fwd`). Without `cast_inputs` the function is passed the inputs unchanged and
/// computes in the region that it is called in. With it, inside a region, inputs of floating-point dtypes other than f64 are cast
/// to that dtype, and the function and its backward pass run outside any region.
pub fn custom_fwd<T>(
    cast_inputs: Option<DType>,
    inputs: &[&Tensor],
    function: impl FnOnce(&[Tensor]) -> Result<T>,
) -> Result<(T, ForwardRegion)> {
    let options = CURRENT.get().filter(|options| options.enabled);
    let region = |enabled: bool| ForwardRegion(AutocastOptions { enabled, ..options.unwrap_or_default() });
    let Some(dtype) = cast_inputs.filter(|_| options.is_some()) else {
        let inputs: Tensors = inputs.iter().map(|&input| input.clone()).collect();
        return Ok((function(&inputs)?, region(options.is_some())));
    };
    autocast_with(region(false).0, || {
        let cast =
            |input: &&Tensor| if is_eligible(input) { input.to_dtype(dtype) } else { Ok((*input).clone()) };
        let inputs = inputs.iter().map(cast).collect::<Result<Tensors>>()?;
        Ok((function(&inputs)?, region(false)))
    })
}

/// Runs the backward pass of a custom function in the region of its forward pass (`torch.amp.custom_bwd`).
pub fn custom_bwd<T>(region: ForwardRegion, function: impl FnOnce() -> Result<T>) -> Result<T> {
    autocast_with(region.0, function)
}

/// An open region, for code that cannot nest functions as [`autocast`] does. Dropping it ends the region. Regions may be dropped
/// in any order.
#[must_use = "the region lasts only while this lives"]
pub struct Region {
    guard: Guard<Outside>,
}

/// The options outside a region, and whether calls included and excluded the key.
type Outside = (Option<AutocastOptions>, bool, bool);

impl Region {
    /// Opens a region on this thread.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the dtype is not float16, bfloat16 or float32.
    #[track_caller]
    pub fn enter(options: AutocastOptions) -> Result<Self> {
        Self::enter_at(options, Location::caller())
    }

    fn enter_at(options: AutocastOptions, location: CallLocation) -> Result<Self> {
        if !matches!(options.dtype, DType::F16 | DType::Bf16 | DType::F32) {
            let text = format!("autocast computes in float16, bfloat16 or float32, not in {}", options.dtype);
            return Err(Error::invalid(text).at(outermost(location)));
        }
        DEPTH.set(DEPTH.get() + 1);
        // A function of a backward pass, where the key is excluded, may open a region too.
        let key = DispatchKey::Autocast;
        let was_excluded = set_excluded(key, is_excluded(key) && !options.enabled);
        let was_included = set_included(key, options.enabled);
        let outside = (CURRENT.replace(Some(options)), was_included, was_excluded);
        Ok(Self { guard: Guard::new(&OUTSIDE, outside) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some((former, was_included, was_excluded)) = self.guard.end() {
            CURRENT.set(former);
            set_included(DispatchKey::Autocast, was_included);
            set_excluded(DispatchKey::Autocast, was_excluded);
        }
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            clear_autocast_cache();
        }
    }
}

/// Returns the kernel that is called for an operator in a region. Returns `None` if it needs none: the operator computes in the
/// dtypes that it is passed and calls no others, or it is a composite whose operators cast.
pub(crate) fn kernel(autocast: Autocast, is_composite: bool) -> Option<KernelFunction> {
    match autocast {
        Autocast::Parts => return None,
        Autocast::Unchanged if !is_composite => return None,
        _ => {}
    }
    Some(Arc::new(move |call| {
        let Some(options) = CURRENT.get() else { return call.redispatch() };
        match autocast {
            Autocast::Unchanged | Autocast::Parts => {
                let _without = ExcludeKeyGuard::new(DispatchKey::Autocast);
                call.redispatch()
            }
            Autocast::Lower => run_in(call, options.dtype, options),
            Autocast::Full => run_in(call, DType::F32, options),
            Autocast::Widest => match widest(call.tensors) {
                Some(dtype) => run_in(call, dtype, options),
                None => call.redispatch(),
            },
            Autocast::Rounded => run_rounded(call, options),
            Autocast::Banned => Err(invalid!(
                "torch.nn.functional.{} and torch.nn.BCELoss are unsafe to autocast: the gradient overflows in float16. Many models use a \
                 sigmoid layer right before the binary cross entropy layer. In this case, combine the two layers using \
                 torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are safe to autocast, or call it \
                 in a region with `enabled: false`.",
                call.operator.base_name()
            )),
        }
    }))
}

/// Runs a call whose result has the dtype of the region, unless another dtype is requested.
fn run_rounded(call: &Call<'_>, options: AutocastOptions) -> Result<Tensors> {
    let _without = ExcludeKeyGuard::new(DispatchKey::Autocast);
    let mut arguments: SmallVec<[Argument<'_>; 8]> = call.arguments.iter().copied().collect();
    if let (Some(last @ Argument::None), DType::F32) = (arguments.last_mut(), call.tensors[0].dtype()) {
        *last = Argument::DType(options.dtype);
    }
    call.operator.call(&arguments, Some(call.device), call.label)
}

/// Runs a call with its tensors cast to a dtype, without autocast.
fn run_in(call: &Call<'_>, dtype: DType, options: AutocastOptions) -> Result<Tensors> {
    let cast = {
        let _casts_are_not_cast = ExcludeKeyGuard::new(DispatchKey::Autocast);
        call.tensors
            .iter()
            .map(|tensor| cast(tensor, dtype, options))
            .collect::<Result<SmallVec<[Tensor; 6]>>>()?
    };
    // The casts are in the order of the arguments.
    let mut rest = cast.as_slice();
    let mut take = |count: usize| {
        let (taken, others) = rest.split_at(count);
        rest = others;
        taken
    };
    let arguments: SmallVec<[Argument<'_>; 8]> = (call.arguments.iter())
        .map(|argument| match *argument {
            Argument::Tensor(_) => Argument::Tensor(&take(1)[0]),
            Argument::Tensors(list) => Argument::Tensors(take(list.len())),
            // Indices are not cast.
            Argument::OptionalTensors(list) => {
                take(list.iter().flatten().count());
                Argument::OptionalTensors(list)
            }
            other => other,
        })
        .collect();
    let _without = ExcludeKeyGuard::new(DispatchKey::Autocast);
    call.operator.call(&arguments, Some(call.device), call.label)
}

/// Returns whether autocast may cast a tensor: it does for floats of at most 32 bits.
fn is_eligible(tensor: &Tensor) -> bool {
    matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::Bf16)
}

/// Returns the widest dtype of the tensors that autocast may cast.
fn widest(tensors: &[&Tensor]) -> Option<DType> {
    let mut dtypes = tensors.iter().filter(|tensor| is_eligible(tensor)).map(|tensor| tensor.dtype());
    let first = dtypes.next()?;
    Some(dtypes.fold(first, |widest, dtype| if widest == dtype { widest } else { DType::F32 }))
}

/// Returns the dtype that a tensor has in an operator of the kind [`Autocast::Lower`].
pub(crate) fn dtype_in_lower(tensor: &Tensor) -> DType {
    casting().filter(|_| is_eligible(tensor)).map_or(tensor.dtype(), |options| options.dtype)
}

/// Returns the dtype that a tensor has in an operator of the kind [`Autocast::Full`], for operators that read it without a cast
/// and compute in f32.
pub(crate) fn dtype_in_full(tensor: &Tensor) -> DType {
    casting().filter(|_| is_eligible(tensor)).map_or(tensor.dtype(), |_| DType::F32)
}

/// Returns the options of the innermost autocast region; `None` if operators that are called now are not cast.
fn casting() -> Option<AutocastOptions> {
    CURRENT.get().filter(|options| options.enabled && !is_excluded(DispatchKey::Autocast))
}

/// Returns whether a kernel without a gradient may read a tensor directly as one of this dtype on this device: autocast would not
/// cast it, and no gradient is required.
pub(crate) fn is_taken_as_it_is(tensor: &Tensor, dtype: DType, device: &Device) -> bool {
    tensor.dtype() == dtype
        && dtype_in_lower(tensor) == dtype
        && tensor.device() == device
        && !(is_grad_enabled() && tensor.requires_grad())
}

/// Returns a tensor cast to a dtype. The cast of a leaf is the result of a node that also accepts f32 gradients, and is taken
/// from the kept casts unless the region does not cache.
fn cast(tensor: &Tensor, dtype: DType, options: AutocastOptions) -> Result<Tensor> {
    if !is_eligible(tensor) || tensor.dtype() == dtype {
        return Ok(tensor.clone());
    }
    let is_of_leaf =
        dtype == options.dtype && tensor.dtype() == DType::F32 && tensor.requires_grad() && tensor.is_leaf();
    if !options.cache_enabled {
        return match is_of_leaf {
            true => Ok(recorded(tensor, no_grad(|| tensor.to_dtype(dtype))?, true)),
            false => tensor.to_dtype(dtype),
        };
    }
    if !is_of_leaf {
        return last::cast(tensor, dtype);
    }
    let key = (tensor.identity(), dtype);
    if let Some(found) = kept_cast(&key) {
        return Ok(found);
    }
    let (kept, writes) = (KeptCast::find(tensor), tensor.writes());
    let former = kept.as_ref().map(|kept| kept.get(dtype)).transpose()?.flatten();
    let cast = match former {
        Some(former) => recorded(tensor, former, true),
        None => {
            let cast = no_grad(|| tensor.to_dtype(dtype))?;
            kept.map_or(Ok(()), |kept| kept.put(&cast, writes))?;
            recorded(tensor, cast, true)
        }
    };
    let of_leaf = CastOfLeaf { cast: cast.clone(), leaf: tensor.clone(), writes };
    let _ = CASTS.try_with(|casts| casts.borrow_mut().insert(key, of_leaf));
    Ok(cast)
}

/// The cast of a leaf, the leaf, and the number of writes of the leaf when it was cast.
struct CastOfLeaf {
    cast: Tensor,
    leaf: Tensor,
    writes: u32,
}

/// Returns the cast of a leaf that this thread keeps, unless the leaf was written since. A thread whose thread-local variables are
/// already destroyed keeps none. A cast that was made without recording is not used where recording is on, because it would pass no
/// gradient.
fn kept_cast(key: &(usize, DType)) -> Option<Tensor> {
    let find = |casts: &RefCell<FxHashMap<_, CastOfLeaf>>| {
        let casts = casts.borrow();
        let CastOfLeaf { cast, leaf, writes } = casts.get(key)?;
        (*writes == leaf.writes()).then(|| cast.clone())
    };
    CASTS.try_with(find).ok().flatten().filter(|cast| cast.requires_grad() || !is_grad_enabled())
}

/// Returns the cast of a tensor as the result of a node.
fn recorded(source: &Tensor, cast: Tensor, is_of_leaf: bool) -> Tensor {
    if !is_grad_enabled() {
        return cast;
    }
    let mut results = [cast];
    let stream = source.device().current_stream();
    let node = CastBackward { dtype: source.dtype(), is_of_leaf };
    record(Box::new(node), &[source], &mut results, stream);
    let [cast] = results;
    cast
}

/// The backward node of a cast: it casts the gradient back.
struct CastBackward {
    /// The dtype of the tensor that was cast.
    dtype: DType,
    /// Whether that is a leaf of f32.
    is_of_leaf: bool,
}

impl Backward for CastBackward {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn is_of_loops(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let gradient = gradients[0].as_ref().map(|gradient| gradient.to_dtype(self.dtype)).transpose()?;
        Ok(Gradients::from_elem(gradient, 1))
    }

    fn is_cast(&self) -> bool {
        self.is_of_leaf
    }
}
