//! Host threads: which one is calling, and what one thread knows of another.
//!
//! A thread that was not introduced is a host of its own from its first call on. What orders two such threads the sanitizer
//! mostly cannot see, so it believes what it must not deny:
//! - a new thread knows all that any thread knew at its first call, since it was started by one of them;
//! - a thread that has ended may have been joined: older ones and those that come later know what it knew. A younger one does
//!   not, since only the thread that started a thread waits for its end.
//!
//! So a program that joins its threads raises no false alarm, and a race with a thread that is over may be missed. Mutexes,
//! channels and flags are seen where the program says so; else what they order is reported as a race that may be one.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use thalweg_driver::{HostClock, HostFunction};

use super::SanitizerDriver;
use super::clock::Clock;
use super::model::{HostId, Model};

/// A thread as a checker knows it.
struct Seen {
    checker: Weak<Mutex<Model>>,
    host: HostId,
    /// Whether its end is noticed.
    is_watched: bool,
}

thread_local! {
    /// As which host this thread is known, to which checkers.
    static SEEN: RefCell<Vec<Seen>> = const { RefCell::new(Vec::new()) };
    /// As which host the checkers hear of this thread's end. Made after the driver inside has seen the thread, so that a machine
    /// which waits for the thread's end waits for this too: what was made last goes first.
    static ENDS: RefCell<Ends> = const { RefCell::new(Ends(Vec::new())) };
    /// The work that comes before the host function that this thread runs.
    static FUNCTION: RefCell<Option<Clock>> = const { RefCell::new(None) };
    /// Whether the calls of this thread are an allocator's own.
    static INTERNAL: Cell<bool> = const { Cell::new(false) };
}

struct Ends(Vec<(Weak<Mutex<Model>>, HostId)>);

impl Drop for Ends {
    fn drop(&mut self) {
        for (checker, host) in self.0.drain(..) {
            if let Some(model) = checker.upgrade() {
                model.lock().unwrap_or_else(PoisonError::into_inner).thread_ended(host);
            }
        }
    }
}

/// Says whether the calls of this thread are an allocator's own; what was said before.
pub(super) fn exchange_internal(is_internal: bool) -> bool {
    INTERNAL.replace(is_internal)
}

/// Returns the place of the calling thread in the order in which threads were made, where that is known.
fn age() -> Option<u64> {
    // The standard library numbers threads as they are made, and shows the number in this way only.
    let text = format!("{:?}", std::thread::current().id());
    text.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok()
}

impl SanitizerDriver {
    /// Returns the calling host thread. Called after the driver inside has seen the thread, where there is such a call.
    pub(super) fn host(&self) -> HostId {
        self.see(true)
    }

    /// Notes that the calling thread is there, before the driver inside makes it wait: what others do meanwhile it does not know.
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
            let host = self.lock().attach(age());
            seen.retain(|known| known.checker.strong_count() > 0);
            seen.push(Seen { checker: Arc::downgrade(&self.model), host, is_watched: watches });
            (host, watches)
        });
        // A thread whose own variables are gone is at its end, and has no parent.
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

    /// Makes the calling thread a host with this name, ordered with others only by the clocks that it acquires.
    pub(super) fn introduce(&self, name: &str) {
        let checker = Arc::as_ptr(&self.model);
        let host = self.lock().introduce(name);
        let _ = ENDS.try_with(|ends| {
            ends.borrow_mut().0.retain(|(other, host)| {
                let is_other = other.as_ptr() != checker;
                if !is_other {
                    self.lock().thread_ended(*host);
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
            return self.lock().observed.join(clock);
        }
        let host = self.host();
        self.lock().saw(host, clock);
    }

    /// Returns what the calling thread knows, or the host function that it runs.
    pub(super) fn knows(&self) -> HostClock {
        if let Ok(Some(clock)) = FUNCTION.try_with(|clock| clock.borrow().clone()) {
            return HostClock(Arc::new(clock));
        }
        let host = self.host();
        HostClock(Arc::new(self.lock().hosts[host as usize].clock.clone()))
    }
}

/// Returns the host function, as one that knows what it comes after.
pub(super) fn knowing(function: HostFunction, clock: Clock) -> HostFunction {
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
    /// Adds a thread that calls for the first time and was not introduced, and returns its number.
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

    /// Returns what any host thread knows that was not introduced, or has known that is over.
    pub(super) fn known_to_some(&self) -> Clock {
        let mut clock = self.known_to_ended.clone();
        for &host in &self.living {
            clock.join(&self.hosts[host as usize].clock);
        }
        clock
    }

    /// Notes that a thread that was not introduced has ended, and may have been joined.
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
        // What it touched keeps its name.
        if clock.of(strand) == 0 {
            self.retire(strand, 0);
        }
    }

    /// Returns the thread that has seen complete, or done itself, what another comes after as far as is known: one that
    /// was not introduced, so that it may have told the other in a way that is not seen.
    pub(super) fn may_have_told(&self, other: &super::shadow::Mark) -> Option<&str> {
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
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_host_function_that_panics_leaves_no_knowledge_behind() {
        let known = || FUNCTION.with_borrow(Option::is_some);
        let function =
            knowing(Arc::new(move || assert!(!known(), "it knows what it comes after")), Clock::default());
        assert!(catch_unwind(AssertUnwindSafe(|| function())).is_err());
        assert!(!known());
    }
}
