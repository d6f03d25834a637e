//! Helpers of the tests: devices, gates that block a stream, and shorthands for data.

use std::ops::Deref;
use std::sync::Arc;

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{Buffer, Device, Environment, Label, PinnedBuffer, Stream};
use thalweg_sim::{SimConfig, SimDriver};

pub use crate::gate::Gate;

/// A device for one test.
pub struct TestDevice {
    device: Device,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Deref for TestDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

/// Returns a device that nothing else uses: a simulated one of its own, or the first GPU, which the tests take in turn.
pub fn device() -> TestDevice {
    static TURN: Mutex<()> = Mutex::new(());
    match std::env::var("THALWEG_TEST_DEVICE").as_deref() {
        Ok("cuda") => {
            let turn = TURN.lock();
            TestDevice { device: Device::cuda(0).unwrap(), _turn: Some(turn) }
        }
        Ok("sim") | Err(_) => TestDevice { device: sim(1).remove(0), _turn: None },
        Ok(other) => panic!("THALWEG_TEST_DEVICE={other}: write `cuda` or `sim`"),
    }
}

/// Creates simulated devices of 64 MiB each, with a machine of their own.
pub fn sim(devices: u32) -> Vec<Device> {
    // Tests ignore the process's environment, except that a bundle may record which kernels they use.
    let kernel_record = Environment::get().kernel_record.clone();
    sim_in(&Environment { kernel_record, ..Environment::default() }, devices).1
}

/// Creates simulated devices in an environment, and their driver.
pub fn sim_in(environment: &Environment, devices: u32) -> (Arc<SimDriver>, Vec<Device>) {
    let config = SimConfig { devices, memory_bytes: 64 << 20, workers: 2, ..SimConfig::default() };
    let driver = SimDriver::new(config).unwrap();
    let devices = Device::all_of(driver.clone(), environment).unwrap();
    (driver, devices)
}

/// Returns a buffer with these values.
pub fn buffer_of(stream: &Stream, values: &[f32]) -> Buffer {
    let buffer = Buffer::new(stream, size_of_val(values) as u64).unwrap();
    write(stream, &buffer, values);
    buffer
}

pub fn write(stream: &Stream, buffer: &Buffer, values: &[f32]) {
    stream.copy_from_host(buffer.pointer(), bytemuck::cast_slice(values), Label::here("write")).unwrap();
}

/// Returns the content of a buffer, after the current work of the stream.
pub fn read(stream: &Stream, buffer: &Buffer) -> Vec<f32> {
    let mut values = vec![0.0_f32; buffer.size_bytes() as usize / 4];
    let bytes = bytemuck::cast_slice_mut(&mut values);
    stream.copy_to_host(bytes, buffer.pointer(), Label::here("read")).unwrap();
    values
}

/// Allocates pinned memory with these values.
pub fn pinned_of(device: &Device, values: &[f32]) -> PinnedBuffer {
    let pinned = PinnedBuffer::new(device, size_of_val(values) as u64).unwrap();
    pinned.write(0, values).unwrap();
    pinned
}

pub fn read_pinned(pinned: &PinnedBuffer) -> Vec<f32> {
    let mut values = vec![0.0_f32; pinned.size_bytes() as usize / 4];
    pinned.read(0, &mut values).unwrap();
    values
}
