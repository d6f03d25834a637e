//! `cargo xtask bundle`: one folder that runs this checkout's programs on a GPU machine without Rust.
//!
//! ```text
//! bundle/run             the one script to call; `./run --help` says what it can do
//! bundle/programs.tar.xz the command line and the examples, `tests/` (one program per crate) and `benches/`
//! bundle/kernels.tar.xz  machine code of every kernel that those use, by architecture
//! bundle/VERSION         which commit this is, and what it was built with
//! ```
//!
//! The programs find CUDA's libraries at run time, as everywhere. With the bundled kernels they need no compiler either. There is
//! no list of these kernels: the programs themselves are run on the simulated GPU, which records the source of each kernel that
//! it loads ([`kernels`]).

mod build;
mod kernels;
mod script;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use build::{BuiltProgram, Kind};

/// The maximum size of a bundle, packed.
const LIMIT_BYTES: u64 = 45 * 1000 * 1000;

/// The folder of the programs within the bundle, before it is packed and after it is unpacked. They share much code, so that
/// together they compress to a tenth.
const PROGRAMS: &str = "programs";

/// Collect tests, benches, examples, tools and precompiled kernels in a folder that runs on GPU machines without Rust
#[derive(Args)]
pub struct BundleArgs {
    /// The folder of the bundle; a former bundle there is replaced
    #[arg(long, value_name = "FOLDER", default_value = "bundle")]
    out: PathBuf,
    /// Leave out precompiled kernels
    #[arg(long, conflicts_with = "archs")]
    no_kernels: bool,
    /// The architectures that kernels are compiled for
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "sm_80,sm_90,sm_100",
        value_parser = architecture
    )]
    archs: Vec<String>,
}

/// Returns the name of an architecture, if it is one.
fn architecture(name: &str) -> Result<String, String> {
    match name.strip_prefix("sm_").map(str::parse::<u32>) {
        Some(Ok(_)) => Ok(name.to_owned()),
        _ => Err("give names like sm_90, divided by commas".to_owned()),
    }
}

/// Makes the bundle; `false` if it is too large.
pub fn run(options: &BundleArgs) -> Result<bool, String> {
    let root = crate::root();
    let out = root.join(&options.out);
    let programs = build::build(&root)?;
    clear(&out)?;
    for program in &programs {
        copy(&program.executable, &out.join(PROGRAMS).join(place(program)))?;
    }
    write(&out.join("run"), script::SCRIPT)?;
    make_executable(&out.join("run"))?;
    write(&out.join("VERSION"), &version(&root))?;
    if !options.no_kernels {
        kernels::collect(&root, &programs, &options.archs, &out)?;
    }
    pack(&out, PROGRAMS, "programs.tar.xz", "xz -9")?;
    weigh(&out)
}

/// Replaces a folder of the bundle by an archive, which is the same for the same files.
fn pack(out: &Path, folder: &str, archive: &str, compressor: &str) -> Result<(), String> {
    let status = Command::new("tar")
        .args(["--create", "--use-compress-program", compressor, "--file", archive, "--sort=name"])
        .args(["--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", folder])
        .current_dir(out)
        .status()
        .map_err(|error| format!("tar, which packs the {folder}, cannot be started: {error}"))?;
    if !status.success() {
        return Err(format!("tar could not pack the {folder} ({status})"));
    }
    fs::remove_dir_all(out.join(folder)).map_err(|error| format!("the {folder} cannot be removed: {error}"))
}

/// Returns the path of a program in the bundle.
fn place(program: &BuiltProgram) -> PathBuf {
    match program.kind {
        Kind::Tool | Kind::Example => PathBuf::from(&program.name),
        Kind::Test if program.name == "it" => Path::new("tests").join(&program.package),
        Kind::Test => Path::new("tests").join(format!("{}-{}", program.package, program.name)),
        Kind::Bench => Path::new("benches").join(format!("{}-{}", program.package, program.name)),
    }
}

/// Empties the folder of a previous bundle. Refuses any other folder that is not empty.
fn clear(out: &Path) -> Result<(), String> {
    let is_empty = fs::read_dir(out).map_or(true, |mut entries| entries.next().is_none());
    let is_bundle = out.join("run").is_file() && out.join("VERSION").is_file();
    if !is_empty && !is_bundle {
        return Err(format!(
            "{} holds something that is not a bundle; name another folder with --out",
            out.display()
        ));
    }
    match fs::remove_dir_all(out) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{} cannot be replaced: {error}", out.display()))
        }
        _ => fs::create_dir_all(out).map_err(|error| format!("{} cannot be made: {error}", out.display())),
    }
}

fn copy(source: &Path, target: &Path) -> Result<(), String> {
    let parent = target.parent().expect("a file of the bundle lies in it");
    fs::create_dir_all(parent)
        .and_then(|()| fs::copy(source, target))
        .map(drop)
        .map_err(|error| format!("{} cannot be copied to {}: {error}", source.display(), target.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

fn make_executable(path: &Path) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{} cannot be made executable: {error}", path.display()))
}

/// Returns the commit and the versions of the build tools, one per line.
fn version(root: &Path) -> String {
    let answer = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(root).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let unknown = || "unknown".to_owned();
    let commit = answer("git", &["log", "-1", "--format=%H of %cs"]).unwrap_or_else(unknown);
    let changed = answer("git", &["status", "--porcelain"]).is_some_and(|text| !text.is_empty());
    format!(
        "thalweg {}\ncommit {commit}{}\nbuilt by {}\nneeds {} or newer\n",
        env!("CARGO_PKG_VERSION"),
        if changed { ", with changes" } else { "" },
        answer("rustc", &["--version"]).unwrap_or_else(unknown),
        answer("getconf", &["GNU_LIBC_VERSION"]).unwrap_or_else(unknown),
    )
}

/// Prints the size of each part.
fn weigh(out: &Path) -> Result<bool, String> {
    let mut entries: Vec<PathBuf> = fs::read_dir(out)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .map_err(|error| format!("{} cannot be read: {error}", out.display()))?;
    entries.sort();
    let mut total = 0;
    for entry in &entries {
        let (files, bytes) =
            size(entry).map_err(|error| format!("{} cannot be read: {error}", entry.display()))?;
        total += bytes;
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        println!("{name:<14} {:>8.2} MB  {files:>5} files", bytes as f64 / 1e6);
    }
    println!("{:<14} {:>8.2} MB  in {}", "total", total as f64 / 1e6, out.display());
    if total > LIMIT_BYTES {
        println!(
            "too heavy: a bundle may weigh {} MB; name fewer architectures with --archs",
            LIMIT_BYTES / 1_000_000
        );
    }
    Ok(total <= LIMIT_BYTES)
}

/// Returns the number of files at a path, and their size in bytes.
fn size(path: &Path) -> std::io::Result<(u64, u64)> {
    let data = fs::symlink_metadata(path)?;
    if !data.is_dir() {
        return Ok((1, data.len()));
    }
    fs::read_dir(path)?.try_fold((0, 0), |(files, bytes), entry| {
        let (more_files, more_bytes) = size(&entry?.path())?;
        Ok((files + more_files, bytes + more_bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line of only this task.
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        bundle: BundleArgs,
    }

    fn parse(line: &str) -> Result<BundleArgs, clap::Error> {
        <Line as clap::Parser>::try_parse_from(line.split(' ')).map(|line| line.bundle)
    }

    #[test]
    fn arguments_are_read() {
        let options = parse("bundle --archs sm_90,sm_100 --out x").unwrap();
        assert_eq!((options.archs, options.out), (vec!["sm_90".into(), "sm_100".into()], "x".into()));
        let options = parse("bundle --no-kernels").unwrap();
        assert!(options.no_kernels && options.archs.len() == 3 && options.out == Path::new("bundle"));
        for wrong in ["--archs 90", "--archs sm_90,", "--out", "--fast", "--no-kernels --archs sm_90"] {
            assert!(parse(&format!("bundle {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_folder_that_is_no_bundle_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("thalweg-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("letters.txt"), "dear").unwrap();
        assert!(clear(&folder).is_err());
        assert!(folder.join("letters.txt").exists());
        for name in ["run", "VERSION"] {
            fs::write(folder.join(name), "").unwrap();
        }
        clear(&folder).unwrap();
        assert_eq!(size(&folder).unwrap(), (0, 0));
        fs::remove_dir_all(&folder).unwrap();
    }
}
