//! Loaded kernels: a kernel of the loop IR becomes code of a device, once, and is launched many times.
//!
//! On a card the kernel is printed as CUDA C and compiled by NVRTC (or found compiled: in the disk cache, or among the
//! precompiled kernels of a bundle). In the simulator the same kernel value becomes a host function. What is launched is
//! the same in both: packed arguments and the ranges that they touch, both derived from the kernel's geometry.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_device::cuda::{CompileOptions, Nvrtc, SearchEnvironment};
use thalweg_device::{
    Access, AccessMode, ComputeCapability, DevicePointer, Driver, FunctionHandle, HostFault, HostKernel,
    HostLaunch, HostModule, Image, ImageKind, Label, Launch, ModuleHandle, Touch,
};
use thalweg_ir::host::{Cells, Program, Slice, Source};
use thalweg_ir::{Arguments, Class, DType, Geometry, Kernel, OperandGeometry};

use crate::disk_cache::{self, EntryKey};
use crate::environment::Environment;
use crate::{Device, Error, Result, Stream};

/// The name of a kernel among those of a device: which body (a number that the caller keeps unique), which dtypes, which
/// class. Looking one up must be cheap, so this is all numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KernelKey {
    /// The body, by a number that the caller chose.
    pub body: u64,
    /// The dtypes that it was built for.
    pub dtypes: SmallVec<[DType; 8]>,
    /// The class that it was compiled for.
    pub class: Class,
}

/// A kernel that is ready to launch on one device.
#[derive(Debug)]
pub struct LoadedKernel {
    kernel: Arc<Kernel>,
    function: FunctionHandle,
}

/// The kernels of one device.
#[derive(Default)]
pub(crate) struct KernelTable {
    loops: RwLock<FxHashMap<KernelKey, Arc<LoadedKernel>>>,
    texts: RwLock<FxHashMap<String, FunctionHandle>>,
    /// The modules behind them, to be unloaded with the device.
    modules: Mutex<Vec<ModuleHandle>>,
}

impl KernelTable {
    /// Unloads everything: the device is dropped, so nobody can launch any more. *Blocks* until running kernels are done.
    pub(crate) fn unload(&mut self, driver: &dyn Driver) {
        for module in self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A module that a lost device cannot unload is lost with it.
            let _ = driver.module_unload(module);
        }
    }

    fn loaded(&self, module: ModuleHandle) {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module);
    }
}

impl LoadedKernel {
    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }
}

impl Device {
    /// The kernel of this key, made and loaded if it is not there yet: some 100 ms on a card without a cache, then a hash.
    pub fn kernel(&self, key: &KernelKey, make: impl FnOnce() -> Kernel) -> Result<Arc<LoadedKernel>> {
        let table = self.kernels();
        if let Some(found) = table.loops.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Ok(found.clone());
        }
        // Two threads may both compile; the second to finish launches the first one's, and its own is unloaded at the end.
        let kernel = Arc::new(make());
        let name = kernel.name.clone();
        let function = self
            .load(&name, &|| thalweg_ir::cuda::print(&kernel), &|| Arc::new(LoopKernel::new(kernel.clone())))
            .map_err(|error| error.context(format!("kernel {name}")))?;
        let loaded = Arc::new(LoadedKernel { kernel, function });
        let mut loops = table.loops.write().unwrap_or_else(PoisonError::into_inner);
        Ok(loops.entry(key.clone()).or_insert(loaded).clone())
    }

    /// The kernel of a name that was written as CUDA C, with its host function.
    pub(crate) fn text_kernel(
        &self,
        name: &str,
        source: &dyn Fn() -> String,
        host: &dyn Fn() -> Arc<dyn HostKernel>,
    ) -> Result<FunctionHandle> {
        let texts = &self.kernels().texts;
        if let Some(found) = texts.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(*found);
        }
        let function =
            self.load(name, source, host).map_err(|error| error.context(format!("kernel {name}")))?;
        let mut texts = texts.write().unwrap_or_else(PoisonError::into_inner);
        Ok(*texts.entry(name.to_owned()).or_insert(function))
    }

    fn load(
        &self,
        name: &str,
        source: &dyn Fn() -> String,
        host: &dyn Fn() -> Arc<dyn HostKernel>,
    ) -> Result<FunctionHandle> {
        let driver = self.driver();
        if let Some(folder) = &self.environment().kernel_record {
            record(folder, name, &source())?;
        }
        let module = match self.properties().image_kind {
            ImageKind::Host => {
                self.check(driver.module_load(self.index(), Image::Host(&HostModule::single(name, host()))))?
            }
            ImageKind::Cubin(capability) => {
                let image = compiled(self.environment(), name, &source(), capability)?;
                self.check(driver.module_load(self.index(), Image::Cubin(&image)))?
            }
        };
        self.kernels().loaded(module);
        self.check(driver.function_get(module, name))
    }
}

/// Writes the source of a kernel into a folder of recorded kernels: `<name>-<hash>.cu`, since other bodies may share the
/// name in other programs.
fn record(folder: &Path, name: &str, source: &str) -> Result<()> {
    let file = folder.join(format!("{name}-{}.cu", disk_cache::fingerprint(source)));
    // The same name is the same content, so it does not matter who of several processes writes it last.
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, source)).map_err(|error| {
        Error::invalid(format!("the kernel cannot be recorded in {}: {error}", folder.display()))
    })
}

/// How every kernel is compiled for an architecture (`sm_90`).
fn options_for(architecture: &str) -> CompileOptions {
    let extra = thalweg_ir::cuda::OPTIONS.iter().map(|&option| option.to_owned()).collect();
    CompileOptions { fmad: false, extra, ..CompileOptions::new(architecture) }
}

/// Compiles a kernel for an architecture and puts it into a folder of precompiled kernels, unless it is there already.
/// Returns the entry's file. What a bundle for machines without a compiler is made of.
pub fn precompile(folder: &Path, name: &str, source: &str, architecture: &str) -> Result<PathBuf> {
    let options = thalweg_ir::cuda::OPTIONS.join(" ");
    let key = EntryKey { source, options: &options, architecture };
    if disk_cache::read(folder, &key).is_none() {
        let image = compiler()?.compile(source, name, &options_for(architecture))?.cubin;
        disk_cache::write(folder, &key, &image).map_err(|error| {
            Error::invalid(format!("the kernel {name} cannot be written to {}: {error}", folder.display()))
        })?;
    }
    Ok(key.path(folder))
}

/// The architectures whose machine code runs on a device of this capability, best first: its own, then older ones of the
/// same major number.
fn runnable_architectures(capability: ComputeCapability) -> impl Iterator<Item = String> {
    (0..=capability.minor).rev().map(move |minor| format!("sm_{}{minor}", capability.major))
}

/// The compiler, or why there is none: looked for once a process.
pub fn compiler() -> Result<&'static Nvrtc> {
    static COMPILER: OnceLock<thalweg_device::Result<Nvrtc>> = OnceLock::new();
    COMPILER
        .get_or_init(|| Nvrtc::load(&SearchEnvironment::from_process()))
        .as_ref()
        .map_err(|error| Error::from(error.clone()))
}

/// Machine code of a kernel: from the disk cache, from a folder of precompiled kernels, or from the compiler.
fn compiled(
    environment: &Environment,
    name: &str,
    source: &str,
    capability: ComputeCapability,
) -> Result<Vec<u8>> {
    let options = thalweg_ir::cuda::OPTIONS.join(" ");
    let native = format!("sm_{}{}", capability.major, capability.minor);
    let key = EntryKey { source, options: &options, architecture: &native };
    let folder: Option<PathBuf> = environment.cache_directory.as_ref().map(|base| base.join("kernels"));
    if let Some(image) = folder.as_ref().and_then(|folder| disk_cache::read(folder, &key)) {
        return Ok(image);
    }
    for precompiled in &environment.precompiled_directories {
        for architecture in runnable_architectures(capability) {
            if let Some(image) =
                disk_cache::read(precompiled, &EntryKey { architecture: &architecture, ..key })
            {
                return Ok(image);
            }
        }
    }
    let compiler = compiler().map_err(|error| {
        let looked: Vec<_> = environment.precompiled_directories.iter().map(|path| path.display().to_string()).collect();
        error.context(format!(
            "the kernel is not compiled for {native}: not in the cache, not among the precompiled kernels (looked in: {}), \
             and there is no compiler",
            if looked.is_empty() { "no folder".to_owned() } else { looked.join(", ") }
        ))
    })?;
    let image = compiler.compile(source, name, &options_for(&native))?.cubin;
    if let Some(folder) = folder {
        disk_cache::write_or_warn(&folder, &key, &image);
    }
    Ok(image)
}

impl Stream {
    /// Queues a kernel of the loop IR. Addresses are those of each operand's first element; nothing happens where there
    /// are no rows.
    pub fn launch(
        &self,
        loaded: &LoadedKernel,
        geometry: &Geometry,
        inputs: &[DevicePointer],
        outputs: &[DevicePointer],
        scalars: &[u64],
        label: Label,
    ) -> Result<()> {
        if geometry.rows() == 0 {
            return Ok(());
        }
        let kernel = loaded.kernel();
        let address = |pointers: &[DevicePointer]| -> SmallVec<[u64; 8]> {
            pointers.iter().map(|p| p.address()).collect()
        };
        let arguments = Arguments::pack(kernel, geometry, &address(inputs), &address(outputs), scalars);
        let gaps = self.device().driver().instrument().is_some();
        let accesses = accesses(kernel, geometry, inputs, outputs, gaps);
        let multi_processors = self.device().properties().multi_processor_count;
        let shape = thalweg_ir::cuda::launch_shape(kernel, geometry, multi_processors);
        let launch = Launch {
            function: loaded.function,
            grid: shape.grid,
            block: shape.block,
            shared_memory_bytes: 0,
            arguments: arguments.as_bytes(),
            accesses: &accesses,
            label,
        };
        self.submit(label, || self.device().driver().launch(self.handle(), &launch))
    }
}

/// The ranges that a launch touches. Where an input overlaps an output, both are one range that is read and written. Which
/// bytes of a range are touched is said where somebody asks for it.
fn accesses(
    kernel: &Kernel,
    geometry: &Geometry,
    inputs: &[DevicePointer],
    outputs: &[DevicePointer],
    gaps: bool,
) -> SmallVec<[Access; 8]> {
    let touch = |operand: usize, dtype: DType| {
        if gaps { touch_of_operand(geometry, operand, dtype.size_bytes() as u64) } else { Touch::All }
    };
    let bytes = |operand: usize, dtype: DType| geometry.span(operand) * dtype.size_bytes() as u64;
    let mut list: SmallVec<[Access; 8]> = SmallVec::new();
    for (index, (output, pointer)) in kernel.body.outputs.iter().zip(outputs).enumerate() {
        let operand = inputs.len() + index;
        let access = Access::write(*pointer, bytes(operand, output.dtype));
        list.push(access.touching(touch(operand, output.dtype)));
    }
    for (index, (input, pointer)) in kernel.body.inputs.iter().zip(inputs).enumerate() {
        let mut access = Access::read(*pointer, bytes(index, input.dtype));
        access.touch = touch(index, input.dtype);
        if access.bytes == 0 || list.contains(&access) {
            continue;
        }
        while let Some(position) = list.iter().position(|other| other.conflicts(&access)) {
            access = union(&list.swap_remove(position), &access);
        }
        list.push(access);
    }
    list
}

fn union(a: &Access, b: &Access) -> Access {
    let start = a.start.min(b.start);
    let end = (a.start + a.bytes).max(b.start + b.bytes);
    let is_one = (a.start, a.bytes, a.touch) == (b.start, b.bytes, b.touch);
    let touch = if is_one { a.touch } else { Touch::Some };
    Access::new(start, end - start, AccessMode::ReadWrite).touching(touch)
}

/// Which bytes of its span an operand touches.
fn touch_of_operand(geometry: &Geometry, operand: usize, element_bytes: u64) -> Touch {
    match &geometry.operands[operand] {
        OperandGeometry::Gathered { .. } => Touch::Some,
        OperandGeometry::Strided { row_strides, inner_strides } => {
            let rows = geometry.row_shape.iter().zip(row_strides);
            let inner = geometry.inner_shape.iter().zip(inner_strides);
            touch_of(rows.chain(inner).map(|(&extent, &stride)| (extent, stride)), element_bytes)
        }
    }
}

/// Which bytes of its span an operand touches whose dimensions have these extents and strides, in elements.
pub(crate) fn touch_of(dimensions: impl Iterator<Item = (u64, u64)>, element_bytes: u64) -> Touch {
    let mut dimensions: SmallVec<[(u64, u64); 8]> =
        dimensions.filter(|&(extent, stride)| extent > 1 && stride > 0).collect();
    dimensions.sort_unstable_by_key(|&(_, stride)| stride);
    let (mut chunk, mut rows) = (1, None);
    for (extent, stride) in dimensions {
        match rows {
            // Within the chunk, or right behind it.
            None if stride <= chunk => chunk += (extent - 1) * stride,
            None => rows = Some((stride, extent)),
            Some((step, count)) if stride == step * count => rows = Some((step, count * extent)),
            Some(_) => return Touch::Some,
        }
    }
    rows.map_or(Touch::All, |(step, _)| Touch::Rows {
        chunk_bytes: chunk * element_bytes,
        step_bytes: step * element_bytes,
    })
}

/// A kernel of the loop IR as a host function.
struct LoopKernel {
    kernel: Arc<Kernel>,
    program: Program,
}

impl LoopKernel {
    fn new(kernel: Arc<Kernel>) -> Self {
        Self { program: Program::compile(&kernel), kernel }
    }
}

impl HostKernel for LoopKernel {
    fn run(&self, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
        let arguments = self.kernel.unpack(launch.arguments).ok_or_else(|| {
            HostFault(format!("{}: the arguments are not in this kernel's layout", self.kernel.name))
        })?;
        let geometry = &arguments.geometry;
        let body = &self.kernel.body;
        let pointers = |addresses: &[u64]| {
            addresses.iter().copied().map(DevicePointer::new).collect::<SmallVec<[_; 8]>>()
        };
        // As the launch declared them: an input inside a range that is written may meet an output, or an input that does.
        let declared = accesses(
            &self.kernel,
            geometry,
            &pointers(&arguments.inputs),
            &pointers(&arguments.outputs),
            false,
        );
        let mut outputs: SmallVec<[Cells<'_>; 4]> = SmallVec::new();
        for (index, (output, &address)) in body.outputs.iter().zip(&arguments.outputs).enumerate() {
            let elements = geometry.span(body.inputs.len() + index);
            outputs.push(cells(launch, output.dtype, address, elements)?);
        }
        let mut inputs: SmallVec<[Source<'_>; 8]> = SmallVec::new();
        for (index, (input, &address)) in body.inputs.iter().zip(&arguments.inputs).enumerate() {
            let elements = geometry.span(index);
            let access =
                Access::read(DevicePointer::new(address), elements * input.dtype.size_bytes() as u64);
            inputs.push(if declared.iter().any(|range| range.conflicts(&access)) {
                Source::Cells(cells(launch, input.dtype, address, elements)?)
            } else {
                Source::Slice(slice(launch, input.dtype, address, elements)?)
            });
        }
        self.program
            .run(geometry, &arguments.scalars, &inputs, &outputs)
            .map_err(|fault| HostFault(format!("{}: {fault}", self.kernel.name)))
    }
}

macro_rules! by_dtype {
    ($dtype:expr, $launch:expr, $method:ident, $pointer:expr, $count:expr, $wrap:ident) => {
        Ok(match $dtype {
            DType::Bool | DType::U8 => $wrap::U8($launch.$method($pointer, $count)?),
            DType::I32 => $wrap::I32($launch.$method($pointer, $count)?),
            DType::I64 => $wrap::I64($launch.$method($pointer, $count)?),
            DType::F16 => $wrap::F16($launch.$method($pointer, $count)?),
            DType::Bf16 => $wrap::Bf16($launch.$method($pointer, $count)?),
            DType::F32 => $wrap::F32($launch.$method($pointer, $count)?),
            DType::F64 => $wrap::F64($launch.$method($pointer, $count)?),
        })
    };
}

/// Elements of device memory to read, in the variant of their dtype.
pub(crate) fn slice<'a>(
    launch: &'a HostLaunch<'_>,
    dtype: DType,
    address: u64,
    elements: u64,
) -> Result<Slice<'a>, HostFault> {
    by_dtype!(dtype, launch, read, DevicePointer::new(address), elements as usize, Slice)
}

pub(crate) fn cells<'a>(
    launch: &'a HostLaunch<'_>,
    dtype: DType,
    address: u64,
    elements: u64,
) -> Result<Cells<'a>, HostFault> {
    by_dtype!(dtype, launch, cells, DevicePointer::new(address), elements as usize, Cells)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;
    use thalweg_ir::{BodyBuilder, OperandGeometry, Place};

    use super::*;

    /// The accesses of a kernel over four floats an operand: inputs and output at these bytes.
    fn of(inputs: &[u64], output: u64) -> Vec<(u64, u64, AccessMode)> {
        let builder = BodyBuilder::new();
        let sum =
            inputs.iter().fold(builder.constant(0.0, DType::F32), |sum, _| sum + builder.input(DType::F32));
        builder.output(sum, DType::F32, Place::Point);
        let class = Class {
            row_rank: 1,
            inner_rank: 0,
            contiguous: true,
            narrow_index: true,
            lanes: 1,
            vector: 1,
            rows_abreast: 1,
        };
        let kernel = Kernel { name: "sum".to_owned(), body: builder.finish(), class };
        let operand = OperandGeometry::Strided { row_strides: smallvec![1], inner_strides: smallvec![] };
        let geometry = Geometry {
            row_shape: smallvec![4],
            inner_shape: smallvec![],
            operands: vec![operand; inputs.len() + 1],
        };
        let inputs: Vec<_> = inputs.iter().copied().map(DevicePointer::new).collect();
        let mut found: Vec<_> = accesses(&kernel, &geometry, &inputs, &[DevicePointer::new(output)], true)
            .into_iter()
            .map(|access| (access.start, access.bytes, access.mode))
            .collect();
        found.sort_by_key(|access| access.0);
        found
    }

    #[test]
    fn operands_apart_are_ranges_of_their_own() {
        use AccessMode::{Read, Write};
        assert_eq!(of(&[100, 200], 300), [(100, 16, Read), (200, 16, Read), (300, 16, Write)]);
        assert_eq!(of(&[100, 100], 300), [(100, 16, Read), (300, 16, Write)], "the same input twice");
        assert_eq!(of(&[100, 108], 300), [(100, 16, Read), (108, 16, Read), (300, 16, Write)]);
        assert_eq!(of(&[100], 116), [(100, 16, Read), (116, 16, Write)], "neighbours do not meet");
    }

    #[test]
    fn inputs_that_meet_the_output_are_one_range_with_it() {
        use AccessMode::{Read, ReadWrite};
        assert_eq!(of(&[100], 100), [(100, 16, ReadWrite)]);
        assert_eq!(of(&[100, 100, 200], 100), [(100, 16, ReadWrite), (200, 16, Read)]);
        assert_eq!(of(&[92, 108], 100), [(92, 32, ReadWrite)]);
        // Whatever their order, also those that meet only what met the output.
        assert_eq!(of(&[112, 104], 92), [(92, 36, ReadWrite)]);
        assert_eq!(of(&[104, 112], 92), [(92, 36, ReadWrite)]);
        assert_eq!(of(&[124, 112, 104], 92), [(92, 48, ReadWrite)]);
    }

    #[test]
    fn the_gaps_of_strided_operands_are_told() {
        let touch = |dimensions: &[(u64, u64)]| touch_of(dimensions.iter().copied(), 4);
        let rows = |chunk_bytes, step_bytes| Touch::Rows { chunk_bytes, step_bytes };
        assert_eq!(touch(&[(3, 4), (4, 1)]), Touch::All);
        assert_eq!(touch(&[(3, 0), (4, 1)]), Touch::All, "broadcast");
        assert_eq!(touch(&[(3, 8), (4, 1)]), rows(16, 32), "columns of a matrix");
        assert_eq!(touch(&[(5, 2)]), rows(4, 8), "every other element");
        assert_eq!(touch(&[(2, 24), (3, 8), (4, 1)]), rows(16, 32), "planes that follow one another");
        assert_eq!(touch(&[(2, 100), (3, 8), (4, 1)]), Touch::Some, "planes with gaps between them");
        assert_eq!(touch(&[(1, 100), (3, 1), (4, 1)]), Touch::All, "a window that slides");
    }

    #[test]
    fn older_architectures_of_the_same_generation_run() {
        let names: Vec<_> = runnable_architectures(ComputeCapability { major: 8, minor: 2 }).collect();
        assert_eq!(names, ["sm_82", "sm_81", "sm_80"]);
    }
}
