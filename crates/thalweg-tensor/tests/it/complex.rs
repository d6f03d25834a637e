//! Complex numbers: views of their parts, promotion, refusals, gradients, and Fourier transforms against plain sums. Values and
//! gradients of PyTorch's samples are in `opinfo`.

use std::sync::Arc;

use thalweg_driver::{Code, Driver, GpuCall};
use thalweg_ir::{DType, c64, c128};
use thalweg_runtime::{Device, Environment, Result};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::autocast::autocast;
use thalweg_tensor::dispatch::{Value, find_operator};
use thalweg_tensor::random::DeviceGenerator;
use thalweg_tensor::{HostTensor, Tensor};

use crate::support::{device, on_device, tensor, values};

/// Returns a complex64 tensor of (re, im).
fn complex(numbers: &[(f32, f32)], shape: &[usize]) -> Tensor {
    let numbers: Vec<c64> = numbers.iter().map(|&(re, im)| c64 { re, im }).collect();
    Tensor::from_slice(&numbers, shape, &device()).unwrap()
}

fn numbers(z: &Tensor) -> Vec<(f64, f64)> {
    let wide = z.detach().to_dtype(DType::C128).unwrap();
    wide.to_vec::<c128>().unwrap().iter().map(|number| (number.re, number.im)).collect()
}

fn call(name: &str, arguments: &[Value]) -> Result<Tensor> {
    match find_operator(name)?.call_boxed(arguments, None)?.swap_remove(0) {
        Value::Tensor(tensor) => Ok(tensor),
        other => panic!("{name} gives {other:?}"),
    }
}

#[test]
fn numbers_come_and_go() {
    let z = complex(&[(1.0, 2.0), (3.0, -1.0)], &[2]);
    assert_eq!(z.to_vec::<c64>().unwrap(), [c64 { re: 1.0, im: 2.0 }, c64 { re: 3.0, im: -1.0 }]);
    assert_eq!(z.select(0, 1).unwrap().item::<c64>().unwrap(), c64 { re: 3.0, im: -1.0 });
    let host = HostTensor::pinned(&[2], DType::C64, &device()).unwrap();
    z.copy_to_pinned(&host).unwrap();
    device().current_stream().synchronize().unwrap();
    assert_eq!(numbers(&host.to_device().unwrap()), [(1.0, 2.0), (3.0, -1.0)]);
    assert_eq!(numbers(&Tensor::full(&[1], 2.5, DType::C64, &device()).unwrap()), [(2.5, 0.0)]);
}

#[test]
fn arguments_may_be_complex_numbers() {
    let number = |re, im| Value::Complex(c128 { re, im });
    let (real, z) = (tensor(&[1.0, -2.0], &[2], DType::F32), complex(&[(1.0, 2.0), (3.0, -1.0)], &[2]));
    let with = |name: &str, x: &Tensor, value: Value| call(name, &[Value::Tensor(x.clone()), value]);
    let sum = with("add.Scalar", &real, number(0.5, 1.0)).unwrap();
    assert_eq!((sum.dtype(), numbers(&sum)), (DType::C64, vec![(1.5, 1.0), (-1.5, 1.0)]));
    let wide = with("mul.Scalar", &real.to_dtype(DType::F64).unwrap(), number(0.0, 2.0)).unwrap();
    assert_eq!((wide.dtype(), numbers(&wide)), (DType::C128, vec![(0.0, 2.0), (0.0, -4.0)]));
    let whole = with("sub.Scalar", &real.to_dtype(DType::I64).unwrap(), number(0.0, 2.0)).unwrap();
    assert_eq!((whole.dtype(), numbers(&whole)), (DType::C64, vec![(1.0, -2.0), (-2.0, -2.0)]));
    let scaled = [Value::Tensor(real.clone()), Value::Tensor(z.clone()), number(0.0, 1.0)];
    assert_eq!(numbers(&call("add.Tensor", &scaled).unwrap()), [(-1.0, 1.0), (-1.0, 3.0)]);
    assert_eq!(numbers(&with("pow.Tensor_Scalar", &z, number(1.0, 0.0)).unwrap())[0].0.round(), 1.0);
    let found = with("eq.Scalar", &z, number(3.0, -1.0)).unwrap();
    assert_eq!(values(&found), [0.0, 1.0]);
    call("mul_.Scalar", &[Value::Tensor(z.clone()), number(0.0, 1.0)]).unwrap();
    assert_eq!(numbers(&z), [(-2.0, 1.0), (1.0, 3.0)]);
    let full = |dtype| {
        let arguments = [Value::Ints(vec![2]), number(1.0, -3.0), dtype];
        find_operator("full").unwrap().call_boxed(&arguments, Some(&device()))
    };
    let Value::Tensor(made) = full(Value::None).unwrap().remove(0) else { panic!("a tensor is made") };
    assert_eq!((made.dtype(), numbers(&made)), (DType::C64, vec![(1.0, -3.0); 2]));
    assert!(full(Value::DType(DType::F32)).unwrap_err().to_string().contains("without overflow"));
    // Operators without complex numbers refuse them, and a real tensor does not become one.
    for name in ["remainder.Scalar", "clamp_min", "mul_.Scalar", "leaky_relu"] {
        assert!(with(name, &real, number(0.0, 1.0)).unwrap_err().is_invalid_argument(), "{name}");
    }
    let read = find_operator("_local_scalar_dense").unwrap();
    let results = read.call_boxed(&[Value::Tensor(made.select(0, 0).unwrap())], None).unwrap();
    assert!(matches!(results[0], Value::Complex(c128 { re: 1.0, im: -3.0 })), "{results:?}");
}

#[test]
fn parts_are_views() {
    let z = complex(&[(1.0, 2.0), (3.0, 4.0), (5.0, 6.0), (7.0, 8.0)], &[2, 2]).transpose(0, 1).unwrap();
    assert_eq!(values(&z.real().unwrap()), [1.0, 5.0, 3.0, 7.0]);
    assert_eq!(values(&z.imag().unwrap()), [2.0, 6.0, 4.0, 8.0]);
    let parts = z.view_as_real().unwrap();
    assert_eq!((parts.shape(), parts.layout().strides()), (&[2, 2, 2][..], &[2, 4, 1][..]));
    let again = parts.view_as_complex().unwrap();
    assert!(again.shares_storage_with(&z) && again.layout() == z.layout() && again.dtype() == DType::C64);
    z.imag().unwrap().copy_(&tensor(&[0.0], &[], DType::F32)).unwrap();
    assert_eq!(numbers(&z), [(1.0, 0.0), (5.0, 0.0), (3.0, 0.0), (7.0, 0.0)]);
    // A later part of a tensor keeps its offset.
    assert_eq!(numbers(&parts.select(0, 1).unwrap().view_as_complex().unwrap()), [(3.0, 0.0), (7.0, 0.0)]);
}

#[test]
fn views_that_do_not_fit_are_refused_in_pytorchs_words() {
    let floats = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device()).unwrap();
    let refused = |tensor: &Tensor, words: &str| {
        let error = tensor.view_as_complex().unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
    };
    refused(&floats(&[]), "Input tensor must have one or more dimensions");
    refused(&floats(&[3]), "Tensor must have a last dimension of size 2");
    refused(&floats(&[2, 2]).transpose(0, 1).unwrap(), "Tensor must have a last dimension with stride 1");
    refused(&floats(&[3, 3]).narrow(1, 0, 2).unwrap(), "Tensor must have a stride divisible by 2");
    refused(&floats(&[4]).narrow(0, 1, 2).unwrap(), "Tensor must have a storage_offset divisible by 2");
    refused(&floats(&[2]).to_dtype(DType::I64).unwrap(), "view_as_complex is only supported for");
    assert!(
        floats(&[2]).view_as_real().unwrap_err().to_string().contains("only supported for complex tensors")
    );
    assert!(floats(&[2]).imag().unwrap_err().to_string().contains("imag is not implemented for"));
}

#[test]
fn dtypes_promote_as_in_pytorch() {
    let of = |dtype, shape: &[usize]| Tensor::ones(shape, dtype, &device()).unwrap();
    let sum = |a: &Tensor, b: &Tensor| a.add(b).unwrap().dtype();
    for dtype in [DType::Bool, DType::I64, DType::F16, DType::F32, DType::C64] {
        assert_eq!(sum(&of(dtype, &[2]), &of(DType::C64, &[2])), DType::C64, "{dtype}");
    }
    assert_eq!(sum(&of(DType::F64, &[2]), &of(DType::C64, &[2])), DType::C128);
    assert_eq!(sum(&of(DType::F64, &[]), &of(DType::C64, &[2])), DType::C64);
    assert_eq!(sum(&of(DType::F32, &[2]), &of(DType::C128, &[])), DType::C64);
    assert_eq!(sum(&of(DType::F64, &[2]), &of(DType::C64, &[])), DType::C128);
    assert_eq!(of(DType::C64, &[2]).mul_scalar(2.5).unwrap().dtype(), DType::C64);
    assert_eq!(of(DType::C64, &[2]).abs().unwrap().dtype(), DType::F32);
    let floats = of(DType::F32, &[2]);
    let error =
        call("add_.Tensor", &[Value::Tensor(floats), Value::Tensor(of(DType::C64, &[2]))]).unwrap_err();
    assert!(error.to_string().contains("can't be cast to the desired output type"), "{error}");
}

#[test]
fn operators_without_complex_numbers_refuse_them_by_name() {
    let z = complex(&[(1.0, 2.0), (3.0, 4.0)], &[2]);
    let one = |name: &str| call(name, &[Value::Tensor(z.clone())]).unwrap_err().to_string();
    for name in ["floor", "relu", "sign", "erf", "trunc", "isposinf", "argmax", "sort", "median"] {
        assert!(call(name, &[Value::Tensor(z.clone())]).unwrap_err().is_invalid_argument(), "{name}");
    }
    assert!(one("floor").contains("\"floor\" not implemented for 'ComplexFloat'"), "{}", one("floor"));
    assert!(one("argmax").contains("not implemented for 'ComplexFloat'"), "{}", one("argmax"));
    let both = [Value::Tensor(z.clone()), Value::Tensor(z.clone())];
    for name in ["maximum", "lt.Tensor", "fmod.Tensor", "atan2", "nextafter"] {
        let error = call(name, &both).unwrap_err().to_string();
        assert!(error.contains("not implemented for 'ComplexFloat'"), "{error}");
    }
    let error = z.sum(&[], false).unwrap().requires_grad_().unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("grad can be implicitly created only for real scalar outputs"), "{error}");
}

#[test]
fn a_step_against_the_gradient_goes_down() {
    // Of |z|² the gradient is 2z; of |a · x|² with a real x it is the real number 2 |a|² x.
    let z = complex(&[(1.0, 2.0), (-3.0, 0.5)], &[2]).requires_grad_().unwrap();
    z.abs().unwrap().square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    let gradient = numbers(&z.grad().unwrap());
    for ((re, im), (expected_re, expected_im)) in gradient.into_iter().zip([(2.0, 4.0), (-6.0, 1.0)]) {
        assert!((re - expected_re).abs() < 1e-5 && (im - expected_im).abs() < 1e-5, "{re} + {im}i");
    }
    let x = tensor(&[0.5, -2.0], &[2], DType::F32).requires_grad_().unwrap();
    let product = z.detach().mul(&x).unwrap().view_as_real().unwrap();
    product.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [5.0, -37.0]);
}

#[test]
fn autocast_leaves_complex_numbers_alone() {
    let z = complex(&[(1.0, 2.0), (3.0, 4.0)], &[1, 2]);
    let product = autocast(DType::Bf16, || z.matmul(&z.transpose(0, 1)?)).unwrap();
    assert_eq!((product.dtype(), numbers(&product)), (DType::C64, vec![(-10.0, 28.0)]));
}

#[test]
fn normal_numbers_have_a_variance_of_one() {
    let generator = DeviceGenerator::new(7, &device()).unwrap();
    let z = generator.normal(&[20_000], 0.0, 1.0, DType::C64).unwrap();
    let variance = values(&z.abs().unwrap()).iter().map(|size| size * size).sum::<f64>() / 20_000.0;
    assert!((variance - 1.0).abs() < 0.03, "{variance}");
}

/// Returns the transform by its definition, in f64.
fn plain_transform(numbers: &[(f64, f64)], sign: f64) -> Vec<(f64, f64)> {
    let size = numbers.len();
    let roots: Vec<(f64, f64)> =
        (0..size).map(|t| (sign * std::f64::consts::TAU * t as f64 / size as f64).sin_cos()).collect();
    (0..size)
        .map(|k| {
            numbers.iter().enumerate().fold((0.0, 0.0), |(re, im), (t, &(a, b))| {
                let (sin, cos) = roots[(t * k) % size];
                (re + a * cos - b * sin, im + a * sin + b * cos)
            })
        })
        .collect()
}

/// A simulated GPU without the library of Fourier transforms.
#[derive(Debug)]
struct WithoutTransforms(Arc<SimDriver>);

impl Driver for WithoutTransforms {
    thalweg_driver::wraps!(0);

    fn library_workspace(&self, device: u32, call: &GpuCall) -> thalweg_driver::Result<u64> {
        if matches!(call, GpuCall::Fourier(_)) {
            let detail = "this machine has no such library";
            return Err(thalweg_driver::Error::new(Code::LibraryMissing, "cufftCreate", detail));
        }
        self.0.library_workspace(device, call)
    }
}

fn transforms_are_the_plain_sums(sizes: &[usize]) {
    for &size in sizes {
        let list: Vec<(f32, f32)> = (0..2 * size)
            .map(|i| ((i * 7 % 13) as f32 / 6.0 - 1.0, (i * 5 % 11) as f32 / 5.0 - 1.0))
            .collect();
        let z = complex(&list, &[2, size]);
        for (name, sign) in [("fft_fft", -1.0), ("fft_ifft", 1.0)] {
            let found = numbers(&call(name, &[Value::Tensor(z.clone())]).unwrap());
            let lines: Vec<(f64, f64)> = list.iter().map(|&(re, im)| (re.into(), im.into())).collect();
            let factor = if sign > 0.0 { 1.0 / size as f64 } else { 1.0 };
            let expected = lines.chunks(size).flat_map(|line| plain_transform(line, sign));
            let mut square = (0.0, 0.0);
            for ((re, im), (a, b)) in found.into_iter().zip(expected) {
                let (a, b) = (a * factor, b * factor);
                square.0 += (re - a).powi(2) + (im - b).powi(2);
                square.1 += a * a + b * b;
            }
            // The error of a complete transform of f32 grows with the logarithm of its size.
            let error = (square.0 / square.1).sqrt();
            assert!(error < 1e-6, "{name} of {size}: the relative error is {error:e}");
        }
    }
}

#[test]
fn transforms_of_the_library_are_the_plain_sums() {
    transforms_are_the_plain_sums(&[1, 2, 3, 5, 64, 97, 4160]);
}

/// Without a library, a transform is composed of products, twiddle factors and chirps.
#[test]
fn composed_transforms_of_every_kind_of_size_are_the_plain_sums() {
    let driver = SimDriver::new(SimConfig { memory_bytes: 32 << 20, ..SimConfig::default() }).unwrap();
    let devices = Device::all_of(Arc::new(WithoutTransforms(driver)), &Environment::default());
    on_device(devices.unwrap().remove(0), || {
        // Direct, split once and twice, prime (by a chirp), and split with a prime left.
        transforms_are_the_plain_sums(&[
            1, 2, 3, 5, 8, 31, 63, 64, 65, 67, 81, 96, 97, 128, 130, 134, 243, 257, 1000, 1024, 4160,
        ]);
    });
}

#[test]
fn transforms_of_real_numbers_go_there_and_back() {
    for size in [2usize, 5, 64, 101, 360] {
        let list: Vec<f64> = (0..3 * size).map(|i| (i * 7 % 13) as f64 / 6.0 - 1.0).collect();
        let x = tensor(&list, &[size, 3], DType::F64).requires_grad_().unwrap();
        let half = x.fft_rfft(None, 0, Some("ortho")).unwrap();
        assert_eq!((half.shape(), half.dtype()), (&[size / 2 + 1, 3][..], DType::C128));
        let back = half.fft_irfft(Some(size as i64), 0, Some("ortho")).unwrap();
        crate::support::assert_close(&values(&back), &list, 1e-12);
        // The gradient of Σ y²/2 through both is y.
        back.square().unwrap().sum(&[], false).unwrap().mul_scalar(0.5).unwrap().backward().unwrap();
        crate::support::assert_close(&values(&x.grad().unwrap()), &list, 1e-12);
    }
}

#[test]
fn the_logarithm_of_a_sum_of_exponentials_is_shifted() {
    let z = [(1.0, 2.0), (0.5, -1.0), (1000.0, 0.25), (999.0, -2.0)];
    let result = call("logsumexp", &[Value::Tensor(complex(&z, &[2, 2])), Value::Ints(vec![1])]).unwrap();
    for (row, (re, im)) in z.map(|(re, im)| (f64::from(re), f64::from(im))).chunks(2).zip(numbers(&result)) {
        let shift = row[0].0.max(row[1].0);
        let sum = row.iter().fold((0.0, 0.0), |sum, (re, im)| {
            (sum.0 + (re - shift).exp() * im.cos(), sum.1 + (re - shift).exp() * im.sin())
        });
        let expected = (sum.0.hypot(sum.1).ln() + shift, sum.1.atan2(sum.0));
        assert!((re - expected.0).abs() < 1e-4 && (im - expected.1).abs() < 1e-5, "{re}, {im}: {expected:?}");
    }
}

#[test]
fn numbers_are_combined_at_indices() {
    let z = complex(&[(1.0, 2.0), (0.0, -1.0), (3.0, 0.5)], &[3]);
    let source = complex(&[(0.5, 1.0), (2.0, 0.0), (0.0, 3.0), (-1.0, 1.0), (0.25, 0.5)], &[5]);
    let index = Tensor::from_slice(&[2i64, 0, 2, 0, 2], &[5], &device()).unwrap();
    let times = |a: (f64, f64), b: (f64, f64)| (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0);
    let (start, list) = (numbers(&z), numbers(&source));
    for include_self in [true, false] {
        let mut products = if include_self { start.clone() } else { vec![(1.0, 0.0), start[1], (1.0, 0.0)] };
        let mut sums = if include_self { start.clone() } else { vec![(0.0, 0.0), start[1], (0.0, 0.0)] };
        for (&number, at) in list.iter().zip([2, 0, 2, 0, 2]) {
            products[at] = times(products[at], number);
            sums[at] = (sums[at].0 + number.0, sums[at].1 + number.1);
        }
        let counts = [2.0, 0.0, 3.0].map(|count: f64| (count + f64::from(u8::from(include_self))).max(1.0));
        let means = sums.iter().zip(counts).map(|(sum, count)| (sum.0 / count, sum.1 / count)).collect();
        for (way, expected) in [("prod", products), ("mean", means)] {
            let found = numbers(&z.scatter_reduce(0, &index, &source, way, include_self).unwrap());
            for (found, expected) in found.iter().zip::<Vec<(f64, f64)>>(expected) {
                assert!(
                    (found.0 - expected.0).hypot(found.1 - expected.1) < 1e-6,
                    "{way}: {found:?}, {expected:?}"
                );
            }
        }
    }
    let places = Value::Tensor(Tensor::from_slice(&[1i64], &[1], &device()).unwrap());
    let number = Value::Complex(c128 { re: 2.0, im: 0.5 });
    let arguments = [Value::Tensor(z.clone()), Value::Int(0), places, number];
    let written = call("scatter.value", &arguments).unwrap();
    assert_eq!(numbers(&written), [(1.0, 2.0), (2.0, 0.5), (3.0, 0.5)]);
    let reduced: Vec<Value> = arguments.iter().cloned().chain([Value::Str("multiply".into())]).collect();
    assert_eq!(numbers(&call("scatter.value_reduce", &reduced).unwrap())[1], (0.5, -2.0));
    call("scatter_.value", &arguments).unwrap();
    assert_eq!(numbers(&z), numbers(&written));
}
