//! Checkpoints, as graph trees of `torch.compile(mode="reduce-overhead")` use them.

use std::ffi::c_void;
use std::sync::Arc;

use thalweg_runtime::Stream;
use thalweg_torch::interface::*;
use thalweg_torch::{PoolName, Status};

use crate::support::{Answer, Graph, Storage, Torch, answer, fill, read};

const POOL: PoolName = (0, 1);

/// `getCheckpointState`; dropped as `AllocatorState` is.
struct State(*mut Checkpoint);

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: it was taken, and is dropped once.
        unsafe { thalweg_checkpoint_drop(self.0) };
    }
}

fn checkpoint(torch: &Torch) -> Answer<State> {
    let mut state = std::ptr::null_mut();
    // SAFETY: the allocator is open, and there is a place.
    let status = unsafe { thalweg_checkpoint_take(torch.raw(), 0, POOL.0, POOL.1, &raw mut state) };
    answer(status, State(state))
}

#[derive(Default, PartialEq, Debug)]
struct Delta {
    freed: Vec<u64>,
    allocated: Vec<(u64, u64)>,
}

/// Calls `setCheckpointPoolState`.
fn restore(torch: &Torch, state: &State) -> Answer<Delta> {
    unsafe extern "C" fn freed(user: *mut c_void, address: u64, _: u64) {
        // SAFETY: it is the delta below.
        unsafe { (*user.cast::<Delta>()).freed.push(address) };
    }
    unsafe extern "C" fn allocated(user: *mut c_void, address: u64, bytes: u64) {
        // SAFETY: it is the delta below.
        unsafe { (*user.cast::<Delta>()).allocated.push((address, bytes)) };
    }
    let mut delta = Delta::default();
    let user = (&raw mut delta).cast();
    // SAFETY: the allocator is open, the state was taken, and the functions take what they are given.
    let status = unsafe { thalweg_checkpoint_restore(torch.raw(), 0, state.0, freed, allocated, user) };
    answer(status, delta)
}

/// Calls `checkPoolLiveAllocations`.
fn live_are(torch: &Torch, expected: &[u64]) -> bool {
    let mut equal = 0;
    let count = expected.len();
    // SAFETY: the allocator is open, there are so many addresses, and there is a place.
    let status = unsafe {
        thalweg_check_pool(torch.raw(), 0, POOL.0, POOL.1, expected.as_ptr(), count, &raw mut equal)
    };
    answer(status, equal != 0).unwrap()
}

fn record(torch: &Arc<Torch>, stream: &Stream, value: u8) -> (Graph, Storage) {
    Graph::capture(torch, POOL, stream, || {
        let scratch = torch.full(8192, 0, stream);
        let output = torch.full(4096, value, stream);
        drop(scratch);
        output
    })
}

/// Two branches after one root, recorded one after the other and replayed in turn.
#[test]
fn a_second_branch_is_recorded_on_the_state_of_the_root() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    let (root, first) = record(&torch, &stream, 1);
    let state = checkpoint(&torch).unwrap();
    let (left, second) = record(&torch, &stream, 2);
    assert!(live_are(&torch, &[first.address, second.address]));
    assert!(!live_are(&torch, &[first.address]));
    // The tree drops the left branch: its tensors lose their deleters, then the pool is restored.
    let (stale, kept) = (second.without_deleter(), first.without_deleter());
    let delta = restore(&torch, &state).unwrap();
    let mut both = vec![kept, stale];
    both.sort_unstable();
    assert_eq!(delta, Delta { freed: both, allocated: vec![(kept, 4096)] });
    assert!(live_are(&torch, &[kept]));
    let (right, third) = record(&torch, &stream, 3);
    assert_eq!(third.address, stale, "the right branch has the left one's place");
    root.replay(&stream);
    right.replay(&stream);
    assert_eq!(read(&stream, &third), 3);
    root.replay(&stream);
    left.replay(&stream);
    assert_eq!(read(&stream, &third), 2, "the same place, with the left branch's value");
    // The blocks that are live in the checkpoint are the caller's again.
    torch.free(kept).unwrap();
    assert_eq!(torch.free(kept).unwrap_err().0, Status::Invalid);
    drop(third);
    assert!(live_are(&torch, &[]));
    drop((root, left, right));
    torch.empty_cache().unwrap();
    assert_eq!(torch.statistics(0).reserved_bytes.all.current, 0);
}

#[test]
fn a_state_can_be_restored_again_and_again() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    let (root, first) = record(&torch, &stream, 1);
    let address = first.without_deleter();
    let state = checkpoint(&torch).unwrap();
    for value in 2..6 {
        let (graph, output) = record(&torch, &stream, value);
        graph.replay(&stream);
        assert_eq!(read(&stream, &output), value);
        output.without_deleter();
        let delta = restore(&torch, &state).unwrap();
        assert_eq!(delta.allocated, [(address, 4096)]);
        assert_eq!(delta.freed.len(), 2);
        drop(graph);
    }
    torch.free(address).unwrap();
    drop(root);
}

/// The warm-up of graph trees: a stream that does not capture uses the pool, as in `torch.cuda.use_mem_pool`.
#[test]
fn a_checkpoint_is_taken_and_restored_while_a_pool_is_used() {
    let torch = Torch::small();
    let (stream, side) = (torch.stream(0), torch.stream(0));
    let (root, output) = record(&torch, &stream, 1);
    torch.begin((0, 9), |_| true).unwrap();
    let bystander = torch.full(4096, 7, &stream);
    bystander.record_stream(&side);
    drop(bystander);
    let address = output.without_deleter();
    let state = checkpoint(&torch).unwrap();
    assert_eq!(restore(&torch, &state).unwrap().allocated, [(address, 4096)]);
    torch.empty_cache().unwrap();
    torch.end((0, 9)).unwrap();
    torch.release((0, 9)).unwrap();
    torch.free(address).unwrap();
    drop(root);
}

#[test]
fn a_capture_ends_as_often_as_it_begins() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    drop(torch.empty(1, &stream).unwrap());
    assert_eq!(torch.mark_capture(false).unwrap_err().0, Status::Invalid);
    torch.mark_capture(true).unwrap();
    torch.mark_capture(true).unwrap();
    torch.mark_capture(false).unwrap();
    assert_eq!(torch.empty_cache().unwrap_err().0, Status::Capture);
    torch.mark_capture(false).unwrap();
    torch.empty_cache().unwrap();
}

#[test]
fn a_checkpoint_of_nothing_is_refused() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    drop(torch.empty(1, &stream).unwrap());
    assert_eq!(checkpoint(&torch).err().unwrap().0, Status::Invalid);
    let (root, output) = record(&torch, &stream, 1);
    let state = checkpoint(&torch).unwrap();
    drop((root, output));
    assert!(restore(&torch, &state).is_err(), "the pool was released");
    let x = torch.full(4096, 9, &stream);
    fill(&stream, &x, 8);
    assert_eq!(read(&stream, &x), 8);
}
