//! [`ProgramProfile`]: a whole program is recorded, and its trace written when it exits.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use thalweg_driver::{Driver, Result, at_exit};

use crate::averages::SortBy;
use crate::driver::ProfilerDriver;
use crate::trace::Trace;

/// The request of `thalweg profile` to a program, by environment variables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProgramProfile {
    /// The file for the trace. If it is there already, the process's number is put before its extension: a program's
    /// children have files of their own.
    pub path: PathBuf,
    /// The number of rows that the table of operators has that goes to standard error; 0 for no table.
    pub rows: usize,
    /// Whether each block that a caching allocator hands out or takes back is recorded.
    pub memory: bool,
}

static PROFILE: OnceLock<(ProgramProfile, Arc<ProfilerDriver>)> = OnceLock::new();

impl ProgramProfile {
    /// Records a driver from now until the process exits. Of the drivers of a process the first is recorded, and others are given
    /// back as they are.
    ///
    /// # Errors
    /// The errors of [`ProfilerDriver::start`].
    pub fn record(&self, driver: Arc<dyn Driver>) -> Result<Arc<dyn Driver>> {
        let profiler = ProfilerDriver::new(Arc::clone(&driver));
        if PROFILE.set((self.clone(), Arc::clone(&profiler))).is_err() {
            return Ok(driver);
        }
        profiler.profile_memory(self.memory);
        profiler.start()?;
        // The driver's library, which is loaded by now, is still there then.
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
