//! NVIDIA's libraries: those that are installed, their locations, and the use of each one that is missing.

use thalweg::driver::cuda::{Library, SearchEnvironment, SearchReport, locate};

use super::{Finding, ItemStatus, Report};

/// The libraries that were found, for the decisions that depend on them.
pub struct Libraries {
    reports: Vec<SearchReport>,
}

impl Libraries {
    /// Returns whether a library was found.
    pub fn has(&self, library: Library) -> bool {
        self.reports.iter().any(|report| report.library == library && report.found.is_some())
    }
}

/// Looks for every library.
pub fn examine(environment: &SearchEnvironment, verbose: bool, report: &mut Report) -> Libraries {
    let reports: Vec<SearchReport> =
        Library::ALL.into_iter().map(|library| locate(library, environment)).collect();
    for search in &reports {
        let named = environment.overrides.iter().any(|(library, _)| *library == search.library);
        report.add(&finding(search, named, verbose));
    }
    if let Some(module) = kernel_module() {
        let finding = Finding::new(ItemStatus::Ok, "kernel_module", "kernel module", &module);
        report.add(&finding.value(module, "version"));
    }
    Libraries { reports }
}

/// Returns the name for people, and the name for scripts.
fn names(library: Library) -> (&'static str, &'static str) {
    match library {
        Library::Driver => ("CUDA driver", "library_cuda"),
        Library::Nvrtc => ("NVRTC", "library_nvrtc"),
        Library::CublasLt => ("cuBLASLt", "library_cublaslt"),
        Library::Nvml => ("NVML", "library_nvml"),
        Library::Cudnn => ("cuDNN", "library_cudnn"),
        Library::Cufft => ("cuFFT", "library_cufft"),
        Library::Cusolver => ("cuSOLVER", "library_cusolver"),
        Library::Cublas => ("cuBLAS", "library_cublas"),
        Library::Nccl => ("NCCL", "library_nccl"),
        Library::Cupti => ("CUPTI", "library_cupti"),
        Library::Nvtx => ("NVTX", "library_nvtx"),
        other => (other.name(), "library"),
    }
}

/// Returns the consequence of a missing library.
fn without(library: Library) -> &'static str {
    match library {
        Library::Driver => "no CUDA device can be used; the simulated GPU can",
        Library::Nvrtc => "no kernel can be compiled: on a GPU, precompiled kernels are used",
        Library::CublasLt => "on a GPU, our own matmul kernel is used, which is slower",
        Library::Nvml => "the driver is asked whether there is a GPU",
        Library::Cudnn => "on a GPU, attention and convolutions are our own kernels",
        Library::Cusolver | Library::Cublas => {
            "on a GPU, decompositions are kernels of our own, which are slower for large matrices"
        }
        Library::Cufft => "on a GPU, Fourier transforms are matrix products, which are slower",
        Library::Nccl => "no collectives over several GPUs",
        Library::Cupti => "the profiler takes its times from events around each command",
        Library::Nvtx => "other profilers see no ranges of the program",
        _ => "something may be slower",
    }
}

/// Returns whether a report should always explain how to get the library. NVML is part of the driver, which has its own finding.
fn is_worth_having(library: Library) -> bool {
    matches!(library, Library::Driver | Library::Nvrtc | Library::CublasLt)
}

fn finding(search: &SearchReport, named: bool, verbose: bool) -> Finding {
    let library = search.library;
    let (subject, name) = names(library);
    let Some(found) = &search.found else { return not_found(search, named, verbose) };
    let version = found.version.as_deref();
    let path = found.path.display().to_string();
    Finding::new(
        ItemStatus::Ok,
        name,
        subject,
        format!("{}, {}", version.unwrap_or("version unknown"), found.by),
    )
    .value(version.map(str::to_owned), "version")
    .note(&path)
    .member("path", path)
    .member("found", found.by.to_string())
}

fn not_found(search: &SearchReport, named: bool, verbose: bool) -> Finding {
    let library = search.library;
    let (subject, name) = names(library);
    // A file that exists and does not load is always mentioned; a file that does not exist only with `--verbose`.
    let absent = ["not there", "not in it", "no such folder"];
    let place = |attempt: &thalweg::driver::cuda::Attempt| format!("{} ({})", attempt.place, attempt.reason);
    let (plain, odd): (Vec<_>, Vec<_>) =
        search.tried.iter().partition(|attempt| absent.contains(&attempt.reason.as_str()));
    let tried: Vec<String> = search.tried.iter().map(place).collect();
    let mut finding = if named {
        let text = format!("{} is set, and what it names cannot be loaded", library.variable());
        Finding::new(ItemStatus::Failed, name, subject, text)
    } else {
        Finding::new(ItemStatus::Missing, name, subject, without(library))
    };
    for attempt in odd.into_iter().chain(plain.into_iter().filter(|_| verbose || named)) {
        finding = finding.note(format!("tried {}", place(attempt)));
    }
    let mut advice = if named {
        format!("correct {} or unset it", library.variable())
    } else {
        format!("to get it: {}", library.advice())
    };
    if verbose && !named {
        advice.push_str(&format!("; or set {} to its file", library.variable()));
    }
    if verbose || named || is_worth_having(library) {
        finding = finding.note(&advice);
    }
    finding.value((), "version").member("advice", advice).member("tried", tried.join("; "))
}

/// Returns the version of NVIDIA's kernel module, if it can be read.
fn kernel_module() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug 27 …"
    let is_version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}
