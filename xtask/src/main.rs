//! Chores of this repository that are more than a line of shell: `cargo xtask bundle`, `cargo xtask wheel`, `cargo xtask python`,
//! `cargo xtask stubs`, `cargo xtask planted` and `cargo xtask tidy`.
//!
//! Exit statuses: 0 is success, 1 is that the chore failed or found something, 2 is that it was called wrongly.
#![forbid(unsafe_code)]

mod bundle;
mod planted;
mod progress;
mod python;
mod tidy;
mod wheel;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask bundle [--out FOLDER] [--no-kernels] [--archs sm_80,sm_90,...]
       cargo xtask wheel [--torch FOLDER]... [--cuda FOLDER] [--out FOLDER] [--objects-only]
       cargo xtask wheel thalweg [--out FOLDER] [--profile NAME]
       cargo xtask python [FILTER]...
       cargo xtask stubs
       cargo xtask planted [FILTER]
       cargo xtask tidy

  bundle   builds tests, benches, examples and tools in release, and collects
           them with precompiled kernels in one folder that runs on GPU machines
           without Rust
    --out FOLDER    where to (default: bundle); what was there is replaced
    --no-kernels    without precompiled kernels
    --archs LIST    what kernels are compiled for (default: sm_80,sm_90,sm_100)

  wheel    builds the Python wheel `thalweg-torch` with a C++ compiler and maturin
    --torch FOLDER  a PyTorch (the folder of the package) that the wheel is to
                    have a native class for; may be repeated. Without it the
                    wheel has the hooks only
    --cuda FOLDER   CUDA's runtime: a folder with include/ and lib/
    --out FOLDER    where to (default: target/wheels)
    --objects-only  the shared libraries beside the package, no wheel; and what
                    the allocation bench loads

  wheel thalweg
           builds the Python wheel `thalweg` (`import thalweg`)
    --out FOLDER    where to (default: target/wheels)
    --profile NAME  how the extension module is compiled (default: bundle)

  python   builds the extension module beside the Python package, and runs the
           package's tests; with FILTER those with this in their names

  stubs    writes the package's type stubs from the operator table

  planted  plants bugs in copies of the allocators and the runtime, one at a
           time, and looks whether the simulated GPU catches each; with FILTER
           those with this in their names

  tidy     checks sizes of files and functions, and what no source may contain
";

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let Some((command, rest)) = arguments.split_first() else { return complain("which chore?") };
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let outcome = match command.as_str() {
        "bundle" => match bundle::Options::parse(rest) {
            Ok(options) => bundle::run(&options),
            Err(text) => return complain(&text),
        },
        "wheel" if rest.first().is_some_and(|name| name == "thalweg") => python::wheel(&rest[1..]),
        "python" => python::test(rest),
        "stubs" if rest.is_empty() => python::stubs(),
        "stubs" => return complain("stubs takes no arguments"),
        "wheel" => match wheel::Options::parse(rest) {
            Ok(options) => wheel::run(&options),
            Err(text) => return complain(&text),
        },
        "planted" if rest.len() <= 1 => planted::run(rest.first().map(String::as_str)),
        "planted" => return complain("planted takes one filter"),
        "tidy" if rest.is_empty() => tidy::run(),
        "tidy" => return complain("tidy takes no arguments"),
        other => return complain(&format!("there is no chore `{other}`")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("xtask {command}: {text}");
            ExitCode::FAILURE
        }
    }
}

fn complain(text: &str) -> ExitCode {
    eprint!("xtask: {text}\n\n{USAGE}");
    ExitCode::from(2)
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    // At run time, so that a checkout that was moved after it was built is still found; else where this was built.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().expect("this package lies in the repository").to_path_buf()
}
