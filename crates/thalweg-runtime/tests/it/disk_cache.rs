//! Compiled kernels on disk.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use thalweg_runtime::disk_cache::{self, EntryKey};

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("thalweg-disk-cache-{}-{serial}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    /// Returns every file below.
    fn files(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        folders.flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const KEY: EntryKey<'_> =
    EntryKey { source: "extern \"C\" void f() {}", options: "-O3 -dc", architecture: "sm_90", compiler: "" };

fn read(folder: &Folder, key: &EntryKey<'_>) -> Option<Vec<u8>> {
    disk_cache::read(&folder.0, key).expect("the folder is to be trusted")
}

#[test]
fn what_is_written_is_read() {
    let folder = Folder::new();
    assert_eq!(read(&folder, &KEY), None);
    for image in [b"some machine code".as_slice(), b"", &[0; 100_000]] {
        disk_cache::write(&folder.0, &KEY, image).unwrap();
        assert_eq!(read(&folder, &KEY).as_deref(), Some(image));
    }
    assert_eq!(folder.files(), [KEY.path(&folder.0)], "one file an entry, and nothing left over");
}

#[test]
fn every_part_of_the_key_counts() {
    let folder = Folder::new();
    disk_cache::write(&folder.0, &KEY, b"code").unwrap();
    let others = [
        EntryKey { source: "extern \"C\" void g() {}", ..KEY },
        EntryKey { options: "-O3", ..KEY },
        EntryKey { architecture: "sm_80", ..KEY },
        EntryKey { compiler: "nvrtc-13.0", ..KEY },
        // The same letters, divided elsewhere.
        EntryKey { source: "extern \"C\" void f() {}-", options: "O3 -dc", ..KEY },
    ];
    for other in others {
        assert_ne!(other.path(&folder.0), KEY.path(&folder.0));
        assert_eq!(read(&folder, &other), None, "{other:?}");
        // Even if the names of the files collide.
        fs::create_dir_all(other.path(&folder.0).parent().unwrap()).unwrap();
        fs::copy(KEY.path(&folder.0), other.path(&folder.0)).unwrap();
        assert_eq!(read(&folder, &other), None, "{other:?}");
    }
}

#[test]
fn the_name_of_an_entry_never_changes() {
    // A bundle's kernels are found by their names, whichever compiler built the program.
    let expected = "sm_90/dbfb7fb63d8d312e0b9875fefb1bf70f.kernel";
    assert_eq!(KEY.path(Path::new("")), Path::new(expected));
    let expected = "sm_90/dbfb7fb63d8d312e0b9875fefb1bf70f-nvrtc-13.0.kernel";
    assert_eq!(EntryKey { compiler: "nvrtc-13.0", ..KEY }.path(Path::new("")), Path::new(expected));
}

#[test]
fn a_damaged_entry_is_not_there_and_is_built_again() {
    let folder = Folder::new();
    let image: Vec<u8> = (0..200).collect();
    disk_cache::write(&folder.0, &KEY, &image).unwrap();
    let path = KEY.path(&folder.0);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(read(&folder, &KEY), None, "cut to {length} bytes");
    }
    for position in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[position] ^= flip;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(read(&folder, &KEY), None, "byte {position} flipped by {flip:#x}");
        }
    }
    fs::write(&path, [whole.as_slice(), &[0]].concat()).unwrap();
    assert_eq!(read(&folder, &KEY), None, "a byte too many");
    disk_cache::write(&folder.0, &KEY, &image).unwrap();
    assert_eq!(read(&folder, &KEY), Some(image));
}

/// Returns an image whose bytes all identify the thread that wrote it. Its length also depends on the thread.
fn image_of(writer: u8) -> Vec<u8> {
    vec![writer; 5000 + 100 * usize::from(writer)]
}

fn check(image: &[u8]) {
    assert_eq!(image, image_of(image[0]), "a mixture of two writers");
}

#[test]
fn threads_that_write_and_read_see_whole_entries() {
    let folder = Folder::new();
    disk_cache::write(&folder.0, &KEY, &image_of(0)).unwrap();
    std::thread::scope(|scope| {
        for writer in 1..4 {
            let folder = &folder.0;
            scope.spawn(move || {
                (0..100).for_each(|_| disk_cache::write(folder, &KEY, &image_of(writer)).unwrap())
            });
        }
        for _ in 0..200 {
            check(&read(&folder, &KEY).expect("it is always there"));
        }
    });
    assert_eq!(folder.files().len(), 1, "{:?}", folder.files());
}

const CHILD_FOLDER: &str = "THALWEG_TEST_CHILD_FOLDER";

/// The other process of the test below; without the variable it does nothing.
#[test]
fn child_process_that_writes() {
    let Some(folder) = std::env::var_os(CHILD_FOLDER) else { return };
    (0..200).for_each(|_| disk_cache::write(folder.as_ref(), &KEY, &image_of(9)).unwrap());
}

#[test]
fn processes_that_write_and_read_see_whole_entries() {
    let folder = Folder::new();
    disk_cache::write(&folder.0, &KEY, &image_of(0)).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["disk_cache::child_process_that_writes", "--exact", "--quiet"])
        .env(CHILD_FOLDER, &folder.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let status = loop {
        check(&read(&folder, &KEY).expect("it is always there"));
        disk_cache::write(&folder.0, &KEY, &image_of(1)).unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert!(status.success());
    assert_eq!(folder.files().len(), 1, "{:?}", folder.files());
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_and_leaves_nothing() {
    let folder = Folder::new();
    // A file where the folder of the architecture would be.
    fs::write(folder.0.join("sm_90"), b"in the way").unwrap();
    disk_cache::write(&folder.0, &KEY, b"code").unwrap_err();
    assert_eq!(read(&folder, &KEY), None);
    fs::remove_file(folder.0.join("sm_90")).unwrap();
    // A folder where the entry would be: the write succeeds, the renaming does not.
    fs::create_dir_all(KEY.path(&folder.0).join("in the way")).unwrap();
    disk_cache::write(&folder.0, &KEY, b"code").unwrap_err();
    assert_eq!(read(&folder, &KEY), None);
    assert_eq!(folder.files(), [KEY.path(&folder.0)]);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_others_can_write_is_refused() {
    let folder = Folder::new();
    disk_cache::write(&folder.0, &KEY, b"code").unwrap();
    let path = KEY.path(&folder.0);
    let mode = fs::metadata(path.parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700, "folders are their owner's alone");
    for (place, mode, good) in
        [(folder.0.as_path(), 0o777, 0o700), (path.parent().unwrap(), 0o770, 0o700), (&path, 0o666, 0o644)]
    {
        set_mode(place, mode);
        let error = disk_cache::read(&folder.0, &KEY).expect_err("others can write it");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains(&format!("{} (mode {mode:04o})", place.display())), "{error}");
        if place != path {
            disk_cache::write(&folder.0, &KEY, b"code").expect_err("nor is anything put there");
        }
        set_mode(place, good);
    }
    assert_eq!(read(&folder, &KEY).as_deref(), Some(b"code".as_slice()));
    assert_eq!(folder.files(), [path]);
}

#[test]
fn a_link_that_lies_where_a_file_is_written_is_replaced_and_not_followed() {
    let folder = Folder::new();
    disk_cache::write(&folder.0, &KEY, b"code").unwrap();
    let (path, precious) = (KEY.path(&folder.0), folder.0.join("precious"));
    fs::write(&precious, b"letters").unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&precious, &path).unwrap();
    disk_cache::write(&folder.0, &KEY, b"code").unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"letters");
    assert_eq!(read(&folder, &KEY).as_deref(), Some(b"code".as_slice()));
}

#[test]
fn a_sweep_removes_what_was_used_least_lately_and_what_was_left_over() {
    let folder = Folder::new();
    let names: Vec<String> = (0..8).map(|number| format!("kernel {number}")).collect();
    let keys: Vec<EntryKey<'_>> = names.iter().map(|source| EntryKey { source, ..KEY }).collect();
    let now = SystemTime::now();
    for (age, key) in (0..).zip(&keys) {
        disk_cache::write(&folder.0, key, &[0; 10_000]).unwrap();
        let used = now - Duration::from_secs(2 * 24 * 60 * 60 + age);
        File::options().write(true).open(key.path(&folder.0)).unwrap().set_modified(used).unwrap();
    }
    let partial = |name: &str, age: u64| {
        let path = KEY.path(&folder.0).with_file_name(name);
        File::create(&path).unwrap().set_modified(now - Duration::from_secs(age)).unwrap();
        path
    };
    let (old, fresh) = (partial("a.partial", 7200), partial("b.partial", 60));
    // The oldest is read, and is the youngest from then on.
    assert!(read(&folder, &keys[7]).is_some());
    disk_cache::sweep(&folder.0, 1 << 20).unwrap();
    assert!(!old.exists() && fresh.exists());
    assert_eq!(folder.files().len(), 9, "all of them have room");
    disk_cache::sweep(&folder.0, 60_000).unwrap();
    let left: Vec<usize> = (0..8).filter(|&index| read(&folder, &keys[index]).is_some()).collect();
    assert_eq!(left, [0, 1, 2, 7]);
}

#[test]
fn a_pipe_in_the_place_of_an_entry_is_not_read_and_nothing_waits() {
    let folder = Folder::new();
    disk_cache::write(&folder.0, &KEY, b"code").unwrap();
    let path = KEY.path(&folder.0);
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(read(&folder, &KEY), None);
    assert!(disk_cache::read_of_any_compiler(&folder.0, &KEY).unwrap().is_empty());
}
