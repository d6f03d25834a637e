//! The kernels of a bundle: recorded from the programs that use them, then compiled for each architecture.
//!
//! The programs run on the simulated GPU with `THALWEG_RECORD_KERNELS` set. The planner chooses a kernel only by shapes, strides
//! and dtypes, so a GPU needs the same kernels. All native kernels are added: the simulator runs them on the host, and may not
//! use each dtype.
//!
//! The bundle's own `thalweg precompile` compiles them. The results are kept in the target folder, so that the next bundle
//! compiles only what has changed. They are packed in the bundle, since machine code compresses to a fifth; the `run` script
//! unpacks them on its first call.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::build::{BuiltProgram, Kind};
use crate::progress::Progress;

/// The folder of the kernels within the bundle, before it is packed and after it is unpacked.
const FOLDER: &str = "kernels";

/// Adds the kernels that the programs use to the bundle.
pub fn collect(
    root: &Path,
    programs: &[BuiltProgram],
    architectures: &[String],
    out: &Path,
) -> Result<(), String> {
    let record = root.join("target/bundle-record");
    record_all(programs, &record)?;
    let kept = root.join("target/bundle-kernels");
    let tool =
        programs.iter().find(|program| (program.kind, program.name.as_str()) == (Kind::Tool, "thalweg"));
    let tool = tool.ok_or("the tool `thalweg`, which compiles kernels, was not built")?;
    let output = Command::new(&tool.executable)
        .arg("precompile")
        .arg(&record)
        .args(["--native", "--archs", &architectures.join(","), "--out"])
        .arg(&kept)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{} cannot be started: {error}", tool.executable.display()))?;
    if !output.status.success() {
        return Err(
            "the kernels were not compiled; --no-kernels makes a bundle that compiles them where it runs"
                .into(),
        );
    }
    for entry in String::from_utf8_lossy(&output.stdout).lines() {
        let entry = Path::new(entry);
        let place = entry.strip_prefix(&kept).map_err(|error| format!("{}: {error}", entry.display()))?;
        super::copy(entry, &out.join(FOLDER).join(place))?;
    }
    super::pack(out, FOLDER, "kernels.tar.xz", "xz -9")
}

/// Returns the calls of a program that together use the kernels that it uses on a GPU, each as its arguments.
fn calls(program: &BuiltProgram) -> Vec<&'static [&'static str]> {
    match (program.kind, program.name.as_str()) {
        // This program has its own kernels, which need no compiler.
        (Kind::Example, "conformance") => vec![],
        // A whole epoch: its last batch is smaller than the others.
        (Kind::Example, "digits") => vec![&["--epochs", "1"], &["--epochs", "1", "--graph"]],
        // The kernels of every part; the page is not needed here.
        (Kind::Example, "graph_study") => vec![&["--rounds", "2", "--html", "/dev/null"]],
        (Kind::Example | Kind::Test, _) => vec![&[]],
        (Kind::Bench, _) => vec![&["--bench", "--json"]],
        (Kind::Tool, "thalweg") => vec![&["doctor"]],
        (Kind::Tool, _) => vec![],
    }
}

/// Runs the programs with recording on. A failure is reported, and the kernels recorded before it are used.
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
            // Tests that only compile would take minutes and record nothing; without a compiler they are skipped.
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
