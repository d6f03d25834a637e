//! Products by groups of warps, in every layout and shape of tiles, compared with their formula in f64.

use thalweg_driver::{Code, TensorTiles};
use thalweg_ir::DType;
use thalweg_kernels::Placed;
use thalweg_kernels::matmul::warp_groups::{MappedOperands, Tiles, WarpGroupMatmul, fits};
use thalweg_kernels::matmul::{Factor, Matmul, Operand};
use thalweg_runtime::{Label, Result};
use thalweg_tensor::Tensor;

use crate::support::{device, random, values};

/// A change after which a tensor has no map.
type Change = fn(&mut TensorTiles);

/// The operands of a product, and its description.
struct Case {
    product: Matmul,
    a: Tensor,
    b: Tensor,
    bias: Tensor,
}

impl Case {
    /// Stored rows are 8 elements longer than they need, which must not be read or written.
    fn new([batch, m, n, k]: [usize; 4], transposed: [bool; 2], dtype: DType) -> Self {
        let stored = |rows: usize, columns: usize, transposed: bool| {
            let [rows, columns] = if transposed { [columns, rows] } else { [rows, columns] };
            ([batch, rows, columns + 8], columns.next_multiple_of(8) + 8)
        };
        let whole = |shape: [usize; 3], seed| {
            let padded = [shape[0], shape[1], shape[2].next_multiple_of(8)];
            random(&padded, seed).to_dtype(dtype).unwrap()
        };
        let ((a_shape, a_row), (b_shape, b_row)) = (stored(m, k, transposed[0]), stored(k, n, transposed[1]));
        let operand = |shape: [usize; 3], row: usize, transposed: bool| Operand {
            leading_dimension: row as u64,
            batch_stride: (shape[1] * row) as u64,
            transposed,
        };
        let [wide_m, wide_n, wide_k] = [m, n, k].map(|extent| extent as u64);
        let d =
            Operand { leading_dimension: wide_n + 8, batch_stride: wide_m * (wide_n + 8), transposed: false };
        let product = Matmul {
            a: operand(a_shape, a_row, transposed[0]),
            b: operand(b_shape, b_row, transposed[1]),
            d,
            alpha: Factor::new(0.5),
            ..Matmul::contiguous(wide_m, wide_n, wide_k, batch as u64, dtype)
        };
        let bias = random(&[n], 3).to_dtype(dtype).unwrap();
        Self { product, a: whole(a_shape, 1), b: whole(b_shape, 2), bias }
    }

    /// Launches it on few multiprocessors, so that a block takes several tiles.
    fn run(&self, tiles: Tiles, processors: u32, with_bias: bool) -> Result<Vec<f64>> {
        let Matmul { m, d, batch, dtype, .. } = self.product;
        let shape = [batch, m, d.leading_dimension].map(|extent| extent as usize);
        let result = Tensor::full(&shape, f64::NAN, dtype, &device())?;
        let kernel = WarpGroupMatmul { product: self.product, tiles, processors };
        let at = [self.a.pointer(), self.b.pointer(), result.pointer()];
        let driver = device().driver().clone();
        let maps = kernel.tensors(at).map(|tensor| driver.tensor_map(&tensor).unwrap());
        let bias = with_bias.then(|| self.bias.pointer());
        let placed = Placed { kernel, at: MappedOperands { at, bias, maps } };
        device().current_stream().launch_native(&placed, Label::here("product"))?;
        Ok(values(&result))
    }

    /// Checks a result: elements near their formula, and the gaps between rows unchanged.
    fn check(&self, found: &[f64], with_bias: bool, what: &str) {
        let Matmul { m, n, k, batch, a, b, d, dtype, .. } = self.product;
        let (left, right, bias) = (values(&self.a), values(&self.b), values(&self.bias));
        let at = |operand: &Operand, item: u64, row: u64, column: u64| {
            let [row, column] = if operand.transposed { [column, row] } else { [row, column] };
            (item * operand.batch_stride + row * operand.leading_dimension + column) as usize
        };
        let rounding = if dtype == DType::F16 { 5e-4 } else { 4e-3 };
        for item in 0..batch {
            for row in 0..m {
                for column in 0..d.leading_dimension {
                    let found = found[at(&d, item, row, column)];
                    if column >= n {
                        assert!(found.is_nan(), "{what} [{item}, {row}, {column}] was written: {found}");
                        continue;
                    }
                    let terms = (0..k).map(|i| left[at(&a, item, row, i)] * right[at(&b, item, i, column)]);
                    let bias = if with_bias { bias[column as usize] } else { 0.0 };
                    let expected = 0.5 * terms.sum::<f64>() + bias;
                    let bound = rounding * expected.abs().max(1.0) + k as f64 * 6e-8;
                    let is_near = (found - expected).abs() <= bound;
                    assert!(is_near, "{what} [{item}, {row}, {column}]: {found}, {expected}");
                }
            }
        }
    }
}

#[test]
fn products_in_every_layout_are_near_those_in_f64() {
    // Parts of tiles in each direction; less than a tile; several tiles per block, by both groups; a single row.
    let shapes = [[2, 150, 136, 72], [1, 8, 8, 8], [1, 520, 392, 136], [3, 1, 16, 200]];
    for (shape, dtype) in shapes.into_iter().flat_map(|shape| [(shape, DType::Bf16), (shape, DType::F16)]) {
        for transposed in [[false, false], [false, true], [true, false], [true, true]] {
            let case = Case::new(shape, transposed, dtype);
            assert!(fits(&case.product), "{}", case.product);
            let results = Tiles::ALL.map(|tiles| {
                let with_bias = tiles != Tiles::Single;
                let found = case.run(tiles, 4, with_bias).unwrap();
                case.check(&found, with_bias, &format!("{} by {tiles:?}", case.product));
                found
            });
            // Terms are summed in one order.
            let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&results[0]), bits(&results[1]), "{}", case.product);
        }
    }
}

#[test]
fn a_matrix_that_repeats_is_read_for_each_product() {
    let mut case = Case::new([3, 40, 24, 64], [false, true], DType::Bf16);
    case.product.b.batch_stride = 0;
    for tiles in Tiles::ALL {
        case.check(&case.run(tiles, 132, true).unwrap(), true, "a repeated matrix");
    }
}

#[test]
fn what_the_kernel_does_not_take_is_refused_with_the_reason() {
    let case = Case::new([1, 16, 16, 16], [false, false], DType::Bf16);
    let refused = |change: &dyn Fn(&mut Matmul)| {
        let mut product = case.product;
        change(&mut product);
        assert!(!fits(&product), "{product}");
        let case = Case { product, a: case.a.clone(), b: case.b.clone(), bias: case.bias.clone() };
        case.run(Tiles::Wide, 132, false).unwrap_err().to_string()
    };
    assert!(refused(&|product| product.beta = Factor::ONE).contains("it adds to nothing"));
    assert!(refused(&|product| product.n = 12).contains("multiples of 16 bytes apart"));
    assert!(refused(&|product| product.dtype = DType::F32).contains("float16 and bfloat16"));
}

#[test]
fn tensors_without_a_map_are_refused_with_the_reason() {
    let case = Case::new([1, 16, 16, 16], [false, false], DType::Bf16);
    let kernel = WarpGroupMatmul { product: case.product, tiles: Tiles::Wide, processors: 132 };
    let [tensor, ..] = kernel.tensors([case.a.pointer(), case.b.pointer(), case.a.pointer()]);
    let driver = device().driver().clone();
    assert!(driver.tensor_map(&tensor).is_ok());
    let changes: [(&str, Change); 4] = [
        ("not a multiple of 16", |tensor| tensor.address = tensor.address.offset(8)),
        ("an extent is 0", |tensor| tensor.extents[1] = 0),
        ("a stride is 24 bytes", |tensor| tensor.strides[1] = 24),
        ("300 rows", |tensor| tensor.tile[0] = 300),
    ];
    for (why, change) in changes {
        let mut changed = tensor;
        change(&mut changed);
        let error = driver.tensor_map(&changed).unwrap_err();
        assert_eq!(error.code(), Code::InvalidValue);
        assert!(error.to_string().contains(why), "{error}");
    }
}
