//! [`Gpu`]: what a checked program is given.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_driver::{HostClock, Instrument as _};
use thalweg_sanitizer::CheckedDriver;
use thalweg_sim::{SimDriver, SimThread};

use super::panics::{self, Panic};
use crate::Device;

/// The simulated machine of one run.
#[derive(Debug)]
pub struct Gpu {
    pub(super) devices: Vec<Device>,
    pub(super) machine: Arc<SimDriver>,
    pub(super) referee: Arc<CheckedDriver>,
    seed: u64,
    /// Whether the program has asked for the seed.
    seed_was_seen: AtomicBool,
}

impl Gpu {
    pub(super) fn new(
        devices: Vec<Device>,
        machine: Arc<SimDriver>,
        referee: Arc<CheckedDriver>,
        seed: u64,
    ) -> Self {
        Self { devices, machine, referee, seed, seed_was_seen: AtomicBool::new(false) }
    }

    pub(super) fn seed_was_seen(&self) -> bool {
        self.seed_was_seen.load(Ordering::Relaxed)
    }

    /// The first device. It is also the calling thread's [current](Device::current) one.
    pub fn device(&self) -> &Device {
        &self.devices[0]
    }

    /// All devices: as many as [`Check::devices`](super::Check::devices) asked for.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed_was_seen.store(true, Ordering::Relaxed);
        self.seed
    }

    /// A random number that the seed decides.
    pub fn random(&self) -> u64 {
        self.machine.random().expect("the machine of a check is controlled")
    }

    /// A call at which other host threads and commands may get ahead, as every call of the driver is one. A loop that waits for
    /// a host function or another thread calls it in each round.
    ///
    /// # Panics
    /// If the program has called it for seconds and nothing is left to be done: a livelock.
    #[track_caller]
    pub fn pass(&self) {
        if let Err(error) = self.machine.pass() {
            panic!("{error}");
        }
    }

    /// Starts a host thread that the schedule knows: one host thread runs at a time, and who goes on is decided at each call
    /// of the driver. Its current device is the first. What this thread has seen complete, the new one knows.
    ///
    /// What such threads tell each other, the referee learns from [`Gpu::channel`] and [`Thread::join`]; of locks and other
    /// channels it knows nothing, and may report a race that they rule out.
    ///
    /// # Panics
    /// If the host starts no thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Thread<T> {
        let referee = Arc::clone(&self.referee);
        let device = self.device().clone();
        let (begin, own_name) = (referee.host_release(), name.to_owned());
        let thread = self.machine.spawn(name, move || {
            referee.introduce_thread(&own_name);
            referee.host_acquire(&begin);
            let result = panics::catch(move || {
                let _current = device.make_current();
                body()
            });
            (result, referee.host_release())
        });
        let thread = thread.unwrap_or_else(|error| panic!("{error}"));
        Thread { thread, referee: Arc::clone(&self.referee) }
    }

    /// A channel between host threads: who receives knows what the sender knew when it sent.
    pub fn channel<T>(&self) -> (Sender<T>, Receiver<T>) {
        let state = ChannelState { values: VecDeque::new(), senders: 1, has_receiver: true };
        let channel = Arc::new(Channel {
            state: Mutex::new(state),
            machine: Arc::clone(&self.machine),
            referee: Arc::clone(&self.referee),
        });
        (Sender(Arc::clone(&channel)), Receiver(channel))
    }
}

/// A host thread of a checked program.
#[derive(Debug)]
pub struct Thread<T> {
    thread: SimThread<(Result<T, Panic>, HostClock)>,
    referee: Arc<CheckedDriver>,
}

impl<T> Thread<T> {
    /// Waits until it is done, and gives what it returned. What it has seen complete, the caller knows from now on.
    ///
    /// # Errors
    /// A deadlock, with who waits for what.
    ///
    /// # Panics
    /// If the thread did, with its message.
    pub fn join(self) -> crate::Result<T> {
        let (result, clock) = self.thread.join()?;
        self.referee.host_acquire(&clock);
        result.map_or_else(|panic| panics::resume(panic), Ok)
    }
}

/// The end of a channel that sends. See [`Gpu::channel`].
#[derive(Debug)]
pub struct Sender<T>(Arc<Channel<T>>);

/// The end of a channel that receives. See [`Gpu::channel`].
#[derive(Debug)]
pub struct Receiver<T>(Arc<Channel<T>>);

#[derive(Debug)]
struct Channel<T> {
    state: Mutex<ChannelState<T>>,
    machine: Arc<SimDriver>,
    referee: Arc<CheckedDriver>,
}

#[derive(Debug)]
struct ChannelState<T> {
    values: VecDeque<(T, HostClock)>,
    senders: usize,
    has_receiver: bool,
}

impl<T> Channel<T> {
    fn state(&self) -> MutexGuard<'_, ChannelState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Sender<T> {
    /// Sends a value.
    ///
    /// # Errors
    /// The value, if there is no receiver any more.
    pub fn send(&self, value: T) -> Result<(), T> {
        let clock = self.0.referee.host_release();
        let mut state = self.0.state();
        if !state.has_receiver {
            return Err(value);
        }
        state.values.push_back((value, clock));
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state().senders -= 1;
    }
}

impl<T: Send + 'static> Receiver<T> {
    /// The next value; *blocks*, and other threads and commands get ahead meanwhile. `None` if all senders are gone.
    ///
    /// # Errors
    /// A deadlock, with who waits for what.
    pub fn receive(&self) -> crate::Result<Option<T>> {
        let channel = Arc::clone(&self.0);
        let is_decided = move || {
            let state = channel.state();
            !state.values.is_empty() || state.senders == 0
        };
        self.0.machine.wait_until("a value from a channel", is_decided)?;
        let Some((value, clock)) = self.0.state().values.pop_front() else { return Ok(None) };
        self.0.referee.host_acquire(&clock);
        Ok(Some(value))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let values = {
            let mut state = self.0.state();
            state.has_receiver = false;
            std::mem::take(&mut state.values)
        };
        drop(values);
    }
}
