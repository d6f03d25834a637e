//! The availability and the current state of the machine's devices, without touching CUDA.
//!
//! Asking CUDA itself initialises it, and a process that has initialised CUDA cannot `fork` children that use it. NVML, the
//! management library, knows the devices without that. NVML ignores `CUDA_VISIBLE_DEVICES`, so that is applied here, by
//! CUDA's rules. NVML's order is that of the PCI addresses, which equals CUDA's with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, and if
//! all GPUs are alike.

use std::ffi::{c_char, c_uint};
use std::fmt;

use crate::Result;
use crate::cuda::context::Device;
use crate::cuda::search::{Library, OpenLibrary, SearchEnvironment};
use crate::cuda::table::{CallStatus, entry_points};

entry_points! {
    /// libnvidia-ml.
    NvmlTable {
        init = nvmlInit as nvmlInit_v2 ();
        shutdown = nvmlShutdown ();
        device_count = nvmlDeviceGetCount as nvmlDeviceGetCount_v2 (count: *mut c_uint);
        device_by_index = nvmlDeviceGetHandleByIndex as nvmlDeviceGetHandleByIndex_v2 (index: c_uint, device: *mut usize);
        device_uuid = nvmlDeviceGetUUID (device: usize, text: *mut c_char, bytes: c_uint);
        utilization = nvmlDeviceGetUtilizationRates (device: usize, rates: *mut [c_uint; 2]);
        temperature = nvmlDeviceGetTemperature (device: usize, sensor: c_uint, degrees: *mut c_uint);
        power = nvmlDeviceGetPowerUsage (device: usize, milliwatts: *mut c_uint);
        clock = nvmlDeviceGetClockInfo (device: usize, clock: c_uint, megahertz: *mut c_uint);
        processes = nvmlDeviceGetComputeRunningProcesses as nvmlDeviceGetComputeRunningProcesses_v3 (device: usize,
            count: *mut c_uint, processes: *mut Process);
    }
}

/// `nvmlProcessInfo_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(in crate::cuda) struct Process {
    id: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// A reading of a device's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reading {
    /// The percentage of the last sample period in which a kernel ran.
    Utilization,
    /// The percentage of the last sample period in which memory was read or written.
    MemoryUtilization,
    /// The temperature in degrees Celsius.
    Temperature,
    /// The power consumption, in milliwatts.
    Power,
    /// The clock rate of the multiprocessors in megahertz.
    ClockRate,
}

/// A process that computes on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceProcess {
    /// The process's number.
    pub id: u32,
    /// The device memory that the process uses; `None` if the system does not report it.
    pub used_bytes: Option<u64>,
}

/// The reason why a device's state is unknown: NVML is not on this machine, there is no such device, or NVML refuses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateUnknown(String);

impl fmt::Display for StateUnknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StateUnknown {}

/// The result of the check whether CUDA would find a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Availability {
    /// The number of devices that CUDA would show; 0 if it cannot be determined.
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
    /// The CUDA driver is not on this machine. The text lists the places that were searched.
    DriverMissing(String),
    /// The driver is there, but no device.
    NoDevice,
    /// There are devices, but `CUDA_VISIBLE_DEVICES`, whose value this is, hides them all.
    Hidden(String),
    /// The CUDA driver is there, but devices could not be counted without initialising it. The text is the reason.
    Unknown(String),
}

impl Availability {
    /// Returns whether there is a usable device, as far as this can be determined.
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
/// Reads the environment (`CUDA_VISIBLE_DEVICES` and the variables of [`SearchEnvironment::from_process`]).
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
    match visible_devices(visible, &uuids) {
        Some(shown) if shown.is_empty() => {
            none(AvailabilityReason::Hidden(visible.unwrap_or_default().to_owned()))
        }
        Some(shown) => {
            let device_count = u32::try_from(shown.len()).unwrap_or(u32::MAX);
            Availability { device_count, reason: AvailabilityReason::Counted }
        }
        None => {
            let value = visible.unwrap_or_default();
            none(AvailabilityReason::Unknown(format!(
                "CUDA_VISIBLE_DEVICES={value:?} names parts of devices"
            )))
        }
    }
}

/// Returns a reading of a device, by its number among those that `CUDA_VISIBLE_DEVICES` shows. Does not initialise CUDA or
/// create a context.
///
/// # Errors
/// NVML is not on this machine, there is no such device, or NVML refuses; the text contains the reason and advice.
pub fn device_reading(device: u32, reading: Reading) -> Result<u64, StateUnknown> {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    with_nvml(&SearchEnvironment::from_process(), |table| {
        read(table, handle_of(table, device, visible.as_deref())?, reading)
    })
    .map_err(StateUnknown)
}

/// Returns the processes that compute on a device, by its number among those that `CUDA_VISIBLE_DEVICES` shows.
pub fn device_processes(device: u32) -> Result<Vec<DeviceProcess>, StateUnknown> {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    with_nvml(&SearchEnvironment::from_process(), |table| {
        processes(table, handle_of(table, device, visible.as_deref())?)
    })
    .map_err(StateUnknown)
}

/// Turns a status into a result, with its meaning.
fn check(outcome: CallStatus) -> Result<(), String> {
    if outcome.is_success() {
        return Ok(());
    }
    let meaning = match (outcome.missing, outcome.status) {
        (Some(_), _) => "the installed library does not have it: update the driver",
        (None, 3) => "the device does not support it",
        (None, 4) => "this user may not ask it",
        (None, 9) => "the driver is not loaded",
        (None, 15) => "the GPU is lost: restart the machine",
        _ => "see nvmlReturn_t in NVML's documentation",
    };
    Err(format!("{} answered {}: {meaning}", outcome.call, outcome.status))
}

/// Opens NVML and calls a function between its initialisation and its shutdown.
fn with_nvml<T>(
    environment: &SearchEnvironment,
    call: impl FnOnce(&NvmlTable) -> Result<T, String>,
) -> Result<T, String> {
    let library =
        OpenLibrary::open(Library::Nvml, environment, "nvmlInit").map_err(|error| error.to_string())?;
    // SAFETY: the signatures are those that `nvml.h` declares for these symbols; an `OpenLibrary` is never unloaded.
    let table = unsafe { NvmlTable::resolve(|entry| library.symbol(entry.symbol)) };
    // SAFETY: takes nothing; initialisation is counted, and undone below.
    check(unsafe { table.init() })?;
    let result = call(&table);
    // SAFETY: undoes the initialisation above.
    let _ = unsafe { table.shutdown() };
    result
}

/// Returns the handles of all devices with their UUIDs (`GPU-…`), in NVML's order.
fn devices(table: &NvmlTable) -> Result<Vec<(usize, String)>, String> {
    let mut count: c_uint = 0;
    // SAFETY: writes one number.
    check(unsafe { table.device_count(&raw mut count) })?;
    let one = |index| {
        let (mut device, mut text) = (0_usize, [0_u8; 96]);
        // SAFETY: writes one handle.
        check(unsafe { table.device_by_index(index, &raw mut device) })?;
        // SAFETY: the size of the buffer is passed to the call, which writes it.
        check(unsafe { table.device_uuid(device, text.as_mut_ptr().cast(), text.len() as c_uint) })?;
        Ok((device, Device::text(&text)))
    };
    (0..count).map(one).collect()
}

/// Returns the UUIDs of all devices.
fn device_uuids(environment: &SearchEnvironment) -> Result<Vec<String>, String> {
    let all = with_nvml(environment, devices)?;
    Ok(all.into_iter().map(|(_, uuid)| uuid).collect())
}

/// Returns NVML's handle of a visible device.
fn handle_of(table: &NvmlTable, device: u32, visible: Option<&str>) -> Result<usize, String> {
    let (handles, uuids): (Vec<_>, Vec<_>) = devices(table)?.into_iter().unzip();
    let Some(shown) = visible_devices(visible, &uuids) else {
        let value = visible.unwrap_or_default();
        return Err(format!(
            "CUDA_VISIBLE_DEVICES={value:?} names parts of devices, whose state NVML does not tell"
        ));
    };
    let place = shown.get(device as usize);
    place.map(|&place| handles[place]).ok_or_else(|| {
        format!("there is no GPU {device}: CUDA shows {} of {} in this process", shown.len(), handles.len())
    })
}

fn read(table: &NvmlTable, device: usize, reading: Reading) -> Result<u64, String> {
    let (mut rates, mut value) = ([0; 2], 0);
    // SAFETY: a handle of NVML, and room for the results; 0 is the sensor on the chip, 1 the clock of the multiprocessors.
    check(unsafe {
        match reading {
            Reading::Utilization | Reading::MemoryUtilization => table.utilization(device, &raw mut rates),
            Reading::Temperature => table.temperature(device, 0, &raw mut value),
            Reading::Power => table.power(device, &raw mut value),
            Reading::ClockRate => table.clock(device, 1, &raw mut value),
        }
    })?;
    Ok(u64::from(match reading {
        Reading::Utilization => rates[0],
        Reading::MemoryUtilization => rates[1],
        _ => value,
    }))
}

/// `NVML_ERROR_INSUFFICIENT_SIZE`: there are more processes than the list has room for.
const TOO_SHORT: u32 = 7;

fn processes(table: &NvmlTable, device: usize) -> Result<Vec<DeviceProcess>, String> {
    let mut list = vec![Process::default(); 64];
    loop {
        let mut count = list.len() as c_uint;
        // SAFETY: a handle of NVML, and a list with room for `count` processes.
        let outcome = unsafe { table.processes(device, &raw mut count, list.as_mut_ptr()) };
        if outcome.status == TOO_SHORT && list.len() < 1 << 16 {
            list.resize(2 * list.len(), Process::default());
            continue;
        }
        check(outcome)?;
        list.truncate(count as usize);
        let known = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
        let of = |one: &Process| DeviceProcess { id: one.id, used_bytes: known(one.used_bytes) };
        return Ok(list.iter().map(of).collect());
    }
}

/// Returns the indices of the devices that `CUDA_VISIBLE_DEVICES` shows, in CUDA's order; `None` if it names parts of
/// devices, which are not counted.
///
/// CUDA reads the list from the left and stops at the first entry that names no device; if a device is named twice, no
/// device is shown.
fn visible_devices(visible: Option<&str>, uuids: &[String]) -> Option<Vec<usize>> {
    let Some(list) = visible else { return Some((0..uuids.len()).collect()) };
    if list.trim_start().starts_with("MIG-") {
        return None;
    }
    let mut shown: Vec<usize> = Vec::new();
    for entry in list.split(',') {
        let entry = entry.trim();
        let named =
            if entry.starts_with("GPU-") { by_prefix(entry, uuids) } else { by_index(entry, uuids.len()) };
        match named {
            Some(device) if shown.contains(&device) => return Some(Vec::new()),
            Some(device) => shown.push(device),
            None => break,
        }
    }
    Some(shown)
}

/// Returns the only device whose UUID begins with `prefix`.
fn by_prefix(prefix: &str, uuids: &[String]) -> Option<usize> {
    let mut matching = uuids.iter().enumerate().filter(|(_, uuid)| uuid.starts_with(prefix));
    let (device, _) = matching.next()?;
    matching.next().is_none().then_some(device)
}

/// Returns the device whose number the entry begins with, as C's `strtol` reads it.
fn by_index(entry: &str, count: usize) -> Option<usize> {
    let unsigned = entry.strip_prefix('+').unwrap_or(entry);
    let digits = unsigned.len() - unsigned.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    unsigned[..digits].parse().ok().filter(|index| *index < count)
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    #[test]
    fn the_list_of_visible_devices_is_read_as_cuda_reads_it() {
        let uuids: Vec<String> = ["GPU-aa11", "GPU-aa22", "GPU-bb33"].map(str::to_owned).to_vec();
        for (list, expected) in [
            (None, Some(&[0, 1, 2][..])),
            (Some(""), Some(&[])),
            (Some("0"), Some(&[0])),
            (Some(" 2, 0"), Some(&[2, 0])),
            (Some("0,1,2,3"), Some(&[0, 1, 2])),
            (Some("3,0"), Some(&[])),
            (Some("0,-1,1"), Some(&[0])),
            (Some("-1"), Some(&[])),
            (Some("1,1"), Some(&[])),
            (Some("1gpu,0"), Some(&[1, 0])),
            (Some("none"), Some(&[])),
            (Some("GPU-bb"), Some(&[2])),
            (Some("GPU-aa"), Some(&[])),
            (Some("GPU-aa1,GPU-aa2"), Some(&[0, 1])),
            (Some("GPU-bb33,GPU-bb3"), Some(&[])),
            (Some("GPU-zz,0"), Some(&[])),
            (Some("99999999999999999999"), Some(&[])),
            (Some("MIG-1234"), None),
        ] {
            assert_eq!(visible_devices(list, &uuids).as_deref(), expected, "{list:?}");
        }
    }

    /// Three devices whose handles are 100, 101 and 102.
    mod three {
        use super::*;

        pub extern "C" fn device_count(count: *mut c_uint) -> u32 {
            // SAFETY: room for a number.
            unsafe { *count = 3 };
            0
        }

        pub extern "C" fn device_by_index(index: c_uint, device: *mut usize) -> u32 {
            // SAFETY: room for a handle.
            unsafe { *device = 100 + index as usize };
            0
        }

        pub extern "C" fn device_uuid(device: usize, text: *mut c_char, bytes: c_uint) -> u32 {
            let name = format!("GPU-{device}\0");
            assert!(name.len() <= bytes as usize);
            // SAFETY: a buffer that is long enough.
            unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), text.cast(), name.len()) };
            0
        }

        pub extern "C" fn utilization(device: usize, rates: *mut [c_uint; 2]) -> u32 {
            // SAFETY: room for two numbers.
            unsafe { *rates = [device as u32 - 60, 7] };
            0
        }

        pub extern "C" fn temperature(_device: usize, sensor: c_uint, degrees: *mut c_uint) -> u32 {
            // SAFETY: room for a number.
            unsafe { *degrees = 50 + sensor };
            0
        }

        pub extern "C" fn power(_device: usize, _milliwatts: *mut c_uint) -> u32 {
            3
        }

        pub extern "C" fn clock(_device: usize, clock: c_uint, megahertz: *mut c_uint) -> u32 {
            // SAFETY: room for a number.
            unsafe { *megahertz = 1980 + clock };
            0
        }

        pub extern "C" fn processes(device: usize, count: *mut c_uint, list: *mut Process) -> u32 {
            let all = if device == 100 { 100 } else { 1 };
            // SAFETY: room for a number, and a list of that length.
            unsafe {
                if *count < all {
                    return TOO_SHORT;
                }
                for id in 0..all {
                    let used_bytes = if id == 0 { u64::MAX } else { u64::from(id) << 20 };
                    *list.add(id as usize) = Process { id, used_bytes, ..Process::default() };
                }
                *count = all;
            }
            0
        }
    }

    fn table() -> NvmlTable {
        // SAFETY: functions of these signatures.
        unsafe {
            NvmlTable::resolve(|entry| match entry.name {
                "nvmlDeviceGetCount" => three::device_count as *const c_void,
                "nvmlDeviceGetHandleByIndex" => three::device_by_index as *const c_void,
                "nvmlDeviceGetUUID" => three::device_uuid as *const c_void,
                "nvmlDeviceGetUtilizationRates" => three::utilization as *const c_void,
                "nvmlDeviceGetTemperature" => three::temperature as *const c_void,
                "nvmlDeviceGetPowerUsage" => three::power as *const c_void,
                "nvmlDeviceGetClockInfo" => three::clock as *const c_void,
                "nvmlDeviceGetComputeRunningProcesses" => three::processes as *const c_void,
                _ => std::ptr::null(),
            })
        }
    }

    #[test]
    fn readings_are_those_of_the_visible_device() {
        let table = table();
        let of = |device, visible, reading| {
            handle_of(&table, device, visible).and_then(|handle| read(&table, handle, reading))
        };
        assert_eq!(of(1, None, Reading::Utilization), Ok(41));
        assert_eq!(of(0, Some("2,0"), Reading::Utilization), Ok(42));
        assert_eq!(of(1, Some("GPU-102,GPU-100"), Reading::Utilization), Ok(40));
        assert_eq!(of(0, None, Reading::MemoryUtilization), Ok(7));
        assert_eq!(of(0, None, Reading::Temperature), Ok(50), "the sensor on the chip");
        assert_eq!(of(0, None, Reading::ClockRate), Ok(1981), "the clock of the multiprocessors");
        let refused = of(0, None, Reading::Power).unwrap_err();
        assert_eq!(refused, "nvmlDeviceGetPowerUsage answered 3: the device does not support it");
        let missing = of(2, Some("0"), Reading::Power).unwrap_err();
        assert_eq!(missing, "there is no GPU 2: CUDA shows 1 of 3 in this process");
        assert!(of(0, Some("MIG-1"), Reading::Power).unwrap_err().contains("names parts of devices"));
    }

    #[test]
    fn a_list_of_processes_grows_until_all_fit() {
        let all = processes(&table(), 100).unwrap();
        assert_eq!(all.len(), 100);
        assert_eq!(
            all[..2],
            [DeviceProcess { id: 0, used_bytes: None }, DeviceProcess { id: 1, used_bytes: Some(1 << 20) }]
        );
        assert_eq!(processes(&table(), 101).unwrap().len(), 1);
    }

    #[test]
    fn a_machine_without_nvml_is_told_how_to_get_it() {
        let missing = std::path::PathBuf::from("/nonexistent/libnvidia-ml.so.1");
        let environment =
            SearchEnvironment { overrides: vec![(Library::Nvml, missing)], ..SearchEnvironment::default() };
        if let Err(text) = with_nvml(&environment, |_| Ok(())) {
            assert!(text.contains("nvmlInit") && text.contains("/nonexistent/libnvidia-ml.so.1"), "{text}");
        }
    }
}
