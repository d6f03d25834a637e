//! Group norm.
use super::more::view;
use super::*;

/// Returns the arguments of a call: input, parameters, and batch, channels, plane and groups.
fn arguments(input: u64, parameters: [u64; 2], sizes: [i64; 4]) -> Vec<u64> {
    let mut arguments = vec![input, parameters[0], parameters[1]];
    arguments.extend(sizes.map(i64::cast_unsigned));
    arguments.push(1e-5_f64.to_bits());
    arguments
}

#[test]
fn groups_are_normalized_with_the_weights_of_their_channels() {
    // Batch, channels, groups, and the plane: none, one and two dimensions of points.
    // The last two have groups that a block does not hold, in parts of 6,144 and of 4,099 points.
    let cases: [(i64, i64, i64, &[i64]); 7] = [
        (2, 6, 3, &[5, 4]),
        (3, 4, 1, &[8]),
        (1, 6, 6, &[2, 3]),
        (4, 6, 2, &[]),
        (2, 8, 2, &[1, 7]),
        (2, 4, 2, &[96, 96]),
        (1, 4, 1, &[4099]),
    ];
    for (batch, channels, groups, places) in cases {
        let kernels = kernels();
        let plane: i64 = places.iter().product();
        let sizes: Vec<i64> = [batch, channels].iter().chain(places).copied().collect();
        let [each, row] = [plane as usize, (channels / groups * plane) as usize];
        let x = values((batch * channels * plane) as usize);
        let (weight, bias) =
            (values(channels as usize), values(2 * channels as usize)[channels as usize..].to_vec());
        let parameters = [&weight, &bias].map(|values| optional(tensor(&[channels], values)));
        let arguments = arguments(tensor(&sizes, &x), parameters, [batch, channels, plane, groups]);
        let results = call(&kernels, Operator::GroupNorm, &arguments, 3);
        let [result, mean, deviation] = [0, 1, 2].map(|place| read(results[place]));
        assert_eq!([&result.0, &mean.0, &deviation.0], [&sizes, &vec![batch, groups], &vec![batch, groups]]);
        let rows = norm_of(&x, row);
        assert_near(&mean.1, &rows.iter().map(|row| row.0).collect::<Vec<_>>());
        // A group of few points may have little variance, and so a great inverse deviation.
        for (actual, (_, expected)) in deviation.1.iter().zip(&rows) {
            assert!((f64::from(*actual) - expected).abs() < 1e-5 * expected.max(1.0), "{actual}, {expected}");
        }
        let expected = x.iter().enumerate().map(|(place, &x)| {
            let (mean, deviation) = rows[place / row];
            let channel = place / each % channels as usize;
            (f64::from(x) - mean) * deviation * f64::from(weight[channel]) + f64::from(bias[channel])
        });
        assert_near(&result.1, &expected.collect::<Vec<_>>());
        assert_eq!((asked(), objects()), (vec![], 0));
        assert_eq!(kernels.counts(Operator::GroupNorm).taken.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn groups_of_halfs_keep_rounded_statistics_and_are_normalized_by_exact_ones() {
    // A group that a block holds, and one that is divided into parts.
    for plane in [64, 9216] {
        let (batch, channels, groups) = (2, 4, 2);
        let kernels = kernels();
        let sizes = [batch, channels, plane];
        let row = (channels / groups * plane) as usize;
        // A mean that is far from 0 is rounded by more than the result.
        let round = |value: f32| f16::from_f32(value).to_f32();
        let x: Vec<f32> =
            values((batch * channels * plane) as usize).iter().map(|x| round(x + 40.3)).collect();
        let [weight, bias] = [vec![1.0; 4], vec![0.0; 4]];
        let parameters = [&weight, &bias].map(|values| optional(halfs(&[channels], values)));
        let arguments = arguments(halfs(&sizes, &x), parameters, [batch, channels, plane, groups]);
        let results = call(&kernels, Operator::GroupNorm, &arguments, 3);
        let [result, mean, deviation] = [0, 1, 2].map(|place| read(results[place]));
        assert_eq!([&mean.0, &deviation.0], [&vec![batch, groups]; 2]);
        let rows = norm_of(&x, row);
        for (group, (exact_mean, exact_deviation)) in rows.iter().enumerate() {
            assert_eq!(mean.1[group], round(*exact_mean as f32));
            assert_eq!(deviation.1[group], round(*exact_deviation as f32));
        }
        for (place, (&result, &x)) in result.1.iter().zip(&x).enumerate() {
            let (mean, deviation) = rows[place / row];
            let expected = (f64::from(x) - mean) * deviation;
            assert!(
                (f64::from(result) - expected).abs() < 1e-3 * expected.abs().max(1.0),
                "{result}, {expected}"
            );
        }
        assert_eq!((asked(), objects()), (vec![], 0));
        assert_eq!(kernels.counts(Operator::GroupNorm).taken.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn groups_that_are_not_taken_go_to_pytorchs_kernel_as_they_came() {
    let (kernels, x) = (kernels(), values(24));
    let parameter = || optional(tensor(&[4], &x[..4]));
    let pass_on = |arguments: Vec<u64>, text: &str| {
        let results = call(&kernels, Operator::GroupNorm, &arguments, 3);
        assert_eq!(results.into_iter().map(|result| read(result).0).collect::<Vec<_>>(), [[1], [2], [3]]);
        assert_eq!((asked(), objects()), (vec![text.to_owned()], 0));
    };
    let input = || tensor(&[2, 4, 3], &x);
    pass_on(arguments(input(), [0, 0], [2, 4, 3, 2]), "group [2, 4, 3] false false 2 4 3 2 0.00001");
    pass_on(arguments(input(), [parameter(), 0], [2, 4, 3, 2]), "group [2, 4, 3] true false 2 4 3 2 0.00001");
    // Sizes that contradict the input, groups that do not divide the channels, and none.
    for sizes in [[2, 4, 2, 2], [4, 4, 3, 2], [2, 4, 3, 3], [2, 4, 3, 0], [2, 4, 3, -2]] {
        let [batch, channels, plane, groups] = sizes;
        let text = format!("group [2, 4, 3] true true {batch} {channels} {plane} {groups} 0.00001");
        pass_on(arguments(input(), [parameter(), parameter()], sizes), &text);
    }
    let few = optional(tensor(&[3], &x[..3]));
    pass_on(
        arguments(input(), [parameter(), few], [2, 4, 3, 2]),
        "group [2, 4, 3] true true 2 4 3 2 0.00001",
    );
    let other = view(&[2, 4, 3], &[12, 1, 4], &x);
    pass_on(
        arguments(other, [parameter(), parameter()], [2, 4, 3, 2]),
        "group [2, 4, 3] true true 2 4 3 2 0.00001",
    );
    // Nothing was measured in PyTorch yet, so the table has no line.
    kernels.everywhere.store(false, Ordering::Relaxed);
    pass_on(
        arguments(input(), [parameter(), parameter()], [2, 4, 3, 2]),
        "group [2, 4, 3] true true 2 4 3 2 0.00001",
    );
}

/// Returns the arguments of a call of the gradient: four tensors, weight, sizes and mask.
fn backward_arguments(tensors: [u64; 4], weight: u64, sizes: [i64; 4], mask: [bool; 3]) -> Vec<u64> {
    let mut arguments = tensors.to_vec();
    arguments.push(weight);
    arguments.extend(sizes.map(i64::cast_unsigned));
    arguments.push(list(&mask.map(u64::from)));
    arguments
}

#[test]
fn gradients_of_groups_are_those_of_the_formula() {
    let cases: [(i64, i64, i64, &[i64]); 4] =
        [(2, 6, 3, &[5, 4]), (3, 4, 1, &[8]), (4, 6, 2, &[]), (2, 2, 1, &[80, 64])];
    for (batch, channels, groups, places) in cases {
        let kernels = kernels();
        let plane: i64 = places.iter().product();
        let sizes: Vec<i64> = [batch, channels].iter().chain(places).copied().collect();
        let [each, row] = [plane as usize, (channels / groups * plane) as usize];
        let count = (batch * channels * plane) as usize;
        let (x, gradient) = (values(count), values(2 * count)[count..].to_vec());
        let weight = values(channels as usize);
        let rows = norm_of(&x, row);
        let [mean, deviation]: [Vec<f32>; 2] =
            [rows.iter().map(|row| row.0 as f32).collect(), rows.iter().map(|row| row.1 as f32).collect()];
        let statistics = [batch, groups];
        let tensors = [
            tensor(&sizes, &gradient),
            tensor(&sizes, &x),
            tensor(&statistics, &mean),
            tensor(&statistics, &deviation),
        ];
        let weights = optional(tensor(&[channels], &weight));
        let arguments = backward_arguments(tensors, weights, [batch, channels, plane, groups], [true; 3]);
        let results = call(&kernels, Operator::GroupNormBackward, &arguments, 3);
        let [of_input, of_weight, of_bias] = [0, 1, 2].map(|place| read(results[place]));
        assert_eq!([&of_input.0, &of_weight.0, &of_bias.0], [&sizes, &vec![channels], &vec![channels]]);

        let channel = |place: usize| place / each % channels as usize;
        let normalized = |place: usize| (f64::from(x[place]) - rows[place / row].0) * rows[place / row].1;
        let weighted = |place: usize| f64::from(gradient[place]) * f64::from(weight[channel(place)]);
        let mean_of = |group: usize, term: &dyn Fn(usize) -> f64| {
            (group * row..(group + 1) * row).map(term).sum::<f64>() / row as f64
        };
        let terms: Vec<[f64; 2]> = (0..rows.len())
            .map(|group| {
                [mean_of(group, &weighted), mean_of(group, &|place| weighted(place) * normalized(place))]
            })
            .collect();
        let expected = (0..count).map(|place| {
            let [level, slope] = terms[place / row];
            rows[place / row].1 * (weighted(place) - level - normalized(place) * slope)
        });
        let near = |actual: &[f32], expected: &[f64]| {
            let most = expected.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
            for (actual, expected) in actual.iter().zip(expected) {
                assert!((f64::from(*actual) - expected).abs() < 2e-5 * most, "{actual}, {expected}");
            }
        };
        near(&of_input.1, &expected.collect::<Vec<_>>());
        let mut sums = vec![[0.0; 2]; channels as usize];
        for place in 0..count {
            let [of_weight, of_bias] = &mut sums[channel(place)];
            *of_weight += f64::from(gradient[place]) * normalized(place);
            *of_bias += f64::from(gradient[place]);
        }
        near(&of_weight.1, &sums.iter().map(|sums| sums[0]).collect::<Vec<_>>());
        near(&of_bias.1, &sums.iter().map(|sums| sums[1]).collect::<Vec<_>>());
        assert_eq!((asked(), objects()), (vec![], 0));
        assert_eq!(kernels.counts(Operator::GroupNormBackward).taken.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn gradients_that_are_not_taken_go_to_pytorchs_kernel_as_they_came() {
    let (kernels, x) = (kernels(), values(24));
    let whole = || tensor(&[2, 4, 3], &x);
    let statistic = || tensor(&[2, 2], &x[..4]);
    let parameter = || optional(tensor(&[4], &x[..4]));
    let pass_on = |arguments: Vec<u64>, text: &str| {
        let results = call(&kernels, Operator::GroupNormBackward, &arguments, 3);
        assert_eq!(results.into_iter().map(|result| read(result).0).collect::<Vec<_>>(), [[1], [2], [3]]);
        assert_eq!((asked(), objects()), (vec![text.to_owned()], 0));
    };
    let tensors = || [whole(), whole(), statistic(), statistic()];
    let sizes = [2, 4, 3, 2];
    pass_on(
        backward_arguments(tensors(), 0, sizes, [true; 3]),
        "group_backward [2, 4, 3] [2, 4, 3] false 2 4 3 2 [true, true, true]",
    );
    pass_on(
        backward_arguments(tensors(), parameter(), sizes, [true, false, true]),
        "group_backward [2, 4, 3] [2, 4, 3] true 2 4 3 2 [true, false, true]",
    );
    pass_on(
        backward_arguments(tensors(), parameter(), [2, 4, 3, 3], [true; 3]),
        "group_backward [2, 4, 3] [2, 4, 3] true 2 4 3 3 [true, true, true]",
    );
    let others = [whole(), whole(), tensor(&[4], &x[..4]), statistic()];
    pass_on(
        backward_arguments(others, parameter(), sizes, [true; 3]),
        "group_backward [2, 4, 3] [2, 4, 3] true 2 4 3 2 [true, true, true]",
    );
}
