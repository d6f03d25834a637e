//! Loaded kernels: a kernel of the loop IR is turned into code of a device once, and launched many times.
//!
//! On a GPU the kernel is printed as CUDA C and compiled by NVRTC (or found compiled: in the disk cache, or among the precompiled
//! kernels of a bundle). In the simulator the same kernel value becomes a host function. The launch is the same in both: packed
//! arguments and the ranges that they touch, both derived from the kernel's geometry.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use thalweg_driver::cuda::{CompileOptions, Nvrtc, SearchEnvironment};
use thalweg_driver::{Code, ComputeCapability, FunctionHandle, HostKernel, HostModule, Image, ImageKind};
use thalweg_ir::Kernel;
use thalweg_kernels::NativeKernel;

use crate::disk_cache::{self, EntryKey};
use crate::environment::Environment;
use crate::invalid;
use crate::loaded::{CompiledCode, KernelCode, KernelKey, LoadedKernel};
use crate::loop_kernel::LoopKernel;
use crate::{Device, Error, Result, kernel_pack};

impl Device {
    /// Returns the kernel with this key. Makes and loads it at the first call, which takes some 100 ms on a GPU without a cache;
    /// later calls cost one hash lookup.
    pub fn kernel(&self, key: &KernelKey, make: impl FnOnce() -> Kernel) -> Result<Arc<LoadedKernel>> {
        let table = self.kernels();
        if let Some(found) = table.loops.read().get(key) {
            return Ok(found.clone());
        }
        // Two threads may both compile; the second one to finish launches the first one's kernel, and its own is unloaded at the
        // end.
        let ahead = table.ahead.take(key);
        let (kernel, code) = match ahead {
            Some(KernelCode { kernel, code }) => (kernel, code),
            None => (Arc::new(make()), CompiledCode::Nothing),
        };
        let name = kernel.name.clone();
        let host = || match &code {
            CompiledCode::Host(host) => host.clone(),
            _ => self.host_function(&kernel),
        };
        let image = match &code {
            CompiledCode::Image(image) => Some(image.as_slice()),
            _ => None,
        };
        let function = self
            .load(&name, &|| thalweg_ir::cuda::print(&kernel), &host, image)
            .map_err(|error| error.context(format!("kernel {name}")))?;
        let loaded = Arc::new(LoadedKernel { kernel, function });
        let mut loops = table.loops.write();
        Ok(loops.entry(key.clone()).or_insert(loaded).clone())
    }

    /// Returns whether the kernel with this key is loaded.
    pub fn has_kernel(&self, key: &KernelKey) -> bool {
        self.kernels().loops.read().contains_key(key)
    }

    /// Returns the number of kernels that the device has loaded since it was made.
    pub fn loaded_kernel_count(&self) -> usize {
        let table = self.kernels();
        table.loops.read().len() + table.natives.read().len()
    }

    /// Compiles kernels at the same time, by several threads (`THALWEG_COMPILE_THREADS`). [`Device::kernel`] takes their code when it
    /// loads them. Leaves out those that are compiled already or at this moment in the background; those that only wait for that are
    /// compiled here. *Blocks* until all are compiled but those in the background. An error is not reported here: the kernel is compiled again when it is loaded.
    pub fn compile_ahead(&self, mut kernels: Vec<(KernelKey, Kernel)>) {
        kernels.retain(|(key, _)| !self.kernels().ahead.is_begun(key));
        let threads = self.environment().compile_threads.min(kernels.len());
        if threads < 2 {
            return;
        }
        let next = AtomicUsize::new(0);
        let kernels: Vec<_> = kernels.into_iter().map(|(key, kernel)| (key, Arc::new(kernel))).collect();
        let work = || {
            while let Some((key, kernel)) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                let code = KernelCode { kernel: kernel.clone(), code: self.code_of(kernel) };
                self.kernels().ahead.put(key.clone(), code);
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
    }

    /// Returns whether kernels that are expected are compiled in the background ([`expect_kernel`](Self::expect_kernel)).
    pub fn compiles_in_background(&self) -> bool {
        matches!(self.properties().image_kind, ImageKind::Cubin(_)) && self.environment().compile_threads > 1
    }

    /// Compiles a kernel in the background, because a later launch is expected to need it. Does nothing if it is loaded, or if kernels
    /// are functions of the host. Does not block.
    pub fn expect_kernel(&self, key: &KernelKey, make: impl FnOnce() -> Kernel) {
        let threads = self.environment().compile_threads - 1;
        let ImageKind::Cubin(capability) = self.properties().image_kind else { return };
        let ahead = &self.kernels().ahead;
        if threads == 0 || self.has_kernel(key) || ahead.contains(key) || compiler().is_err() {
            return;
        }
        let (environment, kernel) = (self.environment().clone(), Arc::new(make()));
        ahead.expect(key.clone(), threads, move || {
            let code = compiled(&environment, capability, &kernel);
            KernelCode { kernel, code }
        });
    }

    /// Returns the code of a kernel that is compiled ahead.
    fn code_of(&self, kernel: &Arc<Kernel>) -> CompiledCode {
        match self.properties().image_kind {
            ImageKind::Cubin(capability) => compiled(self.environment(), capability, kernel),
            _ => CompiledCode::Host(self.host_function(kernel)),
        }
    }

    fn host_function(&self, kernel: &Arc<Kernel>) -> Arc<dyn HostKernel> {
        Arc::new(LoopKernel::new(kernel.clone(), self.out_of_range().words()))
    }

    /// Returns the function of a kernel that is written as CUDA C, which is loaded at the first call.
    pub(crate) fn native_kernel(&self, kernel: &dyn NativeKernel) -> Result<FunctionHandle> {
        let name = kernel.name();
        let natives = &self.kernels().natives;
        if let Some(found) = natives.read().get(name) {
            return Ok(*found);
        }
        let host = || match kernel.reports_indices() {
            true => {
                let words = self.out_of_range().words();
                kernel.host_reporting(Arc::new(move |slot, index, extent| {
                    words.report_index(slot, index, extent)
                }))
            }
            false => kernel.host(),
        };
        let function = self
            .load(name, &|| kernel.source(), &host, None)
            .map_err(|error| error.context(format!("kernel {name}")))?;
        let mut natives = natives.write();
        Ok(*natives.entry(name.to_owned()).or_insert(function))
    }

    fn load(
        &self,
        name: &str,
        source: &dyn Fn() -> String,
        host: &dyn Fn() -> Arc<dyn HostKernel>,
        image: Option<&[u8]>,
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
                let wanted = Wanted { name, source: &source(), capability };
                let ahead;
                let compiler = match image {
                    None => compiler().map(|compiler| compiler as &dyn Compile),
                    Some(image) => {
                        ahead = compiler().map(|compiler| Ahead { compiler, image });
                        ahead.as_ref().map(|ahead| ahead as &dyn Compile).map_err(Clone::clone)
                    }
                };
                let compiler = || compiler;
                load_code(self.environment(), &wanted, compiler, &mut |image| match driver
                    .module_load(self.index(), Image::Cubin(image))
                {
                    Err(error) if is_refusal(&error) => Ok(Err(error)),
                    loaded => self.check(loaded).map(Ok),
                })?
            }
        };
        self.kernels().loaded(module);
        self.check(driver.function_get(module, name))
    }
}

/// Writes the source of a kernel into a folder of recorded kernels: `<name>-<hash>.cu`, because other programs may have other
/// kernels with the same name.
fn record(folder: &Path, name: &str, source: &str) -> Result<()> {
    let file = folder.join(format!("{name}-{}.cu", disk_cache::fingerprint(source)));
    // Files of the same name have the same content, so it does not matter which of several processes writes last.
    let written = || disk_cache::replace(&file, &[source.as_bytes()]);
    std::fs::create_dir_all(folder)
        .and_then(|()| written())
        .map_err(|error| invalid!("the kernel cannot be recorded in {}: {error}", folder.display()))
}

/// Returns the options with which every kernel is compiled for an architecture (`sm_90`).
fn options_for(architecture: &str) -> CompileOptions {
    let extra = thalweg_ir::cuda::OPTIONS.iter().map(|&option| option.to_owned()).collect();
    // Enables the instructions that only this generation has: no other device has compute capability 9.0.
    let target = if architecture == "sm_90" { "sm_90a" } else { architecture };
    CompileOptions { fmad: false, extra, ..CompileOptions::new(target) }
}

/// Compiles a kernel for an architecture and puts it into a folder of precompiled kernels, unless it is there already. Returns
/// the entry's file. A bundle for machines without a compiler is made of such entries.
pub fn precompile(folder: &Path, name: &str, source: &str, architecture: &str) -> Result<PathBuf> {
    let options = thalweg_ir::cuda::OPTIONS.join(" ");
    let key = EntryKey { source, options: &options, architecture, compiler: "" };
    let refused = |error| invalid!("the kernel {name} cannot be written to {}: {error}", folder.display());
    if disk_cache::read(folder, &key).map_err(refused)?.is_none() {
        let image = compiler()?.compile(source, name, &options_for(architecture))?.cubin;
        disk_cache::write(folder, &key, &image).map_err(refused)?;
    }
    Ok(key.path(folder))
}

/// Returns the architectures whose machine code runs on a device of this capability, best first: its own, then older ones of the
/// same major number.
fn runnable_architectures(capability: ComputeCapability) -> impl Iterator<Item = String> {
    (0..=capability.minor).rev().map(move |minor| format!("sm_{}{minor}", capability.major))
}

/// Returns the compiler, or the reason why there is none; the search runs once per process.
pub fn compiler() -> Result<&'static Nvrtc> {
    static COMPILER: OnceLock<thalweg_driver::Result<Nvrtc>> = OnceLock::new();
    COMPILER
        .get_or_init(|| Nvrtc::load(&SearchEnvironment::from_process()))
        .as_ref()
        .map_err(|error| Error::from(error.clone()))
}

/// A kernel whose machine code is requested.
struct Wanted<'a> {
    name: &'a str,
    source: &'a str,
    capability: ComputeCapability,
}

impl Wanted<'_> {
    /// Returns the architecture of the device.
    fn architecture(&self) -> String {
        let ComputeCapability { major, minor } = self.capability;
        format!("sm_{major}{minor}")
    }
}

/// The part of the compiler that is used here.
trait Compile {
    /// Returns the compiler's name with its version, as a part of a file's name.
    fn name(&self) -> String;
    fn compile(&self, wanted: &Wanted<'_>, options: &CompileOptions) -> Result<Vec<u8>>;
}

impl Compile for Nvrtc {
    fn name(&self) -> String {
        format!("nvrtc-{}", self.version())
    }

    fn compile(&self, wanted: &Wanted<'_>, options: &CompileOptions) -> Result<Vec<u8>> {
        Ok(Nvrtc::compile(self, wanted.source, wanted.name, options)?.cubin)
    }
}

/// A compiler that has compiled the wanted kernel already.
struct Ahead<'a> {
    compiler: &'a dyn Compile,
    image: &'a [u8],
}

impl Compile for Ahead<'_> {
    fn name(&self) -> String {
        self.compiler.name()
    }

    fn compile(&self, _: &Wanted<'_>, _: &CompileOptions) -> Result<Vec<u8>> {
        Ok(self.image.to_vec())
    }
}

/// Compiles a kernel, unless its machine code is in a folder.
fn compiled(environment: &Environment, capability: ComputeCapability, kernel: &Kernel) -> CompiledCode {
    let source = thalweg_ir::cuda::print(kernel);
    let wanted = Wanted { name: &kernel.name, source: &source, capability };
    let image = compiler().ok().filter(|compiler| !has_code(environment, &wanted, &compiler.name()));
    let image = image
        .and_then(|compiler| Compile::compile(compiler, &wanted, &options_for(&wanted.architecture())).ok());
    image.map_or(CompiledCode::Nothing, CompiledCode::Image)
}

/// Returns whether a folder has machine code of a kernel, which the driver may still refuse.
fn has_code(environment: &Environment, wanted: &Wanted<'_>, compiler: &str) -> bool {
    let options = thalweg_ir::cuda::OPTIONS.join(" ");
    let architecture = wanted.architecture();
    let own = EntryKey { source: wanted.source, options: &options, architecture: &architecture, compiler };
    let is_precompiled = |folder: &PathBuf| {
        runnable_architectures(wanted.capability).any(|architecture| {
            let key = EntryKey { architecture: &architecture, compiler: "", ..own };
            key.path(folder).is_file() || kernel_pack::has(folder, &key)
        })
    };
    precompiled_folders(environment).any(is_precompiled)
        || environment.cache_directory.as_ref().is_some_and(|base| own.path(&base.join("kernels")).is_file())
}

/// Returns whether the driver cannot use an image, because it is from a newer compiler, or for another GPU. (300 is
/// `CUDA_ERROR_INVALID_SOURCE`.)
fn is_refusal(error: &thalweg_driver::Error) -> bool {
    let codes = [
        Code::InvalidImage,
        Code::InvalidPtx,
        Code::NoBinaryForDevice,
        Code::UnsupportedPtxVersion,
        Code::Other(300),
    ];
    codes.contains(&error.code())
}

/// Loads machine code of a kernel: from a folder of precompiled kernels, from the disk cache, or from the compiler. `load`
/// returns the loaded code, or the driver's reason for refusing the image. A refused image is compiled again, and replaced in the
/// cache.
fn load_code<'c, M>(
    environment: &Environment,
    wanted: &Wanted<'_>,
    compiler: impl FnOnce() -> Result<&'c dyn Compile>,
    load: &mut dyn FnMut(&[u8]) -> Result<thalweg_driver::Result<M>>,
) -> Result<M> {
    let options = thalweg_ir::cuda::OPTIONS.join(" ");
    let architecture = wanted.architecture();
    let key =
        EntryKey { source: wanted.source, options: &options, architecture: &architecture, compiler: "" };
    let mut refused = None;
    let mut attempt = |image: &[u8]| -> Result<Option<M>> {
        load(image).map(|loaded| loaded.map_err(|error| refused = Some(error)).ok())
    };
    for precompiled in precompiled_folders(environment) {
        for architecture in runnable_architectures(wanted.capability) {
            let key = EntryKey { architecture: &architecture, ..key };
            let packed = || kernel_pack::read_or_warn(precompiled, &key);
            if let Some(image) = disk_cache::read_or_warn(precompiled, &key).or_else(packed)
                && let Some(loaded) = attempt(&image)?
            {
                return Ok(loaded);
            }
        }
    }
    let folder: Option<PathBuf> = environment.cache_directory.as_ref().map(|base| base.join("kernels"));
    let compiler = match compiler() {
        Ok(compiler) => compiler,
        Err(error) => {
            if let Some(folder) = &folder {
                let images = disk_cache::read_of_any_compiler(folder, &key).unwrap_or_else(|error| {
                    disk_cache::warn_once(folder, &error);
                    Vec::new()
                });
                for image in images {
                    if let Some(loaded) = attempt(&image)? {
                        return Ok(loaded);
                    }
                }
            }
            return Err(error.context(no_code(environment, &architecture, refused.as_ref())));
        }
    };
    let name = compiler.name();
    let key = EntryKey { compiler: &name, ..key };
    if let Some(image) = folder.as_ref().and_then(|folder| disk_cache::read_or_warn(folder, &key))
        && let Some(loaded) = attempt(&image)?
    {
        return Ok(loaded);
    }
    let image = compiler.compile(wanted, &options_for(&architecture))?;
    if let Some(folder) = folder {
        disk_cache::write_or_warn(&folder, &key, &image);
    }
    Ok(load(&image)??)
}

/// The folder of precompiled kernels that a package has.
static OF_PACKAGE: OnceLock<PathBuf> = OnceLock::new();

/// Searches a package's folder of precompiled kernels too, after those of the environment. The first call in a process counts.
pub fn use_precompiled(folder: PathBuf) {
    let _ = OF_PACKAGE.set(folder);
}

fn precompiled_folders(environment: &Environment) -> impl Iterator<Item = &PathBuf> {
    environment.precompiled_directories.iter().chain(OF_PACKAGE.get())
}

/// Returns the error of a missing compiler, with the sources that were tried before.
fn no_code(environment: &Environment, architecture: &str, refused: Option<&thalweg_driver::Error>) -> String {
    let looked: Vec<_> = precompiled_folders(environment).map(|path| path.display().to_string()).collect();
    let looked = if looked.is_empty() { "no folder".to_owned() } else { looked.join(", ") };
    match refused {
        None => format!(
            "the kernel is not compiled for {architecture}: not in the cache, not among the precompiled kernels (looked in: \
             {looked}), and there is no compiler"
        ),
        Some(refused) => format!(
            "the driver refuses what the cache and the precompiled kernels (in: {looked}) have of the kernel for {architecture} \
             ({refused}), and there is no compiler"
        ),
    }
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
