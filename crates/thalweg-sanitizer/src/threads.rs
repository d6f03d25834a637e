//! Host threads: which one is calling, and how threads are ordered with each other.
//!
//! An unregistered thread is a host of its own from its first call on. The sanitizer usually cannot see how two such threads are
//! ordered, so it assumes every order that may exist:
//! - a new thread knows everything that any thread knew at its first call, since one of them started it;
//! - a thread that has ended may have been joined: older threads and later ones know everything that it knew. A younger one does
//!   not, since only the thread that started a thread waits for its end.
//!
//! So a program that joins its threads causes no false alarm, and a race with a thread that has ended may be missed. Mutexes,
//! channels and flags are seen if the program reports them; otherwise accesses that they order are reported as possible races.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Weak};

use thalweg_driver::{HostClock, HostFunction};
use thalweg_lock::Mutex;

use super::SanitizerDriver;
use super::clock::Clock;
use super::model::{HostId, Model};

/// A thread as one checker knows it.
struct Seen {
    checker: Weak<Mutex<Model>>,
    host: HostId,
    /// Whether the end of the thread will be noticed.
    is_watched: bool,
}

thread_local! {
    /// The host number of this thread in each checker.
    static SEEN: RefCell<Vec<Seen>> = const { RefCell::new(Vec::new()) };
    /// The hosts whose end is reported to their checkers when this thread ends. It is initialised after the inner driver has seen
    /// the thread, so that a machine which waits for the thread's end waits for this too: thread-local values are dropped in
    /// reverse order of their initialisation.
    static ENDS: RefCell<Ends> = const { RefCell::new(Ends(Vec::new())) };
    /// The work that precedes the host function that this thread runs.
    static FUNCTION: RefCell<Option<Clock>> = const { RefCell::new(None) };
    /// Whether the calls of this thread are an allocator's own.
    static INTERNAL: Cell<bool> = const { Cell::new(false) };
}

struct Ends(Vec<(Weak<Mutex<Model>>, HostId)>);

impl Drop for Ends {
    fn drop(&mut self) {
        for (checker, host) in self.0.drain(..) {
            if let Some(model) = checker.upgrade() {
                model.lock().thread_ended(host);
            }
        }
    }
}

/// Sets whether the calls of this thread are an allocator's own, and returns the previous value.
pub(super) fn exchange_internal(is_internal: bool) -> bool {
    INTERNAL.replace(is_internal)
}

/// Returns the position of the calling thread in the order in which threads were created, if it is known.
fn age() -> Option<u64> {
    // The standard library numbers threads as they are created, and exposes the number only in this way.
    let text = format!("{:?}", std::thread::current().id());
    text.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok()
}

impl SanitizerDriver {
    /// Returns the calling host thread. Called after the inner driver has seen the thread, if the call reaches it.
    pub(super) fn host(&self) -> HostId {
        self.see(true)
    }

    /// Notes the calling thread before the inner driver makes the thread wait, so that the thread is not assumed to know of work
    /// that other threads do meanwhile.
    pub(super) fn arrive(&self) {
        self.see(false);
    }

    fn see(&self, watches: bool) -> HostId {
        let checker = Arc::as_ptr(&self.model);
        let seen = SEEN.try_with(|seen| {
            let mut seen = seen.borrow_mut();
            let known = seen.iter_mut().find(|known| known.checker.as_ptr() == checker);
            if let Some(known) = known {
                let begins = watches && !known.is_watched;
                known.is_watched |= watches;
                return (known.host, begins);
            }
            let host = self.model.lock().attach(age());
            seen.retain(|known| known.checker.strong_count() > 0);
            seen.push(Seen { checker: Arc::downgrade(&self.model), host, is_watched: watches });
            (host, watches)
        });
        // A thread whose thread-local values are destroyed is at its end, and has no parent.
        let (host, begins) = seen.unwrap_or_default();
        if begins {
            let _ = ENDS.try_with(|ends| {
                let mut ends = ends.borrow_mut();
                ends.0.retain(|(checker, _)| checker.strong_count() > 0);
                ends.0.push((Arc::downgrade(&self.model), host));
            });
        }
        host
    }

    /// Registers the calling thread under a name. Its work is ordered with other threads' work only by the clocks that it
    /// acquires.
    pub(super) fn introduce(&self, name: &str) {
        let checker = Arc::as_ptr(&self.model);
        let host = self.model.lock().introduce(name);
        let _ = ENDS.try_with(|ends| {
            ends.borrow_mut().0.retain(|(other, host)| {
                let is_other = other.as_ptr() != checker;
                if !is_other {
                    self.model.lock().thread_ended(*host);
                }
                is_other
            });
        });
        SEEN.with_borrow_mut(|seen| {
            seen.retain(|known| known.checker.as_ptr() != checker);
            seen.push(Seen { checker: Arc::downgrade(&self.model), host, is_watched: true });
        });
    }

    /// Notes that the calling thread has seen all this complete.
    pub(super) fn seen(&self, clock: &Clock) {
        if INTERNAL.get() {
            return self.model.lock().observed.join(clock);
        }
        let host = self.host();
        self.model.lock().note_seen(host, clock);
    }

    /// Returns the clock of the calling thread, or of the host function that it runs.
    pub(super) fn host_clock(&self) -> HostClock {
        if let Ok(Some(clock)) = FUNCTION.try_with(|clock| clock.borrow().clone()) {
            return HostClock(Arc::new(clock));
        }
        let host = self.host();
        HostClock(Arc::new(self.model.lock().hosts[host as usize].clock.clone()))
    }
}

/// Wraps a host function so that it runs with the clock of the work before it.
pub(super) fn with_clock(function: HostFunction, clock: Clock) -> HostFunction {
    Arc::new(move || {
        FUNCTION.set(Some(clock.clone()));
        let _over = FunctionGuard;
        function();
    })
}

/// A guard that ends a host function, whether it returns or panics.
struct FunctionGuard;

impl Drop for FunctionGuard {
    fn drop(&mut self) {
        FUNCTION.set(None);
    }
}

impl Model {
    /// Adds an unregistered thread at its first call, and returns its number.
    fn attach(&mut self, age: Option<u64>) -> HostId {
        if self.threads_are_one && self.attached > 0 {
            return 0;
        }
        self.attached += 1;
        if self.attached == 1 {
            self.hosts[0].age = age;
            return 0;
        }
        let name = match std::thread::current().name() {
            Some(name) => format!("thread `{name}`"),
            None => format!("thread {}", self.attached),
        };
        let clock = self.known_to_some();
        let id = self.introduce(&name);
        let host = &mut self.hosts[id as usize];
        (host.age, host.is_attached) = (age, true);
        host.clock.join(&clock);
        id
    }

    /// Returns everything that any unregistered thread knows, or knew when it ended.
    pub(super) fn known_to_some(&self) -> Clock {
        let mut clock = self.known_to_ended.clone();
        for &host in &self.living {
            clock.join(&self.hosts[host as usize].clock);
        }
        clock
    }

    /// Notes that an unregistered thread has ended, and may have been joined.
    fn thread_ended(&mut self, id: HostId) {
        if self.threads_are_one {
            return;
        }
        let host = &mut self.hosts[id as usize];
        let (age, strand) = (host.age, host.strand);
        let clock = std::mem::take(&mut host.clock);
        self.living.retain(|other| *other != id);
        self.known_to_ended.join(&clock);
        for &other in &self.living {
            let other = &mut self.hosts[other as usize];
            let is_younger = matches!((other.age, age), (Some(other), Some(age)) if other > age);
            if !is_younger {
                other.clock.join(&clock);
                other.version += 1;
            }
        }
        // A strand with work keeps its name.
        if clock.of(strand) == 0 {
            self.retire(strand, 0);
        }
    }

    /// Returns an unregistered thread that has done the work of a mark or seen it complete, and may therefore have notified
    /// another thread in a way that the sanitizer cannot see.
    pub(super) fn may_have_reported(&self, other: &super::shadow::Mark) -> Option<&str> {
        if self.attached < 2 {
            return None;
        }
        let knows = |host: &&HostId| {
            let host = &self.hosts[**host as usize];
            host.is_attached && other.is_before(&host.clock)
        };
        let knower = self.living.iter().find(knows).map(|&host| &*self.hosts[host as usize].name);
        knower.or_else(|| other.is_before(&self.known_to_ended).then_some("a thread that is over"))
    }

    /// Returns a registered thread or a host function that has seen the work of a mark complete, and so could have notified other
    /// threads. Programs are expected to report such notifications. A program that does not report them is correct if it orders
    /// the work in its own way.
    pub(super) fn could_notify(&self, other: &super::shadow::Mark) -> Option<&str> {
        let knows = |host: &&HostId| other.is_before(&self.hosts[**host as usize].clock);
        let knower = self.living.iter().find(knows).map(|&host| &*self.hosts[host as usize].name);
        knower.or_else(|| other.is_before(&self.known_to_functions).then_some("a host function"))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_host_function_that_panics_leaves_no_knowledge_behind() {
        let known = || FUNCTION.with_borrow(Option::is_some);
        let function =
            with_clock(Arc::new(move || assert!(!known(), "it knows what it comes after")), Clock::default());
        assert!(catch_unwind(AssertUnwindSafe(|| function())).is_err());
        assert!(!known());
    }
}
