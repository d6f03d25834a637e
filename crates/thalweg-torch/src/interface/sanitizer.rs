//! Reports of a program to the sanitizer.

use std::ffi::{c_char, c_void};

use thalweg_driver::Instrument as _;
use thalweg_driver::StreamHandle;
use thalweg_sanitizer::{Completed, SanitizerDriver, Site, SourceLine};

use super::{Write, give, on, put};
use crate::allocator::Allocator;
use crate::sanitizer::{accesses, kept};
use crate::status::{Error, Result, text_of};
use thalweg_runtime::{invalid, refuse_if};

/// Returns a site from its texts; `None` if there is no operator.
///
/// # Safety
/// The pointers are null or texts.
unsafe fn site(operation: *const c_char, file: *const c_char, line: u32) -> Result<Option<Site>> {
    if operation.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let operator = kept(unsafe { text_of("operation", operation)? });
    let location = if file.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(SourceLine { file: kept(unsafe { text_of("file", file)? }), line })
    };
    Ok(Some(Site { operator, location }))
}

/// Returns the handle of a CUDA stream.
fn handle(allocator: &Allocator, device: i32, cuda_stream: u64) -> Result<StreamHandle> {
    Ok(allocator.stream(device, cuda_stream)?.handle())
}

exports! {
    /// Sets the calling thread's location in the program.
    on(allocator) thalweg_sanitizer_at(operation: *const c_char, file: *const c_char, line: u32) {
        allocator.sanitizer()?;
        // SAFETY: the header requires texts.
        SanitizerDriver::reported_site(unsafe { site(operation, file, line)? });
        Ok(())
    }

    /// Reports work on a stream.
    on(allocator) thalweg_sanitizer_work(
        device: i32, stream: u64, operation: *const c_char, file: *const c_char, line: u32, operands: *const i64,
        count: usize
    ) {
        refuse_if!(operands.is_null() && count > 0, "the operands are a null pointer");
        // SAFETY: the header requires `count` numbers there, and for texts.
        let (words, site) = unsafe {
            let words: &[i64] = if count == 0 { &[] } else { std::slice::from_raw_parts(operands, count) };
            (words, site(operation, file, line)?)
        };
        let site = site.ok_or_else(|| invalid!("the work has no name"))?;
        let accesses = accesses(words)?;
        let driver = allocator.sanitizer()?.driver()?;
        allocator.with_device(device, |_| {
            driver.reported_work(handle(allocator, device, stream)?, site, &accesses);
            Ok(())
        })
    }

    /// Reports an operation on an event.
    on(allocator) thalweg_sanitizer_event(what: i32, event: u64, device: i32, stream: u64) {
        let driver = allocator.sanitizer()?.driver()?;
        match what {
            0 => allocator.with_device(device, |_| {
                driver.reported_record(event, handle(allocator, device, stream)?);
                Ok(())
            }),
            1 => allocator.with_device(device, |_| {
                driver.reported_wait(handle(allocator, device, stream)?, event);
                Ok(())
            }),
            2 => {
                driver.reported_complete(Completed::Event(event));
                Ok(())
            }
            3 => {
                driver.reported_event_destroyed(event);
                Ok(())
            }
            _ => Err(invalid!("nothing that happens to events has the number {what}")),
        }
    }

    /// Reports that a stream is done.
    on(allocator) thalweg_sanitizer_stream_done(device: i32, stream: u64) {
        let driver = allocator.sanitizer()?.driver()?;
        allocator.with_device(device, |_| {
            driver.reported_complete(Completed::Stream(handle(allocator, device, stream)?));
            Ok(())
        })
    }

    /// Reports that a device is done.
    on(allocator) thalweg_sanitizer_device_done(device: u32) {
        allocator.sanitizer()?.driver()?.reported_complete(Completed::Device(device));
        Ok(())
    }

    /// Names a stream.
    on(allocator) thalweg_sanitizer_name_stream(device: i32, stream: u64, name: *const c_char) {
        // SAFETY: the header requires a text.
        let name = unsafe { text_of("name", name)? };
        let driver = allocator.sanitizer()?.driver()?;
        allocator.with_device(device, |_| {
            driver.name_stream(handle(allocator, device, stream)?, name);
            Ok(())
        })
    }

    /// Returns the findings.
    on(allocator) thalweg_sanitizer_findings(from: u64, count: *mut u64, write: Write, user: *mut c_void) {
        let findings = allocator.sanitizer()?.driver()?.findings_from(from as usize);
        for finding in &findings {
            // SAFETY: the header requires a function that takes `user`.
            unsafe { give(write, user, finding.to_string().as_bytes()) };
        }
        // SAFETY: the header requires a place.
        unsafe { put(count, findings.len() as u64) }
    }
}
