//! [`DispatchKey`]: the layers that may handle a call, and the keys that a thread includes in its calls or excludes from them.

use std::cell::Cell;
use std::marker::PhantomData;

use thalweg_runtime::Device;

/// The key of a kernel: backends, autograd and modes, from the lowest priority to the highest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DispatchKey {
    /// Tensors on a simulated GPU.
    Sim = 0,
    /// Tensors on a GPU.
    Cuda = 1,
    /// Tensors with only shapes and dtypes, on [`Device::meta`].
    Meta = 2,
    /// A front end that receives each call below autograd, including those of backward functions. Threads include it explicitly.
    Python = 3,
    /// A gradient may flow through the call.
    Autograd = 4,
    /// A tensor of the call has complex numbers: operators that compute with the parts are run here, by operators on real
    /// numbers.
    Complex = 5,
    /// The call is recorded by [`trace`](super::trace).
    Trace = 6,
    /// The call is in a region of [`autocast`](crate::autocast::autocast).
    Autocast = 7,
    /// A mode of the program's own, which receives each call first. Threads include it explicitly.
    User1 = 8,
    /// Another mode, above the first.
    User2 = 9,
    /// Another mode, above all others.
    User3 = 10,
}

impl DispatchKey {
    /// Every key, lowest priority first.
    pub const ALL: [Self; 11] = [
        Self::Sim,
        Self::Cuda,
        Self::Meta,
        Self::Python,
        Self::Autograd,
        Self::Complex,
        Self::Trace,
        Self::Autocast,
        Self::User1,
        Self::User2,
        Self::User3,
    ];

    /// The keys of devices: a call has one of them.
    pub const BACKENDS: [Self; 3] = [Self::Sim, Self::Cuda, Self::Meta];

    /// Returns the backend of a device.
    pub fn of_device(device: &Device) -> Self {
        match (device.is_meta(), device.is_simulated()) {
            (true, _) => Self::Meta,
            (false, true) => Self::Sim,
            (false, false) => Self::Cuda,
        }
    }
}

/// A set of keys, one bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DispatchKeySet(u64);

impl std::fmt::Debug for DispatchKeySet {
    /// Writes the keys, highest priority first.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.highest_first()).finish()
    }
}

impl DispatchKeySet {
    /// No key.
    pub const EMPTY: Self = Self(0);

    /// Returns the set with a key added.
    #[must_use]
    pub const fn with(self, key: DispatchKey) -> Self {
        Self(self.0 | 1 << key as u8)
    }

    /// Returns the set with a key removed.
    #[must_use]
    pub const fn without(self, key: DispatchKey) -> Self {
        Self(self.0 & !(1 << key as u8))
    }

    /// Adds a key to the set, or removes it.
    fn put(&mut self, key: DispatchKey, is_in: bool) {
        *self = if is_in { self.with(key) } else { self.without(key) };
    }

    /// Returns whether the key is in the set.
    pub const fn has(self, key: DispatchKey) -> bool {
        self.0 & 1 << key as u8 != 0
    }

    /// Returns the keys, highest priority first.
    pub fn highest_first(self) -> impl Iterator<Item = DispatchKey> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let highest = rest.checked_ilog2()?;
            rest ^= 1 << highest;
            Some(DispatchKey::ALL[highest as usize])
        })
    }

    /// Returns the set for calls of this thread: with the keys that the thread includes, without those that it excludes.
    pub(super) fn of_thread(self) -> Self {
        let Local { included, excluded, is_inference, .. } = LOCAL.get();
        let never = if is_inference { Self::EMPTY.with(DispatchKey::Autograd) } else { Self::EMPTY };
        Self((self.0 | included.0) & !(excluded.0 | never.0))
    }
}

/// The keys that a thread includes in and excludes from its calls.
#[derive(Clone, Copy)]
struct Local {
    included: DispatchKeySet,
    excluded: DispatchKeySet,
    /// Whether the thread is in inference mode.
    is_inference: bool,
    anomaly: Anomaly,
}

/// The extent to which backward passes trace failures to the source lines that caused them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Anomaly {
    /// Failures are not traced.
    Off,
    /// Nodes store the line that recorded them.
    Lines,
    /// Nodes store that line, and a NaN is a failure.
    LinesAndNan,
}

impl Local {
    const fn new() -> Self {
        Self {
            included: DispatchKeySet::EMPTY,
            excluded: DispatchKeySet::EMPTY,
            is_inference: false,
            anomaly: Anomaly::Off,
        }
    }
}

thread_local! {
    static LOCAL: Cell<Local> = const { Cell::new(Local::new()) };
}

/// A guard that puts back a part of the thread's keys and modes.
struct Restore {
    former: Local,
    part: Part,
    _not_send: PhantomData<*const ()>,
}

/// The part that a guard changes.
#[derive(Clone, Copy)]
enum Part {
    Included(DispatchKey),
    Excluded(DispatchKey),
    Inference,
    Anomaly,
}

impl Restore {
    fn after(part: Part, change: impl FnOnce(&mut Local)) -> Self {
        let former = LOCAL.get();
        let mut local = former;
        change(&mut local);
        LOCAL.set(local);
        Self { former, part, _not_send: PhantomData }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let (mut local, former) = (LOCAL.get(), self.former);
        match self.part {
            Part::Included(key) => local.included.put(key, former.included.has(key)),
            Part::Excluded(key) => local.excluded.put(key, former.excluded.has(key)),
            Part::Inference => {
                local.is_inference = former.is_inference;
                local.excluded.put(DispatchKey::Autograd, former.excluded.has(DispatchKey::Autograd));
            }
            Part::Anomaly => local.anomaly = former.anomaly,
        }
        LOCAL.set(local);
    }
}

/// A guard that excludes a key from every call of this thread until it is dropped.
#[must_use = "the key is left out only while the guard lives"]
pub struct ExcludeKeyGuard {
    _restore: Restore,
}

impl ExcludeKeyGuard {
    /// Starts excluding the key.
    pub fn new(key: DispatchKey) -> Self {
        Self { _restore: Restore::after(Part::Excluded(key), |local| local.excluded.put(key, true)) }
    }
}

/// A guard that adds a key to every call of this thread until it is dropped, unless the thread excludes it.
#[must_use = "the key is added only while the guard lives"]
pub struct IncludeKeyGuard {
    _restore: Restore,
}

impl IncludeKeyGuard {
    /// Starts adding the key.
    pub fn new(key: DispatchKey) -> Self {
        Self { _restore: Restore::after(Part::Included(key), |local| local.included.put(key, true)) }
    }
}

/// Sets whether calls of this thread exclude a key, and returns whether they did.
pub(crate) fn set_excluded(key: DispatchKey, excluded: bool) -> bool {
    let mut local = LOCAL.get();
    let former = local.excluded.has(key);
    local.excluded.put(key, excluded);
    LOCAL.set(local);
    former
}

/// Sets whether calls of this thread include a key, and returns whether they did.
pub(crate) fn set_included(key: DispatchKey, included: bool) -> bool {
    let mut local = LOCAL.get();
    let former = local.included.has(key);
    local.included.put(key, included);
    LOCAL.set(local);
    former
}

/// Sets whether this thread is in inference mode, and returns whether it was.
pub(crate) fn set_inference(enabled: bool) -> bool {
    let mut local = LOCAL.get();
    let former = std::mem::replace(&mut local.is_inference, enabled);
    LOCAL.set(local);
    former
}

/// Sets the extent to which backward passes of this thread trace failures, and returns the previous one.
pub(crate) fn set_anomaly(anomaly: Anomaly) -> Anomaly {
    let mut local = LOCAL.get();
    let former = std::mem::replace(&mut local.anomaly, anomaly);
    LOCAL.set(local);
    former
}

/// A mode of recording, which lasts until it is dropped.
#[must_use = "the mode lasts only while the guard lives"]
pub(crate) struct ModeGuard {
    _restore: Restore,
}

impl ModeGuard {
    /// Starts anomaly mode, or a region outside it.
    pub(crate) fn anomaly(anomaly: Anomaly) -> Self {
        Self { _restore: Restore::after(Part::Anomaly, |local| local.anomaly = anomaly) }
    }

    /// Starts inference mode, or a region outside it.
    pub(crate) fn inference(enabled: bool) -> Self {
        Self {
            _restore: Restore::after(Part::Inference, |local| {
                local.is_inference = enabled;
                local.excluded.put(DispatchKey::Autograd, enabled);
            }),
        }
    }
}

/// Returns whether this thread is in inference mode.
pub(crate) fn is_inference() -> bool {
    LOCAL.get().is_inference
}

/// Returns the extent to which backward passes of this thread trace failures.
pub(crate) fn anomaly() -> Anomaly {
    LOCAL.get().anomaly
}

/// Returns whether calls of this thread exclude a key.
pub(crate) fn is_excluded(key: DispatchKey) -> bool {
    LOCAL.get().excluded.has(key)
}
