//! A program that forbids `membarrier(2)` to itself when mutexes already have owners, as sandboxes do that start late.
//!
//! A call that was forbidden is never allowed again, so the test runs in a process of its own: this program, started anew.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, io, mem, ptr, thread};

use thalweg_lock::BiasedMutex;

const CHILD: &str = "THALWEG_LOCK_TEST_FILTER";
const DONE: &str = "every lock was had after the filter";

#[test]
fn a_filter_that_comes_late_takes_no_lock_away() {
    if env::var_os(CHILD).is_some() {
        return in_the_child();
    }
    let child = Command::new(env::current_exe().expect("this program has a path"))
        .args(["--exact", "it::filter::a_filter_that_comes_late_takes_no_lock_away", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("it can be started again");
    let output =
        format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && output.contains(DONE), "{}:\n{output}", child.status);
}

fn in_the_child() {
    // The two halves are equal outside of the lock.
    let mutexes: [BiasedMutex<(u64, u64)>; 3] = Default::default();
    let visit = |mutex: &BiasedMutex<(u64, u64)>| {
        let mut halves = mutex.lock();
        assert_eq!(halves.0, halves.1);
        halves.0 += 1;
        std::hint::black_box(&mut *halves);
        halves.1 += 1;
    };
    mutexes.iter().for_each(visit);
    deny_membarrier().expect("a process may give a filter to itself");
    // SAFETY: the call takes two numbers besides the command, and accesses no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) };
    assert_eq!(answer, -1, "the filter forbids it");
    let stop = AtomicBool::new(false);
    let visits = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let visits = if mutexes[0].try_lock().is_some() { 1_000 } else { 1_001 };
            (0..visits).for_each(|_| mutexes.iter().for_each(visit));
            stop.store(true, Ordering::Release);
            visits
        });
        let mut visits = 1;
        while !stop.load(Ordering::Acquire) {
            mutexes.iter().for_each(visit);
            visits += 1;
        }
        visits + others.join().expect("no lock panics")
    });
    for mutex in &mutexes {
        assert_eq!(*mutex.lock(), (visits, visits));
    }
    // A mutex that was not owned before is an ordinary mutex from its first lock on.
    let late = BiasedMutex::default();
    visit(&late);
    thread::scope(|scope| scope.spawn(|| visit(&late)).join().expect("no lock panics"));
    assert_eq!(*late.lock(), (2, 2));
    println!("{DONE}");
}

/// Makes the system refuse `membarrier(2)` to all threads of the process from now on.
fn deny_membarrier() -> io::Result<()> {
    let step = |code: u32, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            mem::offset_of!(libc::seccomp_data, nr) as u32,
            0,
            0,
        ),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_membarrier as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the first call takes only numbers; the second reads the program and its steps, which are alive until it returns.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                ptr::from_ref(&program),
            ) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}
