//! Modules, functions and launches.
//!
//! The driver takes a pointer to an image and no length, so the image's own headers are checked to stay inside the given
//! bytes. For a launch it takes the address of the only argument, or packed arguments with their size. If it can report the
//! size of a kernel's arguments (since CUDA 12.4), a launch with another size is refused.

use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use thalweg_lock::Mutex;

use super::context::Device;
use super::objects::{Function, Module};
use super::state::CudaDriver;
use super::sys::{self, FunctionAttribute, RawFunction, RawModule, RawStream};
use super::table::CallStatus;
use crate::command::{Launch, LaunchMode};
use crate::module::Image;
use crate::{Cluster, Code, Error, FunctionAttributes, FunctionHandle, ModuleHandle, Result, StreamHandle};

/// The dynamic shared memory that a launch may use without opting in.
const SHARED_MEMORY_WITHOUT_ASKING_BYTES: u32 = 48 << 10;

impl CudaDriver {
    pub(super) fn module_load(&self, device: u32, image: Image<'_>) -> Result<ModuleHandle> {
        let call = "cuModuleLoadDataEx";
        self.enter(device)?;
        let raw = match image {
            Image::Cubin(bytes) => {
                check_elf(bytes).map_err(|why| {
                    let detail = format!("an image of {} bytes is not a whole cubin: {why}", bytes.len());
                    Error::new(Code::InvalidImage, call, detail)
                })?;
                self.load_image(device, bytes, "a cubin")?
            }
            Image::Ptx(text) => {
                let text = CString::new(text).map_err(|error| {
                    let detail = format!("the PTX has a 0 byte at {}", error.nul_position());
                    Error::new(Code::InvalidPtx, call, detail)
                })?;
                // The driver reads the first bytes of an image to detect its kind, however short it is.
                let mut bytes = text.into_bytes_with_nul();
                bytes.resize(bytes.len() + 64, 0);
                self.load_image(device, &bytes, "PTX")?
            }
            Image::Host(_) => {
                let detail = format!("host functions cannot run on device {device}: it takes cubin or PTX");
                return Err(Error::new(Code::InvalidImage, call, detail));
            }
        };
        let module = Module { raw, device, functions: Mutex::default() };
        Ok(ModuleHandle::from_raw(self.modules.insert(module)))
    }

    /// Loads an image that was checked to end within its bytes.
    fn load_image(&self, device: u32, image: &[u8], kind: &str) -> Result<RawModule> {
        // Loading allocates. It happens lazily, possibly during a capture, and is not part of it.
        let _relaxed = self.cuda.relaxed();
        let mut log = vec![0_u8; 8 << 10];
        let mut options = [sys::JIT_ERROR_LOG_BUFFER, sys::JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut raw = RawModule::default();
        // SAFETY: the image is an entire cubin, or text that ends with 0; both options have their values: a buffer, and its
        // size as a number in place of a pointer.
        let outcome = unsafe {
            self.cuda.table.module_load(
                &raw mut raw,
                image.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        self.cuda.check(outcome, || {
            let log = super::context::Device::text(&log);
            let what = format!("{kind} of {} bytes for device {device}", image.len());
            if log.trim().is_empty() { what } else { format!("{what}, log: {}", log.trim()) }
        })?;
        Ok(raw)
    }

    pub(super) fn module_unload(&self, module: ModuleHandle) -> Result<()> {
        let call = "cuModuleUnload";
        self.modules.remove(module.raw(), call, |module| {
            self.enter(module.device)?;
            for (_, function) in module.functions.lock().drain() {
                self.functions.remove(function.raw(), call, |_| Ok(()))?;
            }
            // SAFETY: the module is this driver's, and nothing holds its entry or one of its functions. The driver itself
            // waits for work that uses the code.
            let outcome = unsafe { self.cuda.table.module_unload(module.raw) };
            self.cuda.check(outcome, || format!("a module of device {}", module.device))
        })
    }

    pub(super) fn function_get(&self, module: ModuleHandle, name: &str) -> Result<FunctionHandle> {
        let call = "cuModuleGetFunction";
        let module = self.modules.get(module.raw(), call)?;
        let mut functions = module.functions.lock();
        if let Some(function) = functions.get(name) {
            return Ok(*function);
        }
        self.enter(module.device)?;
        let missing = |_| Error::new(Code::NotFound, call, format!("no kernel has the name {name:?}"));
        let text = CString::new(name).map_err(missing)?;
        let _relaxed = self.cuda.relaxed();
        let mut raw = RawFunction::default();
        // SAFETY: the module is looked up, the name ends with 0; writes one handle.
        let outcome = unsafe { self.cuda.table.module_get_function(&raw mut raw, module.raw, text.as_ptr()) };
        self.cuda.check(outcome, || format!("the kernel {name:?}"))?;
        let arguments = self.arguments(raw);
        let function = Function {
            raw,
            device: module.device,
            name: name.to_owned(),
            argument_bytes: arguments.map(|(_, bytes)| bytes),
            has_one_argument: arguments.is_some_and(|(count, _)| count == 1),
            shared_memory_bytes: AtomicU32::new(SHARED_MEMORY_WITHOUT_ASKING_BYTES),
        };
        let handle = FunctionHandle::from_raw(self.functions.insert(function));
        functions.insert(name.to_owned(), handle);
        Ok(handle)
    }

    /// Returns how many arguments the kernel has, and their size in bytes, if the driver can report them. The size of a
    /// single argument excludes the bytes before it, which there may be if its alignment is large.
    fn arguments(&self, function: RawFunction) -> Option<(usize, usize)> {
        let (mut start, mut end) = (None, 0);
        for index in 0.. {
            let (mut offset, mut bytes) = (0_usize, 0_usize);
            // SAFETY: the function is of a module that is loaded; writes two numbers.
            let outcome = unsafe {
                self.cuda.table.function_get_parameter(function, index, &raw mut offset, &raw mut bytes)
            };
            if outcome.missing.is_some() {
                return None;
            }
            if !outcome.is_success() {
                // The driver's way to report that there are no more arguments.
                let is_end = outcome.status == Code::InvalidValue.number();
                let unused = if index == 1 { start.unwrap_or(0) } else { 0 };
                return is_end.then_some((index, end - unused));
            }
            start.get_or_insert(offset);
            end = offset.checked_add(bytes)?;
        }
        None
    }

    pub(super) fn function_attributes(&self, function: FunctionHandle) -> Result<FunctionAttributes> {
        let function = self.functions.get(function.raw(), "cuFuncGetAttribute")?;
        self.enter(function.device)?;
        let get = |attribute| -> Result<u32> {
            let mut value: c_int = 0;
            // SAFETY: the function is looked up; writes one number.
            let outcome =
                unsafe { self.cuda.table.function_get_attribute(&raw mut value, attribute, function.raw) };
            self.cuda.check(outcome, || format!("{attribute:?} of {}", function.name))?;
            Ok(value.max(0).unsigned_abs())
        };
        Ok(FunctionAttributes {
            max_threads_per_block: get(FunctionAttribute::MaxThreadsPerBlock)?,
            registers: get(FunctionAttribute::Registers)?,
            shared_memory_bytes: get(FunctionAttribute::SharedSizeBytes)?,
            local_memory_bytes: get(FunctionAttribute::LocalSizeBytes)?,
        })
    }

    pub(super) fn max_active_clusters(&self, function: FunctionHandle, cluster: Cluster) -> Result<u32> {
        let Cluster { blocks, threads, shared_memory_bytes } = cluster;
        let call = "cuOccupancyMaxActiveClusters";
        let function = self.functions.get(function.raw(), call)?;
        if shared_memory_bytes > function.shared_memory_bytes.load(Ordering::Relaxed) {
            self.ask_for_shared_memory(&function, shared_memory_bytes)?;
        }
        let mut attribute = sys::LaunchAttribute::cluster(c_int::try_from(blocks).unwrap_or(c_int::MAX));
        let config = sys::LaunchConfig {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: shared_memory_bytes,
            stream: RawStream::default(),
            attributes: &raw mut attribute,
            attribute_count: 1,
        };
        let mut clusters = 0;
        // SAFETY: the function is looked up; the driver reads the configuration and its one attribute, and stores a number.
        let outcome = unsafe {
            self.cuda.table.occupancy_max_active_clusters(&raw mut clusters, function.raw, &raw const config)
        };
        let described = || format!("a cluster of {blocks} blocks of {}", function.name);
        self.cuda.check(outcome, described)?;
        match clusters {
            // A slice of a GPU has few adjacent multiprocessors.
            ..=0 => Err(Error::new(
                Code::NotSupported,
                call,
                format!("the device has no room for {}", described()),
            )),
            _ => Ok(clusters.unsigned_abs()),
        }
    }

    pub(super) fn launch(&self, stream: StreamHandle, launch: &Launch<'_>) -> Result<()> {
        let call = "cuLaunchKernel";
        let stream = self.streams.get(stream.raw(), call)?;
        let function = self.functions.get(launch.function.raw(), call)?;
        let device = self.submit_on(&stream)?;
        self.prepare(launch, &function, device, call)?;
        let mut bytes = launch.arguments.len();
        let mut passed = Passed::new(launch.arguments, &mut bytes);
        let (parameters, extra) = passed.pointers(&function);
        let attribute = match launch.mode {
            LaunchMode::Programmatic if device.overlaps_launches => {
                Some(sys::LaunchAttribute::programmatic_stream_serialization())
            }
            LaunchMode::Cooperative => Some(sys::LaunchAttribute::cooperative()),
            _ => None,
        };
        if let Some(attribute) = attribute {
            let outcome = self.launch_with(attribute, launch, &function, stream.raw, (parameters, extra));
            // If the driver lacks the call, a programmatic launch is in order instead.
            if outcome.missing.is_none() || launch.mode == LaunchMode::Cooperative {
                return self.cuda.check(outcome, || describe(launch, &function));
            }
        }
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
        // SAFETY: function and stream are looked up. The driver copies the arguments that `parameters` or `extra` points to
        // before it returns: as many bytes as the kernel has, or as were passed. The contract leaves their use by the
        // kernel to the caller.
        let outcome = unsafe {
            self.cuda.table.launch_kernel(
                function.raw,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                launch.shared_memory_bytes,
                stream.raw,
                parameters,
                extra,
            )
        };
        self.cuda.check(outcome, || describe(launch, &function))
    }

    /// Launches a kernel with an attribute.
    fn launch_with(
        &self,
        mut attribute: sys::LaunchAttribute,
        launch: &Launch<'_>,
        function: &Function,
        stream: RawStream,
        (parameters, extra): (*mut *mut c_void, *mut *mut c_void),
    ) -> CallStatus {
        let config = sys::LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_memory_bytes,
            stream,
            attributes: &raw mut attribute,
            attribute_count: 1,
        };
        // SAFETY: function and stream are looked up. The driver reads the configuration and its one attribute, and copies
        // the arguments that `extra` or `parameters` points to, before it returns: as many bytes as the kernel's one
        // argument has, which `prepare` has checked. The contract leaves their use by the kernel to the caller.
        unsafe { self.cuda.table.launch_kernel_ex(&raw const config, function.raw, parameters, extra) }
    }

    /// Refuses a launch that cannot be intended, and requests the shared memory that it needs.
    #[inline]
    pub(super) fn prepare(
        &self,
        launch: &Launch<'_>,
        function: &Function,
        device: &Device,
        call: &'static str,
    ) -> Result<()> {
        if let Some(why) = refuse(launch, function, device.index, device.max_threads_per_block) {
            let detail = format!("{why}: {}", describe(launch, function));
            return Err(Error::new(Code::InvalidValue, call, detail));
        }
        if launch.shared_memory_bytes > function.shared_memory_bytes.load(Ordering::Relaxed) {
            self.ask_for_shared_memory(function, launch.shared_memory_bytes)?;
        }
        Ok(())
    }

    /// Requests more than 48 KiB of dynamic shared memory, which has to be done once per function.
    #[cold]
    fn ask_for_shared_memory(&self, function: &Function, bytes: u32) -> Result<()> {
        let wanted = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let attribute = FunctionAttribute::MaxDynamicSharedSizeBytes;
        // SAFETY: the function is looked up.
        let outcome = unsafe { self.cuda.table.function_set_attribute(function.raw, attribute, wanted) };
        self.cuda
            .check(outcome, || format!("{bytes} bytes of dynamic shared memory for {}", function.name))?;
        function.shared_memory_bytes.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// The arguments of a launch in the driver's form: it reads them through these pointers before its call returns.
pub(super) struct Passed {
    parameter: *mut c_void,
    packed: [*mut c_void; 5],
    is_empty: bool,
}

impl Passed {
    #[inline]
    pub(super) fn new(arguments: &[u8], bytes: &mut usize) -> Self {
        let parameter = arguments.as_ptr().cast_mut().cast();
        let packed = [
            sys::LAUNCH_PARAMETER_BUFFER_POINTER as *mut c_void,
            parameter,
            sys::LAUNCH_PARAMETER_BUFFER_SIZE as *mut c_void,
            std::ptr::from_mut(bytes).cast(),
            sys::LAUNCH_PARAMETER_END as *mut c_void,
        ];
        Self { parameter, packed, is_empty: *bytes == 0 }
    }

    /// Returns a call's `kernelParams` and `extra`, one of them null. A kernel's only argument is passed by its address,
    /// because its alignment is unknown and because a captured cooperative launch accepts no other form; several arguments
    /// are packed.
    #[inline]
    pub(super) fn pointers(&mut self, function: &Function) -> (*mut *mut c_void, *mut *mut c_void) {
        let null = std::ptr::null_mut();
        match (self.is_empty, function.has_one_argument) {
            (true, _) => (null, null),
            (_, true) => (&raw mut self.parameter, null),
            _ => (null, self.packed.as_mut_ptr()),
        }
    }
}

/// Returns why a launch cannot be intended, if so.
fn refuse(launch: &Launch<'_>, function: &Function, device: u32, max_threads: u32) -> Option<String> {
    if function.device != device {
        return Some(format!("a kernel of device {} on a stream of device {device}", function.device));
    }
    if launch.grid.contains(&0) || launch.block.contains(&0) {
        return Some("a grid and a block have at least 1 in each dimension".to_owned());
    }
    let threads = launch.block.iter().try_fold(1_u32, |product, side| product.checked_mul(*side));
    if threads.is_none_or(|threads| threads > max_threads) {
        return Some(format!("a block has at most {max_threads} threads on device {device}"));
    }
    let end = function.argument_bytes?;
    // A C struct may end with up to 15 bytes of padding.
    let fits = (end..=end.next_multiple_of(16)).contains(&launch.arguments.len());
    (!fits).then(|| format!("the kernel takes {end} bytes of arguments"))
}

pub(super) fn describe(launch: &Launch<'_>, function: &Function) -> String {
    format!(
        "kernel {} with grid {:?}, block {:?}, {} bytes of dynamic shared memory, {} bytes of arguments, for {}",
        function.name,
        launch.grid,
        launch.block,
        launch.shared_memory_bytes,
        launch.arguments.len(),
        launch.label
    )
}

/// Checks that a cubin (a 64-bit little-endian ELF file) has all its headers and sections inside `bytes`.
fn check_elf(bytes: &[u8]) -> Result<(), &'static str> {
    fn number(bytes: &[u8], at: u64, width: usize) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let mut value = [0; 8];
        value[..width].copy_from_slice(bytes.get(at..at.checked_add(width)?)?);
        Some(u64::from_le_bytes(value))
    }
    let length = bytes.len() as u64;
    let inside = |start: u64, size: u64| start.checked_add(size).is_some_and(|end| end <= length);
    if length < 64 || bytes[..4] != *b"\x7fELF" {
        return Err("it does not begin with the header of an ELF file");
    }
    if bytes[4..6] != [2, 1] {
        return Err("it is not a 64-bit little-endian ELF file");
    }
    const MACHINE_CUDA: u64 = 190;
    let field = |at: u64, width: usize| number(bytes, at, width).unwrap_or(u64::MAX);
    if field(0x12, 2) != MACHINE_CUDA {
        return Err("it is machine code of another kind of processor");
    }
    // e_phoff, e_shoff, then the sizes and numbers of program and section headers.
    let (programs, sections) = (field(0x20, 8), field(0x28, 8));
    let (program_size, program_count) = (field(0x36, 2), field(0x38, 2));
    let (section_size, section_count) = (field(0x3a, 2), field(0x3c, 2));
    if !inside(programs, program_size * program_count) || !inside(sections, section_size * section_count) {
        return Err("its headers lie behind its end");
    }
    if (program_count > 0 && program_size < 56) || (section_count > 0 && section_size < 64) {
        return Err("its headers are too small");
    }
    for header in (0..program_count).map(|index| programs + index * program_size) {
        if !inside(field(header + 0x08, 8), field(header + 0x20, 8)) {
            return Err("a segment lies behind its end");
        }
    }
    for header in (0..section_count).map(|index| sections + index * section_size) {
        const NO_BYTES: u64 = 8;
        if field(header + 0x04, 4) != NO_BYTES && !inside(field(header + 0x18, 8), field(header + 0x20, 8)) {
            return Err("a section lies behind its end");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a header with one section of `size` bytes at `offset`, 128 bytes in all.
    fn elf(offset: u64, size: u64) -> Vec<u8> {
        let mut bytes = vec![0; 128];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[0x12] = 190;
        bytes[0x28..0x30].copy_from_slice(&64_u64.to_le_bytes());
        bytes[0x3a..0x3c].copy_from_slice(&64_u16.to_le_bytes());
        bytes[0x3c..0x3e].copy_from_slice(&1_u16.to_le_bytes());
        bytes[64 + 0x18..64 + 0x20].copy_from_slice(&offset.to_le_bytes());
        bytes[64 + 0x20..64 + 0x28].copy_from_slice(&size.to_le_bytes());
        bytes
    }

    #[test]
    fn an_image_must_hold_what_its_headers_promise() {
        check_elf(&elf(0, 128)).expect("whole");
        for (image, why) in [
            (Vec::new(), "the header"),
            (b"int main() {}".to_vec(), "the header"),
            (elf(0, 129), "a section"),
            (elf(u64::MAX, 2), "a section"),
            (elf(0, 0)[..100].to_vec(), "headers"),
        ] {
            assert!(check_elf(&image).expect_err("damaged").contains(why), "{why}");
        }
    }

    #[test]
    fn no_damage_to_a_header_makes_the_check_panic() {
        let whole = elf(0, 128);
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                let _ = check_elf(&damaged);
            }
        }
    }
}
