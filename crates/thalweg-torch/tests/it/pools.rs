//! `torch.cuda.MemPool` and `use_mem_pool`.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_torch::Status;
use thalweg_torch::interface::*;

use crate::support::{FILTERS, Graph, MIB, Torch, answer, read};

/// Calls `MemPool.__init__`.
fn create(torch: &Torch, pool: (u64, u64), source: *const SegmentSourceC) {
    // SAFETY: the allocator is open, and the source is whole or null.
    answer(unsafe { thalweg_pool_retain(torch.raw(), 0, pool.0, pool.1, source) }, ()).unwrap();
}

/// Calls `MemPool.__del__`.
fn delete(torch: &Torch, pool: (u64, u64)) {
    // SAFETY: the allocator is open.
    answer(unsafe { thalweg_pool_set_use_on_oom(torch.raw(), 0, pool.0, pool.1, 0) }, ()).unwrap();
    torch.release(pool).unwrap();
    // SAFETY: as above.
    answer(unsafe { thalweg_empty_pool_cache(torch.raw(), pool.0, pool.1) }, ()).unwrap();
}

/// Calls `with use_mem_pool(pool)`.
fn with<T>(torch: &Torch, pool: (u64, u64), body: impl FnOnce() -> T) -> T {
    let thread = std::thread::current().id();
    torch.begin(pool, move |_| std::thread::current().id() == thread).unwrap();
    let result = body();
    torch.end(pool).unwrap();
    torch.release(pool).unwrap();
    result
}

#[test]
fn a_pool_serves_its_thread() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    create(&torch, (0, 1), std::ptr::null());
    let x = with(&torch, (0, 1), || {
        assert_eq!(torch.use_count((0, 1)), 2);
        let elsewhere =
            std::thread::scope(|scope| scope.spawn(|| torch.empty(4096, &stream).unwrap()).join().unwrap());
        let x = torch.full(4096, 1, &stream);
        assert_eq!(torch.snapshot((0, 1)).segments.len(), 1);
        assert_ne!(elsewhere.address & !(2 * MIB - 1), x.address & !(2 * MIB - 1));
        x
    });
    let y = torch.full(4096, 2, &stream);
    assert_eq!((read(&stream, &x), read(&stream, &y)), (1, 2));
    drop(x);
    delete(&torch, (0, 1));
    assert!(
        torch.snapshot((0, 0)).segments.iter().all(|(segment, _)| segment.pool_second == 0),
        "it is gone"
    );
    assert_eq!(
        FILTERS.load(Ordering::Relaxed) & !0xff,
        0,
        "filters are dropped, but for those of other tests"
    );
}

/// Runs `torch.cuda.graph(g, pool=pool.id)` and then `del pool`: the graph keeps the pool, and can be replayed.
#[test]
fn a_graph_outlives_the_program_s_hold_on_its_pool() {
    let torch = Torch::small();
    let stream = torch.stream(0);
    create(&torch, (0, 3), std::ptr::null());
    let (graph, output) = Graph::capture(&torch, (0, 3), &stream, || {
        let temporary = torch.full(8 * MIB, 3, &stream);
        drop(temporary);
        torch.full(4096, 4, &stream)
    });
    let reserved = torch.statistics(0).reserved_bytes.all.current;
    delete(&torch, (0, 3));
    assert_eq!((torch.use_count((0, 3)), torch.statistics(0).reserved_bytes.all.current), (1, reserved));
    graph.replay(&stream);
    assert_eq!(read(&stream, &output), 4);
    drop((graph, output));
    torch.empty_cache().unwrap();
    assert_eq!(torch.statistics(0).reserved_bytes.all.current, 0);
}

#[test]
fn options_hold_for_requests_to_come() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    create(&torch, (0, 2), std::ptr::null());
    drop(with(&torch, (0, 2), || torch.empty(40 * MIB, &stream).unwrap()));
    // 24 MiB are left.
    assert_eq!(torch.empty(36 * MIB, &stream).err().unwrap().0, Status::OutOfMemory);
    // SAFETY: the allocator is open.
    answer(unsafe { thalweg_pool_set_use_on_oom(torch.raw(), 0, 0, 2, 1) }, ()).unwrap();
    drop(torch.empty(36 * MIB, &stream).unwrap());
    // As `MemPool.__del__` does before it releases the pool. SAFETY: as above.
    answer(unsafe { thalweg_pool_set_use_on_oom(torch.raw(), 0, 0, 2, 0) }, ()).unwrap();
    assert!(torch.empty(36 * MIB, &stream).is_err());
    // SAFETY: as above.
    answer(unsafe { thalweg_pool_set_no_split(torch.raw(), 0, 0, 2, 1) }, ()).unwrap();
    let (x, y) =
        with(&torch, (0, 2), || (torch.empty(4096, &stream).unwrap(), torch.empty(4096, &stream).unwrap()));
    assert!(x.address.abs_diff(y.address) >= 2 * MIB, "a segment for each");
    drop((x, y));
    delete(&torch, (0, 2));
}

/// A source of segments that invents their addresses, and counts them.
#[derive(Default)]
struct Source {
    taken: AtomicU64,
    given_back: AtomicU64,
}

unsafe extern "C" fn take(user: *mut c_void, bytes: u64, _stream: u64) -> u64 {
    // SAFETY: it is the source below.
    let source = unsafe { &*user.cast::<Source>() };
    (1 << 40) + source.taken.fetch_add(bytes, Ordering::Relaxed)
}

unsafe extern "C" fn give_back(user: *mut c_void, _address: u64, bytes: u64, _stream: u64) {
    // SAFETY: it is the source below.
    unsafe { &*user.cast::<Source>() }.given_back.fetch_add(bytes, Ordering::Relaxed);
}

unsafe extern "C" fn drop_source(user: *mut c_void) {
    // SAFETY: it is a reference to the source below, given away once.
    drop(unsafe { Arc::from_raw(user.cast::<Source>()) });
}

#[test]
fn a_pool_may_have_a_source_of_its_own() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let source = Arc::new(Source::default());
    let given = SegmentSourceC {
        user: Arc::into_raw(Arc::clone(&source)).cast_mut().cast(),
        drop_user: Some(drop_source),
        allocate: take,
        free: give_back,
    };
    create(&torch, (0, 3), &raw const given);
    let address = with(&torch, (0, 3), || torch.malloc(3 * MIB, &stream).unwrap());
    assert_eq!(address, 1 << 40);
    torch.free(address).unwrap();
    delete(&torch, (0, 3));
    let taken = source.taken.load(Ordering::Relaxed);
    assert!(taken >= 3 * MIB);
    assert_eq!(source.given_back.load(Ordering::Relaxed), taken);
    assert_eq!(Arc::strong_count(&source), 1, "and the source was let go of");
}

#[test]
fn wrong_names_are_errors() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    drop(torch.empty(1, &stream).unwrap());
    assert_eq!(torch.end((0, 9)).unwrap_err().0, Status::Invalid);
    assert_eq!(torch.release((0, 9)).unwrap_err().0, Status::Invalid);
    assert_eq!(torch.begin((0, 0), |_| true).unwrap_err().0, Status::Invalid);
    create(&torch, (0, 4), std::ptr::null());
    assert_eq!(torch.end((0, 4)).unwrap_err().0, Status::Invalid, "it was not begun");
    delete(&torch, (0, 4));
    assert_eq!(torch.release((0, 4)).unwrap_err().0, Status::Invalid);
}
