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

/// A type of argument: how it is taken off the stack, and how it is passed to C++.
pub(crate) trait Argument<'t>: Sized {
    /// The value that is alive during the call.
    type Held;
    /// The value that is passed.
    type Passed;
    fn take(stack: &Stack<'t>, place: usize) -> Self;
    fn hold(&self) -> Self::Held;
    fn pass(held: &Self::Held) -> Self::Passed;
}

/// Implements [`Argument`] for types that are passed by value.
macro_rules! by_value {
    ($($type:ty as $passed:ty: $take:expr, $hold:expr;)*) => {
        $(impl<'t> Argument<'t> for $type {
            type Held = $passed;
            type Passed = $passed;
            fn take(stack: &Stack<'t>, place: usize) -> Self {
                let take: fn(&Stack<'t>, usize) -> Self = $take;
                take(stack, place)
            }
            fn hold(&self) -> $passed {
                let hold: fn(&Self) -> $passed = $hold;
                hold(self)
            }
            fn pass(held: &$passed) -> $passed {
                *held
            }
        })*
    };
}

by_value! {
    bool as bool: |stack, place| stack.bool(place), |value| *value;
    i64 as i64: |stack, place| stack.word(place).cast_signed(), |value| *value;
    f64 as f64: |stack, place| f64::from_bits(stack.word(place)), |value| *value;
    Option<f64> as OptionalNumber: |stack, place| stack.optional_word(place).map(f64::from_bits), |value| OptionalNumber {
        number: value.unwrap_or(0.0),
        is_there: value.is_some(),
    };
    // `c10::ScalarType` has 8 bits.
    Kind as i8: |stack, place| Kind(stack.int32(place)), |kind| kind.0 as i8;
    Option<Kind> as OptionalKind: |stack, place| stack.optional_word(place).map(|word| Kind(word as u32 as i32)), |kind| {
        OptionalKind { kind: kind.map_or(0, |kind| kind.0 as i8), is_there: kind.is_some() }
    };
    Tensor<'t> as Handle: |stack, place| stack.tensor(place), |tensor| tensor.handle();
    Vec<i64> as ArrayRef: |stack, place| signed(stack.list(place)), |list| ArrayRef::of(list);
    Option<Vec<i64>> as OptionalArrayRef: |stack, place| stack.optional_list(place).map(signed), |list| OptionalArrayRef {
        list: ArrayRef::of(list.as_deref().unwrap_or_default()),
        is_there: list.is_some(),
    };
    Mask<2> as Self: |stack, place| Mask(stack.mask(place)), |mask| *mask;
    Mask<3> as Self: |stack, place| Mask(stack.mask(place)), |mask| *mask;
}

impl<'t> Argument<'t> for Option<Tensor<'t>> {
    type Held = OptionalTensor;
    type Passed = *const OptionalTensor;
    fn take(stack: &Stack<'t>, place: usize) -> Self {
        stack.optional_tensor(place)
    }
    fn hold(&self) -> OptionalTensor {
        OptionalTensor::of(self.as_ref())
    }
    fn pass(held: &OptionalTensor) -> *const OptionalTensor {
        held
    }
}

fn signed(words: impl IntoIterator<Item = u64>) -> Vec<i64> {
    words.into_iter().map(u64::cast_signed).collect()
}

/// `c10::ArrayRef<int64_t>`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayRef {
    pub(crate) first: *const i64,
    pub(crate) count: usize,
}

impl ArrayRef {
    fn of(list: &[i64]) -> Self {
        Self { first: list.as_ptr(), count: list.len() }
    }
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

/// `std::array<bool, N>`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Mask<const N: usize>(pub(crate) [bool; N]);

/// `std::optional<double>`, which is passed in registers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OptionalNumber {
    pub(crate) number: f64,
    pub(crate) is_there: bool,
}

/// PyTorch's number of a dtype or of a layout.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind(pub(crate) i32);

/// `std::optional<c10::ScalarType>`, or of `c10::MemoryFormat`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OptionalKind {
    pub(crate) kind: i8,
    pub(crate) is_there: bool,
}

/// `c10::OptionalArrayRef<int64_t>`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct OptionalArrayRef {
    pub(crate) list: ArrayRef,
    pub(crate) is_there: bool,
}

type Word = MaybeUninit<u64>;

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

/// Defines the arguments of operators, which are taken off the stack in this order, and the types of PyTorch's kernels, which write
/// this number of tensors.
macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident<$t:lifetime>, $kernel:ident -> $count:literal {
        $($(#[$of_field:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        pub(crate) type $kernel<$t> =
            unsafe extern "C-unwind" fn(*mut Word, $(<$type as Argument<$t>>::Passed),*);

        $(#[$doc])*
        pub(crate) struct $name<$t> {
            $($(#[$of_field])* pub(crate) $field: $type,)*
        }

        impl<$t> $name<$t> {
            /// Takes the arguments off the stack.
            pub(crate) fn take(stack: &Stack<$t>) -> Self {
                let mut places = 0..;
                let mut next = || places.next().expect("a stack has places");
                Self { $($field: <$type as Argument<$t>>::take(stack, next())),* }
            }

            /// Calls PyTorch's kernel, and returns the words of its results.
            pub(crate) fn call(&self, kernel: $kernel<$t>) -> [u64; $count] {
                $(let $field = Argument::hold(&self.$field);)*
                // SAFETY: the arguments have the types of its name; it writes this number of tensors.
                let mut words = unsafe { words(|results| kernel(results, $(<$type as Argument<$t>>::pass(&$field)),*)) };
                // A tuple is stored in reverse order.
                words.reverse();
                words
            }
        }
    )*};
}

arguments! {
    /// The arguments of `_softmax` and `_log_softmax`.
    ForwardArguments<'t>, Forward -> 1 {
        input: Tensor<'t>,
        dimension: i64,
        half_to_float: bool,
    }

    /// The arguments of `_softmax_backward_data` and `_log_softmax_backward_data`.
    BackwardArguments<'t>, Backward -> 1 {
        gradient: Tensor<'t>,
        output: Tensor<'t>,
        dimension: i64,
        input_dtype: Kind,
    }

    /// The arguments of `native_layer_norm`. Results: the normalized input, mean and inverse deviation.
    NormArguments<'t>, Norm -> 3 {
        input: Tensor<'t>,
        shape: Vec<i64>,
        weight: Option<Tensor<'t>>,
        bias: Option<Tensor<'t>>,
        epsilon: f64,
    }

    /// The arguments of `native_layer_norm_backward`. Results: the gradients of input, weight and bias.
    NormBackwardArguments<'t>, NormBackward -> 3 {
        gradient: Tensor<'t>,
        input: Tensor<'t>,
        shape: Vec<i64>,
        mean: Tensor<'t>,
        deviation: Tensor<'t>,
        weight: Option<Tensor<'t>>,
        bias: Option<Tensor<'t>>,
        mask: Mask<3>,
    }

    /// The arguments of `embedding_dense_backward`.
    EmbeddingArguments<'t>, EmbeddingBackward -> 1 {
        gradient: Tensor<'t>,
        indices: Tensor<'t>,
        embeddings: i64,
        padding: i64,
        by_frequency: bool,
    }

    /// The arguments of `_fused_rms_norm`. Results: the normalized input and the inverse root.
    RmsArguments<'t>, Rms -> 2 {
        input: Tensor<'t>,
        shape: Vec<i64>,
        weight: Option<Tensor<'t>>,
        epsilon: Option<f64>,
    }

    /// The arguments of `_fused_rms_norm_backward`. Results: the gradients of input and weight.
    RmsBackwardArguments<'t>, RmsBackward -> 2 {
        gradient: Tensor<'t>,
        input: Tensor<'t>,
        shape: Vec<i64>,
        root: Tensor<'t>,
        weight: Option<Tensor<'t>>,
        mask: Mask<2>,
    }

    /// The arguments of `native_group_norm`. Results: the normalized input, mean and inverse deviation.
    GroupArguments<'t>, GroupNorm -> 3 {
        input: Tensor<'t>,
        weight: Option<Tensor<'t>>,
        bias: Option<Tensor<'t>>,
        batch: i64,
        channels: i64,
        plane: i64,
        groups: i64,
        epsilon: f64,
    }

    /// The arguments of `native_group_norm_backward`. Results: the gradients of input, weight and bias.
    GroupBackwardArguments<'t>, GroupNormBackward -> 3 {
        gradient: Tensor<'t>,
        input: Tensor<'t>,
        mean: Tensor<'t>,
        deviation: Tensor<'t>,
        weight: Option<Tensor<'t>>,
        batch: i64,
        channels: i64,
        plane: i64,
        groups: i64,
        mask: Mask<3>,
    }

    /// The arguments of `native_batch_norm`. Results: the normalized input, mean and inverse deviation.
    BatchArguments<'t>, BatchNorm -> 3 {
        input: Tensor<'t>,
        weight: Option<Tensor<'t>>,
        bias: Option<Tensor<'t>>,
        running_mean: Option<Tensor<'t>>,
        running_variance: Option<Tensor<'t>>,
        training: bool,
        momentum: f64,
        epsilon: f64,
    }

    /// The arguments of `native_batch_norm_backward`. Results: the gradients of input, weight and bias.
    BatchBackwardArguments<'t>, BatchNormBackward -> 3 {
        gradient: Tensor<'t>,
        input: Tensor<'t>,
        weight: Option<Tensor<'t>>,
        running_mean: Option<Tensor<'t>>,
        running_variance: Option<Tensor<'t>>,
        mean: Option<Tensor<'t>>,
        deviation: Option<Tensor<'t>>,
        training: bool,
        epsilon: f64,
        mask: Mask<3>,
    }

    /// The arguments of `amax` and `logsumexp`.
    ReduceArguments<'t>, Reduce -> 1 {
        input: Tensor<'t>,
        dimensions: Vec<i64>,
        keeps: bool,
    }

    /// The arguments of `sum.dim_IntList` and `mean.dim`.
    ReduceToArguments<'t>, ReduceTo -> 1 {
        input: Tensor<'t>,
        dimensions: Option<Vec<i64>>,
        keeps: bool,
        to: Option<Kind>,
    }

    /// The arguments of `clone`.
    CloneArguments<'t>, CloneTo -> 1 {
        input: Tensor<'t>,
        format: Option<Kind>,
    }
}

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

/// A kernel of PyTorch's, if this PyTorch exports it.
pub(crate) trait Exported {
    /// The kernel.
    type Kernel;
    /// Returns the kernel of a registered operator: only operators are registered whose kernel was found.
    fn found(self) -> Self::Kernel;
}

impl<F> Exported for Option<F> {
    type Kernel = F;
    fn found(self) -> F {
        self.expect("only operators are registered whose kernel was found")
    }
}

/// PyTorch's own kernels; `None` for those that this PyTorch does not export.
#[derive(Clone, Copy, Default)]
pub(crate) struct Originals {
    pub(crate) softmax: Option<Forward<'static>>,
    pub(crate) log_softmax: Option<Forward<'static>>,
    pub(crate) softmax_backward: Option<Backward<'static>>,
    pub(crate) log_softmax_backward: Option<Backward<'static>>,
    pub(crate) layer_norm: Option<Norm<'static>>,
    pub(crate) layer_norm_backward: Option<NormBackward<'static>>,
    pub(crate) embedding_backward: Option<EmbeddingBackward<'static>>,
    pub(crate) rms_norm: Option<Rms<'static>>,
    pub(crate) rms_norm_backward: Option<RmsBackward<'static>>,
    pub(crate) group_norm: Option<GroupNorm<'static>>,
    pub(crate) group_norm_backward: Option<GroupNormBackward<'static>>,
    pub(crate) batch_norm: Option<BatchNorm<'static>>,
    pub(crate) batch_norm_backward: Option<BatchNormBackward<'static>>,
    pub(crate) sum: Option<ReduceTo<'static>>,
    pub(crate) mean: Option<ReduceTo<'static>>,
    pub(crate) amax: Option<Reduce<'static>>,
    pub(crate) logsumexp: Option<Reduce<'static>>,
    pub(crate) clone: Option<CloneTo<'static>>,
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
