//! Pools, columns and convolutions of one, two and three axes, compared with loops over windows.

use thalweg_tensor::autograd::gradients;
use thalweg_tensor::dispatch::Value;
use thalweg_tensor::{MemoryFormat, Tensor};

use crate::norms::call;
use crate::support::{assert_close, check_gradient, random, values};

fn of(tensor: &Tensor) -> Value {
    Value::Tensor(tensor.clone())
}

fn ints(list: &[i64]) -> Value {
    Value::Ints(list.to_vec())
}

/// Returns an image with padding: 0 outside.
fn at(image: &[f64], [height, width]: [i64; 2], y: i64, x: i64) -> f64 {
    if (0..height).contains(&y) && (0..width).contains(&x) { image[(y * width + x) as usize] } else { 0.0 }
}

#[test]
fn averages_over_windows() {
    let x = random(&[2, 1, 5, 4], 1);
    let pool = |x: &Tensor, counts: bool| {
        call(
            "avg_pool2d",
            &[of(x), ints(&[3, 2]), ints(&[2, 1]), ints(&[1, 1]), Value::Bool(false), Value::Bool(counts)],
        )
        .remove(0)
    };
    for counts in [true, false] {
        let mut expected = Vec::new();
        for image in values(&x).chunks(20) {
            for y in 0..3i64 {
                for column in 0..5i64 {
                    let places = (0..6).map(|place| (y * 2 - 1 + place / 2, column - 1 + place % 2));
                    let inside =
                        places.clone().filter(|(y, x)| (0..5).contains(y) && (0..4).contains(x)).count();
                    let sum: f64 = places.map(|(y, x)| at(image, [5, 4], y, x)).sum();
                    expected.push(sum / if counts { 6.0 } else { inside as f64 });
                }
            }
        }
        assert_close(&values(&pool(&x, counts)), &expected, 1e-12);
        check_gradient(&x, |x| pool(x, counts).mul(&random(&[2, 1, 3, 5], 8)).unwrap());
    }
    let adaptive = |x: &Tensor| call("adaptive_avg_pool2d", &[of(x), ints(&[3, 3])]).remove(0);
    let mut expected = Vec::new();
    for image in values(&x).chunks(20) {
        for (y, column) in (0..9usize).map(|place| (place / 3, place % 3)) {
            let (rows, columns) =
                (y * 5 / 3..((y + 1) * 5).div_ceil(3), column * 4 / 3..((column + 1) * 4).div_ceil(3));
            let count = rows.len() * columns.len();
            let sum: f64 =
                rows.flat_map(|y| columns.clone().map(move |x| (y, x))).map(|(y, x)| image[y * 4 + x]).sum();
            expected.push(sum / count as f64);
        }
    }
    assert_close(&values(&adaptive(&x)), &expected, 1e-12);
    check_gradient(&x, |x| adaptive(x).mul(&random(&[2, 1, 3, 3], 8)).unwrap());
}

#[test]
fn greatest_of_windows_and_their_places() {
    let x = random(&[3, 7], 2);
    let pool = |x: &Tensor| {
        call(
            "max_pool1d_with_indices",
            &[of(x), ints(&[3]), ints(&[2]), ints(&[1]), ints(&[2]), Value::Bool(true)],
        )
    };
    let (mut greatest, mut places) = (Vec::new(), Vec::new());
    for row in values(&x).chunks(7) {
        for window in 0..4i64 {
            let inside = (0..3).map(|place| window * 2 - 1 + 2 * place).filter(|at| (0..7).contains(at));
            let best = inside.reduce(|a, b| if row[b as usize] > row[a as usize] { b } else { a });
            if let Some(best) = best {
                greatest.push(row[best as usize]);
                places.push(best as f64);
            }
        }
    }
    let result = pool(&x);
    assert_eq!(values(&result[1])[..3], places[..3]);
    assert_close(&values(&result[0])[..3], &greatest[..3], 0.0);
    check_gradient(&x, |x| pool(x)[0].clone());
    check_gradient(&random(&[1, 2, 3, 4, 3], 3), |x| {
        call("adaptive_max_pool3d", &[of(x), ints(&[2, 3, 2])])[0].clone()
    });
}

#[test]
fn convolutions_of_groups_with_dilation_and_their_transpose() {
    let (x, weight, bias) = (random(&[2, 4, 5, 6], 1), random(&[6, 2, 3, 2], 2), random(&[6], 3));
    let conv = |x: &Tensor, weight: &Tensor, bias: &Tensor| {
        call(
            "conv2d",
            &[of(x), of(weight), of(bias), ints(&[2, 1]), ints(&[1, 0]), ints(&[1, 2]), Value::Int(2)],
        )
        .remove(0)
    };
    let (images, kernel, offsets) = (values(&x), values(&weight), values(&bias));
    let mut expected = Vec::new();
    for image in 0..2 {
        for out in 0..6 {
            for y in 0..3i64 {
                for column in 0..4i64 {
                    let mut sum = offsets[out];
                    for channel in 0..2 {
                        let plane = &images[(image * 4 + out / 3 * 2 + channel) * 30..][..30];
                        for place in 0..6 {
                            let (ky, kx) = (place / 2, place % 2);
                            let weight = kernel[(out * 2 + channel) * 6 + (ky * 2 + kx) as usize];
                            sum += weight * at(plane, [5, 6], y * 2 - 1 + ky, column + 2 * kx);
                        }
                    }
                    expected.push(sum);
                }
            }
        }
    }
    assert_close(&values(&conv(&x, &weight, &bias)), &expected, 1e-12);
    check_gradient(&x, |x| conv(x, &weight, &bias).square().unwrap());
    check_gradient(&weight, |weight| conv(&x, weight, &bias).square().unwrap());
    check_gradient(&bias, |bias| conv(&x, &weight, bias).square().unwrap());
    // The transpose: the sum of its products with any tensor is that of the convolution's.
    let y = random(&[2, 6, 3, 4], 4);
    let zeros = Tensor::zeros(&[6], y.dtype(), y.device()).unwrap();
    let transposed = |y: &Tensor| {
        let sizes = [ints(&[2, 1]), ints(&[1, 0]), ints(&[0, 0]), Value::Int(2), ints(&[1, 2])];
        call("conv_transpose2d.input", &[&[of(y), of(&weight), Value::None], sizes.as_slice()].concat())
            .remove(0)
    };
    let sum = |a: &Tensor, b: &Tensor| values(&a.mul(b).unwrap().sum(&[], false).unwrap());
    assert_close(&sum(&transposed(&y), &x), &sum(&y, &conv(&x, &weight, &zeros)), 1e-12);
    check_gradient(&y, |y| transposed(y).square().unwrap());
}

#[test]
fn columns_of_one_and_three_axes() {
    let (x, weight) = (random(&[3, 7], 1), random(&[2, 3, 3], 2));
    let conv = |x: &Tensor| call("conv1d", &[of(x), of(&weight)]).remove(0);
    assert_eq!(conv(&x).shape(), [2, 5]);
    check_gradient(&x, |x| conv(x).square().unwrap());
    let (x, weight) = (random(&[1, 2, 3, 3, 2], 3), random(&[2, 2, 2, 2, 2], 4));
    let conv = |x: &Tensor| call("conv3d", &[of(x), of(&weight)]).remove(0);
    let y = values(&conv(&x));
    let first: f64 = (0..2)
        .flat_map(|channel| (0..8).map(move |place| (channel, place)))
        .map(|(channel, place)| {
            let (z, y, column) = (place / 4, place / 2 % 2, place % 2);
            values(&x)[channel * 18 + (z * 3 + y) * 2 + column] * values(&weight)[channel * 8 + place]
        })
        .sum();
    assert_close(&y[..1], &[first], 1e-12);
    let columns = call(
        "im2col",
        &[of(&random(&[2, 2, 4, 4], 5)), ints(&[2, 2]), ints(&[1, 1]), ints(&[0, 0]), ints(&[2, 2])],
    );
    assert_eq!(columns[0].shape(), [2, 8, 4]);
    let back = call(
        "col2im",
        &[of(&columns[0]), ints(&[4, 4]), ints(&[2, 2]), ints(&[1, 1]), ints(&[0, 0]), ints(&[2, 2])],
    );
    assert_eq!(values(&back[0]), values(&random(&[2, 2, 4, 4], 5)));
}

#[test]
fn images_of_another_size() {
    let x = random(&[1, 2, 3, 4], 6);
    let resize = |name: &str, x: &Tensor, rest: &[Value]| {
        call(name, &[&[of(x), ints(&[6, 6])], rest].concat()).remove(0)
    };
    let nearest = resize("upsample_nearest2d.vec", &x, &[Value::None]);
    let expected: Vec<f64> = (0..72)
        .map(|at| (at / 36, at / 6 % 6, at % 6))
        .map(|(plane, y, column)| values(&x)[plane * 12 + y / 2 * 4 + column * 4 / 6])
        .collect();
    assert_eq!(values(&nearest), expected);
    let linear = |x: &Tensor, corners: bool| {
        resize("upsample_bilinear2d.vec", x, &[Value::Bool(corners), Value::None])
    };
    for corners in [false, true] {
        let place = |at: usize, extent: usize| {
            let at = if corners {
                at as f64 * (extent as f64 - 1.0) / 5.0
            } else {
                ((at as f64 + 0.5) * extent as f64 / 6.0 - 0.5).max(0.0)
            };
            let first = at.floor() as usize;
            (first, (first + 1).min(extent - 1), at - at.floor())
        };
        let expected: Vec<f64> = (0..72)
            .map(|at| (at / 36, place(at / 6 % 6, 3), place(at % 6, 4)))
            .map(|(plane, (y, below, v), (left, right, h))| {
                let pixel = |y: usize, x_at: usize| values(&x)[plane * 12 + y * 4 + x_at];
                (1.0 - v) * ((1.0 - h) * pixel(y, left) + h * pixel(y, right))
                    + v * ((1.0 - h) * pixel(below, left) + h * pixel(below, right))
            })
            .collect();
        assert_close(&values(&linear(&x, corners)), &expected, 1e-9);
        check_gradient(&x, |x| linear(x, corners).mul(&random(&[1, 2, 6, 6], 7)).unwrap());
    }
    let x = random(&[2, 8, 3, 2], 8);
    let shuffled = call("pixel_shuffle", &[of(&x), Value::Int(2)]).remove(0);
    assert_eq!(shuffled.shape(), [2, 2, 6, 4]);
    assert_eq!(values(&shuffled)[1], values(&x)[6]);
    assert_eq!(values(&call("pixel_unshuffle", &[of(&shuffled), Value::Int(2)])[0]), values(&x));
}

#[test]
fn adaptive_windows_of_any_size_and_layout_are_those_of_a_plain_model() {
    let range = |window: usize, extent: usize, windows: usize| {
        window * extent / windows..((window + 1) * extent).div_ceil(windows)
    };
    let sizes =
        [([5, 7], [3, 2]), ([4, 3], [9, 3]), ([30, 11], [2, 1]), ([1, 6], [4, 6]), ([13, 29], [7, 31])];
    for (number, (extents, windows)) in sizes.into_iter().enumerate() {
        for is_last in [false, true] {
            let shape = [2, 3, extents[0], extents[1]];
            let x = random(&shape, number as u64 + 1);
            let format = if is_last { MemoryFormat::ChannelsLast } else { MemoryFormat::Contiguous };
            let x = x.contiguous_in(format).unwrap().detach().requires_grad_().unwrap();
            let size = ints(&[windows[0] as i64, windows[1] as i64]);
            let means = call("adaptive_avg_pool2d", &[of(&x), size.clone()]).remove(0);
            let greatest = call("adaptive_max_pool2d", &[of(&x), size]);
            let gradient = random(&[2, 3, windows[0], windows[1]], 9);
            let (points, parts) = (values(&x.detach()), values(&gradient));
            let (mut expected, mut places) = ([Vec::new(), Vec::new()], Vec::new());
            let mut of_x = [vec![0.0; points.len()], vec![0.0; points.len()]];
            for (window, part) in parts.iter().enumerate() {
                let (plane, own) = (window / (windows[0] * windows[1]), window % (windows[0] * windows[1]));
                let rows = range(own / windows[1], extents[0], windows[0]);
                let columns = range(own % windows[1], extents[1], windows[1]);
                let inside: Vec<usize> =
                    rows.flat_map(|y| columns.clone().map(move |column| y * extents[1] + column)).collect();
                let first = plane * extents[0] * extents[1];
                let at = |&place: &usize| points[first + place];
                expected[0].push(inside.iter().map(at).sum::<f64>() / inside.len() as f64);
                inside.iter().for_each(|place| of_x[0][first + place] += part / inside.len() as f64);
                let best = inside.iter().copied().reduce(|a, b| if at(&b) > at(&a) { b } else { a }).unwrap();
                expected[1].push(at(&best));
                of_x[1][first + best] += part;
                places.push(best as f64);
            }
            assert_eq!(values(&greatest[1]), places, "{extents:?} in {windows:?}");
            for (result, (expected, of_x)) in
                [&means, &greatest[0]].into_iter().zip(expected.iter().zip(&of_x))
            {
                assert_close(&values(&result.detach()), expected, 1e-12);
                let loss = result.mul(&gradient).unwrap().sum(&[], false).unwrap();
                let found = gradients(&[loss], &[None], std::slice::from_ref(&x)).unwrap().remove(0).unwrap();
                assert_close(&values(&found), of_x, 1e-12);
            }
        }
    }
}

#[test]
fn places_within_windows_lead_to_the_same_gradients_as_places_in_planes() {
    // Windows, distance, padding, dilation, and whether windows may end beyond the padding.
    let pools: [([[i64; 2]; 4], bool); 6] = [
        ([[2, 2], [2, 2], [0, 0], [1, 1]], false),
        ([[3, 3], [2, 2], [1, 1], [1, 1]], false),
        ([[3, 2], [1, 2], [1, 1], [2, 1]], true),
        ([[1, 5], [3, 1], [0, 2], [1, 1]], false),
        ([[2, 3], [2, 3], [1, 1], [3, 2]], true),
        ([[15, 16], [1, 1], [7, 8], [1, 1]], false),
    ];
    for (number, (lists, ceil_mode)) in pools.into_iter().enumerate() {
        // Few channels, and as many as a thread computes at once.
        for (channels, is_last) in [(3, false), (3, true), (16, true)] {
            let format = if is_last { MemoryFormat::ChannelsLast } else { MemoryFormat::Contiguous };
            let x = random(&[2, channels, 11, 9], number as u64);
            // Some elements are equal, and some are NaN.
            let x = x.mul_scalar(3.0).unwrap().round().unwrap();
            let x = if number % 2 == 0 { x.div(&x).unwrap().add(&x).unwrap() } else { x };
            let x = x.contiguous_in(format).unwrap();
            let numbers = lists.iter().map(|list| ints(list)).chain([Value::Bool(ceil_mode)]);
            let arguments: Vec<Value> = [of(&x)].into_iter().chain(numbers.clone()).collect();
            let wanted = call("max_pool2d_with_indices", &arguments);
            let found = call("thalweg::max_pool2d_within", &arguments);
            let bits = |tensor: &Tensor| values(tensor).into_iter().map(f64::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(&found[0]), bits(&wanted[0]), "{number}");
            let gradient = random(wanted[0].shape(), 9).contiguous_in(format).unwrap();
            let of_wanted: Vec<Value> =
                [of(&gradient), of(&x)].into_iter().chain(numbers.clone()).chain([of(&wanted[1])]).collect();
            let of_found: Vec<Value> =
                [of(&gradient), of(&found[1])].into_iter().chain(numbers).chain([ints(&[11, 9])]).collect();
            let wanted = call("max_pool2d_with_indices_backward", &of_wanted).remove(0);
            let found = call("thalweg::max_pool2d_within_backward", &of_found).remove(0);
            assert_eq!(values(&found), values(&wanted), "{number}");
            assert_eq!(found.layout().strides(), wanted.layout().strides(), "{number}");
        }
    }
}
