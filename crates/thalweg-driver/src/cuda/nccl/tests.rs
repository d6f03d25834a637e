//! Aborts of communicators, with a library that records its calls.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use super::*;

const INFO: CommunicatorInfo = CommunicatorInfo { rank: 0, ranks: 2, device: 0 };

/// A communicator of the fake library: whether its calls were aborted, and how often it was freed.
#[derive(Default)]
struct Fake {
    is_told: AtomicBool,
    freed: AtomicUsize,
    in_call: AtomicUsize,
    freed_in_call: AtomicBool,
}

impl Fake {
    fn raw(&self) -> RawCommunicator {
        ptr::from_ref(self).expose_provenance()
    }

    /// Blocks in a call until the abort, and then takes some more time, as NCCL does between two checks.
    fn blocked_call(&self, slow: Duration) {
        self.in_call.fetch_add(1, Ordering::SeqCst);
        let begin = Instant::now();
        while !self.is_told.load(Ordering::SeqCst) && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(slow);
        self.in_call.fetch_sub(1, Ordering::SeqCst);
    }

    fn free(&self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
        self.freed_in_call.fetch_or(self.in_call.load(Ordering::SeqCst) > 0, Ordering::SeqCst);
    }
}

thread_local! {
    /// The depth of this thread's groups, and the communicator that is freed at their end.
    static GROUP: Cell<(usize, RawCommunicator)> = const { Cell::new((0, 0)) };
}

extern "C" fn group_start() -> u32 {
    let (depth, raw) = GROUP.get();
    GROUP.set((depth + 1, raw));
    0
}

extern "C" fn group_end() -> u32 {
    let (depth, raw) = GROUP.get();
    GROUP.set((depth - 1, 0));
    if raw != 0 {
        at(raw).free();
    }
    0
}

/// Behaves as NCCL does from 2.22 on: ends calls at once, and frees at the end of a group, or at once outside of one.
extern "C" fn abort(raw: RawCommunicator) -> u32 {
    at(raw).is_told.store(true, Ordering::SeqCst);
    match GROUP.get() {
        (0, _) => at(raw).free(),
        (depth, _) => GROUP.set((depth, raw)),
    }
    0
}

fn at<'a>(raw: RawCommunicator) -> &'a Fake {
    // SAFETY: each test passes the address of a `Fake` that lives until its abort has ended.
    unsafe { &*ptr::with_exposed_provenance(raw) }
}

fn library() -> Nccl {
    let find = |entry: &crate::cuda::table::EntryPoint| -> *const c_void {
        match entry.name {
            "ncclGroupStart" => group_start as extern "C" fn() -> u32 as *const c_void,
            "ncclGroupEnd" => group_end as extern "C" fn() -> u32 as *const c_void,
            "ncclCommAbort" => abort as extern "C" fn(RawCommunicator) -> u32 as *const c_void,
            _ => ptr::null(),
        }
    };
    // SAFETY: the functions have the signatures of their symbols.
    let table = unsafe { NcclTable::resolve(find) };
    Nccl { table, error_string: None, last_error: None, version: Version::of_code(22_809) }
}

/// Ends a communicator while another thread is in a call with it.
fn end_in_call(rank: &Communicator, waits: Waits, call: impl FnOnce() + Send) -> Ended {
    let (began, begins) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _in_use = rank.in_use.lock();
            began.send(()).expect("the test waits");
            call();
        });
        begins.recv().expect("the call begins");
        rank.end(&library(), waits, || Ok(()))
    })
}

/// Aborts while another thread is in a call, which lasts for `slow` after the abort.
fn abort_in_call(fake: &Fake, slow: Duration, waits: Waits) -> Ended {
    let rank = Communicator::new(fake.raw(), INFO);
    let ended = end_in_call(&rank, waits, || fake.blocked_call(slow));
    assert!(rank.is_over());
    assert_eq!(rank.end(&library(), waits, || panic!("aborted twice")), Ended::Before);
    ended
}

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn an_abort_frees_a_communicator_when_the_blocked_call_has_left() {
    let fake = Fake::default();
    let ended = abort_in_call(&fake, Duration::from_millis(100), Waits { grace: SHORT, after_abort: LONG });
    assert_eq!(ended, Ended::InCall(Ok(())));
    assert_eq!(fake.freed.load(Ordering::SeqCst), 1);
    assert!(!fake.freed_in_call.load(Ordering::SeqCst), "freed while the call was in the library");
    assert_eq!(GROUP.get(), (0, 0), "the caller is in no group");
}

#[test]
fn a_communicator_whose_call_does_not_end_is_not_freed() {
    let fake = Fake::default();
    let Ended::InCall(Err(error)) =
        abort_in_call(&fake, Duration::from_secs(1), Waits { grace: SHORT, after_abort: SHORT })
    else {
        panic!("the call has not ended");
    };
    assert_eq!(error.code(), Code::Timeout);
    assert!(error.detail().contains("has not ended 20 ms after it was told to"), "{error}");
    assert_eq!(fake.freed.load(Ordering::SeqCst), 0);
    assert_eq!(GROUP.get(), (0, 0), "the caller is in no group");
}

#[test]
fn an_abort_waits_for_a_call_that_ends_by_itself() {
    let fake = Fake::default();
    let rank = Communicator::new(fake.raw(), INFO);
    let waits = Waits { grace: LONG, after_abort: LONG };
    let ended = end_in_call(&rank, waits, || std::thread::sleep(Duration::from_millis(50)));
    assert_eq!(ended, Ended::Idle(Ok(())));
    assert_eq!(fake.freed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_lost_rank_is_told_from_a_mistake() {
    let status = |status| CallStatus { call: "ncclGroupEnd", status, missing: None };
    let code =
        |of| library().check_ranks(status(of), || "for all_reduce".to_owned()).map_err(|error| error.code());
    assert_eq!(code(0), Ok(()));
    assert_eq!(code(6), Err(Code::CommunicatorFailed));
    assert_eq!(code(5), Err(Code::Library));
}
