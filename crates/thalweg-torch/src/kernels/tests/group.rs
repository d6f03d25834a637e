//! Group norm.
use super::more::view;
use super::*;

/// The arguments of a call: input, parameters, and batch, channels, plane and groups.
fn arguments(input: u64, parameters: [u64; 2], sizes: [i64; 4]) -> Vec<u64> {
    let mut arguments = vec![input, parameters[0], parameters[1]];
    arguments.extend(sizes.map(i64::cast_unsigned));
    arguments.push(1e-5_f64.to_bits());
    arguments
}

#[test]
fn groups_are_normalized_with_the_weights_of_their_channels() {
    // Batch, channels, groups, and the plane: none, one and two dimensions of points.
    let cases: [(i64, i64, i64, &[i64]); 5] =
        [(2, 6, 3, &[5, 4]), (3, 4, 1, &[8]), (1, 6, 6, &[2, 3]), (4, 6, 2, &[]), (2, 8, 2, &[1, 7])];
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
