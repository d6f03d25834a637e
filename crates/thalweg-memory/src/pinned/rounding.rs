//! The rounding of requests for pinned memory.
//!
//! A freed block serves later requests only if it is large enough for them, so sizes are rounded up to few classes. PyTorch
//! rounds to powers of two: a request for 20.4 GiB pins 32, and pinned memory cannot be used for anything else on the host. Here
//! only requests up to 1 MiB are rounded to powers of two, where little memory is lost and calls are frequent. Above that a class
//! is an eighth of a power of two, and at most 12.5 % are wasted. A cached block serves a request only within the same bound. A
//! cache of eight classes per power hits as often in steady state, where sizes repeat exactly, and pins at most as much
//! otherwise. [`Policy::PyTorch`] rounds as PyTorch does, for comparison and for programs that need few classes at any
//! cost.
//!
//! Two thresholds change that. Above `pinned_max_round_threshold` nothing is rounded. Above `pinned_max_cached_size` nothing is
//! rounded either, and freed blocks are returned instead of kept; rounding never raises a request above this threshold.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::settings::{Policy, Settings};
use crate::upstream::HostMethod;

/// The size up to which sizes are rounded to powers of two in both modes.
const POWER_OF_TWO_BYTES: u64 = 1 << 20;
/// The number of classes from one power of two to the next, above that size.
const CLASSES_PER_POWER: u64 = 8;

/// A request after rounding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// The size that was requested: no block may be smaller.
    pub(crate) requested_bytes: u64,
    /// The size of a new block.
    pub(crate) size_bytes: u64,
    /// The largest cached block that may serve.
    pub(crate) most_bytes: u64,
    /// Whether the last-freed block serves instead of the smallest.
    pub(crate) latest_first: bool,
}

/// The part of the settings that every allocation and every free needs, readable without a lock. It may change at any time; each
/// value is valid independently of the others.
#[derive(Debug)]
pub(crate) struct Rounding {
    powers_of_two_only: AtomicBool,
    max_rounded_bytes: AtomicU64,
    max_cached_bytes: AtomicU64,
}

impl Rounding {
    pub(crate) fn new(settings: &Settings) -> Self {
        let rounding = Self {
            powers_of_two_only: AtomicBool::default(),
            max_rounded_bytes: AtomicU64::default(),
            max_cached_bytes: AtomicU64::default(),
        };
        rounding.set(settings);
        rounding
    }

    pub(crate) fn set(&self, settings: &Settings) {
        let max_rounded = settings.pinned_max_round_threshold_bytes().unwrap_or(u64::MAX);
        let max_cached = settings.pinned_max_cached_size_bytes().unwrap_or(u64::MAX);
        self.powers_of_two_only.store(settings.policy() == Policy::PyTorch, Ordering::Relaxed);
        self.max_rounded_bytes.store(max_rounded, Ordering::Relaxed);
        self.max_cached_bytes.store(max_cached, Ordering::Relaxed);
    }

    /// Returns the sizes for a request of 1 to 2^60 bytes.
    pub(crate) fn request(&self, requested_bytes: u64) -> Request {
        let powers_of_two_only = self.powers_of_two_only.load(Ordering::Relaxed);
        let mut size_bytes = requested_bytes;
        if requested_bytes <= self.max_rounded_bytes.load(Ordering::Relaxed) {
            let rounded = if powers_of_two_only || requested_bytes <= POWER_OF_TWO_BYTES {
                requested_bytes.next_power_of_two()
            } else {
                requested_bytes.next_multiple_of((1 << requested_bytes.ilog2()) / CLASSES_PER_POWER)
            };
            if rounded <= self.max_cached_bytes.load(Ordering::Relaxed) {
                size_bytes = rounded;
            }
        }
        let most_bytes = if powers_of_two_only {
            size_bytes.next_power_of_two()
        } else {
            size_bytes.max(requested_bytes + requested_bytes / CLASSES_PER_POWER)
        };
        Request { requested_bytes, size_bytes, most_bytes, latest_first: powers_of_two_only }
    }

    /// Returns whether a freed block of this size is kept.
    pub(crate) fn is_cached(&self, size_bytes: u64) -> bool {
        size_bytes <= self.max_cached_bytes.load(Ordering::Relaxed)
    }
}

/// Returns how memory is pinned.
pub(crate) fn method_of(settings: &Settings) -> HostMethod {
    match settings.pinned_use_cuda_host_register() {
        true => HostMethod::Register { threads: settings.pinned_num_register_threads() as u32 },
        false => HostMethod::Allocate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn size(settings: &Settings, bytes: u64) -> u64 {
        Rounding::new(settings).request(bytes).size_bytes
    }

    #[test]
    fn large_sizes_are_rounded_to_eighths_of_a_power_of_two() {
        let default = Settings::default();
        for (requested, rounded) in [
            (1, 1),
            (40 * KIB, 64 * KIB),
            (MIB, MIB),
            (MIB + 1, MIB + 128 * KIB),
            (200 * MIB, 208 * MIB),
            (256 * MIB, 256 * MIB),
            (20_890 * MIB, 22 << 30),
        ] {
            assert_eq!(size(&default, requested), rounded, "{requested}");
            assert_eq!(
                size(&Settings::default().with_policy(Policy::PyTorch), requested),
                requested.next_power_of_two()
            );
        }
    }

    #[test]
    fn thresholds_end_the_rounding() {
        let settings = Settings::default()
            .with_policy(Policy::PyTorch)
            .with_pinned_max_round_threshold_bytes(64 * MIB)
            .and_then(|settings| settings.with_pinned_max_cached_size_bytes(48 * MIB))
            .expect("whole numbers of MiB");
        assert_eq!(size(&settings, 20 * MIB), 32 * MIB);
        assert_eq!(size(&settings, 40 * MIB), 40 * MIB, "the next power of two would not be cached");
        assert_eq!(size(&settings, 50 * MIB), 50 * MIB);
        assert!(Rounding::new(&settings).is_cached(48 * MIB));
        assert!(!Rounding::new(&settings).is_cached(48 * MIB + 1));
    }
}
