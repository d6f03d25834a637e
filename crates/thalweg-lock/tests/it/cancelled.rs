//! Threads that are cancelled while they hold a lock.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use thalweg_lock::BiasedMutex;

const CHILD: &str = "THALWEG_TEST_CANCELLED";

unsafe extern "C-unwind" {
    fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
    fn pthread_testcancel();
}

fn child() -> ! {
    let mutex = Arc::new(BiasedMutex::new(0));
    let own = Arc::clone(&mutex);
    let cancelled = std::thread::spawn(move || {
        let mut guard = own.lock();
        *guard += 1;
        // SAFETY: a thread may cancel itself; this takes effect at the next cancellation point, which is here.
        unsafe {
            pthread_cancel(libc::pthread_self());
            pthread_testcancel();
        }
        *guard += 1;
    });
    let _ = cancelled.join();
    // This hangs if a thread that has ended still holds the lock.
    let value = *mutex.lock();
    std::process::exit(value);
}

#[test]
fn the_process_ends_and_no_thread_waits_for_ever() {
    if std::env::var_os(CHILD).is_some() {
        child();
    }
    let name = "it::cancelled::the_process_ends_and_no_thread_waits_for_ever";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let ended = command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{:?}: {text}", ended.status);
}
