//! The kernels of the suites in two forms: as PTX for GPUs and as host functions for the simulator.
//!
//! All take the same arguments ([`KernelArguments`]), so that one launch helper serves every kernel. The PTX is written by hand
//! and limited to instructions of the oldest architecture that drivers still load: it needs no compiler, and runs on any GPU.
//! Each kernel first waits for `delay_us` (the races of the litmus programs need kernels of different length) and then touches
//! `count` words.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_driver::{
    Access, DevicePointer, Driver, FunctionHandle, HostFault, HostLaunch, HostModule, Image, ImageKind,
    Label, Launch, LaunchMode, ModuleHandle, Result, StreamHandle,
};

/// The number of threads per block of every launch.
const BLOCK: u32 = 128;

/// The function that a kernel of the suites computes on its `count` words of 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kernel {
    /// `target[i] = value + i`.
    Iota,
    /// `target[i] = value`.
    Constant,
    /// `target[i] += value`, read and written without an atomic.
    Add,
    /// `target[i] = source[i] + value`.
    Copy,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Self; 4] = [Self::Iota, Self::Constant, Self::Add, Self::Copy];

    /// Returns the kernel's name in the modules.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iota => "thalweg_iota",
            Self::Constant => "thalweg_constant",
            Self::Add => "thalweg_add",
            Self::Copy => "thalweg_copy",
        }
    }
}

/// The arguments of every kernel.
#[derive(Clone, Copy, Debug)]
pub struct KernelArguments {
    /// The words that are written.
    pub target: DevicePointer,
    /// The words that [`Kernel::Copy`] reads; the others ignore it.
    pub source: DevicePointer,
    /// The number of words.
    pub count: u64,
    /// The constant of the kernel.
    pub value: u32,
    /// The time that the kernel waits before it touches memory, in microseconds.
    pub delay_us: u32,
}

impl KernelArguments {
    /// Returns the arguments for `count` words at `target`, with `value` and no delay.
    pub const fn new(target: DevicePointer, count: u64, value: u32) -> Self {
        Self { target, source: DevicePointer::new(0), count, value, delay_us: 0 }
    }

    /// Returns the arguments with words to read.
    #[must_use]
    pub const fn with_source(mut self, source: DevicePointer) -> Self {
        self.source = source;
        self
    }

    /// Returns the arguments with a delay in microseconds.
    #[must_use]
    pub const fn with_delay_us(mut self, delay_us: u32) -> Self {
        self.delay_us = delay_us;
        self
    }

    fn pack(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[0..8].copy_from_slice(&self.target.address().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.source.address().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.count.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.value.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.delay_us.to_le_bytes());
        bytes
    }

    fn unpack(bytes: &[u8]) -> Result<Self, HostFault> {
        let bytes: &[u8; 32] =
            bytes.try_into().map_err(|_| HostFault(format!("{} bytes of arguments, not 32", bytes.len())))?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Self {
            target: DevicePointer::new(long(0)),
            source: DevicePointer::new(long(8)),
            count: long(16),
            value: word(24),
            delay_us: word(28),
        })
    }

    fn accesses(&self, kernel: Kernel) -> ([Access; 2], usize) {
        let bytes = self.count * 4;
        let written = match kernel {
            Kernel::Iota | Kernel::Constant | Kernel::Copy => Access::write(self.target, bytes),
            Kernel::Add => Access::read_write(self.target, bytes),
        };
        let read = Access::read(self.source, bytes);
        ([written, read], if kernel == Kernel::Copy { 2 } else { 1 })
    }
}

/// The loaded kernels of one device.
#[derive(Clone, Copy, Debug)]
pub struct KernelSet {
    module: ModuleHandle,
    functions: [FunctionHandle; 4],
}

impl KernelSet {
    /// Loads the kernels in the form that the device supports.
    pub fn load(driver: &dyn Driver, device: u32) -> Result<Self> {
        let host = host_module();
        let image = match driver.device_properties(device)?.image_kind {
            ImageKind::Cubin(_) => Image::Ptx(PTX),
            ImageKind::Host => Image::Host(&host),
        };
        let module = driver.module_load(device, image)?;
        let mut functions = [FunctionHandle::from_raw(0); 4];
        for (function, kernel) in functions.iter_mut().zip(Kernel::ALL) {
            *function = driver.function_get(module, kernel.name())?;
        }
        Ok(Self { module, functions })
    }

    /// Returns the module.
    pub const fn module(&self) -> ModuleHandle {
        self.module
    }

    /// Returns the handle of a kernel.
    pub const fn function(&self, kernel: Kernel) -> FunctionHandle {
        self.functions[kernel as usize]
    }

    /// Launches a kernel with the accesses that it declares and enough threads for its words.
    #[track_caller]
    pub fn launch(
        &self,
        driver: &dyn Driver,
        stream: StreamHandle,
        kernel: Kernel,
        arguments: KernelArguments,
    ) -> Result<()> {
        let (accesses, count) = arguments.accesses(kernel);
        self.launch_declaring(driver, stream, kernel, arguments, &accesses[..count])
    }

    /// Launches a kernel with declared accesses that differ from its own, for the fault cases.
    #[track_caller]
    pub fn launch_declaring(
        &self,
        driver: &dyn Driver,
        stream: StreamHandle,
        kernel: Kernel,
        arguments: KernelArguments,
        accesses: &[Access],
    ) -> Result<()> {
        self.describe(kernel, arguments, accesses, |launch| driver.launch(stream, launch))
    }

    /// Calls `act` with the launch that [`launch`](Self::launch) would make.
    #[track_caller]
    pub fn with_launch<T>(
        &self,
        kernel: Kernel,
        arguments: KernelArguments,
        act: impl FnOnce(&Launch<'_>) -> T,
    ) -> T {
        let (accesses, count) = arguments.accesses(kernel);
        self.describe(kernel, arguments, &accesses[..count], act)
    }

    #[track_caller]
    fn describe<T>(
        &self,
        kernel: Kernel,
        arguments: KernelArguments,
        accesses: &[Access],
        act: impl FnOnce(&Launch<'_>) -> T,
    ) -> T {
        let blocks = arguments.count.div_ceil(u64::from(BLOCK)).clamp(1, u64::from(i32::MAX as u32)) as u32;
        act(&Launch {
            function: self.function(kernel),
            grid: [blocks, 1, 1],
            block: [BLOCK, 1, 1],
            shared_memory_bytes: 0,
            mode: LaunchMode::InOrder,
            arguments: &arguments.pack(),
            accesses,
            label: Label::here(kernel.name()),
        })
    }
}

/// Returns the kernels as host functions.
pub fn host_module() -> HostModule {
    Kernel::ALL.into_iter().fold(HostModule::default(), |module, kernel| {
        module.with(kernel.name(), Arc::new(move |launch: &HostLaunch<'_>| run(kernel, launch)))
    })
}

fn run(kernel: Kernel, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let arguments = KernelArguments::unpack(launch.arguments)?;
    let KernelArguments { target, source, value, delay_us, .. } = arguments;
    let count = arguments.count as usize;
    wait_us(delay_us);
    let target = launch.write::<u32>(target, count)?;
    match kernel {
        Kernel::Iota => target.iter_mut().zip(value..).for_each(|(word, number)| *word = number),
        Kernel::Constant => target.fill(value),
        Kernel::Add => target.iter_mut().for_each(|word| *word = word.wrapping_add(value)),
        Kernel::Copy => {
            let source = launch.read::<u32>(source, count)?;
            target.iter_mut().zip(source).for_each(|(word, from)| *word = from.wrapping_add(value));
        }
    }
    Ok(())
}

/// Waits for some microseconds, by spinning if sleep would be too coarse.
pub fn wait_us(delay_us: u32) {
    let delay = Duration::from_micros(u64::from(delay_us));
    if delay >= Duration::from_millis(1) {
        std::thread::sleep(delay);
        return;
    }
    let start = Instant::now();
    while start.elapsed() < delay {
        std::hint::spin_loop();
    }
}

/// The text that every kernel shares: the parameters, the bounds check, the delay. Afterwards `%d0` is the index, `%d1`
/// the address of the target's word, `%d2` that of the source's word, `%r3` the value.
macro_rules! entry {
    ($name:literal, $body:literal) => {
        concat!(
            ".visible .entry ",
            $name,
            "(\n",
            "    .param .u64 target,\n",
            "    .param .u64 source,\n",
            "    .param .u64 count,\n",
            "    .param .u32 value,\n",
            "    .param .u32 delay_us\n",
            ")\n{\n",
            "    .reg .pred %p<3>;\n",
            "    .reg .b32 %r<8>;\n",
            "    .reg .b64 %d<10>;\n",
            "    mov.u32 %r0, %ctaid.x;\n",
            "    mov.u32 %r1, %ntid.x;\n",
            "    mov.u32 %r2, %tid.x;\n",
            "    mul.wide.u32 %d0, %r0, %r1;\n",
            "    cvt.u64.u32 %d3, %r2;\n",
            "    add.s64 %d0, %d0, %d3;\n",
            "    ld.param.u64 %d4, [count];\n",
            "    setp.ge.u64 %p0, %d0, %d4;\n",
            "    @%p0 bra DONE;\n",
            "    ld.param.u32 %r4, [delay_us];\n",
            "    mul.wide.u32 %d5, %r4, 1000;\n",
            "    mov.u64 %d6, %globaltimer;\n",
            "WAIT:\n",
            "    mov.u64 %d7, %globaltimer;\n",
            "    sub.s64 %d8, %d7, %d6;\n",
            "    setp.lt.u64 %p1, %d8, %d5;\n",
            "    @%p1 bra WAIT;\n",
            "    shl.b64 %d9, %d0, 2;\n",
            "    ld.param.u64 %d1, [target];\n",
            "    cvta.to.global.u64 %d1, %d1;\n",
            "    add.s64 %d1, %d1, %d9;\n",
            "    ld.param.u64 %d2, [source];\n",
            "    cvta.to.global.u64 %d2, %d2;\n",
            "    add.s64 %d2, %d2, %d9;\n",
            "    ld.param.u32 %r3, [value];\n",
            $body,
            "DONE:\n",
            "    ret;\n",
            "}\n\n",
        )
    };
}

/// The kernels as PTX text. Version 7.0 for `sm_52`: every driver since CUDA 11 loads it, on every GPU since Maxwell.
pub const PTX: &str = concat!(
    ".version 7.0\n.target sm_52\n.address_size 64\n\n",
    entry!(
        "thalweg_iota",
        "    cvt.u32.u64 %r5, %d0;\n    add.s32 %r6, %r3, %r5;\n    st.global.u32 [%d1], %r6;\n"
    ),
    entry!("thalweg_constant", "    st.global.u32 [%d1], %r3;\n"),
    entry!(
        "thalweg_add",
        "    ld.global.u32 %r5, [%d1];\n    add.s32 %r6, %r5, %r3;\n    st.global.u32 [%d1], %r6;\n"
    ),
    entry!(
        "thalweg_copy",
        "    ld.global.u32 %r5, [%d2];\n    add.s32 %r6, %r5, %r3;\n    st.global.u32 [%d1], %r6;\n"
    ),
);
