//! `cargo xtask wheel`: the Python wheel `thalweg-torch`, in one command.
//!
//! ```text
//! libthalweg_torch.so         this workspace's allocator behind a C interface       cargo
//! libthalweg_hooks.so         the first tier: needs no header of PyTorch's          the C++ compiler
//! libthalweg_native_2_11.so   the second tier: one for each PyTorch that is given   the C++ compiler
//! thalweg                     the command line, which reads memory snapshots        maturin
//! thalweg_torch/*.py          the package                                           maturin
//! ```
//!
//! PyTorch's headers are needed here and nowhere else: the workspace builds and tests without them. A PyTorch is a folder made by
//! `pip install --target` or by unpacking a wheel; it is not run. The shared libraries are built into the package's folder, where
//! git ignores them, so that the package also works from the checkout.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

/// The options of the wheel `thalweg-torch`.
#[derive(Args)]
pub struct TorchWheelArgs {
    /// A PyTorch (the folder of the package) to build a native class for; may be repeated. Without it the wheel has the hooks only
    #[arg(long, value_name = "FOLDER", requires = "cuda")]
    torch: Vec<PathBuf>,
    /// CUDA's runtime, which PyTorch's headers include: a folder with include/ and lib/
    #[arg(long, value_name = "FOLDER")]
    cuda: Option<PathBuf>,
    /// The folder of the wheel [default: target/wheels]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Build the shared libraries beside the package and those of the allocation bench, and no wheel
    #[arg(long)]
    objects_only: bool,
}

/// Builds the wheel, or the shared libraries only.
pub fn run(options: &TorchWheelArgs) -> Result<bool, String> {
    let root = crate::root();
    let crate_folder = root.join("crates/thalweg-torch");
    let package = crate_folder.join("python/thalweg_torch");
    library(&root, &package)?;
    let compiler = Compiler { crate_folder: &crate_folder, package: &package };
    compiler.build("csrc/hooks.cpp", &package.join("libthalweg_hooks.so"), &[])?;
    for torch in &options.torch {
        let cuda = options.cuda.as_deref().expect("`--torch` requires it");
        let flags = flags(torch, cuda)?;
        let (major, minor) = version(torch)?;
        compiler.build(
            "csrc/native.cpp",
            &package.join(format!("libthalweg_native_{major}_{minor}.so")),
            &flags,
        )?;
        if options.objects_only {
            compiler.build("scripts/pairs.cpp", &crate_folder.join("scripts/libthalweg_pairs.so"), &flags)?;
        }
    }
    if options.torch.is_empty() {
        println!("no --torch was given: the wheel has the first tier only");
    }
    if options.objects_only {
        println!("the shared libraries are in {}", package.display());
        return Ok(true);
    }
    let out = options.out.clone().unwrap_or_else(|| root.join("target/wheels"));
    let mut maturin = Command::new("maturin");
    maturin.args(["build", "--out"]).arg(out).current_dir(&crate_folder);
    succeed(&mut maturin, "`pip install maturin` gives it")?;
    Ok(true)
}

/// Builds the C interface in the profile of bundles, and copies it to where the package expects it.
fn library(root: &Path, package: &Path) -> Result<(), String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut build = Command::new(cargo);
    build.args(["build", "--profile", "bundle", "-p", "thalweg-torch"]).current_dir(root);
    succeed(&mut build, "it built this program")?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let name = "libthalweg_torch.so";
    let built = target.join("bundle").join(name);
    fs::copy(&built, package.join(name))
        .map(drop)
        .map_err(|error| format!("{} cannot be copied to {}: {error}", built.display(), package.display()))
}

struct Compiler<'a> {
    crate_folder: &'a Path,
    package: &'a Path,
}

impl Compiler<'_> {
    fn build(&self, source: &str, target: &Path, flags: &[OsString]) -> Result<(), String> {
        let mut command = Command::new(env::var_os("CXX").unwrap_or_else(|| OsString::from("g++")));
        command
            .args(["-std=c++20", "-O2", "-fPIC", "-shared", "-s", "-fvisibility=hidden"])
            .args(["-Wall", "-Wextra", "-Wno-unused-parameter", "-Iinclude", source, "-o"])
            .arg(target)
            .arg("-L")
            .arg(self.package)
            .args(["-lthalweg_torch", "-ldl", "-Wl,-rpath,$ORIGIN", "-Wl,--as-needed", "-Wl,-z,defs"])
            .args(flags)
            .current_dir(self.crate_folder);
        succeed(&mut command, "CXX names another C++ compiler")
    }
}

/// Returns the flags with which an object that calls PyTorch is compiled and linked.
fn flags(torch: &Path, cuda: &Path) -> Result<Vec<OsString>, String> {
    let libraries = cuda.join("lib");
    let runtime = fs::read_dir(&libraries)
        .map_err(|error| format!("{} cannot be read: {error}", libraries.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcudart.so.")))
        .ok_or_else(|| format!("{} has no libcudart.so", libraries.display()))?;
    let mut flags: Vec<OsString> = Vec::new();
    for folder in [torch.join("include"), cuda.join("include")] {
        flags.extend(["-isystem".into(), folder.into()]);
    }
    flags.extend([
        "-L".into(),
        torch.join("lib").into(),
        "-lc10".into(),
        "-lc10_cuda".into(),
        runtime.into(),
    ]);
    Ok(flags)
}

/// Returns the version of a PyTorch, from its header.
fn version(torch: &Path) -> Result<(u32, u32), String> {
    let header = torch.join("include/torch/headeronly/version.h");
    let text = fs::read_to_string(&header)
        .map_err(|error| format!("{} cannot be read: {error}", header.display()))?;
    let number = |name: &str| -> Option<u32> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix("#define ")?.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    number("TORCH_VERSION_MAJOR ")
        .zip(number("TORCH_VERSION_MINOR "))
        .ok_or_else(|| format!("{} does not say which version it is", header.display()))
}

fn succeed(command: &mut Command, advice: &str) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => Err(format!("{name} cannot be started: {error} ({advice})")),
    }
}
