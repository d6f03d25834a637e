//! [`host_room`]: lists whose length the caller chooses, so that the host may not have enough memory.

use thalweg_runtime::{Error, Result};

/// The size up to which a list is allocated without a check of the host's free memory.
const SMALL_LIST_BYTES: usize = 1 << 30;

/// Returns an empty list with capacity for `count` elements, or an error if the host does not have enough memory. A system that
/// overcommits memory would kill the process when it is used, so the available memory is checked too.
pub(crate) fn host_room<T>(count: usize) -> Result<Vec<T>> {
    let bytes = count.saturating_mul(size_of::<T>());
    let is_there = bytes <= SMALL_LIST_BYTES || available_bytes().is_none_or(|available| bytes <= available);
    let mut list = Vec::new();
    match is_there && list.try_reserve_exact(count).is_ok() {
        true => Ok(list),
        false => Err(Error::out_of_memory(format!(
            "the host has no room for {count} elements of {} bytes",
            size_of::<T>()
        ))),
    }
}

/// Returns the memory that the system reports as available; `None` if it does not report it (Linux does).
fn available_bytes() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}
