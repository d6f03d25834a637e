//! Streams that PyTorch did not make, which their owners destroy without notice. A GPU's driver crashes if a call names one
//! afterwards; the simulated one counts such calls.

use std::sync::Arc;

use thalweg_driver::{CaptureMode, DevicePointer, Driver as _, ExternalStream, FillPattern, Label};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{Device, Environment, Stream};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_torch::PoolName;
use thalweg_torch::interface::thalweg_malloc;

use crate::support::{Answer, MIB, Storage, Torch, answer, cuda_stream, fill};

const SETTINGS: [&str; 5] =
    ["", "expandable_page_mb:2", "cross_stream_reuse:ordered", "expandable_segments:False", "policy:pytorch"];

/// Writes the first and the last bytes of a block.
fn use_ends(stream: &Stream, storage: &Storage) {
    for first in [0, storage.bytes - 1024] {
        let pointer = DevicePointer::new(storage.address + first);
        stream.fill(pointer, FillPattern::U8(1), 1024, Label::here("use")).unwrap();
    }
}

struct Machine {
    driver: Arc<SimDriver>,
    torch: Arc<Torch>,
}

impl Machine {
    fn new(settings: &str) -> Self {
        let config = SimConfig { memory_bytes: 64 * MIB, workers: 2, ..SimConfig::default() };
        let driver = SimDriver::new(config).unwrap();
        let devices = Device::all_of(driver.clone(), &Environment::default()).unwrap();
        Self { driver, torch: Torch::new(&devices, settings) }
    }

    fn malloc(&self, bytes: u64, cuda_stream: u64) -> Answer<u64> {
        let mut address = 0;
        // SAFETY: the allocator is open, and there is a place.
        let status = unsafe { thalweg_malloc(self.torch.raw(), 0, bytes, cuda_stream, &raw mut address) };
        answer(status, address)
    }

    /// Makes every call that searches for memory on other streams, or releases memory.
    fn leave_memory_behind(&self, bytes: u64, is_transient: bool, freed_first: bool) {
        let external = self.driver.external_stream_create(0, 0, false).unwrap();
        if is_transient {
            self.torch.set_transient(external.cuda_stream());
        }
        let block = self.malloc(bytes, external.cuda_stream()).unwrap();
        if freed_first {
            self.torch.free(block).unwrap();
        }
        self.driver.external_stream_destroy(external).unwrap();
        if !freed_first {
            self.torch.free(block).unwrap();
        }
    }

    /// Makes every call that looks for memory elsewhere, or gives memory back.
    fn want_memory(&self) {
        let (main, side) = (self.torch.default_stream(0), self.torch.stream(0));
        for stream in [&main, &side, &main] {
            let x = self.torch.empty(48 * MIB, stream).unwrap();
            use_ends(stream, &x);
            drop(x);
            let y = self.torch.empty(20 * MIB, stream).unwrap();
            use_ends(stream, &y);
        }
        self.torch.empty_cache().unwrap();
        assert_eq!(self.torch.statistics(0).reserved_bytes.all.current, 0);
    }
}

#[test]
fn a_transient_stream_is_not_named_when_it_may_be_gone() {
    for settings in SETTINGS {
        for freed_first in [true, false] {
            let machine = Machine::new(settings);
            for _ in 0..3 {
                machine.leave_memory_behind(40 * MIB, true, freed_first);
                machine.want_memory();
            }
            assert_eq!(machine.driver.ended_streams_named(), 0, "{settings:?}");
        }
    }
}

/// Checks that a transient stream gets no block that another stream has cached, because the free of that block would name the
/// transient stream.
#[test]
fn a_transient_stream_borrows_no_block() {
    for settings in SETTINGS {
        for transient_first in [true, false] {
            let machine = Machine::new(settings);
            let main = machine.torch.default_stream(0);
            if transient_first {
                machine.leave_memory_behind(MIB, true, true);
            }
            drop(machine.torch.full(40 * MIB, 1, &main));
            main.synchronize().unwrap();
            for freed_first in [true, false] {
                machine.leave_memory_behind(20 * MIB, true, freed_first);
            }
            machine.want_memory();
            assert_eq!(machine.driver.ended_streams_named(), 0, "{settings:?}");
        }
    }
}

/// Checks that an ordinary stream is named in such calls, otherwise the tests above prove nothing.
#[test]
fn a_stream_that_is_not_transient_is_named() {
    let machine = Machine::new("");
    machine.leave_memory_behind(40 * MIB, false, true);
    let refused = machine.torch.malloc(48 * MIB, &machine.torch.default_stream(0));
    assert!(refused.is_err_and(|(_, message)| message.contains("was destroyed")));
    assert!(machine.driver.ended_streams_named() > 0);
}

/// Waiting for the device would break the capture, so the memory stays where it is.
#[test]
fn a_capture_leaves_the_memory_of_transient_streams_alone() {
    for settings in SETTINGS {
        let machine = Machine::new(settings);
        machine.leave_memory_behind(40 * MIB, true, true);
        let (torch, driver) = (&machine.torch, &machine.driver);
        let side = torch.stream(0);
        let captured = cuda_stream(&side);
        let pool: PoolName = (0, 1);
        torch.begin(pool, move |stream| stream == captured).unwrap();
        torch.mark_capture(true).unwrap();
        driver.stream_begin_capture(side.handle(), CaptureMode::Global).unwrap();
        let x = torch.full(8 * MIB, 1, &side);
        let refused = torch.malloc(48 * MIB, &side);
        assert!(refused.is_err_and(|(_, message)| message.contains("out of memory")), "{settings:?}");
        drop(x);
        let graph = driver.stream_end_capture(side.handle()).unwrap();
        torch.mark_capture(false).unwrap();
        torch.end(pool).unwrap();
        driver.graph_destroy(graph).unwrap();
        torch.release(pool).unwrap();
        machine.want_memory();
        assert_eq!(machine.driver.ended_streams_named(), 0, "{settings:?}");
    }
}

/// A transient stream keeps the order that any stream has.
#[test]
fn work_of_a_transient_stream_is_waited_for() {
    for settings in SETTINGS {
        let seeds = if cfg!(debug_assertions) { 0..3 } else { 0..60 };
        Check::new().seeds(seeds).memory_bytes(64 * MIB).run(|gpu| {
            let torch = Torch::new(gpu.devices(), settings);
            let (main, transient, third) = (torch.default_stream(0), torch.stream(0), torch.stream(0));
            torch.set_transient(cuda_stream(&transient));
            for value in 0..3 {
                drop(torch.full(40 * MIB, value, &transient));
                drop(torch.full(40 * MIB, 10 + value, &main));
                let x = torch.full(4 * MIB, 20 + value, &third);
                transient.wait_stream(&third).unwrap();
                fill(&transient, &x, 30 + value);
                x.record_stream(&transient);
                drop(x);
                drop(torch.full(44 * MIB, 40 + value, &third));
            }
            torch.devices[0].synchronize().unwrap();
            torch.empty_cache().unwrap();
        });
    }
}

/// PyTorch and its libraries use two handles for the legacy default stream; in another context, one of them refers to that context's
/// stream.
#[test]
fn the_legacy_default_stream_has_two_numbers() {
    let machine = Machine::new("");
    let device = &machine.torch.devices[0];
    // SAFETY: the simulator checks such numbers and contexts like handles: none is unsafe to it.
    let streams = unsafe { [ExternalStream::new(0), ExternalStream::new(1), ExternalStream::default_of(7)] };
    let [first, second, elsewhere] = streams.map(|stream| Stream::from_external(device, stream));
    assert_eq!([first.unwrap(), second.unwrap()], [(); 2].map(|()| device.default_stream()));
    assert!(
        elsewhere.unwrap_err().to_string().contains("primary context"),
        "a simulated device has no other"
    );
}
