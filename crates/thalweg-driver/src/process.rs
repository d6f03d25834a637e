//! System calls about processes: the user of this one, functions at its exit, and file descriptors of another.

use std::os::fd::{OwnedFd, RawFd};
use std::panic::catch_unwind;

use thalweg_lock::Mutex;

use crate::{Code, Error, Result};

/// Duplicates a file descriptor of the process `process_id` into this one. This is how memory that was exported as a
/// [`FileDescriptor`](crate::HandleType::FileDescriptor) is received from a process that only sent the number. The other
/// process keeps the descriptor open until then.
///
/// # Errors
/// [`OperatingSystem`](Code::OperatingSystem) if there is no such process or descriptor, or if the system does not allow
/// this process to access the other one (it needs the right to trace it: the same user, and where Linux's Yama module is
/// on, `kernel.yama.ptrace_scope=0` or a call of `prctl(PR_SET_PTRACER)` in the other process);
/// [`NotSupported`](Code::NotSupported) on systems without the call (Linux has it since 5.6).
pub fn descriptor_of_process(process_id: u32, descriptor: RawFd) -> Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    return linux::descriptor_of_process(process_id, descriptor);
    #[cfg(not(target_os = "linux"))]
    {
        let detail = format!("descriptor {descriptor} of process {process_id}: only Linux can do this");
        Err(Error::new(Code::NotSupported, "pidfd_getfd", detail))
    }
}

/// Returns the effective user of this process.
pub fn effective_user_id() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The functions to call when the process ends, the last registered at the end.
static AT_EXIT: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

extern "C" fn exiting() {
    let last = AT_EXIT.lock().pop();
    if let Some(call) = last {
        // The hook has reported the panic, which must not unwind through C.
        let _ = catch_unwind(call);
    }
}

/// Registers a function to be called when the process ends, by a return from `main` or by [`std::process::exit`], while
/// other threads continue. The function that was registered last is called first, so libraries that are loaded by now are
/// still there. Returns whether it will be called.
pub fn at_exit(call: fn()) -> bool {
    AT_EXIT.lock().push(call);
    // SAFETY: `exiting` is a function of this program, which does not unwind.
    let is_taken = unsafe { libc::atexit(exiting) } == 0;
    if !is_taken {
        AT_EXIT.lock().retain(|other| !std::ptr::fn_addr_eq(*other, call));
    }
    is_taken
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;

    pub(super) fn descriptor_of_process(process_id: u32, descriptor: RawFd) -> Result<OwnedFd> {
        // SAFETY: a system call on two numbers.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, process_id, 0) };
        let process = answer(opened, "pidfd_open", || format!("process {process_id}"))?;
        // SAFETY: a system call on numbers; the first is a descriptor of ours.
        let found = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) };
        answer(found, "pidfd_getfd", || format!("descriptor {descriptor} of process {process_id}"))
    }

    fn answer(number: libc::c_long, call: &'static str, what: impl FnOnce() -> String) -> Result<OwnedFd> {
        if let Ok(number) = RawFd::try_from(number)
            && number >= 0
        {
            // SAFETY: the system just made this descriptor for us, and nothing else has it.
            return Ok(unsafe { OwnedFd::from_raw_fd(number) });
        }
        let error = std::io::Error::last_os_error();
        let code = match error.raw_os_error() {
            Some(libc::ENOSYS) => Code::NotSupported,
            _ => Code::OperatingSystem,
        };
        let hint = match error.raw_os_error() {
            Some(libc::EPERM) => {
                "; this process may not trace that one: run both as one user, and see kernel.yama.ptrace_scope"
            }
            _ => "",
        };
        Err(Error::new(code, call, format!("{}: {error}{hint}", what())))
    }

    #[cfg(test)]
    mod tests {
        use std::io::{Read, Write};

        use super::*;

        #[test]
        fn a_descriptor_of_this_process_is_the_same_file() {
            let (mut reader, writer) = std::io::pipe().expect("a pipe");
            let copy = match descriptor_of_process(std::process::id(), writer.as_raw_fd()) {
                Ok(copy) => copy,
                Err(error) => {
                    println!("skipped: {error}");
                    return;
                }
            };
            drop(writer);
            std::fs::File::from(copy).write_all(b"there").expect("a write");
            let mut seen = String::new();
            reader.read_to_string(&mut seen).expect("a read to the end");
            assert_eq!(seen, "there");
        }

        #[test]
        fn no_such_descriptor_is_an_error_that_names_it() {
            let error = descriptor_of_process(std::process::id(), 1 << 20).expect_err("there is none");
            assert!(matches!(error.code(), Code::OperatingSystem | Code::NotSupported), "{error}");
            assert!(error.detail().contains("process"), "{error}");
        }
    }
}
