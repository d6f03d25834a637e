//! Names of products and of solutions, in the format of PyTorch's results files.

use std::fmt;

use thalweg_driver::{ComputeFormat, MatmulAlgorithm};
use thalweg_ir::DType;
use thalweg_kernels::matmul::warp_groups::Tiles as GroupTiles;
use thalweg_kernels::matmul::{Matmul, Operand};

use crate::products::Precision;
use crate::strips::Operands;
use thalweg_runtime::invalid;
use thalweg_runtime::{Error, Result};

/// The name of a product: its kind and its sizes. PyTorch's matrices are column-major, so operands are swapped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Signature {
    pub(super) operator: String,
    pub(super) parameters: String,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.operator, self.parameters)
    }
}

/// A product of the library: its sizes, whether it adds a bias, whether its result is f32 although its operands have 16 bits, and
/// how it is accumulated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Shape {
    pub(super) product: Matmul,
    pub(super) has_bias: bool,
    pub(super) is_wide: bool,
    pub(super) compute: ComputeFormat,
}

const BFX9: &str = "_compute_bf16x9_r";
const F16: &str = "_compute_f16_r";

/// The types of A, B and D in names of products into f32, written as in PyTorch's names of scaled products.
const WIDE: [(&str, DType); 2] = [("Half_Half_float", DType::F16), ("BFloat16_BFloat16_float", DType::Bf16)];

impl Shape {
    pub(super) fn of(product: &Matmul, operands: &Operands, (compute, _): Precision) -> Self {
        let Operands { bias, is_wide, .. } = operands;
        Self { product: *product, has_bias: bias.is_some(), is_wide: *is_wide, compute }
    }

    /// Returns the dtype of the result.
    pub(super) fn output(&self) -> DType {
        if self.is_wide { DType::F32 } else { self.product.dtype }
    }

    /// Returns the name of the product; `None` if the library has no products for the dtype.
    pub(super) fn signature(&self) -> Option<Signature> {
        let Matmul { m, n, k, batch, dtype, a, b, d, .. } = &self.product;
        let wide = WIDE.iter().find(|(_, operands)| self.is_wide && operands == dtype);
        let element = match (dtype, self.compute) {
            _ if self.is_wide => wide?.0,
            (DType::F32, ComputeFormat::F32_FAST_TF32) => "tf32",
            (DType::F32, _) => "float",
            (DType::F64, _) => "double",
            (DType::F16, _) => "Half",
            (DType::Bf16, _) => "BFloat16",
            _ => return None,
        };
        let kind = match (self.has_bias, *batch) {
            (true, 1) => "GemmAndBias",
            (false, 1) => "Gemm",
            (false, _) => "GemmStridedBatched",
            (true, _) => return None,
        };
        let letter = |operand: &Operand| if operand.transposed { 't' } else { 'n' };
        let letters: String = [letter(b), letter(a)].into_iter().collect();
        let batch = if *batch == 1 { String::new() } else { format!("_B_{batch}") };
        let [lda, ldb, ldc] = [b, a, d].map(|operand| operand.leading_dimension);
        let compute = match self.compute {
            ComputeFormat::F32_EMULATED_BF16X9 => BFX9,
            ComputeFormat::F16 => F16,
            _ => "",
        };
        Some(Signature {
            operator: format!("{kind}TunableOp_{element}_{}", letters.to_uppercase()),
            parameters: format!("{letters}_{n}_{m}_{k}{batch}_ld_{lda}_{ldb}_{ldc}{compute}"),
        })
    }

    /// Parses a name. The matrices of a batch must be contiguous.
    ///
    /// # Errors
    /// A sentence that explains why this is not the name of a product.
    pub(super) fn parse(signature: &Signature) -> Result<Self> {
        let fail = |why: &str| invalid!("{signature}: {why}");
        let (kind, element) = signature
            .operator
            .split_once("TunableOp_")
            .and_then(|(kind, rest)| Some((kind, rest.rsplit_once('_')?.0)))
            .ok_or_else(|| fail("the operator is not of the form GemmTunableOp_float_NN"))?;
        let wide = WIDE.iter().find(|(name, _)| *name == element);
        let (dtype, mut compute) = match element {
            _ if let Some((_, operands)) = wide => (*operands, ComputeFormat::F32),
            "float" => (DType::F32, ComputeFormat::F32),
            "tf32" => (DType::F32, ComputeFormat::F32_FAST_TF32),
            "double" => (DType::F64, ComputeFormat::F64),
            "Half" => (DType::F16, ComputeFormat::F32),
            "BFloat16" => (DType::Bf16, ComputeFormat::F32),
            other => return Err(fail(&format!("there are no products of {other} here"))),
        };
        let mut parameters = signature.parameters.as_str();
        for (suffix, format) in [(BFX9, ComputeFormat::F32_EMULATED_BF16X9), (F16, ComputeFormat::F16)] {
            if let Some(rest) = parameters.strip_suffix(suffix) {
                (parameters, compute) = (rest, format);
            }
        }
        let words: Vec<&str> = parameters.split('_').collect();
        let number = |place: usize| {
            let word = words.get(place).copied().unwrap_or_default();
            let number = word.parse::<u64>().ok().filter(|&number| number > 0);
            number.ok_or_else(|| fail(&format!("'{word}' is not a whole number from 1 on")))
        };
        let (batch, leading) = match kind {
            "Gemm" | "GemmAndBias" => (1, 4),
            "GemmStridedBatched" => (number(5)?, 6),
            other => return Err(fail(&format!("{other} cannot be tuned here"))),
        };
        if words.get(leading) != Some(&"ld") || words.len() != leading + 4 {
            return Err(fail("the parameters are not of the form nn_M_N_K_ld_LDA_LDB_LDC"));
        }
        let transposed = match words[0] {
            "nn" => [false, false],
            "nt" => [false, true],
            "tn" => [true, false],
            "tt" => [true, true],
            _ => return Err(fail("the parameters do not begin with nn, nt, tn or tt")),
        };
        let (n, m, k) = (number(1)?, number(2)?, number(3)?);
        let operand = |place: usize, transposed: bool, rows: u64, columns: u64| -> Result<Operand> {
            let leading_dimension = number(leading + place)?;
            let stored_rows = if transposed { columns } else { rows };
            let batch_stride = if batch == 1 { 0 } else { leading_dimension.saturating_mul(stored_rows) };
            Ok(Operand { leading_dimension, batch_stride, transposed })
        };
        let product = Matmul {
            b: operand(1, transposed[0], k, n)?,
            a: operand(2, transposed[1], m, k)?,
            d: operand(3, false, m, n)?,
            ..Matmul::contiguous(m, n, k, batch, dtype)
        };
        product.check().map_err(|fault| fail(&fault.to_string()))?;
        let has_bias = kind == "GemmAndBias";
        if has_bias && wide.is_some() {
            return Err(fail("a product into 32-bit floats has no bias here"));
        }
        Ok(Self { product, has_bias, is_wide: wide.is_some(), compute })
    }
}

/// The way to compute a product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Solution {
    /// The way that is used without tuning.
    Default,
    /// Thalweg's kernel for small products.
    Tiles,
    /// Thalweg's kernel for few rows.
    Rows,
    /// Thalweg's kernel for groups of warps, with tiles of this shape.
    Groups(GroupTiles),
    /// An algorithm of the library.
    Library(MatmulAlgorithm),
}

const TILES: &str = "Gemm_Thalweg_tiles";
const ROWS: &str = "Gemm_Thalweg_rows";
const GROUPS: &str = "Gemm_Thalweg_groups_";

/// The words of a library's algorithm, in PyTorch's order.
const WORDS: [&str; 9] = ["id", "tile", "stages", "splitk", "red", "swizzle", "custom", "inner", "cluster"];

impl fmt::Display for Solution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("Default"),
            Self::Tiles => f.write_str(TILES),
            Self::Rows => f.write_str(ROWS),
            Self::Groups(tiles) => write!(f, "{GROUPS}{}", tiles.name()),
            Self::Library(of) => {
                write!(f, "Gemm_Cublaslt")?;
                let numbers = [
                    i64::from(of.id),
                    of.tile.into(),
                    of.stages.into(),
                    of.split_k.into(),
                    of.reduction.into(),
                    of.swizzle.into(),
                    of.custom.into(),
                    of.inner_shape.into(),
                    of.cluster_shape.into(),
                ];
                WORDS.iter().zip(numbers).try_for_each(|(word, number)| write!(f, "_{word}_{number}"))
            }
        }
    }
}

impl Solution {
    /// Parses a name; `None` if it is not a solution known here.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "Default" => return Some(Self::Default),
            TILES => return Some(Self::Tiles),
            ROWS => return Some(Self::Rows),
            _ => {}
        }
        if let Some(name) = name.strip_prefix(GROUPS) {
            return GroupTiles::ALL.into_iter().find(|tiles| tiles.name() == name).map(Self::Groups);
        }
        let mut words = name.strip_prefix("Gemm_Cublaslt_")?.split('_');
        let mut numbers = [0_i64; WORDS.len()];
        for (word, number) in WORDS.iter().zip(&mut numbers) {
            if words.next()? != *word {
                return None;
            }
            *number = words.next()?.parse().ok()?;
        }
        let [id, tile, stages, split_k, reduction, swizzle, custom, inner, cluster] = numbers;
        let algorithm = MatmulAlgorithm {
            id: id.try_into().ok()?,
            tile: tile.try_into().ok()?,
            stages: stages.try_into().ok()?,
            split_k: split_k.try_into().ok()?,
            reduction: reduction.try_into().ok()?,
            swizzle: swizzle.try_into().ok()?,
            custom: custom.try_into().ok()?,
            inner_shape: inner.try_into().ok()?,
            cluster_shape: cluster.try_into().ok()?,
        };
        words.next().is_none().then_some(Self::Library(algorithm))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(operator: &str, parameters: &str) -> Signature {
        Signature { operator: operator.into(), parameters: parameters.into() }
    }

    #[test]
    fn a_layer_has_pytorchs_name_and_is_read_back() {
        // A linear layer: x (128 × 768) times a weight (3072 × 768) transposed.
        let weight = Operand { leading_dimension: 768, batch_stride: 0, transposed: true };
        let mut product = Matmul { b: weight, ..Matmul::contiguous(128, 3072, 768, 1, DType::Bf16) };
        (product.a.batch_stride, product.d.batch_stride) = (0, 0);
        let shape = Shape { product, has_bias: true, is_wide: false, compute: ComputeFormat::F32 };
        let signature = shape.signature().unwrap();
        assert_eq!(signature.to_string(), "GemmAndBiasTunableOp_BFloat16_TN,tn_3072_128_768_ld_768_768_3072");
        assert_eq!(Shape::parse(&signature).unwrap(), shape);
        let plain = Shape { has_bias: false, compute: ComputeFormat::F32, ..shape };
        let mut tf32 = Shape { compute: ComputeFormat::F32_FAST_TF32, ..plain };
        tf32.product.dtype = DType::F32;
        assert_eq!(tf32.signature().unwrap().operator, "GemmTunableOp_tf32_TN");
        assert_eq!(Shape::parse(&tf32.signature().unwrap()).unwrap(), tf32);
        let wide = Shape { is_wide: true, ..plain };
        assert_eq!(wide.signature().unwrap().operator, "GemmTunableOp_BFloat16_BFloat16_float_TN");
        assert_eq!(Shape::parse(&wide.signature().unwrap()).unwrap(), wide);
        assert_eq!(Shape { is_wide: true, ..tf32 }.signature(), None);
    }

    #[test]
    fn a_batch_is_named_and_read_back() {
        let product = Matmul::contiguous(4, 6, 8, 5, DType::F32);
        let compute = ComputeFormat::F32_EMULATED_BF16X9;
        let shape = Shape { product, has_bias: false, is_wide: false, compute };
        let signature = shape.signature().unwrap();
        let expected = "GemmStridedBatchedTunableOp_float_NN,nn_6_4_8_B_5_ld_6_8_6_compute_bf16x9_r";
        assert_eq!(signature.to_string(), expected);
        assert_eq!(Shape::parse(&signature).unwrap(), shape);
    }

    #[test]
    fn names_that_are_none_are_refused_with_the_reason() {
        let refused = |operator: &str, parameters: &str| {
            Shape::parse(&named(operator, parameters)).unwrap_err().to_string()
        };
        let gemm = "GemmTunableOp_float_NN";
        assert!(refused("Gemm", "nn_1_2_3_ld_1_3_1").contains("not of the form GemmTunableOp"));
        assert!(refused("ScaledGemmTunableOp_float_NN", "nn_1_2_3_ld_1_3_1").contains("ScaledGemm"));
        assert!(refused("GemmTunableOp_int_NN", "nn_1_2_3_ld_1_3_1").contains("products of int"));
        let biased = "GemmAndBiasTunableOp_Half_Half_float_NN";
        assert!(refused(biased, "nn_1_2_3_ld_1_3_1").contains("has no bias here"));
        assert!(refused(gemm, "nn_1_2_3").contains("of the form nn_M_N_K"));
        assert!(refused(gemm, "nn_0_2_3_ld_1_3_1").contains("'0' is not a whole number"));
        assert!(refused(gemm, "xn_1_2_3_ld_1_3_1").contains("do not begin with"));
        assert!(refused(gemm, "nn_4_2_3_ld_1_3_1").contains("leading dimension"));
    }

    #[test]
    fn solutions_are_read_back_and_others_are_not() {
        let algorithm = MatmulAlgorithm {
            id: 66,
            tile: 20,
            stages: 36,
            split_k: 3,
            reduction: 2,
            swizzle: 1,
            custom: 7,
            inner_shape: 4,
            cluster_shape: 2,
        };
        let name =
            "Gemm_Cublaslt_id_66_tile_20_stages_36_splitk_3_red_2_swizzle_1_custom_7_inner_4_cluster_2";
        assert_eq!(Solution::Library(algorithm).to_string(), name);
        let groups = GroupTiles::ALL.map(Solution::Groups);
        let others = [Solution::Default, Solution::Tiles, Solution::Rows, Solution::Library(algorithm)];
        for solution in others.into_iter().chain(groups) {
            assert_eq!(Solution::parse(&solution.to_string()), Some(solution));
        }
        for other in [
            "Gemm_Rocblas_1",
            "",
            "Gemm_Thalweg_groups_",
            "Gemm_Thalweg_groups_narrow",
            "Gemm_Cublaslt_id_66",
            &format!("{name}_more_1"),
            &name[..name.len() - 1],
        ] {
            assert_eq!(Solution::parse(other), None, "{other}");
        }
    }
}
