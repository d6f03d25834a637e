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

#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod system {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

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
        *REGISTERED.get_or_init(register)
    }

    #[inline]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        // A process that was forked has its parent's registration on today's kernels; nothing promises that it must.
        let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) || register();
        assert!(
            done,
            "the kernel refuses membarrier(2), which it granted before; allow it in the process's filter"
        );
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
