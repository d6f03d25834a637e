//! The kernels of a bundle: recorded from the programs that use them, then compiled for each architecture.
//!
//! The programs run on the simulated GPU with `THALWEG_RECORD_KERNELS` set. The planner chooses a kernel by shapes,
//! strides and dtypes alone, so a GPU is asked for the same ones. Native kernels are all added: the simulator runs them on
//! the host, and may not meet each dtype.
//!
//! What is compiled is kept in the target folder, so that the next bundle compiles only what changed. It travels packed,
//! since machine code shrinks to a fifth; the `run` script unpacks it at its first call.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use thalweg_runtime::{compiler, precompile};

use super::build::{BuiltProgram, Kind};
use crate::progress::Progress;

/// The source of a kernel.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Source {
    name: String,
    text: String,
}

/// Puts the kernels that the programs use into the bundle. Without a compiler it says so, and there are none.
pub fn collect(
    root: &Path,
    programs: &[BuiltProgram],
    architectures: &[String],
    out: &Path,
) -> Result<(), String> {
    let compiler = match compiler() {
        Ok(compiler) => compiler,
        Err(error) => {
            eprintln!(
                "the bundle goes without precompiled kernels, and will need NVRTC where it runs: {error}"
            );
            return Ok(());
        }
    };
    let known = compiler.architectures().map_err(|error| error.to_string())?;
    for architecture in architectures {
        if !known.iter().any(|known| format!("sm_{}{}", known.major, known.minor) == *architecture) {
            return Err(format!("NVRTC {} does not compile for {architecture}", compiler.version()));
        }
    }
    let record = root.join("target/bundle-record");
    record_all(programs, &record)?;
    let mut sources = read_sources(&record)?;
    sources.extend(thalweg_kernels::sources().into_iter().map(|(name, text)| Source { name, text }));
    sources.sort();
    sources.dedup();
    let kept = root.join("target/bundle-kernels");
    for entry in compile_all(&sources, architectures, &kept)? {
        let place = entry.strip_prefix(&kept).expect("an entry lies in its folder");
        super::copy(&entry, &out.join(FOLDER).join(place))?;
    }
    super::pack(out, FOLDER, "kernels.tar.xz", "xz -9")
}

/// The folder of the kernels within the bundle, before it is packed and after it is unpacked.
const FOLDER: &str = "kernels";

/// How a program is called so that it uses the kernels that it uses on a GPU; several ways, or none.
fn calls(program: &BuiltProgram) -> Vec<&'static [&'static str]> {
    match (program.kind, program.name.as_str()) {
        // It brings its own kernels, which need no compiler.
        (Kind::Example, "conformance") => vec![],
        // A whole epoch: its last batch is smaller than the others.
        (Kind::Example, "digits") => vec![&["--epochs", "1"], &["--epochs", "1", "--graph"]],
        // The kernels of every part; the page is of no use here.
        (Kind::Example, "graph_study") => vec![&["--rounds", "2", "--html", "/dev/null"]],
        (Kind::Example | Kind::Test, _) => vec![&[]],
        (Kind::Bench, _) => vec![&["--bench", "--json"]],
        (Kind::Tool, "thalweg") => vec![&["doctor"]],
        (Kind::Tool, _) => vec![],
    }
}

/// Runs the programs with recording on. One that fails is reported, and what it recorded is used.
fn record_all(programs: &[BuiltProgram], record: &Path) -> Result<(), String> {
    match fs::remove_dir_all(record) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{} cannot be emptied: {error}", record.display()));
        }
        _ => {}
    }
    let calls: Vec<_> = programs
        .iter()
        .flat_map(|program| calls(program).into_iter().map(move |call| (program, call)))
        .collect();
    let mut progress =
        Progress::new("programs run on the simulated GPU, to see which kernels they use", calls.len());
    for (done, (program, arguments)) in calls.iter().enumerate() {
        progress.show(done);
        let mut command = Command::new(&program.executable);
        if program.kind == Kind::Test {
            // Tests that only compile would take minutes and record nothing; without a compiler they skip themselves.
            command.env("THALWEG_NVRTC_LIBRARY", "/nonexistent/libnvrtc.so");
        }
        let output = command
            .args(*arguments)
            .current_dir(&program.folder)
            .env("THALWEG_RECORD_KERNELS", record)
            .env("THALWEG_DEVICE", "sim")
            .env_remove("THALWEG_TEST_DEVICE")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{} cannot be started: {error}", program.executable.display()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(20)..].join("\n");
            let BuiltProgram { package, name, .. } = program;
            eprintln!("{package} {name} {} failed ({}):\n{end}", arguments.join(" "), output.status);
        }
    }
    progress.show(calls.len());
    Ok(())
}

/// The recorded sources.
fn read_sources(record: &Path) -> Result<Vec<Source>, String> {
    let fail = |error: std::io::Error| format!("{} cannot be read: {error}", record.display());
    let mut files = Vec::new();
    match fs::read_dir(record) {
        Ok(entries) => {
            for entry in entries {
                files.push(entry.map_err(fail)?.path());
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    files.sort();
    files
        .iter()
        .map(|file| Ok(Source { name: name_of(file), text: fs::read_to_string(file).map_err(fail)? }))
        .collect()
}

/// The kernel's name in a file's name, which ends with a hash.
fn name_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    stem.rsplit_once('-').map_or(&*stem, |(name, _)| name).to_owned()
}

/// Compiles every source for every architecture, on all processors; gives the entries' files.
fn compile_all(sources: &[Source], architectures: &[String], kept: &Path) -> Result<Vec<PathBuf>, String> {
    let jobs: Vec<_> = sources
        .iter()
        .flat_map(|source| architectures.iter().map(move |architecture| (source, architecture)))
        .collect();
    let mut progress = Progress::new("kernels compiled", jobs.len());
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let (sender, next, jobs) = (sender.clone(), &next, &jobs);
            scope.spawn(move || {
                while let Some((source, architecture)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = precompile(kept, &source.name, &source.text, architecture)
                        .map_err(|error| format!("{} for {architecture}: {error}", source.name));
                    // After a failure the results are not read any more, and the rest need not be compiled.
                    if sender.send(result).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut entries = Vec::with_capacity(jobs.len());
        for result in results {
            entries.push(result?);
            progress.show(entries.len());
        }
        Ok(entries)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_no_part_of_a_name() {
        assert_eq!(name_of(Path::new("/r/add_f32-00ff.cu")), "add_f32");
    }
}
