//! Observers of requests that fail for lack of memory, and of each event.
//!
//! [`Observers`] is a list of functions that can be extended at any time. Checking whether it is empty is one load, so that an
//! allocator can check at every event. Which lock is held when the observers are called depends on the event: for a failed
//! request ([`OutOfMemoryEvent`]) no lock is held, and they may do anything, even allocate; for an event ([`Event`]) the lock of
//! its memory is held, and calls of the allocator are refused.
//!
//! [`SnapshotFiles`] is the usual reaction when memory runs out: it writes a snapshot, up to a limited number of times.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fmt, fs, io};

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_snapshot::Snapshot;

use super::history::Event;

/// A request that failed for lack of memory. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemoryEvent {
    /// The device's number; -1 for the host.
    pub device: i32,
    /// The size that would have been taken from the device.
    pub size_bytes: u64,
    /// The most that may be taken from the device; all of its memory, if there is no limit.
    pub allowed_bytes: u64,
    /// The memory that is left on the device.
    pub free_bytes: u64,
}

/// The identifier of an observer, for removing it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObserverId(u64);

/// The observers of requests that fail for lack of memory.
pub type OutOfMemoryObservers = Observers<OutOfMemoryEvent>;

/// The observers of every event, whether it is recorded or not.
pub type EventObservers = Observers<Event>;

type Observer<E> = Arc<dyn Fn(&E) + Send + Sync>;

/// Functions that are called for events of one kind.
pub struct Observers<E> {
    count: AtomicUsize,
    list: Mutex<List<E>>,
}

struct List<E> {
    observers: Vec<(ObserverId, Observer<E>)>,
    next: u64,
}

impl<E> Default for Observers<E> {
    fn default() -> Self {
        let list = List { observers: Vec::new(), next: 1 };
        Self { count: AtomicUsize::new(0), list: Mutex::new(list) }
    }
}

impl<E> Observers<E> {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an observer that is called for every event from now on, after those that were added before it.
    pub fn add(&self, observer: impl Fn(&E) + Send + Sync + 'static) -> ObserverId {
        let mut list = self.list();
        let id = ObserverId(list.next);
        list.next += 1;
        list.observers.push((id, Arc::new(observer)));
        self.count.store(list.observers.len(), Ordering::Release);
        id
    }

    /// Removes an observer. Returns whether it was registered. It may still be handling an event when this returns.
    pub fn remove(&self, id: ObserverId) -> bool {
        let mut list = self.list();
        let before = list.observers.len();
        list.observers.retain(|(other, _)| *other != id);
        self.count.store(list.observers.len(), Ordering::Release);
        list.observers.len() < before
    }

    /// Returns whether there are no observers.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Calls every observer, on this thread. Observers may add and remove observers meanwhile, with effect from the next event
    /// on.
    ///
    /// # Panics
    /// If an observer does; those after it are not called.
    pub fn notify(&self, event: &E) {
        if self.is_empty() {
            return;
        }
        let observers: Vec<Observer<E>> =
            self.list().observers.iter().map(|(_, observer)| Arc::clone(observer)).collect();
        observers.iter().for_each(|observer| observer(event));
    }

    fn list(&self) -> MutexGuard<'_, List<E>> {
        self.list.lock()
    }
}

impl<E> fmt::Debug for Observers<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("count", &self.count).finish_non_exhaustive()
    }
}

/// A writer of snapshots into one folder, up to a number of them: a program that runs out of memory often does so again at once.
#[derive(Debug)]
pub struct SnapshotFiles {
    folder: PathBuf,
    prefix: String,
    limit: usize,
    written: AtomicUsize,
}

impl SnapshotFiles {
    /// Creates a writer of at most `limit` files in `folder`, which is created when it is needed: `<prefix>_0.pickle` and so on.
    /// Existing files with these names are overwritten.
    pub fn new(folder: impl Into<PathBuf>, prefix: impl Into<String>, limit: usize) -> Self {
        Self { folder: folder.into(), prefix: prefix.into(), limit, written: AtomicUsize::new(0) }
    }

    /// Writes the snapshot that `take` returns, and returns the path; `None`, without calling `take`, once the limit on files is
    /// reached.
    ///
    /// # Errors
    /// If the file cannot be written. The attempt counts, so that a full disk is not tried for ever.
    pub fn write(&self, take: impl FnOnce() -> Snapshot) -> io::Result<Option<PathBuf>> {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        if number >= self.limit {
            // Each call adds one, so the counter exceeds the limit by at most the number of threads.
            self.written.fetch_sub(1, Ordering::Relaxed);
            return Ok(None);
        }
        fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(format!("{}_{number}.pickle", self.prefix));
        fs::write(&path, take().to_pickle())?;
        Ok(Some(path))
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observers_are_told_in_order_and_may_change_the_list() {
        let observers = Arc::new(OutOfMemoryObservers::new());
        let reported = Arc::new(Mutex::new(Vec::new()));
        let report = |name: &'static str| {
            let (reported, again) = (Arc::clone(&reported), Arc::clone(&observers));
            move |event: &OutOfMemoryEvent| {
                reported.lock().push((name, event.size_bytes));
                let _ = again.is_empty() || again.remove(ObserverId(1));
            }
        };
        assert!(observers.is_empty());
        let first = observers.add(report("first"));
        let second = observers.add(report("second"));
        let event = |size_bytes| OutOfMemoryEvent { device: 0, size_bytes, allowed_bytes: 10, free_bytes: 5 };
        observers.notify(&event(1));
        observers.notify(&event(2));
        assert!(!observers.remove(first), "the observers removed it");
        assert!(observers.remove(second) && observers.is_empty());
        observers.notify(&event(3));
        assert_eq!(*reported.lock(), [("first", 1), ("second", 1), ("second", 2)]);
    }

    #[test]
    fn snapshots_are_written_up_to_a_limit() {
        let folder = std::env::temp_dir().join(format!("thalweg-snapshot-files-{}", std::process::id()));
        let files = SnapshotFiles::new(&folder, "oom", 2);
        let mut written = Vec::new();
        for _ in 0..4 {
            written.extend(files.write(Snapshot::default).expect("there is room for a small file"));
        }
        let names: Vec<_> =
            written.iter().map(|path| path.file_name().and_then(|name| name.to_str())).collect();
        assert_eq!(names, [Some("oom_0.pickle"), Some("oom_1.pickle")]);
        for path in &written {
            let bytes = fs::read(path).expect("it was written");
            assert_eq!(Snapshot::from_pickle(&bytes), Ok(Snapshot::default()));
        }
        assert!(
            files.write(|| panic!("no snapshot is taken for nothing")).expect("nothing is written").is_none()
        );
        fs::remove_dir_all(&folder).expect("it is ours");
    }
}
