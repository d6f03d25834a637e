//! The account of a request that failed for lack of memory, for `show` and for the page.

use thalweg::memory_tools::analysis::OutOfMemoryEntry;
use thalweg::snapshot::{Recording, StackId};

use super::places::{by_place, place};
use super::size::size;

/// Returns the place of the request, its size, and the device's free memory.
pub fn in_short(recording: &Recording, requested: u64, stack: Option<StackId>, device_free: u64) -> String {
    format!("{}; {}", request_text(recording, requested, stack), left(device_free))
}

/// Returns all known details of the failure, in sentences. `gpu` is the size of the GPU, and `least_gpu` the size of the smallest
/// GPU that would have been enough, in bytes, if known.
pub fn in_full(
    recording: &Recording,
    failure: &OutOfMemoryEntry,
    gpu: Option<u64>,
    least_gpu: Option<u64>,
) -> String {
    let OutOfMemoryEntry {
        entry: _,
        requested_bytes,
        device_free_bytes,
        reserved_bytes,
        stack,
        fragmentation,
        by_stack,
    } = failure;
    let outside = match gpu {
        Some(gpu) => {
            format!(", and {} of the GPU were outside the allocator.", size(failure.outside_bytes(gpu)))
        }
        None => ". `--gpu-memory SIZE` shows how much was outside the allocator.".into(),
    };
    let holders: Vec<String> = by_place(recording, by_stack)
        .iter()
        .take(3)
        .map(|place| format!("{} by {}", size(place.bytes), place.name))
        .collect();
    let holders = match holders.is_empty() {
        true => String::new(),
        false => format!(" Most was held: {}.", holders.join("; ")),
    };
    let enough = least_gpu.map_or_else(String::new, |bytes| {
        format!(
            " With these settings, a GPU of {} would have been enough, plus the memory outside the allocator. `replay \
             --search --gpu-memory SIZE` tries other settings.",
            size(bytes)
        )
    });
    let free = fragmentation.reserved_bytes() - fragmentation.active_bytes;
    format!(
        "{}. {} were reserved, of which {} were not active, the largest free range {}; {}{outside}{holders}{enough}",
        request_text(recording, *requested_bytes, *stack),
        size(*reserved_bytes),
        size(free),
        size(fragmentation.largest_free_bytes),
        left(*device_free_bytes),
    )
}

fn request_text(recording: &Recording, bytes: u64, stack: Option<StackId>) -> String {
    format!("{} were requested at {}", size(bytes), place(recording, stack))
}

fn left(bytes: u64) -> String {
    format!("the device had {} left", size(bytes))
}
