//! The parts that the tests share: the device, tensors from numbers, comparison.

use std::cell::RefCell;
use std::sync::Arc;

use thalweg_driver::Driver;
use thalweg_driver::cuda::CudaDriver;
use thalweg_ir::DType;
use thalweg_runtime::{Device, Environment};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{GradcheckOptions, gradcheck};
use thalweg_tensor::random::Generator;

/// Returns the device under test: the simulator, or the one that `THALWEG_TEST_DEVICE` names. A GPU convolves f32 without TF32, whose
/// rounding exceeds the tolerances.
pub fn device() -> Device {
    if let Some(device) = OWN.with_borrow(Clone::clone) {
        return device;
    }
    thalweg_execute::backends::cudnn::set_allow_tf32(false);
    let name = std::env::var("THALWEG_TEST_DEVICE").unwrap_or_else(|_| "sim".to_owned());
    Device::from_name(&name).expect("the device under test opens")
}

/// Returns a tensor of a dtype from f64 values, rounded to it.
pub fn tensor(values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    let device = device();
    match dtype {
        DType::F64 => Tensor::from_slice(values, shape, &device),
        _ => Tensor::from_slice(values, shape, &device).and_then(|tensor| tensor.to_dtype(dtype)),
    }
    .expect("the tensor is made")
}

/// Returns the elements as f64.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.detach().to_dtype(DType::F64).expect("every dtype converts to f64");
    tensor.to_vec::<f64>().expect("the elements are read")
}

/// Returns random numbers in [−1, 1).
pub fn random(shape: &[usize], seed: u64) -> Tensor {
    Tensor::uniform(shape, -1.0, 1.0, &mut Generator::new(seed), &device())
        .and_then(|tensor| tensor.to_dtype(DType::F64))
        .expect("the tensor is made")
}

/// Returns whether two numbers agree within a relative and an absolute tolerance; NaN agrees with NaN.
pub fn close(found: f64, expected: f64, tolerance: f64) -> bool {
    found == expected
        || (found.is_nan() && expected.is_nan())
        || (found - expected).abs() <= tolerance * (1.0 + expected.abs())
}

/// Fails with the first index at which two lists differ.
#[track_caller]
pub fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "the number of elements");
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(close(found, expected, tolerance), "element {index}: found {found}, expected {expected}");
    }
}

/// Compares autograd's gradient of each element of the result with central differences.
#[track_caller]
pub fn check_gradient(point: &Tensor, function: impl Fn(&Tensor) -> Tensor) {
    let leaf = point.detach().requires_grad_().expect("a floating-point tensor");
    let options = GradcheckOptions { eps: 1e-5, atol: 1e-7, rtol: 1e-7, ..GradcheckOptions::default() };
    if let Err(error) = gradcheck(|inputs| Ok(vec![function(&inputs[0])]), &[leaf], options) {
        panic!("{error}");
    }
}

/// Returns the device under test, with its own caches and captures, for tests that other captures would disturb.
pub fn own_device() -> Device {
    let is_cuda = std::env::var("THALWEG_TEST_DEVICE").is_ok_and(|name| name.starts_with("cuda"));
    let driver: Arc<dyn Driver> = match is_cuda {
        true => CudaDriver::open().expect("the device under test opens"),
        false => SimDriver::new(SimConfig::default()).expect("a simulated GPU needs nothing"),
    };
    Device::all_of(driver, Environment::get()).expect("its devices open").remove(0)
}

thread_local! {
    static OWN: RefCell<Option<Device>> = const { RefCell::new(None) };
}

/// Makes the device under test a separate one for this thread, for tests with indices out of range: any wait for a device reports
/// them.
pub fn on_own_device<T>(work: impl FnOnce() -> T) -> T {
    thread_local! {
        static KEPT: Device = own_device();
    }
    on_device(KEPT.with(Device::clone), work)
}

/// Makes a device the one under test for this thread.
pub fn on_device<T>(device: Device, work: impl FnOnce() -> T) -> T {
    struct Restored;
    impl Drop for Restored {
        fn drop(&mut self) {
            OWN.set(None);
        }
    }
    OWN.set(Some(device));
    let _restored = Restored;
    work()
}

/// Expects the device to report an index out of range, once.
#[track_caller]
pub fn expect_out_of_range() {
    let error = device().synchronize().expect_err("an index is out of range");
    assert!(error.is_out_of_range(), "{error}");
}
