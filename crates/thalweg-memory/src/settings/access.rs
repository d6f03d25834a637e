//! One method to set each key and one that returns its effective value. The meanings of the keys are in the
//! [table](crate::settings#the-keys); the methods document only additional details.

use std::collections::BTreeMap;

use super::keys::{self, Key};
use super::values::{Backend, CrossStreamReuse, MIB, Policy, PowerTwoDivisions, Reserve};
use super::{Settings, SettingsError};
use crate::ids::SizeClass;

/// The page size of expandable segments for small requests.
const SMALL_PAGE_BYTES: u64 = 2 * MIB;

impl Settings {
    fn with<T: Clone>(mut self, key: &Key<T>, value: T) -> Result<Self, SettingsError> {
        key.set(&mut self, value)?;
        self.consistent()
    }

    /// Sets a key that accepts every value of its type.
    fn with_any<T: Clone>(self, key: &Key<T>, value: T) -> Self {
        self.with(key, value).expect("every value of this key is valid")
    }

    /// Sets the name of the device in error messages: `GPU 0`.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Returns the name of the device in error messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Sets the number of the device in snapshots and for observers, from 0.
    #[must_use]
    pub fn with_device_number(mut self, number: i32) -> Self {
        self.device_number = number;
        self
    }

    /// Returns the number of the device in snapshots and for observers.
    pub fn device_number(&self) -> i32 {
        self.device_number
    }

    /// Sets whether freed memory is kept for later requests. Otherwise every request calls the driver, which reveals misuse of
    /// memory that a cache would hide.
    #[must_use]
    pub fn with_caching(mut self, caching: bool) -> Self {
        self.caching = caching;
        self
    }

    /// Returns whether freed memory is kept for later requests. This has no key in the text; only the environment can set it.
    pub fn caching(&self) -> bool {
        self.caching
    }

    /// Sets `policy`: the source of the defaults of other keys. Keys that are set already stay.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        self.with_any(&keys::POLICY, policy)
    }

    /// Returns `policy`: the source of the defaults of other keys.
    pub fn policy(&self) -> Policy {
        keys::POLICY.value(self)
    }

    /// Sets `backend`: the allocator that hands out device memory.
    #[must_use]
    pub fn with_backend(self, backend: Backend) -> Self {
        self.with_any(&keys::BACKEND, backend)
    }

    /// Returns whether this crate hands out memory from its own cache.
    pub(crate) fn is_cached_here(&self) -> bool {
        self.caching() && self.backend() == Backend::Native
    }

    /// Returns `backend`: the allocator that hands out device memory.
    pub fn backend(&self) -> Backend {
        keys::BACKEND.value(self)
    }

    /// Sets `large_segment_size_mb`: the size of segments for requests of more than 1 MiB and less than 10.
    ///
    /// # Errors
    /// If it is not a multiple of 1 MiB, less than 11 MiB, or more than the values of `max_split_size_mb` and
    /// `max_non_split_rounding_mb`.
    pub fn with_large_segment_size_bytes(self, bytes: u64) -> Result<Self, SettingsError> {
        self.with(&keys::LARGE_SEGMENT_SIZE, bytes)
    }

    /// Returns `large_segment_size_mb`, in bytes.
    pub fn large_segment_size_bytes(&self) -> u64 {
        keys::LARGE_SEGMENT_SIZE.value(self)
    }

    /// Sets `segment_granularity_mb`: segments for requests of 10 MiB or more are a multiple of this. A coarse granularity wastes
    /// more at first, and serves later requests of other sizes.
    ///
    /// # Errors
    /// If it is not a multiple of 2 MiB, from 2 MiB to 1 GiB.
    pub fn with_segment_granularity_bytes(self, bytes: u64) -> Result<Self, SettingsError> {
        self.with(&keys::SEGMENT_GRANULARITY, bytes)
    }

    /// Returns `segment_granularity_mb`, in bytes.
    pub fn segment_granularity_bytes(&self) -> u64 {
        keys::SEGMENT_GRANULARITY.value(self)
    }

    /// Sets `max_split_size_mb`: blocks of `bytes` or more are never split, and are kept for requests of that size. Less
    /// fragmentation, more waste.
    ///
    /// # Errors
    /// If it is not a multiple of 1 MiB, or less than `large_segment_size_mb`.
    pub fn with_max_split_size_bytes(self, bytes: u64) -> Result<Self, SettingsError> {
        self.with(&keys::MAX_SPLIT_SIZE, bytes)
    }

    /// Returns `max_split_size_mb`, in bytes: the size from which blocks are not split; `None` if all may be.
    pub fn max_split_size_bytes(&self) -> Option<u64> {
        keys::MAX_SPLIT_SIZE.get(self)
    }

    /// Sets `max_non_split_rounding_mb`: a block that is not split serves requests that waste less than `bytes`.
    ///
    /// # Errors
    /// If it is not a multiple of 1 MiB, or less than `large_segment_size_mb`.
    pub fn with_max_non_split_rounding_bytes(self, bytes: u64) -> Result<Self, SettingsError> {
        self.with(&keys::MAX_NON_SPLIT_ROUNDING, bytes)
    }

    /// Returns `max_non_split_rounding_mb`, in bytes: the bound on the waste of a block that is not split.
    pub fn max_non_split_rounding_bytes(&self) -> u64 {
        keys::MAX_NON_SPLIT_ROUNDING.value(self)
    }

    /// Sets `garbage_collection_threshold`: the fraction of the allowed memory above which old free blocks are returned to the
    /// driver before more is taken.
    ///
    /// # Errors
    /// If it is not between 0 and 1.
    pub fn with_garbage_collection_threshold(self, fraction: f64) -> Result<Self, SettingsError> {
        self.with(&keys::GARBAGE_COLLECTION_THRESHOLD, fraction)
    }

    /// Returns `garbage_collection_threshold`; `None` if nothing is collected.
    pub fn garbage_collection_threshold(&self) -> Option<f64> {
        keys::GARBAGE_COLLECTION_THRESHOLD.get(self)
    }

    /// Sets `roundup_power2_divisions`: the steps to which sizes are rounded up.
    #[must_use]
    pub fn with_roundup_power2_divisions(self, divisions: PowerTwoDivisions) -> Self {
        self.with_any(&keys::ROUNDUP_POWER2_DIVISIONS, divisions)
    }

    /// Returns `roundup_power2_divisions`: the steps to which sizes are rounded up.
    pub fn roundup_power2_divisions(&self) -> PowerTwoDivisions {
        keys::ROUNDUP_POWER2_DIVISIONS.get(self).unwrap_or_default()
    }

    /// Sets `per_process_memory_fraction`: the fraction of the device's memory that may be taken from the driver.
    ///
    /// # Errors
    /// If it is not from 0 to 1.
    pub fn with_per_process_memory_fraction(self, fraction: f64) -> Result<Self, SettingsError> {
        self.with(&keys::PER_PROCESS_MEMORY_FRACTION, fraction)
    }

    /// Returns `per_process_memory_fraction`, from 0 to 1.
    pub fn per_process_memory_fraction(&self) -> f64 {
        keys::PER_PROCESS_MEMORY_FRACTION.value(self)
    }

    /// Sets `throw_on_cudamalloc_oom`: a request that would exceed the memory fraction fails at once.
    #[must_use]
    pub fn with_throw_on_cudamalloc_oom(self, on: bool) -> Self {
        self.with_any(&keys::THROW_ON_CUDAMALLOC_OOM, on)
    }

    /// Returns `throw_on_cudamalloc_oom`: whether a request that would exceed the memory fraction fails at once.
    pub fn throw_on_cudamalloc_oom(&self) -> bool {
        keys::THROW_ON_CUDAMALLOC_OOM.value(self)
    }

    /// Sets `release_lock_on_cudamalloc`: other threads may use the allocator while one waits for the driver's
    /// memory.
    #[must_use]
    pub fn with_release_lock_on_cudamalloc(self, on: bool) -> Self {
        self.with_any(&keys::RELEASE_LOCK_ON_CUDAMALLOC, on)
    }

    /// Returns `release_lock_on_cudamalloc`: whether other threads may use the allocator while one waits for the driver's
    /// memory.
    pub fn release_lock_on_cudamalloc(&self) -> bool {
        keys::RELEASE_LOCK_ON_CUDAMALLOC.value(self)
    }

    /// Sets `graph_capture_record_stream_reuse`: in a capture, blocks with recorded streams are used again where the
    /// graph orders it.
    #[must_use]
    pub fn with_graph_capture_record_stream_reuse(self, on: bool) -> Self {
        self.with_any(&keys::GRAPH_CAPTURE_RECORD_STREAM_REUSE, on)
    }

    /// Returns `graph_capture_record_stream_reuse`: whether, in a capture, blocks with recorded streams are used again.
    pub fn graph_capture_record_stream_reuse(&self) -> bool {
        keys::GRAPH_CAPTURE_RECORD_STREAM_REUSE.value(self)
    }

    /// Sets `expandable_segments`: segments grow page by page in reserved addresses.
    #[must_use]
    pub fn with_expandable_segments(self, on: bool) -> Self {
        self.with_any(&keys::EXPANDABLE_SEGMENTS, on)
    }

    /// Returns `expandable_segments`: whether segments grow page by page, where the upstream has virtual memory.
    /// [`is_set`](Self::is_set) distinguishes a value that was set from the default.
    pub fn expandable_segments(&self) -> bool {
        keys::EXPANDABLE_SEGMENTS.value(self)
    }

    /// Sets `expandable_segments_reserve`: the addresses that each expandable segment reserves.
    ///
    /// # Errors
    /// If it is not more than 0.
    pub fn with_expandable_segments_reserve(self, reserve: Reserve) -> Result<Self, SettingsError> {
        self.with(&keys::EXPANDABLE_SEGMENTS_RESERVE, reserve)
    }

    /// Adds a class to `expandable_segments_reserve_by_class`: the addresses that each expandable segment of its
    /// streams reserves.
    ///
    /// # Errors
    /// If it is not more than 0, or the name of the class cannot be written in a text: it is empty, or contains white space or
    /// one of `,:[]`.
    pub fn with_expandable_segments_reserve_for_class(
        self,
        class: impl Into<String>,
        reserve: Reserve,
    ) -> Result<Self, SettingsError> {
        let key = &keys::EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS;
        let mut classes = key.get(&self).unwrap_or_default();
        classes.insert(class.into(), reserve);
        self.with(key, classes)
    }

    /// Returns `expandable_segments_reserve_by_class`, sorted by class.
    pub fn expandable_segments_reserve_by_class(&self) -> BTreeMap<String, Reserve> {
        keys::EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS.get(self).unwrap_or_default()
    }

    /// Returns the bytes of addresses that an expandable segment reserves on a device with `total_bytes` of memory, for streams
    /// of a class or without one. A class that is not in the list counts as none. Never more than 9/8 of the memory.
    pub fn expandable_segments_reserve_bytes(&self, class: Option<&str>, total_bytes: u64) -> u64 {
        let of_class =
            class.and_then(|class| self.expandable_segments_reserve_by_class().get(class).copied());
        let reserve = of_class.or_else(|| keys::EXPANDABLE_SEGMENTS_RESERVE.get(self));
        reserve.map_or(Reserve::full_bytes(total_bytes), |reserve| reserve.bytes(total_bytes))
    }

    /// Sets `expandable_page_mb`: the page size of expandable segments for large requests.
    ///
    /// # Errors
    /// If it is not a multiple of 2 MiB, from 2 MiB to 1 GiB.
    pub fn with_expandable_page_bytes(self, bytes: u64) -> Result<Self, SettingsError> {
        self.with(&keys::EXPANDABLE_PAGE, bytes)
    }

    /// Returns the page size of expandable segments, in bytes: 2 MiB for small requests, `expandable_page_mb` for large ones.
    pub fn expandable_page_bytes(&self, class: SizeClass) -> u64 {
        match class {
            SizeClass::Small => SMALL_PAGE_BYTES,
            SizeClass::Large => keys::EXPANDABLE_PAGE.value(self),
        }
    }

    /// Sets `stitching`: free pages from anywhere in an expandable pool may be moved into one contiguous range.
    #[must_use]
    pub fn with_stitching(self, on: bool) -> Self {
        self.with_any(&keys::STITCHING, on)
    }

    /// Returns `stitching`: whether free pages may be moved into one contiguous range.
    pub fn stitching(&self) -> bool {
        keys::STITCHING.value(self)
    }

    /// Sets `stitching_slack`: pages are created, not moved, while the reserved memory does not exceed the most that was active
    /// since `empty_cache` by more than this fraction of it.
    ///
    /// # Errors
    /// If it is not from 0 to 1.
    pub fn with_stitching_slack(self, fraction: f64) -> Result<Self, SettingsError> {
        self.with(&keys::STITCHING_SLACK, fraction)
    }

    /// Returns `stitching_slack`: the fraction by which the reserved memory may exceed the most that was ever active before pages
    /// move.
    pub fn stitching_slack(&self) -> f64 {
        keys::STITCHING_SLACK.value(self)
    }

    /// Sets `cross_stream_reuse`: when free memory of another stream serves.
    #[must_use]
    pub fn with_cross_stream_reuse(self, reuse: CrossStreamReuse) -> Self {
        self.with_any(&keys::CROSS_STREAM_REUSE, reuse)
    }

    /// Returns `cross_stream_reuse`: when free memory of another stream serves.
    pub fn cross_stream_reuse(&self) -> CrossStreamReuse {
        keys::CROSS_STREAM_REUSE.value(self)
    }

    /// Sets `cross_stream_wait_limit`: the greatest number of device-side waits for reuse that are not known to have passed.
    #[must_use]
    pub fn with_cross_stream_wait_limit(self, waits: u64) -> Self {
        self.with_any(&keys::CROSS_STREAM_WAIT_LIMIT, waits)
    }

    /// Returns `cross_stream_wait_limit`: the greatest number of waits that are not known to have passed.
    pub fn cross_stream_wait_limit(&self) -> u64 {
        keys::CROSS_STREAM_WAIT_LIMIT.value(self)
    }

    /// Sets `record_use_depth`: the number of fitting blocks that must wait for their recorded uses before a stream is made to
    /// wait for the oldest, instead of taking more memory.
    #[must_use]
    pub fn with_record_use_depth(self, blocks: u64) -> Self {
        self.with_any(&keys::RECORD_USE_DEPTH, blocks)
    }

    /// Returns `record_use_depth`: the number of fitting blocks that must wait before the stream does.
    pub fn record_use_depth(&self) -> u64 {
        keys::RECORD_USE_DEPTH.value(self)
    }

    /// Sets `last_resort`: before a request fails, any free block that is safe to use serves.
    #[must_use]
    pub fn with_last_resort(self, on: bool) -> Self {
        self.with_any(&keys::LAST_RESORT, on)
    }

    /// Returns `last_resort`: whether any free block that is safe to use serves before a request fails.
    pub fn last_resort(&self) -> bool {
        keys::LAST_RESORT.value(self)
    }
}

/// Pinned host memory.
impl Settings {
    /// Sets `pinned_use_background_threads`: a background thread checks which blocks the device has finished with.
    #[must_use]
    pub fn with_pinned_use_background_threads(self, on: bool) -> Self {
        self.with_any(&keys::PINNED_USE_BACKGROUND_THREADS, on)
    }

    /// Returns `pinned_use_background_threads`: whether a background thread checks which blocks the device has finished with.
    pub fn pinned_use_background_threads(&self) -> bool {
        keys::PINNED_USE_BACKGROUND_THREADS.value(self)
    }

    /// Sets `pinned_max_round_threshold_mb`: requests above this are not rounded up to a power of two.
    ///
    /// # Errors
    /// If it is not a multiple of 1 MiB.
    pub fn with_pinned_max_round_threshold_bytes(self, bytes: u64) -> Result<Self, SettingsError> {
        self.with(&keys::PINNED_MAX_ROUND_THRESHOLD, bytes)
    }

    /// Returns `pinned_max_round_threshold_mb`, in bytes; `None` if all are rounded.
    pub fn pinned_max_round_threshold_bytes(&self) -> Option<u64> {
        keys::PINNED_MAX_ROUND_THRESHOLD.get(self)
    }

    /// Sets `pinned_max_cached_size_mb`: blocks above this are not rounded up, and not kept when they are free.
    ///
    /// # Errors
    /// If it is not a multiple of 1 MiB.
    pub fn with_pinned_max_cached_size_bytes(self, bytes: u64) -> Result<Self, SettingsError> {
        self.with(&keys::PINNED_MAX_CACHED_SIZE, bytes)
    }

    /// Returns `pinned_max_cached_size_mb`, in bytes; `None` if all are kept.
    pub fn pinned_max_cached_size_bytes(&self) -> Option<u64> {
        keys::PINNED_MAX_CACHED_SIZE.get(self)
    }

    /// Sets `pinned_use_cuda_host_register`: ordinary memory is allocated, touched and registered.
    #[must_use]
    pub fn with_pinned_use_cuda_host_register(self, on: bool) -> Self {
        self.with_any(&keys::PINNED_USE_CUDA_HOST_REGISTER, on)
    }

    /// Returns `pinned_use_cuda_host_register`: whether ordinary memory is allocated, touched and registered.
    pub fn pinned_use_cuda_host_register(&self) -> bool {
        keys::PINNED_USE_CUDA_HOST_REGISTER.value(self)
    }

    /// Sets `pinned_num_register_threads`: the number of threads that touch the pages of registered memory.
    ///
    /// # Errors
    /// If it is not a power of two of at most 128.
    pub fn with_pinned_num_register_threads(self, threads: u64) -> Result<Self, SettingsError> {
        self.with(&keys::PINNED_NUM_REGISTER_THREADS, threads)
    }

    /// Returns `pinned_num_register_threads`, from 1 to 128.
    pub fn pinned_num_register_threads(&self) -> u64 {
        keys::PINNED_NUM_REGISTER_THREADS.value(self)
    }

    /// Sets `pinned_reserve_segment_size_mb`: pinned memory that is taken once and never returned.
    ///
    /// # Errors
    /// If it is not a multiple of 1 MiB, or 0.
    pub fn with_pinned_reserve_segment_size_bytes(self, bytes: u64) -> Result<Self, SettingsError> {
        self.with(&keys::PINNED_RESERVE_SEGMENT_SIZE, bytes)
    }

    /// Returns `pinned_reserve_segment_size_mb`, in bytes; `None` if nothing is reserved.
    pub fn pinned_reserve_segment_size_bytes(&self) -> Option<u64> {
        keys::PINNED_RESERVE_SEGMENT_SIZE.get(self)
    }

    /// Sets `pinned_free_catch_all`: errors in freeing pinned memory are ignored.
    #[must_use]
    pub fn with_pinned_free_catch_all(self, on: bool) -> Self {
        self.with_any(&keys::PINNED_FREE_CATCH_ALL, on)
    }

    /// Returns `pinned_free_catch_all`: whether errors in freeing pinned memory are ignored.
    pub fn pinned_free_catch_all(&self) -> bool {
        keys::PINNED_FREE_CATCH_ALL.value(self)
    }
}
