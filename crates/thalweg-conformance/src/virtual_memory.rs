//! Virtual memory: addresses, physical memory, and mappings between them.

use thalweg_driver::{
    CaptureMode, Code, DevicePointer, Endpoint, MemoryAccess, PhysicalFlags, PhysicalHandle, Result,
};

use super::fixture::{Fixture, check_refused, equal, refused_argument, skip};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "virtual_memory":
    mapped_memory_is_memory,
    remapped_memory_keeps_its_content,
    two_mappings_are_one_memory,
    parts_of_physical_memory_are_mapped,
    memory_outlives_its_handle,
    several_mappings_make_one_range,
    wrong_sizes_are_refused,
    a_range_is_mapped_once,
    unmapped_memory_is_not_there,
    handles_are_given_up_once,
    a_mapping_is_unmapped_whole,
    aliases_are_ordered_by_streams,
    aliases_are_ordered_in_a_graph,
    memory_moves_while_work_uses_it,
    pages_are_mapped_one_by_one_and_opened_at_once,
    captures_allow_all_of_it,
    copies_of_another_device_need_access,
}

/// A reserved range and physical memory, released at the end of the case.
struct Pages<'f> {
    fixture: &'f Fixture,
    page: u64,
    base: DevicePointer,
    pages: u64,
    physical: Vec<PhysicalHandle>,
}

impl<'f> Pages<'f> {
    fn reserve(fixture: &'f Fixture, pages: u64) -> CaseResult<Self> {
        let properties = fixture.driver.device_properties(fixture.device)?;
        if !properties.virtual_memory {
            skip("the device has no virtual memory management")?;
        }
        let page = properties.virtual_memory_granularity_bytes;
        let base = fixture.driver.address_reserve(fixture.device, pages * page)?;
        Ok(Self { fixture, page, base, pages, physical: Vec::new() })
    }

    fn create(&mut self, pages: u64) -> Result<PhysicalHandle> {
        let physical = self.fixture.driver.physical_create(
            self.fixture.device,
            pages * self.page,
            PhysicalFlags::default(),
        )?;
        self.physical.push(physical);
        Ok(physical)
    }

    fn at(&self, page: u64) -> DevicePointer {
        self.base.offset(page * self.page)
    }

    /// Maps pages of the physical memory and lets the device access them.
    fn map(&self, at: u64, pages: u64, physical: PhysicalHandle, from: u64) -> Result<()> {
        let driver = self.fixture.driver();
        driver.memory_map(self.at(at), pages * self.page, physical, from * self.page)?;
        driver.memory_set_access(self.at(at), pages * self.page, self.fixture.device, MemoryAccess::ReadWrite)
    }

    fn unmap(&self, at: u64, pages: u64) -> Result<()> {
        self.fixture.driver.memory_unmap(self.at(at), pages * self.page)
    }

    fn write(&self, pointer: DevicePointer, value: u32) -> Result<()> {
        let stream = self.fixture.stream()?;
        self.fixture.launch(&stream, Kernel::Iota, KernelArguments::new(pointer, 256, value))?;
        self.fixture.driver.stream_synchronize(stream.handle)
    }

    #[track_caller]
    fn expect(&self, pointer: DevicePointer, value: u32, what: &str) -> CaseResult {
        let stream = self.fixture.stream()?;
        let seen = self.fixture.words_on(stream.handle, pointer, 256)?;
        equal(seen, (value..value + 256).collect(), what)
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        let driver = self.fixture.driver();
        for &physical in &self.physical {
            let _ = driver.physical_release(physical);
        }
        // A case that ended early may have left mappings of one page or of two.
        for page in 0..self.pages {
            if self.unmap(page, 1).is_err() {
                let _ = self.unmap(page, 2);
            }
        }
        let _ = driver.address_free(self.base, self.pages * self.page);
    }
}

fn mapped_memory_is_memory(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let physical = pages.create(1)?;
    pages.map(1, 1, physical, 0)?;
    pages.write(pages.at(1), 5)?;
    pages.expect(pages.at(1), 5, "the start of a mapped page")?;
    let last = pages.at(2).address() - 1024;
    pages.write(DevicePointer::new(last), 9)?;
    pages.expect(DevicePointer::new(last), 9, "the end of a mapped page")?;
    pages.unmap(1, 1)?;
    Ok(())
}

fn remapped_memory_keeps_its_content(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 4)?;
    let physical = pages.create(1)?;
    pages.map(0, 1, physical, 0)?;
    pages.write(pages.at(0), 77)?;
    pages.unmap(0, 1)?;
    pages.map(3, 1, physical, 0)?;
    pages.expect(pages.at(3), 77, "content after the memory moved to another address")?;
    pages.unmap(3, 1)?;
    Ok(())
}

fn two_mappings_are_one_memory(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let physical = pages.create(1)?;
    pages.map(0, 1, physical, 0)?;
    pages.map(1, 1, physical, 0)?;
    pages.write(pages.at(0), 11)?;
    pages.expect(pages.at(1), 11, "the second address of memory that was written through the first")?;
    pages.write(pages.at(1), 12)?;
    pages.unmap(1, 1)?;
    pages.expect(pages.at(0), 12, "the first address after the second was unmapped")?;
    pages.unmap(0, 1)?;
    Ok(())
}

/// CUDA still maps only from offset 0 (`cuMemMap`: "offset - must be zero").
fn parts_of_physical_memory_are_mapped(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 4)?;
    let physical = pages.create(2)?;
    pages.map(0, 2, physical, 0)?;
    pages.write(pages.at(1), 21)?;
    match pages.map(3, 1, physical, 1) {
        Ok(()) => {
            pages.expect(pages.at(3), 21, "the second page of the memory, mapped alone")?;
            pages.unmap(3, 1)?;
            pages.unmap(0, 2)?;
            Ok(())
        }
        Err(error) if error.is_invalid_argument() || error.is_not_supported() => {
            pages.unmap(0, 2)?;
            skip(format!("the driver maps from offset 0 only: {error}"))
        }
        Err(error) => Err(error.into()),
    }
}

fn memory_outlives_its_handle(fixture: &Fixture) -> CaseResult {
    let pages = Pages::reserve(fixture, 1)?;
    let physical = fixture.driver.physical_create(fixture.device, pages.page, PhysicalFlags::default())?;
    pages.map(0, 1, physical, 0)?;
    fixture.driver.physical_release(physical)?;
    pages.write(pages.at(0), 31)?;
    pages.expect(pages.at(0), 31, "mapped memory whose handle was given up")?;
    pages.unmap(0, 1)?;
    Ok(())
}

fn several_mappings_make_one_range(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let (first, second) = (pages.create(1)?, pages.create(1)?);
    pages.map(0, 1, first, 0)?;
    pages.map(1, 1, second, 0)?;
    // A kernel and a copy that cross the border between the two.
    let seam = DevicePointer::new(pages.at(1).address() - 512);
    pages.write(seam, 41)?;
    pages.expect(seam, 41, "a range over two mappings")?;
    pages.unmap(0, 1)?;
    pages.unmap(1, 1)?;
    Ok(())
}

fn wrong_sizes_are_refused(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let (driver, device, page) = (fixture.driver(), fixture.device, pages.page);
    let physical = pages.create(1)?;
    let no = &[Code::InvalidValue];
    for bytes in [0, 1, page + 1] {
        check_refused(
            driver.address_reserve(device, bytes),
            no,
            "address_reserve of no multiple of the granularity",
        )?;
        check_refused(
            driver.physical_create(device, bytes, PhysicalFlags::default()),
            no,
            "physical_create of no multiple of the granularity",
        )?;
        let map = driver.memory_map(pages.at(0), bytes, physical, 0);
        // A GPU reports that it does not support mapping a part of a page.
        let part = &[Code::InvalidValue, Code::NotSupported];
        check_refused(map, part, "memory_map of no multiple of the granularity")?;
    }
    let map = driver.memory_map(pages.at(0), 2 * page, physical, 0);
    check_refused(map, no, "memory_map of more than the physical memory has")?;
    let map = driver.memory_map(pages.at(0).offset(1), page, physical, 0);
    check_refused(map, no, "memory_map at an address inside a page")
}

fn a_range_is_mapped_once(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let physical = pages.create(1)?;
    pages.map(0, 1, physical, 0)?;
    let twice = fixture.driver.memory_map(pages.at(0), pages.page, physical, 0);
    let codes = &[Code::AlreadyMapped, Code::InvalidValue, Code::MapFailed];
    check_refused(twice, codes, "memory_map where something is mapped")?;
    pages.unmap(0, 1)?;
    // Nothing is reserved there: `buffer` is plain memory.
    let buffer = fixture.buffer(64)?;
    let map = fixture.driver.memory_map(buffer.pointer, pages.page, physical, 0);
    check_refused(map, codes, "memory_map at an address that is not reserved")
}

fn unmapped_memory_is_not_there(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let (driver, page) = (fixture.driver(), pages.page);
    let physical = pages.create(1)?;
    let codes = &[Code::InvalidValue, Code::NotMapped, Code::UnmapFailed];
    check_refused(driver.memory_unmap(pages.at(0), page), codes, "memory_unmap where nothing is mapped")?;
    let access = driver.memory_set_access(pages.at(0), page, fixture.device, MemoryAccess::ReadWrite);
    check_refused(access, codes, "memory_set_access where nothing is mapped")?;
    pages.map(0, 1, physical, 0)?;
    let free = driver.address_free(pages.base, 2 * page);
    check_refused(free, codes, "address_free while something is mapped")?;
    pages.write(pages.at(0), 51)?;
    pages.expect(pages.at(0), 51, "mapped memory after a refused address_free")?;
    pages.unmap(0, 1)?;
    let stream = fixture.stream()?;
    let read = fixture.words_on(stream.handle, pages.at(0), 1);
    check_refused(read, codes, "a copy from memory that was unmapped")
}

fn handles_are_given_up_once(fixture: &Fixture) -> CaseResult {
    let pages = Pages::reserve(fixture, 2)?;
    let physical = fixture.physical_create(fixture.device, pages.page, PhysicalFlags::default())?;
    fixture.physical_release(physical)?;
    refused_argument(fixture.physical_release(physical), "physical_release twice")?;
    let map = fixture.memory_map(pages.at(0), pages.page, physical, 0);
    refused_argument(map, "memory_map of memory that was given up")?;
    let range = fixture.address_reserve(fixture.device, pages.page)?;
    fixture.address_free(range, pages.page)?;
    refused_argument(fixture.address_free(range, pages.page), "address_free twice")
}

fn a_mapping_is_unmapped_whole(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let physical = pages.create(2)?;
    pages.map(0, 2, physical, 0)?;
    let half = fixture.driver.memory_unmap(pages.at(0), pages.page);
    check_refused(half, &[Code::InvalidValue, Code::UnmapFailed], "memory_unmap of half a mapping")?;
    pages.write(pages.at(1), 61)?;
    pages.expect(pages.at(1), 61, "the mapping after a refused unmap")?;
    pages.unmap(0, 2)?;
    Ok(())
}

/// Work at two addresses of the same memory, ordered only by streams and events.
fn aliases_are_ordered_by_streams(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let physical = pages.create(1)?;
    pages.map(0, 1, physical, 0)?;
    pages.map(1, 1, physical, 0)?;
    let (one, two) = (fixture.stream()?, fixture.stream()?);
    let event = fixture.event()?;
    for round in 0..20 {
        let slow = KernelArguments::new(pages.at(0), 1024, round).with_delay_us(300);
        fixture.launch(&one, Kernel::Constant, slow)?;
        // The same stream, through the other address; then another stream, through the first.
        fixture.launch(&one, Kernel::Add, KernelArguments::new(pages.at(1), 1024, 100).with_delay_us(300))?;
        fixture.driver.event_record(event.handle, one.handle)?;
        fixture.driver.stream_wait_event(two.handle, event.handle)?;
        fixture.launch(&two, Kernel::Add, KernelArguments::new(pages.at(0), 1024, 1000))?;
        let seen = fixture.words_on(two.handle, pages.at(1), 1024)?;
        equal(seen, vec![1100 + round; 1024], "memory that was used through two addresses")?;
    }
    pages.unmap(0, 2)?;
    Ok(())
}

/// Aliases within one graph: a capture's memory is remapped while its replays still use the old addresses too.
fn aliases_are_ordered_in_a_graph(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 2)?;
    let physical = pages.create(1)?;
    pages.map(0, 1, physical, 0)?;
    let stream = fixture.stream()?;
    let graph = fixture.capture(&stream, CaptureMode::Relaxed, || {
        fixture.launch(&stream, Kernel::Constant, KernelArguments::new(pages.at(0), 1024, 5))?;
        // The memory gets its second address in the middle of the capture.
        pages.map(1, 1, physical, 0)?;
        for (address, number) in [(1, 100), (0, 1_000), (1, 10_000)] {
            let slow = KernelArguments::new(pages.at(address), 1024, number).with_delay_us(100);
            fixture.launch(&stream, Kernel::Add, slow)?;
        }
        Ok(())
    })?;
    let exec = fixture.graph_instantiate(graph.handle, fixture.device)?;
    for round in 0..20 {
        fixture.graph_launch(exec, stream.handle)?;
        fixture.launch(&stream, Kernel::Add, KernelArguments::new(pages.at(round % 2), 1024, 1))?;
        let seen = fixture.words_on(stream.handle, pages.at((round + 1) % 2), 1024)?;
        equal(seen, vec![11_106; 1024], "memory that a graph uses through two addresses")?;
    }
    fixture.graph_exec_destroy(exec)?;
    pages.unmap(0, 2)?;
    Ok(())
}

/// The method by which an allocator makes room without waiting: pages get a second address while work at the first is under way,
/// and lose the first when that work is complete and work at the second is under way.
fn memory_moves_while_work_uses_it(fixture: &Fixture) -> CaseResult {
    let mut pages = Pages::reserve(fixture, 4)?;
    let physical = [pages.create(1)?, pages.create(1)?];
    pages.map(0, 1, physical[0], 0)?;
    let stream = fixture.stream()?;
    let event = fixture.event()?;
    fixture.launch(&stream, Kernel::Iota, KernelArguments::new(pages.at(0), 1024, 7).with_delay_us(3_000))?;
    fixture.driver.event_record(event.handle, stream.handle)?;
    pages.map(2, 1, physical[0], 0)?;
    pages.map(3, 1, physical[1], 0)?;
    fixture.launch(&stream, Kernel::Add, KernelArguments::new(pages.at(2), 1024, 1).with_delay_us(3_000))?;
    fixture.driver.event_synchronize(event.handle)?;
    pages.unmap(0, 1)?;
    fixture.launch(&stream, Kernel::Add, KernelArguments::new(pages.at(2), 1024, 1))?;
    let seen = fixture.words_on(stream.handle, pages.at(2), 1024)?;
    equal(seen, (9..1033).collect(), "memory that moved while work used it")?;
    pages.unmap(2, 2)?;
    Ok(())
}

/// One call makes many mappings accessible to a device, and one call unmaps them.
fn pages_are_mapped_one_by_one_and_opened_at_once(fixture: &Fixture) -> CaseResult {
    const COUNT: u64 = 5;
    let mut pages = Pages::reserve(fixture, COUNT + 1)?;
    for page in 0..COUNT {
        let physical = pages.create(1)?;
        fixture.memory_map(pages.at(page), pages.page, physical, 0)?;
    }
    let all = COUNT * pages.page;
    fixture.memory_set_access(pages.base, all, fixture.device, MemoryAccess::ReadWrite)?;
    for page in 1..COUNT {
        let seam = DevicePointer::new(pages.at(page).address() - 512);
        pages.write(seam, page as u32)?;
        pages.expect(seam, page as u32, "a range over a seam")?;
    }
    let more = fixture.memory_unmap(pages.base, all + pages.page);
    check_refused(more, &[Code::InvalidValue, Code::UnmapFailed], "memory_unmap of more than is mapped")?;
    pages.expect(DevicePointer::new(pages.at(1).address() - 512), 1, "mappings after a refused unmap")?;
    pages.unmap(0, COUNT)?;
    Ok(())
}

fn captures_allow_all_of_it(fixture: &Fixture) -> CaseResult {
    for mode in [CaptureMode::Relaxed, CaptureMode::ThreadLocal, CaptureMode::Global] {
        let stream = fixture.stream()?;
        let buffer = fixture.iota(8, 0)?;
        let mut kept = None;
        let graph = fixture.capture(&stream, mode, || {
            fixture.add(&stream, &buffer, 1)?;
            let mut pages = Pages::reserve(fixture, 2)?;
            let physical = pages.create(1)?;
            pages.map(0, 1, physical, 0)?;
            pages.map(1, 1, physical, 0)?;
            fixture.launch(&stream, Kernel::Constant, KernelArguments::new(pages.at(1), 8, 5))?;
            pages.unmap(0, 1)?;
            kept = Some(pages);
            Ok(())
        })?;
        equal(fixture.driver.graph_describe(graph.handle)?.nodes.len(), 2, "the nodes of the capture")?;
        graph.replay(&stream, 2)?;
        equal(buffer.words()?, (2..10).collect(), "plain memory after two launches")?;
        if let Some(pages) = &kept {
            let seen = fixture.words_on(stream.handle, pages.at(1), 8)?;
            equal(seen, vec![5; 8], "memory that was mapped while the graph was captured")?;
        }
    }
    Ok(())
}

/// A stream of any device may copy plain memory. Mapped memory has to be made accessible to that device, which peer access does
/// not do.
fn copies_of_another_device_need_access(fixture: &Fixture) -> CaseResult {
    let (driver, device) = (fixture.driver(), fixture.device);
    let Some(other) =
        (0..driver.device_count()).find(|&other| driver.can_access_peer(other, device) == Ok(true))
    else {
        return skip("no other device that could reach this one");
    };
    let mut pages = Pages::reserve(fixture, 1)?;
    let physical = pages.create(1)?;
    pages.map(0, 1, physical, 0)?;
    pages.write(pages.at(0), 71)?;
    let (own, elsewhere) = (fixture.stream()?, fixture.stream_of(other)?);
    let buffer = driver.memory_allocate(other, 1024)?;
    let copy = |stream, source, target| {
        fixture.copy(stream, Endpoint::Device(target), Endpoint::Device(source), 1024)
    };
    let expect = |first, what| {
        equal(fixture.words_on(elsewhere.handle, buffer, 256)?, (first..first + 256).collect(), what)
    };
    let outcome = (|| {
        copy(&own, pages.at(0), buffer)?;
        driver.stream_synchronize(own.handle)?;
        expect(71, "plain memory that a stream of another device wrote")?;
        let no = &[Code::InvalidValue];
        check_refused(
            copy(&elsewhere, pages.at(0), buffer),
            no,
            "a copy from pages that are not opened to the device",
        )?;
        check_refused(
            copy(&elsewhere, buffer, pages.at(0)),
            no,
            "a copy to pages that are not opened to the device",
        )?;
        driver.memory_set_access(pages.at(0), pages.page, other, MemoryAccess::ReadWrite)?;
        pages.write(pages.at(0), 81)?;
        copy(&elsewhere, pages.at(0), buffer)?;
        expect(81, "what was copied from pages that were opened")
    })();
    driver.memory_free(buffer)?;
    outcome
}
