//! Whole steps as graphs: n runs equal n eager steps, bit for bit, random numbers included.

use thalweg_ir::DType;
use thalweg_nn::functional::{cross_entropy, dropout};
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_nn::optim::{Adam, AdamOptions, AdamW, AdamWOptions, GradientScaler, GradientScalerOptions};
use thalweg_runtime::sim::Check;
use thalweg_runtime::{CaptureOptions, Device, Graph, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::graph::{StepOptions, capture_step};
use thalweg_tensor::random::{DeviceGenerator, Generator};

use crate::support::own_device as device;

const BATCH: usize = 8;

/// The first scales are too large for the gradients; then the scale grows every other step.
const SCALING: GradientScalerOptions = GradientScalerOptions {
    init_scale: 3e38,
    growth_factor: 2.0,
    backoff_factor: 0.0625,
    growth_interval: 2,
};

/// Tensors as bits, and the position in the random numbers.
type State = (Vec<Vec<u32>>, (u64, u64));

/// A network with dropout, trained with scaled gradients.
struct Training {
    first: Linear,
    second: Linear,
    optimizer: AdamW,
    random: DeviceGenerator,
    scaler: GradientScaler,
    images: Tensor,
    classes: Tensor,
}

impl Training {
    fn new(device: &Device) -> Result<Self> {
        let mut generator = Generator::new(3);
        let first = Linear::new(6, 10, &mut generator, device)?;
        let second = Linear::new(10, 4, &mut generator, device)?;
        let parameters = first.parameters().into_iter().chain(second.parameters()).collect();
        let options = AdamWOptions { lr: 0.01, ..AdamWOptions::default() };
        Ok(Self {
            optimizer: AdamW::new(parameters, options)?,
            random: DeviceGenerator::new(11, device)?,
            scaler: GradientScaler::new(SCALING, device)?,
            images: Tensor::zeros(&[BATCH, 6], DType::F32, device)?,
            classes: Tensor::zeros(&[BATCH], DType::I64, device)?,
            first,
            second,
        })
    }

    /// Puts a batch into the tensors that the step reads.
    fn load(&self, number: u64) -> Result<()> {
        let mut generator = Generator::new(number);
        let device = self.images.device();
        self.images.copy_(&Tensor::uniform(&[BATCH, 6], -1.0, 1.0, &mut generator, device)?)?;
        let classes: Vec<i64> = (0..BATCH).map(|_| i64::from(generator.below(4).unwrap())).collect();
        self.classes.copy_(&Tensor::from_slice(&classes, &[BATCH], device)?)
    }

    fn step(&self) -> Result<Tensor> {
        self.optimizer.zero_grad();
        let hidden = dropout(&self.first.forward(&self.images)?.gelu()?, 0.25, true, &self.random)?;
        let loss = cross_entropy(&self.second.forward(&hidden)?, &self.classes)?;
        self.scaler.scale(&loss.mul_scalar(64.0)?)?.backward()?;
        self.scaler.step(&self.optimizer)?;
        self.scaler.update()?;
        Ok(loss.detach())
    }

    /// Everything that the step changes, as bits.
    fn state(&self) -> Result<State> {
        let parameters = self.first.parameters().into_iter().chain(self.second.parameters());
        let bits = |tensor: Tensor| {
            Ok(tensor.detach().to_vec::<f32>()?.into_iter().map(f32::to_bits).collect::<Vec<u32>>())
        };
        let steps = self.optimizer.param_groups()[0].steps(0).clone();
        let tensors = parameters.chain([steps, self.scaler.state().scale.clone()]);
        Ok((tensors.map(bits).collect::<Result<_>>()?, self.random.state()?))
    }
}

fn eager(device: &Device, steps: u64) -> Result<(Vec<u32>, Training)> {
    let training = Training::new(device)?;
    let mut losses = Vec::new();
    for number in 0..steps {
        training.load(number)?;
        losses.push(training.step()?.item::<f32>()?.to_bits());
    }
    Ok((losses, training))
}

fn captured(device: &Device, steps: u64, warm_up: usize) -> Result<(Vec<u32>, Training)> {
    let training = Training::new(device)?;
    let mut losses = Vec::new();
    {
        let options = StepOptions { warm_up, ..StepOptions::default() };
        let mut step = capture_step(device, options, || training.step());
        for number in 0..steps {
            training.load(number)?;
            losses.push(step.run()?.item::<f32>()?.to_bits());
            assert_eq!(step.graph().is_some(), number >= warm_up as u64);
        }
    }
    Ok((losses, training))
}

#[test]
fn as_many_runs_are_as_many_eager_steps() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let (expected, eager) = eager(&device, 9).unwrap();
    let expected_state = eager.state().unwrap();
    assert!(f32::from_bits(expected[8]).is_finite());
    let counted = eager.optimizer.param_groups()[0].steps(0).item::<f32>().unwrap();
    assert!(
        counted > 0.0 && counted < 9.0,
        "some steps count, those with infinite gradients do not: {counted}"
    );
    for warm_up in [1, 4] {
        let (found, training) = captured(&device, 9, warm_up).unwrap();
        assert_eq!(found, expected);
        assert_eq!(training.state().unwrap(), expected_state);
    }
}

#[test]
fn a_captured_step_passes_the_sanitizer() {
    Check::new().seeds(0..6).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let stream = Stream::new(device)?;
        let _current = stream.make_current();
        let (expected, _) = eager(device, 4)?;
        assert_eq!(captured(device, 4, 1)?.0, expected);
        Ok(())
    });
}

#[test]
fn a_step_that_cannot_be_captured_says_so_and_tries_again() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let x = Tensor::ones(&[4], DType::F32, &device).unwrap();
    let reads = std::cell::Cell::new(true);
    let mut step = capture_step(&device, StepOptions { warm_up: 1, ..StepOptions::default() }, || {
        let doubled = x.mul_scalar(2.0)?;
        if reads.get() {
            doubled.to_vec::<f32>()?;
        }
        Ok(doubled)
    });
    step.run().unwrap();
    let error = step.run().unwrap_err();
    assert!(error.is_capture(), "{error}");
    assert!(step.graph().is_none());
    reads.set(false);
    assert_eq!(step.run().unwrap().to_vec::<f32>().unwrap(), [2.0; 4]);
    assert!(step.graph().is_some());
    x.copy_(&Tensor::full(&[], 5.0, DType::F32, &device).unwrap()).unwrap();
    step.reset();
    assert_eq!(step.run().unwrap().to_vec::<f32>().unwrap(), [10.0; 4]);
}

/// Returns a draw of two generators, and their states afterwards.
fn draw(one: &DeviceGenerator, other: &DeviceGenerator) -> Result<Tensor> {
    let noise = one.randn(&[300], DType::F32)?;
    dropout(&noise, 0.5, true, one)?.add(&other.rand(&[300], DType::F32)?)
}

#[test]
fn offsets_and_seeds_over_replays_are_those_of_eager_runs() {
    let device = device();
    let compute = Stream::new(&device).unwrap();
    let _current = compute.make_current();
    let pair = || [7, 9].map(|seed| DeviceGenerator::new(seed, &device).unwrap());
    let (eager, graphed) = (pair(), pair());
    draw(&graphed[0], &graphed[1]).unwrap();
    draw(&eager[0], &eager[1]).unwrap();
    let region = || draw(&graphed[0], &graphed[1]);
    let (graph, noise) = Graph::capture(&device, CaptureOptions::default(), region).unwrap();
    let before = eager[0].state().unwrap();
    assert_eq!(graphed[0].state().unwrap(), before, "a capture draws nothing");
    for round in 0..6u64 {
        match round {
            // A seed between replays is honoured, and so is a state.
            2 => [&eager, &graphed].map(|pair| pair[0].manual_seed(100)).map(Result::unwrap),
            4 => [&eager, &graphed].map(|pair| pair[1].set_state(5, 40)).map(Result::unwrap),
            _ => [(); 2],
        };
        let expected = draw(&eager[0], &eager[1]).unwrap().to_vec::<f32>().unwrap();
        graph.replay().unwrap();
        assert_eq!(noise.to_vec::<f32>().unwrap(), expected, "round {round}");
        for (eager, graphed) in eager.iter().zip(&graphed) {
            assert_eq!(graphed.state().unwrap(), eager.state().unwrap());
        }
    }
    let error = Graph::capture(&device, CaptureOptions::default(), || graphed[0].manual_seed(1)).unwrap_err();
    assert!(error.is_capture(), "{error}");
}

#[test]
fn replays_of_two_generators_may_run_at_the_same_time() {
    Check::new().seeds(0..12).run(|gpu| -> Result<()> {
        let device = gpu.device();
        let mut graphs = Vec::new();
        for seed in [1, 2] {
            let stream = Stream::new(device)?;
            let _current = stream.make_current();
            let generator = DeviceGenerator::new(seed, device)?;
            let expected: Vec<Vec<f32>> =
                (0..3).map(|_| generator.rand(&[64], DType::F32)?.to_vec::<f32>()).collect::<Result<_>>()?;
            generator.manual_seed(seed)?;
            let (graph, noise) =
                Graph::capture(device, CaptureOptions::default(), || generator.rand(&[64], DType::F32))?;
            graphs.push((stream, generator, graph, noise, expected));
        }
        for round in 0..3 {
            for (stream, _, graph, ..) in &graphs {
                let _current = stream.make_current();
                graph.replay()?;
            }
            for (stream, _, _, noise, expected) in &graphs {
                let _current = stream.make_current();
                assert_eq!(noise.to_vec::<f32>()?, expected[round]);
            }
        }
        Ok(())
    });
}

#[test]
fn the_scale_shrinks_where_gradients_are_infinite_and_grows_where_they_are_not() {
    let device = device();
    let options = GradientScalerOptions { init_scale: 8.0, growth_interval: 2, ..Default::default() };
    let scaler = GradientScaler::new(options, &device).unwrap();
    let weight = Tensor::ones(&[3], DType::F32, &device).unwrap().requires_grad_().unwrap();
    let optimizer = Adam::new(vec![weight.clone()], AdamOptions::default()).unwrap();
    let run = |factor: f32| {
        optimizer.zero_grad();
        let factor = Tensor::full(&[], f64::from(factor), DType::F32, &device).unwrap();
        let loss = weight.sum(&[], false).unwrap().mul(&factor).unwrap();
        scaler.scale(&loss).unwrap().backward().unwrap();
        scaler.step(&optimizer).unwrap();
        scaler.update().unwrap();
        [&scaler.state().scale, optimizer.param_groups()[0].steps(0)]
            .map(|tensor| tensor.item::<f32>().unwrap())
    };
    // The results of PyTorch's `_amp_update_scale_`.
    let expected = [(1.0, [8.0, 1.0]), (1.0, [16.0, 2.0]), (1.0, [16.0, 3.0]), (f32::INFINITY, [8.0, 3.0])];
    let expected = expected.into_iter().chain([(1.0, [8.0, 4.0]), (f32::NAN, [4.0, 4.0]), (1.0, [4.0, 5.0])]);
    for (factor, expected) in expected {
        assert_eq!(run(factor), expected);
    }
    assert!(weight.detach().to_vec::<f32>().unwrap().iter().all(|value| value.is_finite() && *value < 1.0));
    let wrong = GradientScalerOptions { backoff_factor: 0.0, ..Default::default() };
    assert!(GradientScaler::new(wrong, &device).unwrap_err().is_invalid_argument());
}

#[test]
fn unscaled_gradients_are_those_of_the_loss_and_step_as_scaled_ones_do() {
    let device = device();
    let options = GradientScalerOptions { init_scale: 8.0, growth_interval: 100, ..Default::default() };
    let trained = |unscales: bool| {
        let parameter = Tensor::from_slice(&[1.0f32, 2.0], &[2], &device).unwrap().requires_grad_().unwrap();
        let optimizer = Adam::new(vec![parameter.clone()], AdamOptions::default()).unwrap();
        let scaler = GradientScaler::new(options, &device).unwrap();
        for factor in [3.0, f64::INFINITY, -2.0] {
            parameter.set_grad(None).unwrap();
            let loss = parameter.mul_scalar(factor).unwrap().sum(&[], false).unwrap();
            scaler.scale(&loss).unwrap().backward().unwrap();
            if unscales {
                scaler.unscale(&optimizer).unwrap();
                let gradient = parameter.grad().unwrap().to_vec::<f32>().unwrap();
                assert_eq!(gradient, [factor as f32; 2]);
                scaler.step_unscaled(&optimizer).unwrap();
            } else {
                scaler.step(&optimizer).unwrap();
            }
            scaler.update().unwrap();
        }
        (parameter.to_vec::<f32>().unwrap(), scaler.state().scale.to_vec::<f32>().unwrap())
    };
    let found = trained(true);
    assert_eq!(found, trained(false));
    assert_eq!(found.1, [4.0], "the step that was not finite");
}

#[test]
fn a_gradient_that_is_not_finite_stops_its_own_optimizer_only() {
    let device = device();
    for unscales in [false, true] {
        let scaler = GradientScaler::new(GradientScalerOptions::default(), &device).unwrap();
        let parameters =
            [0, 1].map(|_| Tensor::ones(&[2], DType::F32, &device).unwrap().requires_grad_().unwrap());
        let optimizers = parameters
            .each_ref()
            .map(|parameter| Adam::new(vec![parameter.clone()], AdamOptions::default()).unwrap());
        for (parameter, factor) in parameters.iter().zip([f64::INFINITY, 3.0]) {
            let loss = parameter.mul_scalar(factor).unwrap().sum(&[], false).unwrap();
            scaler.scale(&loss).unwrap().backward().unwrap();
        }
        for optimizer in &optimizers {
            if unscales {
                scaler.unscale(optimizer).unwrap();
                scaler.step_unscaled(optimizer).unwrap();
            } else {
                scaler.step(optimizer).unwrap();
            }
        }
        scaler.update().unwrap();
        let [stopped, stepped] = parameters.each_ref().map(|parameter| parameter.to_vec::<f32>().unwrap());
        assert_eq!(stopped, [1.0; 2]);
        assert!(stepped.iter().all(|value| *value < 1.0), "{stepped:?}");
        assert_eq!(scaler.state().scale.item::<f32>().unwrap(), 32_768.0);
    }
    let scaler = GradientScaler::new(GradientScalerOptions::default(), &device).unwrap();
    let parameter = Tensor::ones(&[2], DType::F32, &device).unwrap().requires_grad_().unwrap();
    assert!(scaler.unscale_gradients(std::slice::from_ref(&parameter)).unwrap_err().is_invalid_argument());
    parameter.set_grad(Some(Tensor::full(&[2], 65_536.0, DType::F32, &device).unwrap())).unwrap();
    assert_eq!(
        scaler.unscale_gradients(std::slice::from_ref(&parameter)).unwrap().item::<f32>().unwrap(),
        0.0
    );
    assert_eq!(parameter.grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 2]);
}
