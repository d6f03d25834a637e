//! Two barriers that work together: a light one that costs nothing, for the side that enters often, and a heavy one that costs
//! microseconds, for the side that enters rarely.
//!
//! If one thread stores `x`, executes a [`light`] barrier, and loads `y`, while another stores `y`, executes a [`heavy`] barrier,
//! and loads `x`, then at least one of them sees the other's store. With two full fences this is the textbook pattern. Here the
//! heavy side makes the kernel execute a full fence on every processor that runs a thread of this process
//! (`membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)`); a thread that is not running executed one when it stopped. So wherever the
//! light side is at that moment, each of its accesses happens before or after a full fence, and the light side itself needs only
//! a compiler fence.
//!
//! Where the system call does not exist ([`is_available`]), these barriers cannot be used. Under the model checker and under
//! Miri, both are full fences.
//!
//! # When the call is refused later
//!
//! A program may forbid the call to itself after it has been used (with a seccomp filter). From then on the call is not
//! available. For biases granted before, the heavy side executes a full fence of its own and then waits [`LONG`](system::LONG).
//! By then the effect of the kernel's fence has happened anyway: a store that a processor has retired is in its store buffer,
//! which drains in less than microseconds. The same holds for everything that it executed out of order, and an interrupt or a
//! context switch only makes it faster. No manual bounds that time, so the wait is some thousand times as long as the measured
//! times (Morrison and Afek, "Temporally Bounding TSO for Fence-Free Asymmetric Synchronization", 2015). The model checker has no
//! notion of time, so this argument is not checked by it.

#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod system {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
    use std::thread;
    use std::time::Duration;

    /// An upper bound on the time after which other processors see a store.
    pub(super) const LONG: Duration = Duration::from_millis(10);

    /// Set once the kernel has refused the call that it granted before.
    static REFUSED: AtomicBool = AtomicBool::new(false);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes two numbers besides the command, and accesses no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    fn register() -> bool {
        membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }

    pub(crate) fn is_available() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        !REFUSED.load(Ordering::Relaxed) && *REGISTERED.get_or_init(register)
    }

    #[inline]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        // A forked process inherits its parent's registration on today's kernels, but this is not guaranteed.
        if !membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) && !register() {
            REFUSED.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            thread::sleep(LONG);
        }
    }
}

#[cfg(any(loom, miri))]
mod system {
    #[cfg(loom)]
    use loom::sync::atomic::{Ordering, fence};
    #[cfg(not(loom))]
    use std::sync::atomic::{Ordering, fence};

    pub(crate) fn is_available() -> bool {
        true
    }

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(not(any(target_os = "linux", loom, miri)))]
mod system {
    pub(crate) fn is_available() -> bool {
        false
    }

    pub(crate) fn light() {}

    pub(crate) fn heavy() {
        unreachable!("no mutex is biased where there is no heavy barrier");
    }
}

pub(crate) use system::{heavy, is_available, light};
