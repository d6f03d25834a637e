//! Helpers of the simulator's tests: a driver with one kernel that runs any closure, and shorthands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_driver::{
    Access, Code, DevicePointer, Driver, Error, HostFault, HostKernel, HostLaunch, HostModule, Image, Label,
    Launch, LaunchMode, StreamHandle,
};
use thalweg_lock::{Condvar, Mutex};
use thalweg_sim::{SimConfig, SimDriver};

/// Returns a driver of `devices` devices with 64 MiB each and two workers.
pub fn sim(devices: u32) -> Arc<SimDriver> {
    SimDriver::new(SimConfig { devices, memory_bytes: 64 << 20, workers: 2, ..SimConfig::default() }).unwrap()
}

/// Launches a closure as a kernel.
pub fn launch(
    driver: &SimDriver,
    stream: StreamHandle,
    accesses: &[Access],
    body: impl Fn(&HostLaunch<'_>) -> Result<(), HostFault> + Send + Sync + 'static,
) -> thalweg_driver::Result<()> {
    let kernel: Arc<dyn HostKernel> = Arc::new(body);
    let device = driver.stream_device(stream)?;
    let module = driver.module_load(device, Image::Host(&HostModule::single("closure", kernel)))?;
    let function = driver.function_get(module, "closure")?;
    driver.launch(
        stream,
        &Launch {
            function,
            grid: [1; 3],
            block: [1; 3],
            shared_memory_bytes: 0,
            mode: LaunchMode::InOrder,
            arguments: &[],
            accesses,
            label: Label::here("closure"),
        },
    )
}

/// Launches a kernel that appends a digit to a number in device memory: the number shows the order of such kernels.
pub fn append(driver: &SimDriver, stream: StreamHandle, number: DevicePointer, digit: u64) {
    launch(driver, stream, &[Access::read_write(number, 8)], move |launch| {
        let value = &mut launch.write::<u64>(number, 1)?[0];
        *value = *value * 10 + digit;
        Ok(())
    })
    .unwrap();
}

/// Allocates eight bytes of device memory that contain 0.
pub fn number(driver: &SimDriver, device: u32) -> DevicePointer {
    let pointer = driver.memory_allocate(device, 8).unwrap();
    let stream = driver.stream_create(device, 0).unwrap();
    driver.copy_from_host(stream, pointer, &[0; 8], Label::here("zero")).unwrap();
    driver.stream_synchronize(stream).unwrap();
    driver.stream_destroy(stream).unwrap();
    pointer
}

/// Reads a number in stream order.
pub fn read(driver: &SimDriver, stream: StreamHandle, pointer: DevicePointer) -> u64 {
    let mut bytes = [0; 8];
    driver.copy_to_host(stream, &mut bytes, pointer, Label::here("read")).unwrap();
    u64::from_le_bytes(bytes)
}

/// Returns the code of a refused call.
#[track_caller]
pub fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> Code {
    result.expect_err("the call must be refused").code()
}

/// A host function that blocks a stream.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn close(driver: &SimDriver, stream: StreamHandle) -> Self {
        let gate = Self::default();
        let own = gate.clone();
        let wait = move || {
            let (open, changed) = &*own.0;
            drop(changed.wait_while(open.lock(), |open| !*open));
        };
        driver.host_function_async(stream, Arc::new(wait), Label::here("gate")).unwrap();
        gate
    }

    pub fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

/// Pseudorandom numbers that are the same in every run.
pub struct Random(AtomicU64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    pub fn below(&self, bound: u64) -> u64 {
        let mut state = self.0.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.store(state, Ordering::Relaxed);
        state % bound
    }
}
