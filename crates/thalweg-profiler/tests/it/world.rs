//! A simulated machine wrapped by a profiler, with a kernel that declares its accesses and takes some time.

use std::sync::Arc;
use std::time::Duration;

use thalweg_driver::{
    Access, DevicePointer, Driver, Fill, FillPattern, FunctionHandle, HostKernel, HostLaunch, HostModule,
    Image, Label, Launch, LaunchMode, StreamHandle,
};
use thalweg_profiler::ProfilerDriver;
use thalweg_sim::{SimConfig, SimDriver};

pub const BYTES: u64 = 4096;

/// The minimum time that the kernel takes.
pub const KERNEL_TIME: Duration = Duration::from_millis(2);

pub struct World {
    pub driver: Arc<ProfilerDriver>,
    function: FunctionHandle,
    pub streams: [StreamHandle; 2],
    pub memory: [DevicePointer; 2],
}

impl World {
    pub fn new() -> Self {
        let config = SimConfig { memory_bytes: 64 << 20, ..SimConfig::default() };
        Self::over(SimDriver::new(config).unwrap())
    }

    /// Creates the machine over a simulated driver.
    pub fn over(inner: Arc<dyn Driver>) -> Self {
        let driver = ProfilerDriver::new(inner);
        let kernel: Arc<dyn HostKernel> = Arc::new(|_: &HostLaunch<'_>| {
            std::thread::sleep(KERNEL_TIME);
            Ok(())
        });
        let module = driver.module_load(0, Image::Host(&HostModule::single("sleep", kernel))).unwrap();
        let function = driver.function_get(module, "sleep").unwrap();
        let streams = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
        let memory = [0; 2].map(|_| driver.memory_allocate(0, BYTES).unwrap());
        Self { driver, function, streams, memory }
    }

    /// Launches the kernel on a stream, over its memory.
    #[track_caller]
    pub fn launch(&self, stream: usize, operator: &'static str, bytes: u64) {
        let launch = Launch {
            function: self.function,
            grid: [3, 2, 1],
            block: [64, 1, 1],
            shared_memory_bytes: 0,
            mode: LaunchMode::InOrder,
            arguments: &[],
            accesses: &[Access::write(self.memory[stream], bytes)],
            label: Label::here(operator),
        };
        self.driver.launch(self.streams[stream], &launch).unwrap();
    }

    /// Fills bytes of a stream's memory.
    #[track_caller]
    pub fn fill(&self, stream: usize, operator: &'static str, bytes: u64) {
        let (target, pattern) = (self.memory[stream], FillPattern::U16(7));
        let fill = Fill { target, pattern, count: bytes / 2, label: Label::here(operator) };
        self.driver.fill_async(self.streams[stream], &fill).unwrap();
    }

    /// Reads bytes of a stream's memory.
    #[track_caller]
    pub fn read(&self, stream: usize, operator: &'static str, bytes: u64) {
        let mut target = vec![0; bytes as usize];
        let (source, label) = (self.memory[stream], Label::here(operator));
        self.driver.copy_to_host(self.streams[stream], &mut target, source, label).unwrap();
    }
}
