//! The devices: every GPU that CUDA shows, then every simulated GPU.

use thalweg::driver::Code;
use thalweg::{Device, Error, Result};

use super::{Finding, ItemStatus, Report, bytes};

/// Opens every device. Reports those that cannot be opened, and returns the others, to be tested.
pub fn examine(report: &mut Report) -> Vec<Device> {
    let mut devices = Vec::new();
    for (kind, open) in [("cuda", Device::cuda as fn(u32) -> Result<Device>), ("sim", Device::sim)] {
        match open_all(open) {
            Ok(opened) => {
                opened.iter().for_each(|device| report.add(&describe(device)));
                devices.extend(opened);
            }
            Err(error) => report.add(&not_opened(kind, &error)),
        }
    }
    devices
}

fn open_all(open: fn(u32) -> Result<Device>) -> Result<Vec<Device>> {
    let first = open(0)?;
    let count = first.driver().device_count();
    std::iter::once(Ok(first)).chain((1..count).map(open)).collect()
}

fn describe(device: &Device) -> Finding {
    let properties = device.properties();
    let memory = properties.total_memory_bytes;
    let mut text = format!("{}, {}", properties.name, bytes(memory));
    if device.is_simulated() {
        text.push_str(", simulated on the CPU");
    } else {
        let (capability, processors) = (properties.compute_capability, properties.multi_processor_count);
        text.push_str(&format!(", compute capability {capability}, {processors} multiprocessors"));
    }
    let name = device.to_string();
    let finding = Finding::new(ItemStatus::Ok, "device", name.clone(), text)
        .value(memory, "bytes")
        .member("device", name)
        .member("device_name", properties.name.clone())
        .member("compute_capability", properties.compute_capability.to_string())
        .member("cuda_interface", device.driver().version().to_string());
    if device.is_simulated() {
        return finding;
    }
    finding
        .note(format!("CUDA {} by its driver; PCI {}", device.driver().version(), properties.pci_bus_id))
        .member("pci_bus_id", properties.pci_bus_id.clone())
}

/// Reports a driver that did not open. A machine without a GPU is in order, even if a driver is installed.
fn not_opened(kind: &'static str, error: &Error) -> Finding {
    let code = error.driver_error().map(thalweg::driver::Error::code);
    let (state, text, note) = match code {
        Some(Code::LibraryMissing) => {
            (ItemStatus::Missing, "no CUDA driver, so no GPU".to_owned(), "the simulated GPU is used instead")
        }
        Some(Code::NoDevice) => (
            ItemStatus::Missing,
            "the CUDA driver shows no GPU".to_owned(),
            "if there is one: give this machine or container access to it, and see that CUDA_VISIBLE_DEVICES does not \
             hide it",
        ),
        Some(Code::StubLibrary) => (
            ItemStatus::Missing,
            "a toolkit's stub stands in the place of the CUDA driver".to_owned(),
            "take the toolkit's `stubs` folder off the loader's path, or install the driver",
        ),
        _ => (ItemStatus::Failed, error.to_string(), "no device of this kind can be used"),
    };
    let mut finding = Finding::new(state, "device", kind, text).note(note).value((), "bytes");
    finding = finding.member("device", kind);
    finding.member("error", error.to_string())
}
