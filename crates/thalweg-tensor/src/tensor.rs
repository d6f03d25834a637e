//! [`Tensor`]: a view of device memory with a dtype, and a place in the autograd graph.

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use thalweg_ir::{DType, Element, Layout, byte_count, contiguous_strides, element_count};
use thalweg_runtime::graph::audit::{ObstacleKind, explain};
use thalweg_runtime::{Buffer, Device, Error, Label, Result, Stream};

use crate::argument::Argument;
use crate::autograd::{AutogradMeta, GradientEdge, ViewOf, is_grad_enabled};
use crate::caller::{at_line, creating, in_call, label_at};
use crate::random::host_room;

/// A list of tensors; most operators give one.
pub type Tensors = SmallVec<[Tensor; 2]>;

/// A tensor on one device. Clones are the same tensor; views share the storage.
///
/// Work on tensors goes to the current stream of their device and is asynchronous. The methods that wait say so.
#[derive(Clone)]
pub struct Tensor(pub(crate) Arc<TensorState>);

pub(crate) struct TensorState {
    pub(crate) storage: Arc<Storage>,
    pub(crate) layout: Layout,
    pub(crate) dtype: DType,
    pub(crate) autograd: AutogradMeta,
}

/// The memory behind tensors that are views of each other.
pub(crate) struct Storage {
    pub(crate) buffer: Buffer,
    /// How often it was written in place: what backward saved must not have changed.
    version: AtomicU32,
}

impl Storage {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Self { buffer, version: AtomicU32::new(0) }
    }
}

impl Tensor {
    // ---- Making ---------------------------------------------------------------------------------------------------

    /// Returns a tensor whose elements are anything (`torch.empty`).
    #[track_caller]
    pub fn empty(shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        let location = Location::caller();
        creating("empty", (shape, dtype, device), location, || {
            Self::empty_on(shape, dtype, &device.current_stream(), label_at("empty", location))
        })
    }

    /// Returns a tensor whose elements are anything, in memory that belongs to this stream, for the operator of this label.
    pub(crate) fn empty_on(shape: &[usize], dtype: DType, stream: &Stream, label: Label) -> Result<Self> {
        let bytes = byte_count(shape, dtype)?;
        let buffer = Buffer::labelled(stream, bytes as u64, label)?;
        Ok(Self::over(Arc::new(Storage::new(buffer)), Layout::contiguous(shape), dtype))
    }

    /// Returns a tensor over a storage, outside the graph.
    pub(crate) fn over(storage: Arc<Storage>, layout: Layout, dtype: DType) -> Self {
        Self::from_parts(storage, layout, dtype, AutogradMeta::leaf(false))
    }

    pub(crate) fn from_parts(
        storage: Arc<Storage>,
        layout: Layout,
        dtype: DType,
        autograd: AutogradMeta,
    ) -> Self {
        Self(Arc::new(TensorState { storage, layout, dtype, autograd }))
    }

    /// Returns a tensor with these elements, row-major. Returns when `values` may change.
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize], device: &Device) -> Result<Self> {
        let location = Location::caller();
        creating("from_slice", (shape, T::DTYPE, device), location, || {
            let count = element_count(shape)?;
            if count != values.len() {
                return Err(Error::invalid(format!(
                    "the shape has {count} elements, the slice {}",
                    values.len()
                )));
            }
            let stream = device.current_stream();
            let label = label_at("from_slice", location);
            let tensor = Self::empty_on(shape, T::DTYPE, &stream, label)?;
            stream.copy_from_host(tensor.pointer(), bytemuck::cast_slice(values), label)?;
            Ok(tensor)
        })
    }

    // ---- What it is -----------------------------------------------------------------------------------------------

    /// Returns the extents.
    pub fn shape(&self) -> &[usize] {
        self.0.layout.shape()
    }

    /// Returns the extent of a dimension; a negative one is counted from the end.
    #[track_caller]
    pub fn size(&self, dimension: i64) -> Result<usize> {
        in_call("size", &[self], Location::caller(), || Ok(self.shape()[self.0.layout.dimension(dimension)?]))
    }

    /// Returns how many dimensions it has.
    pub fn rank(&self) -> usize {
        self.0.layout.rank()
    }

    /// Returns how many elements it has (`numel`).
    pub fn elements(&self) -> usize {
        self.0.layout.elements()
    }

    /// Returns the dtype.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.0.storage.buffer.device()
    }

    /// Returns shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Returns whether its elements lie row-major with no gaps.
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }

    /// Returns the address of the first element (`data_ptr`); it is valid while the tensor lives.
    pub fn pointer(&self) -> DevicePointer {
        let offset = self.0.layout.offset() * self.dtype().size_bytes();
        self.0.storage.buffer.pointer().offset(offset as u64)
    }

    /// Says that work on `stream` uses the tensor: when it is dropped, its memory is not reused before the work that the
    /// stream has then is done (`torch.Tensor.record_stream`).
    #[track_caller]
    pub fn record_stream(&self, stream: &Stream) {
        self.0.storage.buffer.record_stream(stream);
    }

    /// Says that what `stream` has been given so far is the last that it does with the memory, until the next call. Once the
    /// tensor is dropped, on any thread and at any time, its memory waits for that point of the stream and for nothing
    /// later. Nothing blocks.
    #[track_caller]
    pub fn record_use(&self, stream: &Stream) {
        self.0.storage.buffer.record_use(stream);
    }

    /// Returns the memory behind it.
    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.0.storage
    }

    /// Returns how often the memory was written in place.
    pub(crate) fn version(&self) -> u32 {
        self.0.storage.version.load(Ordering::Acquire)
    }

    /// Notes a write in place by a kernel of one's own (`torch.autograd.graph.increment_version`): backward then refuses to read
    /// what it has saved of this memory before. Operators in place do this themselves.
    pub fn bump_version(&self) {
        self.0.storage.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns a number that tells the tensor from every other that lives.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Returns whether both are views of one storage.
    pub fn shares_storage_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.storage, &other.0.storage)
    }

    // ---- Autograd -------------------------------------------------------------------------------------------------

    /// Returns the same memory outside the autograd graph.
    #[must_use]
    pub fn detach(&self) -> Self {
        self.with_autograd(AutogradMeta::leaf(false))
    }

    /// Returns the gradient that `backward` has accumulated, if any.
    pub fn grad(&self) -> Option<Self> {
        self.gradient_slot().lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets or forgets the gradient: it has the tensor's shape, dtype and device.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if it has not.
    #[track_caller]
    pub fn set_grad(&self, gradient: Option<Self>) -> Result<()> {
        if let Some(gradient) = &gradient {
            at_line(Location::caller(), || self.check_gradient("set_grad", gradient))?;
        }
        *self.gradient_slot().lock().unwrap_or_else(PoisonError::into_inner) = gradient;
        Ok(())
    }

    /// Forgets the gradient.
    pub fn zero_grad(&self) {
        *self.gradient_slot().lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Refuses a gradient that is not this tensor's.
    pub(crate) fn check_gradient(&self, operator: &str, gradient: &Self) -> Result<()> {
        let fits = gradient.shape() == self.shape()
            && gradient.dtype() == self.dtype()
            && gradient.device() == self.device();
        if fits {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{operator}: the gradient is {:?} {} on {}, the tensor {:?} {} on {}",
            gradient.shape(),
            gradient.dtype(),
            gradient.device(),
            self.shape(),
            self.dtype(),
            self.device()
        )))
    }

    pub(crate) fn gradient_slot(&self) -> &Mutex<Option<Self>> {
        self.0.autograd.gradient()
    }

    pub(crate) fn with_autograd(&self, autograd: AutogradMeta) -> Self {
        Self::from_parts(self.0.storage.clone(), self.0.layout.clone(), self.dtype(), autograd)
    }

    /// Returns the result of a node that recorded itself.
    pub(crate) fn with_edge(&self, edge: GradientEdge) -> Self {
        self.with_autograd(self.0.autograd.with_edge(edge))
    }

    /// Makes the tensor the result of a node that recorded itself. Tensors that are clones of it stay what they were.
    pub(crate) fn join(&mut self, edge: GradientEdge) {
        match Arc::get_mut(&mut self.0) {
            Some(state) => state.autograd.join(edge),
            None => *self = self.with_edge(edge),
        }
    }

    /// Returns another layout over the same storage, as a view of it.
    pub(crate) fn view(&self, layout: Layout) -> Self {
        let view_of = match self.0.autograd.view_of() {
            Some(view_of) => view_of.clone(),
            None if is_grad_enabled() => ViewOf::Base(self.clone()),
            None => ViewOf::Unrecorded,
        };
        Self::from_parts(self.0.storage.clone(), layout, self.dtype(), AutogradMeta::view(view_of))
    }

    /// Returns another layout over the same storage, outside the graph.
    pub(crate) fn with_layout(&self, layout: Layout) -> Self {
        Self::over(self.0.storage.clone(), layout, self.dtype())
    }

    // ---- Reading --------------------------------------------------------------------------------------------------

    /// Returns the elements, row-major. Blocks until they are there. `Bool` tensors are read as `u8`.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let label = label_at("to_vec", Location::caller());
        in_call("to_vec", &[self], label.location, || self.read(label, None))
    }

    /// Reads the elements; `kind` is what that is to the audit of a capture, where it is more than a copy.
    pub(crate) fn read<T: Element>(&self, label: Label, kind: Option<ObstacleKind>) -> Result<Vec<T>> {
        let readable = self.dtype() == T::DTYPE || (self.dtype() == DType::Bool && T::DTYPE == DType::U8);
        if !readable {
            return Err(Error::invalid(format!(
                "the tensor is {}, not {}; convert it with `to_dtype`",
                self.dtype(),
                T::DTYPE
            )));
        }
        let source = self.detach().contiguous()?;
        let mut values = host_room(self.elements())?;
        values.resize(self.elements(), T::from_f64(0.0));
        let stream = self.device().current_stream();
        if let Some(kind) = kind {
            explain(self.device(), kind, label);
        }
        stream.copy_to_host(bytemuck::cast_slice_mut(&mut values), source.pointer(), label)?;
        Ok(values)
    }

    /// Returns the only element of a tensor with one element. Blocks until it is there.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        let label = label_at("item", Location::caller());
        in_call("item", &[self], label.location, || {
            if self.elements() != 1 {
                return Err(Error::invalid(format!("the tensor has {} elements, not 1", self.elements())));
            }
            Ok(self.read::<T>(label, Some(ObstacleKind::DataDependentShape))?[0])
        })
    }
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

/// Describes a call for errors and labels, as `name(shape dtype, …)`.
pub(crate) fn describe(operator: &str, tensors: &[&Tensor]) -> String {
    let list: Vec<String> = tensors
        .iter()
        .map(|tensor| format!("{:?} {} on {}", tensor.shape(), tensor.dtype(), tensor.device()))
        .collect();
    format!("{operator}({})", list.join(", "))
}

/// Describes a call that makes a tensor, as [`describe`] does.
pub(crate) fn describe_new(operator: &str, shape: &[usize], dtype: DType, device: &Device) -> String {
    format!("{operator}({shape:?} {dtype} on {device})")
}

/// Describes a call with any arguments, as [`describe`] does: by its tensors, or by the shape, dtype and device of the new tensor.
pub(crate) fn describe_call(operator: &str, arguments: &[Argument<'_>], device: Option<&Device>) -> String {
    let mut tensors: Vec<&Tensor> = Vec::new();
    let (mut shape, mut dtype): (&[i64], _) = (&[], None);
    for argument in arguments {
        match argument {
            Argument::Tensor(tensor) => tensors.push(tensor),
            Argument::Tensors(list) => tensors.extend(list.iter()),
            Argument::OptionalTensors(list) => tensors.extend(list.iter().flatten()),
            Argument::Ints(list) if shape.is_empty() => shape = list,
            Argument::DType(of) => dtype = Some(of),
            _ => {}
        }
    }
    match (tensors.as_slice(), dtype, device) {
        ([], Some(dtype), Some(device)) => format!("{operator}({shape:?} {dtype} on {device})"),
        (tensors, ..) => describe(operator, tensors),
    }
}
