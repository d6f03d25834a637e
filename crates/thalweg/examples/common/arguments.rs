//! The values of command lines.

use thalweg::{DType, Device};

/// The request of a command line.
pub enum Command<O> {
    Run(O),
    Help,
}

/// Returns the device of a name, or the best one.
pub fn device(name: Option<&str>) -> thalweg::Result<Device> {
    name.map_or_else(Device::best, Device::from_name)
}

pub fn dtype(name: &str) -> Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::Bf16),
        other => Err(format!("--dtype takes f32 or bf16, not '{other}'")),
    }
}

/// Returns a whole number that is not below the least.
pub fn number(name: &str, text: &str, least: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number >= least);
    number.ok_or_else(|| format!("{name} takes a whole number from {least} on, not '{text}'"))
}
