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
    let nvrtc = match Nvrtc::load(&SearchEnvironment::from_process()) {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let compile = |architecture: &str| {
        for (name, source) in units {
            // Only the optimizer distinguishes asynchronous products of warp groups from the code around them.
            let quickly = (!source.contains("wgmma")).then_some(&QUICKLY);
            let extra = options.iter().chain(quickly).map(|&option| option.to_owned()).collect();
            let options = CompileOptions { fmad: false, extra, ..CompileOptions::new(architecture) };
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
