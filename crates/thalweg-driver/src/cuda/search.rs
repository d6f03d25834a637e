//! Finding NVIDIA's libraries on this machine, at run time.
//!
//! A search tries places in a fixed order, and every place that was tried is kept as data. So the error for a missing
//! library lists these places, and a report can print the same:
//!
//! 1. a copy that this process has loaded already (a second copy would be an unrelated CUDA);
//! 2. the file that `THALWEG_<LIBRARY>_LIBRARY` names; when it is set and cannot be loaded the search ends there;
//! 3. the loader's own path (`LD_LIBRARY_PATH`, the loader's cache);
//! 4. the toolkit of `CUDA_HOME` or `CUDA_PATH` (roots are absolute paths, here and below; others are left out);
//! 5. the `nvidia-*` wheels of the active Python, found by the layout of folders, without running Python;
//! 6. folders where installers put them.
//!
//! The environment is read once, at the edge ([`SearchEnvironment::from_process`]), and passed in, so the result of a
//! search depends only on its argument and the file system. A loaded library stays loaded until the process ends.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

use super::table::{function_at, text_at};
use crate::{Code, Error, Result};

/// A shared library that this crate can use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Library {
    /// libcuda: the driver. It is installed with the GPU's kernel module, never with a toolkit.
    Driver,
    /// NVRTC: the run-time compiler.
    Nvrtc,
    /// cuBLASLt: matrix products.
    CublasLt,
    /// NVML: the state of devices, without a context.
    Nvml,
    /// cuDNN: attention and convolutions.
    Cudnn,
    /// cuFFT: discrete Fourier transforms.
    Cufft,
    /// cuSOLVER: decompositions of matrices.
    Cusolver,
    /// cuBLAS: batches of decompositions, and triangular systems.
    Cublas,
    /// NCCL: collectives over several devices.
    Nccl,
    /// CUPTI: a record of the work of a device.
    Cupti,
    /// NVTX: ranges that profilers show.
    Nvtx,
}

impl Library {
    /// All of them, in the order of a report.
    pub const ALL: [Self; 11] = [
        Self::Driver,
        Self::Nvrtc,
        Self::CublasLt,
        Self::Nvml,
        Self::Cudnn,
        Self::Cufft,
        Self::Cusolver,
        Self::Cublas,
        Self::Nccl,
        Self::Cupti,
        Self::Nvtx,
    ];

    /// Returns the library's name in its vendor's spelling.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "the CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::CublasLt => "cuBLASLt",
            Self::Nvml => "NVML",
            Self::Cudnn => "cuDNN",
            Self::Cufft => "cuFFT",
            Self::Cusolver => "cuSOLVER",
            Self::Cublas => "cuBLAS",
            Self::Nccl => "NCCL",
            Self::Cupti => "CUPTI",
            Self::Nvtx => "NVTX",
        }
    }

    /// Returns the library's file names, the preferred one first.
    pub const fn file_names(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &["libcuda.so.1"],
            Self::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Self::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Self::Nvml => &["libnvidia-ml.so.1"],
            Self::Cudnn => &["libcudnn.so.9"],
            Self::Cufft => &["libcufft.so.12", "libcufft.so.11"],
            Self::Cusolver => &["libcusolver.so.12", "libcusolver.so.11"],
            Self::Cublas => &["libcublas.so.13", "libcublas.so.12"],
            Self::Nccl => &["libnccl.so.2"],
            Self::Cupti => &["libcupti.so.13", "libcupti.so.12"],
            // Of version 3, and of the previous one, which older wheels and toolkits contain.
            Self::Nvtx => &["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"],
        }
    }

    /// Returns the environment variable that names the library's file.
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Driver => "THALWEG_CUDA_LIBRARY",
            Self::Nvrtc => "THALWEG_NVRTC_LIBRARY",
            Self::CublasLt => "THALWEG_CUBLASLT_LIBRARY",
            Self::Nvml => "THALWEG_NVML_LIBRARY",
            Self::Cudnn => "THALWEG_CUDNN_LIBRARY",
            Self::Cufft => "THALWEG_CUFFT_LIBRARY",
            Self::Cusolver => "THALWEG_CUSOLVER_LIBRARY",
            Self::Cublas => "THALWEG_CUBLAS_LIBRARY",
            Self::Nccl => "THALWEG_NCCL_LIBRARY",
            Self::Cupti => "THALWEG_CUPTI_LIBRARY",
            Self::Nvtx => "THALWEG_NVTX_LIBRARY",
        }
    }

    /// Returns advice on how to install the library.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Driver | Self::Nvml => {
                "it comes with NVIDIA's driver: install the driver, or give the container access to the GPU"
            }
            Self::Nvrtc => "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit and set CUDA_HOME",
            Self::CublasLt | Self::Cublas => {
                "pip install nvidia-cublas, or install the CUDA toolkit and set CUDA_HOME"
            }
            Self::Cudnn => "pip install nvidia-cudnn-cu13",
            Self::Cufft => "pip install nvidia-cufft, or install the CUDA toolkit and set CUDA_HOME",
            Self::Cusolver => "pip install nvidia-cusolver, or install the CUDA toolkit and set CUDA_HOME",
            Self::Nccl => "pip install nvidia-nccl-cu13",
            Self::Cupti => "pip install nvidia-cuda-cupti, or install the CUDA toolkit and set CUDA_HOME",
            Self::Nvtx => "pip install nvidia-nvtx",
        }
    }

    /// Returns whether wheels and toolkits contain the library. The driver's own libraries must match the kernel module, so
    /// the stubs in toolkits are never considered.
    const fn is_of_the_toolkit(self) -> bool {
        !matches!(self, Self::Driver | Self::Nvml)
    }

    /// Returns a symbol that every version has.
    const fn probe(self) -> &'static CStr {
        match self {
            Self::Driver => c"cuDriverGetVersion",
            Self::Nvrtc => c"nvrtcVersion",
            Self::CublasLt => c"cublasLtGetVersion",
            Self::Nvml => c"nvmlInit_v2",
            Self::Cudnn => c"cudnnGetVersion",
            Self::Cufft => c"cufftGetVersion",
            Self::Cusolver => c"cusolverGetVersion",
            Self::Cublas => c"cublasGetCudartVersion",
            Self::Nccl => c"ncclGetVersion",
            Self::Cupti => c"cuptiGetVersion",
            Self::Nvtx => c"nvtxRangePushA",
        }
    }
}

/// The inputs of a search, besides the file system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SearchEnvironment {
    /// Files that the user named, by library.
    pub overrides: Vec<(Library, PathBuf)>,
    /// Roots of CUDA toolkits (`CUDA_HOME`, `CUDA_PATH`).
    pub toolkits: Vec<PathBuf>,
    /// Folders that hold Python packages (`PYTHONPATH`).
    pub packages: Vec<PathBuf>,
    /// Roots of Python installations (`VIRTUAL_ENV`, `CONDA_PREFIX`, the one of `python3`, the user's).
    pub pythons: Vec<PathBuf>,
    /// Folders where installers put libraries.
    pub folders: Vec<PathBuf>,
}

impl SearchEnvironment {
    /// Reads the environment of this process.
    pub fn from_process() -> Self {
        Self::from_variables(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn from_variables(get: impl Fn(&str) -> Option<std::ffi::OsString>) -> Self {
        let overrides = Library::ALL
            .into_iter()
            .filter_map(|library| Some((library, PathBuf::from(get(library.variable())?))))
            .collect();
        // Never below the current folder, which may belong to anyone: libraries that are found there would be run.
        let root = |name: &str| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let mut toolkits: Vec<PathBuf> = Vec::new();
        toolkits.extend(["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(root));
        toolkits.dedup();
        let paths = |name: &str| -> Vec<PathBuf> {
            get(name)
                .map(|value| std::env::split_paths(&value).filter(|path| path.is_absolute()).collect())
                .unwrap_or_default()
        };
        let mut pythons: Vec<PathBuf> = Vec::new();
        pythons.extend(["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(root));
        if let Some(python) = paths("PATH").iter().map(|f| f.join("python3")).find(|file| file.exists()) {
            // The folder of the path as given, and of the resolved path: a virtual environment links to its base's
            // interpreter.
            let root_of = |file: &Path| file.parent().and_then(Path::parent).map(Path::to_path_buf);
            pythons.extend(root_of(&python));
            pythons.extend(python.canonicalize().ok().as_deref().and_then(root_of));
        }
        pythons.extend(root("HOME").map(|home| home.join(".local")));
        let mut seen = Vec::new();
        pythons.retain(|root| {
            !seen.contains(root) && {
                seen.push(root.clone());
                true
            }
        });
        let folders =
            ["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
                .map(PathBuf::from)
                .to_vec();
        Self { overrides, toolkits, packages: paths("PYTHONPATH"), pythons, folders }
    }

    /// Returns the folders to search after the loader's path, each with the way in which it was found.
    fn folders_for(&self, library: Library) -> Vec<(FoundBy, PathBuf)> {
        let mut folders = Vec::new();
        if library.is_of_the_toolkit() {
            for root in &self.toolkits {
                folders.push((FoundBy::Toolkit, root.join("lib64")));
                folders.push((FoundBy::Toolkit, root.join("targets/x86_64-linux/lib")));
                folders.push((FoundBy::Toolkit, root.join("lib")));
                folders.push((FoundBy::Toolkit, root.join("extras/CUPTI/lib64")));
            }
            let mut packages = self.packages.clone();
            packages.extend(self.pythons.iter().flat_map(|root| package_folders(root)));
            for folder in packages.iter().flat_map(|packages| wheel_folders(packages)) {
                folders.push((FoundBy::PythonWheel, folder));
            }
        }
        folders.extend(self.folders.iter().map(|folder| (FoundBy::KnownFolder, folder.clone())));
        folders
    }
}

/// Returns the `site-packages` folders of a Python installation: `<root>/lib/python3.11/site-packages` and the like.
fn package_folders(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for library in ["lib", "lib64"] {
        for python in sorted_entries(&root.join(library)) {
            let name = python.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if name.starts_with("python3") {
                found.extend(["site-packages", "dist-packages"].map(|packages| python.join(packages)));
            }
        }
    }
    found.retain(|folder| folder.is_dir());
    found
}

/// Returns the folders of libraries below `packages/nvidia`: one per wheel before CUDA 13 (`cuda_nvrtc/lib`), a common one
/// since (`cu13/lib`). Sorted by name, newest first.
fn wheel_folders(packages: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = sorted_entries(&packages.join("nvidia"))
        .into_iter()
        .map(|wheel| wheel.join("lib"))
        .filter(|folder| folder.is_dir())
        .collect();
    folders.sort_by_key(|folder| {
        let wheel = folder.parent().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default();
        let release = wheel.strip_prefix("cu").and_then(|digits| digits.parse::<u32>().ok());
        std::cmp::Reverse(release)
    });
    folders
}

fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries
}

/// The way in which a library was found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FoundBy {
    /// The process had loaded it already.
    AlreadyLoaded,
    /// The user named the file.
    Override,
    /// The loader's path.
    LoaderPath,
    /// `CUDA_HOME` or `CUDA_PATH`.
    Toolkit,
    /// A wheel of the active Python.
    PythonWheel,
    /// A folder where installers put libraries.
    KnownFolder,
}

impl fmt::Display for FoundBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlreadyLoaded => "already loaded",
            Self::Override => "named by the environment",
            Self::LoaderPath => "on the loader's path",
            Self::Toolkit => "in the CUDA toolkit",
            Self::PythonWheel => "in a Python wheel",
            Self::KnownFolder => "in a well-known folder",
        })
    }
}

/// A library that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The library's file.
    pub path: PathBuf,
    /// The way in which the library was found.
    pub by: FoundBy,
    /// The library's version in its vendor's notation, if it can be read without a device.
    pub version: Option<String>,
}

/// A place that was tried without success.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// The file, or the name that was passed to the loader.
    pub place: String,
    /// The reason for the failure.
    pub reason: String,
}

/// The result of a search for a library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchReport {
    /// The library that was searched for.
    pub library: Library,
    /// The library, if it was found.
    pub found: Option<Found>,
    /// The places that were tried without success, in order.
    pub tried: Vec<Attempt>,
}

impl SearchReport {
    /// Returns the error for a library that was not found. It names every place that was tried, and how to install the
    /// library.
    pub(super) fn error(&self, call: &'static str) -> Error {
        Error::new(Code::LibraryMissing, call, self.to_string())
    }
}

impl fmt::Display for SearchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.library.name();
        if let Some(found) = &self.found {
            let version = found.version.as_deref().unwrap_or("(version unknown)");
            return write!(f, "{name} {version}: {} ({})", found.path.display(), found.by);
        }
        write!(f, "{name} was not found")?;
        for (index, attempt) in self.tried.iter().enumerate() {
            let lead = if index == 0 { "; tried " } else { ", " };
            write!(f, "{lead}{} ({})", attempt.place, attempt.reason)?;
        }
        write!(f, ". To get it: {}; or set {} to its file", self.library.advice(), self.library.variable())
    }
}

/// Searches for a library, loads it, and reads its version. The library stays loaded.
pub fn locate(library: Library, environment: &SearchEnvironment) -> SearchReport {
    search(library, environment).1
}

/// A loaded library. It is never unloaded, because its functions and objects may be in use anywhere.
pub(super) struct OpenLibrary {
    library: std::mem::ManuallyDrop<Loaded>,
    pub(super) path: PathBuf,
}

impl OpenLibrary {
    /// Searches for a library and loads it; a missing library is an error of `call`.
    pub(super) fn open(
        library: Library,
        environment: &SearchEnvironment,
        call: &'static str,
    ) -> Result<Self> {
        let (open, report) = search(library, environment);
        open.ok_or_else(|| report.error(call))
    }

    /// Returns the address of a symbol, or null.
    pub(super) fn symbol(&self, name: &CStr) -> *const c_void {
        // SAFETY: the symbol is taken as an address and not called here.
        let found = unsafe { self.library.get::<*const c_void>(name.to_bytes_with_nul()) };
        found.map_or(std::ptr::null(), |symbol| symbol.as_raw_ptr().cast_const())
    }

    fn load(file: &OsStr, library: Library, flags: c_int) -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers. The names are those of NVIDIA's libraries, or a file that the
        // user named for this purpose; their initialisers may run on any thread.
        let loaded = unsafe { Loaded::open(Some(file), flags) }.map_err(|error| reason_of(&error))?;
        let mut open = Self { library: std::mem::ManuallyDrop::new(loaded), path: PathBuf::from(file) };
        let probe = open.symbol(library.probe());
        if probe.is_null() {
            let missing = library.probe().to_string_lossy();
            return Err(format!("has no symbol {missing}, so it is another library"));
        }
        if let Some(path) = file_of(probe) {
            open.path = path;
        }
        Ok(open)
    }

    fn version(&self, library: Library) -> Option<String> {
        let probe = self.symbol(library.probe());
        let mut major: c_int = 0;
        let mut minor: c_int = 0;
        let dotted = |number: usize, unit: usize| {
            Some(format!("{}.{}.{}", number / (unit * 100), number / unit % 100, number % unit))
        };
        // SAFETY: each branch gives the probe the signature that the vendor's header declares for it. No probe needs an
        // initialised library or a device, and the pointers are to locals that outlive the calls.
        unsafe {
            match library {
                Library::Driver => {
                    let get = function_at::<unsafe extern "C" fn(*mut c_int) -> u32>(probe)?;
                    (get(&raw mut major) == 0).then(|| format!("{}.{}", major / 1000, major % 1000 / 10))
                }
                Library::Nvrtc => {
                    let get = function_at::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> u32>(probe)?;
                    (get(&raw mut major, &raw mut minor) == 0).then(|| format!("{major}.{minor}"))
                }
                Library::CublasLt => {
                    let number = function_at::<unsafe extern "C" fn() -> usize>(probe)?();
                    // 11 and earlier used another numbering; they are not among the file names of a search.
                    dotted(number, 100)
                }
                Library::Cudnn => {
                    let number = function_at::<unsafe extern "C" fn() -> usize>(probe)?();
                    Some(format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
                }
                Library::Cublas => {
                    let number = function_at::<unsafe extern "C" fn() -> usize>(probe)?();
                    Some(format!("of CUDA {}.{}", number / 1000, number % 1000 / 10))
                }
                Library::Cufft | Library::Cusolver => {
                    let get = function_at::<unsafe extern "C" fn(*mut c_int) -> u32>(probe)?;
                    (get(&raw mut major) == 0)
                        .then(|| format!("{}.{}.{}", major / 1000, major / 100 % 10, major % 100))
                }
                Library::Nccl => {
                    let get = function_at::<unsafe extern "C" fn(*mut c_int) -> u32>(probe)?;
                    (get(&raw mut major) == 0)
                        .then(|| format!("{}.{}.{}", major / 10_000, major / 100 % 100, major % 100))
                }
                // A number that counts changes of the interface, such as 130000 for CUDA 13.0.
                Library::Cupti => {
                    let get = function_at::<unsafe extern "C" fn(*mut c_int) -> u32>(probe)?;
                    (get(&raw mut major) == 0).then(|| major.to_string())
                }
                Library::Nvml | Library::Nvtx => None,
            }
        }
    }
}

fn search(library: Library, environment: &SearchEnvironment) -> (Option<OpenLibrary>, SearchReport) {
    let mut report = SearchReport { library, found: None, tried: Vec::new() };
    let open = find(library, environment, &mut report.tried);
    let open = open.map(|(open, by)| {
        report.found = Some(Found { path: open.path.clone(), by, version: open.version(library) });
        open
    });
    (open, report)
}

fn find(
    library: Library,
    environment: &SearchEnvironment,
    tried: &mut Vec<Attempt>,
) -> Option<(OpenLibrary, FoundBy)> {
    let mut attempt = |file: &OsStr, flags: c_int, note: bool| {
        let result = OpenLibrary::load(file, library, flags | RTLD_NOW | RTLD_LOCAL);
        if let (Err(reason), true) = (&result, note) {
            tried.push(Attempt { place: file.to_string_lossy().into_owned(), reason: reason.clone() });
        }
        result.ok()
    };
    for name in library.file_names() {
        if let Some(open) = attempt(OsStr::new(name), libc::RTLD_NOLOAD, false) {
            return Some((open, FoundBy::AlreadyLoaded));
        }
    }
    if let Some((_, file)) = environment.overrides.iter().find(|(named, _)| *named == library) {
        return attempt(file.as_os_str(), 0, true).map(|open| (open, FoundBy::Override));
    }
    for name in library.file_names() {
        if let Some(open) = attempt(OsStr::new(name), 0, true) {
            return Some((open, FoundBy::LoaderPath));
        }
    }
    for (by, folder) in environment.folders_for(library) {
        let mut present = library.file_names().iter().map(|name| folder.join(name)).filter(|f| f.exists());
        if let Some(open) = present.find_map(|file| attempt(file.as_os_str(), 0, true)) {
            return Some((open, by));
        }
    }
    for (_, folder) in environment.folders_for(library) {
        tried.push(Attempt {
            place: folder.to_string_lossy().into_owned(),
            reason: if folder.is_dir() { "not in it" } else { "no such folder" }.to_owned(),
        });
    }
    None
}

/// Loads the libraries in the folder of `file` whose names begin with `prefix`, so that the loader finds them when another
/// library loads them by name.
pub(super) fn load_beside(file: &Path, prefix: &str) {
    for beside in file.parent().map(sorted_entries).unwrap_or_default() {
        let name = beside.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if name.starts_with(prefix) {
            // SAFETY: as in `OpenLibrary::load`: a part of the library that was just loaded from the same folder. If it
            // does not load, the library that needs it fails later, with a clear message.
            let loaded = unsafe { Loaded::open(Some(&beside), RTLD_NOW | RTLD_LOCAL) };
            std::mem::forget(loaded);
        }
    }
}

fn reason_of(error: &libloading::Error) -> String {
    // The loader's words are in the source; the outer error only says that `dlopen` failed.
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    if text.contains("cannot open shared object file") { "not there".to_owned() } else { text }
}

/// Returns the file that the code at `address` was loaded from.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null::<c_char>(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `dladdr` takes any address and fills `info`.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    // SAFETY: on success the name is a string of the loader, which lives as long as the library: forever.
    let name = (found != 0).then(|| unsafe { text_at(info.dli_fname) })?;
    (!name.is_empty()).then(|| PathBuf::from(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("create a folder");
        std::fs::write(path, b"not a library").expect("write a file");
    }

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("thalweg-search-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn variables_become_places_in_order() {
        let root = scratch("variables");
        touch(&root.join("venv/bin/python3"));
        let value = |name: &str| match name {
            "THALWEG_NVRTC_LIBRARY" => Some("/x/libnvrtc.so".into()),
            "CUDA_HOME" | "CUDA_PATH" => Some("/opt/cuda".into()),
            "VIRTUAL_ENV" => Some(root.join("venv").into_os_string()),
            "PATH" => Some(format!("relative:{}", root.join("venv/bin").display()).into()),
            "PYTHONPATH" => Some("/p:/q".into()),
            _ => None,
        };
        let environment = SearchEnvironment::from_variables(value);
        assert_eq!(environment.overrides, [(Library::Nvrtc, PathBuf::from("/x/libnvrtc.so"))]);
        assert_eq!(environment.toolkits, [PathBuf::from("/opt/cuda")], "the same root twice is one");
        assert_eq!(environment.packages, [PathBuf::from("/p"), PathBuf::from("/q")]);
        assert_eq!(environment.pythons[0], root.join("venv"));
        assert_eq!(environment.pythons.iter().filter(|p| **p == root.join("venv")).count(), 1);
        std::fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn nothing_is_looked_for_below_the_current_folder() {
        let value = |name: &str| match name {
            "CUDA_HOME" | "VIRTUAL_ENV" | "HOME" | "PATH" | "PYTHONPATH" => Some(".".into()),
            "CUDA_PATH" | "CONDA_PREFIX" => Some("cuda".into()),
            _ => None,
        };
        let SearchEnvironment { toolkits, packages, pythons, .. } = SearchEnvironment::from_variables(value);
        assert_eq!([toolkits, packages, pythons], [const { Vec::<PathBuf>::new() }; 3]);
    }

    #[test]
    fn wheels_of_cuda_13_come_before_older_ones() {
        let root = scratch("wheels");
        let packages = root.join("lib/python3.12/site-packages");
        touch(&packages.join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
        touch(&packages.join("nvidia/cu12/lib/libnvrtc.so.12"));
        touch(&packages.join("nvidia/cu13/lib/libnvrtc.so.13"));
        let environment = SearchEnvironment { pythons: vec![root.clone()], ..Default::default() };
        let folders = environment.folders_for(Library::Nvrtc);
        let expected = ["cu13", "cu12", "cuda_nvrtc"]
            .map(|wheel| (FoundBy::PythonWheel, packages.join("nvidia").join(wheel).join("lib")));
        assert_eq!(folders, expected);
        assert!(environment.folders_for(Library::Driver).is_empty(), "no wheel carries the driver");
        std::fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn a_file_that_is_no_library_is_reported_and_the_search_goes_on() {
        let root = scratch("damaged");
        touch(&root.join("lib64/libcudnn.so.9"));
        let environment = SearchEnvironment {
            toolkits: vec![root.clone()],
            folders: vec![root.join("nowhere")],
            ..Default::default()
        };
        let report = locate(Library::Cudnn, &environment);
        assert_eq!(report.found, None);
        let damaged = root.join("lib64/libcudnn.so.9");
        assert!(report.tried.iter().any(|a| Path::new(&a.place) == damaged && a.reason != "not there"));
        assert!(report.tried.iter().any(|a| Path::new(&a.place) == root.join("nowhere")));
        let text = report.error("cudnnGetVersion").to_string();
        for part in
            ["cuDNN was not found", "libcudnn.so.9", "nowhere", "pip install", "THALWEG_CUDNN_LIBRARY"]
        {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        std::fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn an_override_that_does_not_load_ends_the_search() {
        let environment = SearchEnvironment {
            overrides: vec![(Library::Cudnn, PathBuf::from("/nonexistent/libcudnn.so"))],
            folders: vec![PathBuf::from("/usr/lib")],
            ..Default::default()
        };
        let report = locate(Library::Cudnn, &environment);
        assert_eq!(report.tried.len(), 1, "{:?}", report.tried);
        assert_eq!(report.tried[0].place, "/nonexistent/libcudnn.so");
    }
}
