//! [`ProgramProfile`]: records a complete program, and writes its trace when it exits.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use thalweg_driver::{Driver, Result, at_exit};

use crate::averages::SortBy;
use crate::driver::ProfilerDriver;
use crate::trace::Trace;

/// The request that `thalweg profile` passes to a program in environment variables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramProfile {
    /// The file for the trace. If it already exists, the process's number is inserted before its extension, so that a program's
    /// children have files of their own.
    pub path: PathBuf,
    /// The number of rows of the table of operators that is printed to standard error; 0 for no table.
    pub rows: usize,
    /// Whether each block that a caching allocator hands out or takes back is recorded.
    pub memory: bool,
}

static PROFILE: OnceLock<(ProgramProfile, Arc<ProfilerDriver>)> = OnceLock::new();

impl ProgramProfile {
    /// Records a driver from now until the process exits. Only the first driver of a process is recorded; others are returned
    /// unchanged.
    pub fn record(&self, driver: Arc<dyn Driver>) -> Result<Arc<dyn Driver>> {
        let profiler = ProfilerDriver::new(Arc::clone(&driver));
        if PROFILE.set((self.clone(), Arc::clone(&profiler))).is_err() {
            return Ok(driver);
        }
        profiler.profile_memory(self.memory);
        profiler.start()?;
        // The handler is registered after the driver's library was loaded, so that the library still exists when it runs.
        if !at_exit(exiting) {
            eprintln!("thalweg: no trace will be written: the process takes no more calls at its exit");
        }
        Ok(profiler)
    }
}

fn exiting() {
    let Some((profile, driver)) = PROFILE.get() else { return };
    match driver.stop() {
        Ok(trace) => profile.hand_over(&trace),
        Err(error) => eprintln!("thalweg: no trace was written: {error}"),
    }
}

impl ProgramProfile {
    fn hand_over(&self, trace: &Trace) {
        if let Err((path, error)) = self.write(trace) {
            eprintln!("thalweg: the trace was not written to {}: {error}", path.display());
        }
        if self.rows > 0 {
            eprint!("{}", trace.key_averages().table(SortBy::DeviceTime, self.rows));
        }
    }

    fn write(&self, trace: &Trace) -> std::result::Result<(), (PathBuf, io::Error)> {
        let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
        let (path, file) = match create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let path = self.path_of_child();
                let file = create(&path);
                (path, file)
            }
            other => (self.path.clone(), other),
        };
        file.and_then(|file| trace.write_chrome_trace(file)).map_err(|error| (path, error))
    }

    fn path_of_child(&self) -> PathBuf {
        let extension = self.path.extension().map(|it| it.to_string_lossy().into_owned());
        let extension = extension.map_or_else(String::new, |extension| format!(".{extension}"));
        self.path.with_extension(format!("{}{extension}", std::process::id()))
    }
}
