//! Whether the machine has a usable device, without touching CUDA.
//!
//! Asking CUDA itself initialises it, and a process that has initialised CUDA cannot `fork` children that use it. NVML, the
//! management library, knows the devices without that. It knows nothing of `CUDA_VISIBLE_DEVICES`, so that is applied here,
//! with CUDA's rules.

use std::ffi::{c_char, c_uint};
use std::fmt;

use super::context::Device;
use super::search::{Library, OpenLibrary, SearchEnvironment};
use super::table::entry_points;
use crate::Result;

entry_points! {
    /// libnvidia-ml.
    NvmlTable {
        init = "nvmlInit" @ 0 c"nvmlInit_v2" ();
        shutdown = "nvmlShutdown" @ 0 c"nvmlShutdown" ();
        device_count = "nvmlDeviceGetCount" @ 0 c"nvmlDeviceGetCount_v2" (count: *mut c_uint);
        device_by_index = "nvmlDeviceGetHandleByIndex" @ 0 c"nvmlDeviceGetHandleByIndex_v2"
            (index: c_uint, device: *mut usize);
        device_uuid = "nvmlDeviceGetUUID" @ 0 c"nvmlDeviceGetUUID"
            (device: usize, text: *mut c_char, bytes: c_uint);
    }
}

/// Whether CUDA would find a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Availability {
    /// How many devices CUDA would show; 0 where that cannot be told.
    pub device_count: u32,
    /// The source of the number.
    pub reason: AvailabilityReason,
}

/// The source of an [`Availability`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AvailabilityReason {
    /// The devices were counted.
    Counted,
    /// The CUDA driver is not on this machine. The text says where it was looked for.
    DriverMissing(String),
    /// The driver is there, and no device.
    NoDevice,
    /// There are devices, and `CUDA_VISIBLE_DEVICES`, whose value this is, hides them all.
    Hidden(String),
    /// The CUDA driver is there and the question could not be answered without initialising it. The text says why.
    Unknown(String),
}

impl Availability {
    /// Returns whether there is a device that can be used, as far as can be told.
    pub fn is_available(&self) -> bool {
        self.device_count > 0
    }
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            AvailabilityReason::Counted => write!(f, "{} CUDA devices", self.device_count),
            AvailabilityReason::DriverMissing(text) => write!(f, "no CUDA device: {text}"),
            AvailabilityReason::NoDevice => {
                write!(
                    f,
                    "no CUDA device, though the driver is installed: see that the GPU is given to this machine"
                )
            }
            AvailabilityReason::Hidden(value) => {
                write!(f, "no CUDA device: CUDA_VISIBLE_DEVICES={value:?} hides all of them")
            }
            AvailabilityReason::Unknown(text) => {
                write!(f, "it is not known whether there is a CUDA device: {text}")
            }
        }
    }
}

/// Returns whether CUDA would find a device in this process. Does not initialise CUDA, and creates no context.
///
/// Reads the environment (`CUDA_VISIBLE_DEVICES` and what [`SearchEnvironment::from_process`] reads).
pub fn availability() -> Availability {
    let visible = std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned());
    availability_with(&SearchEnvironment::from_process(), visible.as_deref())
}

/// Determines [`availability`] in an environment that was read elsewhere; `visible` is the value of `CUDA_VISIBLE_DEVICES`.
pub fn availability_with(environment: &SearchEnvironment, visible: Option<&str>) -> Availability {
    let none = |reason| Availability { device_count: 0, reason };
    // Loading the driver's library does not initialise it.
    if let Err(error) = OpenLibrary::open(Library::Driver, environment, "cuInit") {
        return none(AvailabilityReason::DriverMissing(error.detail().to_owned()));
    }
    let uuids = match device_uuids(environment) {
        Ok(uuids) => uuids,
        Err(why) => return none(AvailabilityReason::Unknown(why)),
    };
    if uuids.is_empty() {
        return none(AvailabilityReason::NoDevice);
    }
    match visible_count(visible, &uuids) {
        Some(0) => none(AvailabilityReason::Hidden(visible.unwrap_or_default().to_owned())),
        Some(device_count) => Availability { device_count, reason: AvailabilityReason::Counted },
        None => {
            let value = visible.unwrap_or_default();
            none(AvailabilityReason::Unknown(format!(
                "CUDA_VISIBLE_DEVICES={value:?} names parts of devices"
            )))
        }
    }
}

/// Returns the UUIDs of all devices (`GPU-…`), in NVML's order, which is that of the PCI addresses.
fn device_uuids(environment: &SearchEnvironment) -> Result<Vec<String>, String> {
    let library =
        OpenLibrary::open(Library::Nvml, environment, "nvmlInit").map_err(|error| error.to_string())?;
    // SAFETY: the signatures are those that `nvml.h` declares for these symbols; an `OpenLibrary` is never unloaded.
    let table = unsafe { NvmlTable::resolve(|entry| library.symbol(entry.symbol)) };
    let check = |outcome: super::table::CallStatus| {
        if outcome.is_success() {
            Ok(())
        } else {
            Err(format!("{} answered {}", outcome.call, outcome.status))
        }
    };
    // SAFETY: takes nothing; initialisation is counted, and given back below.
    check(unsafe { table.init() })?;
    let read = || {
        let mut count: c_uint = 0;
        // SAFETY: writes one number.
        check(unsafe { table.device_count(&raw mut count) })?;
        let mut uuids = Vec::new();
        for index in 0..count {
            let (mut device, mut text) = (0_usize, [0_u8; 96]);
            // SAFETY: the first call writes one handle; the second is given the size of the buffer that it writes.
            check(unsafe { table.device_by_index(index, &raw mut device) })?;
            // SAFETY: as above.
            check(unsafe { table.device_uuid(device, text.as_mut_ptr().cast(), text.len() as c_uint) })?;
            uuids.push(Device::text(&text));
        }
        Ok(uuids)
    };
    let uuids = read();
    // SAFETY: gives back the initialisation above.
    let _ = unsafe { table.shutdown() };
    uuids
}

/// Returns how many of the devices `CUDA_VISIBLE_DEVICES` shows; `None` where it names parts of devices, which are not
/// counted.
///
/// CUDA reads the list from the left and stops at the first entry that names no device; a device that is named twice
/// makes it show none.
fn visible_count(visible: Option<&str>, uuids: &[String]) -> Option<u32> {
    let all = u32::try_from(uuids.len()).unwrap_or(u32::MAX);
    let Some(list) = visible else { return Some(all) };
    if list.trim_start().starts_with("MIG-") {
        return None;
    }
    let mut shown: Vec<usize> = Vec::new();
    for entry in list.split(',') {
        let entry = entry.trim();
        let named =
            if entry.starts_with("GPU-") { by_prefix(entry, uuids) } else { by_index(entry, uuids.len()) };
        match named {
            Some(device) if shown.contains(&device) => return Some(0),
            Some(device) => shown.push(device),
            None => break,
        }
    }
    Some(u32::try_from(shown.len()).unwrap_or(u32::MAX))
}

/// Returns the one device whose UUID begins so.
fn by_prefix(prefix: &str, uuids: &[String]) -> Option<usize> {
    let mut matching = uuids.iter().enumerate().filter(|(_, uuid)| uuid.starts_with(prefix));
    let (device, _) = matching.next()?;
    matching.next().is_none().then_some(device)
}

/// Returns the device of the number that the entry begins with, as C's `strtol` reads it.
fn by_index(entry: &str, count: usize) -> Option<usize> {
    let unsigned = entry.strip_prefix('+').unwrap_or(entry);
    let digits = unsigned.len() - unsigned.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    unsigned[..digits].parse().ok().filter(|index| *index < count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_visible_devices_is_read_as_cuda_reads_it() {
        let uuids: Vec<String> = ["GPU-aa11", "GPU-aa22", "GPU-bb33"].map(str::to_owned).to_vec();
        for (list, expected) in [
            (None, Some(3)),
            (Some(""), Some(0)),
            (Some("0"), Some(1)),
            (Some(" 2, 0"), Some(2)),
            (Some("0,1,2,3"), Some(3)),
            (Some("3,0"), Some(0)),
            (Some("0,-1,1"), Some(1)),
            (Some("-1"), Some(0)),
            (Some("1,1"), Some(0)),
            (Some("1gpu,0"), Some(2)),
            (Some("none"), Some(0)),
            (Some("GPU-bb"), Some(1)),
            (Some("GPU-aa"), Some(0)),
            (Some("GPU-aa1,GPU-aa2"), Some(2)),
            (Some("GPU-bb33,GPU-bb3"), Some(0)),
            (Some("GPU-zz,0"), Some(0)),
            (Some("99999999999999999999"), Some(0)),
            (Some("MIG-1234"), None),
        ] {
            assert_eq!(visible_count(list, &uuids), expected, "{list:?}");
        }
    }
}
