//! New tensors without an explicit generator, copies, memory formats, truth values, and iteration.

use thalweg_ir::{DType, HostElement};
use thalweg_lock::Mutex;
use thalweg_runtime::Label;
use thalweg_tensor::dispatch::{Argument, find_operator};
use thalweg_tensor::random::default_generator;
use thalweg_tensor::{HostTensor, MemoryFormat, Tensor, no_grad};

use crate::support::{assert_close, device, tensor, values};

/// Held by a test that draws from a device's own generator: tests on one GPU share it.
static DRAWING: Mutex<()> = Mutex::new(());

#[test]
fn random_tensors_are_drawn_from_the_default_generator() {
    let _drawing = DRAWING.lock();
    let device = device();
    let draw = || {
        default_generator(&device).unwrap().manual_seed(11).unwrap();
        let parts = [
            Tensor::rand(&[4000], DType::F32, &device).unwrap(),
            Tensor::randn(&[4000], DType::F64, &device).unwrap(),
            Tensor::randint(-3, 4, &[4000], DType::I32, &device).unwrap(),
            Tensor::randperm(100, DType::I64, &device).unwrap(),
        ];
        let like = parts[2].randint_like(5, 7).unwrap();
        assert_eq!((like.shape(), like.dtype()), (&[4000][..], DType::I32));
        assert!(values(&like).iter().all(|&number| number == 5.0 || number == 6.0));
        parts.map(|part| (part.dtype(), values(&part)))
    };
    let [(rand_dtype, rand), (randn_dtype, randn), (randint_dtype, randint), (randperm_dtype, mut randperm)] =
        draw();
    assert_eq!(
        [rand_dtype, randn_dtype, randint_dtype, randperm_dtype],
        [DType::F32, DType::F64, DType::I32, DType::I64]
    );
    let moments = |numbers: &[f64]| {
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
        (mean, variance)
    };
    // Five standard deviations of the mean and of the variance of 4000 draws.
    let (mean, variance) = moments(&rand);
    assert!((mean - 0.5).abs() < 0.023 && (variance - 1.0 / 12.0).abs() < 0.006, "{mean} {variance}");
    assert!(rand.iter().all(|x| (0.0..1.0).contains(x)));
    let (mean, variance) = moments(&randn);
    assert!(mean.abs() < 0.08 && (variance - 1.0).abs() < 0.12, "{mean} {variance}");
    let counts = (-3..4).map(|number| randint.iter().filter(|&&x| x == f64::from(number)).count());
    let counts: Vec<usize> = counts.collect();
    assert_eq!(counts.iter().sum::<usize>(), 4000);
    assert!(counts.iter().all(|count| count.abs_diff(571) < 111), "{counts:?}");
    assert_eq!(
        draw().map(|(_, numbers)| numbers),
        [rand, randn, randint, randperm.clone()],
        "the seed decides"
    );
    randperm.sort_by(f64::total_cmp);
    assert_eq!(randperm, (0..100).map(f64::from).collect::<Vec<_>>());
}

#[test]
fn the_identity_and_ranges_are_pytorchs() {
    let device = device();
    let eye = Tensor::eye(2, 3, DType::Bf16, &device).unwrap();
    assert_eq!((eye.shape(), values(&eye)), (&[2, 3][..], vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0]));
    // torch.linspace(-1, 2, 7, dtype=float64), and of integers torch.linspace(0, 10, 4, dtype=int64).
    let range = Tensor::linspace(-1, 2, 7, DType::F64, &device).unwrap();
    assert_close(&values(&range), &[-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0], 1e-15);
    let range = Tensor::linspace(0, 10, 4, DType::I64, &device).unwrap();
    assert_eq!(range.to_vec::<i64>().unwrap(), [0, 3, 6, 10]);
    let error = Tensor::randint(3, 3, &[2], DType::I64, &device).unwrap_err().to_string();
    assert!(error.contains("random_ expects 'from' to be less than 'to', but got from=3 >= to=3"), "{error}");
    let error = Tensor::rand(&[2], DType::I64, &device).unwrap_err();
    assert!(error.is_invalid_argument(), "{error}");
}

#[test]
fn a_deep_clone_has_memory_of_its_own_and_a_gradient() {
    let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], DType::F64).requires_grad_().unwrap();
    let turned = x.transpose(0, 1).unwrap();
    let copy = turned.deep_clone().unwrap();
    // torch.empty(2, 3).t().clone().stride() is (1, 3), and of a part with gaps the copy is contiguous.
    assert!(!copy.shares_storage_with(&x));
    assert_eq!(copy.layout().strides(), [1, 3]);
    assert_eq!(x.narrow(1, 0, 2).unwrap().deep_clone().unwrap().layout().strides(), [2, 1]);
    no_grad(|| x.fill_(0)).unwrap();
    assert_eq!(values(&copy), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let factors = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2], DType::F64);
    copy.mul(&factors).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
}

#[test]
fn memory_formats_have_pytorchs_strides() {
    let x = Tensor::arange(120, 0i64, 1i64, DType::F32, &device()).unwrap().reshape(&[2, 3, 4, 5]).unwrap();
    let last = x.contiguous_in(MemoryFormat::ChannelsLast).unwrap();
    // torch.empty(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).stride()
    assert_eq!((last.shape(), last.layout().strides()), (&[2, 3, 4, 5][..], &[60, 1, 15, 3][..]));
    assert_eq!(values(&last), values(&x));
    let holds = |x: &Tensor| {
        [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast]
            .map(|format| x.is_contiguous_in(format).unwrap())
    };
    assert_eq!((holds(&x), holds(&last)), ([true, false], [false, true]));
    assert!(last.contiguous_in(MemoryFormat::ChannelsLast).unwrap().is_same(&last));
    assert_eq!(last.contiguous_in(MemoryFormat::Contiguous).unwrap().layout().strides(), [60, 20, 5, 1]);
    let volume = x.unsqueeze(2).unwrap().contiguous_in(MemoryFormat::ChannelsLast3d).unwrap();
    assert!(volume.is_contiguous_in(MemoryFormat::ChannelsLast3d).unwrap());
    let error = x.contiguous_in(MemoryFormat::ChannelsLast3d).unwrap_err().to_string();
    assert!(error.contains("required rank 5 tensor to use channels_last_3d format"), "{error}");
}

#[test]
fn truth_values_come_and_go() {
    let device = device();
    let mask = Tensor::from_slice(&[true, false, true, true], &[2, 2], &device).unwrap();
    assert_eq!((bool::TENSOR_DTYPE, mask.dtype()), (DType::Bool, DType::Bool));
    assert_eq!(mask.to_vec::<bool>().unwrap(), [true, false, true, true]);
    assert_eq!(mask.to_vec::<u8>().unwrap(), [1, 0, 1, 1]);
    assert!(!mask.all().unwrap().item::<bool>().unwrap());
    assert_eq!(mask.t().unwrap().to_vec::<bool>().unwrap(), [true, true, false, true]);
    assert!(!mask.to_ndarray::<bool>().unwrap()[[0, 1]]);
    let numbers = Tensor::from_slice(&[0u8, 1], &[2], &device).unwrap();
    assert!(numbers.to_vec::<bool>().unwrap_err().is_invalid_argument(), "a uint8 tensor is not bool");
    let host = HostTensor::pinned(&[2], DType::Bool, &device).unwrap();
    host.write(0, &[0u8, 1]).unwrap();
    assert_eq!(host.to_device().unwrap().to_vec::<bool>().unwrap(), [false, true]);
}

#[test]
fn iterators_give_tensors_and_tensors_give_places() {
    let device = device();
    let x = Tensor::from_values((1..=6).map(f64::from), &device).unwrap().reshape(&[3, 2]).unwrap();
    let x = x.requires_grad_().unwrap();
    let mut sum = Tensor::zeros(&[2], DType::F64, &device).unwrap();
    for (place, row) in x.iter().unwrap().enumerate() {
        sum = sum.add(&row.mul_scalar(place as f64).unwrap()).unwrap();
    }
    assert_eq!(values(&sum), [13.0, 16.0]);
    sum.sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
    let error = x.sum(&[], false).unwrap().iter().unwrap_err().to_string();
    assert!(error.contains("iteration over a 0-d tensor"), "{error}");
    assert_eq!(Tensor::from_values(std::iter::empty::<i64>(), &device).unwrap().shape(), [0]);
}

#[test]
fn tensors_like_another_lie_in_its_order_or_in_the_format_that_is_asked_for() {
    let _drawing = DRAWING.lock();
    let device = device();
    let images = Tensor::rand(&[2, 3, 4, 5], DType::F32, &device).unwrap();
    let last = images.contiguous_in(MemoryFormat::ChannelsLast).unwrap();
    let expected = [60, 1, 15, 3];
    let like = |x: &Tensor| {
        [
            x.ones_like(),
            x.zeros_like(),
            x.empty_like(),
            x.full_like(2.0),
            x.rand_like(),
            x.randn_like(),
            x.randint_like(0, 9),
        ]
        .map(Result::unwrap)
    };
    for made in like(&last) {
        assert_eq!((made.shape(), made.layout().strides()), (&[2, 3, 4, 5][..], &expected[..]));
    }
    assert!(values(&last.full_like(2.0).unwrap()).iter().all(|&value| value == 2.0));
    // Gaps are not kept, but the channels are last; repeats are not kept.
    for made in like(&last.narrow(1, 0, 2).unwrap()) {
        assert_eq!(made.layout().strides(), [40, 1, 10, 2]);
    }
    for made in like(&images.narrow(0, 0, 1).unwrap().expand(&[2, 3, 4, 5]).unwrap()) {
        assert!(made.is_contiguous(), "{:?}", made.layout().strides());
    }
    let operator = find_operator("zeros_like").unwrap();
    let in_format = |x: &Tensor, format: i64| {
        let mut arguments = vec![Argument::from(x)];
        arguments.extend([Argument::None; 4]);
        arguments.push(format.into());
        operator.call(&arguments, None, Label::here("zeros_like")).map(|mut made| made.swap_remove(0))
    };
    assert!(in_format(&last, 0).unwrap().is_contiguous());
    assert_eq!(in_format(&images, 2).unwrap().layout().strides(), expected);
    assert!(in_format(&images, 3).is_err(), "an image is not a volume");
}
