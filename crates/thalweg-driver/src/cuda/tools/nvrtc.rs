//! NVRTC: CUDA C to machine code, at run time.
//!
//! The compiler needs no device and no driver, so kernels can be compiled on any machine. It loads a second library of
//! built-in functions by its bare name, which the loader does not find next to a compiler from a wheel. So that library is
//! loaded first, from the compiler's folder.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::cuda::search::{Library, OpenLibrary, SearchEnvironment, load_beside};
use crate::cuda::table::{CallStatus, entry_points, function_at, text_at};
use crate::{Code, ComputeCapability, Error, Result, Version};

entry_points! {
    /// libnvrtc.
    NvrtcTable from cudarc::nvrtc::sys {
        version = nvrtcVersion (major: *mut c_int, minor: *mut c_int);
        create = nvrtcCreateProgram (program: *mut usize, source: *const c_char, name: *const c_char, count: c_int,
            headers: *const *const c_char, header_names: *const *const c_char);
        destroy = nvrtcDestroyProgram (program: *mut usize);
        compile = nvrtcCompileProgram (program: usize, count: c_int, options: *const *const c_char);
        log_size = nvrtcGetProgramLogSize (program: usize, bytes: *mut usize);
        log = nvrtcGetProgramLog (program: usize, log: *mut c_char);
        cubin_size = nvrtcGetCUBINSize (program: usize, bytes: *mut usize);
        cubin = nvrtcGetCUBIN (program: usize, cubin: *mut c_char);
        architecture_count = nvrtcGetNumSupportedArchs (count: *mut c_int);
        architectures = nvrtcGetSupportedArchs (numbers: *mut c_int);
    }
}

/// `NVRTC_ERROR_COMPILATION`: the source is invalid, and the log contains the reasons.
pub(in crate::cuda) const ERROR_COMPILATION: u32 = 6;
/// `NVRTC_ERROR_INVALID_OPTION`: an option is invalid, and the log contains the reason.
pub(in crate::cuda) const ERROR_INVALID_OPTION: u32 = 5;

/// The target that code is compiled for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Architecture {
    /// A generation, with the features that later ones keep (`sm_90`).
    Capability(ComputeCapability),
    /// An architecture by the compiler's name for it (`sm_90a`).
    Named(String),
}

impl From<ComputeCapability> for Architecture {
    fn from(capability: ComputeCapability) -> Self {
        Self::Capability(capability)
    }
}

impl From<&str> for Architecture {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capability(capability) => write!(f, "sm_{}{}", capability.major, capability.minor),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// The options for compiling a source.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CompileOptions {
    /// The architecture of the machine code.
    pub architecture: Architecture,
    /// Whether a multiplication and an addition may become one operation with one rounding.
    pub fmad: bool,
    /// Further options, in the syntax of the compiler's command line.
    pub extra: Vec<String>,
}

impl CompileOptions {
    /// Creates options for an architecture: with `fmad`, which is the compiler's default, and no further options.
    pub fn new(architecture: impl Into<Architecture>) -> Self {
        Self { architecture: architecture.into(), fmad: true, extra: Vec::new() }
    }

    /// Returns the options in the syntax of the compiler's command line. Together with the source they are the key of a
    /// cache of compiled code.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments =
            vec![format!("--gpu-architecture={}", self.architecture), format!("--fmad={}", self.fmad)];
        arguments.extend(self.extra.iter().cloned());
        arguments
    }
}

/// Compiled code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// Machine code for the requested architecture: an [`Image::Cubin`](crate::Image::Cubin).
    pub cubin: Vec<u8>,
    /// The compiler's warnings; usually empty.
    pub log: String,
}

/// The run-time compiler. All its methods may be called from several threads at once.
pub struct Nvrtc {
    table: NvrtcTable,
    error_text: Option<unsafe extern "C" fn(u32) -> *const c_char>,
    version: Version,
    path: PathBuf,
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvrtc")
            .field("version", &self.version)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A program of the compiler, destroyed when this is dropped.
struct NvrtcProgram<'a> {
    nvrtc: &'a Nvrtc,
    raw: usize,
}

impl Drop for NvrtcProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created, and is destroyed once.
        let _ = unsafe { self.nvrtc.table.destroy(&raw mut self.raw) };
    }
}

impl Nvrtc {
    /// Finds and loads the compiler.
    ///
    /// # Errors
    /// [`LibraryMissing`](Code::LibraryMissing), with the places that were searched and how to get it.
    pub fn load(environment: &SearchEnvironment) -> Result<Self> {
        let library = OpenLibrary::open(Library::Nvrtc, environment, "nvrtcVersion")?;
        load_beside(&library.path, "libnvrtc-builtins.so");
        let symbol = |name: &CStr| library.symbol(name);
        // SAFETY: the signatures are those that `nvrtc.h` declares for these symbols, in versions 12 and 13; an
        // `OpenLibrary` is never unloaded.
        let (table, error_text) = unsafe {
            (NvrtcTable::resolve(|entry| symbol(entry.symbol)), function_at(symbol(c"nvrtcGetErrorString")))
        };
        let path = library.path.clone();
        let mut nvrtc = Self { table, error_text, version: Version { major: 0, minor: 0 }, path };
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: writes two numbers.
        let outcome = unsafe { nvrtc.table.version(&raw mut major, &raw mut minor) };
        nvrtc.check(outcome, "")?;
        nvrtc.version = Version { major: major.max(0).unsigned_abs(), minor: minor.max(0).unsigned_abs() };
        Ok(nvrtc)
    }

    /// Returns the compiler's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the file from which the compiler was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the generations that the compiler supports, oldest first.
    ///
    /// # Errors
    /// [`LibraryMissing`](Code::LibraryMissing) if the compiler is too old to report them.
    pub fn architectures(&self) -> Result<Vec<ComputeCapability>> {
        let mut count: c_int = 0;
        // SAFETY: writes one number.
        self.check(unsafe { self.table.architecture_count(&raw mut count) }, "")?;
        let mut numbers: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        if !numbers.is_empty() {
            // SAFETY: there is room for the number of generations that the compiler returned.
            self.check(unsafe { self.table.architectures(numbers.as_mut_ptr()) }, "")?;
        }
        let numbers = numbers.into_iter().map(|number| number.max(0).unsigned_abs());
        Ok(numbers.map(|n| ComputeCapability { major: n / 10, minor: n % 10 }).collect())
    }

    /// Compiles CUDA C to machine code. `name` is the name of the source in the compiler's messages.
    ///
    /// Blocks until it is done: some 10 to 100 ms for a kernel.
    ///
    /// # Errors
    /// [`Compilation`](Code::Compilation) with the compiler's log, which names the lines.
    pub fn compile(&self, source: &str, name: &str, options: &CompileOptions) -> Result<Compiled> {
        let (program, log) = self.program(source, name, options)?;
        let what = format!("{name} with {}", options.arguments().join(" "));
        Ok(Compiled { cubin: self.cubin_of(&program, &what)?, log })
    }

    /// Compiles CUDA C for an architecture that may be a virtual one (`compute_90a`), which takes a tenth of the time, and returns the
    /// compiler's warnings.
    pub fn warnings(&self, source: &str, name: &str, options: &CompileOptions) -> Result<String> {
        Ok(self.program(source, name, options)?.1)
    }

    /// Returns the compiled program with the compiler's warnings.
    fn program(
        &self,
        source: &str,
        name: &str,
        options: &CompileOptions,
    ) -> Result<(NvrtcProgram<'_>, String)> {
        let arguments = options.arguments();
        let text = |what: &str, text: &str| {
            CString::new(text).map_err(|error| {
                let detail = format!("{what} of {name:?} has a 0 byte at {}", error.nul_position());
                Error::new(Code::Compilation, "nvrtcCreateProgram", detail)
            })
        };
        let (source, file) = (text("the source", source)?, text("the name", name)?);
        let texts = arguments.iter().map(|option| text("an option", option)).collect::<Result<Vec<_>>>()?;
        let pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let what = format!("{name} with {}", arguments.join(" "));

        let mut program = NvrtcProgram { nvrtc: self, raw: 0 };
        let none = std::ptr::null();
        // SAFETY: source and name end with 0 and are copied; there are no headers; writes one handle.
        let outcome =
            unsafe { self.table.create(&raw mut program.raw, source.as_ptr(), file.as_ptr(), 0, none, none) };
        self.check(outcome, &what)?;
        let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
        // SAFETY: the program was created; `count` options, each ending with 0, are at the pointer.
        let outcome = unsafe { self.table.compile(program.raw, count, pointers.as_ptr()) };
        let log = self.log_of(&program)?;
        if matches!(outcome.status, ERROR_COMPILATION | ERROR_INVALID_OPTION) && !log.is_empty() {
            return Err(Error::new(Code::Compilation, outcome.call, format!("{what}:\n{log}")));
        }
        self.check(outcome, &what)?;
        Ok((program, log))
    }

    fn log_of(&self, program: &NvrtcProgram<'_>) -> Result<String> {
        let mut bytes = 0_usize;
        // SAFETY: the program was created; writes one number.
        self.check(unsafe { self.table.log_size(program.raw, &raw mut bytes) }, "")?;
        let mut log = vec![0_u8; bytes];
        if bytes > 0 {
            // SAFETY: there is room for the number of bytes that the compiler returned.
            self.check(unsafe { self.table.log(program.raw, log.as_mut_ptr().cast()) }, "")?;
        }
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        Ok(String::from_utf8_lossy(&log[..end]).trim().to_owned())
    }

    fn cubin_of(&self, program: &NvrtcProgram<'_>, what: &str) -> Result<Vec<u8>> {
        let mut bytes = 0_usize;
        // SAFETY: the program was created; writes one number.
        self.check(unsafe { self.table.cubin_size(program.raw, &raw mut bytes) }, what)?;
        if bytes == 0 {
            let detail = format!("{what}: no machine code: the architecture is a virtual one (compute_…)");
            return Err(Error::new(Code::Compilation, "nvrtcGetCUBINSize", detail));
        }
        let mut cubin = vec![0_u8; bytes];
        // SAFETY: there is room for the number of bytes that the compiler returned.
        self.check(unsafe { self.table.cubin(program.raw, cubin.as_mut_ptr().cast()) }, what)?;
        Ok(cubin)
    }

    fn check(&self, outcome: CallStatus, detail: &str) -> Result<()> {
        if outcome.is_success() {
            return Ok(());
        }
        let Self { version, path, .. } = self;
        if outcome.missing.is_some() {
            let detail = format!("NVRTC {version} ({}) has no such call", path.display());
            return Err(Error::new(Code::LibraryMissing, outcome.call, detail));
        }
        // SAFETY: the function takes any number and returns a string of the library.
        let text = self.error_text.map(|text| unsafe { text_at(text(outcome.status)) }).unwrap_or_default();
        let code = if outcome.status == ERROR_COMPILATION { Code::Compilation } else { Code::Library };
        Err(Error::new(code, outcome.call, format!("{text} ({}): {detail}", outcome.status)))
    }
}
