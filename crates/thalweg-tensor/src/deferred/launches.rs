//! [`SharedLaunch`]: a launch without its numbers, which loops of several windows share.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_execute::{Kept, Lowered, alignment_of, execute, to_runtime_error};
use thalweg_ops::lower::{LaunchNumbers, LoopLaunch, Steps};
use thalweg_runtime::{Device, DevicePointer, Label, Result, Stream};

/// A launch on a device without its numbers, with the prepared launch that is used if the loop runs alone.
#[derive(Debug)]
pub(crate) struct SharedLaunch {
    pub(super) launch: Arc<LoopLaunch>,
    /// A number that no other launch has.
    pub(super) number: u64,
    /// The launches as which it is executed, if its rows are few and long.
    steps: OnceLock<Option<Steps>>,
    kept: OnceLock<Kept>,
}

/// The number of launches that a thread finds again.
const LAUNCHES_KEPT: usize = 1 << 12;

thread_local! {
    /// The launches that this thread has shared, by everything that they depend on.
    static SHARED: RefCell<FxHashMap<SmallVec<[u64; 40]>, Arc<SharedLaunch>>> = RefCell::default();
}

impl SharedLaunch {
    /// Shares a launch, or finds it shared by this thread.
    pub fn of(launch: &LoopLaunch, device: &Device) -> Arc<Self> {
        let mut key = launch.key(0);
        key.push(device.number());
        // A thread whose thread-local variables are already destroyed keeps nothing.
        let known = SHARED.try_with(|shared| shared.borrow().get(&key).cloned());
        if let Ok(Some(known)) = known {
            return known;
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Two threads may share the same launch under two numbers: each plans its own programs anyway.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let launch = Arc::new(LoopLaunch { scalars: LaunchNumbers::new(), ..launch.clone() });
        let made = Arc::new(Self { launch, number, steps: OnceLock::new(), kept: OnceLock::new() });
        let _ = SHARED.try_with(|shared| {
            let mut shared = shared.borrow_mut();
            if shared.len() >= LAUNCHES_KEPT {
                shared.clear();
            }
            shared.insert(key, Arc::clone(&made));
        });
        made
    }

    /// Queues the launch by itself.
    pub(super) fn run(
        &self,
        stream: &Stream,
        (inputs, outputs): (&[DevicePointer], &[DevicePointer]),
        numbers: &[u64],
        label: Label,
    ) -> Result<()> {
        let steps = match self.steps.get() {
            Some(steps) => steps,
            None => {
                let steps = self.launch.steps().map_err(to_runtime_error)?;
                self.steps.get_or_init(|| steps)
            }
        };
        let kept = self.kept.get_or_init(|| Kept::new(alignment_of(inputs.iter().chain(outputs).copied())));
        let lowered = Lowered { launch: &self.launch, steps: steps.as_ref(), numbers, kept: Some(kept) };
        execute(&lowered, (inputs, outputs), stream, label)
    }
}
