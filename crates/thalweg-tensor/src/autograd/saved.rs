//! Tensors that nodes keep for backward, and the hooks that choose where ([`saved_tensors_hooks`]).

use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use thalweg_ir::{DType, Layout};
use thalweg_lock::Mutex;
use thalweg_ops::schema::{Kind, Schema};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::node::{Edge, Node, running_node};
use super::{is_grad_enabled, no_grad};
use crate::scoped::{Scoped, put, scoped};
use crate::storage::{SavedHolder, Storage};
use crate::tensor::Tensor;

/// A function that returns a packed tensor.
pub(super) type Unpack = Arc<dyn Fn() -> Result<Tensor> + Send + Sync>;

/// A function that packs a tensor; if it returns `None`, the tensor is kept unchanged.
pub(super) type Pack = Arc<dyn Fn(&Tensor) -> Result<Option<Unpack>> + Send + Sync>;

thread_local! {
    /// The hooks of the innermost region that this thread is in.
    static HOOKS: Scoped<Option<Pack>> = const { scoped(None) };
    /// The tensors unpacked by the node that this thread is running.
    static UNPACKED: Scoped<Vec<(Arc<Packed>, Tensor)>> = const { scoped(Vec::new()) };
}

/// A tensor that a node keeps for backward (`SavedVariable` of PyTorch). For a program's own functions, see
/// [`record_function`](super::record_function).
pub struct Saved {
    /// The tensor; `None` once a backward pass has freed it.
    state: Mutex<Option<State>>,
    origin: Origin,
}

/// The way in which a tensor is kept.
#[derive(Clone)]
enum State {
    /// Unchanged, with the version that it had.
    Tensor { tensor: Tensor, version: u32, _holder: Arc<SavedHolder> },
    /// Packed by hooks.
    Packed(Arc<Packed>),
}

/// A tensor that hooks have packed.
struct Packed {
    unpack: Unpack,
    layout: Layout,
    dtype: DType,
    device: thalweg_runtime::Device,
}

/// The place that the gradient of a saved tensor flows to, if it is requested.
enum Origin {
    /// To the node that it is a result of, to which the node that keeps the tensor already has an edge.
    Input(Weak<Node>, usize),
    /// To the tensor itself, which is a leaf.
    Leaf(Edge),
    /// Nowhere.
    None,
    /// To the node that keeps it, whose result it is: an edge would let the node keep itself alive.
    Result(usize),
}

impl Saved {
    /// Keeps an input of a node.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for an inference tensor; and those of hooks.
    pub fn new(tensor: &Tensor) -> Result<Self> {
        let origin = match tensor.gradient_edge() {
            Some(edge) if edge.node.edges.is_empty() => Origin::Leaf(edge),
            Some(edge) => Origin::Input(Arc::downgrade(&edge.node), edge.input),
            None => Origin::None,
        };
        Self::with_origin(tensor, origin)
    }

    /// Keeps a result of the node, by its index.
    pub fn result(tensor: &Tensor, place: usize) -> Result<Self> {
        Self::with_origin(tensor, Origin::Result(place))
    }

    fn with_origin(tensor: &Tensor, origin: Origin) -> Result<Self> {
        tensor.check_inference_save()?;
        let hooks = HOOKS.with_borrow(|hooks| (**hooks).clone());
        let packed = hooks.map(|pack| Packed::new(tensor, &pack)).transpose()?.flatten();
        let state = match packed {
            None => {
                let holder = Arc::new(SavedHolder::new(tensor.storage()));
                State::Tensor { tensor: tensor.detach(), version: tensor.version(), _holder: holder }
            }
            Some(packed) => State::Packed(Arc::new(packed)),
        };
        Ok(Self { state: Mutex::new(Some(state)), origin })
    }

    /// Returns the tensor for work on the current stream, if it was not written since it was saved. If operators are recorded,
    /// gradients flow on from it.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor was written or freed; and those of hooks.
    pub fn get(&self) -> Result<Tensor> {
        self.unpacked(is_grad_enabled())
    }

    /// Refuses a tensor that a pass has freed.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor was freed.
    pub fn check_kept(&self) -> Result<()> {
        let state = self.state.lock();
        if state.is_some() { Ok(()) } else { Err(freed()) }
    }

    /// Returns the tensor with its place in the graph, whether operators are recorded or not, for functions in Python.
    pub fn get_recorded(&self) -> Result<Tensor> {
        self.unpacked(true)
    }

    fn unpacked(&self, is_recorded: bool) -> Result<Tensor> {
        let state = self.state.lock().clone();
        let Some(state) = state else { return Err(freed()) };
        let tensor = match state {
            State::Tensor { tensor, version, .. } => {
                tensor.storage().keep_memory();
                check_version(&tensor, version)?;
                tensor
            }
            State::Packed(packed) => packed.unpacked()?,
        };
        // The tensor may be memory of another stream, and the record of its use there covers only the forward pass.
        tensor.record_stream(&tensor.device().current_stream());
        if !is_recorded {
            return Ok(tensor);
        }
        let edge = match &self.origin {
            Origin::Input(node, input) => node.upgrade().map(|node| Edge { node, input: *input }),
            Origin::Leaf(edge) => Some(edge.clone()),
            Origin::None => None,
            Origin::Result(input) => running_node().map(|node| Edge { node, input: *input }),
        };
        Ok(edge.map_or(tensor.clone(), |edge| tensor.with_edge(edge)))
    }

    /// Returns the tensor as memory for a gradient of its shape and dtype, by which the last pass may overwrite it. This requires
    /// that it is kept unpacked and was not written since, has memory, is contiguous in row-major order, nothing else holds its
    /// memory, and no other stream has used that. Call this before [`get`](Self::get).
    pub(crate) fn reusable_memory(&self) -> Option<Tensor> {
        let state = self.state.lock();
        let State::Tensor { tensor, version, .. } = state.as_ref()? else { return None };
        let storage = tensor.storage();
        let is_ours = Arc::strong_count(&tensor.0) == 1 && Storage::holders(storage) == 1;
        let stream = tensor.device().current_stream();
        let has_memory = storage.promised_bytes().is_none();
        let fits = is_ours && has_memory && tensor.is_contiguous() && storage.is_used_only_on(&stream);
        (fits && tensor.version() == *version).then(|| tensor.detach())
    }

    /// Packs the tensor, which was kept unpacked, by separate hooks (`register_hooks` of PyTorch's `SavedTensor`).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor was freed or packed already; and those of `pack`.
    pub fn register_hooks<P: Send + Sync + 'static>(
        &self,
        pack: impl Fn(&Tensor) -> Result<P> + Send + Sync + 'static,
        unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<()> {
        let state = self.state.lock().clone();
        let tensor = match state {
            None => {
                refuse!(
                    "Calling register_hooks on a saved tensor after it has been freed. Saved intermediate values of the graph are \
                     freed when you call .backward() or autograd.grad(). Specify `BackwardOptions::retain_graph` if you need to \
                     backward through the graph a second time or if you need to access saved variables after calling backward."
                );
            }
            Some(State::Packed(_)) => {
                refuse!(
                    "Calling register_hooks on a saved tensor whose hooks have already been set. Hint: only one pair of hooks is \
                     allowed at a time."
                );
            }
            Some(State::Tensor { tensor, version, .. }) => {
                check_version(&tensor, version)?;
                tensor
            }
        };
        let packed = Packed::new(&tensor, &packing(pack, unpack))?.expect("the hooks pack every tensor");
        let packed = State::Packed(Arc::new(packed));
        // The former state is dropped after the lock is released.
        let _former = self.state.lock().replace(packed);
        Ok(())
    }

    /// Frees the tensor.
    pub fn release(&self) {
        // The tensor is dropped after the lock is released, since hooks may hold values with a `Drop` of their own.
        let _released = self.state.lock().take();
    }
}

/// A tensor that a node keeps.
pub struct SavedPlace<'a> {
    /// The name of the argument or the result, from the operator's signature.
    pub name: String,
    /// The tensor.
    pub saved: &'a Saved,
}

impl<'a> SavedPlace<'a> {
    /// Returns a tensor of a call, by its index among the call's tensors, with the name of its parameter.
    pub(crate) fn input(schema: &Schema, at: usize, saved: &'a Saved) -> Self {
        let tensors = schema.parameters.iter().filter(|parameter| parameter.ty.kind == Kind::Tensor);
        let parameter = tensors.take(at + 1).last();
        let name = parameter.map_or_else(|| format!("input{at}"), |parameter| parameter.name.clone());
        // The parameters of a part of other operators have numbers for names.
        let numbered = name.strip_prefix("input").and_then(|number| number.parse::<usize>().ok());
        let name =
            numbered.and_then(|number| ["self", "other"].get(number)).map_or(name, |&name| name.to_owned());
        Self { name, saved }
    }

    /// Returns a result of a call, by its index, with its name: `result` if it has none.
    pub(crate) fn result(schema: &Schema, at: usize, saved: &'a Saved) -> Self {
        let name = match (schema.return_names.get(at), schema.returns.len()) {
            (Some(name), _) if !name.is_empty() => name.clone(),
            (_, 1) => "result".to_owned(),
            _ => format!("result{at}"),
        };
        Self { name, saved }
    }
}

/// Returns the error of a tensor that a pass has freed.
pub(crate) fn freed() -> Error {
    invalid!(
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). \
         Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify \
         `BackwardOptions::retain_graph` if you need to backward through the graph a second time or if you need to access saved \
         tensors after calling backward."
    )
}

pub(super) fn check_version(tensor: &Tensor, version: u32) -> Result<()> {
    if tensor.version() == version {
        return Ok(());
    }
    Err(invalid!(
        "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor {:?} {}, which \
         backward needs as it was in the forward pass, is at version {}; expected version {version} instead. Hint: compute out of \
         place, or run backward first",
        tensor.shape(),
        tensor.dtype(),
        tensor.version()
    ))
}

impl Packed {
    /// Packs a tensor, unless the hooks decline it.
    fn new(tensor: &Tensor, pack: &Pack) -> Result<Option<Self>> {
        let version = tensor.version();
        let unpack = without_hooks(|| no_grad(|| pack(&tensor.detach())))?;
        refuse_if!(
            tensor.version() != version,
            "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook can not be \
             modified by in-place operations as this can lead to unexpected side-effects."
        );
        let (layout, dtype) = (tensor.layout().clone(), tensor.dtype());
        Ok(unpack.map(|unpack| Self { unpack, layout, dtype, device: tensor.device().clone() }))
    }

    /// Returns the tensor, unpacked once per run of a node.
    fn unpacked(self: &Arc<Self>) -> Result<Tensor> {
        let known = UNPACKED.with_borrow(|list| {
            list.iter().find(|(other, _)| Arc::ptr_eq(other, self)).map(|(_, tensor)| tensor.clone())
        });
        if let Some(tensor) = known {
            return Ok(tensor);
        }
        let tensor = without_hooks(|| no_grad(|| (self.unpack)()))?.detach();
        let fits = tensor.shape() == self.layout.shape()
            && tensor.dtype() == self.dtype
            && *tensor.device() == self.device;
        refuse_if!(
            !fits,
            "a saved tensor unpack hook gave {tensor:?} in place of {:?} {} on {}",
            self.layout.shape(),
            self.dtype,
            self.device
        );
        // A kernel that saved a contiguous tensor relies on it being contiguous.
        let tensor = if self.layout.is_contiguous() { no_grad(|| tensor.contiguous())? } else { tensor };
        UNPACKED.with_borrow_mut(|list| list.push((self.clone(), tensor.clone())));
        Ok(tensor)
    }
}

/// A guard: while it lives, a node runs, and each tensor is unpacked at most once.
pub(super) struct Unpacked(Vec<(Arc<Packed>, Tensor)>);

impl Unpacked {
    pub(super) fn new() -> Self {
        Self(put(&UNPACKED, Vec::new()))
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _unpacked = put(&UNPACKED, std::mem::take(&mut self.0));
    }
}

/// A guard of a thread's hooks: dropping it restores the previous hooks.
struct Restore(Option<Pack>);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ended = put(&HOOKS, self.0.take());
    }
}

/// Runs a function without hooks for saved tensors: used for the hooks themselves.
fn without_hooks<T>(function: impl FnOnce() -> T) -> T {
    let _restore = Restore(put(&HOOKS, None));
    function()
}

/// Runs a function with `pack` as the hook for saved tensors.
pub(super) fn with_pack<T>(pack: Pack, function: impl FnOnce() -> T) -> T {
    let _restore = Restore(put(&HOOKS, Some(pack)));
    function()
}

/// Runs a function whose operators save tensors for backward through `pack` (`torch.autograd.graph.saved_tensors_hooks`). `pack`
/// is called once for each tensor that a node keeps, when it is saved, with a tensor outside the graph, which it may not write.
/// `unpack` returns the tensor, with the same shape, dtype and device, once each time that a backward pass runs the node. Both
/// run under `no_grad`, with the stream of the operator current. Only the innermost region's hooks are called, and none within
/// them. An error of `pack` is an error of the operator, an error of `unpack` an error of the backward pass. Later writes to a
/// tensor are not detected: `pack` must copy a tensor that may be written.
///
/// ```
/// # use thalweg_runtime::{Device, Result};
/// # use thalweg_tensor::{Tensor, autograd::saved_tensors_hooks};
/// # use thalweg_ir::DType;
/// # fn main() -> Result<()> {
/// let x = Tensor::ones(&[2], DType::F32, &Device::sim(0)?)?.requires_grad_()?;
/// // Half of the memory, for some of the precision.
/// let pack = |tensor: &Tensor| tensor.to_dtype(DType::Bf16);
/// let y = saved_tensors_hooks(pack, |packed| packed.to_dtype(DType::F32), || x.square())?;
/// y.sum(&[], false)?.backward()?;
/// assert_eq!(x.grad().expect("a gradient").to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub fn saved_tensors_hooks<P: Send + Sync + 'static, T>(
    pack: impl Fn(&Tensor) -> Result<P> + Send + Sync + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
    function: impl FnOnce() -> T,
) -> T {
    saved_tensors_hooks_for(move |tensor| pack(tensor).map(Some), unpack, function)
}

/// A region whose operators save tensors by hooks; it ends when this guard is dropped, on its thread, after regions that began
/// later.
#[must_use = "the hooks are there only while the region lives"]
pub struct SavedTensorsRegion {
    _restore: Restore,
    _not_send: PhantomData<*const ()>,
}

/// Begins a region with hooks like those of [`saved_tensors_hooks`], for code that cannot nest functions.
pub fn enter_saved_tensors_hooks<P: Send + Sync + 'static>(
    pack: impl Fn(&Tensor) -> Result<P> + Send + Sync + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
) -> SavedTensorsRegion {
    entered(packing(pack, unpack))
}

/// Begins a region with hooks like those of [`saved_tensors_hooks_for`], for code that cannot nest functions.
pub fn enter_saved_tensors_hooks_for<P: Send + Sync + 'static>(
    pack: impl Fn(&Tensor) -> Result<Option<P>> + Send + Sync + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
) -> SavedTensorsRegion {
    entered(packing_some(pack, unpack))
}

fn entered(pack: Pack) -> SavedTensorsRegion {
    SavedTensorsRegion { _restore: Restore(put(&HOOKS, Some(pack))), _not_send: PhantomData }
}

/// Returns hooks that pack every tensor.
fn packing<P: Send + Sync + 'static>(
    pack: impl Fn(&Tensor) -> Result<P> + Send + Sync + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
) -> Pack {
    let unpack = Arc::new(unpack);
    Arc::new(move |tensor: &Tensor| -> Result<Option<Unpack>> {
        let (packed, unpack) = (pack(tensor)?, unpack.clone());
        Ok(Some(Arc::new(move || unpack(&packed))))
    })
}

/// Runs a function with hooks as [`saved_tensors_hooks`] does, for some tensors: those for which `pack` returns `None` are kept
/// as outside the function, by the hooks of the surrounding region, if there is one.
pub fn saved_tensors_hooks_for<P: Send + Sync + 'static, T>(
    pack: impl Fn(&Tensor) -> Result<Option<P>> + Send + Sync + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
    function: impl FnOnce() -> T,
) -> T {
    with_pack(packing_some(pack, unpack), function)
}

/// Returns hooks that pack some tensors, and leave the others to the hooks of the region that this thread is in.
fn packing_some<P: Send + Sync + 'static>(
    pack: impl Fn(&Tensor) -> Result<Option<P>> + Send + Sync + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
) -> Pack {
    let (unpack, around) = (Arc::new(unpack), HOOKS.with_borrow(|hooks| (**hooks).clone()));
    let both = move |tensor: &Tensor| -> Result<Option<Unpack>> {
        let Some(packed) = pack(tensor)? else {
            return around.as_ref().map_or(Ok(None), |around| around(tensor));
        };
        let unpack = unpack.clone();
        Ok(Some(Arc::new(move || unpack(&packed))))
    };
    Arc::new(both)
}
