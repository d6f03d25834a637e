//! [`Driver`]: the interface between Thalweg and a GPU.
//!
//! # Contract
//!
//! **Validation.** The driver validates. Handles, device numbers, pointers and sizes are checked, and a wrong one is an
//! error ([`Code::InvalidHandle`], [`InvalidDevice`](crate::Code::InvalidDevice),
//! [`InvalidValue`](crate::Code::InvalidValue)), whatever state the object is in. The addresses that a *kernel* uses are
//! not validated: on a GPU an invalid address is a later, sticky [`IllegalAddress`](crate::Code::IllegalAddress). The
//! simulator reports the same error for the first byte outside the declared accesses.
//!
//! **State after an error.** A call that fails changes nothing, unless its documentation says otherwise.
//!
//! **Asynchronous errors.** Work runs later than the call that submits it. When it fails, the device's context is lost, and
//! *every* later call on that device may fail with the sticky code, for which
//! [`Error::is_asynchronous`](crate::Error::is_asynchronous) returns `true`. An error is never reported by a call on
//! another device, and dropping a value reports nothing.
//!
//! **Asynchronous calls.** Methods whose names end in `_async`, and `event_record`, `stream_wait_event`, `launch`,
//! `graph_launch`: they return when the command is queued. All other calls are complete when they return. Methods that wait
//! for the device are marked *blocks*. A stream takes about a thousand commands that are not complete: a call that queues
//! more waits until there is room.
//!
//! **Refused waits.** A call that waits may be refused, by a [`Timeout`](crate::Code::Timeout) or an
//! [interruption](crate::set_interruption), while the work that it waits for continues. After that it no longer uses the
//! caller's memory: a copy to the host writes nothing later.
//!
//! **Streams.** [`Driver::default_stream`] is CUDA's legacy default stream: it waits for all earlier work of the device's
//! blocking streams, and they wait for its. All streams that [`Driver::stream_create`] makes are non-blocking: they have
//! no such ties.
//!
//! **Capture.** While a stream captures, commands on it become nodes of a graph and nothing runs. The calls that are marked
//! *not in capture* fail with [`StreamCaptureUnsupported`](crate::Code::StreamCaptureUnsupported) and break the capture if
//! a capture forbids them to the calling thread ([`CaptureMode`]).
//!
//! **Threads.** Every method may be called from every thread at any time. There is no current device and no current
//! context: handles know their device.

use std::fmt;

use crate::calls::*;
use crate::{Code, Error};

/// Makes a trait's method of each call. Its default forwards the call to the inner driver.
macro_rules! forwarding {
    ($(
        $(#[$documentation:meta])*
        fn $name:ident(&$self:ident $(, $argument:ident: $type:ty)*) -> $answer:ty;
    )*) => {$(
        $(#[$documentation])*
        fn $name(&$self $(, $argument: $type)*) -> $answer {
            forwarded($self.inner(), stringify!($name))?.$name($($argument),*)
        }
    )*};
}

/// A GPU and its driver, in CUDA's verbs. See the [module](self) for the contract that all methods share.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Returns `cuda` or `sim`.
    fn name(&self) -> &'static str;

    /// Returns the driver that this one wraps, if it wraps one. Calls that are not implemented here are forwarded to it; a
    /// driver that wraps none fails such a call with [`NotSupported`](crate::Code::NotSupported).
    fn inner(&self) -> Option<&dyn Driver> {
        None
    }

    /// Returns the sanitizer, if there is one. It must be notified of everything that the driver cannot see: the blocks of
    /// allocators above the driver, and the synchronisation between host threads.
    fn instrument(&self) -> Option<&dyn crate::Instrument> {
        self.inner().and_then(Driver::instrument)
    }

    /// Returns the tracer that records the work of devices by their own clocks. There is one per process, and it also
    /// records the work of other libraries.
    ///
    /// # Errors
    /// [`NotSupported`](crate::Code::NotSupported) if there is no tracer, as on the simulated GPU;
    /// [`LibraryMissing`](crate::Code::LibraryMissing).
    fn activity_tracer(&self) -> Result<&dyn crate::ActivityTracer> {
        forwarded(self.inner(), "activity_tracer")?.activity_tracer()
    }

    /// Returns whether the driver, or a sanitizer around it, reads the accesses that launches declare. If not, launches may
    /// leave them out.
    fn reads_accesses(&self) -> bool {
        self.instrument().is_some() || self.inner().is_none_or(Driver::reads_accesses)
    }

    /// Returns the version of the CUDA interface that the driver implements.
    fn version(&self) -> crate::Version;

    /// Returns how many devices there are. Creates no context.
    fn device_count(&self) -> u32;

    calls!(forwarding);
}

/// Returns the inner driver, which handles a call that this driver does not implement.
fn forwarded<'d>(inner: Option<&'d dyn Driver>, call: &'static str) -> Result<&'d dyn Driver> {
    inner.ok_or_else(|| Error::new(Code::NotSupported, call, "this driver does not implement the call"))
}

/// Implements the methods by which a driver around another one identifies itself: `inner`, which is the field that is named, and
/// `name`, `version` and `device_count`, which are the inner driver's. With `own name`, the driver implements `name` itself.
#[macro_export]
macro_rules! wraps {
    ($inner:tt) => {
        fn name(&self) -> &'static str {
            $crate::Driver::name(&*self.$inner)
        }

        $crate::wraps!($inner, own name);
    };
    ($inner:tt, own name) => {
        fn inner(&self) -> ::core::option::Option<&dyn $crate::Driver> {
            ::core::option::Option::Some(&*self.$inner)
        }

        fn version(&self) -> $crate::Version {
            $crate::Driver::version(&*self.$inner)
        }

        fn device_count(&self) -> u32 {
            $crate::Driver::device_count(&*self.$inner)
        }
    };
}
