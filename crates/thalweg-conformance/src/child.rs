//! Checks that are made in a child of this process.

/// Forks, runs `check` in the child, and returns whether it returned true there.
pub fn holds_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls nothing but the check, which allocates only after the C library made that safe, and exits without
    // running any code of the parent.
    let child = unsafe {
        let child = libc::fork();
        if child == 0 {
            let holds = check();
            libc::_exit(i32::from(!holds));
        }
        child
    };
    assert!(child > 0, "the process could fork");
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    (waited, status) == (child, 0)
}
