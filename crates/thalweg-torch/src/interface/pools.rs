//! Pools, in the order in which a captured graph uses the functions: begin, end, checkpoint, restore, release.

use std::ffi::c_void;
use std::sync::Arc;

use thalweg_memory::{SegmentSource, StreamFilter};

use super::{User, on, on_unless_forked, put};
use crate::allocator::Allocator;
use crate::open_device::{CallerSource, Checkpoint, OpenDevice};
use crate::status::{Error, Result, Status};
use thalweg_runtime::{invalid, refuse_if};

/// `thalweg_segment_source`: the source of a pool's segments.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct SegmentSourceC {
    pub user: *mut c_void,
    pub drop_user: Option<unsafe extern "C" fn(*mut c_void)>,
    pub allocate: unsafe extern "C" fn(*mut c_void, u64, u64) -> u64,
    pub free: unsafe extern "C" fn(*mut c_void, u64, u64, u64),
}

fn source_of(device: &Arc<OpenDevice>, source: SegmentSourceC) -> Arc<dyn SegmentSource> {
    let user = Arc::new(User::new(source.user, source.drop_user));
    let (one, other) = (Arc::clone(&user), user);
    let streams = Arc::downgrade(device);
    Arc::new(CallerSource {
        // SAFETY: the header requires functions that take `user`, on any thread.
        allocate: Box::new(move |bytes, stream| unsafe { (source.allocate)(one.pointer(), bytes, stream) }),
        // SAFETY: as above.
        free: Box::new(move |address, bytes, stream| unsafe {
            (source.free)(other.pointer(), address, bytes, stream);
        }),
        cuda_stream_of: Box::new(move |id| {
            streams.upgrade().map_or(0, |device| device.streams.cuda_stream(id))
        }),
    })
}

exports! {
    /// Makes a pool, or adds a reference to it.
    on(allocator) thalweg_pool_retain(device: i32, first: u64, second: u64, source: *const SegmentSourceC) {
        allocator.with_device(device, |device| {
            // SAFETY: the header requires null or a whole source.
            let source = unsafe { source.as_ref() }.map(|source| source_of(device, *source));
            device.pools.retain(device.allocator(), (first, second), source).map(|_| ())
        })
    }

    /// Returns whether a pool's memory may be used when memory is short.
    on_unless_forked(allocator) thalweg_pool_set_use_on_oom(device: i32, first: u64, second: u64, value: u8) {
        allocator.with_device(device, |device| {
            let pool = device.pools.id((first, second))?;
            Ok(device.allocator().set_pool_use_on_oom(pool, value != 0)?)
        })
    }

    /// Returns whether a pool's blocks are never split.
    with_device(_, device) thalweg_pool_set_no_split(device: i32, first: u64, second: u64, value: u8) {
        let pool = device.pools.id((first, second))?;
        Ok(device.allocator().set_pool_no_split(pool, value != 0)?)
    }

    /// Returns the number of references to a pool.
    on(allocator) thalweg_pool_use_count(device: i32, first: u64, second: u64, count: *mut u64) {
        let found = allocator
            .opened(device)
            .map_or(0, |device| device.pools.use_count(device.allocator(), (first, second)));
        // SAFETY: the header requires a place.
        unsafe { put(count, found as u64) }
    }
}

/// Starts to route requests to a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_begin_allocate_to_pool(
    allocator: Option<&Allocator>,
    device: i32,
    first: u64,
    second: u64,
    filter: unsafe extern "C" fn(*mut c_void, u64) -> u8,
    user: *mut c_void,
    drop_user: Option<unsafe extern "C" fn(*mut c_void)>,
) -> Status {
    // Dropped in all cases, as the header specifies.
    let user = User::new(user, drop_user);
    on("thalweg_begin_allocate_to_pool", allocator, |allocator| {
        allocator.with_device(device, |device| {
            let streams = Arc::downgrade(device);
            let matches = move |id| {
                let cuda_stream = streams.upgrade().map_or(0, |device| device.streams.cuda_stream(id));
                // SAFETY: the header requires a function that takes `user`, on any thread.
                (unsafe { filter(user.pointer(), cuda_stream) }) != 0
            };
            device.pools.begin(device.allocator(), (first, second), StreamFilter::Matching(Arc::new(matches)))
        })
    })
}

exports! {
    /// Records that a capture begins.
    with_device(_, device) thalweg_mark_capture_begin(device: i32) {
        device.begin_capture();
        Ok(())
    }

    /// Records that a capture has ended.
    with_device(_, device) thalweg_mark_capture_end(device: i32) { device.end_capture() }
}

fn with_device(
    call: &'static str,
    allocator: Option<&Allocator>,
    device: i32,
    body: impl FnOnce(&Allocator, &OpenDevice) -> Result<()>,
) -> Status {
    let body = |allocator: &Allocator| allocator.with_device(device, |device| body(allocator, device));
    on(call, allocator, body)
}

exports! {
    /// Stops routing requests to a pool.
    with_device(_, device) thalweg_end_allocate_to_pool(device: i32, first: u64, second: u64) {
        device.pools.end(device.allocator(), (first, second))
    }

    /// Removes a reference to a pool.
    on_unless_forked(allocator) thalweg_release_pool(device: i32, first: u64, second: u64) {
        allocator.with_device(device, |device| device.release_pool((first, second)))
    }

    /// Releases a pool's cached memory to the driver.
    on_unless_forked(allocator) thalweg_empty_pool_cache(first: u64, second: u64) {
        allocator.empty_pool_cache((first, second))
    }

    /// Returns whether the live blocks of a pool are those that the caller names.
    with_device(_, device) thalweg_check_pool(
        device: i32, first: u64, second: u64, addresses: *const u64, count: usize, matches: *mut u8
    ) {
        refuse_if!(addresses.is_null() && count > 0, "the list of addresses is a null pointer");
        let expected = if count == 0 {
            &[]
        } else {
            // SAFETY: the header requires a list of this length.
            unsafe { std::slice::from_raw_parts(addresses, count) }
        };
        let pool = device.pools.id((first, second))?;
        let outcome = device.allocator().check_pool_live_allocations(pool, expected);
        // SAFETY: the header requires a place.
        unsafe { put(matches, u8::from(outcome.is_ok())) }
    }

    /// Takes a checkpoint of a pool.
    with_device(_, device) thalweg_checkpoint_take(device: i32, first: u64, second: u64, checkpoint: *mut *mut Checkpoint) {
        refuse_if!(checkpoint.is_null(), "the place for the checkpoint is a null pointer");
        let taken = Box::new(device.checkpoint((first, second))?);
        // SAFETY: the header requires a place.
        unsafe { put(checkpoint, Box::into_raw(taken)) }
    }
}

/// `thalweg_on_block`: a function that receives a block's address and size.
pub type OnBlock = unsafe extern "C" fn(*mut c_void, u64, u64);

exports! {
    /// Restores a pool to a checkpoint.
    with_device(allocator, device) thalweg_checkpoint_restore(
        device: i32, checkpoint: *const Checkpoint, on_freed: OnBlock, on_allocated: OnBlock, user: *mut c_void
    ) {
        // SAFETY: the header requires a checkpoint that was not dropped.
        let checkpoint = unsafe { checkpoint.as_ref() };
        let checkpoint = checkpoint.ok_or_else(|| invalid!("the checkpoint is a null pointer"))?;
        let restored = device.restore(&allocator.live, checkpoint)?;
        for address in restored.freed {
            // SAFETY: the header requires a function that takes `user`.
            unsafe { on_freed(user, address, 0) };
        }
        for (address, bytes) in restored.allocated {
            // SAFETY: as above.
            unsafe { on_allocated(user, address, bytes) };
        }
        Ok(())
    }
}

/// Drops a checkpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thalweg_checkpoint_drop(checkpoint: *mut Checkpoint) {
    if !checkpoint.is_null() {
        // SAFETY: the header requires that `thalweg_checkpoint_take` returned it, and that it is dropped once.
        drop(unsafe { Box::from_raw(checkpoint) });
    }
}
