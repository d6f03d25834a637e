//! PyTorch's sequences of calls under every schedule of the simulated device, watched by the sanitizer, which detects missing waits,
//! blocks that are reused too early, and leaks.

use thalweg_driver::FillPattern;
use thalweg_runtime::sim::{Check, Gpu, Problem};
use thalweg_runtime::{DevicePointer, Label, Stream};
use thalweg_sanitizer::FindingKind;

use crate::support::{Graph, MIB, Storage, Torch, fill, read};

fn program(settings: &'static str, body: impl Fn(&Gpu, &std::sync::Arc<Torch>)) {
    let seeds = if cfg!(debug_assertions) { 0..25 } else { 0..100 };
    Check::new().seeds(seeds).memory_bytes(64 * MIB).run(|gpu| {
        let torch = Torch::new(gpu.devices(), settings);
        body(gpu, &torch);
        for device in &torch.devices {
            device.synchronize().unwrap();
        }
        torch.empty_cache().unwrap();
    });
}

fn copy(stream: &Stream, from: &Storage, to: &Storage) {
    let (source, target) = (DevicePointer::new(from.address), DevicePointer::new(to.address));
    stream.copy_on_device(target, source, from.bytes, Label::here("copy")).unwrap();
}

fn reserved_mib(torch: &Torch) -> i64 {
    torch.statistics(0).reserved_bytes.all.current >> 20
}

/// Prefetches on a side stream, in each way in which PyTorch can record that.
fn prefetch(torch: &std::sync::Arc<Torch>, say: impl Fn(&Storage, &Stream)) {
    let (main, side) = (torch.default_stream(0), torch.stream(0));
    let sum = torch.full(65536, 0, &main);
    for value in 1..6 {
        let x = torch.full(65536, value, &side);
        main.wait_stream(&side).unwrap();
        copy(&main, &x, &sum);
        say(&x, &main);
        drop(x);
    }
    assert_eq!(read(&main, &sum), 5);
}

#[test]
fn a_prefetched_batch_is_not_overwritten() {
    for settings in ["", "policy:pytorch", "expandable_segments:False", "cross_stream_reuse:ordered"] {
        program(settings, |_, torch| prefetch(torch, Storage::record_stream));
        program(settings, |_, torch| prefetch(torch, Storage::record_use));
    }
}

/// Prefetching without `record_stream`: the sanitizer must report it, otherwise the tests above prove nothing.
#[test]
fn a_forgotten_record_stream_is_found() {
    let failure = Check::new().seeds(0..20).memory_bytes(64 * MIB).without_shrinking().find(|gpu| {
        let torch = Torch::new(gpu.devices(), "");
        prefetch(&torch, |_, _| {});
        gpu.device().synchronize().unwrap();
        torch.empty_cache().unwrap();
    });
    let failure = failure.expect_err("the side stream fills what the main stream still reads");
    let Problem::Finding(finding) = failure.problem() else { panic!("{failure}") };
    assert!(matches!(finding.kind, FindingKind::Race | FindingKind::MissingRecord), "{failure}");
}

#[test]
fn replays_and_eager_work_keep_out_of_each_others_memory() {
    program("", |_, torch| {
        let stream = torch.stream(0);
        let input = torch.full(8192, 1, &stream);
        let (graph, output) = Graph::capture(torch, (1, 0), &stream, || {
            let scratch = torch.empty(8192, &stream).unwrap();
            copy(&stream, &input, &scratch);
            let output = torch.empty(8192, &stream).unwrap();
            copy(&stream, &scratch, &output);
            output
        });
        for value in 2..5 {
            fill(&stream, &input, value);
            let eager = torch.full(8192, 99, &stream);
            graph.replay(&stream);
            assert_eq!((read(&stream, &output), read(&stream, &eager)), (value, 99));
        }
        drop((graph, output));
    });
}

/// The free memory of the pool is fragmented, and is mapped together at other addresses. A replay uses both.
#[test]
fn a_captures_memory_is_stitched() {
    program("expandable_page_mb:2", |_, torch| {
        let stream = torch.stream(0);
        let (graph, outputs) = Graph::capture(torch, (1, 0), &stream, || {
            let mut pieces: Vec<Storage> = (0..6).map(|value| torch.full(4 * MIB, value, &stream)).collect();
            let held = pieces.split_off(4);
            drop(pieces.remove(2));
            drop(pieces.remove(0));
            let whole = torch.full(8 * MIB, 77, &stream);
            // The remaining pieces are written once more, through other addresses than at first.
            drop(pieces);
            (torch.full(8 * MIB, 88, &stream), whole, held)
        });
        assert_eq!(reserved_mib(torch), 24, "no memory but that of the pieces");
        for value in 0..3 {
            let eager = torch.full(4 * MIB, value, &stream);
            graph.replay(&stream);
            let (second, whole, held) = &outputs;
            let read = |storage| read(&stream, storage);
            assert_eq!((read(second), read(whole), read(&held[0]), read(&held[1])), (88, 77, 4, 5));
            assert_eq!(read(&eager), value, "the graph writes to its own memory alone");
            torch.empty_cache().unwrap();
        }
        drop((graph, outputs));
        torch.empty_cache().unwrap();
        assert_eq!(reserved_mib(torch), 0);
    });
}

/// Memory that the program frees during a capture may only serve the capture. The work that used it may still be running.
#[test]
fn a_capture_gets_what_is_freed_meanwhile() {
    program("expandable_page_mb:2", |_, torch| {
        let (stream, side) = (torch.stream(0), torch.stream(0));
        let gradients = torch.full(20 * MIB, 1, &side);
        let (graph, output) = Graph::capture(torch, (1, 0), &stream, || {
            drop(gradients);
            torch.full(20 * MIB, 2, &stream)
        });
        assert_eq!(reserved_mib(torch), 20);
        graph.replay(&stream);
        let eager = torch.full(4 * MIB, 3, &side);
        assert_eq!((read(&stream, &output), read(&side, &eager)), (2, 3));
        drop((graph, output));
    });
}

/// A graph is deleted while it runs on a stream that is unknown to the allocator.
#[test]
fn a_graph_may_be_dropped_while_it_runs() {
    program("", |gpu, torch| {
        let stream = torch.stream(0);
        let (graph, output) = Graph::capture(torch, (1, 0), &stream, || torch.full(2 * MIB, 7, &stream));
        let elsewhere = Stream::new(gpu.device()).unwrap();
        elsewhere.wait_stream(&stream).unwrap();
        let driver = gpu.device().driver();
        graph.replay(&elsewhere);
        output.without_deleter();
        drop(graph);
        torch.empty_cache().unwrap();
        // The new owner of its pages must not be written to by the replay.
        let x = torch.full(2 * MIB, 1, &stream);
        assert_eq!(read(&stream, &x), 1);
        driver.stream_synchronize(elsewhere.handle()).unwrap();
    });
}

#[test]
fn memory_that_runs_out_breaks_no_order() {
    program("", |_, torch| {
        let (main, side) = (torch.default_stream(0), torch.stream(0));
        for value in 0..4 {
            let x = torch.full(40 * MIB, value, &side);
            main.wait_stream(&side).unwrap();
            let first = DevicePointer::new(x.address);
            main.fill(first, FillPattern::U8(value), MIB, Label::here("use")).unwrap();
            x.record_stream(&main);
            drop(x);
            // Only the block that the main stream is still using is there: it has to be waited for.
            let y = torch.full(40 * MIB, 50 + value, &main);
            main.synchronize().unwrap();
            drop(y);
        }
    });
}
