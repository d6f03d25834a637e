//! Texts that events carry, by number: what a thread is told to write beside its events, and which compiled region it runs.
//!
//! The numbers are those of the process, so that a thread's text is good for the history of every device. A text is kept for
//! as long as the process lives.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

/// Names a text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TextId(NonZeroU32);

impl TextId {
    /// The name of `text`; `None` if it is empty.
    ///
    /// # Panics
    /// If the process has named 2^32 different texts.
    pub fn of(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let mut texts = texts();
        if let Some(&id) = texts.ids.get(text) {
            return Some(id);
        }
        let shared: Arc<str> = text.into();
        texts.texts.push(Arc::clone(&shared));
        let number = u32::try_from(texts.texts.len()).expect("a process names fewer than 2^32 texts");
        let id = Self(NonZeroU32::new(number).expect("one was just pushed"));
        texts.ids.insert(shared, id);
        Some(id)
    }

    /// The text.
    pub fn text(self) -> Arc<str> {
        texts().texts[self.index()].clone()
    }

    pub(super) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Default)]
struct Texts {
    texts: Vec<Arc<str>>,
    ids: FxHashMap<Arc<str>, TextId>,
}

fn texts() -> MutexGuard<'static, Texts> {
    static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All texts so far, by number.
pub(super) fn all() -> Vec<Arc<str>> {
    texts().texts.clone()
}

thread_local! {
    static METADATA: Cell<Option<TextId>> = const { Cell::new(None) };
    /// The regions that the thread is in, innermost last.
    static REGIONS: RefCell<Vec<Option<TextId>>> = const { RefCell::new(Vec::new()) };
    /// The last of them, where events find it at once.
    static REGION: Cell<Option<TextId>> = const { Cell::new(None) };
}

/// The metadata and the innermost compiled region of the calling thread.
pub(super) fn of_this_thread() -> (Option<TextId>, Option<TextId>) {
    (METADATA.get(), REGION.get())
}

/// From now on `text` stands beside the events of the calling thread, on every device; nothing if it is empty. It is kept as
/// long as the process lives, see the [module](super).
pub fn set_user_metadata(text: &str) {
    METADATA.set(TextId::of(text));
}

/// What stands beside the events of the calling thread.
pub fn user_metadata() -> Arc<str> {
    METADATA.get().map_or_else(|| Arc::from(""), TextId::text)
}

/// The calling thread is in a compiled region as long as this lives.
#[derive(Debug)]
pub struct CompileRegion {
    /// How many regions are around it.
    depth: usize,
    /// It belongs to the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl CompileRegion {
    /// Enters a region of this name: `0/0`, say. Its text is kept as long as the process lives.
    #[must_use = "the region ends when this is dropped"]
    pub fn enter(name: &str) -> Self {
        let id = TextId::of(name);
        let depth = REGIONS.with_borrow_mut(|regions| {
            regions.push(id);
            regions.len() - 1
        });
        REGION.set(id);
        Self { depth, _thread: PhantomData }
    }
}

impl Drop for CompileRegion {
    fn drop(&mut self) {
        // The thread may be ending, and its regions gone. Regions that are dropped in the wrong order end those within them.
        let _ = REGIONS.try_with(|regions| {
            let mut regions = regions.borrow_mut();
            regions.truncate(self.depth);
            REGION.set(regions.last().copied().flatten());
        });
    }
}
