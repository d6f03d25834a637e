//! Process-wide settings of the libraries that operators call, with PyTorch's names (`torch.backends`).
//!
//! Each setting is read when a product is queued. A captured product keeps the setting that was in effect when it was captured.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use thalweg_driver::{ComputeFormat, ReductionSchemes};
use thalweg_ir::DType;
use thalweg_kernels::matmul::{Factor, Matmul};

use thalweg_runtime::{Error, Result};
use thalweg_runtime::{invalid, refuse};

/// Defines settings: for each its documentation, the functions that return and set it, and where it is stored with its default.
macro_rules! settings {
    ($(
        $(#[doc = $meaning:literal])+
        $get:ident, $set:ident: $type:ty = $cell:ident, $atomic:ident, $default:literal;
    )*) => {$(
        static $cell: $atomic = $atomic::new($default);

        #[doc = concat!("Returns", $($meaning,)+ "; the default is ", $default, ".")]
        pub fn $get() -> $type {
            $cell.load(Ordering::Relaxed)
        }

        #[doc = concat!("Sets", $($meaning,)+ ".")]
        pub fn $set(to: $type) {
            $cell.store(to, Ordering::Relaxed);
        }
    )*};
}

/// The precision in which a product of 32-bit floats is computed (`fp32_precision`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Fp32Precision {
    /// The precision of the next level: for CUDA the process's, for the process IEEE.
    None,
    /// IEEE single precision.
    Ieee,
    /// Operands are rounded to TF32, which has a 10-bit mantissa; sums are in single precision.
    Tf32,
    /// Operands are split into sums of three 16-bit brain floats: as exact as single precision, and faster on some devices. Only
    /// for products, with cuBLASLt from CUDA 12.9 on.
    Bfx9,
}

impl Fp32Precision {
    const ALL: [Self; 4] = [Self::None, Self::Ieee, Self::Tf32, Self::Bfx9];

    /// Returns PyTorch's name of the precision.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ieee => "ieee",
            Self::Tf32 => "tf32",
            Self::Bfx9 => "bfx9",
        }
    }

    fn load(cell: &AtomicU8) -> Self {
        Self::ALL[usize::from(cell.load(Ordering::Relaxed))]
    }
}

impl fmt::Display for Fp32Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fp32Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|precision| precision.name() == name)
            .ok_or_else(|| invalid!("fp32_precision '{name}': write `none`, `ieee`, `tf32` or `bfx9`"))
    }
}

static FP32_PRECISION: AtomicU8 = AtomicU8::new(Fp32Precision::None as u8);

/// Returns the precision of the process (`torch.backends.fp32_precision`), which [`cuda::matmul`] uses if it has none of its own.
pub fn fp32_precision() -> Fp32Precision {
    Fp32Precision::load(&FP32_PRECISION)
}

/// Sets the precision of the process.
///
/// # Errors
/// [`Error::is_invalid_argument`] for [`Fp32Precision::Bfx9`], which is only for products.
pub fn set_fp32_precision(precision: Fp32Precision) -> Result<()> {
    if precision == Fp32Precision::Bfx9 {
        refuse!("`bfx9` is a precision of products: set it by `backends::cuda::matmul::set_fp32_precision`");
    }
    FP32_PRECISION.store(precision as u8, Ordering::Relaxed);
    Ok(())
}

/// Sets the precision of products of 32-bit floats (`torch.set_float32_matmul_precision`): `highest` is single precision, `high`
/// and `medium` are TF32.
///
/// # Errors
/// [`Error::is_invalid_argument`] for another word.
pub fn set_float32_matmul_precision(precision: &str) -> Result<()> {
    let is_medium = precision == "medium";
    let precision = match precision {
        "highest" => Fp32Precision::Ieee,
        "high" | "medium" => Fp32Precision::Tf32,
        _ => {
            refuse!("float32_matmul_precision '{precision}': write `highest`, `high` or `medium`");
        }
    };
    cuda::matmul::set_fp32_precision(precision);
    SAYS_MEDIUM.store(is_medium, Ordering::Relaxed);
    Ok(())
}

/// Whether [`set_float32_matmul_precision`] was last called with `medium`, which is computed like `high`.
static SAYS_MEDIUM: AtomicBool = AtomicBool::new(false);

/// Returns the precision of products of 32-bit floats, in the words of [`set_float32_matmul_precision`].
pub fn get_float32_matmul_precision() -> &'static str {
    match (cuda::matmul::allow_tf32(), SAYS_MEDIUM.load(Ordering::Relaxed)) {
        (false, _) => "highest",
        (true, false) => "high",
        (true, true) => "medium",
    }
}

/// Settings of CUDA's libraries (`torch.backends.cuda`).
pub mod cuda {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use thalweg_runtime::{Error, Result, refuse_if};

    /// The implementation that computes products (`preferred_blas_library`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum BlasLibrary {
        /// cuBLASLt, and kernels of Thalweg for products that are too small for it.
        Default,
        /// Only cuBLASLt.
        CublasLt,
    }

    static CUBLASLT_ALONE: AtomicBool = AtomicBool::new(false);

    /// Returns the implementation that computes products.
    pub fn preferred_blas_library() -> BlasLibrary {
        match CUBLASLT_ALONE.load(Ordering::Relaxed) {
            false => BlasLibrary::Default,
            true => BlasLibrary::CublasLt,
        }
    }

    /// Sets the implementation that computes products. A layer's small product together with its bias stays one kernel of
    /// Thalweg.
    pub fn set_preferred_blas_library(library: BlasLibrary) {
        CUBLASLT_ALONE.store(library == BlasLibrary::CublasLt, Ordering::Relaxed);
    }

    /// The default scratch memory of a product: enough for the library's split-k algorithms.
    const WORKSPACE_BYTES: u64 = 4 << 20;

    /// The default scratch memory of a product whose terms are divided. With less, the library divides them into fewer parts than
    /// are needed to keep an H200 busy, and takes 2 to 3 times as long.
    const DIVIDED_WORKSPACE_BYTES: u64 = 32 << 20;

    /// The size that was set, in bytes, plus one; 0 if none was set.
    static WORKSPACE: AtomicU64 = AtomicU64::new(0);

    /// Returns the scratch memory, in bytes, that cuBLASLt may use for a large product (`cublaslt_workspace_size`): the size that
    /// was set, else `CUBLASLT_WORKSPACE_SIZE` in KiB, else 4 MiB. A product whose terms are divided may use 32 MiB if no size was
    /// set.
    pub fn cublaslt_workspace_size() -> u64 {
        cublaslt_workspace_for(false)
    }

    /// Returns the scratch memory for a product, whose terms may be divided.
    pub(crate) fn cublaslt_workspace_for(is_divided: bool) -> u64 {
        static VARIABLE: OnceLock<Option<u64>> = OnceLock::new();
        match WORKSPACE.load(Ordering::Relaxed) {
            0 => VARIABLE
                .get_or_init(|| {
                    let kibibytes = std::env::var("CUBLASLT_WORKSPACE_SIZE").ok()?.parse::<u64>().ok()?;
                    kibibytes.checked_mul(1024)
                })
                .unwrap_or(if is_divided { DIVIDED_WORKSPACE_BYTES } else { WORKSPACE_BYTES }),
            bytes => bytes - 1,
        }
    }

    /// Sets the scratch memory in bytes.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] for more than 1 GiB.
    pub fn set_cublaslt_workspace_size(bytes: u64) -> Result<()> {
        refuse_if!(bytes > 1 << 30, "a workspace of {bytes} bytes: give 1 GiB (1073741824) at most");
        WORKSPACE.store(bytes + 1, Ordering::Relaxed);
        Ok(())
    }

    /// The settings of products (`torch.backends.cuda.matmul`). Convolutions are products, too.
    pub mod matmul {
        use std::sync::OnceLock;
        use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

        use super::super::Fp32Precision;
        use thalweg_runtime::{Error, Result, refuse};

        static PRECISION: AtomicU8 = AtomicU8::new(Fp32Precision::None as u8);
        static FP16_REDUCTION: AtomicU8 = AtomicU8::new(REDUCED);
        static BF16_REDUCTION: AtomicU8 = AtomicU8::new(REDUCED);

        const REDUCED: u8 = 0;
        const FULL: u8 = 1;
        const FULL_WITHOUT_SPLIT_K: u8 = 2;

        /// Returns the precision of products of 32-bit floats that was set for CUDA.
        pub fn fp32_precision() -> Fp32Precision {
            Fp32Precision::load(&PRECISION)
        }

        /// Sets the precision of products of 32-bit floats. Products that are one small kernel of Thalweg always use single
        /// precision.
        pub fn set_fp32_precision(precision: Fp32Precision) {
            PRECISION.store(precision as u8, Ordering::Relaxed);
        }

        /// Returns the effective precision: the one set here, else the process's, else TF32 with
        /// `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1`, else single precision.
        pub fn effective_fp32_precision() -> Fp32Precision {
            static OVERRIDE: OnceLock<bool> = OnceLock::new();
            let overridden =
                || std::env::var("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE").is_ok_and(|value| value == "1");
            match (fp32_precision(), super::super::fp32_precision()) {
                (Fp32Precision::None, Fp32Precision::None) if *OVERRIDE.get_or_init(overridden) => {
                    Fp32Precision::Tf32
                }
                (Fp32Precision::None, Fp32Precision::None) => Fp32Precision::Ieee,
                (Fp32Precision::None, process) => process,
                (own, _) => own,
            }
        }

        /// Returns whether products of 32-bit floats are computed in TF32.
        pub fn allow_tf32() -> bool {
            effective_fp32_precision() == Fp32Precision::Tf32
        }

        /// Sets whether products of 32-bit floats are computed in TF32, as [`set_fp32_precision`] does.
        pub fn set_allow_tf32(allow: bool) {
            set_fp32_precision(if allow { Fp32Precision::Tf32 } else { Fp32Precision::Ieee });
        }

        /// The setting of the reduction of a product that is split along k: whether its parts may be added in the 16 bits of its
        /// elements, and whether it may be split at all.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct ReducedPrecisionReduction {
            /// Whether parts may be rounded to 16 bits before they are added.
            pub allow: bool,
            /// Whether products may be split along k.
            pub allow_split_k: bool,
        }

        fn reduction(cell: &AtomicU8) -> ReducedPrecisionReduction {
            let state = cell.load(Ordering::Relaxed);
            ReducedPrecisionReduction {
                allow: state == REDUCED,
                allow_split_k: state != FULL_WITHOUT_SPLIT_K,
            }
        }

        fn set_reduction(cell: &AtomicU8, to: ReducedPrecisionReduction) -> Result<()> {
            let state = match (to.allow, to.allow_split_k) {
                (true, true) => REDUCED,
                (false, true) => FULL,
                (false, false) => FULL_WITHOUT_SPLIT_K,
                (true, false) => {
                    refuse!(
                        "reduced precision is of products that are split along k: allow the split, or neither"
                    );
                }
            };
            cell.store(state, Ordering::Relaxed);
            Ok(())
        }

        /// Returns the allowed reductions of products of float16.
        pub fn allow_fp16_reduced_precision_reduction() -> ReducedPrecisionReduction {
            reduction(&FP16_REDUCTION)
        }

        /// Sets the allowed reductions of products of float16.
        ///
        /// # Errors
        /// [`Error::is_invalid_argument`] if reduced precision is allowed and the split is not.
        pub fn set_allow_fp16_reduced_precision_reduction(to: ReducedPrecisionReduction) -> Result<()> {
            set_reduction(&FP16_REDUCTION, to)
        }

        /// Returns the allowed reductions of products of bfloat16.
        pub fn allow_bf16_reduced_precision_reduction() -> ReducedPrecisionReduction {
            reduction(&BF16_REDUCTION)
        }

        /// Sets the allowed reductions of products of bfloat16.
        ///
        /// # Errors
        /// [`Error::is_invalid_argument`] if reduced precision is allowed and the split is not.
        pub fn set_allow_bf16_reduced_precision_reduction(to: ReducedPrecisionReduction) -> Result<()> {
            set_reduction(&BF16_REDUCTION, to)
        }

        settings! {
            /// whether products of float16 whose factors are 0 or 1 are accumulated in 16 bits: faster on some devices, and far less exact
            allow_fp16_accumulation, set_allow_fp16_accumulation: bool = FP16_ACCUMULATION, AtomicBool, false;
        }
    }
}

/// Settings of convolutions that call cuDNN (`torch.backends.cudnn`).
pub mod cudnn {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    settings! {
        /// whether convolutions may call cuDNN (`enabled`)
        enabled, set_enabled: bool = ENABLED, AtomicBool, true;
        /// whether cuDNN may round f32 to TF32 before it multiplies (`allow_tf32`)
        allow_tf32, set_allow_tf32: bool = ALLOW_TF32, AtomicBool, true;
        /// whether cuDNN's convolutions must be bitwise reproducible (`deterministic`)
        deterministic, set_deterministic: bool = DETERMINISTIC, AtomicBool, false;
        /// whether the first convolution of each shape tries cuDNN's engines, which blocks, and keeps the fastest (`benchmark`): run a
        /// region once before it is captured
        benchmark, set_benchmark: bool = BENCHMARK, AtomicBool, false;
        /// the maximum number of engines that are tried (`benchmark_limit`), where 0 means all
        benchmark_limit, set_benchmark_limit: u32 = BENCHMARK_LIMIT, AtomicU32, 10;
    }

    /// Returns the maximum number of engines that a call may try.
    pub(crate) fn most_engines() -> u32 {
        match (benchmark(), benchmark_limit()) {
            (false, _) => 1,
            (true, 0) => u32::MAX,
            (true, limit) => limit,
        }
    }
}

/// Returns the precision and the reductions with which the library computes a product now.
pub(crate) fn precision_of(product: &Matmul) -> (ComputeFormat, ReductionSchemes) {
    let schemes =
        |reduction: cuda::matmul::ReducedPrecisionReduction| match (reduction.allow, reduction.allow_split_k)
        {
            (true, _) => ReductionSchemes::ANY,
            (false, true) => ReductionSchemes::COMPUTE_TYPE,
            (false, false) => ReductionSchemes::NONE,
        };
    match product.dtype {
        DType::F64 => (ComputeFormat::F64, ReductionSchemes::ANY),
        DType::F32 => {
            let compute = match cuda::matmul::effective_fp32_precision() {
                Fp32Precision::Tf32 => ComputeFormat::F32_FAST_TF32,
                Fp32Precision::Bfx9 => ComputeFormat::F32_EMULATED_BF16X9,
                Fp32Precision::None | Fp32Precision::Ieee => ComputeFormat::F32,
            };
            (compute, ReductionSchemes::ANY)
        }
        DType::F16 => {
            let is_plain = |factor: Factor| [Factor::ZERO, Factor::ONE].contains(&factor);
            let in_16_bits =
                cuda::matmul::allow_fp16_accumulation() && is_plain(product.alpha) && is_plain(product.beta);
            let compute = if in_16_bits { ComputeFormat::F16 } else { ComputeFormat::F32 };
            (compute, schemes(cuda::matmul::allow_fp16_reduced_precision_reduction()))
        }
        _ => (ComputeFormat::F32, schemes(cuda::matmul::allow_bf16_reduced_precision_reduction())),
    }
}
