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
//! [`Settings::keys`] has their table.
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
