//! Snapshots with PyTorch's names: `cudaStream_t`s and PyTorch's pool names, of all open devices.
//!
//! The state and the history come from [`thalweg_snapshot`]. Here names are translated, and the snapshot is passed to C piece by
//! piece ([`visit`]), or as a file ([`Snapshot::to_pickle`]).

use std::ffi::{CString, c_char, c_void};

use thalweg_memory::history::Event;
use thalweg_memory::{BlockState, SizeClass, SnapshotOptions, StreamId};
use thalweg_snapshot::{Action, Segment, SegmentBlock, Snapshot, TraceEntry};

use crate::allocator::Allocator;
use crate::open_device::OpenDevice;
use crate::pools::PoolName;
use crate::stacks::as_numbers;
use crate::status::Result;

/// `thalweg_segment`. The blocks after it in a visit, up to the next segment, are in this segment.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct SegmentC {
    pub device: i32,
    pub is_large: u8,
    pub is_expandable: u8,
    pub address: u64,
    pub total_bytes: u64,
    pub requested_bytes: u64,
    pub allocated_bytes: u64,
    pub active_bytes: u64,
    pub stream: u64,
    pub pool_first: u64,
    pub pool_second: u64,
    pub stack: u32,
}

/// `thalweg_block`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct BlockC {
    pub address: u64,
    pub size_bytes: u64,
    pub requested_bytes: u64,
    pub is_allocated: u8,
    pub is_active: u8,
    pub stack: u32,
}

/// `thalweg_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct EventC {
    pub action: u8,
    pub device: i32,
    pub address: u64,
    pub size_bytes: u64,
    pub stream: u64,
    pub pool_first: u64,
    pub pool_second: u64,
    pub time_us: i64,
    pub stack: u32,
    pub compile_context: *const c_char,
    pub user_metadata: *const c_char,
    pub internal_metadata: *const c_char,
}

/// `thalweg_annotation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct AnnotationC {
    pub device: i32,
    pub time_us: i64,
    pub name: *const c_char,
    pub stage: *const c_char,
}

/// `thalweg_visitor`: functions that are called with each part of a snapshot. None may be null.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the header explains each field")]
pub struct VisitorC {
    pub user: *mut c_void,
    pub segment: unsafe extern "C" fn(*mut c_void, *const SegmentC),
    pub block: unsafe extern "C" fn(*mut c_void, *const BlockC),
    pub event: unsafe extern "C" fn(*mut c_void, *const EventC),
    pub annotation: unsafe extern "C" fn(*mut c_void, *const AnnotationC),
}

/// Returns a snapshot of all open devices. With a pool, it has only the pool's segments, and only devices that have the pool.
pub(crate) fn take(allocator: &Allocator, pool: PoolName, include_traces: bool) -> Result<Snapshot> {
    let mut all = Snapshot::default();
    for device in allocator.open_devices() {
        let mut options = SnapshotOptions::default().with_traces(include_traces);
        if pool != (0, 0) {
            let Ok(id) = device.pools.id(pool) else { continue };
            options = options.with_pool(id);
        }
        let mut snapshot = device.allocator().memory_snapshot_with(&options);
        translate(device, &mut snapshot);
        all.segments.append(&mut snapshot.segments);
        all.external_annotations.append(&mut snapshot.external_annotations);
        all.allocator_settings = snapshot.allocator_settings;
        for (place, trace) in snapshot.device_traces.into_iter().enumerate() {
            if all.device_traces.len() <= place {
                all.device_traces.resize_with(place + 1, Vec::new);
            }
            all.device_traces[place].extend(trace);
        }
    }
    Ok(all)
}

fn translate(device: &OpenDevice, snapshot: &mut Snapshot) {
    let cuda_stream = |stream: StreamId| StreamId::from_raw(device.streams.cuda_stream(stream));
    for segment in &mut snapshot.segments {
        segment.stream = cuda_stream(segment.stream);
        segment.pool_id = device.pools.name(segment.pool_id);
    }
    for entry in snapshot.device_traces.iter_mut().flatten() {
        entry.stream = cuda_stream(entry.stream);
        entry.pool_id = entry.pool_id.map(|pool| device.pools.name(pool));
    }
}

/// Passes a snapshot to C, piece by piece; stacks are the numbers that the caller's recorder received
/// (`thalweg_record_stacks_by`).
///
/// # Safety
/// The visitor's functions can be called with its `user`.
pub(crate) unsafe fn visit(
    allocator: &Allocator,
    pool: PoolName,
    include_traces: bool,
    visitor: &VisitorC,
) -> Result<()> {
    let snapshot = as_numbers(|| take(allocator, pool, include_traces))?;
    for segment in &snapshot.segments {
        // SAFETY: the caller's promise.
        unsafe { (visitor.segment)(visitor.user, &segment_of(segment)) };
        for block in &segment.blocks {
            // SAFETY: as above.
            unsafe { (visitor.block)(visitor.user, &block_of(block)) };
        }
    }
    for (device, trace) in (0..).zip(&snapshot.device_traces) {
        for entry in trace {
            // SAFETY: as above.
            visit_entry(device, entry, |event| unsafe { (visitor.event)(visitor.user, event) });
        }
    }
    for annotation in &snapshot.external_annotations {
        let (name, stage) = (text_of(&annotation.name), text_of(&annotation.stage));
        let annotation = AnnotationC {
            device: annotation.device,
            time_us: annotation.time_us,
            name: name.as_ptr(),
            stage: stage.as_ptr(),
        };
        // SAFETY: as above.
        unsafe { (visitor.annotation)(visitor.user, &raw const annotation) };
    }
    Ok(())
}

/// Returns the number in the single frame of a stack; 0 if there is none.
pub(crate) fn stack_of(frames: &[thalweg_snapshot::Frame]) -> u32 {
    frames.first().map_or(0, |frame| frame.line)
}

fn text_of(text: &str) -> CString {
    CString::new(text.replace('\0', "")).expect("zeros were taken out")
}

fn segment_of(segment: &Segment) -> SegmentC {
    SegmentC {
        device: segment.device,
        is_large: u8::from(segment.class == SizeClass::Large),
        is_expandable: u8::from(segment.is_expandable),
        address: segment.address,
        total_bytes: segment.total_bytes,
        requested_bytes: segment.requested_bytes,
        allocated_bytes: segment.allocated_bytes,
        active_bytes: segment.active_bytes,
        stream: segment.stream.raw(),
        pool_first: segment.pool_id.0,
        pool_second: segment.pool_id.1,
        stack: stack_of(&segment.frames),
    }
}

fn block_of(block: &SegmentBlock) -> BlockC {
    BlockC {
        address: block.address,
        size_bytes: block.size_bytes,
        requested_bytes: block.requested_bytes,
        is_allocated: u8::from(block.state == BlockState::ActiveAllocated),
        is_active: u8::from(block.state != BlockState::Inactive),
        stack: stack_of(&block.frames),
    }
}

fn action_number(action: Action) -> u8 {
    action as u8
}

fn visit_entry(device: i32, entry: &TraceEntry, give: impl FnOnce(&EventC)) {
    let context = text_of(entry.compile_context.as_deref().unwrap_or(""));
    let metadata = text_of(entry.user_metadata.as_deref().unwrap_or(""));
    let internal = text_of(entry.internal_metadata.as_deref().unwrap_or(""));
    let pool = entry.pool_id.unwrap_or_default();
    give(&EventC {
        action: action_number(entry.action),
        device,
        address: entry.address,
        size_bytes: entry.size_bytes,
        stream: entry.stream.raw(),
        pool_first: pool.0,
        pool_second: pool.1,
        time_us: entry.time_us.unwrap_or(0),
        stack: entry.frames.as_deref().map_or(0, stack_of),
        compile_context: context.as_ptr(),
        user_metadata: metadata.as_ptr(),
        internal_metadata: internal.as_ptr(),
    });
}

/// Returns an event as it happens, for an observer, which must take the time itself.
pub(crate) fn event_of(device: &OpenDevice, event: &Event) -> EventC {
    let pool = device.pools.name(event.pool_id);
    EventC {
        action: action_number(event.action),
        device: device.index.cast_signed(),
        address: event.address,
        size_bytes: event.size_bytes,
        stream: device.streams.cuda_stream(event.stream),
        pool_first: pool.0,
        pool_second: pool.1,
        time_us: 0,
        stack: event.stack.map_or(0, std::num::NonZero::get),
        compile_context: c"".as_ptr(),
        user_metadata: c"".as_ptr(),
        internal_metadata: c"".as_ptr(),
    }
}
