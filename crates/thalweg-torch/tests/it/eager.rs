//! The calls of eager PyTorch: allocate, use, record, free.

use thalweg_runtime::{DevicePointer, Label};
use thalweg_torch::Status;
use thalweg_torch::interface::*;

use crate::support::{MIB, Torch, answer, cuda_stream, fill, message, read, sim};

#[test]
fn memory_is_given_out_and_again() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let x = torch.full(1000, 7, &stream);
    assert_eq!(x.address % 512, 0);
    assert_eq!(read(&stream, &x), 7);
    let address = x.address;
    drop(x);
    assert_eq!(torch.malloc(900, &stream).unwrap(), address, "it was cached");
    torch.free(address).unwrap();
    let statistics = torch.statistics(0);
    assert_eq!((statistics.allocation.all.allocated, statistics.allocation.all.current), (2, 0));
    assert_eq!(statistics.reserved_bytes.small_pool.current, 2 * MIB as i64);
    torch.empty_cache().unwrap();
    assert_eq!(torch.statistics(0).reserved_bytes.all.current, 0);
}

#[test]
fn nothing_is_null_and_null_is_nothing() {
    let torch = Torch::small();
    assert_eq!(torch.malloc(0, &torch.default_stream(0)).unwrap(), 0);
    torch.free(0).unwrap();
}

#[test]
fn streams_have_memory_of_their_own() {
    let torch = Torch::small();
    let (one, two) = (torch.stream(0), torch.stream(0));
    assert_ne!(cuda_stream(&one), cuda_stream(&two));
    let x = torch.malloc(4096, &one).unwrap();
    torch.free(x).unwrap();
    let y = torch.malloc(4096, &two).unwrap();
    let z = torch.malloc(4096, &one).unwrap();
    assert_eq!(z, x, "what was freed on a stream is that stream's");
    assert_ne!(y, x);
    torch.free(y).unwrap();
    torch.free(z).unwrap();
}

#[test]
fn a_recorded_stream_holds_memory_back() {
    let torch = Torch::small();
    let (main, side) = (torch.default_stream(0), torch.stream(0));
    for eager in [false, true] {
        let x = torch.full(MIB, 1, &side);
        main.wait_stream(&side).unwrap();
        assert_eq!(read(&main, &x), 1);
        if eager {
            x.record_use(&main)
        } else {
            x.record_stream(&main)
        }
        x.record_stream(&side);
        let bytes = torch.statistics(0).active_bytes.all.current;
        drop(x);
        let y = torch.full(MIB, 2, &side);
        assert_eq!(read(&side, &y), 2);
        assert!(torch.statistics(0).active_bytes.all.current >= bytes, "it is active until the use is over");
    }
}

#[test]
fn a_block_is_found_by_any_address_in_it() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let x = torch.empty(100_000, &stream).unwrap();
    let mut found = LiveBlockC { address: 0, size_bytes: 0, requested_bytes: 0, device: -1 };
    for offset in [0, 1, 512, 99_999] {
        // SAFETY: the allocator is open, and there is a place.
        let status = unsafe { thalweg_find_block(torch.raw(), x.address + offset, &raw mut found) };
        answer(status, ()).unwrap();
        assert_eq!((found.address, found.requested_bytes, found.device), (x.address, 100_000, 0));
        assert_eq!(found.size_bytes, 100_352);
    }
    let after = x.address + found.size_bytes;
    // SAFETY: as above.
    let status = unsafe { thalweg_find_block(torch.raw(), after, &raw mut found) };
    assert_eq!(status, Status::Invalid, "{}", message());
}

/// `allocateWithAddress`.
#[test]
fn memory_can_be_had_at_an_exact_address() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let address = torch.malloc(8192, &stream).unwrap();
    torch.free(address).unwrap();
    let middle = address + 4096;
    // SAFETY: the allocator is open.
    answer(unsafe { thalweg_malloc_at(torch.raw(), 0, 1024, 0, middle) }, ()).unwrap();
    // SAFETY: as above.
    let status = unsafe { thalweg_malloc_at(torch.raw(), 0, 1024, 0, middle) };
    assert_ne!(status, Status::Ok, "it is held");
    torch.free(middle).unwrap();
    assert_eq!(torch.statistics(0).allocated_bytes.all.current, 0);
}

#[test]
fn devices_are_opened_when_they_are_named() {
    let devices = sim(3);
    let torch = Torch::new(&devices, "");
    assert_eq!(torch.statistics(2).reserved_bytes, ByPoolC::default());
    let streams = [0, 1, 2].map(|device| torch.stream(device));
    let blocks: Vec<_> = streams.iter().map(|stream| torch.full(8192, 3, stream)).collect();
    for device in 0..3 {
        assert_eq!(torch.statistics(device).allocated_bytes.all.current, 8192);
    }
    // A tensor of one device that another reads.
    streams[1].wait_stream(&streams[0]).unwrap();
    blocks[0].record_stream(&streams[1]);
    drop(blocks);
    for stream in &streams {
        stream.synchronize().unwrap();
    }
    torch.empty_cache().unwrap();
    for device in 0..3 {
        assert_eq!(torch.statistics(device).reserved_bytes.all.current, 0, "of device {device}");
    }
}

#[test]
fn limits_hold_and_can_be_read() {
    let torch = Torch::small();
    let stream = torch.default_stream(0);
    let mut fraction = 0.0;
    // SAFETY: the allocator is open, and there is a place.
    answer(unsafe { thalweg_memory_fraction(torch.raw(), 0, &raw mut fraction) }, ()).unwrap();
    assert_eq!(fraction, 1.0);
    // SAFETY: the allocator is open.
    answer(unsafe { thalweg_set_memory_fraction(torch.raw(), 0, 0.25) }, ()).unwrap();
    // SAFETY: as above.
    answer(unsafe { thalweg_memory_fraction(torch.raw(), 0, &raw mut fraction) }, ()).unwrap();
    assert_eq!(fraction, 0.25);
    let mut largest = 0;
    // SAFETY: as above.
    answer(unsafe { thalweg_cache_info(torch.raw(), 0, &raw mut largest) }, ()).unwrap();
    assert_eq!(largest, 16 * MIB, "a quarter of 64 MiB");
    let x = torch.malloc(largest, &stream).unwrap();
    assert_eq!(torch.malloc(MIB, &stream).unwrap_err().0, Status::OutOfMemory);
    torch.free(x).unwrap();
    // SAFETY: as above.
    let status = unsafe { thalweg_set_memory_fraction(torch.raw(), 0, 1.5) };
    assert_eq!(status, Status::Invalid);
}

#[test]
fn settings_hold_for_devices_that_open_later() {
    let torch = Torch::new(&sim(2), "max_split_size_mb:32");
    drop(torch.empty(100, &torch.default_stream(0)).unwrap());
    // SAFETY: the allocator is open, and the text ends with a zero.
    let status = unsafe { thalweg_set_settings(torch.raw(), c"policy:pytorch,stitching:True".as_ptr()) };
    answer(status, ()).unwrap();
    let wrong = c"max_split_size_mb:3";
    // SAFETY: as above.
    let status = unsafe { thalweg_set_settings(torch.raw(), wrong.as_ptr()) };
    let (status, text) = answer(status, ()).unwrap_err();
    assert_eq!(status, Status::Invalid);
    assert!(text.contains("max_split_size_mb") && text.contains('^'), "{text}");
    // Also before the first device is open, what cannot be changed later is refused, and later allocations work.
    let fresh = Torch::new(&sim(1), "max_split_size_mb:128,garbage_collection_threshold:0.5");
    // SAFETY: as above.
    let status = unsafe { thalweg_set_settings(fresh.raw(), c"backend:cudaMallocAsync".as_ptr()) };
    assert!(answer(status, ()).unwrap_err().1.contains("PYTORCH_ALLOC_CONF"));
    for is_open in [false, true] {
        let mut found = ConfigurationC::default();
        // SAFETY: the allocator is open, and there is a place.
        answer(unsafe { thalweg_configured(fresh.raw(), 0, &raw mut found) }, ()).unwrap();
        let expected = (128 * MIB, 0.5, 1);
        let seen =
            (found.max_split_size_bytes, found.garbage_collection_threshold, found.expandable_segments);
        assert_eq!(seen, expected, "open: {is_open}");
        drop(fresh.empty(512, &fresh.default_stream(0)).unwrap());
    }
    for device in 0..2 {
        let settings = torch.text(|allocator, write, user| {
            // SAFETY: the allocator is open, and the function accepts its arguments.
            unsafe { thalweg_settings(allocator, device, write, user) }
        });
        let settings = String::from_utf8(settings.unwrap()).unwrap();
        assert_eq!(settings, "policy:pytorch,max_split_size_mb:32,stitching:True");
    }
}

#[test]
fn memory_can_be_shared_in_pytorchs_format() {
    let torch = Torch::new(&sim(1), "expandable_segments:False");
    let stream = torch.default_stream(0);
    let neighbour = torch.full(2048, 1, &stream);
    let x = torch.full(4096, 5, &stream);
    let mut offset = 0;
    let handle = torch.text(|allocator, write, user| {
        // SAFETY: the allocator is open, the function takes what it is given, and there is a place.
        unsafe { thalweg_share(allocator, x.address, write, user, &raw mut offset) }
    });
    let handle = handle.unwrap();
    assert_eq!(handle.len(), 66, "two bytes that say what it is, and CUDA's handle");
    assert_eq!(offset, x.address - neighbour.address, "the neighbour comes before it");
    let (mut shared, mut address) = (std::ptr::null_mut(), 0);
    // SAFETY: the allocator is open, there are so many bytes, and there are places.
    let status = unsafe {
        thalweg_open_shared(torch.raw(), 0, handle.as_ptr(), handle.len(), &raw mut shared, &raw mut address)
    };
    answer(status, ()).unwrap();
    let pointer = DevicePointer::new(address + offset);
    let mut bytes = [0; 4096];
    stream.copy_to_host(&mut bytes, pointer, Label::here("read")).unwrap();
    assert_eq!(bytes, [5; 4096]);
    // PyTorch closes it when the tensor goes, and the work that reads it may not even have begun.
    let (work, seen) = (torch.full(16 * MIB, 6, &stream), torch.full(4096, 7, &stream));
    let pages = DevicePointer::new(work.address);
    for _ in 0..100 {
        stream.copy_on_device(pages.offset(8 * MIB), pages, 8 * MIB, Label::here("work")).unwrap();
    }
    let use_it = stream.copy_on_device(DevicePointer::new(seen.address), pointer, 4096, Label::here("use"));
    use_it.unwrap();
    // SAFETY: it was opened, and is closed once.
    answer(unsafe { thalweg_close_shared(torch.raw(), shared) }, ()).unwrap();
    assert!(stream.query().unwrap(), "nothing reads it any more");
    assert_eq!(read(&stream, &seen), 5);
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: the allocator is open, and there are places.
    let status = unsafe { thalweg_base_allocation(torch.raw(), x.address, &raw mut base, &raw mut bytes) };
    answer(status, ()).unwrap();
    assert_eq!((base, bytes), (neighbour.address, 2 * MIB));
    fill(&stream, &x, 0);
}

/// Tensors of other libraries (DLPack, `from_blob`) are not in this allocator's memory, but PyTorch records their streams as for any
/// other tensor.
#[test]
fn memory_of_others_is_left_alone() {
    let torch = Torch::small();
    let x = torch.full(4096, 1, &torch.default_stream(0));
    for address in [0x1234_5600, x.address + 2 * MIB] {
        // SAFETY: the allocator is open.
        let recorded = unsafe {
            [
                thalweg_record_stream(torch.raw(), address, 0, 0),
                thalweg_record_use(torch.raw(), address, 0, 0),
            ]
        };
        assert_eq!(recorded, [Status::Ok; 2]);
    }
}

/// Under the hooks, PyTorch never announces that one device should access another device's memory. (The runtime's tests show how that
/// affects pages that are mapped then, and later.)
#[test]
fn devices_reach_each_others_memory_unasked() {
    for (said, first) in [(true, true), (true, false), (false, false)] {
        let torch = Torch::new(&sim(2), "");
        let say = || {
            // SAFETY: the allocator is open.
            assert_eq!(unsafe { thalweg_open_to_peers(torch.raw()) }, Status::Ok);
        };
        // Before any device is in use, as the hooks say it; or later.
        if said && first {
            say();
        }
        let tensors = [0, 1].map(|device| torch.full(4096, 7, &torch.stream(device)));
        torch.devices.iter().for_each(|device| device.synchronize().unwrap());
        if said && !first {
            say();
        }
        for (device, peer) in [(0, 1), (1, 0)] {
            let stream = torch.stream(device);
            let [to, from] = [device, peer].map(|index| DevicePointer::new(tensors[index].address));
            let copied = stream.copy_on_device(to, from, 4096, Label::here("copy"));
            assert_eq!(copied.is_ok(), said, "device {device} copies from device {peer}: {copied:?}");
            stream.synchronize().unwrap();
        }
        drop(tensors);
    }
}
