//! [`Gpu`]: the argument of a checked program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_driver::{HostClock, Instrument as _};
use thalweg_sanitizer::SanitizerDriver;
use thalweg_sim::{SimDriver, SimThread};

use super::panics::{self, Panic};
use crate::Device;

/// The simulated machine of one run.
#[derive(Debug)]
pub struct Gpu {
    pub(super) devices: Vec<Device>,
    pub(super) machine: Arc<SimDriver>,
    pub(super) sanitizer: Arc<SanitizerDriver>,
    seed: u64,
    /// Whether the program has read the seed.
    seed_was_seen: AtomicBool,
}

impl Gpu {
    pub(super) fn new(
        devices: Vec<Device>,
        machine: Arc<SimDriver>,
        sanitizer: Arc<SanitizerDriver>,
        seed: u64,
    ) -> Self {
        Self { devices, machine, sanitizer, seed, seed_was_seen: AtomicBool::new(false) }
    }

    pub(super) fn seed_was_seen(&self) -> bool {
        self.seed_was_seen.load(Ordering::Relaxed)
    }

    /// Returns the first device. It is also the calling thread's [current](Device::current) one.
    pub fn device(&self) -> &Device {
        &self.devices[0]
    }

    /// Returns all devices, in the number set by [`Check::devices`](super::Check::devices).
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed_was_seen.store(true, Ordering::Relaxed);
        self.seed
    }

    /// Returns a random number that is determined by the seed.
    pub fn random(&self) -> u64 {
        self.machine.random().expect("the machine of a check is controlled")
    }

    /// Lets other host threads and commands run, as every call of the driver does. A loop that waits for a host function or
    /// another thread must call it in each iteration.
    ///
    /// # Panics
    /// If the program has called it for seconds and no other work is left: a livelock.
    #[track_caller]
    pub fn pass(&self) {
        if let Err(error) = self.machine.pass() {
            panic!("{error}");
        }
    }

    /// Starts a host thread that the schedule controls: one host thread runs at a time, and the schedule chooses which one
    /// continues at each call of the driver. Its current device is the first. The sanitizer takes everything that this thread has
    /// seen complete as complete for the new one.
    ///
    /// The sanitizer observes how such threads synchronise through [`Gpu::channel`], [`Gpu::mutex`], [`Gpu::flag`] and
    /// [`Thread::join`]. It cannot observe other locks, channels and flags, and may report a race that they rule out.
    ///
    /// # Panics
    /// If the host cannot start a thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Thread<T> {
        let sanitizer = Arc::clone(&self.sanitizer);
        let device = self.device().clone();
        let (begin, own_name) = (sanitizer.host_release(), name.to_owned());
        let thread = self.machine.spawn(name, move || {
            sanitizer.introduce_thread(&own_name);
            sanitizer.host_acquire(&begin);
            let result = panics::catch(move || {
                let _current = device.make_current();
                body()
            });
            (result, sanitizer.host_release())
        });
        let thread = thread.unwrap_or_else(|error| panic!("{error}"));
        Thread { thread, sanitizer: Arc::clone(&self.sanitizer) }
    }
}

/// A host thread of a checked program.
#[derive(Debug)]
pub struct Thread<T> {
    thread: SimThread<(Result<T, Panic>, HostClock)>,
    sanitizer: Arc<SanitizerDriver>,
}

impl<T> Thread<T> {
    /// Waits until the thread is done, and returns its result. Everything that the thread has seen complete counts as complete
    /// for the caller.
    ///
    /// # Errors
    /// A deadlock, with the object that each thread waits for.
    ///
    /// # Panics
    /// If the thread panicked, with its message.
    pub fn join(self) -> crate::Result<T> {
        let (result, clock) = self.thread.join()?;
        self.sanitizer.host_acquire(&clock);
        result.map_or_else(|panic| panics::resume(panic), Ok)
    }
}
