//! Memory: allocating and freeing it, recording the streams that use it, and limiting it.

use std::ffi::{c_char, c_void};

use thalweg_driver::UseKind;
use thalweg_memory::SharingKind;

use super::{Write, give, on, on_unless_forked, put};
use crate::allocator::LiveBlockC;
use crate::status::{Error, text_of};
use thalweg_runtime::{invalid, refuse};

exports! {
    /// Allocates memory.
    on(allocator) thalweg_malloc(device: i32, bytes: u64, stream: u64, address: *mut u64) {
        // SAFETY: the header requires a place.
        unsafe { put(address, allocator.allocate(device, bytes, stream)?) }
    }

    /// Allocates memory at an exact address.
    on(allocator) thalweg_malloc_at(device: i32, bytes: u64, stream: u64, address: u64) {
        allocator.allocate_at(device, address, bytes, stream)
    }

    /// Frees memory.
    on_unless_forked(allocator) thalweg_free(address: u64) { allocator.free(address) }

    /// Records that a stream uses memory, until it is freed.
    on_unless_forked(allocator) thalweg_record_stream(address: u64, device: i32, stream: u64) {
        allocator.record(address, device, stream, UseKind::UntilFree)
    }

    /// Records that a stream has used memory, up to now.
    on_unless_forked(allocator) thalweg_record_use(address: u64, device: i32, stream: u64) {
        allocator.record(address, device, stream, UseKind::SoFar)
    }

    /// Marks a stream as one that its owner may destroy.
    on(allocator) thalweg_set_stream_transient(device: i32, stream: u64) { allocator.set_stream_transient(device, stream) }

    /// Returns the properties of the block at an address.
    on(allocator) thalweg_find_block(address: u64, block: *mut LiveBlockC) {
        // SAFETY: the header requires a place.
        unsafe { put(block, allocator.find(address)?) }
    }

    /// Enables another device's access to a device's memory.
    on(allocator) thalweg_enable_peer_access(device: i32, accessor: i32) {
        let accessor = allocator.device(accessor)?.device.clone();
        allocator.with_device(device, |device| Ok(device.device.enable_peer_access(&accessor)?))
    }

    /// Enables peer access between all devices that support it.
    on(allocator) thalweg_open_to_peers() { allocator.open_to_peers() }

    /// Releases cached memory to the driver.
    on(allocator) thalweg_empty_cache() { allocator.empty_cache() }

    /// Returns the segment that a block is a part of.
    on(allocator) thalweg_base_allocation(address: u64, base: *mut u64, bytes: *mut u64) {
        let extent = allocator.live.with(address, |live| live.block.shared_extent()).flatten();
        let extent = extent.ok_or_else(|| {
            invalid!("{address:#x} is in no live block of this allocator that lies in a segment")
        })?;
        if extent.kind == SharingKind::Pages {
            refuse!("memory of expandable segments has no base allocation; share it by its IPC handle");
        }
        // SAFETY: the header requires places.
        unsafe {
            put(base, extent.base_address)?;
            put(bytes, extent.extent_bytes)
        }
    }

    /// Returns approximately the largest request that could be served now.
    on(allocator) thalweg_cache_info(device: i32, largest_bytes: *mut u64) {
        let bytes = allocator.with_device(device, |device| device.largest_free_bytes())?;
        // SAFETY: the header requires a place.
        unsafe { put(largest_bytes, bytes) }
    }

    /// Limits the memory that may be taken from the driver.
    on(allocator) thalweg_set_memory_fraction(device: i32, fraction: f64) {
        allocator.with_device(device, |device| Ok(device.allocator().set_memory_fraction(fraction)?))
    }

    /// Returns the fraction of memory that the process may take.
    on(allocator) thalweg_memory_fraction(device: i32, fraction: *mut f64) {
        let found = allocator.with_device(device, |device| Ok(device.allocator().memory_fraction()))?;
        // SAFETY: the header requires a place.
        unsafe { put(fraction, found) }
    }

    /// Changes settings.
    on(allocator) thalweg_set_settings(text: *const c_char) {
        // SAFETY: the header requires a text.
        unsafe { allocator.set_settings(text_of("settings", text)?) }
    }

    /// Returns the settings of a device that differ from their defaults, as a text.
    on(allocator) thalweg_settings(device: i32, write: Write, user: *mut c_void) {
        let text = allocator.settings(device)?.to_string();
        // SAFETY: the header requires a function that takes `user`.
        unsafe { give(write, user, text.as_bytes()) };
        Ok(())
    }
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

exports! {
    /// Returns the settings of a device as snapshots have them.
    on(allocator) thalweg_configured(device: i32, configuration: *mut ConfigurationC) {
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
    }
}
