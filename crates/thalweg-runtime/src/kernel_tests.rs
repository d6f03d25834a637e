//! Tests of the sources of machine code, with a fake compiler and a fake driver.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

use super::*;

#[test]
fn older_architectures_of_the_same_generation_run() {
    let names: Vec<_> = runnable_architectures(ComputeCapability { major: 8, minor: 2 }).collect();
    assert_eq!(names, ["sm_82", "sm_81", "sm_80"]);
}

/// A compiler whose code contains the compiler's number.
struct Fake {
    version: u8,
    compiled: Cell<u32>,
}

impl Fake {
    fn new(version: u8) -> Self {
        Self { version, compiled: Cell::new(0) }
    }
}

impl Compile for Fake {
    fn name(&self) -> String {
        format!("fake-{}.0", self.version)
    }

    fn compile(&self, wanted: &Wanted<'_>, options: &CompileOptions) -> Result<Vec<u8>> {
        assert!(options.arguments()[0].ends_with("=sm_90a") && wanted.source == "source");
        self.compiled.set(self.compiled.get() + 1);
        Ok(vec![self.version])
    }
}

/// A folder that is removed after the test, with an environment whose cache is there.
struct Folder(PathBuf, Environment);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thalweg-kernel-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).expect("the temporary folder is writable");
        let environment = Environment { cache_directory: Some(path.clone()), ..Environment::default() };
        Self(path, environment)
    }

    /// Loads a kernel with a driver that accepts code of compilers up to `newest`; returns the compiler of the loaded code.
    fn load(&self, compiler: Option<&Fake>, newest: u8) -> Result<u8> {
        let capability = ComputeCapability { major: 9, minor: 0 };
        let wanted = Wanted { name: "kernel", source: "source", capability };
        let compiler = || compiler.map(|c| c as &dyn Compile).ok_or_else(|| Error::invalid("no compiler"));
        load_code(&self.1, &wanted, compiler, &mut |image| {
            let refusal =
                || thalweg_driver::Error::new(Code::NoBinaryForDevice, "cuModuleLoadData", "too new");
            Ok(if image[0] <= newest { Ok(image[0]) } else { Err(refusal()) })
        })
    }

    fn write(&self, folder: &str, compiler: &str, image: u8) -> PathBuf {
        let options = thalweg_ir::cuda::OPTIONS.join(" ");
        let key = EntryKey { source: "source", options: &options, architecture: "sm_90", compiler };
        disk_cache::write(&self.0.join(folder), &key, &[image]).expect("it can be written");
        key.path(&self.0.join(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn each_compiler_has_entries_of_its_own() {
    let folder = Folder::new("versions");
    let (old, new) = (Fake::new(12), Fake::new(13));
    for _ in 0..2 {
        // A home that two machines share: each finds its own code, however often they take turns.
        assert_eq!(folder.load(Some(&new), 13).unwrap(), 13);
        assert_eq!(folder.load(Some(&old), 12).unwrap(), 12);
    }
    assert_eq!((old.compiled.get(), new.compiled.get()), (1, 1));
}

#[test]
fn a_kernel_that_was_compiled_ahead_is_not_compiled_again() {
    let folder = Folder::new("ahead");
    let (compiler, capability) = (Fake::new(12), ComputeCapability { major: 9, minor: 0 });
    let wanted = Wanted { name: "kernel", source: "source", capability };
    assert!(!has_code(&folder.1, &wanted, "fake-12.0"));
    let ahead = Ahead { compiler: &compiler, image: &[7] };
    let loaded = load_code(&folder.1, &wanted, || Ok(&ahead as &dyn Compile), &mut |image| Ok(Ok(image[0])));
    assert_eq!((loaded.unwrap(), compiler.compiled.get()), (7, 0));
    assert!(has_code(&folder.1, &wanted, "fake-12.0") && !has_code(&folder.1, &wanted, "fake-13.0"));
    assert_eq!(folder.load(Some(&compiler), 99).unwrap(), 7, "it is in the cache");
}

#[test]
fn what_the_driver_refuses_is_compiled_anew_and_replaced() {
    let mut folder = Folder::new("refused");
    let path = folder.write("kernels", "fake-12.0", 99);
    let compiler = Fake::new(12);
    assert_eq!(folder.load(Some(&compiler), 12).unwrap(), 12);
    assert_eq!(folder.load(Some(&compiler), 12).unwrap(), 12);
    assert_eq!(compiler.compiled.get(), 1, "the second time it is in the cache");
    assert!(path.is_file());
    // The same holds for a precompiled kernel; its folder is not changed.
    folder.write("precompiled", "", 99);
    folder.1.precompiled_directories.push(folder.0.join("precompiled"));
    assert_eq!(folder.load(Some(&compiler), 12).unwrap(), 12);
    assert_eq!(folder.load(None, 99).unwrap(), 99);
    // If the driver refuses what the compiler has just made, there is no other attempt.
    let error = folder.load(Some(&compiler), 11).expect_err("the driver takes nothing");
    assert!(error.to_string().contains("too new"), "{error}");
}

#[test]
fn without_a_compiler_any_entry_serves_that_the_driver_takes() {
    let folder = Folder::new("without");
    let error = folder.load(None, 13).expect_err("nothing is there");
    assert!(error.to_string().contains("not in the cache"), "{error}");
    folder.write("kernels", "fake-13.0", 13);
    let error = folder.load(None, 12).expect_err("it is refused");
    assert!(error.to_string().contains("too new") && error.to_string().contains("no compiler"), "{error}");
    folder.write("kernels", "fake-12.0", 12);
    assert_eq!(folder.load(None, 12).unwrap(), 12);
}

#[test]
fn a_cache_that_others_can_write_is_not_used() {
    let folder = Folder::new("other");
    folder.write("kernels", "fake-12.0", 66);
    fs::set_permissions(folder.0.join("kernels"), fs::Permissions::from_mode(0o777)).unwrap();
    let compiler = Fake::new(12);
    for _ in 0..2 {
        assert_eq!(folder.load(Some(&compiler), 99).unwrap(), 12);
    }
    assert_eq!(compiler.compiled.get(), 2);
}
