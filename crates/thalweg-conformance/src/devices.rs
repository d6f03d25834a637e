//! Devices, their properties, contexts, free memory and peers.

use thalweg_driver::{CaptureMode, Code, EventFlags, Image, MemoryAccess, PhysicalFlags};

use super::fixture::{Fixture, check_refused, equal, holds, skip};
use super::{CaseResult, group};

group! {
    "devices":
    properties_are_sane,
    an_unknown_device_is_refused,
    a_context_starts_once,
    free_memory_follows_allocation,
    a_device_is_no_peer_of_itself,
    peer_access_is_switched_on_and_off,
    events_stay_on_their_device,
    a_wait_may_cross_devices,
}

fn properties_are_sane(fixture: &Fixture) -> CaseResult {
    holds(fixture.device_count() > fixture.device, "the count of devices covers the device under test")?;
    holds(!fixture.name().is_empty(), "the driver has a name")?;
    let properties = fixture.device_properties(fixture.device)?;
    holds(!properties.name.is_empty(), "the device has a name")?;
    holds(properties.compute_capability.major >= 1, "the compute capability starts at 1.0")?;
    holds(properties.total_memory_bytes > 0, "the device has memory")?;
    holds(properties.multi_processor_count > 0, "the device has a multiprocessor")?;
    holds(properties.warp_size.is_power_of_two(), "the size of a warp is a power of two")?;
    holds(properties.max_threads_per_block >= properties.warp_size, "a block has room for a warp")?;
    let (least, greatest) = properties.stream_priority_range;
    holds(greatest <= least, "the greatest priority is the smaller number")?;
    if properties.virtual_memory {
        let granularity = properties.virtual_memory_granularity_bytes;
        holds(granularity.is_power_of_two() && granularity >= 4096, "the granularity is a size of a page")?;
    }
    equal(fixture.device_properties(fixture.device)?, properties, "the properties, asked for twice")
}

fn an_unknown_device_is_refused(fixture: &Fixture) -> CaseResult {
    let here = fixture.device;
    for unknown in [fixture.device_count(), u32::MAX] {
        let no = &[Code::InvalidDevice];
        check_refused(fixture.device_properties(unknown), no, "device_properties")?;
        check_refused(fixture.context_is_active(unknown), no, "context_is_active")?;
        check_refused(fixture.context_initialize(unknown), no, "context_initialize")?;
        check_refused(fixture.device_synchronize(unknown), no, "device_synchronize")?;
        check_refused(fixture.memory_info(unknown), no, "memory_info")?;
        check_refused(fixture.can_access_peer(unknown, here), no, "can_access_peer")?;
        check_refused(fixture.can_access_peer(here, unknown), no, "can_access_peer")?;
        check_refused(fixture.enable_peer_access(here, unknown), no, "enable_peer_access")?;
        check_refused(fixture.disable_peer_access(unknown, here), no, "disable_peer_access")?;
        check_refused(fixture.default_stream(unknown), no, "default_stream")?;
        check_refused(fixture.stream_create(unknown, 0), no, "stream_create")?;
        check_refused(fixture.event_create(unknown, EventFlags::default()), no, "event_create")?;
        check_refused(fixture.memory_allocate(unknown, 256), no, "memory_allocate")?;
        check_refused(fixture.module_load(unknown, Image::Ptx(super::PTX)), no, "module_load")?;
        let properties = fixture.device_properties(here)?;
        if properties.virtual_memory {
            let bytes = properties.virtual_memory_granularity_bytes;
            check_refused(fixture.address_reserve(unknown, bytes), no, "address_reserve")?;
            check_refused(
                fixture.physical_create(unknown, bytes, PhysicalFlags::default()),
                no,
                "physical_create",
            )?;
            let range = fixture.address_reserve(here, bytes)?;
            let access = fixture.memory_set_access(range, bytes, unknown, MemoryAccess::ReadWrite);
            check_refused(access, &[Code::InvalidDevice, Code::InvalidValue], "memory_set_access")?;
            fixture.address_free(range, bytes)?;
        }
        if properties.memory_pools {
            check_refused(fixture.pool_create(unknown), no, "pool_create")?;
        }
        let stream = fixture.stream()?;
        let graph = fixture.capture(&stream, CaptureMode::Relaxed, || Ok(()))?;
        check_refused(fixture.graph_instantiate(graph.handle, unknown), no, "graph_instantiate")?;
    }
    Ok(())
}

fn a_context_starts_once(fixture: &Fixture) -> CaseResult {
    fixture.context_initialize(fixture.device)?;
    fixture.context_initialize(fixture.device)?;
    equal(fixture.context_is_active(fixture.device)?, true, "the context is active once it is initialised")
}

fn free_memory_follows_allocation(fixture: &Fixture) -> CaseResult {
    let before = fixture.memory_info(fixture.device)?;
    holds(before.free_bytes <= before.total_bytes, "no more memory is free than there is")?;
    let bytes = (before.free_bytes / 4).clamp(1, 256 << 20);
    let pointer = fixture.memory_allocate(fixture.device, bytes)?;
    let during = fixture.memory_info(fixture.device)?;
    fixture.memory_free(pointer)?;
    let after = fixture.memory_info(fixture.device)?;
    equal(during.total_bytes, before.total_bytes, "the total does not change")?;
    holds(during.free_bytes < before.free_bytes, "an allocation takes from the free memory")?;
    holds(after.free_bytes > during.free_bytes, "a free gives it back")
}

fn a_device_is_no_peer_of_itself(fixture: &Fixture) -> CaseResult {
    let peer = fixture.driver.can_access_peer(fixture.device, fixture.device)?;
    equal(peer, false, "a device as its own peer")
}

/// Returns another device that the one under test can reach.
fn peer(fixture: &Fixture) -> CaseResult<Option<u32>> {
    for other in 0..fixture.driver.device_count() {
        if other != fixture.device && fixture.driver.can_access_peer(fixture.device, other)? {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

fn peer_access_is_switched_on_and_off(fixture: &Fixture) -> CaseResult {
    let Some(other) = peer(fixture)? else {
        return skip("no other device that this one could reach");
    };
    fixture.enable_peer_access(fixture.device, other)?;
    let twice = fixture.enable_peer_access(fixture.device, other);
    check_refused(twice, &[Code::PeerAccessAlreadyEnabled], "enabling peer access twice")?;
    fixture.disable_peer_access(fixture.device, other)?;
    let twice = fixture.disable_peer_access(fixture.device, other);
    check_refused(twice, &[Code::PeerAccessNotEnabled], "disabling peer access twice")
}

fn other_device(fixture: &Fixture) -> Option<u32> {
    (0..fixture.driver.device_count()).find(|&device| device != fixture.device)
}

fn events_stay_on_their_device(fixture: &Fixture) -> CaseResult {
    let Some(other) = other_device(fixture) else {
        return skip("only one device");
    };
    let event = fixture.event()?;
    let elsewhere = fixture.stream_of(other)?;
    let result = fixture.event_record(event.handle, elsewhere.handle);
    check_refused(result, &[Code::InvalidHandle], "recording an event on a stream of another device")
}

fn a_wait_may_cross_devices(fixture: &Fixture) -> CaseResult {
    let Some(other) = other_device(fixture) else {
        return skip("only one device");
    };
    let (event, stream) = (fixture.event()?, fixture.stream()?);
    let buffer = fixture.iota(4, 0)?;
    let elsewhere = fixture.stream_of(other)?;
    let gate = fixture.gate(stream.handle)?;
    fixture.add(&stream, &buffer, 5)?;
    fixture.event_record(event.handle, stream.handle)?;
    fixture.stream_wait_event(elsewhere.handle, event.handle)?;
    equal(
        fixture.stream_query(elsewhere.handle)?,
        false,
        "the other device's stream while the event is pending",
    )?;
    gate.open();
    fixture.stream_synchronize(elsewhere.handle)?;
    equal(fixture.event_query(event.handle)?, true, "the event once a stream that waits for it is done")?;
    equal(buffer.words()?, vec![5, 6, 7, 8], "what the first device wrote")
}
