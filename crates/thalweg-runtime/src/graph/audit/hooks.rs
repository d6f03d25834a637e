//! Facts that the runtime and the operators know and no call of the driver shows to an audit: which code makes a call that has no
//! label, the purpose of a call, and the host's decisions without any call. While nothing is audited, each of these functions
//! costs one load.

use std::cell::RefCell;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_driver::Label;

use super::auditor::Auditor;
use super::next_call;
use super::obstacle::ObstacleKind;
use crate::Device;

thread_local! {
    /// The audit whose region this thread runs.
    static REGION: RefCell<Weak<Auditor>> = const { RefCell::new(Weak::new()) };
}

/// The number of audits under way in the process.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Sets the kind of the obstacle that the calling thread's next command becomes if a capture refuses it: an operator knows its
/// purpose, while the driver only sees a copy. It costs one load while the device is not audited.
pub fn explain(device: &Device, kind: ObstacleKind, label: Label) {
    if device.auditor().is_on() {
        next_call::set(label, Some(kind));
    }
}

/// Reports that the host draws random numbers here to an audit whose region the calling thread runs. It costs one load while
/// nothing is audited.
pub fn host_random(label: Label) {
    if UNDER_WAY.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Ok(Some(auditor)) = REGION.try_with(|region| region.borrow().upgrade()) {
        auditor.host_random(label);
    }
}

/// A guard: until it is dropped, this thread runs the region of an audit.
pub(super) struct RegionGuard(());

impl RegionGuard {
    pub(super) fn enter(auditor: Weak<Auditor>) -> Self {
        next_call::take();
        REGION.set(auditor);
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for RegionGuard {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        REGION.set(Weak::new());
    }
}
