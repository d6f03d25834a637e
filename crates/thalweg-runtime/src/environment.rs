//! The environment variables of this crate, read once, at the boundary.
//!
//! All other code is passed an [`Environment`] value, so that tests and embedding programs decide for themselves.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use thalweg_memory::Settings;
use thalweg_profiler::ProgramProfile;

use crate::{Error, Result};

/// The settings that the environment passes to a checked program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedProgram {
    /// The seed, `THALWEG_SIM_SEED`.
    pub seed: u64,
    /// Whether faults are injected, `THALWEG_SIM_FAULTS=1`.
    pub faults: bool,
    /// Whether no command touches memory, `THALWEG_SIM_ORDER_ONLY=1`.
    pub order_only: bool,
    /// Whether freed memory is held back, `THALWEG_SIM_QUARANTINE=1`.
    pub quarantine: bool,
    /// The time limit, `THALWEG_SIM_TIMEOUT`, in seconds.
    pub time_limit: Option<Duration>,
    /// The file of the report, `THALWEG_SIM_REPORT`.
    pub report: Option<PathBuf>,
}

/// The greatest number of threads that compile kernels unless more are requested.
const MOST_COMPILE_THREADS: usize = 8;

/// The settings of the environment variables. [`Environment::get`] reads them once per process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Environment {
    /// `CUDA_LAUNCH_BLOCKING=1`: wait for each command, so that an asynchronous error names the call that caused it.
    pub launch_blocking: bool,
    /// `THALWEG_DEVICE`: the device that [`crate::Device::best`] returns: `cuda`, `sim`, `cuda:1` …
    pub device: Option<String>,
    /// The folder of compiled kernels: `THALWEG_CACHE_DIR`, else `XDG_CACHE_HOME/thalweg`, else `HOME/.cache/thalweg`. `None` if
    /// no kernels are kept (no home, or `THALWEG_CACHE_DIR` set to nothing).
    pub cache_directory: Option<PathBuf>,
    /// Folders of precompiled kernels that are searched before the compiler is called: those in `THALWEG_PRECOMPILED_KERNELS`
    /// (separated as in `PATH`), and `kernels` next to the program.
    pub precompiled_directories: Vec<PathBuf>,
    /// `THALWEG_RECORD_KERNELS`: a folder into which the CUDA C of every kernel that a device loads is written, simulated devices
    /// included. The kernels of a run can then be compiled for GPUs that this machine lacks ([`crate::precompile`]).
    pub kernel_record: Option<PathBuf>,
    /// `THALWEG_EXPLAIN=1`: writes to standard error, once per operator and shape, the form of kernel that was chosen, and the
    /// reason.
    pub explain: bool,
    /// `THALWEG_EXPLAIN=compile`: writes to standard error, once per segment of a compiled function, what became one kernel, and why
    /// other loops did not.
    pub explain_compile: bool,
    /// `THALWEG_EXPLAIN_FILE`: a file to which the same is appended, one JSON object per segment, for `thalweg explain` to draw.
    pub explain_file: Option<PathBuf>,
    /// `THALWEG_COMPILE_THREADS`: the number of threads that compile kernels at the same time: those of one segment of a compiled
    /// function, which are known together, and, on all threads but one, those of gradients whose forward pass runs (default: one for
    /// each core, and 8 at most; with 1, none is compiled ahead).
    pub compile_threads: usize,
    /// `THALWEG_RECOMPUTE_BYTES`: the least bytes of a saved result that a compiled function computes again instead of keeping it.
    pub recompute_bytes: Option<u64>,
    /// `THALWEG_SIM_DEVICES`: the number of simulated GPUs (default 1).
    pub sim_devices: Option<u32>,
    /// `THALWEG_SIM_MEMORY_BYTES`: memory of each simulated GPU.
    pub sim_memory_bytes: Option<u64>,
    /// `THALWEG_META_MEMORY_BYTES`: memory of the [meta device](crate::Device::meta).
    pub meta_memory_bytes: Option<u64>,
    /// `THALWEG_SIM_SEED`, `THALWEG_SIM_FAULTS`, `THALWEG_SIM_REPORT`: the simulated GPUs of this process are controlled and
    /// watched, as set by `thalweg sim`.
    pub sim_check: Option<CheckedProgram>,
    /// `THALWEG_PROFILE`, `THALWEG_PROFILE_ROWS`, `THALWEG_PROFILE_MEMORY`: the program's work on its devices is recorded and
    /// written to that file when it exits, as set by `thalweg profile`.
    pub profile: Option<ProgramProfile>,
    /// `THALWEG_SEED`: the one seed that a [check](crate::sim::Check) tries. A value that is not a number is ignored.
    pub check_seed: Option<u64>,
    /// `THALWEG_SEEDS`: the number of seeds that a check tries, starting at 0. A value that is not a number is ignored.
    pub check_seeds: Option<u64>,
    /// `PYTORCH_NVML_BASED_CUDA_CHECK=1`: [`crate::is_available`] must not initialise the driver, which would break `fork`.
    /// Otherwise the driver is initialised.
    pub nvml_based_check: bool,
    /// The settings of the allocator: `PYTORCH_CUDA_ALLOC_CONF`, else `PYTORCH_ALLOC_CONF`, and `PYTORCH_NO_CUDA_MEMORY_CACHING`.
    pub allocator: Settings,
    /// The variables that could not be parsed, one sentence per variable. The devices that these variables apply to refuse to
    /// open.
    pub mistakes: Vec<String>,
}

impl Environment {
    /// Returns the process's environment, as it was at the first call.
    pub fn get() -> &'static Self {
        static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
        ENVIRONMENT.get_or_init(|| Self::from_variables(|name| std::env::var(name).ok()))
    }

    /// Creates the environment from a lookup function.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let flag = |name: &str| variable(name).is_some_and(|value| value == "1");
        let cache_directory = cache_directory(&variable);
        let precompiled_directories = precompiled(variable("THALWEG_PRECOMPILED_KERNELS"));
        let mut mistakes = Vec::new();
        let mut number = |name: &str| -> Option<u64> {
            let value = variable(name).filter(|value| !value.is_empty())?;
            let parsed = value.parse().ok();
            if parsed.is_none() {
                mistakes.push(format!("{name}={value} is not a number: write digits, or leave it out"));
            }
            parsed
        };
        // The driver refuses a number that is out of its range, so a number that is too large may be clamped.
        let sim_devices = number("THALWEG_SIM_DEVICES").map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let compile_threads = number("THALWEG_COMPILE_THREADS")
            .map_or_else(|| cores().min(MOST_COMPILE_THREADS), |count| count.clamp(1, 256) as usize);
        let [recompute_bytes, sim_memory_bytes, meta_memory_bytes] =
            ["RECOMPUTE", "SIM_MEMORY", "META_MEMORY"].map(|name| number(&format!("THALWEG_{name}_BYTES")));
        let time_limit = number("THALWEG_SIM_TIMEOUT").map(Duration::from_secs);
        let sim_check = number("THALWEG_SIM_SEED").map(|seed| CheckedProgram {
            seed,
            faults: flag("THALWEG_SIM_FAULTS"),
            order_only: flag("THALWEG_SIM_ORDER_ONLY"),
            quarantine: flag("THALWEG_SIM_QUARANTINE"),
            time_limit,
            report: variable("THALWEG_SIM_REPORT").filter(|path| !path.is_empty()).map(PathBuf::from),
        });
        let profile = profile_of(&variable, number("THALWEG_PROFILE_ROWS").unwrap_or(0));
        let allocator = Settings::from_environment(&variable).unwrap_or_else(|error| {
            mistakes.push(error.to_string());
            Settings::default()
        });
        Self {
            launch_blocking: flag("CUDA_LAUNCH_BLOCKING"),
            device: variable("THALWEG_DEVICE").filter(|name| !name.is_empty()),
            cache_directory,
            precompiled_directories,
            kernel_record: variable("THALWEG_RECORD_KERNELS")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            explain: flag("THALWEG_EXPLAIN"),
            explain_compile: variable("THALWEG_EXPLAIN").is_some_and(|value| value == "compile"),
            explain_file: variable("THALWEG_EXPLAIN_FILE").filter(|path| !path.is_empty()).map(PathBuf::from),
            compile_threads,
            recompute_bytes,
            sim_devices,
            sim_memory_bytes,
            meta_memory_bytes,
            sim_check,
            profile,
            check_seed: variable("THALWEG_SEED").and_then(|seed| seed.parse().ok()),
            check_seeds: variable("THALWEG_SEEDS").and_then(|count| count.parse().ok()),
            nvml_based_check: flag("PYTORCH_NVML_BASED_CUDA_CHECK"),
            allocator,
            mistakes,
        }
    }

    /// Returns an error if a variable was not understood.
    pub(crate) fn check(&self) -> Result<()> {
        if self.mistakes.is_empty() { Ok(()) } else { Err(Error::invalid(self.mistakes.join("; "))) }
    }
}

/// Returns the recording that `THALWEG_PROFILE` requests, with `rows` rows in its table.
fn profile_of(variable: impl Fn(&str) -> Option<String>, rows: u64) -> Option<ProgramProfile> {
    let path = variable("THALWEG_PROFILE").filter(|path| !path.is_empty())?;
    Some(ProgramProfile {
        path: PathBuf::from(path),
        rows: usize::try_from(rows).unwrap_or(usize::MAX),
        memory: variable("THALWEG_PROFILE_MEMORY").is_some_and(|value| value == "1"),
    })
}

/// Returns the folder of the caches: `None` if the variable is empty, or if there is no absolute folder for caches.
fn cache_directory(variable: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    if let Some(path) = variable("THALWEG_CACHE_DIR") {
        return Some(path).filter(|path| !path.is_empty()).map(PathBuf::from);
    }
    // The XDG specification requires that a relative path is ignored.
    let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
    let of_system = variable("XDG_CACHE_HOME").and_then(|path| absolute(path.into()));
    let of_home = || variable("HOME").and_then(|home| absolute(PathBuf::from(home).join(".cache")));
    of_system.or_else(of_home).map(|base| base.join("thalweg"))
}

/// Returns the folders of a list as in `PATH`, then `kernels` next to the program.
fn precompiled(folders: Option<String>) -> Vec<PathBuf> {
    let beside_program = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.join("kernels")))
        .filter(|folder| folder.is_dir());
    let mut directories: Vec<PathBuf> = folders
        .map(|folders| {
            std::env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty()).collect()
        })
        .unwrap_or_default();
    directories.extend(beside_program.filter(|folder| !directories.contains(folder)));
    directories
}
