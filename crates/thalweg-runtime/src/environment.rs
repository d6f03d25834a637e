//! The environment variables that matter here, read once, at the edge.
//!
//! Everything below takes an [`Environment`] value, so that tests and embedding programs decide for themselves.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use thalweg_memory::Settings;
use thalweg_profiler::ProgramProfile;

use crate::{Error, Result};

/// The settings that the environment gives to a checked program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedProgram {
    /// `THALWEG_SIM_SEED`.
    pub seed: u64,
    /// `THALWEG_SIM_FAULTS=1`: lets things fail as well.
    pub faults: bool,
    /// `THALWEG_SIM_ORDER_ONLY=1`: no command touches memory.
    pub order_only: bool,
    /// `THALWEG_SIM_QUARANTINE=1`: freed memory is held back.
    pub quarantine: bool,
    /// `THALWEG_SIM_TIMEOUT`, in seconds.
    pub time_limit: Option<Duration>,
    /// `THALWEG_SIM_REPORT`.
    pub report: Option<PathBuf>,
}

/// The settings of the environment variables. [`Environment::get`] reads it once per process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Environment {
    /// `CUDA_LAUNCH_BLOCKING=1`: wait for each command, so that an asynchronous error names the very call.
    pub launch_blocking: bool,
    /// `THALWEG_DEVICE`: `cuda`, `sim`, `cuda:1` …; which device [`crate::Device::best`] picks.
    pub device: Option<String>,
    /// The place where compiled kernels are kept: `THALWEG_CACHE_DIR`, else `XDG_CACHE_HOME/thalweg`, else
    /// `HOME/.cache/thalweg`. `None` keeps none (no home, or `THALWEG_CACHE_DIR` set to nothing).
    pub cache_directory: Option<PathBuf>,
    /// Folders of precompiled kernels that are looked in before the compiler is asked: those in
    /// `THALWEG_PRECOMPILED_KERNELS` (separated as in `PATH`), and `kernels` beside the program.
    pub precompiled_directories: Vec<PathBuf>,
    /// `THALWEG_RECORD_KERNELS`: a folder into which the CUDA C of every kernel that a device loads is written, simulated
    /// devices included. What a run needs can so be compiled for GPUs that this machine lacks ([`crate::precompile`]).
    pub kernel_record: Option<PathBuf>,
    /// `THALWEG_EXPLAIN=1`: writes to standard error, once per operator and shape, which form of kernel was chosen, and why.
    pub explain: bool,
    /// `THALWEG_SIM_DEVICES`: how many simulated GPUs there are (default 1).
    pub sim_devices: Option<u32>,
    /// `THALWEG_SIM_MEMORY_BYTES`: memory of each simulated GPU.
    pub sim_memory_bytes: Option<u64>,
    /// `THALWEG_META_MEMORY_BYTES`: memory of the [meta device](crate::Device::meta).
    pub meta_memory_bytes: Option<u64>,
    /// `THALWEG_SIM_SEED`, `THALWEG_SIM_FAULTS`, `THALWEG_SIM_REPORT`: the simulated GPUs of this process are controlled and
    /// watched, as `thalweg sim` asks for.
    pub sim_check: Option<CheckedProgram>,
    /// `THALWEG_PROFILE`, `THALWEG_PROFILE_ROWS`, `THALWEG_PROFILE_MEMORY`: what the program does on its devices is recorded and written to that file when
    /// it exits, as `thalweg profile` asks for.
    pub profile: Option<ProgramProfile>,
    /// `THALWEG_SEED`: the one seed that a [check](crate::sim::Check) tries. What is not a number is left alone.
    pub check_seed: Option<u64>,
    /// `THALWEG_SEEDS`: how many seeds a check tries, from 0 on. What is not a number is left alone.
    pub check_seeds: Option<u64>,
    /// `PYTORCH_NVML_BASED_CUDA_CHECK=1`: [`crate::is_available`] must not initialise the driver, which would break
    /// `fork`. Without it the answer is the driver's own.
    pub nvml_based_check: bool,
    /// The settings of the allocator: `PYTORCH_CUDA_ALLOC_CONF`, else `PYTORCH_ALLOC_CONF`, and `PYTORCH_NO_CUDA_MEMORY_CACHING`.
    pub allocator: Settings,
    /// The variables that were not understood, a sentence for each. The devices that they are about refuse to open.
    pub mistakes: Vec<String>,
}

impl Environment {
    /// Returns the process's environment, as it was at the first call.
    pub fn get() -> &'static Self {
        static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
        ENVIRONMENT.get_or_init(|| Self::from_variables(|name| std::env::var(name).ok()))
    }

    /// Creates the environment that a lookup describes.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let flag = |name: &str| variable(name).is_some_and(|value| value == "1");
        let cache_directory = match variable("THALWEG_CACHE_DIR") {
            Some(path) if path.is_empty() => None,
            Some(path) => Some(PathBuf::from(path)),
            // The XDG specification: a relative path is to be ignored.
            None => variable("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
                .or_else(|| {
                    variable("HOME")
                        .map(|home| PathBuf::from(home).join(".cache"))
                        .filter(|path| path.is_absolute())
                })
                .map(|base| base.join("thalweg")),
        };
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
        // The driver refuses a number that is out of its range, so one that is too large may be cut.
        let sim_devices = number("THALWEG_SIM_DEVICES").map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        let sim_memory_bytes = number("THALWEG_SIM_MEMORY_BYTES");
        let meta_memory_bytes = number("THALWEG_META_MEMORY_BYTES");
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

/// Returns where `THALWEG_PROFILE` wants the program recorded, with so many rows in its table.
fn profile_of(variable: impl Fn(&str) -> Option<String>, rows: u64) -> Option<ProgramProfile> {
    let path = variable("THALWEG_PROFILE").filter(|path| !path.is_empty())?;
    Some(ProgramProfile {
        path: PathBuf::from(path),
        rows: usize::try_from(rows).unwrap_or(usize::MAX),
        memory: variable("THALWEG_PROFILE_MEMORY").is_some_and(|value| value == "1"),
    })
}

/// Returns the folders of a list as in `PATH`, then `kernels` beside the program.
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
