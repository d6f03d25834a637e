//! The only list of keys. Reading, writing, effective values, the description for people and the hint for a misspelt key are all
//! derived from it, so that a new key is one entry here.
//!
//! This module and its parent use each other: a key reads and writes a field of [`Settings`], whose text is read by means of the
//! list.

use std::collections::BTreeMap;
use std::fmt;

use super::Settings;
use super::error::{Fault, SettingsError};
use super::grammar::{
    Cursor, DEFAULT_WORD, DIVISIONS, INTEGER, MEBIBYTES, NUMBER, RESERVE, RESERVE_BY_CLASS, Syntax,
    TokenKind, Wanted, choice, is_word,
};
use super::values::{Backend, CrossStreamReuse, MIB, Policy, PowerTwoDivisions, Reserve};

/// The allocator that a key has an effect on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Concerns {
    /// Device memory, whichever the backend.
    Device,
    /// Device memory with `backend:native`; nothing with `backend:cudaMallocAsync`.
    Native,
    /// Pinned host memory.
    Pinned,
}

/// A key: its name and meaning, its form, its field in the [`Values`].
pub(super) struct Key<T: 'static> {
    pub name: &'static str,
    meaning: &'static str,
    /// A description of the values that the key accepts.
    accepts: &'static str,
    /// A description of the default.
    default_words: &'static str,
    /// The default as a value, if there is one.
    default: fn(&Settings) -> Option<T>,
    valid: fn(&T) -> bool,
    syntax: Syntax<T>,
    concerns: Concerns,
    field: fn(&Values) -> &Option<T>,
    field_mut: fn(&mut Values) -> &mut Option<T>,
}

impl<T: Clone> Key<T> {
    /// Returns the value that was set.
    pub fn explicit(&self, settings: &Settings) -> Option<T> {
        (self.field)(&settings.values).clone()
    }

    /// Returns the effective value: the one that was set, otherwise the default if there is one.
    pub fn get(&self, settings: &Settings) -> Option<T> {
        self.explicit(settings).or_else(|| (self.default)(settings))
    }

    /// Returns the effective value of a key whose default is a value.
    pub fn value(&self, settings: &Settings) -> T {
        self.get(settings).expect("the default of this key is a value")
    }

    /// Sets a value that is valid on its own. The caller checks whether the value is consistent with other keys' values.
    pub fn set(&self, settings: &mut Settings, value: T) -> Result<(), SettingsError> {
        if !(self.valid)(&value) {
            let found = Written { value: &value, syntax: &self.syntax };
            return Err(Fault::value(self.name, 0..0, found, self.accepts).outside_text());
        }
        *(self.field_mut)(&mut settings.values) = Some(value);
        Ok(())
    }
}

/// The text of a key's value, for display.
struct Written<'a, T: 'static> {
    value: &'a T,
    syntax: &'a Syntax<T>,
}

impl<T> fmt::Display for Written<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.syntax.write)(self.value, f)
    }
}

/// A key, independent of the type of its value.
pub(super) trait AnyKey: Sync {
    fn name(&self) -> &'static str;
    fn concerns(&self) -> Concerns;
    fn is_set(&self, settings: &Settings) -> bool;
    fn clear(&self, settings: &mut Settings);
    /// Reads the key's value and sets it; the word `default` resets the key.
    fn read(&self, cursor: &mut Cursor<'_>, settings: &mut Settings) -> Result<(), Fault>;
    /// Returns the value that was set, as text.
    fn written(&self, settings: &Settings) -> Option<String>;
    fn describe(&self, settings: &Settings) -> KeyDescription;
}

impl<T: Clone> AnyKey for Key<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn concerns(&self) -> Concerns {
        self.concerns
    }

    fn is_set(&self, settings: &Settings) -> bool {
        (self.field)(&settings.values).is_some()
    }

    fn clear(&self, settings: &mut Settings) {
        *(self.field_mut)(&mut settings.values) = None;
    }

    fn read(&self, cursor: &mut Cursor<'_>, settings: &mut Settings) -> Result<(), Fault> {
        let first = cursor.peek();
        if first.kind == TokenKind::Word && first.text == DEFAULT_WORD {
            cursor.next();
            self.clear(settings);
            return Ok(());
        }
        let value = (self.syntax.read)(cursor, Wanted { key: self.name, accepts: self.accepts })?;
        if !(self.valid)(&value) {
            return Err(Fault::value(self.name, first.range(), first.text, self.accepts));
        }
        *(self.field_mut)(&mut settings.values) = Some(value);
        Ok(())
    }

    fn written(&self, settings: &Settings) -> Option<String> {
        let value = (self.field)(&settings.values).as_ref()?;
        Some(Written { value, syntax: &self.syntax }.to_string())
    }

    fn describe(&self, settings: &Settings) -> KeyDescription {
        let value =
            self.get(settings).map(|value| Written { value: &value, syntax: &self.syntax }.to_string());
        KeyDescription {
            name: self.name,
            meaning: self.meaning,
            accepts: self.accepts,
            default: self.default_words,
            value: value.unwrap_or_else(|| self.default_words.to_owned()),
            is_set: self.is_set(settings),
            concerns: self.concerns,
        }
    }
}

/// A key as [`Settings::keys`] lists it, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KeyDescription {
    /// The name of the key, which is written before the colon.
    pub name: &'static str,
    /// The meaning of the key.
    pub meaning: &'static str,
    /// A description of the values that the key accepts.
    pub accepts: &'static str,
    /// A description of the value that is effective when the key is not set.
    pub default: &'static str,
    /// The effective value, as it would be set in a text; a description if no value expresses it (`unlimited`).
    pub value: String,
    /// Whether the key was set explicitly.
    pub is_set: bool,
    /// The allocator that the key has an effect on.
    pub concerns: Concerns,
}

/// Returns the key with this name.
pub(super) fn find(name: &str) -> Option<&'static dyn AnyKey> {
    KEYS.iter().copied().find(|key| key.name() == name)
}

/// Returns the key whose name is nearest to a wrong one, if it is near enough to have been meant.
pub(super) fn nearest(wrong: &str) -> Option<&'static str> {
    const LONGEST: usize = 64;
    if wrong.len() > LONGEST {
        return None;
    }
    let wrong = wrong.to_ascii_lowercase().replace('-', "_");
    let names = KEYS.iter().map(|key| key.name());
    let (distance, name) = names.map(|name| (edit_distance(&wrong, name), name)).min()?;
    (distance <= wrong.len().min(name.len()) / 3).then_some(name)
}

/// Returns the number of bytes that must be inserted, removed or replaced to turn one text into the other.
fn edit_distance(from: &str, to: &str) -> usize {
    // One row of the usual table: the distances of a prefix of `from` to every prefix of `to`.
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (length, byte) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], length + 1);
        for (column, other) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(byte != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

fn any<T>(_: &T) -> bool {
    true
}

fn is_whole_mib(bytes: &u64) -> bool {
    bytes.is_multiple_of(MIB)
}

fn is_even_mib(bytes: &u64) -> bool {
    bytes.is_multiple_of(2 * MIB) && (2 * MIB..=1024 * MIB).contains(bytes)
}

fn is_thalweg(settings: &Settings) -> bool {
    settings.policy() == Policy::Thalweg
}

/// Returns an expression, or another one in its absence.
macro_rules! or {
    ([$given:tt] $($otherwise:tt)+) => {
        $given
    };
    ([] $($otherwise:tt)+) => {
        $($otherwise)+
    };
}

/// Defines the methods that set a key (to any value of its type, or checked), or that return its value.
macro_rules! access {
    (
        $key:ident: $type:ty, $name:literal $meaning:literal $accepts:tt $default:literal { $($how:ident $method:ident),* }
    ) => {
        $(access! { @$how $method $key: $type, $name $meaning $accepts $default })*
    };
    (@any $method:ident $key:ident: $type:ty, $name:literal $meaning:literal $accepts:tt $default:literal) => {
        #[doc = concat!("Sets `", $name, "`: ", $meaning, ".")]
        #[must_use]
        pub fn $method(self, value: $type) -> Self {
            self.with_any(&$key, value)
        }
    };
    (@checked $method:ident $key:ident: $type:ty, $name:literal $meaning:literal $accepts:tt $default:literal) => {
        #[doc = concat!("Sets `", $name, "`: ", $meaning, ".")]
        ///
        /// # Errors
        #[doc = concat!("If the value is not ", or!($accepts "`True` or `False`"), ", or contradicts that of another key.")]
        pub fn $method(self, value: $type) -> Result<Self, SettingsError> {
            self.with(&$key, value)
        }
    };
    (@value $method:ident $key:ident: $type:ty, $name:literal $meaning:literal $accepts:tt $default:literal) => {
        #[doc = concat!("Returns the effective value of `", $name, "`: ", $meaning, ".")]
        pub fn $method(&self) -> $type {
            $key.value(self)
        }
    };
    (@optional $method:ident $key:ident: $type:ty, $name:literal $meaning:literal $accepts:tt $default:literal) => {
        #[doc = concat!("Returns the value of `", $name, "`: ", $meaning, "; `None` for the default (", $default, ").")]
        pub fn $method(&self) -> Option<$type> {
            $key.get(self)
        }
    };
    (@or_default $method:ident $key:ident: $type:ty, $name:literal $meaning:literal $accepts:tt $default:literal) => {
        #[doc = concat!("Returns the value of `", $name, "`: ", $meaning, ".")]
        pub fn $method(&self) -> $type {
            $key.get(self).unwrap_or_default()
        }
    };
}

/// Defines the keys, by the allocator that each concerns. A key has a field of [`Values`] and a name in texts; its default, in words and
/// as a function of the other settings; and its form, which is the validity of a value and the syntax. A key without `accepts` is a
/// truth value, and one without `form` accepts each value of its type.
macro_rules! keys {
    ($($concerns:ident { $($constant:ident, $field:ident: $type:ty = $name:literal {
        access: $access:tt,
        meaning: $meaning:literal,
        $(accepts: $accepts:literal,)?
        default: $default_words:literal, $default:expr,
        $(form: $valid:expr, $syntax:expr,)?
    })* })*) => {
        /// The value that was set for each key; `None` leaves it to its default, which may depend on other keys.
        #[derive(Clone, PartialEq, Default, Debug)]
        pub(super) struct Values {
            $($($field: Option<$type>,)*)*
        }

        $($(pub(super) static $constant: Key<$type> = Key {
            name: $name,
            meaning: $meaning,
            accepts: or!([$($accepts)?] "`True` or `False`"),
            default_words: $default_words,
            default: $default,
            valid: or!([$($valid)?] any),
            syntax: or!([$($syntax)?] choice()),
            concerns: Concerns::$concerns,
            field: |values| &values.$field,
            field_mut: |values| &mut values.$field,
        };)*)*

        /// All keys, in the order in which they are listed and written.
        pub(super) static KEYS: &[&dyn AnyKey] = &[$($(&$constant),*),*];

        /// The keys. Sizes are in bytes.
        impl Settings {
            /// Returns all keys with their meanings and effective values, for people.
            ///
            /// | key | takes | default | meaning |
            /// |---|---|---|---|
            $($(#[doc = concat!(
                "| `", $name, "` | ", or!([$($accepts)?] "`True` or `False`"), " | ", $default_words, " | ", $meaning, " |"
            )])*)*
            pub fn keys(&self) -> impl Iterator<Item = KeyDescription> + '_ {
                KEYS.iter().map(|key| key.describe(self))
            }

            $($(access! { $constant: $type, $name $meaning [$($accepts)?] $default_words $access })*)*
        }
    };
}

keys! {
    Device {
        POLICY, policy: Policy = "policy" {
            access: { any with_policy, value policy },
            meaning: "where the defaults of other keys come from; a key that is set counts, wherever it stands",
            accepts: "`thalweg` or `pytorch`",
            default: "thalweg", |_| Some(Policy::Thalweg),
        }
        BACKEND, backend: Backend = "backend" {
            access: { any with_backend, value backend },
            meaning: "what hands out device memory; chosen at the start, for good",
            accepts: "`native` or `cudaMallocAsync`",
            default: "native", |_| Some(Backend::Native),
        }
    }
    Native {
        LARGE_SEGMENT_SIZE, large_segment_size_bytes: u64 = "large_segment_size_mb" {
            access: { checked with_large_segment_size_bytes, value large_segment_size_bytes },
            meaning: "the segment for requests of more than 1 MiB and less than 10",
            accepts: "a whole number of MiB, at least 11",
            default: "20", |_| Some(20 * MIB),
            form: |bytes| is_whole_mib(bytes) && *bytes > 10 * MIB, MEBIBYTES,
        }
        SEGMENT_GRANULARITY, segment_granularity_bytes: u64 = "segment_granularity_mb" {
            access: { checked with_segment_granularity_bytes, value segment_granularity_bytes },
            meaning: "segments for requests of 10 MiB or more are a multiple of this; a coarse one serves later requests of other sizes",
            accepts: "an even number of MiB, from 2 to 1024",
            default: "2", |_| Some(2 * MIB),
            form: is_even_mib, MEBIBYTES,
        }
        MAX_SPLIT_SIZE, max_split_size_bytes: u64 = "max_split_size_mb" {
            access: { checked with_max_split_size_bytes, optional max_split_size_bytes },
            meaning: "blocks of this size or more are never cut, and go back to the driver one by one",
            accepts: "a whole number of MiB, at least `large_segment_size_mb`",
            default: "unlimited", |_| None,
            form: is_whole_mib, MEBIBYTES,
        }
        MAX_NON_SPLIT_ROUNDING, max_non_split_rounding_bytes: u64 = "max_non_split_rounding_mb" {
            access: { checked with_max_non_split_rounding_bytes, value max_non_split_rounding_bytes },
            meaning: "a block that is not cut serves requests that waste less than this",
            accepts: "a whole number of MiB, at least `large_segment_size_mb`",
            default: "`large_segment_size_mb`", |settings| Some(settings.large_segment_size_bytes()),
            form: is_whole_mib, MEBIBYTES,
        }
        GARBAGE_COLLECTION_THRESHOLD, garbage_collection_threshold: f64 = "garbage_collection_threshold" {
            access: { checked with_garbage_collection_threshold, optional garbage_collection_threshold },
            meaning: "the part of the allowed memory above which old free blocks go back before more is taken",
            accepts: "a number between 0 and 1, neither of them",
            default: "off", |_| None,
            form: |fraction| *fraction > 0.0 && *fraction < 1.0, NUMBER,
        }
        ROUNDUP_POWER2_DIVISIONS, roundup_power2_divisions: PowerTwoDivisions = "roundup_power2_divisions" {
            access: { any with_roundup_power2_divisions, or_default roundup_power2_divisions },
            meaning: "sizes round up to this many steps between powers of two, alike or from each size in MiB on",
            accepts: "a power of two, or a list such as `[64:8,256:4,>:1]`",
            default: "off", |_| None,
            form: any, DIVISIONS,
        }
    }
    Device {
        PER_PROCESS_MEMORY_FRACTION, per_process_memory_fraction: f64 = "per_process_memory_fraction" {
            access: { checked with_per_process_memory_fraction, value per_process_memory_fraction },
            meaning: "the part of the device's memory that may be taken from the driver",
            accepts: "a number from 0 to 1",
            default: "1", |_| Some(1.0),
            form: |fraction| (0.0..=1.0).contains(fraction), NUMBER,
        }
    }
    Native {
        THROW_ON_CUDAMALLOC_OOM, throw_on_cudamalloc_oom: bool = "throw_on_cudamalloc_oom" {
            access: { any with_throw_on_cudamalloc_oom, value throw_on_cudamalloc_oom },
            meaning: "a request that would pass the memory fraction fails at once, and nothing is given back first",
            default: "False", |_| Some(false),
        }
        RELEASE_LOCK_ON_CUDAMALLOC, release_lock_on_cudamalloc: bool = "release_lock_on_cudamalloc" {
            access: { any with_release_lock_on_cudamalloc, value release_lock_on_cudamalloc },
            meaning: "other threads may use the allocator while one waits for the driver's memory",
            default: "False", |_| Some(false),
        }
        GRAPH_CAPTURE_RECORD_STREAM_REUSE, graph_capture_record_stream_reuse: bool = "graph_capture_record_stream_reuse" {
            access: { any with_graph_capture_record_stream_reuse, value graph_capture_record_stream_reuse },
            meaning: "in a capture, blocks with recorded streams are used again where the graph orders it",
            default: "False", |_| Some(false),
        }
        EXPANDABLE_SEGMENTS, expandable_segments: bool = "expandable_segments" {
            access: { any with_expandable_segments, value expandable_segments },
            meaning: "segments grow page by page in reserved addresses, where the driver has virtual memory",
            default: "True; pytorch: False", |settings| Some(is_thalweg(settings)),
        }
        EXPANDABLE_SEGMENTS_RESERVE, expandable_segments_reserve: Reserve = "expandable_segments_reserve" {
            access: { checked with_expandable_segments_reserve },
            meaning: "the addresses that each expandable segment reserves; 9/8 of the device's memory at most",
            accepts: "a fraction of the device's memory (`0.5`) or a number of GiB (`8G`), more than 0",
            default: "9/8 of the device's memory", |_| None,
            form: Reserve::is_valid, RESERVE,
        }
        EXPANDABLE_SEGMENTS_RESERVE_BY_CLASS, expandable_segments_reserve_by_class: BTreeMap<String, Reserve> = "expandable_segments_reserve_by_class" {
            access: { or_default expandable_segments_reserve_by_class },
            meaning: "the same for streams of one class",
            accepts: "a list such as `[serving:0.25,training:8G]`",
            default: "none", |_| None,
            form: |classes| classes.iter().all(|(name, reserve)| is_word(name) && reserve.is_valid()), RESERVE_BY_CLASS,
        }
        EXPANDABLE_PAGE, expandable_page_bytes: u64 = "expandable_page_mb" {
            access: { checked with_expandable_page_bytes },
            meaning: "the page by which expandable segments of large requests grow; of small ones it is 2 MiB",
            accepts: "an even number of MiB, from 2 to 1024",
            default: "8; pytorch: `large_segment_size_mb`", |settings| Some(match settings.policy() {
                Policy::Thalweg => 8 * MIB,
                Policy::PyTorch => settings.large_segment_size_bytes(),
            }),
            form: is_even_mib, MEBIBYTES,
        }
        STITCHING, stitching: bool = "stitching" {
            access: { any with_stitching, value stitching },
            meaning: "free pages from anywhere in an expandable pool may be moved into one contiguous range",
            default: "True; pytorch: False", |settings| Some(is_thalweg(settings)),
        }
        STITCHING_SLACK, stitching_slack: f64 = "stitching_slack" {
            access: { checked with_stitching_slack, value stitching_slack },
            meaning: "pages are made, not moved, while no more is reserved than was ever active, and this part of it",
            accepts: "a number from 0 to 1",
            default: "0.02", |_| Some(0.02),
            form: |fraction| (0.0..=1.0).contains(fraction), NUMBER,
        }
        CROSS_STREAM_REUSE, cross_stream_reuse: CrossStreamReuse = "cross_stream_reuse" {
            access: { any with_cross_stream_reuse, value cross_stream_reuse },
            meaning: "when free memory of another stream serves: once its work is done, or also by waiting for it",
            accepts: "`never`, `idle` or `ordered`",
            default: "idle; pytorch: never", |settings| Some(match settings.policy() {
                Policy::Thalweg => CrossStreamReuse::Idle,
                Policy::PyTorch => CrossStreamReuse::Never,
            }),
        }
        CROSS_STREAM_WAIT_LIMIT, cross_stream_wait_limit: u64 = "cross_stream_wait_limit" {
            access: { any with_cross_stream_wait_limit, value cross_stream_wait_limit },
            meaning: "at most this many waits that reuse put on streams may not be known to have passed",
            accepts: "a whole number",
            default: "64", |_| Some(64),
            form: any, INTEGER,
        }
        RECORD_USE_DEPTH, record_use_depth: u64 = "record_use_depth" {
            access: { any with_record_use_depth, value record_use_depth },
            meaning: "a stream waits for a block's recorded uses, not taking more memory, when this many that fit wait",
            accepts: "a whole number",
            default: "2", |_| Some(2),
            form: any, INTEGER,
        }
        LAST_RESORT, last_resort: bool = "last_resort" {
            access: { any with_last_resort, value last_resort },
            meaning: "before a request fails, any free block that is safe to use serves, whatever its class and `max_split_size_mb`",
            default: "True; pytorch: False", |settings| Some(is_thalweg(settings)),
        }
    }
    Pinned {
        PINNED_USE_BACKGROUND_THREADS, pinned_use_background_threads: bool = "pinned_use_background_threads" {
            access: { any with_pinned_use_background_threads, value pinned_use_background_threads },
            meaning: "a thread in the background looks which pinned blocks the device is done with",
            default: "False", |_| Some(false),
        }
        PINNED_MAX_ROUND_THRESHOLD, pinned_max_round_threshold_bytes: u64 = "pinned_max_round_threshold_mb" {
            access: { checked with_pinned_max_round_threshold_bytes, optional pinned_max_round_threshold_bytes },
            meaning: "pinned requests above this are not rounded up to a power of two",
            accepts: "a whole number of MiB",
            default: "unlimited", |_| None,
            form: is_whole_mib, MEBIBYTES,
        }
        PINNED_MAX_CACHED_SIZE, pinned_max_cached_size_bytes: u64 = "pinned_max_cached_size_mb" {
            access: { checked with_pinned_max_cached_size_bytes, optional pinned_max_cached_size_bytes },
            meaning: "pinned blocks above this are not rounded up, and not kept when they are free",
            accepts: "a whole number of MiB",
            default: "unlimited", |_| None,
            form: is_whole_mib, MEBIBYTES,
        }
        PINNED_USE_CUDA_HOST_REGISTER, pinned_use_cuda_host_register: bool = "pinned_use_cuda_host_register" {
            access: { any with_pinned_use_cuda_host_register, value pinned_use_cuda_host_register },
            meaning: "ordinary memory is taken, touched and registered, instead of asking the driver for pinned memory",
            default: "False", |_| Some(false),
        }
        PINNED_NUM_REGISTER_THREADS, pinned_num_register_threads: u64 = "pinned_num_register_threads" {
            access: { checked with_pinned_num_register_threads, value pinned_num_register_threads },
            meaning: "how many threads touch the pages for that",
            accepts: "a power of two, at most 128",
            default: "1", |_| Some(1),
            form: |count| count.is_power_of_two() && *count <= 128, INTEGER,
        }
        PINNED_RESERVE_SEGMENT_SIZE, pinned_reserve_segment_size_bytes: u64 = "pinned_reserve_segment_size_mb" {
            access: { checked with_pinned_reserve_segment_size_bytes, optional pinned_reserve_segment_size_bytes },
            meaning: "pinned memory that is taken once, at the first request, and never given back",
            accepts: "a whole number of MiB, at least 1",
            default: "none", |_| None,
            form: |bytes| is_whole_mib(bytes) && *bytes > 0, MEBIBYTES,
        }
        PINNED_FREE_CATCH_ALL, pinned_free_catch_all: bool = "pinned_free_catch_all" {
            access: { any with_pinned_free_catch_all, value pinned_free_catch_all },
            meaning: "errors while pinned memory is given back are dropped",
            default: "False", |_| Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_single_changes() {
        let table =
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2)];
        for (from, to, expected) in table {
            assert_eq!(edit_distance(from, to), expected, "{from} to {to}");
        }
    }

    #[test]
    fn a_near_miss_is_recognised_and_a_far_one_is_not() {
        let table = [
            ("max_split_size", Some("max_split_size_mb")),
            ("MAX-SPLIT-SIZE-MB", Some("max_split_size_mb")),
            ("garbage_collect_threshold", Some("garbage_collection_threshold")),
            ("pinned_use_hip_host_register", Some("pinned_use_cuda_host_register")),
            ("release_lock_on_hipmalloc", Some("release_lock_on_cudamalloc")),
            ("expandable_segment", Some("expandable_segments")),
            ("foo_bar", None),
            ("", None),
        ];
        for (wrong, expected) in table {
            assert_eq!(nearest(wrong), expected, "for {wrong}");
        }
    }

    #[test]
    fn the_words_of_a_default_say_its_value() {
        let settings = Settings::default();
        for key in KEYS {
            let KeyDescription { name, default, value, is_set, .. } = key.describe(&settings);
            assert!(!is_set);
            let thalweg = default.split(';').next().expect("one at least");
            assert!(
                thalweg == value || (thalweg.starts_with('`') && value == "20"),
                "{name}: {default}, {value}"
            );
        }
    }
}
