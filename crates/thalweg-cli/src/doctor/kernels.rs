//! The sources of compiled kernels: the compiler, the cache folder, folders of precompiled kernels.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thalweg::Environment;
use thalweg::driver::cuda::Library;

use super::libraries::Libraries;
use super::{Finding, ItemStatus, Report, bytes};

/// Examines the folders that the environment names.
pub fn examine(environment: &Environment, libraries: &Libraries, report: &mut Report) {
    report.add(&cache(environment.cache_directory.as_deref()));
    let mut precompiled = 0;
    for folder in &environment.precompiled_directories {
        let (finding, entries) = precompiled_folder(folder);
        report.add(&finding);
        precompiled += entries;
    }
    if environment.precompiled_directories.is_empty() {
        report.add(
            &Finding::new(
                ItemStatus::Missing,
                "precompiled_kernels",
                "precompiled",
                "no folder of precompiled kernels",
            )
            .value(0, "bytes")
            .note(if libraries.has(Library::Nvrtc) {
                "none is needed: NVRTC compiles"
            } else {
                "a bundle has one; THALWEG_PRECOMPILED_KERNELS names another"
            }),
        );
    }
    report.add(&source(libraries.has(Library::Nvrtc), precompiled));
}

/// Returns the source of a GPU's kernels, in a sentence.
fn source(compiler: bool, precompiled: u64) -> Finding {
    let (state, text, source) = match (compiler, precompiled) {
        (true, _) => {
            (ItemStatus::Ok, "compiled by NVRTC at their first use, and kept in the cache", "compiler")
        }
        (false, 0) => {
            (ItemStatus::Missing, "a GPU could run none: no compiler and no precompiled kernels", "none")
        }
        (false, _) => (ItemStatus::Ok, "NVRTC is missing, so precompiled kernels are used", "precompiled"),
    };
    Finding::new(state, "kernel_source", "kernels", text).value(source, "source")
}

/// The contents of a folder of compiled kernels.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Content {
    /// Entries by architecture.
    architectures: Vec<(String, u64)>,
    bytes: u64,
    /// The number of incomplete files, from processes that were ended while they wrote.
    partial: u64,
}

impl Content {
    fn read(folder: &Path) -> io::Result<Self> {
        let mut content = Self::default();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                continue;
            }
            let mut entries = 0;
            for file in fs::read_dir(entry.path())? {
                let file = file?;
                match file.path().extension().and_then(|extension| extension.to_str()) {
                    Some("kernel") => entries += 1,
                    Some("partial") => content.partial += 1,
                    _ => continue,
                }
                // A file that another process renames at this moment is counted without its size.
                content.bytes += file.metadata().map_or(0, |data| data.len());
            }
            content.architectures.push((entry.file_name().to_string_lossy().into_owned(), entries));
        }
        content.architectures.sort();
        Ok(content)
    }

    fn entries(&self) -> u64 {
        self.architectures.iter().map(|(_, entries)| entries).sum()
    }

    fn describe(&self) -> String {
        let parts: Vec<String> =
            self.architectures.iter().map(|(name, entries)| format!("{entries} for {name}")).collect();
        if parts.is_empty() {
            return "empty".to_owned();
        }
        format!("{} kernels in {}: {}", self.entries(), bytes(self.bytes), parts.join(", "))
    }
}

fn cache(folder: Option<&Path>) -> Finding {
    let (name, subject) = ("kernel_cache", "kernel cache");
    let Some(folder) = folder else {
        return Finding::new(ItemStatus::Missing, name, subject, "off: each process compiles anew")
            .value((), "bytes")
            .note("to have one, set THALWEG_CACHE_DIR to a folder, or HOME");
    };
    let shown = folder.display().to_string();
    let kernels = folder.join("kernels");
    let content = match Content::read(&kernels) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Content::default()),
        other => other,
    };
    let finding = match content.and_then(|content| try_to_write(&kernels).map(|()| content)) {
        Ok(content) => {
            let finding = Finding::new(ItemStatus::Ok, name, subject, content.describe())
                .value(content.bytes, "bytes")
                .member("entries", content.entries());
            match content.partial {
                0 => finding,
                count => finding.note(format!("{count} unfinished files (*.partial) can be removed")),
            }
        }
        Err(error) => Finding::new(ItemStatus::Failed, name, subject, format!("it cannot be used: {error}"))
            .value((), "bytes")
            .note("each process compiles anew. Make the folder writable or make room, or set THALWEG_CACHE_DIR to \
                   another (to nothing: no cache)"),
    };
    finding.note(&shown).member("path", shown)
}

/// Writes and removes a file in the folder or, if it does not exist yet, in its nearest existing parent.
fn try_to_write(folder: &Path) -> io::Result<()> {
    let mut place: PathBuf = folder.to_path_buf();
    while fs::symlink_metadata(&place).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        if !place.pop() || place.as_os_str().is_empty() {
            place = PathBuf::from(".");
        }
    }
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", place.display()));
    if !fs::metadata(&place).map_err(at)?.is_dir() {
        return Err(io::Error::other(format!("{} is a file, not a folder", place.display())));
    }
    let probe = place.join(format!("thalweg-doctor-{}.partial", std::process::id()));
    let written = fs::write(&probe, [0; 4096]);
    // The file is also removed if the write failed half-way; that error is reported below.
    let removed = fs::remove_file(&probe);
    written.and(removed).map_err(at)
}

/// Returns the finding for a folder of precompiled kernels, and their number.
fn precompiled_folder(folder: &Path) -> (Finding, u64) {
    let shown = folder.display().to_string();
    let (name, subject) = ("precompiled_kernels", "precompiled");
    let (finding, entries) = match Content::read(folder) {
        Ok(content) => {
            let entries = content.entries();
            let state = if entries == 0 { ItemStatus::Missing } else { ItemStatus::Ok };
            let finding = Finding::new(state, name, subject, content.describe())
                .value(content.bytes, "bytes")
                .member("entries", entries);
            (finding, entries)
        }
        Err(error) => {
            let text = format!("the folder cannot be read: {error}");
            let finding = Finding::new(ItemStatus::Failed, name, subject, text).value((), "bytes");
            (finding.note("correct THALWEG_PRECOMPILED_KERNELS or unset it"), 0)
        }
    };
    (finding.note(&shown).member("path", shown), entries)
}
