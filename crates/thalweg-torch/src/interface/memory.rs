//! Memory: allocating and freeing it, recording the streams that use it, and limiting it.

use std::ffi::{c_char, c_void};

use thalweg_driver::UseKind;
use thalweg_memory::SharingKind;

use super::{Write, give, on, on_unless_forked, put};
use crate::allocator::{Allocator, LiveBlockC};
use crate::status::{Error, Status, text_of};

/// Allocates memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_malloc(
    allocator: Option<&Allocator>,
    device: i32,
    bytes: u64,
    stream: u64,
    address: *mut u64,
) -> Status {
    // SAFETY: the header requires a place.
    unsafe {
        on("thalweg_malloc", allocator, |allocator| put(address, allocator.allocate(device, bytes, stream)?))
    }
}

/// Allocates memory at an exact address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_malloc_at(
    allocator: Option<&Allocator>,
    device: i32,
    bytes: u64,
    stream: u64,
    address: u64,
) -> Status {
    on("thalweg_malloc_at", allocator, |allocator| allocator.allocate_at(device, address, bytes, stream))
}

/// Frees memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_free(allocator: Option<&Allocator>, address: u64) -> Status {
    on_unless_forked("thalweg_free", allocator, |allocator| allocator.free(address))
}

/// Records that a stream uses memory, until it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_record_stream(
    allocator: Option<&Allocator>,
    address: u64,
    device: i32,
    stream: u64,
) -> Status {
    on_unless_forked("thalweg_record_stream", allocator, |allocator| {
        allocator.record(address, device, stream, UseKind::UntilFree)
    })
}

/// Records that a stream has used memory, up to now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_record_use(
    allocator: Option<&Allocator>,
    address: u64,
    device: i32,
    stream: u64,
) -> Status {
    on_unless_forked("thalweg_record_use", allocator, |allocator| {
        allocator.record(address, device, stream, UseKind::SoFar)
    })
}

/// Marks a stream as one that its owner may destroy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_set_stream_transient(
    allocator: Option<&Allocator>,
    device: i32,
    stream: u64,
) -> Status {
    on("thalweg_set_stream_transient", allocator, |allocator| allocator.set_stream_transient(device, stream))
}

/// Returns the properties of the block at an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_find_block(
    allocator: Option<&Allocator>,
    address: u64,
    block: *mut LiveBlockC,
) -> Status {
    // SAFETY: the header requires a place.
    unsafe { on("thalweg_find_block", allocator, |allocator| put(block, allocator.find(address)?)) }
}

/// Enables another device's access to a device's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_enable_peer_access(
    allocator: Option<&Allocator>,
    device: i32,
    accessor: i32,
) -> Status {
    on("thalweg_enable_peer_access", allocator, |allocator| {
        let accessor = allocator.device(accessor)?.device.clone();
        allocator.with_device(device, |device| Ok(device.device.enable_peer_access(&accessor)?))
    })
}

/// Enables peer access between all devices that support it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_open_to_peers(allocator: Option<&Allocator>) -> Status {
    on("thalweg_open_to_peers", allocator, Allocator::open_to_peers)
}

/// Releases cached memory to the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_empty_cache(allocator: Option<&Allocator>) -> Status {
    on("thalweg_empty_cache", allocator, Allocator::empty_cache)
}

/// Returns the segment that a block is a part of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_base_allocation(
    allocator: Option<&Allocator>,
    address: u64,
    base: *mut u64,
    bytes: *mut u64,
) -> Status {
    on("thalweg_base_allocation", allocator, |allocator| {
        let extent = allocator.live.with(address, |live| live.block.shared_extent()).flatten();
        let extent = extent.ok_or_else(|| {
            Error::invalid(format!(
                "{address:#x} is in no live block of this allocator that lies in a segment"
            ))
        })?;
        if extent.kind == SharingKind::Pages {
            return Err(Error::invalid(
                "memory of expandable segments has no base allocation; share it by its IPC handle",
            ));
        }
        // SAFETY: the header requires places.
        unsafe {
            put(base, extent.base_address)?;
            put(bytes, extent.extent_bytes)
        }
    })
}

/// Returns approximately the largest request that could be served now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_cache_info(
    allocator: Option<&Allocator>,
    device: i32,
    largest_bytes: *mut u64,
) -> Status {
    on("thalweg_cache_info", allocator, |allocator| {
        let bytes = allocator.with_device(device, |device| device.largest_free_bytes())?;
        // SAFETY: the header requires a place.
        unsafe { put(largest_bytes, bytes) }
    })
}

/// Limits the memory that may be taken from the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_set_memory_fraction(
    allocator: Option<&Allocator>,
    device: i32,
    fraction: f64,
) -> Status {
    on("thalweg_set_memory_fraction", allocator, |allocator| {
        allocator.with_device(device, |device| Ok(device.allocator().set_memory_fraction(fraction)?))
    })
}

/// Returns the fraction of memory that the process may take.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_memory_fraction(
    allocator: Option<&Allocator>,
    device: i32,
    fraction: *mut f64,
) -> Status {
    on("thalweg_memory_fraction", allocator, |allocator| {
        let found = allocator.with_device(device, |device| Ok(device.allocator().memory_fraction()))?;
        // SAFETY: the header requires a place.
        unsafe { put(fraction, found) }
    })
}

/// Changes settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_set_settings(allocator: Option<&Allocator>, text: *const c_char) -> Status {
    // SAFETY: the header requires a text.
    unsafe {
        on("thalweg_set_settings", allocator, |allocator| allocator.set_settings(text_of("settings", text)?))
    }
}

/// Returns the settings of a device that differ from their defaults, as a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_settings(
    allocator: Option<&Allocator>,
    device: i32,
    write: Write,
    user: *mut c_void,
) -> Status {
    on("thalweg_settings", allocator, |allocator| {
        let text = allocator.settings(device)?.to_string();
        // SAFETY: the header requires a function that takes `user`.
        unsafe { give(write, user, text.as_bytes()) };
        Ok(())
    })
}

/// `thalweg_configuration`: the settings that PyTorch's snapshots name.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct ConfigurationC {
    pub garbage_collection_threshold: f64,
    pub max_split_size_bytes: u64,
    pub roundup_power2_divisions: [u64; 16],
    pub expandable_segments: u8,
    pub release_lock_on_cudamalloc: u8,
    pub graph_capture_record_stream_reuse: u8,
}

/// Returns the settings of a device as snapshots have them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_configured(
    allocator: Option<&Allocator>,
    device: i32,
    configuration: *mut ConfigurationC,
) -> Status {
    on("thalweg_configured", allocator, |allocator| {
        let settings = allocator.settings(device)?;
        let found = ConfigurationC {
            garbage_collection_threshold: settings.garbage_collection_threshold().unwrap_or(0.0),
            max_split_size_bytes: settings.max_split_size_bytes().unwrap_or(u64::MAX),
            roundup_power2_divisions: settings.roundup_power2_divisions().intervals(),
            expandable_segments: u8::from(settings.expandable_segments()),
            release_lock_on_cudamalloc: u8::from(settings.release_lock_on_cudamalloc()),
            graph_capture_record_stream_reuse: u8::from(settings.graph_capture_record_stream_reuse()),
        };
        // SAFETY: the header requires a place.
        unsafe { put(configuration, found) }
    })
}
