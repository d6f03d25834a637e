//! Memory: asking for it, giving it back, saying who uses it, and how much there may be.

use std::ffi::{c_char, c_void};

use thalweg_device::check::UseKind;
use thalweg_memory::SharingKind;

use super::{Write, give, on, put};
use crate::allocator::{Allocator, LiveBlockC};
use crate::status::{Error, Status, text_of};

/// Takes memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_malloc(
    allocator: *const Allocator,
    device: i32,
    bytes: u64,
    stream: u64,
    address: *mut u64,
) -> Status {
    // SAFETY: the header asks for an allocator and a place.
    unsafe {
        on("thalweg_malloc", allocator, |allocator| put(address, allocator.allocate(device, bytes, stream)?))
    }
}

/// Takes memory at an exact address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_malloc_at(
    allocator: *const Allocator,
    device: i32,
    bytes: u64,
    stream: u64,
    address: u64,
) -> Status {
    // SAFETY: the header asks for an allocator.
    unsafe {
        on("thalweg_malloc_at", allocator, |allocator| allocator.allocate_at(device, address, bytes, stream))
    }
}

/// Gives memory back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_free(allocator: *const Allocator, address: u64) -> Status {
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_free", allocator, |allocator| allocator.free(address)) }
}

/// Says that a stream uses memory, until it is given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_record_stream(
    allocator: *const Allocator,
    address: u64,
    device: i32,
    stream: u64,
) -> Status {
    let kind = UseKind::UntilFree;
    // SAFETY: the header asks for an allocator.
    unsafe {
        on("thalweg_record_stream", allocator, |allocator| allocator.record(address, device, stream, kind))
    }
}

/// Says that a stream has used memory, up to now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_record_use(
    allocator: *const Allocator,
    address: u64,
    device: i32,
    stream: u64,
) -> Status {
    let kind = UseKind::SoFar;
    // SAFETY: the header asks for an allocator.
    unsafe {
        on("thalweg_record_use", allocator, |allocator| allocator.record(address, device, stream, kind))
    }
}

/// What is known of the block at an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_find_block(
    allocator: *const Allocator,
    address: u64,
    block: *mut LiveBlockC,
) -> Status {
    // SAFETY: the header asks for an allocator and a place.
    unsafe { on("thalweg_find_block", allocator, |allocator| put(block, allocator.find(address)?)) }
}

/// Lets another device reach a device's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_enable_peer_access(
    allocator: *const Allocator,
    device: i32,
    accessor: i32,
) -> Status {
    let enable = |allocator: &Allocator| {
        allocator.check_process("thalweg_enable_peer_access")?;
        let _context = allocator.keep_context();
        let accessor = allocator.device(accessor)?.device.clone();
        Ok(allocator.device(device)?.device.enable_peer_access(&accessor)?)
    };
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_enable_peer_access", allocator, enable) }
}

/// Lets all devices that can reach each other's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_open_to_peers(allocator: *const Allocator) -> Status {
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_open_to_peers", allocator, Allocator::open_to_peers) }
}

/// Gives cached memory back to the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_empty_cache(allocator: *const Allocator) -> Status {
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_empty_cache", allocator, Allocator::empty_cache) }
}

/// The segment that a block is a part of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_base_allocation(
    allocator: *const Allocator,
    address: u64,
    base: *mut u64,
    bytes: *mut u64,
) -> Status {
    let find = |allocator: &Allocator| {
        allocator.check_process("thalweg_base_allocation")?;
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
        // SAFETY: the header asks for places.
        unsafe {
            put(base, extent.base_address)?;
            put(bytes, extent.extent_bytes)
        }
    };
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_base_allocation", allocator, find) }
}

/// The largest request that could be served now, about.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_cache_info(
    allocator: *const Allocator,
    device: i32,
    largest_bytes: *mut u64,
) -> Status {
    let find = |allocator: &Allocator| {
        let _context = allocator.keep_context();
        let bytes = allocator.device(device)?.largest_free_bytes()?;
        // SAFETY: the header asks for a place.
        unsafe { put(largest_bytes, bytes) }
    };
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_cache_info", allocator, find) }
}

/// Limits what may be taken from the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_set_memory_fraction(
    allocator: *const Allocator,
    device: i32,
    fraction: f64,
) -> Status {
    let set = |allocator: &Allocator| {
        let _context = allocator.keep_context();
        Ok(allocator.device(device)?.allocator().set_memory_fraction(fraction)?)
    };
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_set_memory_fraction", allocator, set) }
}

/// That limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_memory_fraction(
    allocator: *const Allocator,
    device: i32,
    fraction: *mut f64,
) -> Status {
    let find = |allocator: &Allocator| {
        let _context = allocator.keep_context();
        let found = allocator.device(device)?.allocator().memory_fraction();
        // SAFETY: the header asks for a place.
        unsafe { put(fraction, found) }
    };
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_memory_fraction", allocator, find) }
}

/// Changes settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_set_settings(allocator: *const Allocator, text: *const c_char) -> Status {
    // SAFETY: the header asks for an allocator and a text.
    unsafe {
        on("thalweg_set_settings", allocator, |allocator| allocator.set_settings(text_of("settings", text)?))
    }
}

/// The settings of a device that differ from their defaults, as a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_settings(
    allocator: *const Allocator,
    device: i32,
    write: Write,
    user: *mut c_void,
) -> Status {
    let find = |allocator: &Allocator| {
        let _context = allocator.keep_context();
        let text = allocator.device(device)?.allocator().settings().to_string();
        // SAFETY: the header asks for a function that takes `user`.
        unsafe { give(write, user, text.as_bytes()) };
        Ok(())
    };
    // SAFETY: the header asks for an allocator.
    unsafe { on("thalweg_settings", allocator, find) }
}
