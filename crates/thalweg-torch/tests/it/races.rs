//! PyTorch's sequences under every schedule of the simulated device, watched by the referee: it knows what CUDA promises, and
//! sees a missing wait, a block that is reused too early, and what nobody gave back.

use thalweg_device::FillPattern;
use thalweg_device::check::FindingKind;
use thalweg_runtime::sim::{Check, Gpu, Problem};
use thalweg_runtime::{DevicePointer, Label, Stream};

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

/// Prefetching on a side stream, with each way of saying so.
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

/// The same without a word to the allocator: the referee has to see it, or the tests above say nothing.
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

/// A graph is deleted while it runs on a stream that the allocator has never heard of.
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
        // Whoever has its pages now must not be written to by the replay.
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
