//! The sanitizer: a [`SanitizerDriver`] below the allocator, to which the work that PyTorch submits is reported.
//!
//! The allocator's own operations (blocks allocated, recorded and freed, pages mapped) reach the [`SanitizerDriver`]
//! automatically. PyTorch's work does not: a dispatch mode and a trace of events and streams report it (`thalweg_sanitizer_*`).
//! Their texts are operators and lines of the program; each text is kept forever, once.

use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashSet;
use thalweg_driver::cuda::CudaDriver;
use thalweg_driver::{Access, AccessMode, Driver, Touch};
use thalweg_lock::Mutex;
use thalweg_runtime::{Device, Devices, Environment, invalid};
use thalweg_sanitizer::{SanitizerDriver, Site, SourceLine};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_snapshot::Frame;

use crate::stacks::Stacks;
use crate::status::{Error, Result};

/// A sanitizer of the work of all devices of a kind.
#[derive(Debug)]
pub struct Sanitizer {
    is_real: bool,
    opened: OnceLock<Opened>,
    /// Held while the driver is opened.
    opening: Mutex<()>,
}

#[derive(Debug)]
struct Opened {
    driver: Arc<SanitizerDriver>,
    devices: Devices,
}

impl Sanitizer {
    /// Creates a sanitizer for the GPUs of the machine. The driver is opened when the first device is.
    pub fn cuda() -> Self {
        Self { is_real: true, opened: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// Creates a sanitizer for simulated GPUs.
    pub fn sim() -> Self {
        Self { is_real: false, ..Self::cuda() }
    }

    /// Returns whether the devices are real.
    pub(crate) fn is_real(&self) -> bool {
        self.is_real
    }

    /// Returns a device whose work the sanitizer checks.
    ///
    /// # Errors
    /// If there is no such device, or its driver cannot be opened.
    pub fn device(&self, index: u32) -> Result<Device> {
        Ok(self.opened()?.devices.get(index)?)
    }

    /// Returns the checked driver, and opens it first if necessary.
    pub(crate) fn driver(&self) -> Result<&Arc<SanitizerDriver>> {
        Ok(&self.opened()?.driver)
    }

    fn opened(&self) -> Result<&Opened> {
        let _opening = self.opening.lock();
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let driver: Arc<dyn Driver> = if self.is_real {
            CudaDriver::open().map_err(thalweg_runtime::Error::from)?
        } else {
            SimDriver::new(SimConfig::default()).map_err(thalweg_runtime::Error::from)?
        };
        let driver = SanitizerDriver::new(driver);
        driver.speak_python();
        // Autograd's engine has threads that wait for each other without reports.
        driver.count_threads_as_one();
        let devices = Devices::new(driver.clone(), Environment::get());
        Ok(self.opened.get_or_init(|| Opened { driver, devices }))
    }

    /// Sets the calling thread's location from its stack, unless the thread has set one itself.
    pub(crate) fn at_line_of(&self, call: &'static str, stacks: &Stacks) -> Option<AtSite> {
        if SanitizerDriver::has_reported_site() {
            return None;
        }
        let frames = stacks.python_stack()?;
        let frame = frames.iter().find(|frame| is_of_program(frame))?;
        let line = SourceLine { file: kept(&frame.filename), line: frame.line };
        SanitizerDriver::reported_site(Some(Site { operator: call, location: Some(line) }));
        Some(AtSite)
    }
}

/// A guard: while it lives, the site of the calling thread is set. See [`SanitizerDriver::reported_site`].
pub(crate) struct AtSite;

impl Drop for AtSite {
    fn drop(&mut self) {
        SanitizerDriver::reported_site(None);
    }
}

/// Returns whether a frame belongs neither to PyTorch nor to this package.
fn is_of_program(frame: &Frame) -> bool {
    let is_in = |folder: &str| frame.filename.contains(&format!("/site-packages/{folder}/"));
    !frame.filename.starts_with('<') && !is_in("torch") && !frame.filename.contains("/thalweg_torch/")
}

/// Returns a program's text as a static string; equal texts are stored once.
pub(crate) fn kept(text: &str) -> &'static str {
    static TEXTS: Mutex<Option<FxHashSet<&'static str>>> = Mutex::new(None);
    let mut texts = TEXTS.lock();
    let texts = texts.get_or_insert_with(FxHashSet::default);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let new: &'static str = Box::leak(text.into());
    texts.insert(new);
    new
}

/// Returns the accesses that a list of numbers describes: for each operand its address, the bytes of an element, 0 for read, 1
/// for write or 2 for both, the number of dimensions, their sizes, and their strides in elements.
///
/// # Errors
/// If the numbers end within an operand, or are invalid.
pub(crate) fn accesses(mut words: &[i64]) -> Result<Vec<Access>> {
    let wrong = || invalid!("the numbers of the accesses do not describe operands");
    let mut accesses = Vec::new();
    while let [address, element_bytes, mode, dimensions, rest @ ..] = words {
        let count = usize::try_from(*dimensions).map_err(|_| wrong())?;
        let after = count.checked_mul(2).filter(|after| *after <= rest.len()).ok_or_else(wrong)?;
        let (sizes, strides) = rest[..after].split_at(count);
        words = &rest[after..];
        let mode = match mode {
            0 => AccessMode::Read,
            1 => AccessMode::Write,
            2 => AccessMode::ReadWrite,
            _ => return Err(wrong()),
        };
        let element_bytes = u64::try_from(*element_bytes).map_err(|_| wrong())?;
        let (bytes, touch) = extent(sizes, strides, element_bytes).ok_or_else(wrong)?;
        if bytes > 0 {
            accesses.push(Access::new(address.cast_unsigned(), bytes, mode).touching(touch));
        }
    }
    if words.is_empty() { Ok(accesses) } else { Err(wrong()) }
}

/// Returns the number of bytes that a strided operand spans, and the bytes that it touches; `None` if the layout is invalid.
fn extent(sizes: &[i64], strides: &[i64], element_bytes: u64) -> Option<(u64, Touch)> {
    let mut dimensions = Vec::with_capacity(sizes.len());
    let mut last: u64 = 0;
    for (size, stride) in sizes.iter().zip(strides) {
        let (size, stride) = (u64::try_from(*size).ok()?, u64::try_from(*stride).ok()?);
        if size == 0 {
            return Some((0, Touch::All));
        }
        last = last.checked_add((size - 1).checked_mul(stride)?)?;
        dimensions.push((size, stride));
    }
    let bytes = last.checked_add(1)?.checked_mul(element_bytes)?;
    Some((bytes, Touch::of(dimensions.into_iter(), element_bytes)))
}
