//! The stacks of the Rust program itself.
//!
//! Taking a stack walks the thread's frames, which takes some microseconds, and stores their instruction pointers, once for each
//! distinct stack. Names are looked up when a snapshot needs them, once for each distinct pointer: a lookup takes microseconds
//! too, the first one reads the program's debug information, and a snapshot has millions of frames but only some thousands of
//! pointers. Without debug information there are names but no lines.

use std::ffi::c_void;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_lock::{Mutex, MutexGuard};
use thalweg_snapshot::Frame;

use super::{StackId, StackSource};

/// The greatest number of frames of a stack; further frames, which are the ones next to `main`, are left out.
const MOST_FRAMES: usize = 128;

/// A source of stacks of functions in Rust and in other languages that have unwind tables.
#[derive(Default)]
pub struct RustStacks {
    stacks: Mutex<Stacks>,
    /// The frames at each pointer: several if functions were inlined, the innermost first.
    places: Mutex<FxHashMap<usize, Arc<[Frame]>>>,
}

#[derive(Default)]
struct Stacks {
    ids: FxHashMap<Arc<[usize]>, StackId>,
    pointers: Vec<Arc<[usize]>>,
}

impl RustStacks {
    /// Creates a source without stacks yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn stacks(&self) -> MutexGuard<'_, Stacks> {
        self.stacks.lock()
    }

    fn frames_at(&self, pointer: usize) -> Arc<[Frame]> {
        let mut places = self.places.lock();
        let frames = places.entry(pointer).or_insert_with(|| {
            let mut frames = Vec::new();
            backtrace::resolve(pointer as *mut c_void, |symbol| {
                let text = |text: Option<String>| Arc::from(text.unwrap_or_else(|| "??".to_owned()));
                frames.push(Frame {
                    filename: text(symbol.filename().map(|path| path.display().to_string())),
                    line: symbol.lineno().unwrap_or(0),
                    name: text(symbol.name().map(|name| format!("{name:#}"))),
                });
            });
            frames.into()
        });
        Arc::clone(frames)
    }
}

impl StackSource for RustStacks {
    fn capture(&self) -> Option<StackId> {
        let mut pointers: SmallVec<[usize; MOST_FRAMES]> = SmallVec::new();
        backtrace::trace(|frame| {
            pointers.push(frame.ip() as usize);
            pointers.len() < MOST_FRAMES
        });
        let mut stacks = self.stacks();
        if let Some(&id) = stacks.ids.get(&pointers[..]) {
            return Some(id);
        }
        let id = StackId::new(u32::try_from(stacks.pointers.len() + 1).ok()?)?;
        let pointers: Arc<[usize]> = pointers[..].into();
        stacks.pointers.push(Arc::clone(&pointers));
        stacks.ids.insert(pointers, id);
        Some(id)
    }

    fn frames(&self, stack: StackId) -> Vec<Frame> {
        let pointers = self.stacks().pointers.get(stack.get() as usize - 1).cloned();
        let pointers = pointers.iter().flat_map(|pointers| pointers.iter());
        let frames = pointers.flat_map(|&pointer| self.frames_at(pointer).to_vec());
        frames.skip_while(is_our_own).collect()
    }
}

/// Returns whether a frame belongs to the taking of the stack or to the allocator, and is left out. If debug information has
/// lines only, inlined functions have names without a path, and are recognised by their file.
fn is_our_own(frame: &Frame) -> bool {
    let name = frame.name.trim_start_matches('<');
    ["backtrace::", "thalweg_memory::"].iter().any(|path| name.starts_with(path))
        || ["/backtrace-", "thalweg-memory/src/"].iter().any(|path| frame.filename.contains(path))
}

impl std::fmt::Debug for RustStacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RustStacks").field("stacks", &self.stacks().pointers.len()).finish_non_exhaustive()
    }
}
