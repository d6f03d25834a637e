//! The settings of an allocator: every key of PyTorch's `PYTORCH_ALLOC_CONF`, and our own.
//!
//! [`Settings`] is a value: it is made from a text, from the environment or by methods, and changed by making another. It decides
//! nothing and calls no other code; the effect of each key on an allocator is documented in the code that applies it. Sizes are
//! in bytes, though the keys of the text are in MiB, as in PyTorch.
//!
//! ```
//! use thalweg_memory::Settings;
//! let settings = Settings::parse("max_split_size_mb:128, roundup_power2_divisions:[256:1,512:2,>:4]")?;
//! assert_eq!(settings.max_split_size_bytes(), Some(128 << 20));
//! let settings = settings.apply("stitching:False")?;
//! assert_eq!(settings.max_split_size_bytes(), Some(128 << 20));
//! # Ok::<(), thalweg_memory::SettingsError>(())
//! ```
//!
//! # The text
//!
//! The form is `key:value,key:value`; a list is `key:[a:b,c:d]`. White space around these signs is ignored, and a trailing comma
//! is allowed. Entries are applied in order, so of two with one key the last wins: scripts override by appending. The value
//! `default` resets any key. [`Display`](std::fmt::Display) writes the keys that are set; reading that returns equal settings.
//!
//! # The keys
//!
//! | key | takes | default | meaning |
//! |---|---|---|---|
//! | `policy` | `thalweg` or `pytorch` | thalweg | where the defaults of other keys come from; a key that is set counts, wherever it stands |
//! | `backend` | `native` or `cudaMallocAsync` | native | what hands out device memory; chosen at the start, for good |
//! | `large_segment_size_mb` | a whole number of MiB, at least 11 | 20 | the segment for requests of more than 1 MiB and less than 10 |
//! | `segment_granularity_mb` | an even number of MiB, from 2 to 1024 | 2 | segments for requests of 10 MiB or more are a multiple of this; a coarse one serves later requests of other sizes |
//! | `max_split_size_mb` | a whole number of MiB, at least `large_segment_size_mb` | unlimited | blocks of this size or more are never cut, and go back to the driver one by one |
//! | `max_non_split_rounding_mb` | a whole number of MiB, at least `large_segment_size_mb` | `large_segment_size_mb` | a block that is not cut serves requests that waste less than this |
//! | `garbage_collection_threshold` | a number between 0 and 1, neither of them | off | the part of the allowed memory above which old free blocks go back before more is taken |
//! | `roundup_power2_divisions` | a power of two, or a list such as `[64:8,256:4,>:1]` | off | sizes round up to this many steps between powers of two, alike or from each size in MiB on |
//! | `per_process_memory_fraction` | a number from 0 to 1 | 1 | the part of the device's memory that may be taken from the driver |
//! | `throw_on_cudamalloc_oom` | `True` or `False` | False | a request that would pass the memory fraction fails at once, and nothing is given back first |
//! | `release_lock_on_cudamalloc` | `True` or `False` | False | other threads may use the allocator while one waits for the driver's memory |
//! | `graph_capture_record_stream_reuse` | `True` or `False` | False | in a capture, blocks with recorded streams are used again where the graph orders it |
//! | `expandable_segments` | `True` or `False` | True; pytorch: False | segments grow page by page in reserved addresses, where the driver has virtual memory |
//! | `expandable_segments_reserve` | a fraction of the device's memory (`0.5`) or a number of GiB (`8G`), more than 0 | 9/8 of the device's memory | the addresses that each expandable segment reserves; 9/8 of the device's memory at most |
//! | `expandable_segments_reserve_by_class` | a list such as `[serving:0.25,training:8G]` | none | the same for streams of one class |
//! | `expandable_page_mb` | an even number of MiB, from 2 to 1024 | 8; pytorch: `large_segment_size_mb` | the page by which expandable segments of large requests grow; of small ones it is 2 MiB |
//! | `stitching` | `True` or `False` | True; pytorch: False | free pages from anywhere in an expandable pool may be moved into one contiguous range |
//! | `stitching_slack` | a number from 0 to 1 | 0.02 | pages are made, not moved, while no more is reserved than was ever active, and this part of it |
//! | `cross_stream_reuse` | `never`, `idle` or `ordered` | idle; pytorch: never | when free memory of another stream serves: once its work is done, or also by waiting for it |
//! | `cross_stream_wait_limit` | a whole number | 64 | at most this many waits that reuse put on streams may not be known to have passed |
//! | `record_use_depth` | a whole number | 2 | a stream waits for a block's recorded uses, not taking more memory, when this many that fit wait |
//! | `last_resort` | `True` or `False` | True; pytorch: False | before a request fails, any free block that is safe to use serves, whatever its class and `max_split_size_mb` |
//! | `pinned_use_background_threads` | `True` or `False` | False | a thread in the background looks which pinned blocks the device is done with |
//! | `pinned_max_round_threshold_mb` | a whole number of MiB | unlimited | pinned requests above this are not rounded up to a power of two |
//! | `pinned_max_cached_size_mb` | a whole number of MiB | unlimited | pinned blocks above this are not rounded up, and not kept when they are free |
//! | `pinned_use_cuda_host_register` | `True` or `False` | False | ordinary memory is taken, touched and registered, instead of asking the driver for pinned memory |
//! | `pinned_num_register_threads` | a power of two, at most 128 | 1 | how many threads touch the pages for that |
//! | `pinned_reserve_segment_size_mb` | a whole number of MiB, at least 1 | none | pinned memory that is taken once, at the first request, and never given back |
//! | `pinned_free_catch_all` | `True` or `False` | False | errors while pinned memory is given back are dropped |
//!
//! # Defaults that depend on other keys
//!
//! A key is set or not, and only keys that are set are stored; a default is computed when it is read. So the position of `policy`
//! or `large_segment_size_mb` in the text does not matter, nor whether it is set later by [`Settings::apply`].
//!
//! # The environment
//!
//! Only the first of `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF` that is set is read. `PYTORCH_NO_CUDA_MEMORY_CACHING`,
//! set to anything except `0` or the empty text, switches caching off.
//!
//! # Differences from PyTorch
//!
//! - PyTorch ignores a missing separator, accepts `20MB` for `20`, and removes white space inside words. Here each of these is an
//!   error that points at the character, as is everything that PyTorch refuses too. This holds for every backend: a wrong value
//!   of a key that `cudaMallocAsync` ignores is still an error, while a valid one is a [warning](Settings::warnings).
//! - In PyTorch, each parse resets `max_split_size_mb`, `roundup_power2_divisions` and `garbage_collection_threshold` if they are
//!   not named. Here keys that are not named keep their values.
//! - A wrong `expandable_segments_reserve` is a warning there, and an error here.
//!
//! The names that AMD's builds of PyTorch add (`PYTORCH_HIP_ALLOC_CONF`, `release_lock_on_hipmalloc` and so on) are unknown here.

mod access;
mod error;
mod grammar;
mod keys;
mod report;
mod values;

use std::fmt;
use std::ops::Range;

use error::{Fault, FaultKind};
use grammar::{Cursor, TokenKind};
use keys::{KEYS, Values};
use values::MIB;

pub use error::SettingsError;
pub use keys::{Concerns, KeyDescription};
pub use report::SnapshotValue;
pub use values::{Backend, CrossStreamReuse, Policy, PowerTwoDivisions, Reserve};

/// The environment variables that may contain a text, the most specific first.
const TEXT_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];
const NO_CACHING_VARIABLE: &str = "PYTORCH_NO_CUDA_MEMORY_CACHING";

/// The settings of a [`DeviceAllocator`](crate::DeviceAllocator) and a [`HostAllocator`](crate::HostAllocator). See the
/// [module's essay](crate::settings).
///
/// Equal settings have the same keys set to the same values, the same label and number of the device, and the same state of
/// caching.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    label: String,
    device_number: i32,
    caching: bool,
    values: Values,
}

impl Default for Settings {
    fn default() -> Self {
        Self { label: "The device".to_owned(), device_number: 0, caching: true, values: Values::default() }
    }
}

/// The positions in a text of the values of the keys, in order.
type Places = Vec<(&'static str, Range<usize>)>;

impl Settings {
    /// Creates the settings that a text describes. Keys that it does not name have their defaults.
    ///
    /// # Errors
    /// If the text is not well formed, names an unknown key, or has a value that its key does not accept. The error contains the
    /// position.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        settings.assign(text).map_err(|fault| fault.in_text(text))?;
        Ok(settings)
    }

    /// Returns these settings with the changes that a text describes, for a change at run time. Keys that it does not name keep
    /// their values.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse); and if the text names another `backend`, which can only be chosen at the start.
    pub fn apply(&self, text: &str) -> Result<Self, SettingsError> {
        let mut changed = self.clone();
        let places = changed.assign(text).map_err(|fault| fault.in_text(text))?;
        if changed.backend() != self.backend() {
            let range = place(&places, keys::BACKEND.name).expect("only a text that names a key changes it");
            let expected = format!("`{}`, which was chosen at the start", values::word(self.backend()));
            return Err(Fault::value(keys::BACKEND.name, range.clone(), &text[range], expected).in_text(text));
        }
        Ok(changed)
    }

    /// Creates the settings from the environment. `variable` returns a variable by name: `|name| std::env::var(name).ok()`.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse). The error names the variable.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let found = TEXT_VARIABLES.into_iter().find_map(|name| Some((name, variable(name)?)));
        let settings = match found {
            Some((name, text)) => Self::parse(&text).map_err(|error| error.with_variable(name))?,
            None => Self::default(),
        };
        let caching = variable(NO_CACHING_VARIABLE).is_none_or(|value| matches!(value.trim(), "" | "0"));
        Ok(settings.with_caching(caching))
    }

    /// Returns these settings with one key reset to its default.
    ///
    /// # Errors
    /// If there is no such key, or the default is not consistent with another value that is set.
    pub fn without(&self, name: &str) -> Result<Self, SettingsError> {
        let Some(key) = keys::find(name) else { return Err(unknown(0..0, name).outside_text()) };
        let mut changed = self.clone();
        key.clear(&mut changed);
        changed.consistent()
    }

    /// Returns whether a key is set, and not left to its default; `false` for an unknown key.
    pub fn is_set(&self, name: &str) -> bool {
        keys::find(name).is_some_and(|key| key.is_set(self))
    }

    /// Returns all keys with their meanings and effective values, for people.
    pub fn keys(&self) -> impl Iterator<Item = KeyDescription> + '_ {
        KEYS.iter().map(|key| key.describe(self))
    }

    /// Reads a text into these settings. If this fails, the settings must be discarded.
    fn assign(&mut self, text: &str) -> Result<Places, Fault> {
        let mut cursor = Cursor::new(text);
        let mut places = Places::new();
        while cursor.peek().kind != TokenKind::End {
            let name = cursor.expect(TokenKind::Word, "a key")?;
            let Some(key) = keys::find(name.text) else { return Err(unknown(name.range(), name.text)) };
            let named = |fault| Fault { key: Some(key.name()), ..fault };
            cursor.expect(TokenKind::Colon, "`:` and a value").map_err(named)?;
            let start = cursor.peek().start;
            key.read(&mut cursor, self)?;
            places.push((key.name(), start..cursor.position()));
            if cursor.peek().kind != TokenKind::End {
                cursor.expect(TokenKind::Comma, "`,` and the next key").map_err(named)?;
            }
        }
        match self.conflict() {
            Some(conflict) => Err(conflict.in_text(text, &places)),
            None => Ok(places),
        }
    }

    /// Returns two values that are not consistent with each other, if there are any.
    fn conflict(&self) -> Option<Conflict> {
        let large_bytes = self.large_segment_size_bytes();
        let bounded = [&keys::MAX_SPLIT_SIZE, &keys::MAX_NON_SPLIT_ROUNDING];
        bounded.into_iter().find_map(|key| {
            let bytes = key.explicit(self)?;
            (bytes < large_bytes).then_some(Conflict { name: key.name, bytes, large_bytes })
        })
    }

    /// Returns these settings after a change by a method, if they are consistent.
    fn consistent(self) -> Result<Self, SettingsError> {
        match self.conflict() {
            Some(conflict) => Err(conflict.too_small(0..0).outside_text()),
            None => Ok(self),
        }
    }
}

/// A key whose value is less than `large_segment_size_mb`, although it must be at least that.
struct Conflict {
    name: &'static str,
    bytes: u64,
    large_bytes: u64,
}

impl Conflict {
    /// Creates the fault at that key or, if the text does not name it, at the value that raised the bound.
    fn in_text(self, text: &str, places: &Places) -> Fault {
        let large = keys::LARGE_SEGMENT_SIZE.name;
        match (place(places, self.name), place(places, large)) {
            (None, Some(range)) => {
                let expected = format!("at most {} (`{}`)", self.bytes / MIB, self.name);
                Fault::value(large, range.clone(), &text[range], expected)
            }
            (range, _) => self.too_small(range.expect("a conflict is with a key that the text names")),
        }
    }

    fn too_small(&self, range: Range<usize>) -> Fault {
        let Self { name, bytes, large_bytes } = *self;
        let bound = large_bytes / MIB;
        let expected = format!("a whole number of MiB, at least {bound} (`large_segment_size_mb`)");
        Fault::value(name, range, bytes / MIB, expected)
    }
}

/// Returns the position of a key's value in a text; of two values, the position of the last, which counts.
fn place(places: &Places, name: &str) -> Option<Range<usize>> {
    places.iter().rev().find(|(other, _)| *other == name).map(|(_, range)| range.clone())
}

fn unknown(range: Range<usize>, name: &str) -> Fault {
    let names: Vec<&str> = KEYS.iter().map(|key| key.name()).collect();
    let kind = FaultKind::UnknownKey { nearest: keys::nearest(name) };
    Fault { range, key: None, found: name.to_owned(), expected: names.join(", ").into(), kind }
}

/// The canonical text: the keys that are set, in the order of the list. The label and the state of caching are not part of any
/// text.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for key in KEYS {
            if let Some(value) = key.written(self) {
                write!(f, "{separator}{}:{value}", key.name())?;
                separator = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_essay_has_the_table_of_the_keys() {
        let rows: Vec<String> = Settings::default()
            .keys()
            .map(|key| {
                let KeyDescription { name, accepts, default, meaning, .. } = key;
                format!("//! | `{name}` | {accepts} | {default} | {meaning} |")
            })
            .collect();
        let written: Vec<&str> =
            include_str!("mod.rs").lines().filter(|line| line.starts_with("//! | `")).collect();
        assert_eq!(written, rows, "the table should be\n{}", rows.join("\n"));
    }
}
