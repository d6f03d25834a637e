//! [`Gpu`]: what a checked program is given.

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
    /// Whether the program has asked for the seed.
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

    /// Returns all devices: as many as [`Check::devices`](super::Check::devices) asked for.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed_was_seen.store(true, Ordering::Relaxed);
        self.seed
    }

    /// Returns a random number that the seed decides.
    pub fn random(&self) -> u64 {
        self.machine.random().expect("the machine of a check is controlled")
    }

    /// Lets other host threads and commands may get ahead, as every call of the driver is one. A loop that waits for a host
    /// function or another thread calls it in each round.
    ///
    /// # Panics
    /// If the program has called it for seconds and nothing is left to be done: a livelock.
    #[track_caller]
    pub fn pass(&self) {
        if let Err(error) = self.machine.pass() {
            panic!("{error}");
        }
    }

    /// Starts a host thread that the schedule knows: one host thread runs at a time, and which one goes on is decided at each call
    /// of the driver. Its current device is the first. What this thread has seen complete, the new one knows.
    ///
    /// What such threads tell each other, the sanitizer learns from [`Gpu::channel`], [`Gpu::mutex`], [`Gpu::flag`] and
    /// [`Thread::join`]; of other locks, channels and flags it knows nothing, and may report a race that they rule out.
    ///
    /// # Panics
    /// If the host starts no thread.
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
    /// Waits until it is done, and gives what it returned. What it has seen complete, the caller knows from now on.
    ///
    /// # Errors
    /// A deadlock, with what each thread waits for.
    ///
    /// # Panics
    /// If the thread did, with its message.
    pub fn join(self) -> crate::Result<T> {
        let (result, clock) = self.thread.join()?;
        self.sanitizer.host_acquire(&clock);
        result.map_or_else(|panic| panics::resume(panic), Ok)
    }
}
