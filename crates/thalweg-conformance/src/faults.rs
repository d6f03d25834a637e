//! Faults that lose the context of the device: these cases run last, and only on request.

use std::sync::Arc;

use thalweg_driver::{
    Access, Code, DevicePointer, Error, HostFault, HostKernel, HostLaunch, HostModule, Image, ImageKind,
    Label, Launch, LaunchMode, Result,
};

use super::fixture::{Fixture, equal, fail, holds, skip};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "faults":
    a_wild_write_loses_the_device,
    a_lost_device_stays_lost_for_every_call,
    other_devices_go_on,
    a_host_function_that_fails_loses_the_device,
    a_host_function_that_panics_loses_the_device,
}

/// Launches a kernel that writes to an unmapped address; the range that it declares exists.
fn write_wildly(fixture: &Fixture) -> Result<()> {
    let (stream, buffer) = (fixture.stream()?, fixture.buffer(4)?);
    // Not null: a page that neither a GPU nor the simulator ever maps.
    let wild = KernelArguments::new(DevicePointer::new(0x40), 1, 1);
    let accesses = [Access::write(buffer.pointer, 16)];
    let submitted =
        fixture.kernels.launch_declaring(fixture.driver(), stream.handle, Kernel::Constant, wild, &accesses);
    submitted?;
    fixture.driver.stream_synchronize(stream.handle)
}

#[track_caller]
fn is_lost(error: &Error) -> CaseResult {
    holds(error.is_device_lost(), &format!("an error that says that the device is lost ({error})"))?;
    holds(error.is_asynchronous(), &format!("an error that says that earlier work is the cause ({error})"))
}

fn a_wild_write_loses_the_device(fixture: &Fixture) -> CaseResult {
    let Err(error) = write_wildly(fixture) else {
        return fail(
            "a kernel that writes where nothing is: expected an error at the synchronisation, saw none",
        );
    };
    is_lost(&error)?;
    if fixture.driver.device_properties(fixture.device)?.image_kind == ImageKind::Host {
        let text = error.to_string();
        holds(text.contains(Kernel::Constant.name()), &format!("the error names the culprit ({text})"))?;
    }
    Ok(())
}

fn a_lost_device_stays_lost_for_every_call(fixture: &Fixture) -> CaseResult {
    let (driver, device) = (fixture.driver(), fixture.device);
    let (stream, buffer, event) = (fixture.stream()?, fixture.iota(4, 0)?, fixture.event()?);
    let Err(first) = write_wildly(fixture) else {
        return fail(
            "a kernel that writes where nothing is: expected an error at the synchronisation, saw none",
        );
    };
    let calls: [(&str, Result<()>); 5] = [
        ("memory_allocate", driver.memory_allocate(device, 256).map(drop)),
        ("launch", fixture.add(&stream, &buffer, 1)),
        ("stream_synchronize", driver.stream_synchronize(stream.handle)),
        ("event_record", driver.event_record(event.handle, stream.handle)),
        ("device_synchronize", driver.device_synchronize(device)),
    ];
    for (name, result) in calls {
        match result {
            Err(error) => equal(error.code(), first.code(), &format!("the code of {name} on a lost device"))?,
            Ok(()) => {
                fail(format!("{name} on a lost device: expected {:?}, and it succeeded", first.code()))?
            }
        }
    }
    holds(driver.device_properties(device).is_ok(), "the properties of a lost device can still be read")
}

fn other_devices_go_on(fixture: &Fixture) -> CaseResult {
    let Some(other) = (0..fixture.device_count()).find(|&device| device != fixture.device) else {
        return skip("only one device");
    };
    let healthy = Fixture::new(Arc::clone(&fixture.driver), other)?;
    if write_wildly(fixture).is_ok() {
        return fail(
            "a kernel that writes where nothing is: expected an error at the synchronisation, saw none",
        );
    }
    healthy.still_works()
}

/// Runs a host function that fails, and checks that the error names the failure and the kernel.
fn goes_wrong(fixture: &Fixture, kernel: Arc<dyn HostKernel>, words: &str) -> CaseResult {
    if fixture.device_properties(fixture.device)?.image_kind != ImageKind::Host {
        return skip("the device runs no host functions");
    }
    let stream = fixture.stream()?;
    let module = fixture.module_load(fixture.device, Image::Host(&HostModule::single("wrong", kernel)))?;
    let launch = Launch {
        function: fixture.function_get(module, "wrong")?,
        grid: [1; 3],
        block: [1; 3],
        shared_memory_bytes: 0,
        mode: LaunchMode::InOrder,
        arguments: &[],
        accesses: &[],
        label: Label::here("the culprit"),
    };
    fixture.driver.launch(stream.handle, &launch)?;
    let Err(error) = fixture.stream_synchronize(stream.handle) else {
        return fail("a host function that goes wrong: expected an error at the synchronisation, saw none");
    };
    is_lost(&error)?;
    equal(error.code(), Code::LaunchFailed, "the code of a host function that goes wrong")?;
    let text = error.to_string();
    holds(text.contains(words), &format!("the error says {words:?} ({text})"))?;
    holds(text.contains("the culprit"), &format!("the error names the culprit ({text})"))
}

fn a_host_function_that_fails_loses_the_device(fixture: &Fixture) -> CaseResult {
    let fails = |_: &HostLaunch<'_>| Err(HostFault("seven is not a power of two".into()));
    goes_wrong(fixture, Arc::new(fails), "seven is not a power of two")
}

fn a_host_function_that_panics_loses_the_device(fixture: &Fixture) -> CaseResult {
    let panics = |launch: &HostLaunch<'_>| -> Result<(), HostFault> {
        assert!(launch.grid == [0; 3], "the grid is not what it never is");
        Ok(())
    };
    goes_wrong(fixture, Arc::new(panics), "the grid is not what it never is")
}
