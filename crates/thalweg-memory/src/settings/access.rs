//! Settings without a key, such as labels, and access methods for keys with structured values. Keys whose value is a single
//! number or word get their methods in `keys.rs`.

use super::keys::{self, Key};
use super::values::{Backend, MIB, Reserve};
use super::{Settings, SettingsError};
use crate::ids::SizeClass;

/// The page size of expandable segments for small requests.
const SMALL_PAGE_BYTES: u64 = 2 * MIB;

impl Settings {
    pub(super) fn with<T: Clone>(mut self, key: &Key<T>, value: T) -> Result<Self, SettingsError> {
        key.set(&mut self, value)?;
        self.consistent()
    }

    /// Sets a key that accepts every value of its type.
    pub(super) fn with_any<T: Clone>(self, key: &Key<T>, value: T) -> Self {
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

    /// Returns whether this crate hands out memory from its own cache.
    pub fn is_cached_here(&self) -> bool {
        self.caching() && self.backend() == Backend::Native
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

    /// Returns the bytes of addresses that an expandable segment reserves on a device with `total_bytes` of memory, for streams
    /// of a class or without one. A class that is not in the list counts as none. Never more than 9/8 of the memory.
    pub fn expandable_segments_reserve_bytes(&self, class: Option<&str>, total_bytes: u64) -> u64 {
        let of_class =
            class.and_then(|class| self.expandable_segments_reserve_by_class().get(class).copied());
        let reserve = of_class.or_else(|| keys::EXPANDABLE_SEGMENTS_RESERVE.get(self));
        reserve.map_or(Reserve::full_bytes(total_bytes), |reserve| reserve.bytes(total_bytes))
    }

    /// Returns the page size of expandable segments, in bytes: 2 MiB for small requests, `expandable_page_mb` for large ones.
    pub fn expandable_page_bytes(&self, class: SizeClass) -> u64 {
        match class {
            SizeClass::Small => SMALL_PAGE_BYTES,
            SizeClass::Large => keys::EXPANDABLE_PAGE.value(self),
        }
    }
}
