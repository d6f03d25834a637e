//! Threads as the operating system reports them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The activity of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    Awake,
    Asleep,
    Gone,
}

/// The state of a thread, according to several checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alive {
    Awake,
    Asleep,
    Gone,
}

/// The number of threads of the program that wait for the machine's lock to begin a call.
#[derive(Default)]
pub(crate) struct Entering(AtomicU32);

impl Entering {
    /// Counts a thread while `enter` runs.
    pub(crate) fn during<T>(&self, enter: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Ordering::SeqCst);
        let entered = enter();
        self.0.fetch_sub(1, Ordering::SeqCst);
        entered
    }

    /// Returns whether a thread is entering now.
    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

/// The number of times in a row that a thread must be seen asleep before it counts as asleep.
const SIGHTINGS: u32 = 4;

/// A thread, and its observed states.
#[derive(Clone, Default, Debug)]
pub(crate) struct Sighted {
    system: SystemThread,
    /// A reference that dies with the thread, because the system reuses the numbers of threads.
    life: Weak<()>,
    sightings: u32,
}

thread_local! {
    static LIFE: Arc<()> = Arc::new(());
}

impl Sighted {
    /// Creates the sighting of the calling thread.
    pub(crate) fn here() -> Self {
        let life = LIFE.try_with(Arc::downgrade).unwrap_or_default();
        Self { system: SystemThread::current(), life, sightings: 0 }
    }

    /// Returns whether the sighted thread has this number in the system.
    pub(crate) fn is_number(&self, number: i32) -> bool {
        self.life.strong_count() > 0 && self.system == SystemThread(number)
    }

    /// Returns whether the sighted thread is the calling thread.
    pub(crate) fn is_here(&self) -> bool {
        self.activity() != Activity::Gone && self.system == SystemThread::current()
    }

    pub(crate) fn activity(&self) -> Activity {
        if self.life.strong_count() == 0 { Activity::Gone } else { self.system.activity() }
    }

    /// Returns the processor time of the thread.
    pub(crate) fn busy(&self) -> Duration {
        self.system.busy()
    }

    /// Checks the thread once more. A thread that waits for the machine's lock is on its way in, and not asleep.
    pub(crate) fn look(&mut self, entering: &Entering) -> Alive {
        match self.activity() {
            Activity::Gone => Alive::Gone,
            Activity::Asleep if !entering.is_any() => {
                self.sightings += 1;
                if self.sightings >= SIGHTINGS { Alive::Asleep } else { Alive::Awake }
            }
            _ => {
                self.sightings = 0;
                Alive::Awake
            }
        }
    }
}

/// A moment in the system's clock ticks, the unit in which the system reports when a thread was created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Tick(u64);

#[cfg(target_os = "linux")]
impl Tick {
    pub(crate) fn now() -> Self {
        if cfg!(miri) {
            // This system has no such clock, and does not list threads either.
            return Self(0);
        }
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes the time to a local.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
        Self(time.tv_sec as u64 * TICKS_PER_SECOND + time.tv_nsec as u64 * TICKS_PER_SECOND / 1_000_000_000)
    }
}

/// Returns the activities of the threads of the process that were created at this moment or later, without the simulator's
/// own and those that are known.
#[cfg(target_os = "linux")]
pub(crate) fn made_since(moment: Tick, is_known: impl Fn(i32) -> bool) -> Vec<Activity> {
    let folder = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let numbers = folder.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let activity = |number: &i32| {
        let status = SystemThread(*number).status()?;
        // Field 22 of proc(5); the first field here is field 3.
        let made = status.fields.split(' ').nth(19)?.parse().ok().map(Tick)?;
        (made >= moment && !status.name.starts_with(OWN_PREFIX)).then(|| status.activity())
    };
    numbers.filter(|number| !is_known(*number)).filter_map(|number| activity(&number)).collect()
}

/// A thread by its number in the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct SystemThread(i32);

/// The frequency of the clock in which the system counts the times of threads.
#[cfg(target_os = "linux")]
const TICKS_PER_SECOND: u64 = 100;

/// The prefix of the names of the simulator's own threads.
#[cfg(target_os = "linux")]
const OWN_PREFIX: &str = "sim-";

/// The system's status of a thread.
#[cfg(target_os = "linux")]
struct Status {
    name: String,
    /// The fields from the state on.
    fields: String,
}

#[cfg(target_os = "linux")]
impl Status {
    fn activity(&self) -> Activity {
        match self.fields.chars().next() {
            None | Some('Z' | 'X') => Activity::Gone,
            Some('S') => Activity::Asleep,
            _ => Activity::Awake,
        }
    }
}

#[cfg(target_os = "linux")]
impl SystemThread {
    fn current() -> Self {
        // SAFETY: returns a number; it cannot fail.
        Self(unsafe { libc::gettid() })
    }

    /// Returns the system's status of the thread.
    fn status(self) -> Option<Status> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.0)).ok()?;
        // `4711 (a name) S 1 …`: the name may contain anything, even a bracket.
        let (name, fields) = text.rsplit_once(") ")?;
        Some(Status { name: name.split_once('(')?.1.to_owned(), fields: fields.to_owned() })
    }

    /// Returns the activity of the thread. A thread that waits for a disk counts as awake, because it continues without help from
    /// other threads.
    fn activity(self) -> Activity {
        self.status().map_or(Activity::Gone, |status| status.activity())
    }

    /// Returns the processor time of the thread, in steps of the system's clock.
    fn busy(self) -> Duration {
        let fields = self.status().map_or_else(String::new, |status| status.fields);
        // Fields 14 and 15 of proc(5); the first field here is field 3.
        let ticks = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u32>().ok());
        Duration::from_secs(1) / TICKS_PER_SECOND as u32 * ticks.sum()
    }
}

#[cfg(not(target_os = "linux"))]
impl Tick {
    pub(crate) fn now() -> Self {
        Self(0)
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn made_since(_: Tick, _: impl Fn(i32) -> bool) -> Vec<Activity> {
    Vec::new()
}

/// On other systems the state is unknown: a thread that does not park for a few checks counts as asleep.
#[cfg(not(target_os = "linux"))]
impl SystemThread {
    fn current() -> Self {
        Self(0)
    }

    fn activity(self) -> Activity {
        Activity::Asleep
    }

    fn busy(self) -> Duration {
        Duration::ZERO
    }
}
