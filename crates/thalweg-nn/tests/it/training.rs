//! A complete training step: deterministic, and the same when it is captured and replayed.

use thalweg_ir::DType;
use thalweg_nn::functional::{ConvOptions, PoolOptions, cross_entropy, max_pool2d};
use thalweg_nn::module::{Conv2d, Forward, Linear, Module};
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_runtime::{CaptureOptions, Device, Graph, Stream};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{HostTensor, Tensor};

use crate::support::{device, own_device};

const BATCH: usize = 16;

struct Step {
    conv: Conv2d,
    linear: Linear,
    optimizer: Adam,
}

impl Step {
    fn new(device: &Device) -> Self {
        let mut generator = Generator::new(3);
        let options = ConvOptions { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 };
        let conv = Conv2d::new(1, 4, [3; 2], options, &mut generator, device).unwrap();
        let linear = Linear::new(4 * 3 * 3, 5, &mut generator, device).unwrap();
        let parameters = conv.parameters().into_iter().chain(linear.parameters()).collect();
        let optimizer = Adam::new(parameters, AdamOptions { lr: 0.01, ..AdamOptions::default() }).unwrap();
        Self { conv, linear, optimizer }
    }

    fn run(&self, images: &Tensor, classes: &Tensor) -> thalweg_runtime::Result<Tensor> {
        self.optimizer.zero_grad();
        let x = self.conv.forward(images)?.relu()?;
        let x = max_pool2d(&x, [2, 2], PoolOptions::default())?;
        let loss = cross_entropy(&self.linear.forward(&x.flatten_from(1)?)?, classes)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }
}

fn batch(seed: u64, device: &Device) -> (Tensor, Tensor) {
    let mut generator = Generator::new(seed);
    let images = Tensor::uniform(&[BATCH, 1, 6, 6], 0.0, 1.0, &mut generator, device).unwrap();
    let classes: Vec<i64> = (0..BATCH).map(|_| i64::from(generator.below(5).unwrap())).collect();
    (images, Tensor::from_slice(&classes, &[BATCH], device).unwrap())
}

fn eager_losses(steps: u64, device: &Device) -> Vec<u32> {
    let step = Step::new(device);
    (0..steps)
        .map(|index| {
            let (images, classes) = batch(index % 4, device);
            step.run(&images, &classes).unwrap().item::<f32>().unwrap().to_bits()
        })
        .collect()
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let (first, second) = (eager_losses(12, &device()), eager_losses(12, &device()));
    assert_eq!(first, second);
    let (start, end) = (f32::from_bits(first[0]), f32::from_bits(first[11]));
    assert!(end < start, "the network learns: {start} to {end}");
}

#[test]
fn a_captured_step_gives_the_bits_of_the_eager_one() {
    let device = own_device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let step = Step::new(&device);
    let (images, classes) = batch(0, &device);
    let first = step.run(&images, &classes).unwrap().item::<f32>().unwrap().to_bits();
    let (graph, loss) =
        Graph::capture(&device, CaptureOptions::default(), || step.run(&images, &classes)).unwrap();
    let mut losses = vec![first];
    let address = loss.pointer();
    for index in 1..12 {
        let (next_images, next_classes) = batch(index % 4, &device);
        images.copy_(&next_images).unwrap();
        classes.copy_(&next_classes).unwrap();
        graph.replay().unwrap();
        losses.push(loss.item::<f32>().unwrap().to_bits());
    }
    assert_eq!(losses, eager_losses(12, &device));
    assert_eq!(loss.pointer(), address);
}

#[test]
fn reading_a_value_inside_a_capture_is_an_error_that_leaves_all_usable() {
    let device = own_device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let x = Tensor::ones(&[4], DType::F32, &device).unwrap();
    x.mul_scalar(2.0).unwrap();
    let refused = Graph::capture(&device, CaptureOptions::default(), || x.mul_scalar(2.0)?.to_vec::<f32>());
    let error = refused.map(|_| ()).unwrap_err();
    assert!(error.is_capture(), "{error}");
    let (graph, doubled) = Graph::capture(&device, CaptureOptions::default(), || x.mul_scalar(2.0)).unwrap();
    graph.replay().unwrap();
    assert_eq!(doubled.to_vec::<f32>().unwrap(), [2.0; 4]);
}

#[test]
fn pinned_batches_travel_on_a_side_stream() {
    let device = device();
    let (side, compute) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let host = HostTensor::pinned(&[1 << 16], DType::F32, &device).unwrap();
    let back = HostTensor::pinned(&[1 << 16], DType::F32, &device).unwrap();
    for round in 0..10 {
        host.write(0, &vec![round as f32; 1 << 16]).unwrap();
        let tensor = {
            let _current = side.make_current();
            host.to_device().unwrap()
        };
        compute.wait_event(&side.record_event().unwrap()).unwrap();
        tensor.record_stream(&compute);
        let _current = compute.make_current();
        tensor.mul_scalar(3.0).unwrap().copy_to_pinned(&back).unwrap();
        compute.synchronize().unwrap();
        let mut found = vec![0.0f32; 1 << 16];
        back.read(0, &mut found).unwrap();
        assert!(found.iter().all(|&value| value == 3.0 * round as f32), "round {round}");
    }
}
