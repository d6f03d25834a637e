//! Orders of accesses, and calls that order nothing: the behaviours that PyTorch's sanitizer tests assert, and the pairs of
//! CuSan's suite. Every program has a twin with the opposite verdict.

use thalweg_driver::{Access, Driver, EventFlags, Fill, FillPattern, Label};
use thalweg_sanitizer::FindingKind::{self, Race};

use super::support::{BYTES, World, verdict};

type Case = (&'static str, &'static [FindingKind], fn(&World));

fn run(cases: &[Case]) {
    for (name, expected, program) in cases {
        verdict(name, expected, program);
    }
}

/// The cases of `TestEventHandler`.
const PYTORCH_SANITIZER_CASES: &[Case] = &[
    ("empty kernel launch", &[], |w| w.work(w.a, "nothing", &[])),
    ("simple passing", &[], |w| {
        w.read(w.a, w.x);
        w.read(w.b, w.x);
    }),
    ("simple error", &[Race], |w| {
        w.read(w.a, w.x);
        w.write(w.b, w.x);
    }),
    ("simple sync", &[], |w| {
        w.read(w.a, w.x);
        w.record(w.e, w.a);
        w.wait(w.b, w.e);
        w.write(w.b, w.x);
    }),
    ("reads check the last write", &[], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.wait(w.b, w.e);
        w.read(w.b, w.x);
    }),
    ("reads check the last write, not synchronised", &[Race], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.wait(w.b, w.e);
        w.read(w.b, w.x);
        w.read(w.c, w.x);
    }),
    ("branch sync", &[Race], |w| {
        // B and C come after A, but are not ordered with each other.
        w.record(w.e, w.a);
        w.wait(w.b, w.e);
        w.wait(w.c, w.e);
        w.write(w.b, w.x);
        w.read(w.c, w.x);
    }),
    ("branch sync, joined", &[], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.wait(w.b, w.e);
        w.wait(w.c, w.e);
        w.read(w.b, w.x);
        w.read(w.c, w.x);
    }),
    ("chain sync", &[], |w| {
        let streams: Vec<_> = (0..10).map(|_| w.driver.stream_create(0, 0).unwrap()).collect();
        w.write(streams[0], w.x);
        for pair in streams.windows(2) {
            w.order(pair[0], pair[1]);
        }
        w.write(streams[9], w.x);
    }),
    ("chain sync, one link short", &[Race], |w| {
        let streams: Vec<_> = (0..10).map(|_| w.driver.stream_create(0, 0).unwrap()).collect();
        w.write(streams[0], w.x);
        for pair in streams.windows(2).skip(1) {
            w.order(pair[0], pair[1]);
        }
        w.write(streams[9], w.x);
    }),
    ("expired record", &[Race], |w| {
        w.record(w.e, w.a);
        w.write(w.a, w.x);
        w.wait(w.b, w.e);
        w.read(w.b, w.x);
    }),
    ("deleted record", &[Race], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.driver.event_destroy(w.e).unwrap();
        let again = w.driver.event_create(0, EventFlags::default()).unwrap();
        w.wait(w.b, again);
        w.read(w.b, w.x);
    }),
    ("deleted record after the wait", &[], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.wait(w.b, w.e);
        w.driver.event_destroy(w.e).unwrap();
        w.read(w.b, w.x);
    }),
    ("all reads checked, failing", &[Race], |w| {
        w.read(w.a, w.x);
        w.read(w.b, w.x);
        w.order(w.b, w.c);
        w.write(w.c, w.x);
    }),
    ("all reads checked, passing", &[], |w| {
        w.read(w.a, w.x);
        w.read(w.b, w.x);
        w.order(w.a, w.c);
        w.order(w.b, w.c);
        w.write(w.c, w.x);
    }),
    ("multiple errors", &[Race, Race], |w| {
        w.read(w.a, w.x);
        w.work(w.a, "read y", &[Access::read(w.y, BYTES)]);
        w.work(w.b, "write both", &[Access::write(w.x, BYTES), Access::write(w.y, BYTES)]);
    }),
    ("correct state merging", &[], |w| {
        w.write(w.a, w.x);
        w.order(w.a, w.b);
        w.write(w.b, w.x);
        w.write(w.c, w.y);
        w.order(w.c, w.b);
        w.order(w.b, w.a);
        w.write(w.a, w.x);
        w.write(w.a, w.y);
    }),
    ("record override", &[Race], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.record(w.e, w.b);
        w.wait(w.c, w.e);
        w.read(w.c, w.x);
    }),
    ("record override, waited for before", &[], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.wait(w.c, w.e);
        w.record(w.e, w.b);
        w.read(w.c, w.x);
    }),
    ("multiple wait", &[], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.wait(w.b, w.e);
        w.wait(w.c, w.e);
        w.read(w.b, w.x);
        w.read(w.c, w.x);
    }),
    ("multiple wait, the second stream writes", &[Race], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.wait(w.b, w.e);
        w.wait(w.c, w.e);
        w.read(w.b, w.x);
        w.write(w.c, w.x);
    }),
    ("device synchronize", &[], |w| {
        w.write(w.a, w.x);
        w.driver.device_synchronize(0).unwrap();
        w.write(w.b, w.x);
    }),
    ("device synchronization expired", &[Race], |w| {
        w.driver.device_synchronize(0).unwrap();
        w.write(w.a, w.x);
        w.write(w.b, w.x);
    }),
    ("a new stream is synchronized", &[], |w| {
        w.write(w.a, w.x);
        w.driver.device_synchronize(0).unwrap();
        let new = w.driver.stream_create(0, 0).unwrap();
        w.write(new, w.x);
    }),
    ("a new stream knows nothing else", &[Race], |w| {
        w.write(w.a, w.x);
        let new = w.driver.stream_create(0, 0).unwrap();
        w.write(new, w.x);
    }),
    ("stream synchronize", &[], |w| {
        w.write(w.a, w.x);
        w.driver.stream_synchronize(w.a).unwrap();
        w.write(w.b, w.x);
    }),
    ("synchronising another stream", &[Race], |w| {
        w.write(w.a, w.x);
        w.driver.stream_synchronize(w.c).unwrap();
        w.write(w.b, w.x);
    }),
    ("event synchronize", &[], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        w.driver.event_synchronize(w.e).unwrap();
        w.write(w.b, w.x);
    }),
    ("event synchronize, later work", &[Race], |w| {
        w.record(w.e, w.a);
        w.write(w.a, w.x);
        w.driver.event_synchronize(w.e).unwrap();
        w.write(w.b, w.x);
    }),
];

#[test]
fn pytorch_sanitizer_cases() {
    run(PYTORCH_SANITIZER_CASES);
}

fn fill(w: &World, stream: thalweg_driver::StreamHandle) {
    let fill = Fill { target: w.x, pattern: FillPattern::U8(0), count: BYTES, label: Label::here("fill") };
    w.driver.fill_async(stream, &fill).unwrap();
}

fn blocking(w: &World) -> thalweg_driver::StreamHandle {
    let external = w.sim.external_stream_create(0, 0, true).unwrap();
    w.driver.stream_from_external(0, external).unwrap()
}

fn query(w: &World, stream: thalweg_driver::StreamHandle) {
    while !w.driver.stream_query(stream).unwrap() {
        std::thread::yield_now();
    }
}

/// The pairs of CuSan's suite: the default stream, loops over queries, implicit synchronisation, callbacks.
const RACY_AND_SYNCHRONISED_PAIRS: &[Case] = &[
    ("default stream then non-blocking", &[Race], |w| {
        w.write(w.default, w.x);
        w.write(w.a, w.x);
    }),
    ("non-blocking then default stream", &[Race], |w| {
        w.write(w.a, w.x);
        w.write(w.default, w.x);
    }),
    ("default stream then blocking", &[], |w| {
        let blocking = blocking(w);
        w.write(w.default, w.x);
        w.write(blocking, w.x);
    }),
    ("blocking then default stream", &[], |w| {
        let blocking = blocking(w);
        w.write(blocking, w.x);
        w.write(w.default, w.x);
    }),
    ("two blocking streams", &[Race], |w| {
        let (one, other) = (blocking(w), blocking(w));
        w.write(one, w.x);
        w.write(other, w.x);
    }),
    ("two blocking streams with the default stream between", &[], |w| {
        let (one, other) = (blocking(w), blocking(w));
        w.write(one, w.x);
        w.work(w.default, "nothing", &[]);
        w.write(other, w.x);
    }),
    ("a blocking stream that is gone", &[], |w| {
        let blocking = blocking(w);
        w.write(blocking, w.x);
        w.driver.stream_destroy(blocking).unwrap();
        w.write(w.default, w.x);
    }),
    ("two handles of one stream", &[], |w| {
        let external = w.sim.external_stream_create(0, 0, false).unwrap();
        let [one, other] = [0; 2].map(|_| w.driver.stream_from_external(0, external).unwrap());
        w.write(one, w.x);
        w.write(other, w.x);
    }),
    ("a loop over queries of the stream", &[], |w| {
        w.write(w.a, w.x);
        query(w, w.a);
        w.write(w.b, w.x);
    }),
    ("a loop over queries of another stream", &[Race], |w| {
        w.write(w.a, w.x);
        query(w, w.c);
        w.write(w.b, w.x);
    }),
    ("a loop over queries of the event", &[], |w| {
        w.write(w.a, w.x);
        w.record(w.e, w.a);
        while !w.driver.event_query(w.e).unwrap() {
            std::thread::yield_now();
        }
        w.write(w.b, w.x);
    }),
    ("a query of an event without a record", &[Race], |w| {
        w.write(w.a, w.x);
        assert!(w.driver.event_query(w.e).unwrap());
        w.write(w.b, w.x);
    }),
    ("an asynchronous fill orders nothing", &[Race], |w| {
        fill(w, w.a);
        w.read(w.b, w.x);
    }),
    ("a fill behind an event", &[], |w| {
        fill(w, w.a);
        w.order(w.a, w.b);
        w.read(w.b, w.x);
    }),
    ("a blocking copy to the host is a wait", &[], |w| {
        w.write(w.a, w.x);
        w.driver.copy_to_host(w.a, &mut [0; 8], w.y, Label::here("download")).unwrap();
        w.write(w.b, w.x);
    }),
    ("a blocking copy on another stream is none", &[Race], |w| {
        w.write(w.a, w.x);
        w.driver.copy_to_host(w.c, &mut [0; 8], w.y, Label::here("download")).unwrap();
        w.write(w.b, w.x);
    }),
    ("a copy from the host is not a wait", &[Race], |w| {
        w.driver.copy_from_host(w.a, w.x, &[0; 8], Label::here("upload")).unwrap();
        w.read(w.b, w.x);
    }),
    ("a copy from the host in its stream", &[], |w| {
        w.driver.copy_from_host(w.a, w.x, &[0; 8], Label::here("upload")).unwrap();
        w.read(w.a, w.x);
    }),
    ("freeing memory waits for the device", &[], |w| {
        w.write(w.a, w.x);
        w.driver.memory_free(w.y).unwrap();
        w.write(w.b, w.x);
    }),
    ("allocating memory waits for nothing", &[Race], |w| {
        w.write(w.a, w.x);
        w.driver.memory_allocate(0, BYTES).unwrap();
        w.write(w.b, w.x);
    }),
    ("the host reads what a copy may be writing", &[Race], |w| {
        let pinned = w.pinned();
        w.copy_out(w.a, pinned, w.x);
        w.host_read(pinned);
    }),
    ("the host reads after synchronising", &[], |w| {
        let pinned = w.pinned();
        w.copy_out(w.a, pinned, w.x);
        w.driver.stream_synchronize(w.a).unwrap();
        w.host_read(pinned);
    }),
    ("the host overwrites what a copy may be reading", &[Race], |w| {
        let pinned = w.pinned();
        w.copy_in(w.a, w.x, pinned);
        w.host_write(pinned);
    }),
    ("the host overwrites it behind an event", &[], |w| {
        let pinned = w.pinned();
        w.copy_in(w.a, w.x, pinned);
        w.record(w.e, w.a);
        w.driver.event_synchronize(w.e).unwrap();
        w.host_write(pinned);
    }),
    ("the host's writes come before what it submits", &[], |w| {
        let pinned = w.pinned();
        w.host_write(pinned);
        w.copy_in(w.a, w.x, pinned);
        w.copy_in(w.b, w.y, pinned);
    }),
    ("a callback takes its place in the stream", &[], |w| {
        w.write(w.a, w.x);
        w.driver.host_function_async(w.a, std::sync::Arc::new(|| ()), Label::here("callback")).unwrap();
        w.order(w.a, w.b);
        w.write(w.b, w.x);
    }),
    ("a callback orders no other stream", &[Race], |w| {
        w.write(w.a, w.x);
        w.driver.host_function_async(w.b, std::sync::Arc::new(|| ()), Label::here("callback")).unwrap();
        w.write(w.b, w.x);
    }),
    ("chunks of their own", &[], |w| {
        for (chunk, stream) in [w.a, w.b, w.c].into_iter().enumerate() {
            w.work(stream, "chunk", &[Access::read_write(w.x.offset(chunk as u64 * 1024), 1024)]);
        }
    }),
    ("chunks that overlap by a byte", &[Race], |w| {
        w.work(w.a, "chunk", &[Access::read_write(w.x, 1025)]);
        w.work(w.b, "other chunk", &[Access::read_write(w.x.offset(1024), 1024)]);
    }),
    ("two devices", &[Race], |w| {
        let (other, pinned) = (w.driver.stream_create(1, 0).unwrap(), w.pinned());
        w.write(w.a, w.x);
        w.copy_out(other, pinned, w.x);
    }),
    ("two devices, ordered by an event", &[], |w| {
        let (other, pinned) = (w.driver.stream_create(1, 0).unwrap(), w.pinned());
        w.write(w.a, w.x);
        w.order(w.a, other);
        w.copy_out(other, pinned, w.x);
    }),
    ("synchronising the other device", &[Race], |w| {
        w.write(w.a, w.x);
        w.driver.device_synchronize(1).unwrap();
        w.write(w.b, w.x);
    }),
];

#[test]
fn racy_and_synchronised_pairs() {
    run(RACY_AND_SYNCHRONISED_PAIRS);
}
