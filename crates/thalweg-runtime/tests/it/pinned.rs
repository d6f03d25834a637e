//! Pinned host memory.

use thalweg_driver::FillPattern;
use thalweg_runtime::{Buffer, Label, PinnedBuffer, Stream};

use crate::support::{Gate, buffer_of, device, pinned_of, read, read_pinned, sim};

#[test]
fn ranges_are_checked() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let pinned = pinned_of(&device, &[1.0, 2.0, 3.0]);
    let data = buffer_of(&stream, &[0.0; 4]);
    let label = Label::here("copy");
    let mut four = [0.0_f32; 4];
    let refused = [
        pinned.write(0, &[0.0_f32; 4]),
        pinned.write(12, &[0_u8]),
        pinned.write(u64::MAX, &[0_u8; 2]),
        pinned.read(0, &mut four),
        stream.copy_from_pinned(data.pointer(), &pinned, 4, 12, label),
        stream.copy_from_pinned(data.pointer(), &pinned, u64::MAX, 2, label),
        stream.copy_to_pinned(&pinned, 0, data.pointer(), 16, label),
    ];
    for (index, result) in refused.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains("12 bytes"), "{index}: {error}");
    }
    // The last byte, and nothing at the end, are inside.
    pinned.write(11, &[0x40_u8]).unwrap();
    pinned.write(12, &[] as &[u8]).unwrap();
    stream.copy_from_pinned(data.pointer(), &pinned, 12, 0, label).unwrap();
    stream.copy_from_pinned(data.pointer(), &pinned, 4, 8, label).unwrap();
    assert_eq!(read(&stream, &data), [2.0, 3.0, 0.0, 0.0]);
    assert_eq!(read_pinned(&pinned), [1.0, 2.0, 3.0]);
}

#[test]
fn nothing_is_a_null_pointer() {
    let device = device();
    let pinned = PinnedBuffer::new(&device, 0).unwrap();
    assert!(pinned.pointer().is_null() && pinned.size_bytes() == 0);
    pinned.write(0, &[] as &[f32]).unwrap();
    pinned.read(0, &mut [] as &mut [f32]).unwrap();
}

#[test]
fn the_memory_is_not_used_again_before_the_copy_is_done() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let data = buffer_of(&stream, &[0.0; 1000]);
    let pinned = pinned_of(&device, &[5.0; 1000]);
    let address = pinned.pointer();
    let gate = Gate::close(&stream);
    stream.copy_from_pinned(data.pointer(), &pinned, 0, 4000, Label::here("copy")).unwrap();
    drop(pinned);
    let other = pinned_of(&device, &[6.0; 1000]);
    assert_ne!(other.pointer(), address);
    gate.open();
    assert_eq!(read(&stream, &data), [5.0; 1000]);
    stream.synchronize().unwrap();
    assert_eq!(PinnedBuffer::new(&device, 4000).unwrap().pointer(), address);
}

#[test]
fn copies_go_round() {
    let device = device();
    let [up, down] = [(); 2].map(|()| Stream::new(&device).unwrap());
    let source = pinned_of(&device, &[1.0, 2.0, 3.0, 4.0]);
    let target = pinned_of(&device, &[0.0; 4]);
    let [first, second] = [(); 2].map(|()| Buffer::new(&up, 16).unwrap());
    let label = Label::here("copy");
    up.copy_from_pinned(first.pointer(), &source, 0, 16, label).unwrap();
    up.copy_on_device(second.pointer(), first.pointer(), 16, label).unwrap();
    up.fill(second.pointer().offset(4), FillPattern::U16(0x4000), 2, label).unwrap();
    down.wait_stream(&up).unwrap();
    down.copy_to_pinned(&target, 4, second.pointer(), 12, label).unwrap();
    down.synchronize().unwrap();
    assert_eq!(read_pinned(&target), [0.0, 1.0, f32::from_bits(0x4000_4000), 3.0]);
}

#[test]
fn the_memory_is_not_used_again_before_the_copies_of_two_devices_are_done() {
    for last in [0, 1] {
        let devices = sim(2);
        let streams = [0, 1].map(|index: usize| Stream::new(&devices[index]).unwrap());
        let data = streams.each_ref().map(|stream| buffer_of(stream, &[0.0; 1000]));
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        let pinned = pinned_of(&devices[0], &[5.0; 1000]);
        let address = pinned.pointer();
        let gates = streams.each_ref().map(Gate::close);
        for (stream, data) in streams.iter().zip(&data) {
            stream.copy_from_pinned(data.pointer(), &pinned, 0, 4000, Label::here("copy")).unwrap();
        }
        drop(pinned);
        let again = |what: &str| {
            let other = pinned_of(&devices[1 - last], &[6.0; 1000]);
            assert_ne!(other.pointer(), address, "{what}, and device {last} is the last");
            other
        };
        // Held, so that nothing else is free at the end.
        let _first = again("neither is done");
        gates[1 - last].open();
        streams[1 - last].synchronize().unwrap();
        let _second = again("one is done");
        gates[last].open();
        streams[last].synchronize().unwrap();
        assert_eq!(
            PinnedBuffer::new(&devices[0], 4000).unwrap().pointer(),
            address,
            "device {last} is the last"
        );
        for (stream, data) in streams.iter().zip(&data) {
            assert_eq!(read(stream, data), [5.0; 1000]);
        }
    }
}
