//! Sharded training with shards, gradients and states in host memory, against the same training with them on the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_dist::{
    FullyShard, FullyShardOptions, LockstepGraph, MixedPrecision, OffloadPolicy, OffloadedOptimizer,
    ProcessGroup, fully_shard, run_ranks, simulated_devices,
};
use thalweg_driver::{Copy, Driver, Endpoint, EventFlags, EventHandle, StreamHandle};
use thalweg_ir::DType;
use thalweg_lock::Mutex;
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_nn::optim::{Adam, AdamOptions, Sgd, SgdOptions};
use thalweg_runtime::{CaptureOptions, Device, Environment, Result};
use thalweg_sim::{SimConfig, SimDriver};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::fully_shard::{Network, Sharded, sharded, step, whole};
use crate::support::{Folder, Gate, checked};

fn options(offload_policy: OffloadPolicy) -> FullyShardOptions {
    FullyShardOptions { offload_policy, ..FullyShardOptions::default() }
}

fn adam() -> AdamOptions {
    AdamOptions { lr: 0.02, ..AdamOptions::default() }
}

/// An optimizer whose states are on the device, or one whose states are offloaded.
enum Steps {
    Device(Adam),
    Host(OffloadedOptimizer<AdamOptions>),
}

impl Steps {
    fn new(network: &Sharded, options: FullyShardOptions) -> Result<Self> {
        Ok(match options.offload_policy {
            OffloadPolicy::None => Self::Device(Adam::new(network.parameters(), adam())?),
            OffloadPolicy::Cpu => Self::Host(OffloadedOptimizer::new(network, adam())?),
        })
    }

    fn step(&self) -> Result<()> {
        match self {
            Self::Device(optimizer) => optimizer.step(),
            Self::Host(optimizer) => optimizer.step(),
        }
    }

    fn set_learning_rate(&self, rate: f64) -> Result<()> {
        match self {
            Self::Device(optimizer) => optimizer.set_learning_rate(rate),
            Self::Host(optimizer) => optimizer.set_learning_rate(rate),
        }
    }
}

/// Trains with accumulation, clipping and a learning rate that changes: the losses, the norms, and the parameters.
fn trained(group: &ProcessGroup, options: FullyShardOptions, steps: u64) -> Result<(Vec<f32>, Vec<f32>)> {
    let network = sharded(group, options)?;
    let optimizer = Steps::new(&network, options)?;
    let mut numbers = Vec::new();
    for number in 0..steps {
        // Gradients of every third step stay: the next ones are added to them.
        numbers.push(step(&network, group.rank(), group.size(), number, group.device())?);
        if number % 3 == 2 {
            continue;
        }
        numbers.push(network.clip_grad_norm_(0.05, 2.0)?.item::<f32>()?);
        optimizer.step()?;
        network.zero_grad();
        optimizer.set_learning_rate(0.02 / (number + 2) as f64)?;
    }
    Ok((numbers, whole(&network)?))
}

#[test]
fn offloaded_training_takes_the_steps_of_other_training() {
    let mixed = MixedPrecision {
        param_dtype: Some(DType::Bf16),
        reduce_dtype: Some(DType::F32),
        output_dtype: Some(DType::F32),
        ..MixedPrecision::default()
    };
    for (ranks, mixed_precision, prefetch) in
        [(1, None, 1), (2, None, 1), (3, None, 2), (4, None, 0), (2, Some(mixed), 1)]
    {
        let run = |policy| {
            let mixed_precision = mixed_precision.unwrap_or_default();
            let options = FullyShardOptions { mixed_precision, prefetch, ..options(policy) };
            run_ranks(&simulated_devices(ranks).unwrap(), |group| trained(&group, options, 6)).unwrap()
        };
        let (found, wanted) = (run(OffloadPolicy::Cpu), run(OffloadPolicy::None));
        for ((losses, parameters), (wanted_losses, wanted)) in found.into_iter().zip(wanted) {
            assert_eq!(losses.len(), wanted_losses.len());
            for (found, wanted) in losses.iter().zip(&wanted_losses) {
                // Norms are those of units' norms, so they are rounded in another order.
                assert!((found - wanted).abs() <= 1e-6 * wanted.abs(), "{losses:?}, not {wanted_losses:?}");
            }
            crate::support::close(&parameters, &wanted, 1e-6);
        }
    }
}

/// Checks that offloading changes no bits. (Without clipping, no sum has another order.)
#[test]
fn offloaded_steps_have_the_bits_of_other_steps() {
    let run = |policy| {
        run_ranks(&simulated_devices(3).unwrap(), |group| {
            let network = sharded(&group, options(policy))?;
            let optimizer = Steps::new(&network, options(policy))?;
            let losses: Result<Vec<f32>> = (0..4)
                .map(|number| {
                    let loss = step(&network, group.rank(), 3, number, group.device())?;
                    optimizer.step()?;
                    network.zero_grad();
                    Ok(loss)
                })
                .collect();
            Ok((losses?, whole(&network)?))
        })
        .unwrap()
    };
    assert_eq!(run(OffloadPolicy::Cpu), run(OffloadPolicy::None));
}

/// Makes layers of equal size, each of which is a unit, between an input layer and an output layer.
fn deep(
    group: &ProcessGroup,
    blocks: usize,
    side: usize,
    policy: FullyShardOptions,
) -> Result<FullyShard<Network<FullyShard<Linear>>>> {
    let (device, mut generator) = (group.device(), Generator::new(1));
    let blocks: Result<Vec<FullyShard<Linear>>> = (0..blocks)
        .map(|_| fully_shard(Linear::new(side, side, &mut generator, device)?, group, policy))
        .collect();
    let ends = [Linear::new(8, side, &mut generator, device)?, Linear::new(side, 8, &mut generator, device)?];
    let [first, last] = ends;
    fully_shard(Network { first, blocks: blocks?, last }, group, policy)
}

#[test]
fn the_device_holds_two_units_and_no_shares_of_the_rest() {
    const BLOCKS: usize = 12;
    const SIDE: usize = 256;
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let device = group.device();
        let network = deep(&group, BLOCKS, SIDE, options(OffloadPolicy::Cpu))?;
        let optimizer = OffloadedOptimizer::new(&network, adam())?;
        device.synchronize()?;
        let unit = 4 * (SIDE * SIDE + SIDE) as u64;
        assert!(device.memory_allocated() < unit / 2, "{} bytes at rest", device.memory_allocated());
        let input = Tensor::ones(&[2, 8], DType::F32, device)?;
        for _ in 0..2 {
            let resting = device.memory_allocated();
            device.allocator().reset_peak_memory_stats();
            network.forward(&input)?.square()?.mean(&[], false)?.backward()?;
            device.synchronize()?;
            let pass = device.max_memory_allocated() - resting;
            // Two units whole, a gradient whole, and parts of two on their way: the network has 12.
            assert!(pass < unit * 5, "{pass} bytes in a pass, {unit} per unit");
            assert!(device.memory_allocated() < unit / 2, "gradients stay: {}", device.memory_allocated());
            device.allocator().reset_peak_memory_stats();
            network.clip_grad_norm_(1.0, 2.0)?;
            optimizer.step()?;
            optimizer.zero_grad();
            device.synchronize()?;
            // Halves of rows, a gradient and two states, with the sources of the states, of two units.
            let step = device.max_memory_allocated() - resting;
            assert!(step < unit * 7, "{step} bytes in a step, {unit} per unit");
            assert!(device.memory_allocated() < unit / 2);
        }
        Ok(())
    })
    .unwrap();
}

/// A rank alone on a simulated machine that notes copies from host memory.
#[derive(Debug)]
struct Copies {
    inner: Arc<SimDriver>,
    /// An event after each copy.
    seen: Mutex<Vec<EventHandle>>,
}

impl Driver for Copies {
    thalweg_driver::wraps!(inner);

    fn copy_async(&self, stream: StreamHandle, copy: &Copy) -> thalweg_driver::Result<()> {
        self.inner.copy_async(stream, copy)?;
        if matches!((&copy.source, &copy.target), (Endpoint::Pinned(_), Endpoint::Device(_))) {
            let event = self.inner.event_create(0, EventFlags::default())?;
            self.inner.event_record(event, stream)?;
            self.seen.lock().push(event);
        }
        Ok(())
    }
}

impl Copies {
    /// Returns whether the first `wanted` copies are done within some time.
    fn arrived(&self, wanted: usize) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) {
            let first: Vec<EventHandle> = self.seen.lock().iter().copied().take(wanted).collect();
            if first.len() == wanted && first.iter().all(|&event| self.inner.event_query(event).unwrap()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

#[test]
fn the_next_units_copies_run_while_a_unit_computes() {
    const BLOCKS: usize = 12;
    const SIDE: usize = 1024;
    let inner = SimDriver::new(SimConfig { memory_bytes: 512 << 20, ..SimConfig::default() }).unwrap();
    let driver = Arc::new(Copies { inner, seen: Mutex::default() });
    let devices = Device::all_of(driver.clone(), Environment::get()).unwrap();
    run_ranks(&devices, |group| {
        let (device, policy) = (group.device(), options(OffloadPolicy::Cpu));
        let network = deep(&group, BLOCKS, SIDE, policy)?;
        let optimizer = OffloadedOptimizer::new(&network, adam())?;
        let input = Tensor::ones(&[2, 8], DType::F32, device)?;
        let unit = 4 * (SIDE * SIDE + SIDE) as u64;
        // With what is freed and still used.
        let active = |device: &Device| device.allocator().statistics().active_bytes.all.current;
        for _ in 0..2 {
            network.forward(&input)?.square()?.mean(&[], false)?.backward()?;
            device.synchronize()?;
            optimizer.step()?;
            optimizer.zero_grad();
            device.synchronize()?;
        }
        let current = device.current_stream();
        // Nothing is computed, and the host is as far ahead as it can be.
        device.empty_cache()?;
        let (resting, gate) = (active(device), Gate::close(&current));
        driver.seen.lock().clear();
        let loss = network.forward(&input)?.square()?.mean(&[], false)?;
        // Weights and biases of the ends and of two blocks.
        assert!(driver.arrived(8), "rows of the first units did not arrive before anything was computed");
        let held = active(device) - resting;
        // Rows on two streams and whole parameters on another, of few units: of 12 they would be 24.
        assert!(held < unit * 9, "{held} bytes are held before anything was computed, {unit} per unit");
        gate.open();
        loss.backward()?;
        device.synchronize()?;
        // A step waits on the host for copies, which wait for the computation.
        let gate = Gate::close(&current);
        driver.seen.lock().clear();
        let has_arrived = std::thread::scope(|scope| {
            let observer = scope.spawn(|| {
                // Rows, gradients and two states, of the ends and of a block.
                let has_arrived = driver.arrived(4 * 4 + 2 * 4);
                gate.open();
                has_arrived
            });
            optimizer.step()?;
            Ok::<bool, thalweg_runtime::Error>(observer.join().expect("no panic"))
        })?;
        assert!(has_arrived, "the copies of the second unit waited for the step of the first");
        device.synchronize()
    })
    .unwrap();
}

#[test]
fn checkpoints_go_between_host_and_device_memory() {
    let folder = Folder::new("offloaded-checkpoints");
    let path = folder.0.join("step-2");
    let wanted = run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = sharded(&group, options(OffloadPolicy::Cpu))?;
        let optimizer = OffloadedOptimizer::new(&network, adam())?;
        let train = |steps: std::ops::Range<u64>| {
            let all = steps.map(|number| {
                let loss = step(&network, 0, 1, number, group.device())?;
                optimizer.step()?;
                optimizer.zero_grad();
                Ok(loss)
            });
            all.collect::<Result<Vec<f32>>>()
        };
        train(0..2)?;
        network.save_sharded(&path, Some(&optimizer.state_dict()?))?;
        let losses = train(2..4)?;
        Ok((losses, whole(&network)?))
    })
    .unwrap();
    for (ranks, policy) in [(2, OffloadPolicy::None), (4, OffloadPolicy::Cpu), (1, OffloadPolicy::Cpu)] {
        let found = run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            let network = sharded(&group, options(policy))?;
            let optimizer = Steps::new(&network, options(policy))?;
            match &optimizer {
                Steps::Device(optimizer) => network.load_sharded(&path, Some(&optimizer.state_dict()))?,
                Steps::Host(optimizer) => {
                    let states = optimizer.state_dict()?;
                    network.load_sharded(&path, Some(&states))?;
                    optimizer.load_state_dict(&states)?;
                }
            }
            let mut losses = Vec::new();
            for number in 2..4 {
                losses.push(step(&network, 0, 1, number, group.device())?);
                optimizer.step()?;
                network.zero_grad();
            }
            Ok((losses, whole(&network)?))
        })
        .unwrap();
        // Every rank has the same batch, and the mean of 2 or 4 equal numbers is exact.
        found.iter().for_each(|found| assert_eq!(found, &wanted[0]));
    }
}

#[test]
fn whole_states_are_loaded_into_host_memory() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let from = sharded(&group, options(OffloadPolicy::None))?;
        step(&from, group.rank(), 2, 0, group.device())?;
        crate::support::descend(&from.parameters())?;
        let to = sharded(&group, options(OffloadPolicy::Cpu))?;
        assert_ne!(whole(&from)?, whole(&to)?);
        to.load_full_state_dict(&from.full_state_dict()?)?;
        assert_eq!(whole(&from)?, whole(&to)?);
        let losses = [&from, &to].map(|network| step(network, group.rank(), 2, 1, group.device()));
        let [wanted, found] = losses;
        assert_eq!(found?, wanted?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn mistakes_with_offloaded_parameters_are_named() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = sharded(&group, options(OffloadPolicy::Cpu))?;
        let error = Adam::new(network.parameters(), adam()).expect_err("no elements").to_string();
        assert!(error.contains("no elements to step") && error.contains("OffloadedOptimizer"), "{error}");
        let other = sharded(&group, options(OffloadPolicy::None))?;
        let error = OffloadedOptimizer::new(&other, SgdOptions::default()).err().expect("on the device");
        assert!(error.to_string().contains("parameter 0 of the module is not in host memory"), "{error}");
        let optimizer = OffloadedOptimizer::new(&network, adam())?;
        assert!(optimizer.set_learning_rate(-1.0).is_err());
        let mut states = optimizer.state_dict()?;
        assert_eq!(states.state.len(), network.parameters().len());
        states.param_groups[0].params.pop();
        let error = optimizer.load_state_dict(&states).unwrap_err().to_string();
        assert!(error.contains("parameters, the optimizer's has"), "{error}");
        let input = Tensor::ones(&[2, 6], DType::F32, group.device())?;
        let error = LockstepGraph::capture(&group, CaptureOptions::default(), || network.forward(&input));
        let error = error.map(drop).unwrap_err().to_string();
        assert!(error.contains("cannot be captured"), "{error}");
        // A rule without states.
        let plain = Sgd::new(other.parameters(), SgdOptions::default())?;
        let offloaded = OffloadedOptimizer::new(&network, SgdOptions::default())?;
        for network in [&other, &network] {
            step(network, 0, 1, 0, group.device())?;
        }
        plain.step()?;
        offloaded.step()?;
        assert_eq!(whole(&network)?, whole(&other)?);
        Ok(())
    })
    .unwrap();
}

fn under_schedules(group: &ProcessGroup, seed: u64) -> Result<()> {
    let options = FullyShardOptions { prefetch: (seed % 3) as usize, ..options(OffloadPolicy::Cpu) };
    trained(group, options, 4).map(drop)
}

#[test]
fn offloaded_steps_have_no_race() {
    checked(3, 1, under_schedules);
    checked(6, 2, under_schedules);
}
