//! Calls every built-in operator by its name with nonsensical arguments: each call returns results or an error, never a panic, and
//! the device works afterwards.

use std::ops::Range;

use thalweg_ir::{DType, Scalar};
use thalweg_ops::schema::{Kind, Parameter};
use thalweg_runtime::{Device, Environment};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Operator, Value, operators};
use thalweg_tensor::random::Generator;

/// Calls of an operator with random arguments: this many, and more until some have returned results.
const CALLS: usize = 120;
const MOST_CALLS: usize = 20_000;
const RESULTS: usize = 1;

/// Returns a device with little memory, so that large requests are refused early.
fn small_device() -> Device {
    let config = SimConfig { devices: 1, memory_bytes: 64 << 20, ..SimConfig::default() };
    let driver = SimDriver::new(config).expect("a simulated GPU needs nothing");
    Device::all_of(driver, &Environment::default()).expect("its device opens").remove(0)
}

/// Returns tensors of many shapes, layouts and dtypes: scalars, empty ones, expanded ones, indices in range and out of it.
fn tensors(device: &Device) -> Vec<Tensor> {
    let mut list = Vec::new();
    let ramp = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|value| value as f32 / 4.0 - 1.0).collect();
        Tensor::from_slice(&values, shape, device).unwrap()
    };
    let shapes: [&[usize]; 13] = [
        &[],
        &[1],
        &[2],
        &[3],
        &[0],
        &[2, 3],
        &[3, 2],
        &[2, 0],
        &[2, 2, 3],
        &[2, 3, 3],
        &[0, 3, 1],
        &[2, 2, 4, 4],
        &[5, 2, 3, 2],
    ];
    for shape in shapes {
        list.push(ramp(shape));
        list.push(ramp(shape).requires_grad_().unwrap());
    }
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::F32) {
        for shape in [&[2][..], &[2, 3], &[]] {
            list.push(ramp(shape).to_dtype(dtype).unwrap());
        }
    }
    list.push(Tensor::from_slice(&[i64::MIN, i64::MAX, 1], &[3], device).unwrap());
    list.push(ramp(&[2, 3]).transpose(0, 1).unwrap());
    list.push(ramp(&[0, 3, 1]).expand(&[0, 3, 5]).unwrap());
    list.push(ramp(&[1, 3]).expand(&[2, 3]).unwrap());
    list.push(ramp(&[2, 3]).narrow(1, 1, 0).unwrap());
    list
}

/// Returns the tensors that the operators of the table are mostly for: rows, classes of rows, a generator's state, packed heads, images,
/// columns of images.
fn typical(device: &Device) -> Vec<Tensor> {
    let ones = |shape: &[usize], dtype| Tensor::ones(shape, dtype, device).unwrap();
    let floats: [&[usize]; 9] =
        [&[2, 3], &[2, 3], &[3], &[2], &[2, 2, 3, 2], &[2, 2, 4, 4], &[2, 32], &[2, 3, 3], &[2, 3, 3]];
    let leaves = floats.map(|shape| ones(shape, DType::F32).requires_grad_().unwrap());
    let integers: [&[usize]; 3] = [&[2], &[], &[]];
    leaves.into_iter().chain(integers.map(|shape| ones(shape, DType::I64))).collect()
}

fn numbers() -> Vec<Scalar> {
    let floats = [0.0, 1.0, -1.0, 0.5, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let integers = [0, 1, 3, -1, 1 << 40, i64::MAX, i64::MIN];
    floats.map(Scalar::F64).into_iter().chain(integers.map(Scalar::I64)).chain([Scalar::Bool(true)]).collect()
}

/// Sizes and dimensions, the usual ones more often.
const SIZES: [usize; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 7, 1 << 40, 1 << 62, usize::MAX];

pub struct Chooser(pub Generator);

impl Chooser {
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.0.below(list.len() as u32).unwrap() as usize]
    }

    /// Returns a tensor; a typical one three times of four.
    pub fn tensor<'a>(&mut self, tensors: &'a [Tensor], typical: &'a [Tensor]) -> &'a Tensor {
        if self.0.below(4).unwrap() > 0 { self.pick(typical) } else { self.pick(tensors) }
    }

    /// Returns the twelve sizes of a window over images (2, 2, 4, 4), which most often fit each other.
    fn window(&mut self) -> Vec<usize> {
        let [images, channels, height, width] = [2, 2, 4, 4];
        // Usually the window that does not change the image.
        let [kernel_y, kernel_x, stride_y, stride_x, dilation, padding] = [1, 1, 1, 1, 1, 0]
            .map(|usual| if self.0.below(3).unwrap() > 0 { usual } else { *self.pick(&SIZES) });
        let kernel = [kernel_y, kernel_x];
        let extent = |size: usize, kernel: usize, stride: usize| -> Option<usize> {
            let reach = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
            size.checked_add(padding.checked_mul(2)?)?.checked_sub(reach)?.checked_div(stride)?.checked_add(1)
        };
        let [rows, columns] = [extent(height, kernel[0], stride_y), extent(width, kernel[1], stride_x)];
        let output = [rows, columns].map(|extent| extent.unwrap_or_else(|| *self.pick(&SIZES)));
        vec![
            images, channels, height, width, kernel[0], kernel[1], output[0], output[1], stride_y, stride_x,
            padding, dilation,
        ]
    }

    pub fn one_of(&mut self, count: u32) -> bool {
        self.0.below(count).unwrap() == 0
    }

    fn ints(&mut self, length: Option<usize>) -> Vec<i64> {
        let usual = length.unwrap_or(1) as u32;
        let count = if self.one_of(4) { self.0.below(5).unwrap() } else { usual };
        (0..count).map(|_| self.int()).collect()
    }

    /// Integers of a parameter: those that windows and rows usually have most often.
    fn sizes(&mut self, name: &str, length: Option<usize>) -> Vec<i64> {
        let usual = match name {
            "kernel_size" | "stride" | "dilation" => 1,
            "padding" | "output_padding" => 0,
            "output_size" => 2,
            "groups" | "group" | "num_groups" => 1,
            "normalized_shape" => 3,
            _ => return self.ints(length),
        };
        if self.one_of(4) { self.ints(length) } else { vec![usual; length.unwrap_or(1)] }
    }

    /// Returns an integer, a small one most often.
    fn int(&mut self) -> i64 {
        let small = self.0.below(5).unwrap() as i64 - 2;
        if self.one_of(8) { *self.pick(&SIZES) as i64 } else { small }
    }

    /// Returns a value for a parameter: of its type most often.
    pub fn value(&mut self, parameter: &Parameter, pools: &Pools) -> Value {
        let ty = &parameter.ty;
        if (ty.optional && self.one_of(2)) || self.one_of(40) {
            return Value::None;
        }
        if self.one_of(40) {
            return Value::Int(self.int());
        }
        match (ty.kind, ty.list) {
            (Kind::Tensor, false) => Value::Tensor(self.tensor(&pools.tensors, &pools.typical).clone()),
            (Kind::Tensor, true) if ty.optional_elements => {
                let count = self.0.below(4).unwrap();
                let element = |chooser: &mut Self| {
                    (!chooser.one_of(3)).then(|| chooser.tensor(&pools.tensors, &pools.typical).clone())
                };
                Value::OptionalTensors((0..count).map(|_| element(self)).collect())
            }
            (Kind::Tensor, true) => {
                let count = self.0.below(4).unwrap();
                let first = self.tensor(&pools.tensors, &pools.typical).clone();
                let same = self.one_of(2);
                let element = |chooser: &mut Self| match same {
                    true => first.clone(),
                    false => chooser.tensor(&pools.tensors, &pools.typical).clone(),
                };
                Value::Tensors((0..count).map(|_| element(self)).collect())
            }
            (Kind::Scalar, false) => Value::Scalar(*self.pick(&pools.numbers)),
            (Kind::Scalar, true) => Value::Scalars(vec![*self.pick(&pools.numbers)]),
            (Kind::Int, true) if parameter.name == "window" && !self.one_of(8) => {
                Value::Ints(self.window().into_iter().map(|size| size as i64).collect())
            }
            (Kind::Int, true) => Value::Ints(self.sizes(&parameter.name, ty.length)),
            (Kind::Int | Kind::MemoryFormat | Kind::Layout, false) => {
                Value::Int(self.sizes(&parameter.name, None).first().copied().unwrap_or(0))
            }
            (Kind::Float, false) => Value::Float(self.pick(&pools.numbers).to_f64()),
            (Kind::Float, _) => Value::Floats(vec![self.pick(&pools.numbers).to_f64(); 2]),
            (Kind::Bool, false) => Value::Bool(self.one_of(2)),
            (Kind::Bool, true) => Value::Bools(vec![self.one_of(2); 3]),
            (Kind::Str, _) => Value::Str((*self.pick(&WORDS)).into()),
            (Kind::DType, _) => Value::DType(*self.pick(&DType::ALL)),
            (Kind::Device, _) => Value::Device(pools.tensors[0].device().clone()),
            (Kind::Generator | Kind::MemoryFormat | Kind::Layout, _) => Value::None,
        }
    }
}

/// Words that some operators take, and some that none does.
const WORDS: [&str; 12] =
    ["none", "tanh", "mean", "sum", "amax", "prod", "floor", "trunc", "whale", "ij", "add", "ij->ji"];

/// The arguments that calls choose from.
pub struct Pools {
    pub tensors: Vec<Tensor>,
    pub typical: Vec<Tensor>,
    pub numbers: Vec<Scalar>,
}

impl Pools {
    /// Makes the pools on a device. Each operator has pools of its own, since some operators change the tensors that they are called
    /// with.
    pub fn new(device: &Device) -> Self {
        Self { tensors: tensors(device), typical: typical(device), numbers: numbers() }
    }
}

/// The maximum number of elements that are read: a view may repeat some more often than there is memory for.
const MOST_ELEMENTS: usize = 1 << 20;

/// Calls an operator; if it returns results, they are read, and differentiated if they can be.
fn call(operator: &'static Operator, values: &[Value], device: &Device) -> bool {
    let Ok(results) = operator.call_boxed(values, Some(device)) else { return false };
    let tensors: Vec<Tensor> = (results.into_iter())
        .flat_map(|result| match result {
            Value::Tensor(tensor) => vec![tensor],
            Value::Tensors(list) => list,
            _ => vec![],
        })
        .collect();
    for result in &tensors {
        if result.elements() > MOST_ELEMENTS {
            return false;
        }
        let read = || result.to_dtype(DType::F64).and_then(|result| result.to_vec::<f64>()).map(drop);
        // The first read reports indices out of range.
        let is_told = read().or_else(|error| if error.is_out_of_range() { read() } else { Err(error) });
        is_told.unwrap_or_else(|error| {
            panic!("{} with {values:?} gave what cannot be read: {error}", operator.name())
        });
    }
    if let Some(result) = tensors.first().filter(|result| result.requires_grad()) {
        // An operator may have no gradient here; it may not panic or break the device.
        let _ = result.sum(&[], false).and_then(|sum| sum.backward());
    }
    true
}

/// Operators whose tensors and numbers must fit each other in so many ways that random ones rarely produce a result. Operators on
/// volumes take five dimensions, which few of the tensors have, and decompositions take batches of square matrices of float64.
const HARD: &[&str] = &[
    "_convert_weight_to_int4pack",
    "_cudnn_rnn",
    "_cudnn_rnn_backward",
    "_fused_rms_norm_backward",
    "_upsample_nearest_exact3d.vec",
    "_weight_int4pack_mm",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
    "addmm",
    "cholesky",
    "conv3d",
    "conv3d.padding",
    "conv_transpose3d.input",
    "ctc_loss.Tensor",
    "embedding_bag.padding_idx",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "grid_sampler_3d",
    "gru.data",
    "gru.input",
    "inverse",
    "linalg_cholesky",
    "linalg_cond.p_str",
    "linalg_inv",
    "linalg_ldl_solve",
    "linalg_lu_solve",
    "linalg_norm.ord_str",
    "linalg_solve",
    "lstm.data",
    "lstm.input",
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "max_unpool2d",
    "max_unpool3d",
    "mm.out",
    "native_group_norm",
    "native_group_norm_backward",
    "rnn_relu.data",
    "rnn_relu.input",
    "rnn_tanh.data",
    "rnn_tanh.input",
    "thalweg::add_layer_norm",
    "thalweg::add_layer_norm_backward",
    "thalweg::alignments",
    "thalweg::alignments_backward",
    "thalweg::attention_in_pieces",
    "thalweg::attention_kept_weights",
    "thalweg::channel_norm",
    "thalweg::cholesky",
    "thalweg::cholesky_solve",
    "thalweg::convolution",
    "thalweg::det",
    "thalweg::dropout",
    "thalweg::eig",
    "thalweg::eigh",
    "thalweg::fold",
    "thalweg::fused_attention",
    "thalweg::fused_attention_backward",
    "thalweg::fused_attention_backward_mask",
    "thalweg::gather",
    "thalweg::gather_backward",
    "thalweg::geqrf",
    "thalweg::hermitian",
    "thalweg::layer_norm_affine",
    "thalweg::layer_norm_fork",
    "thalweg::ldl",
    "thalweg::ldl_solve",
    "thalweg::lu",
    "thalweg::max_pool2d_within_backward",
    "thalweg::mlp",
    "thalweg::network",
    "thalweg::nll_loss",
    "thalweg::norm_linear",
    "thalweg::one_query_attention",
    "thalweg::packed_fused_attention",
    "thalweg::pinv",
    "thalweg::qr",
    "thalweg::recurrent",
    "thalweg::resample_backward",
    "thalweg::rms_norm",
    "thalweg::scatter",
    "thalweg::scatter_anew",
    "thalweg::svd",
    "thalweg::triangular",
    "upsample_nearest3d.vec",
    "upsample_trilinear3d.vec",
];

/// Returns the rounds of the fuzzer, each with its own seeds: only the first, or the number in `THALWEG_FUZZ` (`THALWEG_FUZZ=100`).
pub fn rounds() -> Range<u64> {
    let count = std::env::var("THALWEG_FUZZ").ok().map(|count| count.parse().expect("a number of rounds"));
    0..count.unwrap_or(1)
}

#[test]
fn every_operator_survives_any_arguments() {
    let device = small_device();
    let witness = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &device).unwrap();
    let list: Vec<_> =
        operators().into_iter().filter(|operator| !operator.name().starts_with("test::")).collect();
    let mut missed = Vec::new();
    for (round, operator) in rounds().flat_map(|round| list.iter().map(move |operator| (round, operator))) {
        // Derived from the name, so that an operator's calls do not depend on other operators.
        let seed = operator
            .name()
            .bytes()
            .fold(1 + round, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let mut chooser = Chooser(Generator::new(seed));
        let pools = Pools::new(&device);
        let (mut calls, mut succeeded) = (0, 0);
        let most = if HARD.contains(&operator.name()) { CALLS } else { MOST_CALLS };
        while calls < CALLS || succeeded < RESULTS {
            if calls >= most {
                // Later rounds only look for failures, and may find no valid call.
                missed.extend((round == 0 && most > CALLS).then_some(operator.name()));
                break;
            }
            calls += 1;
            let parameters = &operator.schema().parameters;
            let same = chooser.one_of(3).then(|| chooser.tensor(&pools.tensors, &pools.typical).clone());
            let mut values: Vec<Value> =
                parameters.iter().map(|parameter| chooser.value(parameter, &pools)).collect();
            for value in &mut values {
                if let (Value::Tensor(tensor), Some(same)) = (value, &same) {
                    *tensor = same.clone();
                }
            }
            if chooser.one_of(12) {
                values.truncate(chooser.0.below(8).unwrap() as usize);
            }
            succeeded += usize::from(call(operator, &values, &device));
            // A call without results may have encountered indices out of range.
            if let Err(error) = device.synchronize() {
                assert!(error.is_out_of_range(), "{} with {values:?}: {error}", operator.name());
            }
            let found = witness.to_vec::<f32>();
            assert_eq!(
                found.as_deref().ok(),
                Some(&[1.0, 2.0, 3.0][..]),
                "the device is lost after {} with {values:?}: {found:?}",
                operator.name()
            );
        }
        println!("round {round}, {}: {succeeded} of {calls} calls gave results", operator.name());
    }
    assert!(missed.is_empty(), "no call of {MOST_CALLS} gave results: {missed:?}");
    assert!(list.len() > 80, "the table has more operators than {}", list.len());
}

#[test]
fn wrong_counts_are_refused_by_every_operator() {
    let device = small_device();
    let x = Tensor::ones(&[2, 3], DType::F32, &device).unwrap();
    for operator in operators() {
        let count = operator.schema().parameters.len();
        let error = operator.call_boxed(&vec![Value::Tensor(x.clone()); count + 1], None).unwrap_err();
        assert!(
            error.is_invalid_argument() && error.to_string().contains("the operator takes"),
            "{}: {error}",
            operator.name()
        );
        if operator.schema().parameters.first().is_some_and(|parameter| parameter.default.is_none()) {
            assert!(operator.call_boxed(&[], Some(&device)).unwrap_err().is_invalid_argument());
        }
    }
}
