//! The cost of the driver's memory calls on the host, which an allocator's policy weighs: each virtual memory call, with the
//! device idle and busy; plain and stream-ordered allocation; events; pinned memory by both methods.
//!
//! `cargo bench -p thalweg-conformance --bench memory_calls` prints a table for the GPU if there is one, else for the simulated
//! GPU; `-- --json` prints one object per line (`name`, `value`, `unit`, `worst`). A figure is the median over the samples of
//! one call, in microseconds; `worst` is the slowest sample.

use std::sync::Arc;
use std::time::Instant;

use thalweg_conformance::{Kernel, KernelArguments, KernelSet};
use thalweg_driver::{
    CaptureMode, DevicePointer, Driver, EventFlags, HandleType, HostFlags, HostMethod, MemoryAccess,
    PhysicalFlags, PhysicalHandle, Result, StreamHandle, cuda::CudaDriver,
};
use thalweg_sim::{SimConfig, SimDriver};

const SAMPLES: usize = 101;
const PAGES: u64 = 64;
/// The time for which the device is kept busy while a call is timed.
const BUSY_US: u32 = 3_000;
const MIB: u64 = 1 << 20;

fn main() -> Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    let driver: Arc<dyn Driver> = match CudaDriver::open() {
        Ok(driver) => driver,
        Err(error) => {
            if !json {
                println!("no GPU ({error}): the simulated GPU");
            }
            SimDriver::new(SimConfig::default())?
        }
    };
    let kernels = KernelSet::load(&*driver, 0)?;
    let stream = driver.stream_create(0, 0)?;
    let work = driver.memory_allocate(0, MIB)?;
    let page = driver.device_properties(0)?.virtual_memory_granularity_bytes;
    let bench = Bench { driver, kernels, stream, work, page, json };
    bench.virtual_memory()?;
    for (suffix, bytes) in [("_20_mib", 20 * MIB), ("_32_mib", 32 * MIB), ("_128_mib", 128 * MIB)] {
        bench.one_mapping(suffix, bytes)?;
    }
    bench.virtual_memory_at_work()?;
    bench.plain_memory()?;
    bench.pool_memory()?;
    bench.events()?;
    bench.captures()?;
    bench.sharing()?;
    bench.pinned_memory()
}

struct Bench {
    driver: Arc<dyn Driver>,
    kernels: KernelSet,
    stream: StreamHandle,
    work: DevicePointer,
    page: u64,
    json: bool,
}

/// The times of one kind of call.
struct Samples(&'static str, Vec<f64>);

impl Samples {
    fn new(name: &'static str) -> Self {
        Self(name, Vec::new())
    }

    fn time<T>(&mut self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let answer = call()?;
        self.1.push(start.elapsed().as_secs_f64() * 1e6);
        Ok(answer)
    }
}

impl Bench {
    fn report(&self, suffix: &str, samples: impl IntoIterator<Item = Samples>) {
        for Samples(name, mut times) in samples {
            times.sort_by(f64::total_cmp);
            let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
            if self.json {
                println!(
                    "{{\"name\": \"{name}{suffix}\", \"value\": {median:.3}, \"unit\": \"us\", \"worst\": {worst:.3}}}"
                );
            } else {
                println!("{:<44} {median:>12.3} us   (worst {worst:.1})", format!("{name}{suffix}"));
            }
        }
    }

    /// Times one call repeatedly.
    fn measure(
        &self,
        name: &'static str,
        samples: usize,
        mut call: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut times = Samples::new(name);
        for _ in 0..samples {
            times.time(&mut call)?;
        }
        self.report("", [times]);
        Ok(())
    }

    /// Keeps the device busy for a while.
    fn keep_busy(&self) -> Result<()> {
        let arguments = KernelArguments::new(self.work, 1024, 1).with_delay_us(BUSY_US);
        self.kernels.launch(&*self.driver, self.stream, Kernel::Constant, arguments)
    }

    fn pages(&self, count: u64, flags: PhysicalFlags) -> Result<Vec<PhysicalHandle>> {
        (0..count).map(|_| self.driver.physical_create(0, self.page, flags)).collect()
    }

    fn map(&self, range: DevicePointer, pages: &[PhysicalHandle]) -> Result<()> {
        let mut target = range;
        for page in pages {
            self.driver.memory_map(target, self.page, *page, 0)?;
            target = target.offset(self.page);
        }
        Ok(())
    }

    fn open(&self, range: DevicePointer, bytes: u64) -> Result<()> {
        self.driver.memory_set_access(range, bytes, 0, MemoryAccess::ReadWrite)
    }

    /// Maps one piece of physical memory of `bytes` bytes, to compare the cost of a mapping with that of its pages.
    fn one_mapping(&self, suffix: &str, bytes: u64) -> Result<()> {
        let driver = &self.driver;
        let [mut create, mut map, mut open, mut unmap, mut release] = [
            "physical_create_one_of",
            "memory_map_one_of",
            "memory_set_access_one_of",
            "memory_unmap_one_of",
            "physical_release_one_of",
        ]
        .map(Samples::new);
        let range = driver.address_reserve(0, bytes)?;
        for _ in 0..SAMPLES {
            let physical = create.time(|| driver.physical_create(0, bytes, PhysicalFlags::default()))?;
            map.time(|| driver.memory_map(range, bytes, physical, 0))?;
            open.time(|| self.open(range, bytes))?;
            unmap.time(|| driver.memory_unmap(range, bytes))?;
            release.time(|| driver.physical_release(physical))?;
        }
        self.report(suffix, [create, map, open, unmap, release]);
        driver.address_free(range, bytes)
    }

    fn virtual_memory(&self) -> Result<()> {
        let driver = &self.driver;
        let all = PAGES * self.page;
        let shared = PhysicalFlags { share_as: Some(HandleType::FileDescriptor), ..PhysicalFlags::default() };
        let [mut reserve, mut free] = ["address_reserve_128_mib", "address_free_128_mib"].map(Samples::new);
        let [mut reserve_all, mut free_all] =
            ["address_reserve_64_gib", "address_free_64_gib"].map(Samples::new);
        let [mut create, mut create_shared] =
            ["physical_create_page", "physical_create_page_shareable"].map(Samples::new);
        let [mut release, mut create_large] =
            ["physical_release_page", "physical_create_128_mib"].map(Samples::new);
        let [mut map_one, mut open_one, mut unmap_one] =
            ["memory_map_page", "memory_set_access_page", "memory_unmap_page"].map(Samples::new);
        let [mut map_all, mut open_all, mut unmap_all] =
            ["memory_map_64_pages", "memory_set_access_64_pages", "memory_unmap_64_pages"].map(Samples::new);
        for _ in 0..SAMPLES {
            let range = reserve.time(|| driver.address_reserve(0, all))?;
            let whole = reserve_all.time(|| driver.address_reserve(0, 64 << 30))?;
            free_all.time(|| driver.address_free(whole, 64 << 30))?;
            let one = create.time(|| driver.physical_create(0, self.page, PhysicalFlags::default()))?;
            let other = create_shared.time(|| driver.physical_create(0, self.page, shared))?;
            driver.physical_release(other)?;
            map_one.time(|| driver.memory_map(range, self.page, one, 0))?;
            open_one.time(|| self.open(range, self.page))?;
            unmap_one.time(|| driver.memory_unmap(range, self.page))?;
            release.time(|| driver.physical_release(one))?;
            let large = create_large.time(|| driver.physical_create(0, all, PhysicalFlags::default()))?;
            driver.physical_release(large)?;
            let pages = self.pages(PAGES, PhysicalFlags::default())?;
            map_all.time(|| self.map(range, &pages))?;
            open_all.time(|| self.open(range, all))?;
            unmap_all.time(|| driver.memory_unmap(range, all))?;
            for page in pages {
                driver.physical_release(page)?;
            }
            free.time(|| driver.address_free(range, all))?;
        }
        self.report(
            "",
            [
                reserve,
                free,
                reserve_all,
                free_all,
                create,
                create_shared,
                release,
                create_large,
                map_one,
                open_one,
                unmap_one,
                map_all,
                open_all,
                unmap_all,
            ],
        );
        Ok(())
    }

    /// Measures the calls while an unrelated kernel runs: those that wait for it take as long as it does.
    fn virtual_memory_at_work(&self) -> Result<()> {
        let driver = &self.driver;
        let all = PAGES * self.page;
        let [mut create, mut map, mut open, mut alias, mut unmap, mut release] = [
            "physical_create_page",
            "memory_map_64_pages",
            "memory_set_access_64_pages",
            "alias_64_pages_and_set_access",
            "memory_unmap_64_pages",
            "physical_release_page",
        ]
        .map(Samples::new);
        for _ in 0..SAMPLES / 4 {
            let range = driver.address_reserve(0, 2 * all)?;
            let pages = self.pages(PAGES - 1, PhysicalFlags::default())?;
            self.keep_busy()?;
            let one = create.time(|| driver.physical_create(0, self.page, PhysicalFlags::default()))?;
            let pages = [pages, vec![one]].concat();
            driver.stream_synchronize(self.stream)?;
            self.keep_busy()?;
            map.time(|| self.map(range, &pages))?;
            open.time(|| self.open(range, all))?;
            let second = range.offset(all);
            alias.time(|| self.map(second, &pages).and_then(|()| self.open(second, all)))?;
            driver.stream_synchronize(self.stream)?;
            self.keep_busy()?;
            unmap.time(|| driver.memory_unmap(range, all))?;
            driver.memory_unmap(second, all)?;
            driver.stream_synchronize(self.stream)?;
            self.keep_busy()?;
            release.time(|| driver.physical_release(one))?;
            for page in &pages[..pages.len() - 1] {
                driver.physical_release(*page)?;
            }
            driver.stream_synchronize(self.stream)?;
            driver.address_free(range, 2 * all)?;
        }
        self.report("_at_work", [create, map, open, alias, unmap, release]);
        Ok(())
    }

    fn plain_memory(&self) -> Result<()> {
        for (suffix, bytes) in [("_2_mib", 2 * MIB), ("_128_mib", 128 * MIB)] {
            let [mut allocate, mut free] = ["memory_allocate", "memory_free"].map(Samples::new);
            for _ in 0..SAMPLES {
                let pointer = allocate.time(|| self.driver.memory_allocate(0, bytes))?;
                free.time(|| self.driver.memory_free(pointer))?;
            }
            self.report(suffix, [allocate, free]);
        }
        let [mut allocate, mut free] = ["memory_allocate", "memory_free"].map(Samples::new);
        for _ in 0..SAMPLES / 4 {
            self.keep_busy()?;
            let pointer = allocate.time(|| self.driver.memory_allocate(0, 2 * MIB))?;
            free.time(|| self.driver.memory_free(pointer))?;
            self.driver.stream_synchronize(self.stream)?;
        }
        self.report("_2_mib_at_work", [allocate, free]);
        Ok(())
    }

    fn pool_memory(&self) -> Result<()> {
        let pool = self.driver.pool_create(0)?;
        for (suffix, bytes) in [("_4_kib", 4096), ("_32_mib", 32 * MIB)] {
            let [mut allocate, mut free] = ["memory_allocate_async", "memory_free_async"].map(Samples::new);
            for _ in 0..SAMPLES {
                let pointer =
                    allocate.time(|| self.driver.memory_allocate_async(pool, bytes, self.stream))?;
                free.time(|| self.driver.memory_free_async(pointer, self.stream))?;
            }
            self.report(suffix, [allocate, free]);
        }
        self.measure("pool_usage", SAMPLES, || self.driver.pool_usage(pool).map(drop))?;
        self.driver.stream_synchronize(self.stream)?;
        self.measure("pool_trim", 1, || self.driver.pool_trim(pool, 0))?;
        self.driver.pool_destroy(pool)
    }

    fn events(&self) -> Result<()> {
        let driver = &self.driver;
        let other = driver.stream_create(0, 0)?;
        let event = driver.event_create(0, EventFlags::default())?;
        self.measure("event_record", SAMPLES, || driver.event_record(event, self.stream))?;
        driver.stream_synchronize(self.stream)?;
        self.measure("event_query_complete", SAMPLES, || driver.event_query(event).map(drop))?;
        self.measure("event_synchronize_complete", SAMPLES, || driver.event_synchronize(event))?;
        self.measure("stream_wait_event_complete", SAMPLES, || driver.stream_wait_event(other, event))?;
        let [mut query, mut wait] = ["event_query_pending", "stream_wait_event_pending"].map(Samples::new);
        for _ in 0..SAMPLES / 4 {
            self.keep_busy()?;
            driver.event_record(event, self.stream)?;
            query.time(|| driver.event_query(event))?;
            wait.time(|| driver.stream_wait_event(other, event))?;
            driver.stream_synchronize(other)?;
        }
        self.report("", [query, wait]);
        self.measure("event_create_and_destroy", SAMPLES, || {
            driver.event_destroy(driver.event_create(0, EventFlags::default())?)
        })?;
        self.measure("thread_exchange_capture_mode", SAMPLES, || {
            driver.thread_exchange_capture_mode(CaptureMode::Global).map(drop)
        })?;
        driver.event_destroy(event)?;
        driver.stream_destroy(other)
    }

    fn captures(&self) -> Result<()> {
        let driver = &self.driver;
        self.measure("stream_capture_info_idle", SAMPLES, || {
            driver.stream_capture_info(self.stream).map(drop)
        })?;
        driver.stream_begin_capture(self.stream, CaptureMode::Relaxed)?;
        for _ in 0..1000 {
            self.keep_busy()?;
        }
        let info = driver.stream_capture_info(self.stream)?;
        self.measure("stream_capture_info_capturing", SAMPLES, || {
            driver.stream_capture_info(self.stream).map(drop)
        })?;
        if let (Some(graph), [node]) = (info.graph, &info.dependencies[..]) {
            let mut node = *node;
            self.measure("graph_node_predecessors", SAMPLES, || {
                node = driver.graph_node_predecessors(graph, node)?[0];
                Ok(())
            })?;
        }
        driver.graph_destroy(driver.stream_end_capture(self.stream)?)
    }

    fn sharing(&self) -> Result<()> {
        let driver = &self.driver;
        let shared = PhysicalFlags { share_as: Some(HandleType::FileDescriptor), ..PhysicalFlags::default() };
        let [mut export, mut import] = ["physical_export_file", "physical_import_file"].map(Samples::new);
        for _ in 0..SAMPLES {
            let page = driver.physical_create(0, self.page, shared)?;
            let handle = export.time(|| driver.physical_export(page))?;
            let imported = import.time(|| driver.physical_import(0, self.page, &handle))?;
            driver.physical_release(imported)?;
            driver.physical_release(page)?;
        }
        self.report("", [export, import]);
        Ok(())
    }

    fn pinned_memory(&self) -> Result<()> {
        let method = |threads: Option<u32>| match threads {
            None => HostMethod::Allocate,
            Some(prefault_threads) => HostMethod::Register { prefault_threads },
        };
        for (suffix, bytes) in [("_1_mib", MIB), ("_256_mib", 256 * MIB)] {
            for (allocate, free, threads) in [
                ("host_allocate", "host_free", None),
                ("host_register_0_threads", "host_unregister_0_threads", Some(0)),
                ("host_register_1_thread", "host_unregister_1_thread", Some(1)),
                ("host_register_8_threads", "host_unregister_8_threads", Some(8)),
            ] {
                let [mut allocate, mut free] = [allocate, free].map(Samples::new);
                for _ in 0..5 {
                    let flags = HostFlags { method: method(threads), ..HostFlags::default() };
                    let pointer = allocate.time(|| self.driver.host_allocate(bytes, flags))?;
                    free.time(|| self.driver.host_free(pointer))?;
                }
                self.report(suffix, [allocate, free]);
            }
        }
        Ok(())
    }
}
