//! [`Tensor`]: a view of device memory with a dtype, and its part in the autograd graph.
//!
//! A tensor has a part in the graph (`autograd::meta`), whose nodes (`autograd::node`) have tensors: these files depend on each
//! other. Operators are above it.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;
use thalweg_derive::in_call;
use thalweg_ir::{
    DType, Element, HostElement, Layout, Scalar, byte_count, contiguous_strides, element_count,
};
use thalweg_runtime::graph::audit::{ObstacleKind, explain};
use thalweg_runtime::{
    Buffer, Device, Error, ExternalMemory, Label, Result, Stream, invalid, refuse, refuse_if,
};

use crate::autograd::{AutogradMeta, Edge, ExternalGradient, ViewOf, is_grad_enabled, no_grad};
use crate::caller::{Operand, at_line, creating, in_call, label_at};
use crate::deferred;
use crate::deterministic::fills_now;
use crate::dispatch::is_inference;
use crate::host_room::host_room;
use crate::layouts::Layouts;
use crate::storage::Storage;

/// A list of tensors; most operators return one.
pub type Tensors = SmallVec<[Tensor; 2]>;

/// A tensor on one device: elements of one dtype in device memory, seen through a shape and strides (`torch.Tensor`).
///
/// A clone is the same tensor; cloning only increments a reference count. A view ([`narrow`](Self::narrow),
/// [`transpose`](Self::transpose), …) is another tensor over the same memory, or *storage*. Operators are methods; they run on
/// the current stream of the tensor's device and are asynchronous: the methods that block the host say so. Operators and views
/// return [`Error::is_invalid_argument`] for arguments that do not fit.
///
/// ```
/// # use thalweg_runtime::{Device, Result};
/// # use thalweg_tensor::{Tensor, i, no_grad};
/// # use thalweg_ir::DType;
/// # fn main() -> Result<()> {
/// let device = Device::sim(0)?; // or Device::best()?
/// let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0, 4.0, 6.0, 5.0], &[2, 3], &device)?;
/// let centred = (&x - x.mean(&[1], true)?)?; // operators on tensors return results, too
/// assert_eq!(centred.to_vec::<f32>()?, [1.0, -1.0, 0.0, -1.0, 1.0, 0.0]);
///
/// let [values, places] = x.topk(2, -1, true, true)?; // torch.topk(x, 2)
/// assert_eq!(values.to_vec::<f32>()?, [3.0, 2.0, 6.0, 5.0]);
/// assert_eq!(places.to_vec::<i64>()?, [0, 2, 1, 2]);
/// assert_eq!(x.reshape(&[-1, 2])?.shape(), [3, 2]); // x.reshape(-1, 2)
/// assert_eq!(x.i(i![.., 0])?.to_vec::<f32>()?, [3.0, 4.0]); // x[:, 0]
///
/// let weight = Tensor::ones(&[3], DType::F32, &device)?.requires_grad_()?;
/// x.matmul(&weight)?.sum(&[], false)?.backward()?;
/// assert_eq!(weight.grad().expect("a gradient").to_vec::<f32>()?, [7.0, 7.0, 7.0]);
/// no_grad(|| weight.fill_(0.5))?; // in place
/// assert_eq!(weight.sum(&[], false)?.item::<f32>()?, 1.5);
/// # Ok(())
/// # }
/// ```
///
/// | to | see |
/// |---|---|
/// | make one | [`zeros`](Self::zeros), [`ones`](Self::ones), [`full`](Self::full), [`empty`](Self::empty), [`arange`](Self::arange), [`rand`](Self::rand), [`randn`](Self::randn), [`from_slice`](Self::from_slice) |
/// | inspect it | [`shape`](Self::shape), [`dtype`](Self::dtype), [`device`](Self::device), [`layout`](Self::layout), [`is_contiguous`](Self::is_contiguous) |
/// | view it in a different way | [`reshape`](Self::reshape), [`transpose`](Self::transpose), [`narrow`](Self::narrow), [`i`](Self::i), [`expand`](Self::expand), [`unsqueeze`](Self::unsqueeze) |
/// | compute | [`add`](Self::add), [`exp`](Self::exp), [`matmul`](Self::matmul), [`softmax`](Self::softmax), [`topk`](Self::topk), [`einsum`](Self::einsum), … |
/// | reduce | [`sum`](Self::sum), [`mean`](Self::mean), [`argmax`](Self::argmax), [`quantile`](Self::quantile), [`allclose`](Self::allclose) |
/// | write in place | [`add_`](Self::add_), [`fill_`](Self::fill_), [`copy_`](Self::copy_), [`assign`](Self::assign) |
/// | differentiate | [`requires_grad_`](Self::requires_grad_), [`backward`](Self::backward), [`grad`](Self::grad), [`detach`](Self::detach) |
/// | read and move | [`to_vec`](Self::to_vec), [`item`](Self::item), [`to_device`](Self::to_device), [`to_dtype`](Self::to_dtype) |
#[derive(Clone)]
pub struct Tensor(pub(crate) Arc<TensorState>);

pub(crate) struct TensorState {
    pub(crate) storage: Arc<Storage>,
    pub(crate) layouts: Layouts,
    pub(crate) dtype: DType,
    pub(crate) autograd: AutogradMeta,
    /// The number of writes in place by this tensor and those made from it, if they do not count as writes by the other tensors
    /// over the storage.
    own_version: Option<Arc<AtomicU32>>,
    /// The gradient that the tensor represents in the graph, if that is not made of elements of this tensor.
    external: Option<Arc<dyn ExternalGradient>>,
}

/// Fills a tensor that was allocated without being written, if determinism requires it, and returns it.
pub(crate) fn uninitialized(tensor: Tensor) -> Result<Tensor> {
    if !fills_now() || tensor.elements() == 0 {
        return Ok(tensor);
    }
    let dtype = tensor.dtype();
    let value = match dtype {
        DType::Bool => Scalar::from(true),
        _ if dtype.is_floating_point() || dtype.is_complex() => Scalar::from(f64::NAN),
        // All bits but that of the sign, where there is one.
        _ => {
            let bits = 8 * dtype.size_bytes() - usize::from(dtype.is_signed());
            Scalar::from(i64::MAX >> 63_usize.saturating_sub(bits))
        }
    };
    no_grad(|| tensor.fill_(value))?;
    Ok(tensor)
}

impl Tensor {
    // ---- Making ---------------------------------------------------------------------------------------------------

    /// Allocates a tensor without writing its elements (`torch.empty`), unless they are [filled](crate::deterministic) for
    /// programs that must repeat their bits.
    ///
    /// ```
    /// # use thalweg_ir::DType;
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::empty(&[2, 3], DType::F32, &device)?.shape(), [2, 3]);
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn empty(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let location = Location::caller();
        creating("empty", (shape, dtype, device), location, || {
            uninitialized(Self::empty_on(
                shape,
                dtype,
                &device.current_stream(),
                label_at("empty", location),
            )?)
        })
    }

    /// Allocates a tensor in memory that belongs to a stream, for the operator that the label names, without writing its
    /// elements.
    pub(crate) fn empty_on(shape: &[usize], dtype: DType, stream: &Stream, label: Label) -> Result<Self> {
        let bytes = byte_count(shape, dtype)? as u64;
        Self::empty_in(Layout::contiguous(shape), bytes, dtype, stream, label)
    }

    /// Allocates a tensor of a layout that takes this many bytes, as [`empty_on`](Self::empty_on) does.
    pub(crate) fn empty_in(
        layout: Layout,
        bytes: u64,
        dtype: DType,
        stream: &Stream,
        label: Label,
    ) -> Result<Self> {
        let storage = match deferred::is_on() && bytes > 0 {
            true => deferred::promised(stream, bytes, label)?,
            false => Storage::new(Buffer::labelled(stream, bytes, label)?),
        };
        Ok(Self::over(Arc::new(storage), layout, dtype))
    }

    /// Returns a tensor over a storage, outside the autograd graph.
    pub(crate) fn over(storage: Arc<Storage>, layout: Layout, dtype: DType) -> Self {
        Self::from_parts(storage, layout, dtype, AutogradMeta::leaf(false))
    }

    pub(crate) fn from_parts(
        storage: Arc<Storage>,
        layout: Layout,
        dtype: DType,
        autograd: AutogradMeta,
    ) -> Self {
        Self(Arc::new(TensorState {
            storage,
            layouts: Layouts::new(layout),
            dtype,
            autograd,
            own_version: None,
            external: None,
        }))
    }

    /// Returns another tensor over the storage, whose writes count as writes of this tensor.
    fn seen(&self, layout: Layout, dtype: DType, autograd: AutogradMeta) -> Self {
        let TensorState { storage, own_version, .. } = &*self.0;
        let (storage, own_version) = (storage.clone(), own_version.clone());
        let layouts = Layouts::new(layout);
        Self(Arc::new(TensorState { storage, layouts, dtype, autograd, own_version, external: None }))
    }

    /// Copies a slice to a new tensor, row-major. `values` may change once this has returned.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// assert_eq!(Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?.to_string(), "\
    /// tensor([[1., 2.],
    ///         [3., 4.]], device='sim:0')");
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if `values` does not have as many elements as the shape.
    #[track_caller]
    pub fn from_slice<T: HostElement>(values: &[T], shape: &[usize], device: &Device) -> Result<Self> {
        let location = Location::caller();
        creating("from_slice", (shape, T::TENSOR_DTYPE, device), location, || {
            let count = element_count(shape)?;
            if count != values.len() {
                refuse!("the shape has {count} elements, the slice {}", values.len());
            }
            let stream = device.current_stream();
            let label = label_at("from_slice", location);
            let tensor = Self::empty_on(shape, T::TENSOR_DTYPE, &stream, label)?;
            stream.copy_from_host(tensor.pointer(), T::bytes(values), label)?;
            Ok(tensor)
        })
    }

    /// Returns a tensor over memory of another library, without a copy: the elements begin at its start, `strides` elements
    /// apart, with 0 for a repeated dimension. The caller orders work that the library has queued before the device's current
    /// stream. The memory is returned to the library when the last tensor over it is dropped and the work that used it is done
    /// ([`Buffer::external`]).
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if elements would be outside the memory or its address is not aligned for the dtype.
    #[track_caller]
    pub fn from_external(
        shape: &[usize],
        strides: &[usize],
        dtype: DType,
        device: &Device,
        memory: ExternalMemory,
    ) -> Result<Self> {
        let location = Location::caller();
        creating("from_external", (shape, dtype, device), location, || {
            let layout = Layout::new(shape, strides, 0)?;
            let last = (shape.iter().zip(strides))
                .try_fold(0usize, |last, (&extent, &stride)| {
                    extent.saturating_sub(1).checked_mul(stride)?.checked_add(last)
                })
                .and_then(|last| last.checked_add(1)?.checked_mul(dtype.size_bytes()));
            let needed = if layout.elements() == 0 { Some(0) } else { last };
            if needed.is_none_or(|bytes| bytes as u64 > memory.size_bytes()) {
                refuse!("elements with strides {strides:?} do not lie within {} bytes", memory.size_bytes());
            }
            refuse_if!(
                layout.elements() > 0
                    && !memory.pointer().address().is_multiple_of(dtype.size_bytes() as u64),
                "the address {:#x} is not a multiple of the {} bytes of an element; copy the tensor before",
                memory.pointer().address(),
                dtype.size_bytes()
            );
            let is_shared = !memory.is_in_stream_order();
            let buffer = Buffer::external(&device.current_stream(), memory)?;
            Ok(Self::over(Arc::new(Storage::external(buffer, is_shared)), layout, dtype))
        })
    }

    // ---- Properties -----------------------------------------------------------------------------------------------

    /// Returns the shape: the extent of each dimension.
    pub fn shape(&self) -> &[usize] {
        self.layout().shape()
    }

    /// Returns the extent of a dimension; a negative dimension is counted from the end.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such dimension.
    #[in_call("size", &[self])]
    pub fn size(&self, dimension: i64) -> Result<usize> {
        Ok(self.shape()[self.layout().dimension(dimension)?])
    }

    /// Returns the number of dimensions (`torch.Tensor.dim`).
    pub fn rank(&self) -> usize {
        self.layout().rank()
    }

    /// Returns the number of elements (`torch.Tensor.numel`).
    pub fn elements(&self) -> usize {
        self.layout().elements()
    }

    /// Returns the dtype.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.0.storage.device()
    }

    /// Returns the layout: shape, and strides and offset in elements.
    pub fn layout(&self) -> &Layout {
        self.0.layouts.now()
    }

    /// Returns whether the elements are in memory in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout().is_contiguous()
    }

    /// Returns whether the elements fill a range of memory, each at a distinct address, in any order of the dimensions.
    pub(crate) fn is_dense(&self) -> bool {
        let layout = self.layout();
        layout.span() == layout.elements() && !layout.may_overlap()
    }

    /// Returns the number of bytes of the memory that the tensor shares with its views (`torch.UntypedStorage.nbytes`).
    pub fn storage_bytes(&self) -> u64 {
        self.0.storage.buffer().size_bytes()
    }

    /// Returns the device address of the first element (`torch.Tensor.data_ptr`), which is valid while the tensor lives.
    pub fn pointer(&self) -> DevicePointer {
        let offset = self.layout().offset() * self.dtype().size_bytes();
        self.0.storage.pointer().offset(offset as u64)
    }

    /// Returns an address that is aligned as the device address of the first element is; the memory need not be allocated yet.
    pub(crate) fn aligned_like(&self) -> DevicePointer {
        let offset = self.layout().offset() * self.dtype().size_bytes();
        let storage = &self.0.storage;
        let base = if storage.is_pending() { DevicePointer::new(0) } else { storage.pointer() };
        base.offset(offset as u64)
    }

    /// Records that work on `stream` uses the tensor (`torch.Tensor.record_stream`): once the tensor is dropped, its memory is
    /// reused only after all work that has been submitted to the stream by then.
    #[track_caller]
    pub fn record_stream(&self, stream: &Stream) {
        self.0.storage.record_stream(stream);
    }

    /// Records that the work submitted to `stream` so far is the last that uses the tensor, until this method is called again.
    /// Once the tensor is dropped, its memory is reused after that work, without waiting for later work of the stream as
    /// [`record_stream`](Self::record_stream) does. Does not block.
    #[track_caller]
    pub fn record_use(&self, stream: &Stream) {
        self.0.storage.buffer().record_use(stream);
    }

    /// Returns whether the program requested pinned memory ([`Tensor::mark_pinned`]).
    pub fn is_pinned(&self) -> bool {
        self.0.storage.is_pinned()
    }

    /// Records that the program requested pinned memory. On the simulated GPU, whose memory is the host's, there is no other
    /// kind.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor is on a GPU.
    pub fn mark_pinned(&self) -> Result<()> {
        refuse_if!(!self.device().is_simulated(), "Only dense CPU tensors can be pinned");
        self.0.storage.mark_pinned();
        Ok(())
    }

    /// Returns the address of the storage's first byte; 0 if its memory was freed.
    pub fn storage_pointer(&self) -> DevicePointer {
        self.0.storage.pointer()
    }

    /// Returns the address at which the host accesses the first element in place, while the tensor lives. When it is called first for
    /// a storage, it waits for the device's work. After that, operators on the storage return when they are done, so that the host
    /// sees what they have written, and they see what it writes. If the memory `stays`, the storage is not resizable any more. `None`
    /// if there are no elements, or the memory belongs to a graph that may move it.
    ///
    /// # Errors
    /// On any device but the simulated GPU, whose memory is the host's.
    #[track_caller]
    pub fn host_address(&self, stays: bool) -> Result<Option<u64>> {
        if self.elements() == 0 {
            return Ok(None);
        }
        let first = self.0.storage.host_address(stays, label_at("host_address", Location::caller()))?;
        let offset = self.layout().offset() * self.dtype().size_bytes();
        Ok(first.map(|first| first + offset as u64))
    }

    /// Moves the storage to other memory, with its content: all tensors over the storage use it from now on, and others may write it.
    /// The memory has at least as many bytes as the storage.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the memory was freed or belongs to a graph; the errors of a copy.
    #[track_caller]
    pub fn move_storage(&self, memory: ExternalMemory) -> Result<()> {
        let label = label_at("move_storage", Location::caller());
        if memory.size_bytes() < self.storage_bytes() {
            refuse!("{} bytes do not hold a storage of {}", memory.size_bytes(), self.storage_bytes());
        }
        let buffer = Buffer::external(&self.device().current_stream(), memory)?;
        self.0.storage.move_to(buffer, label)
    }

    /// Runs a function with the owner of the storage's memory, if that is memory of the process.
    pub fn with_owner<R>(&self, function: impl FnOnce(&(dyn std::any::Any + Send + Sync)) -> R) -> Option<R> {
        self.0.storage.buffer().owner().map(function)
    }

    /// Returns a number that tensors over one storage share.
    pub fn storage_identity(&self) -> usize {
        Arc::as_ptr(&self.0.storage).addr()
    }

    /// Frees the memory of the storage, with 0 bytes, while the tensors over it stay; or allocates this many bytes again
    /// (`torch.UntypedStorage.resize_`). Until then, operators that access the elements of such a tensor return an error.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if that is fewer bytes than before and not 0, or the memory belongs to another library or a
    /// graph.
    #[track_caller]
    pub fn resize_storage(&self, bytes: u64) -> Result<()> {
        self.0.storage.resize(bytes, label_at("resize_", Location::caller()))
    }

    /// Returns the bytes of the storage as a tensor over it.
    pub fn storage_as_bytes(&self) -> Result<Self> {
        let bytes = usize::try_from(self.storage_bytes()).map_err(|_| invalid!("too many bytes"))?;
        let layout = Layout::contiguous(&[bytes]);
        Ok(self.detach().view_of_dtype(layout, DType::U8))
    }

    /// Returns the storage, which the tensor shares with its views.
    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.0.storage
    }

    /// Returns the number of writes in place to the storage (`torch.Tensor._version`): including those through views and
    /// [detached](Self::detach) tensors, but not through [`data`](Self::data).
    pub fn version(&self) -> u32 {
        match &self.0.own_version {
            Some(own) => own.load(Ordering::Acquire),
            None => self.0.storage.version(),
        }
    }

    /// Returns the number of writes in place to the storage, by any tensor.
    pub(crate) fn writes(&self) -> u32 {
        self.0.storage.writes()
    }

    /// Marks the storage as written in place (`torch.autograd.graph.increment_version`): backward then refuses to read a tensor
    /// that it saved before. Call it after a kernel of your own has written the memory; in-place operators do it themselves.
    pub fn bump_version(&self) {
        self.0.storage.note_write(self.0.own_version.as_deref());
    }

    /// Sets the number of writes in place that are counted (`torch._C._autograd._unsafe_set_version_counter`): backward does not
    /// notice writes that are no longer counted.
    pub fn set_version(&self, version: u32) {
        match &self.0.own_version {
            Some(own) => own.store(version, Ordering::Release),
            None => self.0.storage.set_version(version),
        }
    }

    /// Marks the storage as known to another library, which may write it unnoticed: values that were computed from it, such as
    /// the casts that autocast keeps, are no longer reused. Call it when you pass the address to other code.
    pub fn mark_exported(&self) {
        self.0.storage.mark_exported();
    }

    /// Returns a number that is unique among live tensors.
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Returns whether both are the same tensor (`a is b`): clones share values, gradient and history.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns whether the tensor was made as a view of another (`torch.Tensor._is_view`).
    pub fn is_view(&self) -> bool {
        self.0.autograd.view_of().is_some() && !self.is_inference()
    }

    /// Returns the tensor that a view was made from, and for a view of a view the original tensor (`torch.Tensor._base`); `None`
    /// if the view was made while nothing was recorded.
    pub fn base(&self) -> Option<Self> {
        self.0.autograd.view_of().and_then(ViewOf::base).cloned()
    }

    /// Returns whether both are views of one storage.
    pub fn shares_storage_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.storage, &other.0.storage)
    }

    // ---- Autograd -------------------------------------------------------------------------------------------------

    /// Returns a tensor over the same memory that is outside the autograd graph (`torch.Tensor.detach`).
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// assert!(!x.requires_grad_()?.detach().requires_grad());
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    #[must_use]
    pub fn detach(&self) -> Self {
        self.with_autograd(AutogradMeta::leaf(false))
    }

    /// Returns the tensor that [`detach`](Self::detach) returns, marked as the result of a function over the memory of its input.
    #[must_use]
    pub fn detached_view(&self) -> Self {
        self.with_autograd(AutogradMeta::view(ViewOf::Function))
    }

    /// Returns a tensor over the same memory that is outside the autograd graph and has a version of its own
    /// (`torch.Tensor.data`): backward does not notice writes through it. [`detach`](Self::detach) is the safe way.
    #[must_use]
    pub fn data(&self) -> Self {
        let own_version = Some(Arc::new(AtomicU32::new(self.version())));
        let TensorState { storage, dtype, .. } = &*self.0;
        Self(Arc::new(TensorState {
            storage: storage.clone(),
            layouts: Layouts::new(self.layout().clone()),
            dtype: *dtype,
            autograd: AutogradMeta::leaf(false),
            own_version,
            external: None,
        }))
    }

    /// Returns the gradient that [`backward`](Self::backward) has accumulated in this leaf, or in this result of an operator if
    /// [`retain_grad`](Self::retain_grad) was called on it; `None` if there is none.
    pub fn grad(&self) -> Option<Self> {
        self.0.autograd.kept().get()
    }

    /// Sets the gradient, or removes it with `None`.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the gradient does not have the tensor's shape, dtype and device, or is the tensor itself.
    #[track_caller]
    pub fn set_grad(&self, gradient: Option<Self>) -> Result<()> {
        if let Some(gradient) = &gradient {
            at_line(Location::caller(), || {
                refuse_if!(
                    gradient.is_same(self),
                    "set_grad: a tensor cannot be its own gradient: pass a copy"
                );
                self.check_gradient("set_grad", gradient)
            })?;
        }
        self.0.autograd.kept().set(gradient);
        Ok(())
    }

    /// Removes the gradient.
    pub fn zero_grad(&self) {
        self.0.autograd.kept().set(None);
    }

    /// Checks that a gradient has the tensor's shape, dtype and device.
    pub(crate) fn check_gradient(&self, operator: &str, gradient: &Self) -> Result<()> {
        let fits = gradient.shape() == self.shape()
            && gradient.dtype() == self.dtype()
            && (gradient.device() == self.device() || gradient.external().is_some());
        if fits {
            return Ok(());
        }
        Err(invalid!(
            "{operator}: the gradient is {:?} {} on {}, the tensor {:?} {} on {}",
            gradient.shape(),
            gradient.dtype(),
            gradient.device(),
            self.shape(),
            self.dtype(),
            self.device()
        ))
    }

    pub(crate) fn with_autograd(&self, autograd: AutogradMeta) -> Self {
        let mut made = self.seen(self.layout().clone(), self.dtype(), autograd);
        if let (Some(external), Some(state)) = (&self.0.external, Arc::get_mut(&mut made.0)) {
            state.external = Some(Arc::clone(external));
        }
        made
    }

    /// Returns the tensor, with its place in the graph, as a representative of a gradient that does not consist of its elements.
    #[must_use]
    pub fn representing(&self, external: Arc<dyn ExternalGradient>) -> Self {
        let autograd = AutogradMeta::leaf(false);
        let edge = if self.is_leaf() { None } else { self.gradient_edge() };
        let autograd = match edge {
            Some(edge) => autograd.with_edge(edge),
            None => autograd,
        };
        let mut made = self.seen(self.layout().clone(), self.dtype(), autograd);
        let state = Arc::get_mut(&mut made.0).expect("nothing else holds the tensor yet");
        state.external = Some(external);
        made
    }

    /// Returns the gradient that the tensor represents, if that does not consist of its elements.
    pub fn external(&self) -> Option<&Arc<dyn ExternalGradient>> {
        self.0.external.as_ref()
    }

    /// Returns whether the tensor's memory was allocated in inference mode (`torch.Tensor.is_inference`).
    pub fn is_inference(&self) -> bool {
        self.0.storage.is_inference
    }

    /// Refuses a write in place to an inference tensor outside inference mode.
    pub(crate) fn check_inference_write(&self) -> Result<()> {
        refuse_if!(
            self.is_inference() && !is_inference(),
            "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a normal tensor \
             before doing inplace update."
        );
        Ok(())
    }

    /// Refuses to save an inference tensor for backward.
    pub(crate) fn check_inference_save(&self) -> Result<()> {
        refuse_if!(
            self.is_inference(),
            "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in computation \
             tracked by autograd. To work around this, you can make a clone to get a normal tensor and use it in autograd, or use \
             `no_grad` instead of `inference_mode`."
        );
        Ok(())
    }

    /// Returns the tensor as the result of a node of the autograd graph.
    pub(crate) fn with_edge(&self, edge: Edge) -> Self {
        self.with_autograd(self.0.autograd.with_edge(edge))
    }

    /// Makes the tensor the result of a node of the autograd graph. Existing clones are not changed.
    pub(crate) fn join(&mut self, edge: Edge) {
        match Arc::get_mut(&mut self.0) {
            Some(state) => state.autograd.join(edge),
            None => *self = self.with_edge(edge),
        }
    }

    /// Returns a view of the tensor with another layout.
    pub(crate) fn viewed(&self, layout: Layout) -> Self {
        self.seen(layout, self.dtype(), AutogradMeta::view(self.as_origin()))
    }

    /// Returns one of several views of the tensor that one operator returns.
    pub(crate) fn one_of_many(&self, layout: Layout) -> Self {
        let view_of = match self.as_origin() {
            ViewOf::Base(base) => ViewOf::OneOfMany(base),
            other => other,
        };
        self.seen(layout, self.dtype(), AutogradMeta::view(view_of))
    }

    /// Returns the origin of the memory of a view of the tensor.
    fn as_origin(&self) -> ViewOf {
        match self.0.autograd.view_of() {
            Some(view_of) => view_of.clone(),
            None if is_grad_enabled() => ViewOf::Base(self.clone()),
            None => ViewOf::Unrecorded { of_required: self.requires_grad() },
        }
    }

    /// Returns a view of the tensor's memory as elements of another dtype. Writes through the view that gradients would flow
    /// through are refused.
    pub(crate) fn view_of_dtype(&self, layout: Layout, dtype: DType) -> Self {
        self.seen(layout, dtype, AutogradMeta::view(ViewOf::Unrecorded { of_required: false }))
    }

    /// Gives the tensor another shape and strides, and its storage more memory if it does not have enough (`torch.Tensor.resize_`).
    /// Elements stay where they are in memory; additional ones are uninitialized.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if it requires a gradient, or if its memory belongs to another library and is too small.
    pub(crate) fn resize(&self, shape: &[usize], strides: &[usize], label: Label) -> Result<()> {
        refuse_if!(self.requires_grad() && !is_inference(), "cannot resize variables that require grad");
        self.check_inference_write()?;
        byte_count(shape, self.dtype())?;
        let layout = Layout::new(shape, strides, self.layout().offset())?;
        let size = self.dtype().size_bytes();
        let too_large = || invalid!("a tensor of shape {shape:?} does not fit any memory");
        let end = layout.offset().checked_add(layout.span()).ok_or_else(too_large)?;
        let bytes = end.checked_mul(size).ok_or_else(too_large)?;
        let former = self.storage().grow(bytes as u64, label)? as usize / size;
        if former < end && layout.elements() > 0 {
            _ = uninitialized(self.with_layout(Layout::new(&[end - former], &[1], former)?))?;
        }
        self.set_layout(layout);
        Ok(())
    }

    /// Returns a tensor with another layout over the storage, outside the autograd graph.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        self.seen(layout, self.dtype(), AutogradMeta::leaf(false))
    }

    // ---- Reading --------------------------------------------------------------------------------------------------

    /// Copies the elements to the host, row-major. *Blocks* until they have arrived. `Bool` tensors are read as `bool` or `u8`.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([1.0f32, 2.0], &device)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the tensor's dtype is not that of `T`.
    #[track_caller]
    pub fn to_vec<T: HostElement>(&self) -> Result<Vec<T>> {
        let label = label_at("to_vec", Location::caller());
        in_call("to_vec", &[self], label.location, || self.read(label, None))
    }

    /// Copies the elements to the host. `kind` is the obstacle that an audit reports for the copy, if it is more specific than a
    /// copy.
    pub(crate) fn read<T: HostElement>(&self, label: Label, kind: Option<ObstacleKind>) -> Result<Vec<T>> {
        let readable =
            self.dtype() == T::TENSOR_DTYPE || (self.dtype() == DType::Bool && T::TENSOR_DTYPE == DType::U8);
        if !readable {
            refuse!("the tensor is {}, not {}; convert it with `to_dtype`", self.dtype(), T::TENSOR_DTYPE);
        }
        check_memory(self)?;
        let source = self.detach().contiguous()?;
        let mut values = host_room(self.elements())?;
        values.resize(self.elements(), T::Stored::from_f64(0.0));
        let stream = self.device().current_stream();
        if let Some(kind) = kind {
            explain(self.device(), kind, label);
        }
        stream.copy_to_host(bytemuck::cast_slice_mut(&mut values), source.pointer(), label)?;
        Ok(T::loaded(values))
    }

    /// Copies the element of a tensor with one element to the host (`torch.Tensor.item`). *Blocks* until it has arrived.
    ///
    /// ```
    /// # use thalweg_tensor::Tensor;
    /// # let device = thalweg_runtime::Device::sim(0)?;
    /// let x = Tensor::from_values([7.0f32], &device)?;
    /// assert_eq!(x.item::<f32>()?, 7.0);
    /// # Ok::<(), thalweg_runtime::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is not exactly one element, or the tensor's dtype is not that of `T`.
    #[track_caller]
    pub fn item<T: HostElement>(&self) -> Result<T> {
        let label = label_at("item", Location::caller());
        in_call("item", &[self], label.location, || {
            refuse_if!(self.elements() != 1, "the tensor has {} elements, not 1", self.elements());
            Ok(self.read::<T>(label, Some(ObstacleKind::DataDependentShape))?[0])
        })
    }
}

/// Refuses a tensor whose storage has freed its memory.
#[inline]
pub(crate) fn check_memory(tensor: &Tensor) -> Result<()> {
    if tensor.storage().is_given_back() { given_back(tensor) } else { Ok(()) }
}

#[cold]
fn given_back(tensor: &Tensor) -> Result<()> {
    if tensor.elements() == 0 {
        return Ok(());
    }
    Err(invalid!(
        "the storage of the tensor {tensor:?} has given its memory back (`resize_(0)`): resize it before the elements are used"
    ))
}

/// An address in device memory.
pub type DevicePointer = thalweg_runtime::DevicePointer;

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?}, {}, {}", self.shape(), self.dtype(), self.device())?;
        if self.layout().strides() != contiguous_strides(self.shape()).as_slice() {
            write!(f, ", strides {:?}", self.layout().strides())?;
        }
        if self.requires_grad() {
            write!(f, ", requires_grad")?;
        }
        f.write_str(")")
    }
}

impl Operand for Tensor {
    fn describe(&self) -> String {
        format!("{:?} {} on {}", self.shape(), self.dtype(), self.device())
    }
}
