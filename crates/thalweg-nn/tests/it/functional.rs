//! Functions of `torch.nn.functional`: their presence, and the values of those that are composed here, compared with PyTorch's.

use thalweg_nn::functional::{
    self, GridSampleMode, GridSamplePadding, InterpolateOptions, Reduction, UnfoldOptions, UpsampleMode,
};
use thalweg_runtime::Device;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::operators;

/// The functions of `torch.nn.functional` in PyTorch 2.11, except those in place; after a colon the item that replaces a function
/// that is neither in `functional` nor a method of [`Tensor`].
const NAMES: &str = include_str!("../goldens/functional.txt");

const SOURCES: [&str; 7] = [
    include_str!("../../src/functional/activations.rs"),
    include_str!("../../src/functional/attention.rs"),
    include_str!("../../src/functional/convolution.rs"),
    include_str!("../../src/functional/losses.rs"),
    include_str!("../../src/functional/mod.rs"),
    include_str!("../../src/functional/normalization.rs"),
    include_str!("../../src/functional/resampling.rs"),
];

#[test]
fn every_function_of_pytorchs_has_one_in_rust() {
    let operators = operators();
    let methods: Vec<&str> = operators.iter().filter_map(|operator| operator.method()).collect();
    let is_function = |name: &str| {
        let declared = [format!("pub fn {name}("), format!("pub fn {name}<")];
        // Transposes of convolutions are lines of a macro.
        let listed = format!("\n    {name}(");
        SOURCES.iter().any(|text| {
            declared.iter().any(|declared| text.contains(declared))
                || (name.starts_with("conv_transpose") && text.contains(&listed))
        })
    };
    let is_listed_wrongly = |line: &&str| {
        let (name, instead) =
            line.split_once(": ").map_or((*line, None), |(name, reason)| (name, Some(reason)));
        (is_function(name) || methods.contains(&name)) == instead.is_some()
    };
    assert_eq!(NAMES.lines().filter(is_listed_wrongly).collect::<Vec<_>>(), [""; 0]);
}

fn squares() -> Tensor {
    let numbers: Vec<f32> = (0..16).map(|number| (number * number) as f32 / 10.0).collect();
    Tensor::from_slice(&numbers, &[1, 1, 4, 4], &Device::sim(0).unwrap()).unwrap()
}

#[track_caller]
fn agrees(found: thalweg_runtime::Result<Tensor>, shape: &[usize], expected: &[f32]) {
    let found = found.unwrap();
    assert_eq!(found.shape(), shape);
    for (at, (found, expected)) in found.to_vec::<f32>().unwrap().iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 2e-5 * expected.abs().max(1.0), "{at}: {found}, not {expected}");
    }
}

#[test]
fn images_of_another_size_have_pytorchs_values() {
    let x = squares();
    let resized = |size: &[usize], mode, antialias| {
        functional::interpolate(
            &x,
            InterpolateOptions { size: Some(size), scale_factor: None, mode, antialias },
        )
    };
    let linear = UpsampleMode::Linear { align_corners: false };
    agrees(resized(&[2, 2], UpsampleMode::Area, false), &[1, 1, 2, 2], &[1.05, 2.45, 11.45, 16.05]);
    let cubic = UpsampleMode::Bicubic { align_corners: true };
    agrees(resized(&[2, 3], cubic, false), &[1, 1, 2, 3], &[0.0, 0.2125, 0.9, 14.4, 18.2125, 22.5]);
    agrees(resized(&[2, 2], linear, true), &[1, 1, 2, 2], &[2.10816, 3.47755, 10.54898, 13.89388]);
    let nearest = [0.0, 0.4, 0.9, 6.4, 10.0, 12.1, 14.4, 19.6, 22.5];
    agrees(resized(&[3], UpsampleMode::NearestExact, false), &[1, 1, 3, 3], &nearest);
    let options =
        InterpolateOptions { scale_factor: Some(&[0.75]), mode: UpsampleMode::Area, ..Default::default() };
    let means = [1.05, 1.65, 2.45, 4.65, 6.05, 7.65, 11.45, 13.65, 16.05];
    agrees(functional::interpolate(&x, options), &[1, 1, 3, 3], &means);

    for (mode, antialias) in [(UpsampleMode::Nearest, true), (UpsampleMode::Area, true)] {
        assert!(resized(&[2, 2], mode, antialias).unwrap_err().is_invalid_argument());
    }
    let row = x.reshape((1, 1, 16)).unwrap();
    let options = InterpolateOptions { size: Some(&[4]), mode: cubic, ..Default::default() };
    let error = functional::interpolate(&row, options).unwrap_err().to_string();
    assert!(error.contains("there is no Bicubic { align_corners: true } over 1 axes"), "{error}");
}

#[test]
fn grids_and_windows_have_pytorchs_values() {
    let x = squares();
    let matrix = [0.5f32, 0.25, 0.1, -0.25, 1.0, 0.0];
    let theta = Tensor::from_slice(&matrix, &[1, 2, 3], x.device()).unwrap();
    let grid = functional::affine_grid(&theta, (1, 1, 2, 3), false).unwrap();
    let expected = [
        -0.35833, -0.33333, -0.025, -0.5, 0.30833, -0.66667, -0.10833, 0.66667, 0.225, 0.5, 0.55833, 0.33333,
    ];
    agrees(Ok(grid.clone()), &[1, 2, 3, 2], &expected);
    let corners = [-0.65, -0.75, -0.15, -1.0, 0.35, -1.25, -0.15, 1.25, 0.35, 1.0, 0.85, 0.75];
    agrees(functional::affine_grid(&theta, (1, 1, 2, 3), true), &[1, 2, 3, 2], &corners);
    let sampled =
        functional::grid_sample(&x, &grid, GridSampleMode::Bilinear, GridSamplePadding::Border, false);
    agrees(sampled, &[1, 1, 2, 3], &[1.93389, 1.615, 1.00722, 16.16056, 14.685, 12.97722]);
    let twice = grid.mul_scalar(2.0).unwrap();
    let mirrored =
        functional::grid_sample(&x, &twice, GridSampleMode::Nearest, GridSamplePadding::Reflection, true);
    agrees(mirrored, &[1, 1, 2, 3], &[1.6, 0.1, 3.6, 8.1, 19.6, 12.1]);

    let apart = UnfoldOptions { stride: [2, 2], ..UnfoldOptions::default() };
    let columns = [0.0, 0.4, 6.4, 10.0, 0.1, 0.9, 8.1, 12.1, 1.6, 3.6, 14.4, 19.6, 2.5, 4.9, 16.9, 22.5];
    agrees(functional::unfold(&x, [2, 2], apart), &[1, 4, 4], &columns);
    let wide = UnfoldOptions { padding: [1, 1], ..UnfoldOptions::default() };
    let windows = functional::unfold(&x, [3, 3], wide).unwrap();
    let sums = [0.0, 0.6, 2.4, 3.6, 9.6, 22.5, 32.4, 29.4, 38.4, 72.9, 90.0, 72.6, 57.6, 101.4, 117.6, 90.0];
    agrees(functional::fold(&windows, [4, 4], [3, 3], wide), &[1, 1, 4, 4], &sums);
}

#[test]
fn norms_probabilities_and_losses_have_pytorchs_values() {
    let x = squares().reshape((4, 4)).unwrap();
    let rows = [
        0.0, 0.10102, 0.40406, 0.90914, 0.23647, 0.36949, 0.53206, 0.7242, 0.34065, 0.43113, 0.53226,
        0.64404, 0.38716, 0.45438, 0.52697, 0.60494,
    ];
    agrees(functional::normalize(&x, 2.0, 1, 1e-12), &[4, 4], &rows);
    let corner = x.narrow(0, 0, 2).unwrap().narrow(1, 0, 2).unwrap();
    agrees(functional::softmin(&corner, 0), &[2, 2], &[0.83202, 0.91683, 0.16798, 0.08317]);

    let shrunk = functional::tanhshrink(&Tensor::from_slice(&[0.5f32, -2.0], &[2], x.device()).unwrap());
    agrees(shrunk, &[2], &[0.5 - 0.5f32.tanh(), 2.0f32.tanh() - 2.0]);

    let hard = functional::gumbel_softmax(&x, 0.5, true, -1).unwrap();
    assert_eq!(hard.sum(&[1], false).unwrap().to_vec::<f32>().unwrap(), [1.0; 4]);
    assert!(
        hard.to_vec::<f32>()
            .unwrap()
            .iter()
            .all(|&number| number.abs() < 1e-6 || (number - 1.0).abs() < 1e-6)
    );
    let soft = functional::gumbel_softmax(&x, 0.5, false, 0).unwrap().sum(&[0], false);
    agrees(soft, &[4], &[1.0; 4]);

    let tensor = |numbers: [f32; 4]| Tensor::from_slice(&numbers, &[2, 2], x.device()).unwrap();
    let [anchor, positive, negative] =
        [[1.0, 2.0, 0.0, 1.0], [1.5, 2.0, 3.0, 1.0], [1.0, 3.0, 0.0, 0.0]].map(tensor);
    let manhattan = |x: &Tensor, y: &Tensor| x.sub(y)?.abs()?.sum(&[1], false);
    let triplet = |margin| {
        let tensors = [&anchor, &positive, &negative];
        functional::triplet_margin_with_distance_loss(tensors, manhattan, margin, true, Reduction::None)
    };
    agrees(triplet(0.5), &[2], &[0.0, 2.5]);
    assert!(triplet(0.0).unwrap_err().to_string().contains("margin must be greater than 0"));
}
