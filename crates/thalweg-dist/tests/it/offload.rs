//! Saved tensors in host memory: the bits of a backward pass that finds them on the device, less memory, no race.

use thalweg_dist::{
    ActivationOffload, FullyShardOptions, OffloadOptions, ProcessGroup, fully_shard, run_ranks,
    simulated_devices,
};
use thalweg_ir::DType;
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_runtime::{CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{checked, parameter_values};

const WIDTH: usize = 32;
const ROWS: usize = 64;

#[derive(Module)]
struct Network {
    layers: Vec<Linear>,
}

impl Network {
    fn new(layers: usize, device: &Device) -> Result<Self> {
        let mut generator = Generator::new(3);
        let layer = |_| Linear::new(WIDTH, WIDTH, &mut generator, device);
        Ok(Self { layers: (0..layers).map(layer).collect::<Result<_>>()? })
    }
}

impl Forward for Network {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(input.clone(), |x, layer| layer.forward(&x)?.tanh())
    }
}

fn input(device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = (0..ROWS * WIDTH).map(|place| (place % 23) as f32 / 11.5 - 1.0).collect();
    Tensor::from_slice(&values, &[ROWS, WIDTH], device)
}

/// Returns the gradients of all parameters after two passes, and the growth of the device's memory after the first forward pass.
fn gradients(device: &Device, options: Option<OffloadOptions>) -> Result<(Vec<f32>, u64)> {
    let network = Network::new(8, device)?;
    let offload = options.map(|options| ActivationOffload::new(device, &network.parameters(), options));
    let offload = offload.transpose()?;
    let x = input(device)?;
    let (before, mut grown) = (device.memory_allocated(), 0);
    for pass in 0..2 {
        let forward = || network.forward(&x);
        let y = offload.as_ref().map_or_else(forward, |offload| offload.run(forward))?;
        device.synchronize()?;
        if pass == 0 {
            grown = device.memory_allocated() - before;
            let saved = offload.as_ref().map_or(0, ActivationOffload::saved);
            assert!(offload.is_none() || saved >= 8, "{saved} tensors in host memory");
        }
        y.square()?.mean(&[], false)?.backward()?;
        drop(y);
        assert_eq!(offload.as_ref().map_or(0, ActivationOffload::saved), 0);
    }
    let all: Vec<Tensor> = network.parameters().iter().filter_map(Tensor::grad).collect();
    assert_eq!(all.len(), 16);
    Ok((parameter_values(&all)?, grown))
}

#[test]
fn gradients_have_their_bits_and_the_device_less_to_hold() {
    let device = simulated_devices(1).unwrap().remove(0);
    let (wanted, held) = gradients(&device, None).unwrap();
    for in_flight in [0, 1, 3] {
        for prefetch in [0, 1, 20] {
            let options = OffloadOptions { min_bytes: 0, in_flight, prefetch };
            let (found, still_held) = gradients(&device, Some(options)).unwrap();
            assert_eq!(found, wanted);
            assert!(still_held * 4 < held, "{still_held} of {held} bytes");
        }
    }
    // Nothing is moved that is smaller than this.
    let large = OffloadOptions { min_bytes: 1 << 20, ..OffloadOptions::default() };
    let network = Network::new(2, &device).unwrap();
    let offload = ActivationOffload::new(&device, &network.parameters(), large).unwrap();
    let y = offload.run(|| network.forward(&input(&device)?)).unwrap();
    assert_eq!(offload.saved(), 0);
    y.sum(&[], false).unwrap().backward().unwrap();
}

fn on_other_streams(group: &ProcessGroup, seed: u64) -> Result<()> {
    let device = group.device();
    let network = Network::new(3, device)?;
    let options = OffloadOptions {
        min_bytes: 0,
        in_flight: 1 + (seed % 3) as usize,
        prefetch: (seed / 3 % 3) as usize,
    };
    let offload = ActivationOffload::new(device, &network.parameters(), options)?;
    let side = Stream::new(device)?;
    let mut found = Vec::new();
    for pass in 0..3 {
        network.parameters().iter().for_each(Tensor::zero_grad);
        let x = input(device)?;
        let forward = || network.forward(&x);
        let loss = {
            let _side = (pass == 1).then(|| side.make_current());
            let current = device.current_stream();
            current.wait_stream(&device.default_stream())?;
            x.record_stream(&current);
            let y = if pass == 2 { forward()? } else { offload.run(forward)? };
            y.square()?.mean(&[], false)?
        };
        device.current_stream().wait_stream(&side)?;
        loss.backward()?;
        let all: Vec<Tensor> = network.parameters().iter().filter_map(Tensor::grad).collect();
        found.push(parameter_values(&all)?);
    }
    assert_eq!(found[0], found[2]);
    assert_eq!(found[1], found[2]);
    Ok(())
}

#[test]
fn no_schedule_has_a_race() {
    checked(40, 1, on_other_streams);
}

#[test]
fn sharded_modules_keep_their_parameters_and_give_up_the_rest() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let x = input(group.device())?;
        let trained = |is_offloaded: bool| -> Result<Vec<f32>> {
            let options = FullyShardOptions::default();
            let mut generator = Generator::new(3);
            let mut layers = Vec::new();
            for _ in 0..3 {
                layers.push(fully_shard(
                    Linear::new(WIDTH, WIDTH, &mut generator, group.device())?,
                    &group,
                    options,
                )?);
            }
            let offload = OffloadOptions { min_bytes: 0, ..OffloadOptions::default() };
            let offload = ActivationOffload::new(group.device(), &[], offload)?;
            let forward = || layers.iter().try_fold(x.clone(), |x, layer| layer.forward(&x)?.tanh());
            let y = if is_offloaded { offload.run(forward)? } else { forward()? };
            assert_eq!(offload.saved() > 0, is_offloaded);
            y.square()?.mean(&[], false)?.backward()?;
            let all: Vec<Tensor> =
                layers.iter().flat_map(Module::parameters).filter_map(|shard| shard.grad()).collect();
            assert_eq!(all.len(), 6);
            parameter_values(&all)
        };
        assert_eq!(trained(true)?, trained(false)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_capture_keeps_what_it_saves() {
    let device = simulated_devices(1).unwrap().remove(0);
    let network = Network::new(2, &device).unwrap();
    let (x, wanted) = (input(&device).unwrap(), gradients(&device, None).unwrap().0.len() / 4);
    let offload = ActivationOffload::new(&device, &network.parameters(), OffloadOptions::default()).unwrap();
    let step = || -> Result<()> {
        network.parameters().iter().for_each(Tensor::zero_grad);
        offload.run(|| network.forward(&x))?.square()?.mean(&[], false)?.backward()
    };
    step().unwrap();
    let read = || -> Vec<f32> {
        let all: Vec<Tensor> = network.parameters().iter().filter_map(Tensor::grad).collect();
        parameter_values(&all).unwrap()
    };
    let eager = read();
    assert_eq!(eager.len(), wanted);
    let (graph, ()) = Graph::capture(&device, CaptureOptions::default(), step).unwrap();
    graph.replay().unwrap();
    device.synchronize().unwrap();
    assert_eq!(read(), eager);
    assert_eq!(x.dtype(), DType::F32);
}
