//! A channel, a mutex and a flag that pass values between host threads, and that the sanitizer can observe.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use thalweg_driver::{HostClock, Instrument as _};
use thalweg_lock::MutexGuard as StdGuard;
use thalweg_sanitizer::SanitizerDriver;
use thalweg_sim::SimDriver;

use super::Gpu;

impl Gpu {
    /// Returns a channel between host threads: everything that the sender had seen complete when it sent counts as complete for
    /// the receiver.
    pub fn channel<T>(&self) -> (Sender<T>, Receiver<T>) {
        let state = ChannelState { values: VecDeque::new(), senders: 1, has_receiver: true };
        let channel = Arc::new(Channel {
            state: thalweg_lock::Mutex::new(state),
            machine: Arc::clone(&self.machine),
            sanitizer: Arc::clone(&self.sanitizer),
        });
        (Sender(Arc::clone(&channel)), Receiver(channel))
    }

    /// Returns a mutex for host threads: everything that earlier holders had seen complete when they unlocked it counts as
    /// complete for the thread that locks it. A clone is the same mutex.
    pub fn mutex<T>(&self, value: T) -> Mutex<T> {
        Mutex {
            inner: Arc::new(thalweg_lock::Mutex::new((value, None))),
            machine: Arc::clone(&self.machine),
            sanitizer: Arc::clone(&self.sanitizer),
        }
    }

    /// Returns a flag that a host thread or a host function sets: for the thread that sees it set, everything counts as complete
    /// that the setter had seen complete or ran after. A clone is the same flag.
    pub fn flag(&self) -> Flag {
        Flag {
            reported: Arc::default(),
            machine: Arc::clone(&self.machine),
            sanitizer: Arc::clone(&self.sanitizer),
        }
    }
}

/// The sending end of a channel. See [`Gpu::channel`].
#[derive(Debug)]
pub struct Sender<T>(Arc<Channel<T>>);

/// The receiving end of a channel. See [`Gpu::channel`].
#[derive(Debug)]
pub struct Receiver<T>(Arc<Channel<T>>);

#[derive(Debug)]
struct Channel<T> {
    state: thalweg_lock::Mutex<ChannelState<T>>,
    machine: Arc<SimDriver>,
    sanitizer: Arc<SanitizerDriver>,
}

#[derive(Debug)]
struct ChannelState<T> {
    values: VecDeque<(T, HostClock)>,
    senders: usize,
    has_receiver: bool,
}

impl<T> Channel<T> {
    fn state(&self) -> StdGuard<'_, ChannelState<T>> {
        self.state.lock()
    }
}

impl<T> Sender<T> {
    /// Sends a value.
    ///
    /// # Errors
    /// The value itself, if there is no receiver any more.
    pub fn send(&self, value: T) -> Result<(), T> {
        let clock = self.0.sanitizer.host_release();
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
    /// Returns the next value. *Blocks*; other threads and commands run meanwhile. `None` if all senders are gone.
    ///
    /// # Errors
    /// A deadlock, with the object that each thread waits for.
    pub fn receive(&self) -> crate::Result<Option<T>> {
        let channel = Arc::clone(&self.0);
        let is_decided = move || {
            let state = channel.state();
            !state.values.is_empty() || state.senders == 0
        };
        self.0.machine.wait_until("a value from a channel", is_decided)?;
        let Some((value, clock)) = self.0.state().values.pop_front() else { return Ok(None) };
        self.0.sanitizer.host_acquire(&clock);
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

/// A mutex that the sanitizer observes. See [`Gpu::mutex`].
#[derive(Debug)]
pub struct Mutex<T> {
    /// The value, and the clock of the threads that have unlocked the mutex.
    inner: Arc<thalweg_lock::Mutex<(T, Option<HostClock>)>>,
    machine: Arc<SimDriver>,
    sanitizer: Arc<SanitizerDriver>,
}

impl<T> Clone for Mutex<T> {
    fn clone(&self) -> Self {
        let (machine, sanitizer) = (Arc::clone(&self.machine), Arc::clone(&self.sanitizer));
        Self { inner: Arc::clone(&self.inner), machine, sanitizer }
    }
}

/// A guard that gives access to the value of a [`Mutex`] for as long as it lives.
pub struct MutexGuard<'a, T> {
    value: StdGuard<'a, (T, Option<HostClock>)>,
    sanitizer: &'a SanitizerDriver,
}

impl<T: Send + 'static> Mutex<T> {
    /// Locks the mutex. *Blocks* while another thread holds it; other threads and commands run meanwhile.
    ///
    /// # Errors
    /// A deadlock, with the object that each thread waits for.
    pub fn lock(&self) -> crate::Result<MutexGuard<'_, T>> {
        // A thread that locks the mutex repeatedly to poll a condition lets others run.
        self.machine.pass()?;
        loop {
            let inner = Arc::clone(&self.inner);
            self.machine.wait_until("a mutex", move || inner.try_lock().is_some())?;
            if let Some(value) = self.inner.try_lock() {
                if let Some(clock) = &value.1 {
                    self.sanitizer.host_acquire(clock);
                }
                return Ok(MutexGuard { value, sanitizer: &self.sanitizer });
            }
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value.0
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value.0
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.0.fmt(f)
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // This thread's clock already includes those of earlier holders.
        self.value.1 = Some(self.sanitizer.host_release());
    }
}

/// A flag that the sanitizer observes. See [`Gpu::flag`].
#[derive(Clone, Debug)]
pub struct Flag {
    /// The clock of the thread that set the flag.
    reported: Arc<thalweg_lock::Mutex<Option<HostClock>>>,
    machine: Arc<SimDriver>,
    sanitizer: Arc<SanitizerDriver>,
}

impl Flag {
    /// Sets the flag. A host function may do so, too.
    pub fn set(&self) {
        let clock = self.sanitizer.host_release();
        *self.reported.lock() = Some(clock);
    }

    /// Returns whether the flag is set. Other threads and commands may run meanwhile.
    ///
    /// # Panics
    /// If [`Gpu::pass`] does.
    #[track_caller]
    pub fn is_set(&self) -> bool {
        self.look().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until the flag is set. *Blocks*; other threads and commands run meanwhile.
    ///
    /// # Errors
    /// A livelock, if no work is left that could set the flag.
    pub fn wait(&self) -> crate::Result<()> {
        // The thread that sets the flag may be one that the machine has not seen yet.
        while !self.look()? {}
        Ok(())
    }

    fn look(&self) -> crate::Result<bool> {
        self.machine.pass()?;
        let reported = self.reported.lock().clone();
        if let Some(clock) = &reported {
            self.sanitizer.host_acquire(clock);
        }
        Ok(reported.is_some())
    }
}
