//! `thalweg precompile`: machine code of kernels, for machines that have no compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use clap::Args;
use thalweg::kernels;
use thalweg::progress::Progress;
use thalweg::runtime::{compiler, pack_kernels, precompile};

use crate::output::{Failure, Output};

/// Compiles kernels ahead of time, for GPU machines without a compiler
#[derive(Args)]
#[command(after_help = "\
Each program chooses its kernels by shapes, strides and dtypes. To learn which,
run it with THALWEG_RECORD_KERNELS=FOLDER, on a GPU or on the simulated one.
Where the program runs, THALWEG_PRECOMPILED_KERNELS names the folder that is
written here; a folder `kernels` beside the program is found without it.

The file of each kernel is printed, also of those that were there already. It
needs NVRTC, and no GPU.

Examples:
  THALWEG_RECORD_KERNELS=used THALWEG_DEVICE=sim target/release/train
  thalweg precompile used --archs sm_90 --out kernels")]
pub struct PrecompileArgs {
    /// The folder with the kernels that a program recorded
    #[arg(value_name = "FOLDER")]
    recorded: PathBuf,
    /// The architectures: sm_80, sm_90, ...
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    archs: Vec<String>,
    /// The folder that gets the machine code
    #[arg(long, value_name = "FOLDER", default_value = "kernels")]
    out: PathBuf,
    /// Also pack them into this folder, in one compressed file for each architecture
    #[arg(long, value_name = "FOLDER")]
    pack: Option<PathBuf>,
    /// Those too that are not loops (products, attention, sorts, ...), for each dtype
    #[arg(long)]
    native: bool,
}

/// The source of a kernel.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Source {
    name: String,
    text: String,
}

/// Runs the command.
pub fn run(arguments: &PrecompileArgs) -> Result<ExitCode, Failure> {
    let compiler = compiler().map_err(|error| Failure(error.to_string()))?;
    let known = compiler.architectures().map_err(|error| Failure(error.to_string()))?;
    let is_known = |wanted: &str| known.iter().any(|one| format!("sm_{}{}", one.major, one.minor) == wanted);
    if let Some(other) = arguments.archs.iter().find(|wanted| !is_known(wanted)) {
        let version = compiler.version();
        return Err(Failure(format!("NVRTC {version} does not compile for {other}; name one like sm_90")));
    }
    let mut sources = read_sources(&arguments.recorded)?;
    if arguments.native {
        sources.extend(kernels::sources().into_iter().map(|(name, text)| Source { name, text }));
    }
    sources.sort();
    sources.dedup();
    let output = Output::standard();
    let files = compile_all(&sources, &arguments.archs, &arguments.out)?;
    for file in &files {
        output.text(&format!("{}\n", file.display()));
    }
    for architecture in arguments.archs.iter().filter(|_| arguments.pack.is_some()) {
        let folder = arguments.pack.as_deref().expect("it is there");
        let of_this = arguments.out.join(architecture);
        let files: Vec<PathBuf> = files.iter().filter(|file| file.starts_with(&of_this)).cloned().collect();
        let pack = pack_kernels(&files, architecture, folder)
            .map_err(|error| Failure(format!("the kernels for {architecture} cannot be packed: {error}")))?;
        output.text(&format!("{}\n", pack.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the sources that a program recorded.
fn read_sources(folder: &Path) -> Result<Vec<Source>, Failure> {
    let fail = |error: std::io::Error| Failure(format!("{} cannot be read: {error}", folder.display()));
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let file = entry.map_err(fail)?.path();
        sources.push(Source { name: name_of(&file), text: fs::read_to_string(&file).map_err(fail)? });
    }
    Ok(sources)
}

/// Returns the kernel's name from a file's name, which ends with a hash.
fn name_of(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    stem.rsplit_once('-').map_or(&*stem, |(name, _)| name).to_owned()
}

/// Compiles every source for every architecture, on all processors; returns the files in the order of the sources.
fn compile_all(sources: &[Source], architectures: &[String], out: &Path) -> Result<Vec<PathBuf>, Failure> {
    let jobs: Vec<_> = sources
        .iter()
        .flat_map(|source| architectures.iter().map(move |architecture| (source, architecture)))
        .collect();
    let mut progress = Progress::new(jobs.len() as u64);
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let (sender, next, jobs) = (sender.clone(), &next, &jobs);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((source, architecture)) = jobs.get(number) else { return };
                    let result = precompile(out, &source.name, &source.text, architecture)
                        .map(|file| (number, file))
                        .map_err(|error| Failure(format!("{} for {architecture}: {error}", source.name)));
                    // After a failure the results are no longer read, and the rest need not be compiled.
                    if sender.send(result).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut files = Vec::with_capacity(jobs.len());
        for result in results {
            files.push(result?);
            if progress.is_due(files.len() as u64) {
                progress.show(files.len() as u64, "kernels compiled");
            }
        }
        files.sort();
        Ok(files.into_iter().map(|(_, file)| file).collect())
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
