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

/// Of the units with known instructions alone, one of so many is compiled to machine code.
const COMPILED_EVERY: usize = 5;

/// Compiles every unit, by name and source. A unit is compiled for all of the architectures if it has a line about the architecture
/// (instructions, `__CUDA_ARCH__`) that no unit before it has, and for the first one if it multiplies by warp groups. The others have
/// known instructions alone: the first and then every fifth is compiled for one of the architectures, in turn, and the rest to PTX, as
/// by [`compiler_reads`]. With `THALWEG_COMPILE_EVERYTHING` in the environment every unit is compiled for all of them. Without NVRTC it
/// prints a message and does nothing.
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
    let (mut read, mut repeats): (Vec<&(String, String)>, usize) = (Vec::new(), 0);
    for unit in units {
        let (name, source) = unit;
        let concerns = |line: &&str| ["asm", "__CUDA_ARCH__"].iter().any(|word| line.contains(word));
        // Instructions may name the dtype.
        let element = source.lines().find(|line| line.starts_with("#define ELEMENT_NAME"));
        let with_element = |line| (line, element.filter(|_| str::contains(line, "ELEMENT_NAME")));
        let lines = source.lines().filter(concerns).map(with_element);
        let is_new = lines.fold(false, |is, line| known.insert(line) | is);
        let chosen = if is_new || compiles_everything() {
            architectures
        } else if source.contains("wgmma") {
            &architectures[..1]
        } else {
            let (turn, rest) = (repeats / COMPILED_EVERY % architectures.len(), repeats % COMPILED_EVERY);
            repeats += 1;
            if rest > 0 {
                read.push(unit);
                continue;
            }
            &architectures[turn..=turn]
        };
        work.extend(chosen.iter().map(|&architecture| (name.as_str(), source.as_str(), architecture)));
    }
    in_parallel(&work, compile);
    read_all(&nvrtc, &read, options);
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
    read_all(&nvrtc, &units.iter().collect::<Vec<_>>(), options);
}

fn read_all(nvrtc: &Nvrtc, units: &[&(String, String)], options: &[&str]) {
    let options = options_for("compute_90a", options.iter().chain([&QUICKLY]));
    in_parallel(units, |(name, source)| {
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
