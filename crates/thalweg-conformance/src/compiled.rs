//! Compilation by NVRTC of the CUDA C that tests pass to it. It needs no GPU.

use std::collections::HashSet;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use thalweg_driver::cuda::{CompileOptions, Nvrtc, SearchEnvironment};

/// The option with which tests compile if they only check that the source compiles: it takes a fifth of the time, by
/// `-Ofast-compile`.
const QUICKLY: &str = "--Ofast-compile=max";

/// The environment variable with which tests compile every unit for every architecture, to machine code.
const EVERYTHING: &str = "THALWEG_COMPILE_EVERYTHING";

/// Returns whether the environment has `THALWEG_COMPILE_EVERYTHING`.
pub fn compiles_everything() -> bool {
    std::env::var_os(EVERYTHING).is_some_and(|value| !value.is_empty())
}

/// The architectures for which kernels are compiled. Only the first one has products of warp groups.
pub const ARCHITECTURES: [&str; 3] = ["sm_90a", "sm_80", "sm_100"];

/// Compiles every unit, by name and source. A unit is compiled for all of the architectures if it has a line about the architecture
/// (instructions, `__CUDA_ARCH__`) that no unit before it has, and for one of them otherwise: for the first one if it multiplies by
/// warp groups, else in turn. With `THALWEG_COMPILE_EVERYTHING` in the environment every unit is compiled for all of them. Without
/// NVRTC it prints a message and does nothing.
///
/// # Panics
/// If the compiler refuses a unit, or reports anything about it.
pub fn compiler_accepts(architectures: &[&str], units: &[(String, String)], options: &[&str]) {
    let Some(nvrtc) = nvrtc() else { return };
    let compile = |(name, source, architecture): (&str, &str, &str)| {
        // Only the optimizer distinguishes asynchronous products of warp groups, which one architecture has, from the code around
        // them.
        let multiplies_by_groups = architecture == ARCHITECTURES[0] && source.contains("wgmma");
        let quickly = (!multiplies_by_groups).then_some(&QUICKLY);
        let options = options_for(architecture, options.iter().chain(quickly));
        let compiled = nvrtc.compile(source, name, &options);
        let compiled = compiled.unwrap_or_else(|error| panic!("{name} for {architecture}: {error}"));
        assert!(compiled.log.is_empty(), "{name} for {architecture}: {}", compiled.log);
        assert!(!compiled.cubin.is_empty());
    };
    let mut known: HashSet<(&str, Option<&str>)> = HashSet::new();
    let mut work: Vec<(&str, &str, &str)> = Vec::new();
    for (number, (name, source)) in units.iter().enumerate() {
        let concerns = |line: &&str| ["asm", "__CUDA_ARCH__"].iter().any(|word| line.contains(word));
        // Instructions may name the dtype.
        let element = source.lines().find(|line| line.starts_with("#define ELEMENT_NAME"));
        let with_element = |line| (line, element.filter(|_| str::contains(line, "ELEMENT_NAME")));
        let lines = source.lines().filter(concerns).map(with_element);
        let is_new = lines.fold(false, |is, line| known.insert(line) | is);
        let turn = if source.contains("wgmma") { 0 } else { number % architectures.len() };
        let is_for_all = is_new || compiles_everything();
        let chosen = if is_for_all { architectures } else { &architectures[turn..=turn] };
        work.extend(chosen.iter().map(|&architecture| (name.as_str(), source.as_str(), architecture)));
    }
    in_parallel(&work, compile);
}

/// Calls a function for each item, on one thread per core.
fn in_parallel<T: Copy + Sync>(items: &[T], work: impl Fn(T) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, NonZero::get) {
            scope.spawn(|| {
                while let Some(&item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// Compiles every unit, by name and source, to PTX, which takes two fifths of the time: what is found are the errors of CUDA C++, and
/// not those of instructions. Without NVRTC it prints a message and does nothing.
///
/// # Panics
/// If the compiler refuses a unit, or reports anything about it.
pub fn compiler_reads(units: &[(String, String)], options: &[&str]) {
    let Some(nvrtc) = nvrtc() else { return };
    let options = options_for("compute_90a", options.iter().chain([&QUICKLY]));
    let units: Vec<&(String, String)> = units.iter().collect();
    in_parallel(&units, |(name, source)| {
        let warnings =
            nvrtc.warnings(source, name, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(warnings.is_empty(), "{name}: {warnings}");
    });
}

fn nvrtc() -> Option<Nvrtc> {
    Nvrtc::load(&SearchEnvironment::from_process()).map_err(|error| println!("skipped: {error}")).ok()
}

fn options_for<'a>(architecture: &str, extra: impl Iterator<Item = &'a &'a str>) -> CompileOptions {
    let extra = extra.map(|&option| option.to_owned()).collect();
    CompileOptions { fmad: false, extra, ..CompileOptions::new(architecture) }
}
