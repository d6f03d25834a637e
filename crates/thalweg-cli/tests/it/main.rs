//! The command line, run as its users run it.

mod audit;
#[path = "../../../thalweg-memory-tools/tests/it/browser.rs"]
mod browser;
mod doctor;
mod explain;
mod looking;
mod memory;
mod ops;
mod precompile;
mod profile;
mod sim;
mod tune;
mod usage;

use std::path::PathBuf;
use std::process::{Command, Output};

/// Returns the path of the program: from the environment at run time if Cargo or a bundle sets it, otherwise where it was built.
fn program() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_thalweg")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_thalweg")), PathBuf::from)
}

/// Returns a command of the program in a clean environment. Of the caller's variables, it has only those that locate the GPU's
/// libraries.
fn thalweg(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program());
    command.args(arguments).env_clear();
    for name in ["LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "PATH"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.env("THALWEG_CACHE_DIR", "").envs(variables.iter().copied());
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the program writes UTF-8")
}

/// Returns a folder of this test process that does not exist yet.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("thalweg-cli-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}
