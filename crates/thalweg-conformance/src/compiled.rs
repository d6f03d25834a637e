//! Compilation by NVRTC of the CUDA C that tests pass to it. It needs no GPU.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use thalweg_driver::cuda::{CompileOptions, Nvrtc, SearchEnvironment};

/// The option with which tests compile if they only check that the source compiles: it takes a fifth of the time, by
/// `-Ofast-compile`.
pub const QUICKLY: &str = "--Ofast-compile=max";

/// Compiles every unit, by name and source, for sm_90a, and those that name instructions or ask for the architecture for sm_80 and
/// sm_100 too. Without NVRTC it prints a message and does nothing.
///
/// # Panics
/// If the compiler refuses a unit, or reports anything about it.
pub fn compiler_accepts(units: &[(String, String)], options: &[&str]) {
    let Some(nvrtc) = nvrtc() else { return };
    let compile = |name: &str, source: &str, architecture: &str| {
        // Only the optimizer distinguishes asynchronous products of warp groups from the code around them.
        let quickly = (!source.contains("wgmma")).then_some(&QUICKLY);
        let options = options_for(architecture, options.iter().chain(quickly));
        let compiled = nvrtc.compile(source, name, &options);
        let compiled = compiled.unwrap_or_else(|error| panic!("{name} for {architecture}: {error}"));
        assert!(compiled.log.is_empty(), "{name} for {architecture}: {}", compiled.log);
        assert!(!compiled.cubin.is_empty());
    };
    let work: Vec<(&str, &str, &str)> = (units.iter())
        .flat_map(|(name, source)| {
            let differs = ["asm", "__CUDA_ARCH__"].iter().any(|word| source.contains(word));
            let others: &[&str] = if differs { &["sm_80", "sm_100"] } else { &[] };
            let architectures = others.iter().copied().chain(["sm_90a"]);
            architectures.map(move |architecture| (name.as_str(), source.as_str(), architecture))
        })
        .collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, NonZero::get) {
            scope.spawn(|| {
                while let Some((name, source, architecture)) = work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    compile(name, source, architecture);
                }
            });
        }
    });
}

/// Compiles every unit, by name and source, to PTX, which takes a tenth of the time. Without NVRTC it prints a message and does
/// nothing.
///
/// # Panics
/// If the compiler refuses a unit, or reports anything about it.
pub fn compiler_reads(units: &[(String, String)], options: &[&str]) {
    let Some(nvrtc) = nvrtc() else { return };
    let options = options_for("compute_90a", options.iter().chain([&QUICKLY]));
    for (name, source) in units {
        let warnings =
            nvrtc.warnings(source, name, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(warnings.is_empty(), "{name}: {warnings}");
    }
}

fn nvrtc() -> Option<Nvrtc> {
    Nvrtc::load(&SearchEnvironment::from_process()).map_err(|error| println!("skipped: {error}")).ok()
}

fn options_for<'a>(architecture: &str, extra: impl Iterator<Item = &'a &'a str>) -> CompileOptions {
    let extra = extra.map(|&option| option.to_owned()).collect();
    CompileOptions { fmad: false, extra, ..CompileOptions::new(architecture) }
}
