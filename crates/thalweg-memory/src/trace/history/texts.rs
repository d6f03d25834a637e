//! The texts that events refer to by number: the metadata that a thread attaches to its events, and the compiled region that it
//! runs.
//!
//! An event has room only for a number, so each distinct text has one, with a count of the events and threads that refer to it. A
//! text that is no longer used is kept for a while, for a thread that is about to use its number, and then forgotten. So a
//! program that names each of its steps keeps at most as many names as events.
//!
//! The numbers are valid in the entire process, so that a thread's text can be used in the history of every device.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};

use rustc_hash::FxHashMap;
use thalweg_lock::{Mutex, MutexGuard};

/// The number of unused texts that are kept.
const IDLE: usize = 256;

/// The identifier of a text, valid as long as an event or a thread refers to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TextId(NonZeroU32);

impl TextId {
    /// Returns the identifier of `text`; `None` if it is empty.
    pub fn of(text: &str) -> Option<Self> {
        Held::of(text).map(|held| held.0)
    }

    /// Returns the text; empty if it has been forgotten.
    pub fn text(self) -> Arc<str> {
        texts().known.get(&self).map_or_else(|| Arc::from(""), |known| Arc::clone(&known.text))
    }
}

/// A counted reference to a text.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Held(TextId);

impl Held {
    /// Adds a reference to `text`; `None` if it is empty.
    pub(super) fn of(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let mut texts = texts();
        let id = texts.ids.get(text).copied().unwrap_or_else(|| texts.name(text));
        texts.hold(id)
    }

    /// Adds a reference to the text of an identifier; `None` if it has been forgotten.
    pub(super) fn of_id(id: TextId) -> Option<Self> {
        texts().hold(id)
    }

    pub(super) fn text(&self) -> Arc<str> {
        self.0.text()
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        texts().hold(self.0).expect("it is held")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        texts().let_go(self.0);
    }
}

struct Known {
    text: Arc<str>,
    holders: usize,
}

#[derive(Default)]
struct Texts {
    known: FxHashMap<TextId, Known>,
    ids: FxHashMap<Arc<str>, TextId>,
    /// Texts without references, the one released last at the end. A text may be referenced again, and appear here again.
    idle: VecDeque<TextId>,
    last: u32,
}

impl Texts {
    fn name(&mut self, text: &str) -> TextId {
        let id = loop {
            self.last = self.last.wrapping_add(1);
            let free = NonZeroU32::new(self.last).map(TextId).filter(|id| !self.known.contains_key(id));
            if let Some(id) = free {
                break id;
            }
        };
        let text: Arc<str> = text.into();
        self.ids.insert(Arc::clone(&text), id);
        self.known.insert(id, Known { text, holders: 0 });
        id
    }

    fn hold(&mut self, id: TextId) -> Option<Held> {
        self.known.get_mut(&id)?.holders += 1;
        Some(Held(id))
    }

    fn let_go(&mut self, id: TextId) {
        let known = self.known.get_mut(&id).expect("it is held");
        known.holders -= 1;
        if known.holders > 0 {
            return;
        }
        self.idle.push_back(id);
        if self.idle.len() <= IDLE {
            return;
        }
        let oldest = self.idle.pop_front().expect("there are more than none");
        let is_held = self.known.get(&oldest).is_none_or(|known| known.holders > 0);
        if !is_held && let Some(gone) = self.known.remove(&oldest) {
            self.ids.remove(&gone.text);
        }
    }
}

fn texts() -> MutexGuard<'static, Texts> {
    static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);
    TEXTS.lock()
}

/// The texts that a thread attaches to its events.
#[derive(Default)]
struct Words {
    metadata: Option<Held>,
    /// The regions that the thread is in, innermost last.
    regions: Vec<Option<Held>>,
}

thread_local! {
    static WORDS: RefCell<Words> = RefCell::default();
}

/// Returns the metadata and the innermost compiled region of the calling thread. A thread that is ending has neither.
pub(super) fn of_this_thread() -> (Option<Held>, Option<Held>) {
    let words = |words: &RefCell<Words>| {
        let words = words.borrow();
        (words.metadata.clone(), words.regions.last().cloned().flatten())
    };
    WORDS.try_with(words).unwrap_or_default()
}

/// Attaches `text` to the events of the calling thread from now on, on every device; an empty text removes it.
pub fn set_user_metadata(text: &str) {
    WORDS.with_borrow_mut(|words| words.metadata = Held::of(text));
}

/// Returns the text that is attached to the events of the calling thread.
pub fn user_metadata() -> Arc<str> {
    WORDS.with_borrow(|words| words.metadata.as_ref().map_or_else(|| Arc::from(""), Held::text))
}

/// A guard during whose life the calling thread is in a compiled region.
#[derive(Debug)]
pub struct CompileRegion {
    /// The number of enclosing regions.
    depth: usize,
    /// Makes the guard stay on the thread that created it.
    _thread: PhantomData<*const ()>,
}

impl CompileRegion {
    /// Enters a region with this name, for example `0/0`.
    #[must_use = "the region ends when this is dropped"]
    pub fn enter(name: &str) -> Self {
        let region = Held::of(name);
        let depth = WORDS.with_borrow_mut(|words| {
            words.regions.push(region);
            words.regions.len() - 1
        });
        Self { depth, _thread: PhantomData }
    }
}

impl Drop for CompileRegion {
    fn drop(&mut self) {
        // The thread may be ending, and its regions may have been dropped. Regions that are dropped in the wrong order also end
        // the regions within them.
        let _ = WORDS.try_with(|words| words.borrow_mut().regions.truncate(self.depth));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_lives_as_long_as_it_is_used_and_a_little_longer() {
        let of =
            |number: usize| Held::of(&format!("a text of many, number {number}")).expect("it is not empty");
        let first = of(0);
        let (again, id) = (first.clone(), first.0);
        drop(first);
        (1..2000).for_each(|number| drop(of(number)));
        assert_eq!((&*again.text(), of(0) == again), ("a text of many, number 0", true));
        drop(again);
        assert_eq!(&*id.text(), "a text of many, number 0", "for the code that is about to use it");
        (1..2000).for_each(|number| drop(of(number)));
        assert_eq!((&*id.text(), Held::of_id(id)), ("", None));
        let ours = texts().known.values().filter(|known| known.text.starts_with("a text of many")).count();
        assert!(ours <= IDLE + 1, "{ours} texts are kept without a use");
    }
}
