//! The audit of regions that compute with tensors.

use thalweg_ir::DType;
use thalweg_nn::functional::dropout;
use thalweg_runtime::graph::{Audit, Obstacle, ObstacleKind, audit};
use thalweg_runtime::{CaptureOptions, Device, Environment, Result};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::{DeviceGenerator, Generator};

/// Returns a device that no other test uses: an audit also sees work of other threads.
fn own_device() -> Device {
    let driver = SimDriver::new(SimConfig { devices: 1, ..SimConfig::default() }).unwrap();
    Device::all_of(driver, &Environment::default()).unwrap().remove(0)
}

/// Kind, operator and line of each obstacle.
fn found(report: &Audit) -> Vec<(ObstacleKind, &'static str, u32)> {
    let line = |obstacle: &Obstacle| obstacle.location().map_or(0, |location| location.line);
    report.obstacles().iter().map(|found| (found.kind(), found.operator(), line(found))).collect()
}

/// Audits a region that has run before, so that its kernels are loaded.
fn audited(device: &Device, region: impl Fn() -> Result<()>) -> Audit {
    region().unwrap();
    audit(device, CaptureOptions::default(), region).unwrap()
}

#[test]
fn draws_on_the_device_are_captured() {
    let device = own_device();
    let x = Tensor::zeros(&[4, 4], DType::F32, &device).unwrap();
    // Its last draw is on another stream, outside.
    let generator = DeviceGenerator::new(3, &device).unwrap();
    let report = audited(&device, || {
        let y = x.matmul(&x)?.relu()?;
        dropout(&y, 0.5, true, &generator)?.sum(&[], false).map(drop)
    });
    assert!(report.is_capturable(), "{report}");
    assert!(report.counts().commands() >= 4, "product, draw, advance and sum at least: {report}");
}

#[test]
fn operators_are_named_with_the_line_of_their_caller() {
    let device = own_device();
    let x = Tensor::zeros(&[4, 4], DType::F32, &device).unwrap();
    let line = line!() + 2;
    let report = audited(&device, || {
        let total = x.sum(&[], false)?.item::<f32>()?;
        let scaled = x.mul_scalar(f64::from(total))?;
        scaled.to_vec::<f32>().map(drop)
    });
    let expected =
        [(ObstacleKind::DataDependentShape, "item", line), (ObstacleKind::PageableCopy, "to_vec", line + 2)];
    assert_eq!(found(&report), expected, "{report}");
}

#[test]
fn draws_on_the_host_are_told() {
    let device = own_device();
    let line = line!() + 3;
    let report = audited(&device, || {
        let mut generator = Generator::new(5);
        let noise = Tensor::uniform(&[4], 0.0, 1.0, &mut generator, &device)?;
        noise.mul_scalar(f64::from(generator.uniform())).map(drop)
    });
    let expected = [
        (ObstacleKind::HostRandomState, "uniform", line),
        (ObstacleKind::HostRandomState, "uniform", line + 1),
    ];
    assert_eq!(found(&report), expected, "{report}");
}
