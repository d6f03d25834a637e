//! PyTorch's own kernels, which the ones registered here replace: the functions of `at::cuda` (or `at::cpu`), which PyTorch's
//! libraries export and which bypass its dispatcher.
//!
//! The stable interface cannot call the kernel that a registration covers: its calls go through the dispatcher, and would return
//! to our kernel. These functions are C++. A mangled name contains the types of the arguments, so a PyTorch with another
//! declaration exports another name; the function is then not found, and the operator is not registered. The memory layout of the
//! types is not in the name: it is that of the C++ ABI on x86-64 with the GNU standard library: `at::Tensor` is one pointer with
//! a destructor, so a reference is the address of that pointer, and a result is written to memory of the caller's;
//! `c10::ArrayRef` is a pointer and a length; `std::optional<at::Tensor>` is a tensor and a flag; a `std::tuple` is stored in
//! reverse order.
//!
//! These functions throw PyTorch's own exceptions, which unwind through the frames here; these drop what they own.

use std::mem::MaybeUninit;

use super::libtorch::{Handle, Loaded, Stack, Tensor};

/// `c10::ArrayRef<int64_t>`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayRef {
    pub(crate) first: *const i64,
    pub(crate) count: usize,
}

/// `std::optional<at::Tensor>` with a borrowed tensor.
#[repr(C)]
pub(crate) struct OptionalTensor {
    pub(crate) word: u64,
    pub(crate) is_there: bool,
}

impl OptionalTensor {
    fn of(tensor: Option<&Tensor<'_>>) -> Self {
        Self { word: tensor.map_or(0, Tensor::word), is_there: tensor.is_some() }
    }
}

/// `std::array<bool, 3>`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Mask(pub(crate) [bool; 3]);

type Word = MaybeUninit<u64>;
pub(crate) type Forward = unsafe extern "C-unwind" fn(*mut Word, Handle, i64, bool);
pub(crate) type Backward = unsafe extern "C-unwind" fn(*mut Word, Handle, Handle, i64, i8);
type Norm = unsafe extern "C-unwind" fn(
    *mut Word,
    Handle,
    ArrayRef,
    *const OptionalTensor,
    *const OptionalTensor,
    f64,
);
type NormBackward = unsafe extern "C-unwind" fn(
    *mut Word,
    Handle,
    Handle,
    ArrayRef,
    Handle,
    Handle,
    *const OptionalTensor,
    *const OptionalTensor,
    Mask,
);

/// `std::optional<double>`, which is passed in registers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OptionalNumber {
    pub(crate) number: f64,
    pub(crate) is_there: bool,
}

type GroupNorm = unsafe extern "C-unwind" fn(
    *mut Word,
    Handle,
    *const OptionalTensor,
    *const OptionalTensor,
    i64,
    i64,
    i64,
    i64,
    f64,
);
type GroupNormBackward = unsafe extern "C-unwind" fn(
    *mut Word,
    Handle,
    Handle,
    Handle,
    Handle,
    *const OptionalTensor,
    i64,
    i64,
    i64,
    i64,
    Mask,
);
type BatchNorm = unsafe extern "C-unwind" fn(
    *mut Word,
    Handle,
    *const OptionalTensor,
    *const OptionalTensor,
    *const OptionalTensor,
    *const OptionalTensor,
    bool,
    f64,
    f64,
);
type BatchNormBackward = unsafe extern "C-unwind" fn(
    *mut Word,
    Handle,
    Handle,
    *const OptionalTensor,
    *const OptionalTensor,
    *const OptionalTensor,
    *const OptionalTensor,
    *const OptionalTensor,
    bool,
    f64,
    Mask,
);
type EmbeddingBackward = unsafe extern "C-unwind" fn(*mut Word, Handle, Handle, i64, i64, bool);
type Rms = unsafe extern "C-unwind" fn(*mut Word, Handle, ArrayRef, *const OptionalTensor, OptionalNumber);
type RmsBackward =
    unsafe extern "C-unwind" fn(*mut Word, Handle, Handle, ArrayRef, Handle, *const OptionalTensor, Mask2);

/// `std::array<bool, 2>`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Mask2(pub(crate) [bool; 2]);

/// `std::optional<c10::ScalarType>`, or of `c10::MemoryFormat`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OptionalKind {
    pub(crate) kind: i8,
    pub(crate) is_there: bool,
}

impl OptionalKind {
    fn of(kind: Option<i32>) -> Self {
        Self { kind: kind.unwrap_or(0) as i8, is_there: kind.is_some() }
    }
}

/// `c10::OptionalArrayRef<int64_t>`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OptionalArrayRef {
    pub(crate) list: ArrayRef,
    pub(crate) is_there: bool,
}

pub(crate) type Reduce = unsafe extern "C-unwind" fn(*mut Word, Handle, ArrayRef, bool);
pub(crate) type ReduceTo =
    unsafe extern "C-unwind" fn(*mut Word, Handle, OptionalArrayRef, bool, OptionalKind);
type CloneTo = unsafe extern "C-unwind" fn(*mut Word, Handle, OptionalKind);

/// `c10::ArrayRef<at::Tensor>` with borrowed tensors.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct TensorList {
    pub(crate) first: *const u64,
    pub(crate) count: usize,
}

type AdamOf<R> = unsafe extern "C-unwind" fn(
    TensorList,
    TensorList,
    TensorList,
    TensorList,
    TensorList,
    TensorList,
    R,
    f64,
    f64,
    f64,
    f64,
    bool,
    bool,
    *const OptionalTensor,
    *const OptionalTensor,
);
pub(crate) type AdamOfNumber = AdamOf<f64>;
pub(crate) type AdamOfTensor = AdamOf<Handle>;

/// PyTorch's kernel of a fused Adam or AdamW, by the kind of its learning rate.
#[derive(Clone, Copy)]
pub(crate) enum Adam {
    OfNumber(AdamOfNumber),
    OfTensor(AdamOfTensor),
}

/// PyTorch's own kernels; `None` for those that this PyTorch does not export.
#[derive(Clone, Copy, Default)]
pub(crate) struct Originals {
    pub(crate) softmax: Option<Forward>,
    pub(crate) log_softmax: Option<Forward>,
    pub(crate) softmax_backward: Option<Backward>,
    pub(crate) log_softmax_backward: Option<Backward>,
    pub(crate) layer_norm: Option<Norm>,
    pub(crate) layer_norm_backward: Option<NormBackward>,
    pub(crate) embedding_backward: Option<EmbeddingBackward>,
    pub(crate) rms_norm: Option<Rms>,
    pub(crate) rms_norm_backward: Option<RmsBackward>,
    pub(crate) group_norm: Option<GroupNorm>,
    pub(crate) group_norm_backward: Option<GroupNormBackward>,
    pub(crate) batch_norm: Option<BatchNorm>,
    pub(crate) batch_norm_backward: Option<BatchNormBackward>,
    pub(crate) sum: Option<ReduceTo>,
    pub(crate) mean: Option<ReduceTo>,
    pub(crate) amax: Option<Reduce>,
    pub(crate) logsumexp: Option<Reduce>,
    pub(crate) clone: Option<CloneTo>,
    pub(crate) adam: Option<Adam>,
    pub(crate) adam_by_tensor: Option<Adam>,
    pub(crate) adamw: Option<Adam>,
    pub(crate) adamw_by_tensor: Option<Adam>,
}

/// The mangled name of `at::…::native_layer_norm_backward` after its namespace.
const NORM_BACKWARD: &str = "26native_layer_norm_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES3_S3_\
                             RKSt8optionalIS1_ESA_St5arrayIbLm3EE";

/// The mangled name of `at::…::native_group_norm_backward` after its namespace.
const GROUP_BACKWARD: &str =
    "26native_group_norm_backwardERKNS_6TensorES3_S3_S3_RKSt8optionalIS1_EllllSt5arrayIbLm3EE";

/// The mangled names of `at::…::native_batch_norm` and `at::…::native_batch_norm_backward` after their namespace.
const BATCH: &str = "17native_batch_normERKNS_6TensorERKSt8optionalIS1_ES7_S7_S7_bdd";
const BATCH_BACKWARD: &str =
    "26native_batch_norm_backwardERKNS_6TensorES3_RKSt8optionalIS1_ES7_S7_S7_S7_bdSt5arrayIbLm3EE";

/// The mangled names of `at::…::_fused_rms_norm` and `at::…::_fused_rms_norm_backward` after their namespace.
const RMS: &str = "15_fused_rms_normERKNS_6TensorEN3c108ArrayRefIlEERKSt8optionalIS1_ES7_IdE";
const RMS_BACKWARD: &str =
    "24_fused_rms_norm_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES3_RKSt8optionalIS1_ESt5arrayIbLm2EE";

impl Originals {
    /// Finds the kernels of a namespace, given in mangled form: `4cuda` or `3cpu`.
    pub(crate) fn find(library: &Loaded, namespace: &str) -> Self {
        let name = |rest: &str| format!("_ZN2at{namespace}{rest}");
        // An operator that PyTorch composes of others has one function for all devices.
        let composed = |rest: &str| format!("_ZN2at25compositeexplicitautograd{rest}");
        let to = "ERKNS_6TensorEN3c1016OptionalArrayRefIlEEbSt8optionalINS4_10ScalarTypeEE";
        let lists = "EN3c108ArrayRefINS_6TensorEEES4_S4_S4_S4_S4_";
        let by_number = |own: &str| name(&format!("{own}{lists}dddddbbRKSt8optionalIS3_ES8_"));
        let by_tensor = |own: &str| name(&format!("{own}{lists}RKS3_ddddbbRKSt8optionalIS3_ESA_"));
        let backward = "_backward_dataERKNS_6TensorES3_lN3c1010ScalarTypeE";
        // SAFETY: a mangled name contains the types of the arguments, and the module's documentation has their layouts.
        unsafe {
            Self {
                softmax: library.function(&name("8_softmaxERKNS_6TensorElb")).ok(),
                log_softmax: library.function(&name("12_log_softmaxERKNS_6TensorElb")).ok(),
                softmax_backward: library.function(&name(&format!("22_softmax{backward}"))).ok(),
                log_softmax_backward: library.function(&name(&format!("26_log_softmax{backward}"))).ok(),
                layer_norm: library
                    .function(&name(
                        "17native_layer_normERKNS_6TensorEN3c108ArrayRefIlEERKSt8optionalIS1_ESA_d",
                    ))
                    .ok(),
                layer_norm_backward: library.function(&name(NORM_BACKWARD)).ok(),
                embedding_backward: library
                    .function(&name("24embedding_dense_backwardERKNS_6TensorES3_llb"))
                    .ok(),
                rms_norm: library.function(&name(RMS)).ok(),
                rms_norm_backward: library.function(&name(RMS_BACKWARD)).ok(),
                group_norm: library
                    .function(&name("17native_group_normERKNS_6TensorERKSt8optionalIS1_ES7_lllld"))
                    .ok(),
                group_norm_backward: library.function(&name(GROUP_BACKWARD)).ok(),
                batch_norm: library.function(&name(BATCH)).ok(),
                batch_norm_backward: library.function(&name(BATCH_BACKWARD)).ok(),
                sum: library.function(&name(&format!("3sum{to}"))).ok(),
                mean: library.function(&name(&format!("4mean{to}"))).ok(),
                amax: library.function(&name("4amaxERKNS_6TensorEN3c108ArrayRefIlEEb")).ok(),
                logsumexp: library.function(&composed("9logsumexpERKNS_6TensorEN3c108ArrayRefIlEEb")).ok(),
                clone: library
                    .function(&composed("5cloneERKNS_6TensorESt8optionalIN3c1012MemoryFormatEE"))
                    .ok(),
                adam: library.function(&by_number("12_fused_adam_")).ok().map(Adam::OfNumber),
                adam_by_tensor: library.function(&by_tensor("12_fused_adam_")).ok().map(Adam::OfTensor),
                adamw: library.function(&by_number("13_fused_adamw_")).ok().map(Adam::OfNumber),
                adamw_by_tensor: library.function(&by_tensor("13_fused_adamw_")).ok().map(Adam::OfTensor),
            }
        }
    }
}

/// The arguments of `_softmax` and `_log_softmax`.
pub(crate) struct ForwardArguments<'t> {
    pub(crate) input: Tensor<'t>,
    pub(crate) dimension: i64,
    pub(crate) half_to_float: bool,
}

/// The arguments of `_softmax_backward_data` and `_log_softmax_backward_data`.
pub(crate) struct BackwardArguments<'t> {
    pub(crate) gradient: Tensor<'t>,
    pub(crate) output: Tensor<'t>,
    pub(crate) dimension: i64,
    /// PyTorch's number of the input's dtype.
    pub(crate) input_dtype: i32,
}

/// The arguments of `native_layer_norm`.
pub(crate) struct NormArguments<'t> {
    pub(crate) input: Tensor<'t>,
    pub(crate) shape: Vec<i64>,
    pub(crate) weight: Option<Tensor<'t>>,
    pub(crate) bias: Option<Tensor<'t>>,
    pub(crate) epsilon: f64,
}

/// The arguments of `native_layer_norm_backward`.
pub(crate) struct NormBackwardArguments<'t> {
    pub(crate) gradient: Tensor<'t>,
    pub(crate) input: Tensor<'t>,
    pub(crate) shape: Vec<i64>,
    pub(crate) mean: Tensor<'t>,
    pub(crate) deviation: Tensor<'t>,
    pub(crate) weight: Option<Tensor<'t>>,
    pub(crate) bias: Option<Tensor<'t>>,
    pub(crate) mask: Mask,
}

/// The arguments of `embedding_dense_backward`.
pub(crate) struct EmbeddingArguments<'t> {
    pub(crate) gradient: Tensor<'t>,
    pub(crate) indices: Tensor<'t>,
    pub(crate) embeddings: i64,
    pub(crate) padding: i64,
    pub(crate) by_frequency: bool,
}

/// The arguments of `_fused_rms_norm`.
pub(crate) struct RmsArguments<'t> {
    pub(crate) input: Tensor<'t>,
    pub(crate) shape: Vec<i64>,
    pub(crate) weight: Option<Tensor<'t>>,
    pub(crate) epsilon: Option<f64>,
}

/// The arguments of `native_group_norm`.
pub(crate) struct GroupArguments<'t> {
    pub(crate) input: Tensor<'t>,
    pub(crate) weight: Option<Tensor<'t>>,
    pub(crate) bias: Option<Tensor<'t>>,
    /// The numbers of instances, channels, points of a channel, and groups.
    pub(crate) sizes: [i64; 4],
    pub(crate) epsilon: f64,
}

/// The arguments of `native_group_norm_backward`.
pub(crate) struct GroupBackwardArguments<'t> {
    pub(crate) gradient: Tensor<'t>,
    pub(crate) input: Tensor<'t>,
    pub(crate) mean: Tensor<'t>,
    pub(crate) deviation: Tensor<'t>,
    pub(crate) weight: Option<Tensor<'t>>,
    /// The sizes, as in [`GroupArguments`].
    pub(crate) sizes: [i64; 4],
    pub(crate) mask: Mask,
}

/// The arguments of `native_batch_norm`.
pub(crate) struct BatchArguments<'t> {
    pub(crate) input: Tensor<'t>,
    /// Weight, bias, running mean, running variance.
    pub(crate) parameters: [Option<Tensor<'t>>; 4],
    pub(crate) training: bool,
    pub(crate) momentum: f64,
    pub(crate) epsilon: f64,
}

/// The arguments of `native_batch_norm_backward`.
pub(crate) struct BatchBackwardArguments<'t> {
    pub(crate) gradient: Tensor<'t>,
    pub(crate) input: Tensor<'t>,
    /// Weight, running mean, running variance, the batch's mean and inverse deviation.
    pub(crate) parameters: [Option<Tensor<'t>>; 5],
    pub(crate) training: bool,
    pub(crate) epsilon: f64,
    pub(crate) mask: Mask,
}

/// The arguments of `_fused_rms_norm_backward`.
pub(crate) struct RmsBackwardArguments<'t> {
    pub(crate) gradient: Tensor<'t>,
    pub(crate) input: Tensor<'t>,
    pub(crate) shape: Vec<i64>,
    pub(crate) root: Tensor<'t>,
    pub(crate) weight: Option<Tensor<'t>>,
    pub(crate) mask: [bool; 2],
}

/// The arguments of `sum.dim_IntList`, `mean.dim`, `amax` and `logsumexp`.
pub(crate) struct ReduceArguments<'t> {
    pub(crate) input: Tensor<'t>,
    pub(crate) dimensions: Option<Vec<i64>>,
    pub(crate) keeps: bool,
    /// PyTorch's number of the result's dtype.
    pub(crate) to: Option<i32>,
}

/// The arguments of `clone`.
pub(crate) struct CloneArguments<'t> {
    pub(crate) input: Tensor<'t>,
    /// PyTorch's number of the layout.
    pub(crate) format: Option<i32>,
}

/// A learning rate, with PyTorch's kernel that takes it.
pub(crate) enum Rate<'t> {
    Number(f64, AdamOfNumber),
    Tensor(Tensor<'t>, AdamOfTensor),
}

/// The arguments of `_fused_adam_` and `_fused_adamw_`.
pub(crate) struct AdamArguments<'t> {
    /// Parameters, gradients, first moments, second moments, the maximum of the second moments, step counts.
    pub(crate) lists: [Vec<Tensor<'t>>; 6],
    pub(crate) rate: Rate<'t>,
    /// Both betas, weight decay, epsilon.
    pub(crate) numbers: [f64; 4],
    pub(crate) amsgrad: bool,
    pub(crate) maximize: bool,
    pub(crate) scale: Option<Tensor<'t>>,
    pub(crate) found_inf: Option<Tensor<'t>>,
}

fn shape_of(shape: &[i64]) -> ArrayRef {
    ArrayRef { first: shape.as_ptr(), count: shape.len() }
}

/// Calls a function that writes the words of `N` tensors, and returns them in memory order.
///
/// # Safety
/// The function writes them all, unless it throws.
unsafe fn words<const N: usize>(call: impl FnOnce(*mut Word)) -> [u64; N] {
    let mut words = [Word::uninit(); N];
    call(words.as_mut_ptr());
    // SAFETY: the words were written.
    words.map(|word| unsafe { word.assume_init() })
}

impl ForwardArguments<'_> {
    /// Calls PyTorch's kernel, and returns the result's word.
    pub(crate) fn call(&self, kernel: Forward) -> u64 {
        // SAFETY: the arguments have the types of its name; it writes one tensor.
        let [word] = unsafe {
            words(|result| kernel(result, self.input.handle(), self.dimension, self.half_to_float))
        };
        word
    }
}

impl BackwardArguments<'_> {
    /// Calls PyTorch's kernel, and returns the result's word.
    pub(crate) fn call(&self, kernel: Backward) -> u64 {
        let (gradient, output) = (self.gradient.handle(), self.output.handle());
        // SAFETY: as above. `c10::ScalarType` has 8 bits.
        let [word] = unsafe {
            words(|result| kernel(result, gradient, output, self.dimension, self.input_dtype as i8))
        };
        word
    }
}

impl NormArguments<'_> {
    /// Calls PyTorch's kernel, and returns the words of result, mean and inverse deviation.
    pub(crate) fn call(&self, kernel: Norm) -> [u64; 3] {
        let [weight, bias] = [&self.weight, &self.bias].map(|tensor| OptionalTensor::of(tensor.as_ref()));
        let (input, shape) = (self.input.handle(), shape_of(&self.shape));
        // SAFETY: as above; it writes a tuple of three tensors.
        let [deviation, mean, result] = unsafe {
            words(|results| kernel(results, input, shape, &raw const weight, &raw const bias, self.epsilon))
        };
        [result, mean, deviation]
    }
}

impl NormBackwardArguments<'_> {
    /// Calls PyTorch's kernel for the gradients of the mask, and returns the words of those of input, weight and bias.
    pub(crate) fn call(&self, kernel: NormBackward, mask: Mask) -> [u64; 3] {
        let [weight, bias] = [&self.weight, &self.bias].map(|tensor| OptionalTensor::of(tensor.as_ref()));
        let [gradient, input, mean, deviation] =
            [&self.gradient, &self.input, &self.mean, &self.deviation].map(Tensor::handle);
        let (shape, weight, bias) = (shape_of(&self.shape), &raw const weight, &raw const bias);
        // SAFETY: as above.
        let [of_bias, of_weight, of_input] = unsafe {
            words(|results| kernel(results, gradient, input, shape, mean, deviation, weight, bias, mask))
        };
        [of_input, of_weight, of_bias]
    }
}

impl EmbeddingArguments<'_> {
    /// Calls PyTorch's kernel, and returns the result's word.
    pub(crate) fn call(&self, kernel: EmbeddingBackward) -> u64 {
        let [gradient, indices] = [&self.gradient, &self.indices].map(Tensor::handle);
        let (embeddings, padding, by_frequency) = (self.embeddings, self.padding, self.by_frequency);
        // SAFETY: as above; it writes one tensor.
        let [word] =
            unsafe { words(|result| kernel(result, gradient, indices, embeddings, padding, by_frequency)) };
        word
    }
}

impl RmsArguments<'_> {
    /// Calls PyTorch's kernel, and returns the words of result and inverse root.
    pub(crate) fn call(&self, kernel: Rms) -> [u64; 2] {
        let weight = OptionalTensor::of(self.weight.as_ref());
        let epsilon =
            OptionalNumber { number: self.epsilon.unwrap_or(0.0), is_there: self.epsilon.is_some() };
        let (input, shape, weight) = (self.input.handle(), shape_of(&self.shape), &raw const weight);
        // SAFETY: as above; it writes a tuple of two tensors.
        let [root, result] = unsafe { words(|results| kernel(results, input, shape, weight, epsilon)) };
        [result, root]
    }
}

impl GroupArguments<'_> {
    /// Calls PyTorch's kernel, and returns the words of result, mean and inverse deviation.
    pub(crate) fn call(&self, kernel: GroupNorm) -> [u64; 3] {
        let [weight, bias] = [&self.weight, &self.bias].map(|tensor| OptionalTensor::of(tensor.as_ref()));
        let (input, [batch, channels, plane, groups]) = (self.input.handle(), self.sizes);
        let (weight, bias) = (&raw const weight, &raw const bias);
        // SAFETY: as above; it writes a tuple of three tensors.
        let [deviation, mean, result] = unsafe {
            words(|results| {
                kernel(results, input, weight, bias, batch, channels, plane, groups, self.epsilon);
            })
        };
        [result, mean, deviation]
    }
}

impl GroupBackwardArguments<'_> {
    /// Calls PyTorch's kernel, and returns the words of the gradients of input, weight and bias.
    pub(crate) fn call(&self, kernel: GroupNormBackward) -> [u64; 3] {
        let weight = OptionalTensor::of(self.weight.as_ref());
        let [gradient, input, mean, deviation] =
            [&self.gradient, &self.input, &self.mean, &self.deviation].map(Tensor::handle);
        let ([batch, channels, plane, groups], mask, weight) = (self.sizes, self.mask, &raw const weight);
        // SAFETY: as above; it writes a tuple of three tensors.
        let [of_bias, of_weight, of_input] = unsafe {
            words(|results| {
                kernel(
                    results, gradient, input, mean, deviation, weight, batch, channels, plane, groups, mask,
                );
            })
        };
        [of_input, of_weight, of_bias]
    }
}

impl BatchArguments<'_> {
    /// Calls PyTorch's kernel, and returns the words of result, mean and inverse deviation.
    pub(crate) fn call(&self, kernel: BatchNorm) -> [u64; 3] {
        let optional = self.parameters.each_ref().map(|tensor| OptionalTensor::of(tensor.as_ref()));
        let [weight, bias, mean, variance] = optional.each_ref().map(std::ptr::from_ref);
        let Self { training, momentum, epsilon, .. } = *self;
        let input = self.input.handle();
        // SAFETY: as above; it writes a tuple of three tensors.
        let [deviation, mean, result] = unsafe {
            words(|results| {
                kernel(results, input, weight, bias, mean, variance, training, momentum, epsilon);
            })
        };
        [result, mean, deviation]
    }
}

impl BatchBackwardArguments<'_> {
    /// Calls PyTorch's kernel, and returns the words of the gradients of input, weight and bias.
    pub(crate) fn call(&self, kernel: BatchNormBackward) -> [u64; 3] {
        let optional = self.parameters.each_ref().map(|tensor| OptionalTensor::of(tensor.as_ref()));
        let [weight, mean, variance, batch_mean, deviation] = optional.each_ref().map(std::ptr::from_ref);
        let [gradient, input] = [&self.gradient, &self.input].map(Tensor::handle);
        let Self { training, epsilon, mask, .. } = *self;
        // SAFETY: as above; it writes a tuple of three tensors.
        let [of_bias, of_weight, of_input] = unsafe {
            words(|results| {
                kernel(
                    results, gradient, input, weight, mean, variance, batch_mean, deviation, training,
                    epsilon, mask,
                );
            })
        };
        [of_input, of_weight, of_bias]
    }
}

impl RmsBackwardArguments<'_> {
    /// Calls PyTorch's kernel for the gradients of the mask, and returns the words of those of input and weight.
    pub(crate) fn call(&self, kernel: RmsBackward, mask: [bool; 2]) -> [u64; 2] {
        let weight = OptionalTensor::of(self.weight.as_ref());
        let [gradient, input, root] = [&self.gradient, &self.input, &self.root].map(Tensor::handle);
        let (shape, weight, mask) = (shape_of(&self.shape), &raw const weight, Mask2(mask));
        // SAFETY: as above.
        let [of_weight, of_input] =
            unsafe { words(|results| kernel(results, gradient, input, shape, root, weight, mask)) };
        [of_input, of_weight]
    }
}

impl ReduceArguments<'_> {
    /// Calls PyTorch's kernel, and returns the result's word.
    pub(crate) fn call(&self, kernel: Reduce) -> u64 {
        let list = shape_of(self.dimensions.as_deref().unwrap_or_default());
        // SAFETY: as above; it writes one tensor.
        let [word] = unsafe { words(|result| kernel(result, self.input.handle(), list, self.keeps)) };
        word
    }

    /// Calls PyTorch's kernel of an operator with a dtype, and returns the result's word.
    pub(crate) fn call_to(&self, kernel: ReduceTo) -> u64 {
        let list = shape_of(self.dimensions.as_deref().unwrap_or_default());
        let list = OptionalArrayRef { list, is_there: self.dimensions.is_some() };
        let (input, to) = (self.input.handle(), OptionalKind::of(self.to));
        // SAFETY: as above; it writes one tensor.
        let [word] = unsafe { words(|result| kernel(result, input, list, self.keeps, to)) };
        word
    }
}

impl CloneArguments<'_> {
    /// Calls PyTorch's kernel, and returns the result's word.
    pub(crate) fn call(&self, kernel: CloneTo) -> u64 {
        // SAFETY: as above; it writes one tensor.
        let [word] =
            unsafe { words(|result| kernel(result, self.input.handle(), OptionalKind::of(self.format))) };
        word
    }
}

impl<'t> AdamArguments<'t> {
    /// Takes the arguments off the stack.
    pub(crate) fn take(stack: &Stack<'t>, kernel: Adam) -> Self {
        Self {
            lists: std::array::from_fn(|place| stack.tensors(place)),
            rate: match kernel {
                Adam::OfNumber(kernel) => Rate::Number(f64::from_bits(stack.word(6)), kernel),
                Adam::OfTensor(kernel) => Rate::Tensor(stack.tensor(6), kernel),
            },
            numbers: [7, 8, 9, 10].map(|place| f64::from_bits(stack.word(place))),
            amsgrad: stack.bool(11),
            maximize: stack.bool(12),
            scale: stack.optional_tensor(13),
            found_inf: stack.optional_tensor(14),
        }
    }

    /// Calls PyTorch's kernel.
    pub(crate) fn call(&self) {
        let words = self.lists.each_ref().map(|list| list.iter().map(Tensor::word).collect::<Vec<_>>());
        let [a, b, c, d, e, f] =
            words.each_ref().map(|words| TensorList { first: words.as_ptr(), count: words.len() });
        let [beta1, beta2, decay, epsilon] = self.numbers;
        let Self { amsgrad, maximize, .. } = *self;
        let [scale, found] = [&self.scale, &self.found_inf].map(|tensor| OptionalTensor::of(tensor.as_ref()));
        let (scale, found) = (&raw const scale, &raw const found);
        // SAFETY: the arguments have the types of its name; it writes tensors of the lists.
        unsafe {
            match &self.rate {
                Rate::Number(rate, kernel) => {
                    let rate = *rate;
                    kernel(
                        a, b, c, d, e, f, rate, beta1, beta2, decay, epsilon, amsgrad, maximize, scale, found,
                    );
                }
                Rate::Tensor(rate, kernel) => {
                    let rate = rate.handle();
                    kernel(
                        a, b, c, d, e, f, rate, beta1, beta2, decay, epsilon, amsgrad, maximize, scale, found,
                    );
                }
            }
        }
    }
}
