//! Images of another size and padded images of drawn shapes, layouts and dtypes: the definition point by point, and the gradient,
//! which is the transpose.

use thalweg_ir::DType;
use thalweg_runtime::{CaptureOptions, Graph, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::gradients;
use thalweg_tensor::dispatch::Value;

use crate::norms::call;
use crate::support::{assert_close, device, on_own_device, random, tensor, values};

/// Numbers that follow from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end as u64) as usize
    }

    /// Returns images of this shape, contiguous, with channels last, or every second element of larger ones.
    fn images(&mut self, shape: &[usize], dtype: DType) -> Tensor {
        let seed = self.below(1000) as u64;
        let narrow = |tensor: Tensor| tensor.to_dtype(dtype).unwrap();
        match self.below(3) {
            0 => narrow(random(shape, seed)),
            1 => {
                let last: Vec<usize> =
                    [shape[0]].into_iter().chain(shape[2..].iter().copied()).chain([shape[1]]).collect();
                let order: Vec<usize> = [0, shape.len() - 1].into_iter().chain(1..shape.len() - 1).collect();
                narrow(random(&last, seed)).permute(&order).unwrap()
            }
            _ => {
                let mut wide = shape.to_vec();
                *wide.last_mut().unwrap() *= 2;
                narrow(random(&wide, seed)).slice(shape.len() as i64 - 1, Some(1), None, 2).unwrap()
            }
        }
    }
}

/// The old points of a new one along an axis, with their weights.
type Taps = Vec<(usize, f64)>;

fn inside(at: i64, extent: usize) -> usize {
    at.clamp(0, extent as i64 - 1) as usize
}

/// Returns the weight of a point at a distance by cubic convolution with A = −3/4.
fn cubic(distance: f64) -> f64 {
    let (t, a) = (distance.abs(), -0.75);
    if t <= 1.0 {
        (a + 2.0) * t.powi(3) - (a + 3.0) * t.powi(2) + 1.0
    } else {
        a * t.powi(3) - 5.0 * a * t.powi(2) + 8.0 * a * t - 4.0 * a
    }
}

/// Returns the rule of interpolation by its name in PyTorch.
fn taps_of(mode: &str, corners: bool, [extent, size]: [usize; 2], to: usize) -> Taps {
    let scale = match corners {
        true if size > 1 => (extent as f64 - 1.0) / (size as f64 - 1.0),
        true => 0.0,
        false => extent as f64 / size as f64,
    };
    let half = if corners { to as f64 * scale } else { (to as f64 + 0.5) * scale - 0.5 };
    match mode {
        "nearest" => vec![(inside((to as f64 * scale).floor() as i64, extent), 1.0)],
        "nearest-exact" => vec![(inside(((to as f64 + 0.5) * scale).floor() as i64, extent), 1.0)],
        "linear" => {
            let place = half.max(0.0);
            let first = inside(place.floor() as i64, extent);
            let weight = place - first as f64;
            vec![(first, 1.0 - weight), (inside(first as i64 + 1, extent), weight)]
        }
        _ => {
            let first = half.floor() as i64;
            (-1..=2).map(|tap| (inside(first + tap, extent), cubic(half - (first + tap) as f64))).collect()
        }
    }
}

/// Returns the place of a padded point by the rule's name in PyTorch.
fn padded_from(mode: &str, extent: usize, moved: i64) -> usize {
    let last = extent as i64 - 1;
    match mode {
        "reflect" if moved < 0 => (-moved) as usize,
        "reflect" if moved > last => (2 * last - moved) as usize,
        "circular" => moved.rem_euclid(extent as i64) as usize,
        _ => inside(moved, extent),
    }
}

/// Computes all planes by the taps of each axis.
fn by_taps(x: &[f64], planes: usize, extents: &[usize], axes: &[Vec<Taps>]) -> Vec<f64> {
    let (mut values, mut shape) = (x.to_vec(), extents.to_vec());
    for (axis, taps) in axes.iter().enumerate() {
        let (before, after) =
            (shape[..axis].iter().product::<usize>() * planes, shape[axis + 1..].iter().product::<usize>());
        let mut next = Vec::new();
        for outer in 0..before {
            for taps in taps {
                for inner in 0..after {
                    let element = |at: usize| values[(outer * shape[axis] + at) * after + inner];
                    next.push(taps.iter().map(|&(at, weight)| weight * element(at)).sum());
                }
            }
        }
        (values, shape[axis]) = (next, taps.len());
    }
    values
}

/// Compares a result with the definition, and the gradient with the transpose: ⟨g, R x⟩ = ⟨Rᵀ g, x⟩ for every x, so Rᵀ g is known
/// from the definition at each unit vector.
fn check(name: &str, x: &Tensor, function: impl Fn(&Tensor) -> Tensor, axes: &[Vec<Taps>]) {
    let tolerance = match x.dtype() {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        _ => 2e-2,
    };
    let (planes, extents) = (x.shape()[..2].iter().product::<usize>(), &x.shape()[2..]);
    let leaf = x.detach().requires_grad_().unwrap();
    let y = function(&leaf);
    let sizes: Vec<usize> = axes.iter().map(Vec::len).collect();
    assert_eq!(y.shape()[2..], sizes, "{name}");
    assert_close(&values(&y), &by_taps(&values(x), planes, extents, axes), tolerance);
    let g = random(y.shape(), 77).to_dtype(x.dtype()).unwrap();
    let [found] = <[_; 1]>::try_from(gradients(&[y], &[Some(g.clone())], &[leaf]).unwrap()).unwrap();
    let transposed: Vec<Vec<Taps>> = (axes.iter().zip(extents))
        .map(|(taps, &extent)| {
            let mut uses = vec![Taps::new(); extent];
            for (to, list) in taps.iter().enumerate() {
                list.iter().for_each(|&(at, weight)| uses[at].push((to, weight)));
            }
            uses
        })
        .collect();
    let expected = by_taps(&values(&g), planes, &sizes, &transposed);
    assert_close(&values(&found.unwrap()), &expected, 4.0 * tolerance);
}

const DTYPES: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];

#[test]
fn interpolated_images_of_drawn_shapes_equal_the_definition() {
    let mut draw = Draw(41);
    for turn in 0..60 {
        let axes = [1, 2, 2, 3][draw.below(4)];
        let mode = ["nearest", "nearest-exact", "linear", "cubic"][turn % 4];
        let axes = if mode == "cubic" { 2 } else { axes };
        let corners = turn % 4 > 1 && draw.below(2) == 0;
        let extents: Vec<usize> = (0..axes).map(|_| 1 + draw.below(9)).collect();
        let sizes: Vec<usize> = (0..axes).map(|_| 1 + draw.below(20)).collect();
        let shape: Vec<usize> =
            [1 + draw.below(3), 1 + draw.below(5)].into_iter().chain(extents.iter().copied()).collect();
        let x = draw.images(&shape, DTYPES[turn % DTYPES.len()]);
        let name = match (mode, axes) {
            ("nearest", _) => format!("upsample_nearest{axes}d.vec"),
            ("nearest-exact", _) => format!("_upsample_nearest_exact{axes}d.vec"),
            ("linear", 1) => "upsample_linear1d.vec".to_owned(),
            ("linear", 2) => "upsample_bilinear2d.vec".to_owned(),
            ("linear", _) => "upsample_trilinear3d.vec".to_owned(),
            _ => "upsample_bicubic2d.vec".to_owned(),
        };
        let wanted = Value::Ints(sizes.iter().map(|&size| size as i64).collect());
        let run = |x: &Tensor| {
            let mut arguments = vec![Value::Tensor(x.clone()), wanted.clone()];
            if turn % 4 > 1 {
                arguments.push(Value::Bool(corners));
            }
            arguments.push(Value::None);
            call(&name, &arguments).remove(0)
        };
        let taps: Vec<Vec<Taps>> = (extents.iter().zip(&sizes))
            .map(|(&extent, &size)| (0..size).map(|to| taps_of(mode, corners, [extent, size], to)).collect())
            .collect();
        check(&format!("{name} {extents:?} to {sizes:?}, corners {corners}"), &x, run, &taps);
    }
}

#[test]
fn padded_images_of_drawn_shapes_equal_the_definition() {
    let mut draw = Draw(43);
    for turn in 0..45 {
        let axes = 1 + draw.below(3);
        let mode = ["reflect", "replicate", "circular"][turn % 3];
        let extents: Vec<usize> = (0..axes).map(|_| 2 + draw.below(7)).collect();
        let shape: Vec<usize> =
            [1 + draw.below(3), 1 + draw.below(4)].into_iter().chain(extents.iter().copied()).collect();
        let x = draw.images(&shape, DTYPES[turn % DTYPES.len()]);
        let sides: Vec<[usize; 2]> = (extents.iter())
            .map(|&extent| [0, 1].map(|_| draw.below(if mode == "reflect" { extent } else { extent + 1 })))
            .collect();
        let padding = sides.iter().rev().flatten().map(|&count| count as i64).collect();
        let arguments = [Value::Ints(padding), Value::Str(mode.to_owned())];
        let run = |x: &Tensor| call("pad", &[&[Value::Tensor(x.clone())], &arguments[..]].concat()).remove(0);
        let taps: Vec<Vec<Taps>> = (extents.iter().zip(&sides))
            .map(|(&extent, &[before, after])| {
                let from = |to: usize| padded_from(mode, extent, to as i64 - before as i64);
                (0..before + extent + after).map(|to| vec![(from(to), 1.0)]).collect()
            })
            .collect();
        if sides.iter().flatten().any(|&count| count > 0) {
            check(&format!("{mode} {extents:?} by {sides:?}"), &x, run, &taps);
        }
    }
}

/// Returns a tensor padded along its last dimensions one after another, by lists of indices; negative sides remove elements.
fn padded_by_indices(x: &Tensor, mode: &str, sides: &[[i64; 2]]) -> Tensor {
    let mut x = x.clone();
    for (axis, &[before, after]) in sides.iter().enumerate() {
        let dim = x.rank() - sides.len() + axis;
        let extent = x.shape()[dim] as i64;
        // The circular padding does not reuse what it removes.
        let (first, kept, [before, after]) = match mode {
            "circular" => {
                let [first, removed] = [before, after].map(|side| (-side).max(0));
                (first, extent - first - removed, [before.max(0), after.max(0)])
            }
            _ => (0, extent, [before, after]),
        };
        let places: Vec<i64> = (0..kept + before + after)
            .map(|to| first + padded_from(mode, kept as usize, to - before) as i64)
            .collect();
        let index = Tensor::from_slice(&places, &[places.len()], &device()).unwrap();
        x = x.index_select(dim as i64, &index).unwrap();
    }
    x
}

/// Returns complex numbers of these real parts.
fn complex(real: &Tensor, seed: u64, dtype: DType) -> Tensor {
    let imaginary = random(real.shape(), seed);
    call("complex", &[Value::Tensor(real.clone()), Value::Tensor(imaginary)])
        .remove(0)
        .to_dtype(dtype)
        .unwrap()
}

/// Draws the sides of an axis, so that something is left of it.
fn drawn_sides(draw: &mut Draw, mode: &str, extent: usize) -> [i64; 2] {
    loop {
        let most = match mode {
            "reflect" => extent - 1,
            "replicate" => extent + 3,
            _ => extent,
        };
        let sides = [0, 1].map(|_| draw.below(most + extent + 1) as i64 - extent as i64);
        let removed: i64 = sides.iter().map(|side| (-side).max(0)).sum();
        let left =
            if mode == "circular" { extent as i64 - removed } else { extent as i64 + sides[0] + sides[1] };
        let kept = extent as i64 - removed;
        if left > 0 && (mode != "circular" || sides.iter().all(|&side| side <= kept)) {
            return sides;
        }
    }
}

#[test]
fn padding_of_every_dtype_selects_by_indices() {
    let floats = [DType::F64, DType::F32, DType::F16, DType::Bf16, DType::C64, DType::C128];
    let others = [DType::I64, DType::I32, DType::U8, DType::Bool, DType::F8E5m2];
    let mut draw = Draw(47);
    for turn in 0..99 {
        let dtype = *floats.iter().chain(&others).nth(turn % 11).unwrap();
        let mode = ["reflect", "replicate", "circular"][draw.below(3)];
        let axes = 1 + draw.below(3);
        let shape: Vec<usize> =
            (0..axes + 2).map(|dim| if dim < 2 { 1 + draw.below(3) } else { 2 + draw.below(5) }).collect();
        let sides: Vec<[i64; 2]> =
            shape[2..].iter().map(|&extent| drawn_sides(&mut draw, mode, extent)).collect();
        let x = match dtype.is_complex() {
            true => complex(&draw.images(&shape, DType::F64), 5, dtype),
            false if dtype == DType::Bool => draw.images(&shape, DType::F64).gt_scalar(0.0).unwrap(),
            false => draw
                .images(&shape, DType::F64)
                .mul_scalar(100.0)
                .unwrap()
                .abs()
                .unwrap()
                .to_dtype(dtype)
                .unwrap(),
        };
        let x = if draw.below(4) == 0 { x.select(0, 0).unwrap() } else { x };
        let padding: Vec<i64> = sides.iter().rev().flatten().copied().collect();
        let name = match (mode, draw.below(2)) {
            ("reflect", 0) => format!("reflection_pad{axes}d"),
            ("replicate", 0) => format!("replication_pad{axes}d"),
            _ => "pad".to_owned(),
        };
        let run = |x: &Tensor| {
            let mut arguments = vec![Value::Tensor(x.clone()), Value::Ints(padding.clone())];
            if name == "pad" {
                arguments.push(Value::Str(mode.to_owned()));
            }
            call(&name, &arguments).remove(0)
        };
        let parts =
            |x: &Tensor| if dtype.is_complex() { values(&x.view_as_real().unwrap()) } else { values(x) };
        let what = format!("{name} {mode} {dtype} {:?} by {sides:?}", x.shape());
        if others.contains(&dtype) {
            let (found, expected) = (run(&x), padded_by_indices(&x, mode, &sides));
            assert_eq!((found.shape(), parts(&found)), (expected.shape(), parts(&expected)), "{what}");
            continue;
        }
        let leaf = x.detach().requires_grad_().unwrap();
        let (found, expected) = (run(&leaf), padded_by_indices(&leaf, mode, &sides));
        assert_eq!((found.shape(), parts(&found)), (expected.shape(), parts(&expected)), "{what}");
        let g = random(found.shape(), 9);
        let g = if dtype.is_complex() { complex(&g, 10, dtype) } else { g.to_dtype(dtype).unwrap() };
        let gradient = |y: Tensor| {
            parts(
                gradients(&[y], &[Some(g.clone())], std::slice::from_ref(&leaf)).unwrap()[0]
                    .as_ref()
                    .unwrap(),
            )
        };
        let tolerance = if dtype.size_bytes() == 2 { 4e-2 } else { 1e-5 };
        assert_close(&gradient(found), &gradient(expected), tolerance);
    }
}

#[test]
fn padding_is_one_launch_and_so_is_its_gradient() {
    on_own_device(|| {
        if !device().is_simulated() {
            return;
        }
        let _current = Stream::new(&device()).unwrap().make_current();
        for dtype in [DType::F32, DType::C64] {
            let x = random(&[2, 3, 5, 6], 1).to_dtype(dtype).unwrap().requires_grad_().unwrap();
            let g = random(&[2, 3, 7, 4], 2).to_dtype(dtype).unwrap();
            for mode in ["reflect", "replicate", "circular"] {
                let arguments =
                    [Value::Tensor(x.clone()), Value::Ints(vec![-3, 1, 1, 1]), Value::Str(mode.to_owned())];
                let run = || {
                    let y = call("pad", &arguments).remove(0);
                    gradients(&[y], &[Some(g.clone())], std::slice::from_ref(&x))
                };
                run().unwrap();
                let (graph, _) = Graph::capture(&device(), CaptureOptions::default(), run).unwrap();
                // The gradient of what a slice removed is written as well.
                let count = if mode == "circular" { 4 } else { 2 };
                assert!(graph.description().unwrap().nodes.len() <= count, "{mode} {dtype}");
            }
        }
    });
}

#[test]
fn pools_of_drawn_shapes_are_the_same_with_channels_last() {
    let mut draw = Draw(47);
    for turn in 0..40 {
        let extents = [3 + draw.below(9), 3 + draw.below(9)];
        let shape = [1 + draw.below(3), 2 + draw.below(6), extents[0], extents[1]];
        let plain = random(&shape, turn).to_dtype(DTYPES[turn as usize % DTYPES.len()]).unwrap();
        let last =
            plain.permute(&[0, 2, 3, 1]).unwrap().contiguous().unwrap().permute(&[0, 3, 1, 2]).unwrap();
        let pair = |draw: &mut Draw, from: usize, below: usize| {
            Value::Ints([0, 1].map(|_| (from + draw.below(below)) as i64).to_vec())
        };
        let (kernel, stride) = (pair(&mut draw, 2, 2), pair(&mut draw, 1, 3));
        let padding = Value::Ints(vec![1, draw.below(2) as i64]);
        let ceil = Value::Bool(draw.below(2) == 0);
        let run = |x: &Tensor| -> Vec<Vec<f64>> {
            let leaf = x.detach().requires_grad_().unwrap();
            let of = Value::Tensor(leaf.clone());
            let window = [kernel.clone(), stride.clone(), padding.clone()];
            let mut results = if turn % 2 == 0 {
                call(
                    "max_pool2d_with_indices",
                    &[&[of], &window[..], &[Value::Ints(vec![1, 1]), ceil.clone()]].concat(),
                )
            } else {
                call("avg_pool2d", &[&[of], &window[..], &[ceil.clone(), Value::Bool(false)]].concat())
            };
            let g = random(results[0].shape(), 5).to_dtype(x.dtype()).unwrap();
            let gradient = gradients(&[results[0].clone()], &[Some(g)], &[leaf]).unwrap().remove(0).unwrap();
            results.push(gradient);
            results.iter().map(values).collect()
        };
        assert_eq!(run(&plain), run(&last), "{shape:?}");
    }
}

#[test]
fn windows_of_a_dimension_have_the_gradient_of_their_points() {
    let mut draw = Draw(53);
    for turn in 0..20 {
        let shape = [1 + draw.below(3), 4 + draw.below(6), 1 + draw.below(4)];
        let (size, step) = (1 + draw.below(4), 1 + draw.below(4));
        let leaf = draw.images(&shape, DType::F64).detach().requires_grad_().unwrap();
        let windows = leaf.unfold(1, size as i64, step as i64).unwrap();
        let g = random(windows.shape(), turn);
        let found = gradients(std::slice::from_ref(&windows), &[Some(g.clone())], &[leaf])
            .unwrap()
            .remove(0)
            .unwrap();
        let mut expected = vec![0.0; shape.iter().product()];
        let count = windows.shape()[1];
        for (at, value) in values(&g).into_iter().enumerate() {
            let (rest, place) = (at / size, at % size);
            let (rest, inner) = (rest / shape[2], rest % shape[2]);
            let (outer, window) = (rest / count, rest % count);
            expected[(outer * shape[1] + window * step + place) * shape[2] + inner] += value;
        }
        assert_close(&values(&found), &expected, 1e-12);
    }
}

#[test]
fn many_tensors_of_drawn_shapes_are_joined() {
    let mut draw = Draw(59);
    for turn in 0..30 {
        let (dim, count) = (draw.below(3), 2 + draw.below(90));
        let base = [1 + draw.below(4), 1 + draw.below(5), 1 + draw.below(6)];
        let dtype = [DType::F16, DType::F32, DType::F64, DType::U8, DType::I64][turn % 5];
        let mut parts = Vec::new();
        for part in 0..count {
            let mut shape = base;
            shape[dim] = draw.below(4);
            let whole = random(&shape, part as u64)
                .mul_scalar(100.0)
                .unwrap()
                .abs()
                .unwrap()
                .to_dtype(dtype)
                .unwrap();
            // Some tensors are not contiguous.
            parts.push(if draw.below(5) == 0 {
                whole.transpose(0, 2).unwrap().contiguous().unwrap().transpose(0, 2).unwrap()
            } else {
                whole
            });
        }
        let joined = Tensor::cat(&parts, dim as i64).unwrap();
        let mut start = 0;
        for part in &parts {
            let length = part.shape()[dim];
            assert_eq!(
                values(&joined.narrow(dim as i64, start, length).unwrap()),
                values(part),
                "{base:?} along {dim}"
            );
            start += length;
        }
        assert_eq!(joined.shape()[dim], start);
    }
}

#[test]
fn a_source_that_repeats_is_gathered_from_where_it_is() {
    let source = random(&[1, 1, 3, 7], 1).expand(&[4, 5, 3, 7]).unwrap();
    let numbers: Vec<f64> = (0..4 * 5 * 3 * 2).map(|at| f64::from(at * 5 % 7)).collect();
    let index = crate::support::tensor(&numbers, &[4, 5, 3, 2], DType::I64);
    let found =
        call("gather", &[Value::Tensor(source.clone()), Value::Int(3), Value::Tensor(index)]).remove(0);
    let of = values(&source);
    let expected: Vec<f64> =
        numbers.iter().enumerate().map(|(at, &chosen)| of[at / 2 % 3 * 7 + chosen as usize]).collect();
    assert_close(&values(&found), &expected, 0.0);
    assert_eq!(found.device(), &device());
}

#[test]
fn a_row_is_added_to_a_product_like_the_bias_of_a_layer() {
    let mut draw = Draw(61);
    for turn in 0..24 {
        let [m, n, k] = [1 + draw.below(40), 1 + draw.below(70), 1 + draw.below(50)];
        let dtype = DTYPES[turn % DTYPES.len()];
        let a = draw.images(&[1, 1, m, k], dtype).reshape(&[m, k]).unwrap();
        let b = draw.images(&[1, 1, n, k], dtype).reshape(&[n, k]).unwrap().transpose(0, 1).unwrap();
        let row = match draw.below(3) {
            0 => random(&[n], 3).to_dtype(dtype).unwrap(),
            1 => random(&[1, n], 3).to_dtype(dtype).unwrap(),
            _ => random(&[2 * n], 3).to_dtype(dtype).unwrap().slice(0, Some(0), None, 2).unwrap(),
        };
        let found = row.addmm(&a, &b).unwrap();
        let (left, right, added) = (values(&a), values(&b), values(&row));
        let element = |at: usize| -> f64 {
            let (y, x) = (at / n, at % n);
            added[x] + (0..k).map(|i| left[y * k + i] * right[i * n + x]).sum::<f64>()
        };
        let expected: Vec<f64> = (0..m * n).map(element).collect();
        let tolerance = match dtype {
            DType::F64 => 1e-12,
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            _ => 2e-2,
        };
        assert_close(&values(&found), &expected, tolerance);
    }
}

#[test]
fn points_of_a_grid_that_are_no_numbers_are_outside_of_the_image() {
    let x = tensor(&(0..16).map(f64::from).collect::<Vec<_>>(), &[1, 1, 4, 4], DType::F32);
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    let points = [nan, 0.0, 0.0, infinite, -infinite, nan, 1e30, 0.5, 0.0, 0.0];
    let grid = tensor(&points, &[1, 1, 5, 2], DType::F32);
    for name in ["grid_sampler_2d", "thalweg::grid_sample_by_operators"] {
        // PyTorch's CUDA kernels put such a point outside, but for the weights of cubic interpolation, which are NaN.
        for (interpolation, outside) in [(0, 0.0), (1, 0.0), (2, nan)] {
            let leaf = grid.detach().requires_grad_().unwrap();
            let numbers = [Value::Int(interpolation), Value::Int(0), Value::Bool(true)];
            let y = call(
                name,
                &[&[Value::Tensor(x.clone()), Value::Tensor(leaf.clone())], &numbers[..]].concat(),
            )
            .remove(0);
            let ones = y.detach().full_like(1.0).unwrap();
            let of_grid =
                gradients(std::slice::from_ref(&y), &[Some(ones)], &[leaf]).unwrap().remove(0).unwrap();
            let is = |found: f64| found == outside || (found.is_nan() && outside.is_nan());
            let (y, of_grid) = (values(&y), values(&of_grid));
            assert!(
                y[..3].iter().chain(&of_grid[..6]).all(|&found| is(found)),
                "{name} {interpolation}: {y:?} {of_grid:?}"
            );
            assert!(
                y[4].is_finite() && of_grid[8..].iter().all(|found| found.is_finite()),
                "{name} {interpolation}"
            );
        }
    }
}

#[test]
fn images_at_the_points_of_a_grid_are_those_of_whole_tensors() {
    let mut draw = Draw(67);
    for turn in 0..54 {
        let dtype = [DType::F64, DType::F32, DType::Bf16][turn % 3];
        let [batch, channels] = [1 + draw.below(2), 1 + draw.below(3)];
        let [height, width, rows, columns] = [7, 7, 5, 5].map(|end| 1 + draw.below(end));
        let x = draw.images(&[batch, channels, height, width], dtype);
        let grid = draw.images(&[batch, rows, columns, 2], dtype).mul_scalar(1.5).unwrap();
        let numbers =
            [Value::Int(turn as i64 / 3 % 3), Value::Int(turn as i64 / 9 % 3), Value::Bool(turn / 27 == 0)];
        let run = |name: &str| -> Vec<Vec<f64>> {
            let leaves = [&x, &grid].map(|tensor| tensor.detach().requires_grad_().unwrap());
            let inputs = leaves.iter().map(|leaf| Value::Tensor(leaf.clone())).collect::<Vec<_>>();
            let y = call(name, &[&inputs[..], &numbers[..]].concat()).remove(0);
            let g = random(y.shape(), 9).to_dtype(dtype).unwrap();
            let found = gradients(std::slice::from_ref(&y), &[Some(g)], &leaves).unwrap();
            [Some(y)].into_iter().chain(found).map(|result| values(&result.unwrap())).collect()
        };
        let tolerance = match dtype {
            DType::F64 => 1e-11,
            DType::F32 => 1e-4,
            _ => 3e-2,
        };
        let [found, expected] = ["grid_sampler_2d", "thalweg::grid_sample_by_operators"].map(run);
        found.iter().zip(&expected).for_each(|(found, expected)| assert_close(found, expected, tolerance));
    }
}
