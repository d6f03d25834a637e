//! The host's matrix product against three loops in f64.

use proptest::prelude::*;
use thalweg_ir::host::{Slice, SliceMut};
use thalweg_ir::{DType, Element, bf16, f16};
use thalweg_kernels::matmul::fused::{self, FusedMatmul, HostOperands, PerOperand};
use thalweg_kernels::matmul::{Factor, Matmul, Operand, host};

/// Descriptions with every combination of transposes, gaps between rows and between matrices, shared matrices, and empty
/// extents.
fn products() -> impl Strategy<Value = Matmul> {
    let factors = || prop_oneof![Just((1.0, 0.0)), Just((1.0, 1.0)), Just((0.5, -2.0)), Just((-3.0, 0.0))];
    let extent = || prop_oneof![0..4u64, 1..40u64];
    let gaps = || (0..3u64, 0..3u64, any::<bool>(), any::<bool>());
    (extent(), extent(), extent(), 0..4u64, gaps(), gaps(), gaps(), factors()).prop_map(
        |(m, n, k, batch, a, b, d, (alpha, beta))| {
            let operand = |(rows, columns): (u64, u64), (row_gap, gap, transposed, shared), writes: bool| {
                let transposed = transposed && !writes;
                let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
                let leading_dimension = columns + row_gap;
                let batch_stride = if shared && !writes { 0 } else { rows * leading_dimension + gap };
                Operand { leading_dimension, batch_stride, transposed }
            };
            Matmul {
                m,
                n,
                k,
                batch,
                dtype: DType::F32,
                a: operand((m, k), a, false),
                b: operand((k, n), b, false),
                d: operand((m, n), d, true),
                alpha: Factor::new(alpha),
                beta: Factor::new(beta),
            }
        },
    )
}

/// Returns numbers in −1 … 1 with a long period.
fn numbers<T: Element>(count: u64, seed: u64) -> Vec<T> {
    (0..count).map(|i| T::from_f64(((i * 7919 + seed * 104_729) % 2003) as f64 / 1001.0 - 1.0)).collect()
}

fn place(operand: &Operand, item: u64, row: u64, column: u64) -> usize {
    let (row, column) = if operand.transposed { (column, row) } else { (row, column) };
    (item * operand.batch_stride + row * operand.leading_dimension + column) as usize
}

/// Runs a product and compares each element of D, and the elements between its rows, with the plain model.
fn product_is_near<T: Element>(matmul: &Matmul, epsilon: f64, smallest: f64) -> Result<(), TestCaseError>
where
    for<'a> Slice<'a>: From<&'a [T]>,
    for<'a> SliceMut<'a>: From<&'a mut [T]>,
{
    let matmul = Matmul { dtype: T::DTYPE, ..*matmul };
    let [a_span, b_span, d_span] = matmul.spans();
    let (a, b) = (numbers::<T>(a_span, 1), numbers::<T>(b_span, 2));
    let before = numbers::<T>(d_span, 3);
    let mut d = before.clone();
    host::run(&matmul, a.as_slice().into(), b.as_slice().into(), d.as_mut_slice().into()).expect("a product");
    let mut again = before.clone();
    host::run(&matmul, a.as_slice().into(), b.as_slice().into(), again.as_mut_slice().into())
        .expect("a product");
    prop_assert_eq!(&d, &again);
    let mut untouched = vec![true; d.len()];
    for item in 0..matmul.batch {
        for row in 0..matmul.m {
            for column in 0..matmul.n {
                let at = place(&matmul.d, item, row, column);
                untouched[at] = false;
                let start = matmul.beta.get() * before[at].to_f64();
                let terms = (0..matmul.k).map(|i| {
                    matmul.alpha.get()
                        * a[place(&matmul.a, item, row, i)].to_f64()
                        * b[place(&matmul.b, item, i, column)].to_f64()
                });
                let (sum, size) = terms.fold((start, start.abs()), |(s, z), term| (s + term, z + term.abs()));
                // Each of k additions and the last rounding has an error of at most half an epsilon of the sum's absolute terms;
                // sums of 16-bit floats are in f32. Below the normal numbers the error of the last rounding is absolute.
                let bound = (matmul.k as f64 + 1.0) * f64::from(f32::EPSILON).min(epsilon) * size
                    + epsilon * sum.abs()
                    + smallest;
                let error = (d[at].to_f64() - sum).abs();
                prop_assert!(error <= bound, "{matmul}: {error:e} > {bound:e} at [{item}, {row}, {column}]");
            }
        }
    }
    for at in 0..d.len() {
        prop_assert!(!untouched[at] || d[at] == before[at], "{matmul}: element {at} belongs to no matrix");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_are_near_those_of_three_loops(matmul in products()) {
        product_is_near::<f32>(&matmul, f64::from(f32::EPSILON), 0.0)?;
        product_is_near::<f64>(&matmul, f64::EPSILON, 0.0)?;
        product_is_near::<f16>(&matmul, f16::EPSILON.to_f64(), f16::MIN_POSITIVE_SUBNORMAL.to_f64())?;
        product_is_near::<bf16>(&matmul, bf16::EPSILON.to_f64(), bf16::MIN_POSITIVE_SUBNORMAL.to_f64())?;
    }

    #[test]
    fn arguments_are_read_back(matmul in products(), dtype in prop::sample::select(&DType::ALL[..])) {
        let matmul = Matmul { dtype, ..matmul };
        let words = matmul.pack(1 << 50, 2 << 40, 3 << 30);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        prop_assert_eq!(Matmul::unpack(&bytes), Some((matmul, [1 << 50, 2 << 40, 3 << 30])));
        prop_assert_eq!(Matmul::unpack(&bytes[..bytes.len() - 1]), None);
        prop_assert_eq!(Matmul::unpack(&bytes[8..]), None);
    }
}

/// Sums in several parts, factors packed in several parts, work for several threads.
#[test]
fn large_products_are_near_those_of_three_loops() {
    for (m, n, k, batch) in [
        (200, 70, 900, 1),
        (16, 512, 130, 1),
        (23, 130, 500, 2),
        (5, 700, 40, 9),
        (30, 4200, 9, 1),
        (64, 50, 64, 9),
        (150, 130, 390, 2),
        (25, 9, 2000, 3),
    ] {
        for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)] {
            let operand = |(rows, columns): (u64, u64), transposed: bool| {
                let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
                Operand { leading_dimension: columns + 2, batch_stride: rows * (columns + 2) + 3, transposed }
            };
            let matmul = Matmul {
                m,
                n,
                k,
                batch,
                dtype: DType::F32,
                a: operand((m, k), a_transposed),
                b: operand((k, n), b_transposed),
                d: operand((m, n), false),
                alpha: Factor::new(0.5),
                beta: Factor::new(if a_transposed { -2.0 } else { 0.0 }),
            };
            product_is_near::<f32>(&matmul, f64::from(f32::EPSILON), 0.0).unwrap();
        }
    }
}

/// Products with every combination of bias, addend and sums of rows.
fn fused_products() -> impl Strategy<Value = FusedMatmul> {
    (products(), any::<bool>(), any::<bool>(), any::<bool>(), 0..3u64).prop_map(
        |(product, bias, has_addend, row_sums, gap)| {
            let product = Matmul { alpha: Factor::ONE, beta: Factor::ZERO, ..product };
            let leading_dimension = product.n + gap;
            let addend = has_addend.then_some(Operand {
                leading_dimension,
                batch_stride: product.m * leading_dimension + gap,
                transposed: false,
            });
            FusedMatmul { product, bias, addend, row_sums: row_sums && product.batch == 1 }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_fused_product_is_the_product_with_what_is_beside_it(fused in fused_products()) {
        let (product, spans) = (&fused.product, fused.spans());
        let (a, b) = (numbers::<f32>(spans.a, 1), numbers::<f32>(spans.b, 2));
        let (bias, addend) = (numbers::<f32>(spans.bias, 3), numbers::<f32>(spans.addend, 4));
        let (mut d, mut row_sums) = (numbers::<f32>(spans.d, 5), numbers::<f32>(spans.row_sums, 6));
        let mut expected = d.clone();
        host::run(product, a.as_slice().into(), b.as_slice().into(), expected.as_mut_slice().into()).unwrap();
        for (item, row, column) in (0..product.batch).flat_map(|item| {
            (0..product.m).flat_map(move |row| (0..product.n).map(move |column| (item, row, column)))
        }) {
            let value = &mut expected[place(&product.d, item, row, column)];
            *value += bias.get(column as usize).copied().unwrap_or(0.0);
            *value += fused.addend.map_or(0.0, |operand| addend[place(&operand, item, row, column)]);
        }
        let operands = HostOperands {
            a: &a, b: &b, bias: &bias, addend: &addend, d: &mut d, row_sums: &mut row_sums,
        };
        fused::run_on_host(&fused, operands).unwrap();
        prop_assert_eq!(d, expected);
        for (row, &sum) in (0..product.m).zip(&row_sums) {
            let terms = (0..product.k).map(|term| f64::from(a[place(&product.a, 0, row, term)]));
            prop_assert!((f64::from(sum) - terms.sum::<f64>()).abs() < 1e-5, "row {row}: {sum}");
        }
    }

    #[test]
    fn arguments_of_fused_products_are_read_back(fused in fused_products()) {
        let at = PerOperand { a: 1 << 50, b: 2 << 40, d: 3 << 30, bias: 4 << 20, addend: 12, row_sums: 5, norm: [0; 2] };
        let bytes: Vec<u8> = fused.pack(&at).iter().flat_map(|word| word.to_le_bytes()).collect();
        prop_assert_eq!(FusedMatmul::unpack(&bytes), Some((fused, at)));
        prop_assert_eq!(FusedMatmul::unpack(&bytes[8..]), None);
    }
}

#[test]
fn fused_products_that_cannot_be_carried_out_are_faults() {
    let product = Matmul::contiguous(4, 4, 4, 2, DType::F32);
    let fault = |fused: FusedMatmul| fused.check().expect_err("the description is invalid").to_string();
    let alone = FusedMatmul::unfused(product);
    alone.check().unwrap();
    assert!(fault(FusedMatmul { row_sums: true, ..alone }).contains("not of a batch"));
    assert!(fault(FusedMatmul::unfused(Matmul { dtype: DType::F64, ..product })).contains("float32"));
    assert!(fault(FusedMatmul::unfused(Matmul { beta: Factor::ONE, ..product })).contains("float32"));
    let turned = Operand { transposed: true, ..product.d };
    assert!(fault(FusedMatmul { addend: Some(turned), ..alone }).contains("transposed"));
}

#[test]
fn small_products_of_f32_are_fused_ones() {
    let product = |m, n, k| Matmul::contiguous(m, n, k, 1, DType::F32);
    assert!(fused::fits(&product(512, 512, 128)) && fused::fits(&product(128, 512, 512)));
    assert!(!fused::fits(&product(1024, 1024, 1024)) && !fused::fits(&product(32, 32, 4096)));
    assert!(!fused::fits(&Matmul { dtype: DType::F16, ..product(8, 8, 8) }));
    assert!(!fused::fits(&Matmul { beta: Factor::ONE, ..product(8, 8, 8) }));
}

#[test]
fn matrices_may_lie_in_the_columns_of_one() {
    let heads = |leading_dimension| Matmul {
        d: Operand { leading_dimension, batch_stride: 3, transposed: false },
        ..Matmul::contiguous(2, 3, 1, 2, DType::F32)
    };
    assert!(heads(5).check().is_err(), "the last head's columns would be the next row's");
    let mut d = [0.0f32; 12];
    let (a, b) = ([1.0f32, 2.0, 3.0, 4.0], [1.0f32, 10.0, 100.0, 5.0, 50.0, 500.0]);
    host::run(&heads(6), Slice::F32(&a), Slice::F32(&b), SliceMut::F32(&mut d)).unwrap();
    assert_eq!(d, [1.0, 10.0, 100.0, 15.0, 150.0, 1500.0, 2.0, 20.0, 200.0, 20.0, 200.0, 2000.0]);
}

#[test]
fn a_product_of_no_terms_is_zero_or_what_was_there() {
    let matmul = Matmul::contiguous(2, 3, 0, 1, DType::F32);
    let mut d = [f32::NAN; 6];
    host::run(&matmul, Slice::F32(&[]), Slice::F32(&[]), SliceMut::F32(&mut d)).expect("no terms");
    assert_eq!(d, [0.0; 6]);
    d = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let added = Matmul { beta: Factor::ONE, ..matmul };
    host::run(&added, Slice::F32(&[]), Slice::F32(&[]), SliceMut::F32(&mut d)).expect("no terms");
    assert_eq!(d, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn what_was_there_does_not_matter_unless_added() {
    let matmul = Matmul::contiguous(1, 1, 2, 1, DType::F32);
    let mut d = [f32::NAN];
    host::run(&matmul, Slice::F32(&[2.0, 3.0]), Slice::F32(&[5.0, 7.0]), SliceMut::F32(&mut d))
        .expect("a product");
    assert_eq!(d, [31.0]);
}

#[test]
fn descriptions_that_cannot_be_carried_out_are_faults() {
    let fault = |matmul: Matmul, words: &str| {
        let fault = matmul.check().expect_err("the description is invalid").to_string();
        assert!(fault.contains(words), "{fault}");
    };
    let good = Matmul::contiguous(4, 4, 4, 2, DType::F32);
    good.check().expect("a product");
    fault(Matmul { dtype: DType::Bool, ..good }, "bool is not supported");
    fault(Matmul { dtype: DType::I32, beta: Factor::new(2.0), ..good }, "a factor of 1");
    fault(Matmul { a: Operand { leading_dimension: 3, ..good.a }, ..good }, "leading dimension of A is 3");
    fault(Matmul { d: Operand { batch_stride: 15, ..good.d }, ..good }, "matrices of D overlap");
    fault(Matmul { d: Operand { transposed: true, ..good.d }, ..good }, "D cannot be transposed");
    fault(Matmul { b: Operand { batch_stride: u64::MAX, ..good.b }, ..good }, "larger than can be addressed");
    let mut d = [0.0f32; 32];
    let (a, b) = ([0.0f32; 31], [0.0f32; 32]);
    let short =
        host::run(&good, Slice::F32(&a), Slice::F32(&b), SliceMut::F32(&mut d)).expect_err("A is short");
    assert!(short.to_string().contains("A takes 32 elements; given are 31"), "{short}");
    let other = host::run(&good, Slice::F32(&b), Slice::F64(&[0.0; 32]), SliceMut::F32(&mut d))
        .expect_err("B has another dtype");
    assert!(other.to_string().contains("B is given as elements of float64"), "{other}");
}

/// Compares three loops over bytes that wrap around with the host's product.
#[test]
fn products_of_integers_wrap_around() {
    let (a, b) = ([200u8, 100, 3, 255], [7u8, 9, 250, 1]);
    for (is_transposed, beta, before) in [(false, Factor::ZERO, 77u8), (true, Factor::ONE, 77)] {
        let plain = Matmul::contiguous(2, 2, 2, 1, DType::U8);
        let product = Matmul { a: Operand { transposed: is_transposed, ..plain.a }, beta, ..plain };
        let mut d = [before; 4];
        host::run(&product, a.as_slice().into(), b.as_slice().into(), d.as_mut_slice().into()).unwrap();
        for (at, found) in d.into_iter().enumerate() {
            let (row, column) = (at / 2, at % 2);
            let terms = (0..2).map(|i| {
                let left = if is_transposed { a[i * 2 + row] } else { a[row * 2 + i] };
                u64::from(left) * u64::from(b[i * 2 + column])
            });
            let expected = terms.sum::<u64>() + if beta == Factor::ONE { u64::from(before) } else { 0 };
            assert_eq!(u64::from(found), expected % 256, "element {at}, {product}");
        }
    }
}

#[test]
fn work_is_counted() {
    let matmul = Matmul::contiguous(2, 3, 5, 7, DType::F16);
    assert_eq!(matmul.flops(), 2 * 2 * 3 * 5 * 7);
    assert_eq!(matmul.bytes(), 2 * 7 * (10 + 15 + 6));
    let shared = Matmul { b: Operand { batch_stride: 0, ..matmul.b }, beta: Factor::ONE, ..matmul };
    assert_eq!(shared.bytes(), 2 * (7 * 10 + 15 + 2 * 7 * 6));
}
