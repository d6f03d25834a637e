//! cuDNN's descriptors: typed attributes of opaque objects, and the library's graphs and plans made from them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use super::graph::{Format, Graph, Operation, Overrides, Pointwise, RANK, Reduction, Tensor, TensorIndex};
use crate::cuda::search::{Library, OpenLibrary, SearchEnvironment};
use crate::cuda::sys::RawStream;
use crate::cuda::table::{CallStatus, entry_points, function_at, numbers, text_at};
use crate::{Code, Error, Result};

entry_points! {
    /// libcudnn.
    CudnnTable from cudarc::cudnn::sys {
        create = cudnnCreate (handle: *mut usize);
        set_stream = cudnnSetStream (handle: usize, stream: RawStream);
        descriptor_create = cudnnBackendCreateDescriptor (kind: u32, descriptor: *mut usize);
        descriptor_destroy = cudnnBackendDestroyDescriptor (descriptor: usize);
        descriptor_set = cudnnBackendSetAttribute (descriptor: usize, attribute: u32, kind: u32, count: i64,
            values: *const c_void);
        descriptor_get = cudnnBackendGetAttribute (descriptor: usize, attribute: u32, kind: u32, room: i64, count: *mut i64,
            values: *mut c_void);
        finalize = cudnnBackendFinalize (descriptor: usize);
        execute = cudnnBackendExecute (handle: usize, plan: usize, pack: usize);
        tensor_create = cudnnCreateTensorDescriptor (descriptor: *mut usize);
        tensor_destroy = cudnnDestroyTensorDescriptor (descriptor: usize);
        tensor_set = cudnnSetTensorNdDescriptor (descriptor: usize, format: u32, rank: c_int, sizes: *const c_int,
            strides: *const c_int);
        dropout_create = cudnnCreateDropoutDescriptor (descriptor: *mut usize);
        dropout_destroy = cudnnDestroyDropoutDescriptor (descriptor: usize);
        dropout_set = cudnnSetDropoutDescriptor (descriptor: usize, handle: usize, probability: f32, states: *mut c_void,
            bytes: usize, seed: u64);
        network_create = cudnnCreateRNNDescriptor (descriptor: *mut usize);
        network_destroy = cudnnDestroyRNNDescriptor (descriptor: usize);
        network_set = cudnnSetRNNDescriptor_v8 (descriptor: usize, algorithm: u32, mode: u32, biases: u32, directions: u32,
            input_mode: u32, format: u32, precision: u32, math: u32, inputs: i32, hidden: i32, projected: i32, layers: i32,
            dropout: usize, flags: u32);
        rows_create = cudnnCreateRNNDataDescriptor (descriptor: *mut usize);
        rows_destroy = cudnnDestroyRNNDataDescriptor (descriptor: usize);
        rows_set = cudnnSetRNNDataDescriptor (descriptor: usize, format: u32, layout: u32, most: c_int, sequences: c_int,
            features: c_int, lengths: *const c_int, padding: *mut c_void);
        room = cudnnGetRNNTempSpaceSizes (handle: usize, network: usize, mode: u32, input: usize, workspace: *mut usize,
            reserve: *mut usize);
        weight_bytes = cudnnGetRNNWeightSpaceSize (handle: usize, network: usize, bytes: *mut usize);
        weight_part = cudnnGetRNNWeightParams (handle: usize, network: usize, layer: i32, bytes: usize, weights: u64, place: i32,
            matrix: usize, matrix_at: *mut u64, bias: usize, bias_at: *mut u64);
        forward = cudnnRNNForward (handle: usize, network: usize, mode: u32, lengths: u64, input: usize, x: u64, output: usize,
            y: u64, hidden: usize, hx: u64, hy: u64, cell: usize, cx: u64, cy: u64, weight_bytes: usize, weights: u64,
            workspace_bytes: usize, workspace: u64, reserve_bytes: usize, reserve: u64);
        backward = cudnnRNNBackwardData_v8 (handle: usize, network: usize, lengths: u64, output: usize, y: u64, dy: u64,
            input: usize, dx: u64, hidden: usize, hx: u64, dhy: u64, dhx: u64, cell: usize, cx: u64, dcy: u64, dcx: u64,
            weight_bytes: usize, weights: u64, workspace_bytes: usize, workspace: u64, reserve_bytes: usize, reserve: u64);
        backward_weights = cudnnRNNBackwardWeights_v8 (handle: usize, network: usize, how: u32, lengths: u64, input: usize,
            x: u64, hidden: usize, hx: u64, output: usize, y: u64, weight_bytes: usize, weights: u64, workspace_bytes: usize,
            workspace: u64, reserve_bytes: usize, reserve: u64);
    }
}

/// Kinds of descriptors (`cudnnBackendDescriptorType_t`).
pub(in crate::cuda) mod kind {
    super::numbers! { numbers from cudarc::cudnn::sys::cudnnBackendDescriptorType_t, pub(in crate::cuda) u32 {
        POINTWISE = 0, CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
        ENGINE_CONFIGURATION = 3, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
        HEURISTIC = 4, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
        PLAN = 5, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
        OPERATION_POINTWISE = 13, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
        GRAPH = 15, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
        VARIANT_PACK = 16, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
        TENSOR = 17, CUDNN_BACKEND_TENSOR_DESCRIPTOR;
        MATMUL = 18, CUDNN_BACKEND_MATMUL_DESCRIPTOR;
        OPERATION_MATMUL = 19, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
        REDUCTION = 21, CUDNN_BACKEND_REDUCTION_DESCRIPTOR;
        OPERATION_REDUCTION = 22, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR;
        OPERATION_RESHAPE = 31, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
    } }
    pub(in crate::cuda) const CONVOLUTION: u32 = 1;
    pub(in crate::cuda) const ENGINE: u32 = 2;
    pub(in crate::cuda) const OPERATION_CONVOLUTION: u32 = 10;
    pub(in crate::cuda) const OPERATION_CONVOLUTION_WEIGHT: u32 = 11;
    pub(in crate::cuda) const OPERATION_CONVOLUTION_INPUT: u32 = 12;
}

/// Types of attributes (`cudnnBackendAttributeType_t`).
pub(in crate::cuda) mod of_type {
    super::numbers! { numbers from cudarc::cudnn::sys::cudnnBackendAttributeType_t, pub(in crate::cuda) u32 {
        HANDLE = 0, CUDNN_TYPE_HANDLE;
        DATA_TYPE = 1, CUDNN_TYPE_DATA_TYPE;
        BOOLEAN = 2, CUDNN_TYPE_BOOLEAN;
        INT64 = 3, CUDNN_TYPE_INT64;
        POINTER = 6, CUDNN_TYPE_VOID_PTR;
        HEURISTIC_MODE = 8, CUDNN_TYPE_HEUR_MODE;
        POINTWISE_MODE = 14, CUDNN_TYPE_POINTWISE_MODE;
        DESCRIPTOR = 15, CUDNN_TYPE_BACKEND_DESCRIPTOR;
        REDUCTION = 18, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
    } }
    pub(in crate::cuda) const FLOAT: u32 = 4;
    pub(in crate::cuda) const CONVOLUTION_MODE: u32 = 7;
    pub(in crate::cuda) const NUMERICAL_NOTE: u32 = 11;
}

/// Attributes (`cudnnBackendAttributeName_t`).
pub(in crate::cuda) mod attribute {
    super::numbers! { numbers from cudarc::cudnn::sys::cudnnBackendAttributeName_t, pub(in crate::cuda) u32 {
        POINTWISE_MODE = 0, CUDNN_ATTR_POINTWISE_MODE;
        POINTWISE_COMPUTE = 1, CUDNN_ATTR_POINTWISE_MATH_PREC;
        POINTWISE_AXIS = 9, CUDNN_ATTR_POINTWISE_AXIS;
        HEURISTIC_MODE = 200, CUDNN_ATTR_ENGINEHEUR_MODE;
        HEURISTIC_GRAPH = 201, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH;
        HEURISTIC_RESULTS = 202, CUDNN_ATTR_ENGINEHEUR_RESULTS;
        PLAN_HANDLE = 400, CUDNN_ATTR_EXECUTION_PLAN_HANDLE;
        PLAN_ENGINE_CONFIGURATION = 401, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG;
        PLAN_WORKSPACE_BYTES = 402, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE;
        OPERATION_POINTWISE_MODE = 750, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR;
        OPERATION_POINTWISE_OUTPUT = 753, CUDNN_ATTR_OPERATION_POINTWISE_YDESC;
        GRAPH_HANDLE = 800, CUDNN_ATTR_OPERATIONGRAPH_HANDLE;
        GRAPH_OPERATIONS = 801, CUDNN_ATTR_OPERATIONGRAPH_OPS;
        TENSOR_ALIGNMENT_BYTES = 900, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT;
        TENSOR_FORMAT = 901, CUDNN_ATTR_TENSOR_DATA_TYPE;
        TENSOR_SIZES = 902, CUDNN_ATTR_TENSOR_DIMENSIONS;
        TENSOR_STRIDES = 903, CUDNN_ATTR_TENSOR_STRIDES;
        TENSOR_ID = 906, CUDNN_ATTR_TENSOR_UNIQUE_ID;
        TENSOR_IS_VIRTUAL = 907, CUDNN_ATTR_TENSOR_IS_VIRTUAL;
        TENSOR_IS_BY_VALUE = 908, CUDNN_ATTR_TENSOR_IS_BY_VALUE;
        VARIANT_PACK_IDS = 1000, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS;
        VARIANT_PACK_POINTERS = 1001, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS;
        VARIANT_PACK_WORKSPACE = 1003, CUDNN_ATTR_VARIANT_PACK_WORKSPACE;
        MATMUL_COMPUTE = 1500, CUDNN_ATTR_MATMUL_COMP_TYPE;
        OPERATION_MATMUL_A = 1520, CUDNN_ATTR_OPERATION_MATMUL_ADESC;
        OPERATION_MATMUL_B = 1521, CUDNN_ATTR_OPERATION_MATMUL_BDESC;
        OPERATION_MATMUL_OUTPUT = 1522, CUDNN_ATTR_OPERATION_MATMUL_CDESC;
        OPERATION_MATMUL_MODE = 1523, CUDNN_ATTR_OPERATION_MATMUL_DESC;
        REDUCTION_OPERATOR = 1600, CUDNN_ATTR_REDUCTION_OPERATOR;
        REDUCTION_COMPUTE = 1601, CUDNN_ATTR_REDUCTION_COMP_TYPE;
        OPERATION_REDUCTION_INPUT = 1610, CUDNN_ATTR_OPERATION_REDUCTION_XDESC;
        OPERATION_REDUCTION_OUTPUT = 1611, CUDNN_ATTR_OPERATION_REDUCTION_YDESC;
        OPERATION_REDUCTION_MODE = 1612, CUDNN_ATTR_OPERATION_REDUCTION_DESC;
        OPERATION_RESHAPE_INPUT = 2200, CUDNN_ATTR_OPERATION_RESHAPE_XDESC;
        OPERATION_RESHAPE_OUTPUT = 2201, CUDNN_ATTR_OPERATION_RESHAPE_YDESC;
    } }
    pub(in crate::cuda) const CONVOLUTION_COMPUTE: u32 = 100;
    pub(in crate::cuda) const CONVOLUTION_MODE: u32 = 101;
    pub(in crate::cuda) const CONVOLUTION_DILATIONS: u32 = 102;
    pub(in crate::cuda) const CONVOLUTION_STRIDES: u32 = 103;
    /// The paddings after the last element, and before the first.
    pub(in crate::cuda) const CONVOLUTION_PADDINGS: [u32; 2] = [104, 105];
    pub(in crate::cuda) const CONVOLUTION_AXES: u32 = 106;
    pub(in crate::cuda) const CONFIGURATION_ENGINE: u32 = 300;
    /// The attributes of a convolution, and of its two gradients: the factors of result and addend, the convolution descriptor,
    /// the weight, the input and the output.
    pub(in crate::cuda) const OPERATION_CONVOLUTION: [u32; 6] = [700, 701, 702, 703, 704, 705];
    pub(in crate::cuda) const OPERATION_CONVOLUTION_INPUT: [u32; 6] = [706, 707, 708, 709, 710, 711];
    pub(in crate::cuda) const OPERATION_CONVOLUTION_WEIGHT: [u32; 6] = [712, 713, 714, 715, 716, 717];
    /// The first, second and third operand, in this order.
    pub(in crate::cuda) const OPERATION_POINTWISE_INPUTS: [u32; 3] = [751, 752, 758];
    pub(in crate::cuda) const ENGINE_NUMERICAL_NOTES: u32 = 1303;
    /// The overrides of the number of rows, of columns, and of terms of each sum.
    pub(in crate::cuda) const OPERATION_MATMUL_OVERRIDES: [u32; 3] = [1525, 1526, 1527];
}

/// The modes of heuristics for finding engines (`cudnnBackendHeurMode_t`): first the engines that the performance model
/// prefers, then any engine that works.
pub(in crate::cuda) const HEURISTIC_MODES: [u32; 2] = [3, 2];

/// The statuses (`cudnnStatus_t`) that mean "not supported".
pub(in crate::cuda) const NOT_SUPPORTED: std::ops::Range<u32> = 3000..4000;

/// The alignment of every address, in bytes.
pub(super) const ALIGNMENT_BYTES: i64 = 16;

/// The functions of the library, shared by the descriptors that it made.
pub(super) struct Api {
    pub(super) table: CudnnTable,
    /// The version: 91400 for 9.14.0.
    pub(super) version: usize,
    status_name: Option<unsafe extern "C" fn(u32) -> *const c_char>,
    last_error: Option<unsafe extern "C" fn(*mut c_char, usize)>,
}

/// A descriptor that is destroyed when it is dropped.
pub(super) struct Descriptor {
    api: Arc<Api>,
    raw: usize,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: `raw` is a descriptor, and this is its only owner.
        let _ = unsafe { self.api.table.descriptor_destroy(self.raw) };
    }
}

impl Api {
    pub(super) fn load(environment: &SearchEnvironment) -> Result<Arc<Self>> {
        let library = OpenLibrary::open(Library::Cudnn, environment, "cudnnCreate")?;
        let symbol = |name: &CStr| library.symbol(name);
        // SAFETY: the signatures are those that `cudnn_graph.h`, `cudnn_ops.h` and `cudnn_adv.h` declare for these symbols in version 9; an `OpenLibrary` is
        // never unloaded.
        unsafe {
            let version: Option<unsafe extern "C" fn() -> usize> = function_at(symbol(c"cudnnGetVersion"));
            Ok(Arc::new(Self {
                table: CudnnTable::resolve(|entry| symbol(entry.symbol)),
                version: version.map_or(0, |version| version()),
                status_name: function_at(symbol(c"cudnnGetErrorString")),
                last_error: function_at(symbol(c"cudnnGetLastErrorString")),
            }))
        }
    }

    /// Returns the version as its vendor writes it.
    pub(super) fn version_text(&self) -> String {
        let number = self.version;
        format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
    }

    pub(super) fn check(&self, outcome: CallStatus, detail: impl FnOnce() -> String) -> Result<()> {
        if outcome.is_success() {
            return Ok(());
        }
        let (detail, version) = (detail(), self.version_text());
        if outcome.missing.is_some() {
            let detail = format!("{detail}: the installed cuDNN {version} has no such call");
            return Err(Error::new(Code::LibraryMissing, outcome.call, detail));
        }
        let mut words: [c_char; 512] = [0; 512];
        // SAFETY: the first function takes any number and returns a string of the library; the second writes at most the
        // given number of bytes, terminated by a 0, about this thread's last call.
        let (name, words) = unsafe {
            let name = self.status_name.map(|name| text_at(name(outcome.status))).unwrap_or_default();
            if let Some(last_error) = self.last_error {
                last_error(words.as_mut_ptr(), words.len() - 1);
            }
            (name, text_at(words.as_ptr()))
        };
        let words = words.trim().replace('\n', "; ");
        let status = outcome.status;
        let code = if NOT_SUPPORTED.contains(&status) { Code::NotSupported } else { Code::Library };
        Err(Error::new(
            code,
            outcome.call,
            format!("{name} ({status}) of cuDNN {version}: {detail}: {words}"),
        ))
    }

    /// Creates a handle for the current context's device. It is never destroyed.
    pub(super) fn handle(&self, device: u32) -> Result<usize> {
        let mut handle = 0_usize;
        // SAFETY: writes one handle.
        let outcome = unsafe { self.table.create(&raw mut handle) };
        self.check(outcome, || format!("device {device}"))?;
        Ok(handle)
    }

    /// Sets the stream of a handle.
    ///
    /// # Safety
    /// Both are alive and belong to one device, and no other thread uses the handle.
    pub(super) unsafe fn set_stream(&self, handle: usize, stream: RawStream) -> CallStatus {
        // SAFETY: the caller's promise.
        unsafe { self.table.set_stream(handle, stream) }
    }

    pub(super) fn descriptor(self: &Arc<Self>, kind: u32) -> Result<Descriptor> {
        let mut raw = 0_usize;
        // SAFETY: writes one descriptor.
        let outcome = unsafe { self.table.descriptor_create(kind, &raw mut raw) };
        self.check(outcome, || format!("a descriptor of kind {kind}"))?;
        Ok(Descriptor { api: Arc::clone(self), raw })
    }

    /// Executes a plan on a stream of the handle's device.
    ///
    /// # Safety
    /// No other thread uses the handle or the plan. `pointers` are the addresses for `ids`: in host memory for scalars,
    /// which are read before the call returns.
    pub(super) unsafe fn execute(
        self: &Arc<Self>,
        handle: usize,
        stream: RawStream,
        plan: &Descriptor,
        (ids, pointers): (&[i64], &[u64]),
        workspace: u64,
    ) -> Result<()> {
        let pack = self.descriptor(kind::VARIANT_PACK)?;
        pack.set(attribute::VARIANT_PACK_IDS, of_type::INT64, ids)?;
        pack.set(attribute::VARIANT_PACK_POINTERS, of_type::POINTER, pointers)?;
        pack.set(attribute::VARIANT_PACK_WORKSPACE, of_type::POINTER, &[workspace])?;
        pack.finalize()?;
        // SAFETY: the handle, the stream, the plan and the pack are alive; the rest is the caller's promise.
        unsafe {
            self.check(self.table.set_stream(handle, stream), || "the stream".to_owned())?;
            self.check(self.table.execute(handle, plan.raw, pack.raw), || "the execution".to_owned())
        }
    }
}

/// Types of the values of attributes, as the library reads them.
pub(super) trait Value: Copy {}
impl Value for i64 {}
impl Value for u64 {}
impl Value for usize {}
impl Value for bool {}
impl Value for f32 {}
impl Value for u32 {}
impl Value for Format {}
impl Value for Pointwise {}
impl Value for Reduction {}

impl Descriptor {
    pub(super) fn set<T: Value>(&self, attribute: u32, of_type: u32, values: &[T]) -> Result<()> {
        let table = &self.api.table;
        // SAFETY: every attribute here is an array of 1, 4 or 8 bytes per element, as `T` is for its type, and is copied at once.
        let outcome = unsafe {
            table.descriptor_set(self.raw, attribute, of_type, values.len() as i64, values.as_ptr().cast())
        };
        self.api.check(outcome, || format!("attribute {attribute}"))
    }

    pub(super) fn refer(&self, attribute: u32, to: &Self) -> Result<()> {
        self.set(attribute, of_type::DESCRIPTOR, &[to.raw])
    }

    pub(super) fn finalize(&self) -> Result<()> {
        // SAFETY: the descriptor is alive.
        let outcome = unsafe { self.api.table.finalize(self.raw) };
        self.api.check(outcome, || "a description".to_owned())
    }
}

/// A builder of the library's descriptors of a graph. A descriptor must live as long as another descriptor refers to it, so the
/// builder keeps all of them until the plan is made.
struct Builder<'a> {
    api: &'a Arc<Api>,
    tensors: Vec<Descriptor>,
    operations: Vec<Descriptor>,
    modes: Vec<Descriptor>,
}

impl Builder<'_> {
    fn tensor(&mut self, id: i64, tensor: &Tensor) -> Result<()> {
        let made = self.api.descriptor(kind::TENSOR)?;
        made.set(attribute::TENSOR_ID, of_type::INT64, &[id])?;
        made.set(attribute::TENSOR_FORMAT, of_type::DATA_TYPE, &[tensor.format])?;
        made.set(attribute::TENSOR_ALIGNMENT_BYTES, of_type::INT64, &[ALIGNMENT_BYTES])?;
        const { assert!(RANK == 4) };
        made.set(attribute::TENSOR_SIZES, of_type::INT64, &tensor.sizes)?;
        made.set(attribute::TENSOR_STRIDES, of_type::INT64, &tensor.strides)?;
        match tensor.role {
            None => made.set(attribute::TENSOR_IS_VIRTUAL, of_type::BOOLEAN, &[true])?,
            Some(role) if role.is_number() => {
                made.set(attribute::TENSOR_IS_BY_VALUE, of_type::BOOLEAN, &[true])?;
            }
            Some(_) => {}
        }
        made.finalize()?;
        self.tensors.push(made);
        Ok(())
    }

    fn operation(&mut self, operation: &Operation) -> Result<()> {
        let made = match operation {
            Operation::Pointwise { mode, inputs, output, compute, axis } => {
                let inputs = inputs.iter().map(|input| &self.tensors[input.0]);
                let function = (*mode, *compute, *axis);
                let [how, made] = pointwise(self.api, function, inputs, &self.tensors[output.0])?;
                self.modes.push(how);
                Ok(made)
            }
            Operation::Matmul { a, b, output, overrides } => self.matmul([*a, *b, *output], overrides),
            Operation::Reduction { mode, input, output } => self.reduction(*mode, *input, *output),
            Operation::Reshape { input, output } => {
                let made = self.api.descriptor(kind::OPERATION_RESHAPE)?;
                made.refer(attribute::OPERATION_RESHAPE_INPUT, &self.tensors[input.0])?;
                made.refer(attribute::OPERATION_RESHAPE_OUTPUT, &self.tensors[output.0])?;
                Ok(made)
            }
        }?;
        made.finalize()?;
        self.operations.push(made);
        Ok(())
    }

    fn matmul(&mut self, [a, b, output]: [TensorIndex; 3], overrides: &Overrides) -> Result<Descriptor> {
        let how = self.api.descriptor(kind::MATMUL)?;
        how.set(attribute::MATMUL_COMPUTE, of_type::DATA_TYPE, &[Format::F32])?;
        how.finalize()?;
        let made = self.api.descriptor(kind::OPERATION_MATMUL)?;
        made.refer(attribute::OPERATION_MATMUL_MODE, &how)?;
        made.refer(attribute::OPERATION_MATMUL_A, &self.tensors[a.0])?;
        made.refer(attribute::OPERATION_MATMUL_B, &self.tensors[b.0])?;
        made.refer(attribute::OPERATION_MATMUL_OUTPUT, &self.tensors[output.0])?;
        for (length, attribute) in overrides.iter().zip(attribute::OPERATION_MATMUL_OVERRIDES) {
            if let Some(length) = length {
                made.refer(attribute, &self.tensors[length.0])?;
            }
        }
        self.modes.push(how);
        Ok(made)
    }

    fn reduction(&mut self, mode: Reduction, input: TensorIndex, output: TensorIndex) -> Result<Descriptor> {
        let how = self.api.descriptor(kind::REDUCTION)?;
        how.set(attribute::REDUCTION_OPERATOR, of_type::REDUCTION, &[mode])?;
        how.set(attribute::REDUCTION_COMPUTE, of_type::DATA_TYPE, &[Format::F32])?;
        how.finalize()?;
        let made = self.api.descriptor(kind::OPERATION_REDUCTION)?;
        made.refer(attribute::OPERATION_REDUCTION_MODE, &how)?;
        made.refer(attribute::OPERATION_REDUCTION_INPUT, &self.tensors[input.0])?;
        made.refer(attribute::OPERATION_REDUCTION_OUTPUT, &self.tensors[output.0])?;
        self.modes.push(how);
        Ok(made)
    }
}

/// Describes a function of tensors. Returns the descriptor of its mode, which must live until the plan is made, and the
/// operation, which is not finalized.
pub(super) fn pointwise<'t>(
    api: &Arc<Api>,
    (mode, compute, axis): (Pointwise, Format, Option<i64>),
    inputs: impl IntoIterator<Item = &'t Descriptor>,
    output: &Descriptor,
) -> Result<[Descriptor; 2]> {
    let how = api.descriptor(kind::POINTWISE)?;
    how.set(attribute::POINTWISE_MODE, of_type::POINTWISE_MODE, &[mode])?;
    how.set(attribute::POINTWISE_COMPUTE, of_type::DATA_TYPE, &[compute])?;
    if let Some(axis) = axis {
        how.set(attribute::POINTWISE_AXIS, of_type::INT64, &[axis])?;
    }
    how.finalize()?;
    let made = api.descriptor(kind::OPERATION_POINTWISE)?;
    made.refer(attribute::OPERATION_POINTWISE_MODE, &how)?;
    for (input, attribute) in inputs.into_iter().zip(attribute::OPERATION_POINTWISE_INPUTS) {
        made.refer(attribute, input)?;
    }
    made.refer(attribute::OPERATION_POINTWISE_OUTPUT, output)?;
    Ok([how, made])
}

/// Returns the id of a graph's tensor.
pub(super) const fn id(index: usize) -> i64 {
    index as i64 + 1
}

/// Makes a plan for a graph with the first engine of the library's heuristics that supports it. Returns the plan and the
/// bytes of its workspace.
pub(super) fn plan(api: &Arc<Api>, handle: usize, graph: &Graph) -> Result<(Descriptor, u64)> {
    let mut builder = Builder { api, tensors: Vec::new(), operations: Vec::new(), modes: Vec::new() };
    for (index, tensor) in graph.tensors.iter().enumerate() {
        builder.tensor(id(index), tensor)?;
    }
    for operation in &graph.operations {
        builder.operation(operation)?;
    }
    plan_of(api, handle, &builder.operations)
}

/// Makes a plan for operations with the first engine of the library's heuristics that supports them.
fn plan_of(api: &Arc<Api>, handle: usize, operations: &[Descriptor]) -> Result<(Descriptor, u64)> {
    plans_of(api, handle, operations, |_| Ok(true), 1).map(|mut plans| plans.swap_remove(0))
}

/// Makes plans for operations with the first engines of the library's heuristics that pass the filter and support them: at
/// least one and at most `most`. Returns each with the bytes of its workspace.
pub(super) fn plans_of(
    api: &Arc<Api>,
    handle: usize,
    operations: &[Descriptor],
    will_do: impl Fn(&Descriptor) -> Result<bool>,
    most: usize,
) -> Result<Vec<(Descriptor, u64)>> {
    let made = api.descriptor(kind::GRAPH)?;
    made.set(attribute::GRAPH_HANDLE, of_type::HANDLE, &[handle])?;
    let operations: Vec<usize> = operations.iter().map(|operation| operation.raw).collect();
    made.set(attribute::GRAPH_OPERATIONS, of_type::DESCRIPTOR, &operations)?;
    made.finalize()?;
    let (mut plans, mut refused) = (Vec::new(), None);
    for mode in HEURISTIC_MODES {
        let configurations = configurations(api, &made, mode);
        for configuration in
            configurations.inspect_err(|error| refused = Some(error.clone())).unwrap_or_default()
        {
            if !will_do(&configuration)? {
                continue;
            }
            match finalized(api, handle, &configuration) {
                Ok(plan) => plans.push(plan),
                Err(error) => refused = refused.or(Some(error)),
            }
            if plans.len() >= most.max(1) {
                return Ok(plans);
            }
        }
        // The fallback mode is used only if the performance model returns no engine.
        if !plans.is_empty() {
            return Ok(plans);
        }
    }
    let version = api.version_text();
    let detail = format!("cuDNN {version} has no engine for this");
    let why = refused.map_or_else(|| "its heuristics name none".to_owned(), |error| error.to_string());
    Err(Error::new(Code::NotSupported, "cudnnBackendFinalize", detail).with_detail(&why))
}

/// Returns an engine's numerical notes (`cudnnBackendNumericalNote_t`).
pub(super) fn numerical_notes(api: &Arc<Api>, configuration: &Descriptor) -> Result<Vec<u32>> {
    let engine = api.descriptor(kind::ENGINE)?;
    let (mut raw, mut notes, mut count) = (engine.raw, [0_u32; 32], 0_i64);
    let get = |of: &Descriptor, what: u32, of_type: u32, room: i64, count: &mut i64, values: *mut c_void| {
        // SAFETY: writes a count, and at most `room` elements of the attribute's type.
        let outcome =
            unsafe { api.table.descriptor_get(of.raw, what, of_type, room, &raw mut *count, values) };
        api.check(outcome, || format!("attribute {what} of an engine"))
    };
    let values = (&raw mut raw).cast();
    get(configuration, attribute::CONFIGURATION_ENGINE, of_type::DESCRIPTOR, 1, &mut count, values)?;
    let (what, values) = (attribute::ENGINE_NUMERICAL_NOTES, notes.as_mut_ptr().cast());
    get(&engine, what, of_type::NUMERICAL_NOTE, notes.len() as i64, &mut count, values)?;
    let count = usize::try_from(count).unwrap_or(0).min(notes.len());
    Ok(notes[..count].to_vec())
}

/// Returns the configured engines that a mode of the heuristics prefers, best first.
fn configurations(api: &Arc<Api>, graph: &Descriptor, mode: u32) -> Result<Vec<Descriptor>> {
    let heuristic = api.descriptor(kind::HEURISTIC)?;
    heuristic.refer(attribute::HEURISTIC_GRAPH, graph)?;
    heuristic.set(attribute::HEURISTIC_MODE, of_type::HEURISTIC_MODE, &[mode])?;
    heuristic.finalize()?;
    let get = |room: i64, count: &mut i64, values: *mut c_void| {
        // SAFETY: writes the count, and at most `room` descriptors into the `room` that were made for it.
        let outcome = unsafe {
            let (results, of_type) = (attribute::HEURISTIC_RESULTS, of_type::DESCRIPTOR);
            api.table.descriptor_get(heuristic.raw, results, of_type, room, &raw mut *count, values)
        };
        api.check(outcome, || format!("engines by mode {mode}"))
    };
    let mut count = 0_i64;
    get(0, &mut count, std::ptr::null_mut())?;
    let made: Vec<Descriptor> =
        (0..count).map(|_| api.descriptor(kind::ENGINE_CONFIGURATION)).collect::<Result<_>>()?;
    let mut raw: Vec<usize> = made.iter().map(|descriptor| descriptor.raw).collect();
    get(raw.len() as i64, &mut count, raw.as_mut_ptr().cast())?;
    // The library fills the descriptors from the first on.
    Ok(made.into_iter().take(usize::try_from(count).unwrap_or(0)).collect())
}

fn finalized(api: &Arc<Api>, handle: usize, configuration: &Descriptor) -> Result<(Descriptor, u64)> {
    let plan = api.descriptor(kind::PLAN)?;
    plan.set(attribute::PLAN_HANDLE, of_type::HANDLE, &[handle])?;
    plan.refer(attribute::PLAN_ENGINE_CONFIGURATION, configuration)?;
    plan.finalize()?;
    let (mut bytes, mut count) = (0_i64, 0_i64);
    // SAFETY: writes one number and a count.
    let outcome = unsafe {
        let values = (&raw mut bytes).cast();
        let workspace = attribute::PLAN_WORKSPACE_BYTES;
        api.table.descriptor_get(plan.raw, workspace, of_type::INT64, 1, &raw mut count, values)
    };
    api.check(outcome, || "the size of the workspace".to_owned())?;
    Ok((plan, u64::try_from(bytes).unwrap_or(0)))
}
