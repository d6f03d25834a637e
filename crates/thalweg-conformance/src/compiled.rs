//! Compilation by NVRTC of the CUDA C that tests pass to it. It needs no GPU.

use std::thread;

use thalweg_driver::cuda::{CompileOptions, Nvrtc, SearchEnvironment};

/// The option with which tests compile if they only check that the source compiles: it takes a fifth of the time, by
/// `-Ofast-compile`.
pub const QUICKLY: &str = "--Ofast-compile=max";

/// Compiles every unit, by name and source, for sm_80, sm_90 and sm_100. Without NVRTC it prints a message and does nothing.
///
/// # Panics
/// If the compiler refuses a unit, or reports anything about it.
pub fn compiler_accepts(units: &[(String, String)], options: &[&str]) {
    let Some(nvrtc) = nvrtc() else { return };
    let compile = |architecture: &str| {
        for (name, source) in units {
            // Only the optimizer distinguishes asynchronous products of warp groups from the code around them.
            let quickly = (!source.contains("wgmma")).then_some(&QUICKLY);
            let options = options_for(architecture, options.iter().chain(quickly));
            let compiled = nvrtc.compile(source, name, &options);
            let compiled = compiled.unwrap_or_else(|error| panic!("{name} for {architecture}: {error}"));
            assert!(compiled.log.is_empty(), "{name} for {architecture}: {}", compiled.log);
            assert!(!compiled.cubin.is_empty());
        }
    };
    thread::scope(|scope| {
        for architecture in ["sm_80", "sm_90a", "sm_100"] {
            let compile = &compile;
            scope.spawn(move || compile(architecture));
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
