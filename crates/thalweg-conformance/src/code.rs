//! Modules, kernels and launches.

use thalweg_driver::{Access, Code, Image, ImageKind, Label, Launch, LaunchMode};

use super::fixture::{Fixture, check_refused, equal, holds};
use super::{CaseResult, Kernel, KernelArguments, PTX, group, host_module};

group! {
    "code":
    a_missing_kernel_is_not_found,
    an_image_of_the_wrong_kind_is_refused,
    a_damaged_image_is_refused,
    attributes_are_sane,
    launches_cover_their_words,
    launches_read_and_write_what_they_declare,
    wrong_shapes_are_refused,
    too_much_shared_memory_is_refused,
    two_modules_live_side_by_side,
    arguments_are_taken_at_the_call,
}

fn a_missing_kernel_is_not_found(fixture: &Fixture) -> CaseResult {
    for name in ["", "thalweg_ad", "thalweg_addd", "a kernel\0with a hole", "Straße"] {
        let result = fixture.driver.function_get(fixture.kernels.module(), name);
        // A GPU reports the empty name as an invalid value.
        let codes: &[Code] =
            if name.is_empty() { &[Code::NotFound, Code::InvalidValue] } else { &[Code::NotFound] };
        check_refused(result, codes, &format!("function_get of {name:?}"))?;
    }
    Ok(())
}

/// Every code with which CUDA refuses an image (300 is `CUDA_ERROR_INVALID_SOURCE`); which one it returns depends on the format
/// that it detects.
const BAD_IMAGE: &[Code] = &[
    Code::InvalidImage,
    Code::InvalidPtx,
    Code::NoBinaryForDevice,
    Code::UnsupportedPtxVersion,
    Code::Other(300),
];

fn an_image_of_the_wrong_kind_is_refused(fixture: &Fixture) -> CaseResult {
    let host = host_module();
    let wrong = match fixture.device_properties(fixture.device)?.image_kind {
        ImageKind::Cubin(_) => vec![Image::Host(&host)],
        ImageKind::Host => vec![Image::Ptx(PTX), Image::Cubin(&[0x7f, b'E', b'L', b'F'])],
    };
    for image in wrong {
        let text = format!("module_load of {image:?}");
        check_refused(fixture.module_load(fixture.device, image), &[Code::InvalidImage], &text)?;
    }
    Ok(())
}

fn a_damaged_image_is_refused(fixture: &Fixture) -> CaseResult {
    let noise: Vec<u8> = (0..4096_u32).map(|i| (i * 167 % 251) as u8).collect();
    let mut truncated = vec![0; 64];
    truncated[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0x33]);
    let half = &PTX[..PTX.len() / 2];
    let images = [
        Image::Cubin(&[]),
        Image::Cubin(&noise),
        Image::Cubin(&truncated),
        Image::Ptx(""),
        Image::Ptx("this is not a program"),
        Image::Ptx(half),
    ];
    for image in images {
        let text = format!("module_load of damaged {image:?}");
        check_refused(fixture.module_load(fixture.device, image), BAD_IMAGE, &text)?;
    }
    Ok(())
}

fn attributes_are_sane(fixture: &Fixture) -> CaseResult {
    let most = fixture.driver.device_properties(fixture.device)?.max_threads_per_block;
    for kernel in Kernel::ALL {
        let attributes = fixture.driver.function_attributes(fixture.kernels.function(kernel))?;
        let threads = attributes.max_threads_per_block;
        holds(
            (1..=most).contains(&threads),
            &format!("{threads} threads per block are between 1 and {most}"),
        )?;
        equal(attributes.shared_memory_bytes, 0, "the static shared memory of a kernel without any")?;
    }
    Ok(())
}

fn launches_cover_their_words(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    for count in [1, 31, 127, 128, 129, 100_000] {
        let buffer = fixture.iota(count + 1, 7)?;
        fixture.launch(&stream, Kernel::Constant, KernelArguments::new(buffer.pointer, count, 3))?;
        fixture.driver.stream_synchronize(stream.handle)?;
        let seen = buffer.words()?;
        let all = seen[..count as usize].iter().all(|&word| word == 3);
        equal(all, true, &format!("whether a launch over {count} words wrote them all"))?;
        equal(seen[count as usize], 7 + count as u32, "the word after the last")?;
    }
    Ok(())
}

fn launches_read_and_write_what_they_declare(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let (source, target) = (fixture.iota(100, 5)?, fixture.iota(100, 0)?);
    let part =
        KernelArguments::new(target.pointer.offset(40), 50, 1000).with_source(source.pointer.offset(12));
    fixture.launch(&stream, Kernel::Copy, part)?;
    fixture.driver.stream_synchronize(stream.handle)?;
    let mut expected: Vec<u32> = (0..100).collect();
    (0..50).for_each(|i| expected[10 + i] = 1000 + 5 + 3 + i as u32);
    equal(target.words()?, expected, "a part of a buffer, written from a part of another")?;
    equal(source.words()?, (5..105).collect(), "the buffer that was read")
}

/// Returns a launch of the constant kernel over one word, which cases make invalid.
fn one_word<'a>(fixture: &Fixture, arguments: &'a [u8], accesses: &'a [Access]) -> Launch<'a> {
    Launch {
        function: fixture.kernels.function(Kernel::Constant),
        grid: [1; 3],
        block: [1; 3],
        shared_memory_bytes: 0,
        mode: LaunchMode::InOrder,
        arguments,
        accesses,
        label: Label::here("a launch of the wrong shape"),
    }
}

/// Returns the arguments of the constant kernel for one word.
fn packed(address: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[0..8].copy_from_slice(&address.to_le_bytes());
    bytes[16] = 1;
    bytes[24] = 99;
    bytes
}

fn wrong_shapes_are_refused(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let buffer = fixture.iota(1, 5)?;
    let arguments = packed(buffer.pointer.address());
    let accesses = [Access::write(buffer.pointer, 4)];
    let good = one_word(fixture, &arguments, &accesses);
    let most = driver.device_properties(fixture.device)?.max_threads_per_block;
    let grids = [[0, 1, 1], [1, 0, 1], [1, 1, 0]];
    let blocks =
        [[0, 1, 1], [1, 0, 1], [1, 1, 0], [most + 1, 1, 1], [most, 2, 1], [u32::MAX, u32::MAX, u32::MAX]];
    let no = &[Code::InvalidValue];
    for grid in grids {
        check_refused(
            driver.launch(stream.handle, &Launch { grid, ..good }),
            no,
            &format!("a grid of {grid:?}"),
        )?;
    }
    for block in blocks {
        check_refused(
            driver.launch(stream.handle, &Launch { block, ..good }),
            no,
            &format!("a block of {block:?}"),
        )?;
    }
    driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, vec![5], "memory after launches that were refused")?;
    driver.launch(stream.handle, &good)?;
    driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, vec![99], "memory after the same launch in the right shape")
}

fn too_much_shared_memory_is_refused(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(1, 5)?;
    let arguments = packed(buffer.pointer.address());
    let accesses = [Access::write(buffer.pointer, 4)];
    let launch = Launch { shared_memory_bytes: 1 << 30, ..one_word(fixture, &arguments, &accesses) };
    let result = fixture.driver.launch(stream.handle, &launch);
    check_refused(result, &[Code::InvalidValue, Code::LaunchOutOfResources], "1 GiB of shared memory a block")
}

fn two_modules_live_side_by_side(fixture: &Fixture) -> CaseResult {
    let driver = fixture.driver();
    let stream = fixture.stream()?;
    let buffer = fixture.iota(10, 0)?;
    let other = super::KernelSet::load(driver, fixture.device)?;
    let arguments = KernelArguments::new(buffer.pointer, 10, 1);
    fixture.launch(&stream, Kernel::Add, arguments)?;
    other.launch(driver, stream.handle, Kernel::Add, arguments.with_delay_us(2000))?;
    driver.module_unload(other.module())?;
    fixture.launch(&stream, Kernel::Add, arguments)?;
    driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (3..13).collect(), "kernels of two modules, one of them unloaded meanwhile")
}

fn arguments_are_taken_at_the_call(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(1, 5)?;
    let mut arguments = packed(buffer.pointer.address());
    let mut accesses = vec![Access::write(buffer.pointer, 4)];
    let gate = fixture.gate(stream.handle)?;
    fixture.driver.launch(stream.handle, &one_word(fixture, &arguments, &accesses))?;
    arguments.fill(0xff);
    accesses.clear();
    drop(accesses);
    gate.open();
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, vec![99], "a launch whose arguments were overwritten after the call")?;
    equal(arguments[0], 0xff, "the caller's own copy")
}
