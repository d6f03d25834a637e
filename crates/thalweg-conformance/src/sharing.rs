//! Memory that is exported and imported. One process plays both roles, as far as a driver allows it.

use std::os::fd::OwnedFd;

use thalweg_driver::{
    Code, DevicePointer, HandleType, IpcHandle, MemoryAccess, PhysicalFlags, PhysicalHandle, ShareableHandle,
};

use super::fixture::{Fixture, check_refused, equal, holds, refused_argument, skip};
use super::{CaseResult, Kernel, KernelArguments, Stop, group};

group! {
    "sharing":
    an_exported_file_is_the_same_memory,
    an_exported_fabric_handle_is_the_same_memory,
    imported_memory_outlives_the_exporter,
    only_what_was_made_to_be_shared_is_exported,
    what_is_no_memory_is_not_imported,
    memory_that_network_adapters_reach_is_memory,
    plain_memory_is_opened_elsewhere,
    only_whole_plain_memory_is_exported,
    what_is_no_handle_is_not_opened,
    an_address_is_in_its_allocation_and_no_other,
}

/// Returns a page that is made with the flags, or skips the case with the reason.
fn page_with(fixture: &Fixture, flags: PhysicalFlags) -> CaseResult<(PhysicalHandle, u64)> {
    let properties = fixture.driver.device_properties(fixture.device)?;
    let is_possible = properties.virtual_memory
        && match flags.share_as {
            Some(HandleType::FileDescriptor) => properties.shares_file_descriptors,
            Some(HandleType::Fabric) => properties.shares_fabric_handles,
            None => true,
        }
        && (properties.gpu_direct_rdma_with_virtual_memory || !flags.gpu_direct_rdma);
    if !is_possible {
        return Err(Stop::Skipped(format!("the device has no physical memory with {flags:?}")));
    }
    let page = properties.virtual_memory_granularity_bytes;
    match fixture.driver.physical_create(fixture.device, page, flags) {
        Ok(physical) => Ok((physical, page)),
        // Fabric handles need a service that this machine may not run.
        Err(error) if flags.share_as == Some(HandleType::Fabric) => {
            Err(Stop::Skipped(format!("fabric handles are not set up: {error}")))
        }
        Err(error) => Err(error.into()),
    }
}

fn shared(share_as: HandleType) -> PhysicalFlags {
    PhysicalFlags { share_as: Some(share_as), ..PhysicalFlags::default() }
}

/// Reserves a range for a page, maps the memory there, and lets the device access it.
fn map(fixture: &Fixture, physical: PhysicalHandle, page: u64) -> CaseResult<DevicePointer> {
    let range = fixture.address_reserve(fixture.device, page)?;
    fixture.memory_map(range, page, physical, 0)?;
    fixture.memory_set_access(range, page, fixture.device, MemoryAccess::ReadWrite)?;
    Ok(range)
}

fn unmap(fixture: &Fixture, range: DevicePointer, page: u64) -> CaseResult {
    fixture.driver.memory_unmap(range, page)?;
    Ok(fixture.driver.address_free(range, page)?)
}

/// Writes through one address and reads through another, in stream order.
fn is_one_memory(fixture: &Fixture, one: DevicePointer, other: DevicePointer) -> CaseResult {
    let stream = fixture.stream()?;
    for (from, to, value) in [(one, other, 3), (other, one, 90)] {
        fixture.launch(&stream, Kernel::Iota, KernelArguments::new(from, 64, value))?;
        let seen = fixture.words_on(stream.handle, to, 64)?;
        equal(seen, (value..value + 64).collect(), "shared memory, written by one and read by the other")?;
    }
    Ok(())
}

fn exported_is_the_same(fixture: &Fixture, share_as: HandleType) -> CaseResult {
    let (physical, page) = page_with(fixture, shared(share_as))?;
    let handle = fixture.physical_export(physical)?;
    equal(handle.handle_type(), share_as, "the kind of the exported handle")?;
    let imported = fixture.physical_import(fixture.device, page, &handle)?;
    let (one, other) = (map(fixture, physical, page)?, map(fixture, imported, page)?);
    is_one_memory(fixture, one, other)?;
    unmap(fixture, one, page)?;
    unmap(fixture, other, page)?;
    fixture.physical_release(imported)?;
    Ok(fixture.physical_release(physical)?)
}

fn an_exported_file_is_the_same_memory(fixture: &Fixture) -> CaseResult {
    exported_is_the_same(fixture, HandleType::FileDescriptor)
}

fn an_exported_fabric_handle_is_the_same_memory(fixture: &Fixture) -> CaseResult {
    exported_is_the_same(fixture, HandleType::Fabric)
}

fn imported_memory_outlives_the_exporter(fixture: &Fixture) -> CaseResult {
    let (physical, page) = page_with(fixture, shared(HandleType::FileDescriptor))?;
    let one = map(fixture, physical, page)?;
    let imported = fixture.physical_import(fixture.device, page, &fixture.physical_export(physical)?)?;
    let stream = fixture.stream()?;
    fixture.launch(&stream, Kernel::Iota, KernelArguments::new(one, 64, 8))?;
    fixture.stream_synchronize(stream.handle)?;
    unmap(fixture, one, page)?;
    fixture.physical_release(physical)?;
    let other = map(fixture, imported, page)?;
    let seen = fixture.words_on(stream.handle, other, 64)?;
    unmap(fixture, other, page)?;
    fixture.physical_release(imported)?;
    equal(seen, (8..72).collect(), "imported memory after the exporter let go of it")
}

fn only_what_was_made_to_be_shared_is_exported(fixture: &Fixture) -> CaseResult {
    let (physical, _) = page_with(fixture, PhysicalFlags::default())?;
    let exported = fixture.driver.physical_export(physical);
    fixture.driver.physical_release(physical)?;
    refused_argument(exported, "physical_export of memory that was not made to be shared")?;
    refused_argument(fixture.driver.physical_export(physical), "physical_export of memory that is gone")
}

fn what_is_no_memory_is_not_imported(fixture: &Fixture) -> CaseResult {
    let (physical, page) = page_with(fixture, shared(HandleType::FileDescriptor))?;
    let handle = fixture.physical_export(physical)?;
    refused_argument(
        fixture.physical_import(fixture.device, page + 1, &handle),
        "physical_import of a part of a page",
    )?;
    refused_argument(fixture.physical_import(u32::MAX, page, &handle), "physical_import for no device")?;
    fixture.physical_release(physical)?;
    let file = std::fs::File::open("/dev/null").map_err(|error| Stop::Skipped(error.to_string()))?;
    let import =
        fixture.physical_import(fixture.device, page, &ShareableHandle::FileDescriptor(OwnedFd::from(file)));
    holds(import.is_err(), "physical_import of a file that is not memory is an error")
}

fn memory_that_network_adapters_reach_is_memory(fixture: &Fixture) -> CaseResult {
    let flags = PhysicalFlags { gpu_direct_rdma: true, ..PhysicalFlags::default() };
    let (physical, page) = page_with(fixture, flags)?;
    let range = map(fixture, physical, page)?;
    is_one_memory(fixture, range, range)?;
    unmap(fixture, range, page)?;
    Ok(fixture.driver.physical_release(physical)?)
}

fn plain_memory_is_opened_elsewhere(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.buffer(256)?;
    let handle = fixture.ipc_export(buffer.pointer)?;
    equal(fixture.ipc_export(buffer.pointer)?, handle, "the handle of a second export")?;
    let opened = match fixture.ipc_open(fixture.device, handle) {
        Ok(opened) => opened,
        // A GPU opens it only in another process.
        Err(error) if error.code() == Code::InvalidContext => {
            return skip(format!("only another process can open it: {error}"));
        }
        Err(error) => return Err(error.into()),
    };
    is_one_memory(fixture, buffer.pointer, opened)?;
    let (start, bytes) = fixture.address_range(opened)?;
    let ahead = opened.address() - start.address();
    holds(bytes - ahead >= fixture.address_range(buffer.pointer)?.1, "all of the memory is opened")?;
    refused_argument(fixture.memory_free(opened), "memory_free of memory that was opened")?;
    refused_argument(fixture.memory_free(buffer.pointer), "memory_free of memory that is open")?;
    is_one_memory(fixture, opened, buffer.pointer)?;
    fixture.ipc_close(opened)?;
    refused_argument(fixture.address_range(opened), "address_range of memory that was closed")?;
    refused_argument(fixture.ipc_close(opened), "ipc_close twice")
}

fn only_whole_plain_memory_is_exported(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.buffer(1024)?;
    refused_argument(fixture.ipc_export(buffer.pointer.offset(512)), "ipc_export inside an allocation")?;
    refused_argument(fixture.ipc_export(DevicePointer::new(0)), "ipc_export of no memory")?;
    refused_argument(fixture.ipc_close(buffer.pointer), "ipc_close of memory that was not opened")?;
    let gone = buffer.pointer;
    drop(buffer);
    refused_argument(fixture.ipc_export(gone), "ipc_export of memory that was freed")
}

fn what_is_no_handle_is_not_opened(fixture: &Fixture) -> CaseResult {
    let opened = fixture.driver.ipc_open(fixture.device, IpcHandle([7; 64]));
    let codes =
        [Code::InvalidValue, Code::InvalidHandle, Code::InvalidContext, Code::InvalidDevice, Code::MapFailed];
    check_refused(opened, &codes, "ipc_open of bytes that are not a handle")
}

fn an_address_is_in_its_allocation_and_no_other(fixture: &Fixture) -> CaseResult {
    let bytes = 3 << 20;
    let [pointer, other] =
        [fixture.memory_allocate(fixture.device, bytes)?, fixture.memory_allocate(fixture.device, 512)?];
    for offset in [0, 1, bytes - 1] {
        let range = fixture.address_range(pointer.offset(offset))?;
        equal(range, (pointer, bytes), "the allocation around an address")?;
    }
    let (start, around) = fixture.address_range(other)?;
    equal((start, around >= 512), (other, true), "the allocation beside it")?;
    fixture.memory_free(other)?;
    fixture.memory_free(pointer)?;
    for gone in [pointer, pointer.offset(bytes - 1), DevicePointer::new(0), DevicePointer::new(u64::MAX)] {
        refused_argument(
            fixture.address_range(gone),
            &format!("address_range of {gone:?}, which is not memory"),
        )?;
    }
    Ok(())
}
