//! Calls in PyTorch's form, with a libtorch of the test's own over a simulated device: the results, the calls that go to
//! PyTorch's kernel, and the release of everything that is taken off the stack.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use thalweg_driver::{DevicePointer, Label};
use thalweg_ir::{DType, f16};
use thalweg_runtime::{Device, Environment, Stream};
use thalweg_sim::{SimConfig, SimDriver};

use super::libtorch::{Boxed, Handle};
use super::original::{
    Adam, ArrayRef, Mask, OptionalArrayRef, OptionalKind, OptionalNumber, OptionalTensor, TensorList,
};
use super::*;
use crate::allocator::Source;

/// PyTorch's numbers of dtypes.
const F16: i32 = 5;
const F32: i32 = 6;
const I64: i32 = 4;
const F64: i32 = 7;

/// The object that an `at::Tensor` points to.
struct Implementation {
    sizes: Vec<i64>,
    dtype: i32,
    address: u64,
    is_contiguous: bool,
    is_on_host: bool,
    strides: Vec<i64>,
}

/// Returns the strides of contiguous memory.
fn contiguous(sizes: &[i64]) -> Vec<i64> {
    (0..sizes.len()).map(|dimension| sizes[dimension + 1..].iter().product()).collect()
}

/// The process of a test: its memory, its objects, and the calls of PyTorch's own kernels.
struct World {
    device: Device,
    stream: Stream,
    free: Cell<u64>,
    /// Handles, lists, optional values and registrations that are alive.
    objects: Cell<i64>,
    asked: RefCell<Vec<String>>,
    registered: RefCell<Vec<(String, usize)>>,
    throws: Cell<bool>,
    is_out_of_memory: Cell<bool>,
}

thread_local! {
    static WORLD: World = World::new();
}

fn world<T>(body: impl FnOnce(&World) -> T) -> T {
    WORLD.with(body)
}

impl World {
    fn new() -> Self {
        let driver = SimDriver::new(SimConfig { memory_bytes: 64 << 20, ..SimConfig::default() }).unwrap();
        let device = Device::all_of(driver, &Environment::default()).unwrap().remove(0);
        let stream = device.default_stream();
        let block = device.allocator().allocate(16 << 20, stream.id()).unwrap();
        let free = Cell::new(block.address());
        std::mem::forget(block);
        Self {
            device,
            stream,
            free,
            objects: Cell::new(0),
            asked: RefCell::default(),
            registered: RefCell::default(),
            throws: Cell::new(false),
            is_out_of_memory: Cell::new(false),
        }
    }

    fn count(&self, change: i64) {
        self.objects.set(self.objects.get() + change);
    }

    /// Creates the word of an `at::Tensor` with memory of its own, which stays allocated until the end of the test.
    fn word(&self, sizes: &[i64], dtype: i32) -> u64 {
        let bytes = sizes.iter().product::<i64>().unsigned_abs() * 8;
        let address = self.free.replace(self.free.get() + bytes.next_multiple_of(256));
        let implementation = Implementation {
            sizes: sizes.to_vec(),
            dtype,
            address,
            is_contiguous: true,
            is_on_host: false,
            strides: contiguous(sizes),
        };
        Box::into_raw(Box::new(implementation)) as u64
    }

    fn handle(&self, word: u64) -> Handle {
        self.count(1);
        Box::into_raw(Box::new(word)).cast()
    }
}

fn implementation<'a>(handle: Handle) -> &'a Implementation {
    // SAFETY: a handle of the test's is the address of the word of an implementation, which lives as long as the test.
    unsafe { &*(*handle.cast::<u64>() as *const Implementation) }
}

mod shim;

mod adam;
mod batch;
mod group;
mod more;
mod own;

/// Returns kernels on the simulated device, which also take calls outside the table.
fn kernels() -> Kernels {
    let torch = Libtorch {
        init_impl: shim::init_impl,
        library_impl: shim::library_impl,
        delete_library: shim::delete_handle,
        delete_tensor: shim::delete_handle,
        new_tensor: shim::new_tensor,
        empty_strided: shim::empty_strided,
        zero: shim::zero,
        data_pointer: shim::data_pointer,
        mutable_data_pointer: shim::data_pointer,
        dim: shim::dim,
        sizes: shim::sizes,
        strides: shim::strides,
        dtype: shim::dtype,
        device_kind: shim::device_kind,
        device_index: shim::device_index,
        is_contiguous: shim::is_contiguous,
        list_size: shim::list_size,
        list_item: shim::list_item,
        delete_list: shim::delete_list,
        delete: shim::delete,
        check: shim::check,
        current_stream: Some(shim::current_stream),
        dtypes: [(F32, DType::F32), (F16, DType::F16), (15, DType::Bf16), (I64, DType::I64)],
        device_type: 1,
        undefined: 0,
    };
    let originals = Originals {
        softmax: Some(own::softmax),
        log_softmax: Some(own::softmax),
        softmax_backward: Some(own::softmax_backward),
        log_softmax_backward: Some(own::softmax_backward),
        layer_norm: Some(own::norm),
        layer_norm_backward: Some(own::norm_backward),
        embedding_backward: Some(own::embedding_backward),
        rms_norm: Some(own::rms),
        rms_norm_backward: Some(own::rms_backward),
        group_norm: Some(own::group_norm),
        group_norm_backward: Some(own::group_norm_backward),
        batch_norm: Some(own::batch_norm),
        batch_norm_backward: Some(own::batch_norm_backward),
        sum: Some(own::reduce_to),
        mean: Some(own::reduce_to),
        amax: Some(own::reduce),
        logsumexp: Some(own::reduce),
        clone: Some(own::clone),
        adam: Some(Adam::OfNumber(own::adam)),
        adam_by_tensor: Some(Adam::OfTensor(own::adam_by_tensor)),
        adamw: Some(Adam::OfNumber(own::adam)),
        adamw_by_tensor: Some(Adam::OfTensor(own::adam_by_tensor)),
    };
    let device = world(|world| world.device.clone());
    let allocator = Box::leak(Box::new(Allocator::new(Source::Devices(vec![device]), "").unwrap()));
    let kernels = Kernels::new(torch, originals, Place::Gpu(allocator));
    kernels.everywhere.store(true, Ordering::Relaxed);
    kernels
}

/// Returns an argument on the stack.
fn tensor(sizes: &[i64], values: &[f32]) -> u64 {
    let word = world(|world| world.word(sizes, F32));
    let handle = world(|world| world.handle(word));
    let bytes: &[u8] = bytemuck_bytes(values);
    let address = DevicePointer::new(implementation(handle).address);
    world(|world| world.stream.copy_from_host(address, bytes, Label::here("test")).unwrap());
    handle as u64
}

fn bytemuck_bytes(values: &[f32]) -> &[u8] {
    // SAFETY: floats are bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn halfs(sizes: &[i64], values: &[f32]) -> u64 {
    let handle = world(|world| world.handle(world.word(sizes, F16)));
    let bytes: Vec<u8> =
        values.iter().flat_map(|&value| f16::from_f32(value).to_bits().to_le_bytes()).collect();
    let address = DevicePointer::new(implementation(handle).address);
    world(|world| world.stream.copy_from_host(address, &bytes, Label::here("test")).unwrap());
    handle as u64
}

fn optional(handle: u64) -> u64 {
    world(|world| world.handle(handle)) as u64
}

fn list(items: &[u64]) -> u64 {
    world(|world| world.count(1));
    Box::into_raw(Box::new(items.to_vec())) as u64
}

/// Calls an operator with these words, and returns the first `results` words.
fn call(kernels: &Kernels, operator: Operator, arguments: &[u64], results: usize) -> Vec<Handle> {
    let mut words = arguments.to_vec();
    words.resize(arguments.len().max(results), 0);
    // SAFETY: the arguments are the operator's.
    unsafe { operator.call(kernels, words.as_mut_ptr()) };
    words[..results].iter().map(|&word| word as Handle).collect()
}

/// Reads the sizes and the elements of a result of 16-bit or 32-bit floats, and releases the result.
fn read(result: Handle) -> (Vec<i64>, Vec<f32>) {
    let Implementation { sizes, address, dtype, .. } = implementation(result);
    let width = if *dtype == F16 { 2 } else { 4 };
    let mut bytes = vec![0; sizes.iter().product::<i64>() as usize * width];
    world(|world| {
        world.stream.copy_to_host(&mut bytes, DevicePointer::new(*address), Label::here("test")).unwrap();
    });
    // SAFETY: a handle of the test's.
    unsafe { shim::delete_handle(result) };
    let value = |bytes: &[u8]| match width {
        2 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => f32::from_le_bytes(bytes.try_into().unwrap()),
    };
    (sizes.clone(), bytes.chunks_exact(width).map(value).collect())
}

fn objects() -> i64 {
    world(|world| world.objects.get())
}

fn asked() -> Vec<String> {
    world(|world| world.asked.take())
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|place| ((place * 37 + 11) % 101) as f32 / 17.0 - 3.0).collect()
}

fn assert_near(actual: &[f32], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len());
    for (place, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert!((f64::from(*actual) - expected).abs() < 1e-5, "at {place}: {actual}, expected {expected}");
    }
}

fn softmax_of(values: &[f32], columns: usize) -> Vec<f64> {
    let row = |row: &[f32]| {
        let exponentials: Vec<f64> = row.iter().map(|&value| f64::from(value).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        exponentials.into_iter().map(move |value| value / sum).collect::<Vec<_>>()
    };
    values.chunks_exact(columns).flat_map(row).collect()
}

#[test]
fn softmax_is_computed_on_the_memory_of_the_caller() {
    let (kernels, x) = (kernels(), values(6 * 40));
    for (dimension, half_to_float) in [(-1_i64, false), (2, false), (2, true)] {
        let make = if half_to_float { halfs } else { tensor };
        let arguments = [make(&[2, 3, 40], &x), dimension as u64, u64::from(half_to_float)];
        let result = call(&kernels, Operator::Softmax, &arguments, 1)[0];
        let (sizes, actual) = read(result);
        assert_eq!(sizes, [2, 3, 40]);
        let rounded: Vec<f32> = x.iter().map(|&value| f16::from_f32(value).to_f32()).collect();
        assert_near(&actual, &softmax_of(if half_to_float { &rounded } else { &x }, 40));
    }
    assert_eq!((asked(), objects()), (vec![], 0));
    assert_eq!(kernels.counts(Operator::Softmax).taken.load(Ordering::Relaxed), 3);
}

#[test]
fn gradients_of_softmax_and_its_logarithm_are_those_of_their_formulas() {
    let (kernels, gradient) = (kernels(), values(5 * 33));
    let y: Vec<f32> = softmax_of(&values(5 * 33), 33).into_iter().map(|value| value as f32).collect();
    let logarithms: Vec<f32> = y.iter().map(|value| value.ln()).collect();
    for (operator, output) in [(Operator::SoftmaxBackward, &y), (Operator::LogSoftmaxBackward, &logarithms)] {
        let arguments = [tensor(&[5, 33], &gradient), tensor(&[5, 33], output), 1, F32 as u64];
        let (_, actual) = read(call(&kernels, operator, &arguments, 1)[0]);
        let row = |(y, g): (&[f32], &[f32])| {
            let wide = |values: &[f32]| values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
            let (y, g) = (wide(y), wide(g));
            let product: f64 = y.iter().zip(&g).map(|(y, g)| y * g).sum();
            let sum: f64 = g.iter().sum();
            let of = |(y, g): (f64, f64)| {
                if operator == Operator::SoftmaxBackward { y * (g - product) } else { g - y * sum }
            };
            y.into_iter().zip(g).map(of).collect::<Vec<_>>()
        };
        let expected: Vec<f64> = y.chunks_exact(33).zip(gradient.chunks_exact(33)).flat_map(row).collect();
        assert_near(&actual, &expected);
    }
    assert_eq!((asked(), objects()), (vec![], 0));
}

#[test]
fn what_is_not_taken_goes_to_pytorchs_kernel_as_it_came() {
    let (kernels, x) = (kernels(), values(12));
    let pass_on = |arguments: [u64; 3], text: &str| {
        let (sizes, _) = read(call(&kernels, Operator::Softmax, &arguments, 1)[0]);
        assert_eq!((sizes, asked()), (vec![7], vec![text.to_owned()]));
        assert_eq!(objects(), 0);
    };
    pass_on([tensor(&[3, 4], &x), 7, 0], "softmax [3, 4] 7 false");
    pass_on([tensor(&[3, 4], &x), -3_i64 as u64, 0], "softmax [3, 4] -3 false");
    pass_on([tensor(&[], &x[..1]), 0, 0], "softmax [] 0 false");
    pass_on([tensor(&[0, 4], &[]), 1, 0], "softmax [0, 4] 1 false");
    // PyTorch converts halfs only.
    pass_on([tensor(&[3, 4], &x), 1, 1], "softmax [3, 4] 1 true");
    let wide = world(|world| world.handle(world.word(&[3, 4], F64))) as u64;
    pass_on([wide, 1, 0], "softmax [3, 4] 1 false");
    for (is_contiguous, is_on_host) in [(false, false), (true, true)] {
        let (sizes, strides) = (vec![3, 4], vec![1, 3]);
        let other = Implementation { sizes, dtype: F32, address: 256, is_contiguous, is_on_host, strides };
        let other = world(|world| world.handle(Box::into_raw(Box::new(other)) as u64)) as u64;
        pass_on([other, 1, 0], "softmax [3, 4] 1 false");
    }
    world(|world| world.is_out_of_memory.set(true));
    pass_on([tensor(&[3, 4], &x), 1, 0], "softmax [3, 4] 1 false");
    world(|world| world.is_out_of_memory.set(false));
    // The table has no rows of four points.
    kernels.everywhere.store(false, Ordering::Relaxed);
    pass_on([tensor(&[3, 4], &x), 1, 0], "softmax [3, 4] 1 false");
    let counts = kernels.counts(Operator::Softmax);
    assert_eq!([&counts.taken, &counts.passed_on].map(|count| count.load(Ordering::Relaxed)), [0, 10]);
}

#[test]
fn an_exception_of_pytorchs_passes_and_everything_is_given_up() {
    let kernels = kernels();
    world(|world| world.throws.set(true));
    let x = values(12);
    let weight = optional(tensor(&[5], &x[..5]));
    let calls = [
        (Operator::Softmax, vec![tensor(&[3, 4], &x), 2, 0]),
        (Operator::SoftmaxBackward, vec![tensor(&[3, 4], &x), tensor(&[12], &x), 1, F32 as u64]),
        (Operator::LayerNorm, vec![tensor(&[3, 4], &x), list(&[5]), weight, 0, 1e-5_f64.to_bits()]),
    ];
    for (operator, arguments) in calls {
        let thrown = catch_unwind(AssertUnwindSafe(|| call(&kernels, operator, &arguments, 1))).unwrap_err();
        assert_eq!(thrown.downcast_ref::<&str>(), Some(&"an exception of PyTorch's"));
    }
    assert_eq!((asked().len(), objects()), (3, 0));
}

fn norm_of(x: &[f32], columns: usize) -> Vec<(f64, f64)> {
    let row = |row: &[f32]| {
        let mean = row.iter().map(|&value| f64::from(value)).sum::<f64>() / columns as f64;
        let square = |value: &f32| (f64::from(*value) - mean).powi(2);
        let variance = row.iter().map(square).sum::<f64>() / columns as f64;
        (mean, 1.0 / (variance + 1e-5).sqrt())
    };
    x.chunks_exact(columns).map(row).collect()
}

#[test]
fn layer_norm_gives_statistics_with_the_sizes_of_pytorch() {
    let (kernels, x) = (kernels(), values(4 * 30));
    let (weight, bias) = (values(30), values(60)[30..].to_vec());
    let parameters = [&weight, &bias].map(|values| optional(tensor(&[5, 6], values)));
    let arguments =
        [tensor(&[2, 2, 5, 6], &x), list(&[5, 6]), parameters[0], parameters[1], 1e-5_f64.to_bits()];
    let results = call(&kernels, Operator::LayerNorm, &arguments, 3);
    let [result, mean, deviation] = [0, 1, 2].map(|place| read(results[place]));
    assert_eq!([&result.0, &mean.0, &deviation.0], [&vec![2, 2, 5, 6], &vec![2, 2, 1, 1], &vec![2, 2, 1, 1]]);
    let rows = norm_of(&x, 30);
    assert_near(&mean.1, &rows.iter().map(|row| row.0).collect::<Vec<_>>());
    assert_near(&deviation.1, &rows.iter().map(|row| row.1).collect::<Vec<_>>());
    let expected = x.iter().enumerate().map(|(place, &x)| {
        let (mean, deviation) = rows[place / 30];
        let [weight, bias] = [&weight, &bias].map(|values| f64::from(values[place % 30]));
        (f64::from(x) - mean) * deviation * weight + bias
    });
    assert_near(&result.1, &expected.collect::<Vec<_>>());
    // Without a weight it is PyTorch's.
    let arguments = [tensor(&[4, 30], &x), list(&[30]), 0, 0, 1e-5_f64.to_bits()];
    let results = call(&kernels, Operator::LayerNorm, &arguments, 3);
    assert_eq!(results.into_iter().map(|result| read(result).0).collect::<Vec<_>>(), [[1], [2], [3]]);
    assert_eq!((asked(), objects()), (vec!["norm [4, 30] 1 false false 0.00001".to_owned()], 0));
}

#[test]
fn layer_norms_gradient_of_the_input_is_ours_and_those_of_parameters_are_pytorchs() {
    let (kernels, x, gradient) = (kernels(), values(4 * 30), values(150)[30..].to_vec());
    let weight = values(30);
    let rows = norm_of(&x, 30);
    let backward = |mask: [u64; 3]| {
        let statistic = |of: fn(&(f64, f64)) -> f64| -> u64 {
            tensor(&[4, 1], &rows.iter().map(|row| of(row) as f32).collect::<Vec<_>>())
        };
        let arguments = [
            tensor(&[4, 30], &gradient),
            tensor(&[4, 30], &x),
            list(&[30]),
            statistic(|row| row.0),
            statistic(|row| row.1),
            optional(tensor(&[30], &weight)),
            0,
            list(&mask),
        ];
        let results = call(&kernels, Operator::LayerNormBackward, &arguments, 3);
        results.into_iter().map(read).collect::<Vec<_>>()
    };
    let results = backward([1, 1, 0]);
    assert_eq!(asked(), ["norm_backward [false, true, false]"]);
    assert_eq!([&results[0].0, &results[1].0, &results[2].0], [&vec![4, 30], &vec![2], &vec![3]]);
    let mut expected = Vec::new();
    for (row, (mean, deviation)) in rows.iter().enumerate() {
        let points = row * 30..(row + 1) * 30;
        let normalized: Vec<f64> =
            x[points.clone()].iter().map(|&x| (f64::from(x) - mean) * deviation).collect();
        let weighted: Vec<f64> =
            gradient[points].iter().zip(&weight).map(|(g, w)| f64::from(*g) * f64::from(*w)).collect();
        let average = weighted.iter().sum::<f64>() / 30.0;
        let slope = weighted.iter().zip(&normalized).map(|(g, x)| g * x).sum::<f64>() / 30.0;
        expected.extend(weighted.iter().zip(&normalized).map(|(g, x)| deviation * (g - average - x * slope)));
    }
    assert_near(&results[0].1, &expected);
    assert_eq!(backward([0, 1, 1])[0].0, [1], "the input's gradient is not wanted");
    assert_eq!(asked(), ["norm_backward [false, true, true]"]);
    // The gradient of a result that was not used.
    let undefined = || world(|world| world.handle(0)) as u64;
    let arguments = [
        undefined(),
        tensor(&[4, 30], &x),
        list(&[30]),
        undefined(),
        undefined(),
        optional(tensor(&[30], &weight)),
        0,
        list(&[1, 1, 0]),
    ];
    let results = call(&kernels, Operator::LayerNormBackward, &arguments, 3);
    assert_eq!(results.into_iter().map(|result| read(result).0).collect::<Vec<_>>(), [[1], [2], [3]]);
    assert_eq!(asked(), ["norm_backward [true, true, false]"]);
    assert_eq!(objects(), 0);
}

#[test]
fn rms_norm_and_its_gradient_are_those_of_their_formulas() {
    let (kernels, x, gradient, weight) = (kernels(), values(4 * 30), values(150)[30..].to_vec(), values(30));
    let roots: Vec<f64> = x
        .chunks_exact(30)
        .map(|row| row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / 30.0)
        .map(|squares| 1.0 / (squares + 1e-3).sqrt())
        .collect();
    let epsilon = |epsilon: f64| world(|world| world.handle(epsilon.to_bits())) as u64;
    let arguments = [tensor(&[2, 2, 30], &x), list(&[30]), optional(tensor(&[30], &weight)), epsilon(1e-3)];
    let results = call(&kernels, Operator::RmsNorm, &arguments, 2);
    let [result, root] = [0, 1].map(|place| read(results[place]));
    assert_eq!([&result.0, &root.0], [&vec![2, 2, 30], &vec![2, 2, 1]]);
    assert_near(&root.1, &roots);
    let normalized: Vec<f64> =
        x.iter().enumerate().map(|(place, &x)| f64::from(x) * roots[place / 30]).collect();
    let weights: Vec<f64> = (0..120).map(|place| f64::from(weight[place % 30])).collect();
    assert_near(&result.1, &normalized.iter().zip(&weights).map(|(x, w)| x * w).collect::<Vec<_>>());
    let backward = |mask: [u64; 2]| {
        let arguments = [
            tensor(&[2, 2, 30], &gradient),
            tensor(&[2, 2, 30], &x),
            list(&[30]),
            tensor(&[2, 2, 1], &root.1),
            optional(tensor(&[30], &weight)),
            list(&mask),
        ];
        let results = call(&kernels, Operator::RmsNormBackward, &arguments, 2);
        results.into_iter().map(read).collect::<Vec<_>>()
    };
    let results = backward([1, 1]);
    assert_eq!(asked(), ["rms_backward [false, true]"]);
    let slopes: Vec<f64> = gradient.iter().zip(&weights).map(|(&g, w)| f64::from(g) * w).collect();
    let expected = slopes.iter().enumerate().map(|(place, slope)| {
        let row = place / 30 * 30..place / 30 * 30 + 30;
        let mean = row.map(|other| slopes[other] * normalized[other]).sum::<f64>() / 30.0;
        roots[place / 30] * (slope - normalized[place] * mean)
    });
    assert_near(&results[0].1, &expected.collect::<Vec<_>>());
    assert_eq!((&results[0].0, &results[1].0), (&vec![2, 2, 30], &vec![2]));
    assert_eq!(backward([0, 1])[0].0, [1], "the input's gradient is not wanted");
    // Without an epsilon it is PyTorch's, which has one for each dtype.
    let arguments = [tensor(&[4, 30], &x), list(&[30]), optional(tensor(&[30], &weight)), 0];
    let results = call(&kernels, Operator::RmsNorm, &arguments, 2);
    assert_eq!([0, 1].map(|place| read(results[place]).0), [[1], [2]]);
    assert_eq!((asked().last().map(String::as_str), objects()), (Some("rms [4, 30] 1 true false"), 0));
}

fn classes(classes: &[i64]) -> u64 {
    let handle = world(|world| world.handle(world.word(&[classes.len() as i64], I64)));
    let bytes: Vec<u8> = classes.iter().flat_map(|class| class.to_le_bytes()).collect();
    let address = DevicePointer::new(implementation(handle).address);
    world(|world| world.stream.copy_from_host(address, &bytes, Label::here("test")).unwrap());
    handle as u64
}

#[test]
fn the_gradient_of_embeddings_is_a_sum_over_the_places_of_an_index() {
    let (kernels, gradient) = (kernels(), values(6 * 5));
    let picked = [2, 0, 2, 6, 2, 0];
    let arguments =
        |by_frequency: u64| [tensor(&[6, 5], &gradient), classes(&picked), 7, 6_i64 as u64, by_frequency];
    let (sizes, actual) = read(call(&kernels, Operator::EmbeddingBackward, &arguments(0), 1)[0]);
    let mut expected = vec![0.0; 7 * 5];
    for (place, &row) in picked.iter().enumerate().filter(|(_, row)| **row != 6) {
        for feature in 0..5 {
            expected[row as usize * 5 + feature] += f64::from(gradient[place * 5 + feature]);
        }
    }
    assert_eq!(sizes, [7, 5]);
    assert_near(&actual, &expected);
    assert_eq!(asked(), Vec::<String>::new());
    assert_eq!(read(call(&kernels, Operator::EmbeddingBackward, &arguments(1), 1)[0]).0, [7]);
    assert_eq!((asked(), objects()), (vec!["embedding 7 6 true".to_owned()], 0));
}

#[test]
fn cross_entropy_gives_losses_of_rows_and_their_gradient() {
    let (kernels, x, slopes) = (kernels(), values(4 * 30), values(4));
    let (picked, ignored) = ([7, 29, -100, 0], -100_i64 as u64);
    let shares = softmax_of(&x, 30);
    let arguments = [tensor(&[4, 30], &x), classes(&picked), ignored];
    let results = call(&kernels, Operator::CrossEntropy, &arguments, 2);
    let [losses, log_sums] = [0, 1].map(|place| read(results[place]));
    assert_eq!([&losses.0, &log_sums.0], [&vec![4], &vec![4]]);
    let loss =
        |(row, &class): (usize, &i64)| if class < 0 { 0.0 } else { -shares[row * 30 + class as usize].ln() };
    assert_near(&losses.1, &picked.iter().enumerate().map(loss).collect::<Vec<_>>());
    let log_sum = |row: &[f32]| row.iter().map(|&value| f64::from(value).exp()).sum::<f64>().ln();
    assert_near(&log_sums.1, &x.chunks_exact(30).map(log_sum).collect::<Vec<_>>());
    let arguments =
        [tensor(&[4], &slopes), tensor(&[4, 30], &x), classes(&picked), tensor(&[4], &log_sums.1), ignored];
    let (sizes, actual) = read(call(&kernels, Operator::CrossEntropyBackward, &arguments, 1)[0]);
    let slope = |(place, share): (usize, &f64)| {
        let (class, slope) = (picked[place / 30], f64::from(slopes[place / 30]));
        let chosen = if class == (place % 30) as i64 { 1.0 } else { 0.0 };
        if class < 0 { 0.0 } else { (share - chosen) * slope }
    };
    assert_eq!(sizes, [4, 30]);
    assert_near(&actual, &shares.iter().enumerate().map(slope).collect::<Vec<_>>());
    // What does not fit has no result.
    let arguments = [tensor(&[4, 30], &x), classes(&picked[..3]), ignored];
    let results = call(&kernels, Operator::CrossEntropy, &arguments, 2);
    assert_eq!([0, 1].map(|place| read(results[place]).0), [[0], [0]]);
    let arguments = [
        tensor(&[4], &slopes),
        tensor(&[2, 2, 30], &x),
        classes(&picked),
        tensor(&[4], &log_sums.1),
        ignored,
    ];
    assert_eq!(read(call(&kernels, Operator::CrossEntropyBackward, &arguments, 1)[0]).0, [0]);
    assert_eq!((asked(), objects()), (vec![], 0));
    let both = operators_of("cross_entropy_loss", false).unwrap();
    assert_eq!(both, [Operator::CrossEntropy, Operator::CrossEntropyBackward]);
}

#[test]
fn an_operator_that_failed_stays_with_pytorch_and_the_report_says_why() {
    let (kernels, x) = (kernels(), values(12));
    for status in [Status::OutOfMemory, Status::Capture] {
        kernels.give_up(Operator::Softmax, &Error::new(status, "later"));
    }
    assert!(kernels.takes(Operator::Softmax, &class(DType::F32, 3, 4)));
    kernels.give_up(Operator::Softmax, &Error::new(Status::Driver, "no\tcompiler"));
    read(call(&kernels, Operator::Softmax, &[tensor(&[3, 4], &x), 1, 0], 1)[0]);
    assert_eq!(asked().len(), 1);
    let report = kernels.report();
    let first: Vec<_> = report.lines().next().unwrap().split('\t').collect();
    assert_eq!((first[0], &first[8..]), ("_softmax", &["0", "0", "1", "no compiler"][..]));
    assert!(report.lines().all(|line| line.split('\t').count() == 12), "{report}");
    assert!(kernels.takes(Operator::LogSoftmax, &class(DType::F32, 3, 4)), "other operators go on");
}

#[test]
fn registrations_are_made_once_and_taken_out() {
    let kernels = kernels();
    let operators = operators_of("", false).unwrap();
    assert!(!operators.contains(&Operator::EmbeddingBackward), "the table does not have it");
    assert_eq!(operators_of("", true).unwrap().len(), Operator::ALL.len());
    kernels.register(&operators).unwrap();
    kernels.register(&operators).unwrap();
    let names: Vec<String> =
        world(|world| world.registered.take()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, operators.iter().map(|operator| operator.schema().1).collect::<Vec<_>>());
    assert!(kernels.report().lines().all(|line| line.split('\t').nth(8) == Some("1")));
    kernels.registered().clear();
    assert_eq!(objects(), 0);
    let error = operators_of("_softmax,gelu", false).unwrap_err();
    assert!(error.message().starts_with("there is no kernel for `gelu`; there are kernels for _softmax,"));
}

/// Returns the class of a call over contiguous rows.
fn class(dtype: DType, rows: u64, columns: u64) -> Class {
    Class { form: Form::Rows, dtype, columns, contiguous: columns, elements: rows * columns }
}

#[test]
fn the_table_has_what_is_ahead_by_five_percent() {
    for speed in SPEEDS {
        assert!(speed.ours >= 1.05 * speed.pytorch, "{speed:?}");
        assert!(Operator::ALL.iter().any(|operator| operator.name() == speed.operator), "{speed:?}");
        let [fewest, most] = speed.columns;
        assert!(fewest <= most && fewest % COLUMNS == 0 && most % COLUMNS == 0, "{speed:?}");
        let (rows, dtype) = (speed.elements.div_ceil(fewest), speed.dtypes[0]);
        // Far more elements than measured are contiguous, and their number is not a multiple of a vector's if columns are not.
        let of = |dtype, rows, columns| Class {
            form: speed.form,
            contiguous: columns + 1024,
            ..class(dtype, rows, columns)
        };
        let ahead = |rows, columns| speeds::is_ahead(speed.operator, &of(dtype, rows, columns));
        assert!(ahead(rows, fewest) && ahead(rows, most));
        assert!(!ahead(1, fewest), "too few elements: {speed:?}");
        assert!(!ahead(rows, fewest + 1), "no vectors: {speed:?}");
        assert!(!speeds::is_ahead(speed.operator, &of(DType::F64, rows, fewest)));
    }
    assert!(!speeds::is_ahead("_log_softmax", &class(DType::Bf16, 1 << 20, 131_072)), "as fast as PyTorch's");
    let narrow = Class { form: Form::Columns, contiguous: 128, ..class(DType::Bf16, 1 << 20, 1024) };
    assert!(!speeds::is_ahead("_softmax", &narrow), "fewer columns side by side than were measured");
    let list = |columns, count: u64| Class {
        form: Form::List,
        contiguous: COLUMNS,
        ..class(DType::F32, count, columns)
    };
    assert!(speeds::is_ahead("_fused_adamw_", &list(124_475_904 / 148, 148)), "GPT-2");
    assert!(!speeds::is_ahead("_fused_adamw_", &list(262_144, 256)), "the host takes longer than the GPU");
    let planes = |plane| Class { form: Form::Planes, ..class(DType::Bf16, 128 * 1024, plane) };
    assert!(speeds::is_ahead("native_batch_norm", &planes(28 * 28)), "ResNet-50");
    assert!(!speeds::is_ahead("native_batch_norm", &planes(14 * 14)), "planes that are not vectors");
}

#[test]
fn without_pytorch_there_is_an_error_that_says_so() {
    let allocator = Box::leak(Box::new(Allocator::new(Source::Sim, "").unwrap()));
    let error = enable(allocator, "torch/lib", "CUDA", "", false).unwrap_err();
    assert_eq!(error.message(), "torch/lib/libtorch_cpu.so is not loaded: import torch first");
    let error = enable(allocator, "torch/lib", "XPU", "", false).unwrap_err();
    assert_eq!(error.message(), "there are no kernels for the key `XPU`: CUDA or CPU");
}
