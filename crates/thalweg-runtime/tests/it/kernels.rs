//! Kernels of the loop IR: loading and launching.

use std::sync::atomic::{AtomicUsize, Ordering};

use smallvec::smallvec;
use thalweg_driver::DevicePointer;
use thalweg_ir::{BodyBuilder, Class, DType, Geometry, Kernel, OperandGeometry, OutputPlace};
use thalweg_runtime::{Device, KernelKey, Label, PreparedLaunch, Result, Stream};

use crate::support::{buffer_of, device, read};

const CLASS: Class = Class { contiguous: true, narrow_index: true, ..Class::new(1, 0) };

/// Returns a kernel that computes the sum of its inputs and 1.
fn sum_kernel(inputs: usize) -> Kernel {
    let builder = BodyBuilder::new();
    let sum = (0..inputs).map(|_| builder.input(DType::F32)).fold(None, |sum, input| match sum {
        None => Some(input),
        Some(sum) => Some(sum + input),
    });
    builder.output(sum.expect("there is an input") + 1.0, DType::F32, OutputPlace::Point);
    Kernel { name: format!("sum_{inputs}"), body: builder.finish(), class: CLASS }
}

fn key(inputs: usize) -> KernelKey {
    KernelKey { body: inputs as u64, dtypes: smallvec![DType::F32], class: CLASS }
}

/// Queues `output[i] = sum of inputs[i] + 1`.
#[track_caller]
pub fn launch_sum(
    stream: &Stream,
    inputs: &[DevicePointer],
    output: DevicePointer,
    count: u64,
) -> Result<()> {
    let label = Label::here("sum");
    let kernel = stream.device().kernel(&key(inputs.len()), || sum_kernel(inputs.len()))?;
    let operand = OperandGeometry::Strided { row_strides: smallvec![1], inner_strides: smallvec![] };
    let geometry = Geometry {
        row_shape: smallvec![count],
        inner_shape: smallvec![],
        operands: vec![operand; inputs.len() + 1],
    };
    let prepared = PreparedLaunch::new(stream.device(), kernel, &geometry).unwrap();
    stream.launch(&prepared, inputs, &[output], &[], label)
}

#[test]
fn a_kernel_runs() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let a = buffer_of(&stream, &[1.0, 2.0, 3.0]);
    let b = buffer_of(&stream, &[10.0, 20.0, 30.0]);
    let c = buffer_of(&stream, &[0.0; 3]);
    launch_sum(&stream, &[a.pointer(), b.pointer()], c.pointer(), 3).unwrap();
    assert_eq!(read(&stream, &c), [12.0, 23.0, 34.0]);
    launch_sum(&stream, &[a.pointer(), b.pointer()], DevicePointer::default(), 0).unwrap();
    stream.synchronize().unwrap();
}

/// Checks a launch that is long enough for several host threads to share it.
#[test]
fn long_launches_give_what_short_ones_do() {
    const COUNT: usize = 1 << 20;
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let numbers = |factor: usize| (0..COUNT).map(|at| (at * factor % 65_521) as f32).collect::<Vec<_>>();
    let (x, y) = (numbers(1), numbers(7));
    let [a, b] = [&x, &y].map(|numbers| buffer_of(&stream, numbers));
    let sums: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y + 1.0).collect();
    let c = buffer_of(&stream, &vec![f32::NAN; COUNT]);
    launch_sum(&stream, &[a.pointer(), b.pointer()], c.pointer(), COUNT as u64).unwrap();
    assert!(read(&stream, &c) == sums, "apart");
    // In place, with the input twice, and one that overlaps it at an offset, which is read by one thread before it is written.
    launch_sum(&stream, &[a.pointer(), a.pointer(), b.pointer()], a.pointer(), COUNT as u64).unwrap();
    let twice: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + x + y + 1.0).collect();
    assert!(read(&stream, &a) == twice, "in place");
    let half = DevicePointer::new(b.pointer().address() + COUNT as u64 * 2);
    launch_sum(&stream, &[half], b.pointer(), COUNT as u64 / 2).unwrap();
    let moved: Vec<f32> = y[COUNT / 2..].iter().map(|y| y + 1.0).collect();
    assert!(read(&stream, &b)[..COUNT / 2] == moved, "from another part");
}

#[test]
fn in_place_kernels_run() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let a = buffer_of(&stream, &[1.0, 2.0, 3.0]);
    let b = buffer_of(&stream, &[10.0, 20.0, 30.0]);
    launch_sum(&stream, &[a.pointer(), b.pointer()], a.pointer(), 3).unwrap();
    assert_eq!(read(&stream, &a), [12.0, 23.0, 34.0]);
    launch_sum(&stream, &[a.pointer(), a.pointer(), a.pointer()], a.pointer(), 3).unwrap();
    assert_eq!(read(&stream, &a), [37.0, 70.0, 103.0]);
}

#[test]
fn inputs_may_overlap_the_output_and_each_other() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let a = buffer_of(&stream, &(0..16).map(|i| i as f32).collect::<Vec<_>>());
    let at = |element: u64| a.pointer().offset(4 * element);
    // One input is the output, two others overlap each other: no element is written while another thread reads it.
    launch_sum(&stream, &[at(0), at(4), at(6), at(8)], at(0), 4).unwrap();
    assert_eq!(read(&stream, &a)[..5], [19.0, 23.0, 27.0, 31.0, 4.0]);
}

#[test]
fn partly_overlapping_operands_are_one_range() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    let a = buffer_of(&stream, &[1.0; 16]);
    let at = |element: u64| a.pointer().offset(4 * element);
    // The values that such a launch computes are the caller's responsibility; it only has to run.
    launch_sum(&stream, &[at(2), at(4), at(6)], at(0), 4).unwrap();
    assert_eq!(read(&stream, &a)[4..], [1.0; 12]);
}

#[test]
fn a_key_is_loaded_once() {
    let device = device();
    let made = AtomicUsize::new(0);
    let key = KernelKey { body: 1 << 40, ..key(1) };
    let load = || {
        device.kernel(&key, || {
            made.fetch_add(1, Ordering::Relaxed);
            Kernel { name: "loaded_once".to_owned(), ..sum_kernel(1) }
        })
    };
    let first = load().unwrap();
    let second = load().unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &second));
    assert_eq!(made.into_inner(), 1);
    assert_eq!(first.kernel().name, "loaded_once");
}

#[test]
fn threads_that_load_the_same_kernel_share_it() {
    let device = device();
    let device: &Device = &device;
    let loaded: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| device.kernel(&key(5), || sum_kernel(5)).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(loaded.iter().all(|kernel| std::sync::Arc::ptr_eq(kernel, &loaded[0])));
}
