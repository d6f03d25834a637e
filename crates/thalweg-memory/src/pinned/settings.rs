//! The settings of a host allocator, and its rounding of requests.
//!
//! # Rounding
//!
//! A freed block serves later requests only if it is large enough for them, so sizes are rounded up to few classes. PyTorch
//! rounds to powers of two: a request for 20.4 GiB pins 32, and pinned memory cannot be used for anything else on the host. Here
//! only requests up to 1 MiB are rounded to powers of two, where little memory is lost and calls are frequent. Above that a class
//! is an eighth of a power of two, and at most 12.5 % are wasted. A cached block serves a request only within the same bound. A
//! cache of eight classes per power hits as often in steady state, where sizes repeat exactly, and pins at most as much
//! otherwise. [`HostSettings::pytorch`] rounds as PyTorch does, for comparison and for programs that need few classes at any
//! cost.
//!
//! Two thresholds change that. Above `pinned_max_round_threshold` nothing is rounded. Above `pinned_max_cached_size` nothing is
//! rounded either, and freed blocks are returned instead of kept; rounding never raises a request above this threshold.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{AllocationError, Kind};
use crate::settings::{Policy, Settings};
use crate::upstream::HostMethod;

/// The most threads that may touch pages at once before they are registered.
const MAX_REGISTER_THREADS: u32 = 128;
/// The size up to which sizes are rounded to powers of two in both modes.
const POWER_OF_TWO_BYTES: u64 = 1 << 20;
/// The number of classes from one power of two to the next, above that size.
const CLASSES_PER_POWER: u64 = 8;

/// The settings of a [`HostAllocator`](crate::HostAllocator). The names are those of `PYTORCH_ALLOC_CONF`; sizes are in bytes.
///
/// The default differs from PyTorch's only in the rounding: at most 12.5 % of a block above 1 MiB are wasted.
/// [`HostSettings::pytorch`] has PyTorch's rounding too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostSettings {
    powers_of_two_only: bool,
    pinned_max_round_threshold_bytes: Option<u64>,
    pinned_max_cached_size_bytes: Option<u64>,
    pinned_use_background_threads: bool,
    pinned_use_cuda_host_register: bool,
    pinned_num_register_threads: u32,
    pinned_reserve_segment_size_bytes: u64,
    pinned_free_catch_all: bool,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            powers_of_two_only: false,
            pinned_max_round_threshold_bytes: None,
            pinned_max_cached_size_bytes: None,
            pinned_use_background_threads: false,
            pinned_use_cuda_host_register: false,
            pinned_num_register_threads: 1,
            pinned_reserve_segment_size_bytes: 0,
            pinned_free_catch_all: false,
        }
    }
}

impl HostSettings {
    /// Returns PyTorch's own choices: all sizes are rounded up to a power of two, and of the cached blocks of the right power the
    /// last-freed one serves, if it is large enough.
    pub fn pytorch() -> Self {
        Self { powers_of_two_only: true, ..Self::default() }
    }

    /// Sets the size above which requests are not rounded. With `None`, the default, all are rounded.
    #[must_use]
    pub fn with_pinned_max_round_threshold_bytes(mut self, bytes: Option<u64>) -> Self {
        self.pinned_max_round_threshold_bytes = bytes;
        self
    }

    /// Sets the size above which blocks are not rounded, and returned when they are freed. With `None`, the default, all are
    /// kept.
    ///
    /// A drop does not wait, and returning memory may. So it happens at the next call of the allocator, or at once on its
    /// background thread if there is one.
    #[must_use]
    pub fn with_pinned_max_cached_size_bytes(mut self, bytes: Option<u64>) -> Self {
        self.pinned_max_cached_size_bytes = bytes;
        self
    }

    /// Sets whether a thread checks the progress of the streams every 100 microseconds, as long as a freed block waits for one.
    /// By default, calls that need a block do this.
    #[must_use]
    pub fn with_pinned_use_background_threads(mut self, background: bool) -> Self {
        self.pinned_use_background_threads = background;
        self
    }

    /// Sets whether memory is allocated as ordinary memory, touched and then registered with the driver, instead of being
    /// allocated by the driver. Several threads can touch it, which makes pinning of large blocks faster.
    #[must_use]
    pub fn with_pinned_use_cuda_host_register(mut self, register: bool) -> Self {
        self.pinned_use_cuda_host_register = register;
        self
    }

    /// Sets the number of threads that touch the pages of registered memory: 1 by default.
    ///
    /// # Errors
    /// If it is not a power of two from 1 to 128.
    pub fn with_pinned_num_register_threads(mut self, threads: u32) -> Result<Self, AllocationError> {
        if !threads.is_power_of_two() || threads > MAX_REGISTER_THREADS {
            return Err(Kind::OutOfRange {
                what: "pinned_num_register_threads",
                value: threads.to_string(),
                allowed: "a power of two from 1 to 128",
            }
            .into());
        }
        self.pinned_num_register_threads = threads;
        Ok(self)
    }

    /// Pins `bytes` once, at the first request, and serves requests from there, in order, until it is used up. Blocks from there
    /// are cached for ever and freed with the allocator. By default, nothing is reserved.
    ///
    /// # Errors
    /// If it is 0.
    pub fn with_pinned_reserve_segment_size_bytes(mut self, bytes: u64) -> Result<Self, AllocationError> {
        if bytes == 0 {
            let what = "pinned_reserve_segment_size";
            return Err(Kind::OutOfRange { what, value: "0 bytes".to_owned(), allowed: "more" }.into());
        }
        self.pinned_reserve_segment_size_bytes = bytes;
        Ok(self)
    }

    /// Sets whether a failure to free memory is ignored: the memory is then lost to the process
    /// ([`retired`](crate::HostStatistics::retired)), and the rest is freed. By default
    /// [`empty_cache`](crate::HostAllocator::empty_cache) returns the error and the memory stays cached.
    #[must_use]
    pub fn with_pinned_free_catch_all(mut self, catch_all: bool) -> Self {
        self.pinned_free_catch_all = catch_all;
        self
    }

    /// Returns whether sizes above 1 MiB are rounded to powers of two, too.
    pub fn powers_of_two_only(&self) -> bool {
        self.powers_of_two_only
    }

    /// Returns the size, in bytes, above which requests are not rounded.
    pub fn pinned_max_round_threshold_bytes(&self) -> Option<u64> {
        self.pinned_max_round_threshold_bytes
    }

    /// Returns the size, in bytes, above which freed blocks are not kept.
    pub fn pinned_max_cached_size_bytes(&self) -> Option<u64> {
        self.pinned_max_cached_size_bytes
    }

    /// Returns whether a background thread of the allocator processes events.
    pub fn pinned_use_background_threads(&self) -> bool {
        self.pinned_use_background_threads
    }

    /// Returns whether memory is registered instead of allocated by the driver.
    pub fn pinned_use_cuda_host_register(&self) -> bool {
        self.pinned_use_cuda_host_register
    }

    /// Returns the number of threads that touch the pages of registered memory.
    pub fn pinned_num_register_threads(&self) -> u32 {
        self.pinned_num_register_threads
    }

    /// Returns the size of the reserve in bytes; 0 if there is none.
    pub fn pinned_reserve_segment_size_bytes(&self) -> u64 {
        self.pinned_reserve_segment_size_bytes
    }

    /// Returns whether failures to free memory are ignored.
    pub fn pinned_free_catch_all(&self) -> bool {
        self.pinned_free_catch_all
    }

    /// Returns how memory is pinned.
    pub(crate) fn method(&self) -> HostMethod {
        if self.pinned_use_cuda_host_register {
            HostMethod::Register { threads: self.pinned_num_register_threads }
        } else {
            HostMethod::Allocate
        }
    }
}

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
    pub(crate) fn new(settings: &HostSettings) -> Self {
        let rounding = Self {
            powers_of_two_only: AtomicBool::default(),
            max_rounded_bytes: AtomicU64::default(),
            max_cached_bytes: AtomicU64::default(),
        };
        rounding.set(settings);
        rounding
    }

    pub(crate) fn set(&self, settings: &HostSettings) {
        let max_rounded = settings.pinned_max_round_threshold_bytes.unwrap_or(u64::MAX);
        let max_cached = settings.pinned_max_cached_size_bytes.unwrap_or(u64::MAX);
        self.powers_of_two_only.store(settings.powers_of_two_only, Ordering::Relaxed);
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

impl From<&Settings> for HostSettings {
    /// Creates the settings from the `pinned_*` keys of an allocator's settings; with `policy:pytorch`, also PyTorch's rounding.
    fn from(settings: &Settings) -> Self {
        let base = match settings.policy() {
            Policy::PyTorch => Self::pytorch(),
            Policy::Thalweg => Self::default(),
        };
        let threads = u32::try_from(settings.pinned_num_register_threads()).unwrap_or(u32::MAX);
        let reserve_bytes = settings.pinned_reserve_segment_size_bytes();
        let with_threads = base
            .with_pinned_max_round_threshold_bytes(settings.pinned_max_round_threshold_bytes())
            .with_pinned_max_cached_size_bytes(settings.pinned_max_cached_size_bytes())
            .with_pinned_use_background_threads(settings.pinned_use_background_threads())
            .with_pinned_use_cuda_host_register(settings.pinned_use_cuda_host_register())
            .with_pinned_free_catch_all(settings.pinned_free_catch_all())
            .with_pinned_num_register_threads(threads);
        let both = with_threads.and_then(|host| match reserve_bytes {
            Some(bytes) => host.with_pinned_reserve_segment_size_bytes(bytes),
            None => Ok(host),
        });
        both.expect("what one accepts the other does")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn size(settings: &HostSettings, bytes: u64) -> u64 {
        Rounding::new(settings).request(bytes).size_bytes
    }

    #[test]
    fn large_sizes_are_rounded_to_eighths_of_a_power_of_two() {
        let default = HostSettings::default();
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
            assert_eq!(size(&HostSettings::pytorch(), requested), requested.next_power_of_two());
        }
    }

    #[test]
    fn thresholds_end_the_rounding() {
        let settings = HostSettings::pytorch()
            .with_pinned_max_round_threshold_bytes(Some(64 * MIB))
            .with_pinned_max_cached_size_bytes(Some(48 * MIB));
        assert_eq!(size(&settings, 20 * MIB), 32 * MIB);
        assert_eq!(size(&settings, 40 * MIB), 40 * MIB, "the next power of two would not be cached");
        assert_eq!(size(&settings, 50 * MIB), 50 * MIB);
        assert!(Rounding::new(&settings).is_cached(48 * MIB));
        assert!(!Rounding::new(&settings).is_cached(48 * MIB + 1));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let error =
            HostSettings::default().with_pinned_num_register_threads(12).expect_err("no power of two");
        assert_eq!(
            error.to_string(),
            "pinned_num_register_threads is 12, but must be a power of two from 1 to 128"
        );
        assert!(HostSettings::default().with_pinned_num_register_threads(256).is_err());
        assert!(HostSettings::default().with_pinned_num_register_threads(0).is_err());
        assert!(HostSettings::default().with_pinned_reserve_segment_size_bytes(0).is_err());
    }
}
