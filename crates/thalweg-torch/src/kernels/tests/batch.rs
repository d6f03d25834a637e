//! Batch norm.
use thalweg_driver::cuda::CompileOptions;

use super::more::view;
use super::*;

/// Batch size, channels, and size of the plane: small planes, of which a part has several; large ones, which are divided; and an
/// empty one.
const CASES: [(i64, i64, &[i64]); 5] =
    [(4, 3, &[5, 4]), (512, 2, &[7]), (2, 3, &[42, 50]), (3, 4, &[80]), (6, 5, &[])];

/// A call's input with its channels in f64: (mean, variance without bias correction, count) of each.
struct Input {
    sizes: Vec<i64>,
    plane: usize,
    channels: usize,
    x: Vec<f32>,
    moments: Vec<(f64, f64)>,
    count: f64,
}

impl Input {
    fn new((batch, channels, places): (i64, i64, &[i64])) -> Self {
        let plane = places.iter().product::<i64>() as usize;
        let sizes: Vec<i64> = [batch, channels].iter().chain(places).copied().collect();
        let (channels, x) = (channels as usize, values(batch as usize * channels as usize * plane));
        let of = |channel: usize| -> Vec<f64> {
            let is_in = |place: &usize| place / plane % channels == channel;
            (0..x.len()).filter(is_in).map(|place| f64::from(x[place])).collect()
        };
        let moments = |channel| {
            let points = of(channel);
            let mean = points.iter().sum::<f64>() / points.len() as f64;
            let variance =
                points.iter().map(|point| (point - mean).powi(2)).sum::<f64>() / points.len() as f64;
            (mean, variance)
        };
        let moments = (0..channels).map(moments).collect();
        let count = (x.len() / channels) as f64;
        Self { sizes, plane, channels, x, moments, count }
    }

    fn channel(&self, place: usize) -> usize {
        place / self.plane % self.channels
    }

    /// Returns the normalized points.
    fn normalized(&self) -> Vec<f64> {
        let point = |(place, &x): (usize, &f32)| {
            let (mean, variance) = self.moments[self.channel(place)];
            (f64::from(x) - mean) / (variance + 1e-5).sqrt()
        };
        self.x.iter().enumerate().map(point).collect()
    }

    fn handle(&self) -> u64 {
        tensor(&self.sizes, &self.x)
    }
}

/// Returns the values of parameters for each channel: weight and bias.
fn parameters(channels: usize) -> [Vec<f32>; 2] {
    let all = values(2 * channels);
    [all[..channels].to_vec(), all[channels..].to_vec()]
}

fn forward(input: u64, parameters: [u64; 4], training: bool) -> Vec<u64> {
    let numbers = [0.25_f64, 1e-5].map(f64::to_bits);
    [input].into_iter().chain(parameters).chain([u64::from(training)]).chain(numbers).collect()
}

#[test]
fn channels_are_normalized_and_running_statistics_move() {
    let kernels = kernels();
    for case in CASES {
        let input = Input::new(case);
        let channels = input.channels;
        let sizes = [channels as i64];
        let [weight, bias] = parameters(channels);
        let given = [&weight, &bias].map(|values| optional(tensor(&sizes, values)));
        let running = [tensor(&sizes, &vec![0.5; channels]), tensor(&sizes, &vec![2.0; channels])];
        // SAFETY: handles of the test's are addresses of words.
        let words = running.map(|handle| unsafe { *(handle as Handle).cast::<u64>() });
        let arguments =
            forward(input.handle(), [given[0], given[1], optional(running[0]), optional(running[1])], true);
        let results = call(&kernels, Operator::BatchNorm, &arguments, 3);
        let [result, mean, deviation] = [0, 1, 2].map(|place| read(results[place]));
        assert_eq!([&result.0, &mean.0, &deviation.0], [&input.sizes, &sizes.to_vec(), &sizes.to_vec()]);
        let expected = input.normalized().into_iter().enumerate().map(|(place, point)| {
            let channel = input.channel(place);
            point * f64::from(weight[channel]) + f64::from(bias[channel])
        });
        assert_near(&result.1, &expected.collect::<Vec<_>>());
        assert_near(&mean.1, &input.moments.iter().map(|moments| moments.0).collect::<Vec<_>>());
        let deviations = input.moments.iter().map(|moments| 1.0 / (moments.1 + 1e-5).sqrt());
        assert_near(&deviation.1, &deviations.collect::<Vec<_>>());
        let [mean, variance] = words.map(|word| read(world(|world| world.handle(word))).1);
        assert_near(&mean, &input.moments.iter().map(|moments| 0.375 + 0.25 * moments.0).collect::<Vec<_>>());
        let unbiased = input.count / (input.count - 1.0);
        let moved = input.moments.iter().map(|moments| 1.5 + 0.25 * moments.1 * unbiased);
        assert_near(&variance, &moved.collect::<Vec<_>>());
        assert_eq!((asked(), objects()), (vec![], 0));
    }
    // Without running statistics.
    let input = Input::new(CASES[0]);
    let given = parameters(3).map(|values| optional(tensor(&[3], &values)));
    let results =
        call(&kernels, Operator::BatchNorm, &forward(input.handle(), [given[0], given[1], 0, 0], true), 3);
    results.into_iter().for_each(|result| drop(read(result)));
    assert_eq!((asked(), objects()), (vec![], 0));
    assert_eq!(kernels.counts(Operator::BatchNorm).taken.load(Ordering::Relaxed), CASES.len() as u64 + 1);
}

#[test]
fn gradients_of_channels_are_those_of_the_formula() {
    let kernels = kernels();
    for case in CASES {
        let input = Input::new(case);
        let channels = input.channels;
        let sizes = [channels as i64];
        let [weight, _] = parameters(channels);
        let gradient: Vec<f32> = values(input.x.len() + 3)[3..].to_vec();
        let of = |value: &dyn Fn(&(f64, f64)) -> f64| -> u64 {
            let values: Vec<f32> = input.moments.iter().map(|moments| value(moments) as f32).collect();
            optional(tensor(&sizes, &values))
        };
        let mean = of(&|moments| moments.0);
        let deviation = of(&|moments| 1.0 / (moments.1 + 1e-5).sqrt());
        let arguments = [
            tensor(&input.sizes, &gradient),
            input.handle(),
            optional(tensor(&sizes, &weight)),
            0,
            0,
            mean,
            deviation,
            1,
            1e-5_f64.to_bits(),
            list(&[1, 1, 1]),
        ];
        let results = call(&kernels, Operator::BatchNormBackward, &arguments, 3);
        let [of_input, of_weight, of_bias] = [0, 1, 2].map(|place| read(results[place]));
        assert_eq!([&of_input.0, &of_weight.0, &of_bias.0], [&input.sizes, &sizes.to_vec(), &sizes.to_vec()]);
        let normalized = input.normalized();
        let mut sums = vec![(0.0, 0.0); channels];
        for (place, (&g, x)) in gradient.iter().zip(&normalized).enumerate() {
            let sum = &mut sums[input.channel(place)];
            *sum = (sum.0 + f64::from(g) * x, sum.1 + f64::from(g));
        }
        let expected = gradient.iter().zip(&normalized).enumerate().map(|(place, (&g, x))| {
            let channel = input.channel(place);
            let (along, sum) = sums[channel];
            let inverse = 1.0 / (input.moments[channel].1 + 1e-5).sqrt();
            f64::from(weight[channel])
                * inverse
                * (f64::from(g) - sum / input.count - x * along / input.count)
        });
        assert_near(&of_input.1, &expected.collect::<Vec<_>>());
        // Sums of many points.
        for (actual, expected) in of_weight
            .1
            .iter()
            .zip(&sums)
            .map(|(actual, sums)| (actual, sums.0))
            .chain(of_bias.1.iter().zip(&sums).map(|(actual, sums)| (actual, sums.1)))
        {
            assert!(
                (f64::from(*actual) - expected).abs() < 1e-5 * (1.0 + input.count),
                "{actual}, {expected}"
            );
        }
        assert_eq!((asked(), objects()), (vec![], 0));
    }
}

#[test]
fn batches_that_are_not_taken_go_to_pytorchs_kernel_as_they_came() {
    let (kernels, x) = (kernels(), values(24));
    let parameter = || optional(tensor(&[4], &x[..4]));
    let pass_on = |operator: Operator, arguments: Vec<u64>, text: &str| {
        let results = call(&kernels, operator, &arguments, 3);
        assert_eq!(results.into_iter().map(|result| read(result).0).collect::<Vec<_>>(), [[1], [2], [3]]);
        assert_eq!((asked(), objects()), (vec![text.to_owned()], 0));
    };
    let input = || tensor(&[2, 4, 3], &x);
    let all = |input| forward(input, [parameter(), parameter(), parameter(), parameter()], true);
    pass_on(
        Operator::BatchNorm,
        forward(input(), [0; 4], true),
        "batch [2, 4, 3] [false, false, false, false] true 0.25 0.00001",
    );
    pass_on(
        Operator::BatchNorm,
        forward(input(), [parameter(), parameter(), parameter(), 0], true),
        "batch [2, 4, 3] [true, true, true, false] true 0.25 0.00001",
    );
    pass_on(
        Operator::BatchNorm,
        forward(input(), [parameter(), parameter(), parameter(), parameter()], false),
        "batch [2, 4, 3] [true, true, true, true] false 0.25 0.00001",
    );
    let text = "batch [2, 4, 3] [true, true, true, true] true 0.25 0.00001";
    pass_on(Operator::BatchNorm, all(view(&[2, 4, 3], &[12, 1, 4], &x)), text);
    pass_on(
        Operator::BatchNorm,
        all(tensor(&[24], &x)),
        "batch [24] [true, true, true, true] true 0.25 0.00001",
    );
    let few = || optional(tensor(&[3], &x[..3]));
    pass_on(
        Operator::BatchNorm,
        forward(input(), [parameter(), few(), parameter(), parameter()], true),
        text,
    );
    pass_on(
        Operator::BatchNorm,
        forward(input(), [parameter(), parameter(), few(), parameter()], true),
        text,
    );
    let back = |training: u64, mask: [u64; 3], gradient: u64| {
        let statistics = [parameter(), 0, 0, parameter(), parameter()];
        let numbers = [training, 1e-5_f64.to_bits(), list(&mask)];
        [gradient, input()].into_iter().chain(statistics).chain(numbers).collect::<Vec<_>>()
    };
    let text = "batch_backward [2, 4, 3] [2, 4, 3] [true, false, false, true, true]";
    pass_on(
        Operator::BatchNormBackward,
        back(0, [1; 3], input()),
        &format!("{text} false 0.00001 [true, true, true]"),
    );
    pass_on(
        Operator::BatchNormBackward,
        back(1, [1, 0, 1], input()),
        &format!("{text} true 0.00001 [true, false, true]"),
    );
    let other = view(&[2, 4, 3], &[12, 1, 4], &x);
    pass_on(
        Operator::BatchNormBackward,
        back(1, [1; 3], other),
        &format!("{text} true 0.00001 [true, true, true]"),
    );
}

#[test]
fn the_update_of_running_statistics_compiles() {
    let Ok(compiler) = thalweg_runtime::compiler() else {
        println!("skipped: there is no NVRTC here");
        return;
    };
    for dtype in [DType::F32, DType::Bf16] {
        let update = super::super::channels::update(dtype);
        let extra = thalweg_ir::cuda::OPTIONS.iter().map(|&option| option.to_owned()).collect();
        let options = CompileOptions { fmad: false, extra, ..CompileOptions::new("sm_90") };
        let source = thalweg_ir::cuda::print_foreach(&update);
        let compiled = compiler.compile(&source, &update.name, &options);
        assert!(!compiled.unwrap_or_else(|error| panic!("{dtype}: {error}")).cubin.is_empty());
    }
}
