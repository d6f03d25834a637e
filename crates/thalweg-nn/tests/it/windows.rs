//! Convolution and pooling against loops, and their gradients against finite differences.

use thalweg_nn::functional::{ConvOptions, PoolOptions, conv2d, max_pool2d};
use thalweg_tensor::Tensor;

use crate::support::{assert_close, check_gradient, device, random, values};

/// Shapes: images, channels, height, width, out channels, kernel, options.
type Case = (usize, usize, usize, usize, usize, [usize; 2], ConvOptions<2>);

const CASES: &[Case] = &[
    (2, 3, 5, 6, 4, [3, 3], ConvOptions { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 }),
    (1, 2, 7, 7, 3, [3, 2], ConvOptions { stride: [2; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }),
    (2, 1, 8, 9, 2, [2, 3], ConvOptions { stride: [3; 2], padding: [2; 2], dilation: [2; 2], groups: 1 }),
    (1, 1, 4, 4, 1, [1, 1], ConvOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }),
    (3, 2, 4, 5, 2, [4, 5], ConvOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }),
];

fn extent(size: usize, kernel: usize, options: ConvOptions<2>) -> usize {
    (size + 2 * options.padding[0] - options.dilation[0] * (kernel - 1) - 1) / options.stride[0] + 1
}

/// Returns the convolution written out.
fn convolve(x: &Tensor, w: &Tensor, bias: &Tensor, options: ConvOptions<2>) -> Vec<f64> {
    let [images, channels, height, width] = [0, 1, 2, 3].map(|d| x.shape()[d]);
    let [out, _, kernel_height, kernel_width] = [0, 1, 2, 3].map(|d| w.shape()[d]);
    let (xs, ws, bs) = (values(x), values(w), values(bias));
    let (rows, columns) = (extent(height, kernel_height, options), extent(width, kernel_width, options));
    let mut result = Vec::new();
    for image in 0..images {
        for o in 0..out {
            for row in 0..rows {
                for column in 0..columns {
                    let mut sum = bs[o];
                    for c in 0..channels {
                        for i in 0..kernel_height {
                            for j in 0..kernel_width {
                                let y = (row * options.stride[0] + i * options.dilation[0])
                                    .wrapping_sub(options.padding[0]);
                                let z = (column * options.stride[0] + j * options.dilation[0])
                                    .wrapping_sub(options.padding[0]);
                                if y < height && z < width {
                                    sum += xs[((image * channels + c) * height + y) * width + z]
                                        * ws[((o * channels + c) * kernel_height + i) * kernel_width + j];
                                }
                            }
                        }
                    }
                    result.push(sum);
                }
            }
        }
    }
    result
}

#[test]
fn convolutions_agree_with_loops() {
    for &(images, channels, height, width, out, kernel, options) in CASES {
        let x = random(&[images, channels, height, width], 1);
        let w = random(&[out, channels, kernel[0], kernel[1]], 2);
        let bias = random(&[out], 3);
        let y = conv2d(&x, &w, Some(&bias), options).unwrap();
        let expected_shape =
            [images, out, extent(height, kernel[0], options), extent(width, kernel[1], options)];
        assert_eq!(y.shape(), expected_shape);
        assert_close(&values(&y), &convolve(&x, &w, &bias, options), 1e-12);
    }
}

#[test]
fn gradients_of_convolutions_agree_with_finite_differences() {
    for &(images, channels, height, width, out, kernel, options) in CASES {
        let x = random(&[images, channels, height, width], 4);
        let w = random(&[out, channels, kernel[0], kernel[1]], 5);
        let bias = random(&[out], 6);
        let weight = random(conv2d(&x, &w, None, options).unwrap().shape(), 7);
        check_gradient(&x, |x| conv2d(x, &w, Some(&bias), options).unwrap().mul(&weight).unwrap());
        check_gradient(&w, |w| conv2d(&x, w, Some(&bias), options).unwrap().mul(&weight).unwrap());
        check_gradient(&bias, |bias| conv2d(&x, &w, Some(bias), options).unwrap().mul(&weight).unwrap());
    }
}

#[test]
fn pooling_agrees_with_loops() {
    let x = random(&[2, 3, 7, 8], 8);
    for options in [
        ConvOptions { stride: [2; 2], padding: [0; 2], dilation: [1; 2], groups: 1 },
        ConvOptions { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 },
        ConvOptions { stride: [3; 2], padding: [1; 2], dilation: [2; 2], groups: 1 },
    ] {
        let kernel = [2, 3];
        let ConvOptions { stride: [stride, _], padding: [padding, _], dilation: [dilation, _], .. } = options;
        let pool = PoolOptions { stride: Some([stride; 2]), padding, dilation };
        let y = max_pool2d(&x, kernel, pool).unwrap();
        let (rows, columns) = (extent(7, 2, options), extent(8, 3, options));
        let xs = values(&x);
        let mut expected = Vec::new();
        for plane in xs.chunks(56) {
            for row in 0..rows {
                for column in 0..columns {
                    let mut greatest = f64::NEG_INFINITY;
                    for (i, j) in (0..2).flat_map(|i| (0..3).map(move |j| (i, j))) {
                        let y = (row * options.stride[0] + i * options.dilation[0])
                            .wrapping_sub(options.padding[0]);
                        let z = (column * options.stride[0] + j * options.dilation[0])
                            .wrapping_sub(options.padding[0]);
                        if y < 7 && z < 8 {
                            greatest = greatest.max(plane[y * 8 + z]);
                        }
                    }
                    expected.push(greatest);
                }
            }
        }
        assert_eq!(values(&y), expected);
        let weight = random(y.shape(), 9);
        check_gradient(&x, |x| max_pool2d(x, kernel, pool).unwrap().mul(&weight).unwrap());
    }
}

#[test]
fn pooling_sends_the_gradient_to_the_first_of_equals() {
    let x = Tensor::from_slice(&[1.0f64; 4], &[1, 1, 2, 2], &device()).unwrap().requires_grad_().unwrap();
    max_pool2d(&x, [2, 2], PoolOptions::default()).unwrap().sum(&[], false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn a_pool_moves_by_its_kernel_unless_it_is_said() {
    let x = random(&[1, 2, 6, 7], 10);
    let y = max_pool2d(&x, [2, 3], PoolOptions::default()).unwrap();
    assert_eq!(y.shape(), [1, 2, 3, 2]);
    let xs = values(&x);
    let expected: Vec<f64> = (0..2 * 3 * 2)
        .map(|place| {
            let (plane, row, column) = (place / 6, place % 6 / 2, place % 2);
            let window = (0..2).flat_map(|i| (0..3).map(move |j| (row * 2 + i, column * 3 + j)));
            window.map(|(y, x)| xs[plane * 42 + y * 7 + x]).fold(f64::NEG_INFINITY, f64::max)
        })
        .collect();
    assert_eq!(values(&y), expected);
    let weight = random(y.shape(), 11);
    check_gradient(&x, |x| max_pool2d(x, [2, 3], PoolOptions::default()).unwrap().mul(&weight).unwrap());
}
