//! Tensors that move from one device to another. These tests run only on the simulator: it has the devices, and the schedules.

use thalweg_ir::DType;
use thalweg_runtime::sim::{Check, Gpu};
use thalweg_runtime::{Device, Environment, Label, Result, Stream};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Argument, find_operator};

use crate::support::values;

fn on<T>(stream: &Stream, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _current = stream.make_current();
    work()
}

/// Reuses memory at once, if possible: memory that was freed too early is overwritten.
fn churn(device: &Device) -> Result<()> {
    (0..4).try_for_each(|_| Tensor::full(&[64], 1000.0, DType::F32, device).map(drop))
}

fn two_devices(expandable_segments: bool) -> Vec<Device> {
    let mut environment = Environment::default();
    environment.allocator = environment.allocator.with_expandable_segments(expandable_segments);
    let config = SimConfig { devices: 2, ..SimConfig::default() };
    Device::all_of(SimDriver::new(config).unwrap(), &environment).unwrap()
}

/// The gradient of (2x)² through another device, with freed memory overwritten.
fn there_and_back(gpu: &Gpu, here: &Stream, there: &Stream) -> Result<()> {
    let [first, second] = gpu.devices() else { panic!("two devices") };
    let x = Tensor::full(&[64], 3.0, DType::F32, first)?.requires_grad_()?;
    here.wait_stream(&first.current_stream())?;
    there.wait_stream(&second.current_stream())?;
    let loss = on(here, || {
        on(there, || {
            let doubled = x.mul_scalar(2.0)?;
            let moved = doubled.to_device(second)?;
            drop(doubled);
            churn(first)?;
            let loss = moved.square()?.sum(&[], false)?;
            drop(moved);
            churn(second)?;
            Ok(loss)
        })
    })?;
    second.current_stream().wait_stream(there)?;
    loss.record_stream(&second.current_stream());
    loss.backward()?;
    churn(first)?;
    churn(second)?;
    assert_eq!(x.grad().expect("a leaf").to_vec::<f32>()?, [24.0; 64]);
    assert_eq!(loss.to_vec::<f32>()?, [2304.0]);
    Ok(())
}

#[test]
fn a_move_and_its_gradient_are_in_order_under_every_schedule() {
    Check::new().devices(2).seeds(0..200).run(|gpu| -> Result<()> {
        let [first, second] = gpu.devices() else { panic!("two devices") };
        there_and_back(gpu, &first.current_stream(), &second.current_stream())
    });
}

#[test]
fn a_move_between_side_streams_is_in_order_under_every_schedule() {
    Check::new().devices(2).seeds(0..200).run(|gpu| -> Result<()> {
        let [first, second] = gpu.devices() else { panic!("two devices") };
        there_and_back(gpu, &Stream::new(first)?, &Stream::new(second)?)
    });
}

#[test]
fn memory_of_either_kind_moves_in_any_layout() {
    for expandable_segments in [false, true] {
        let [first, second] = two_devices(expandable_segments).try_into().unwrap();
        let x = Tensor::arange(6, 0i64, 1i64, DType::I64, &first).unwrap().reshape(&[2, 3]).unwrap();
        let moved = x.t().unwrap().to_device(&second).unwrap();
        assert_eq!((moved.device(), moved.shape()), (&second, &[3, 2][..]));
        assert_eq!(values(&moved), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert!(moved.to_device(&second).unwrap().is_same(&moved), "it is there");
        assert_eq!(values(&moved.to_device(&first).unwrap()), values(&moved));
        let empty = Tensor::zeros(&[0, 4], DType::F32, &first).unwrap().to_device(&second).unwrap();
        assert_eq!((empty.device(), empty.shape()), (&second, &[0, 4][..]));
    }
}

#[test]
fn a_copy_into_another_device_has_a_gradient() {
    let [first, second] = two_devices(false).try_into().unwrap();
    let x = Tensor::from_slice(&[1.0f64, 2.0], &[2], &first).unwrap().requires_grad_().unwrap();
    let target = Tensor::zeros(&[2, 2], DType::F32, &second).unwrap();
    target.select(0, 1).unwrap().copy_(&x).unwrap();
    target.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    let gradient = x.grad().unwrap();
    assert_eq!(
        (gradient.device(), gradient.dtype(), values(&gradient)),
        (&first, DType::F64, vec![2.0, 4.0])
    );
}

#[test]
fn the_operators_that_convert_move_too() {
    let [first, second] = two_devices(false).try_into().unwrap();
    let x = Tensor::from_slice(&[1.5f32, -2.0], &[2], &first).unwrap().requires_grad_().unwrap();
    let to_copy = find_operator("_to_copy").unwrap();
    let arguments =
        [Argument::Tensor(&x), Argument::DType(DType::F64), Argument::None, Argument::Device(&second)];
    let moved = to_copy.call(&arguments, None, Label::here("to_copy")).unwrap().remove(0);
    assert_eq!((moved.device(), moved.dtype(), values(&moved)), (&second, DType::F64, vec![1.5, -2.0]));
    moved.mul(&moved).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [3.0, -4.0]);
    let to_device = find_operator("to.device").unwrap();
    let arguments = [Argument::Tensor(&x), Argument::Device(&second), Argument::DType(DType::F32)];
    let moved = to_device.call(&arguments, None, Label::here("to_device")).unwrap().remove(0);
    assert_eq!((moved.device(), moved.dtype(), values(&moved)), (&second, DType::F32, vec![1.5, -2.0]));
}

#[test]
fn gradients_cross_from_one_driver_to_another() {
    let one = two_devices(false).remove(0);
    let other = two_devices(false).remove(0);
    let x = Tensor::from_slice(&[1.0f32, 2.0], &[2], &one).unwrap().requires_grad_().unwrap();
    let moved = x.mul_scalar(3.0).unwrap().to_device(&other).unwrap();
    assert_eq!(moved.device(), &other);
    moved.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [18.0, 36.0]);
}

/// Towers that do not depend on each other, each on a separate device, with a thread and a pass for each.
#[test]
fn passes_over_several_devices_run_on_several_threads() {
    let devices = two_devices(false);
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &devices[0]).unwrap().requires_grad_().unwrap();
    let losses: Vec<Tensor> = (devices.iter().zip(1i64..))
        .map(|(device, factor)| {
            let moved = x.to_device(device).unwrap();
            let mut y = moved.mul_scalar(factor).unwrap();
            for _ in 0..50 {
                y = y.mul_scalar(1.0).unwrap();
            }
            y.square().unwrap().sum(&[], false).unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        let passes: Vec<_> = losses.iter().map(|loss| scope.spawn(|| loss.backward())).collect();
        passes.into_iter().for_each(|pass| pass.join().unwrap().unwrap());
    });
    // 2x (1² + 2²).
    assert_eq!(values(&x.grad().unwrap()), [10.0, 20.0, 30.0]);
}

/// Batches that the host makes and overwrites, copied ahead on a stream of their own.
fn copied_ahead(gpu: &Gpu, host: &Device) -> Result<()> {
    let [device] = gpu.devices() else { panic!("one device") };
    let (copies, computes) = (Stream::new(device)?, device.current_stream());
    let mut total = Tensor::zeros(&[64], DType::F32, device)?;
    for number in 1..=4 {
        let batch = Tensor::full(&[64], f64::from(number), DType::F32, host)?;
        let moved = on(&copies, || batch.to_device(device))?;
        batch.fill_(1000.0)?;
        computes.wait_stream(&copies)?;
        moved.record_stream(&computes);
        total = total.add(&moved.square()?)?;
        drop(moved);
        on(&copies, || churn(device))?;
    }
    assert_eq!(total.to_vec::<f32>()?, [30.0; 64]);
    Ok(())
}

#[test]
fn batches_of_the_host_are_copied_ahead_in_order_under_every_schedule() {
    let host = two_devices(false).remove(0);
    Check::new().seeds(0..100).run(|gpu| copied_ahead(gpu, &host));
}
