//! Two barriers that work together: one that costs nothing, for the side that comes often, and one that costs
//! microseconds, for the side that comes seldom.
//!
//! If one thread stores `x`, has a [`light`] barrier, and loads `y`, while another stores `y`, has a [`heavy`] barrier, and
//! loads `x`, then at least one of them sees the other's store. With two full fences that is the textbook; here the heavy
//! side makes the kernel run a full fence on every processor that runs a thread of this process
//! (`membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)`), and a thread that does not run had one when it stopped. So wherever the
//! light side is at that moment, its accesses fall before or behind a full fence, and all that it needs itself is that the
//! compiler keeps them in order.
//!
//! Where there is no such call ([`is_available`]), there are no barriers here. Under the model checker, and under Miri, both
//! are full fences.
//!
//! # When the call is refused later
//!
//! A program may forbid the call to itself when it has been used (a filter of seccomp). From then on it is not available, and
//! for what was begun before, the heavy side has a full fence of its own and then waits [`LONG`](system::LONG). What the fence
//! of the kernel would do at once has happened by then: a store that a processor has retired stands in its buffer, which
//! drains by itself, in less than microseconds; so does all that it had begun ahead of order; an interrupt and a change of
//! threads only make it faster. No manual bounds that time, and so the wait is some thousand times as long as what has been
//! measured (Morrison and Afek, "Temporally Bounding TSO for Fence-Free Asymmetric Synchronization", 2015). The model checker
//! does not know of time: this is argued here alone.

#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod system {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
    use std::thread;
    use std::time::Duration;

    /// The greatest time that a store takes until other processors see it.
    pub(super) const LONG: Duration = Duration::from_millis(10);

    /// The kernel has refused what it granted before.
    static REFUSED: AtomicBool = AtomicBool::new(false);

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes two numbers beside the command, and touches no memory of ours.
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
        // A process that was forked has its parent's registration on today's kernels; nothing promises that it must.
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
