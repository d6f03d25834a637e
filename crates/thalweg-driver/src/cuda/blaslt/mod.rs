//! Matrix products through cuBLASLt.
//!
//! Our matrices are row-major and the library's column-major. A row-major matrix read column by column is its transpose,
//! and `Dᵀ = Bᵀ · Aᵀ`: so the operands are passed in swapped order, and nothing is moved.
//!
//! Everything that a product needs besides its addresses (descriptor, layouts, and the first algorithm of the library's
//! heuristic) is a *plan*. It is kept under everything that the choice depends on: shapes, strides, formats, the alignment
//! of the addresses, the workspace, the device. The same product therefore always runs the same algorithm in a process,
//! captured or not, and returns the same bits. Products of which only the number of rows differs a little have one algorithm
//! ([`Key::coarse`]).

pub(super) mod algorithm;
pub(super) mod epilogue;
mod key;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use thalweg_lock::{Mutex, RwLock};

use self::epilogue::{ActivationKey, EPILOGUE_BIAS, epilogue_text};
use self::key::Layout;
pub(in crate::cuda) use self::key::{Key, alignment_of};
use crate::cuda::search::{Library, OpenLibrary, SearchEnvironment};
use crate::cuda::sys::RawStream;
use crate::cuda::table::{CallStatus, entry_points, function_at, numbers, text_at};
use crate::library::{Activation, ComputeFormat, ElementFormat, MatmulCall, MatmulEpilogue, Matrix};
use crate::{Code, DevicePointer, Error, Result};

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cuda) struct Algorithm {
    pub(in crate::cuda) data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cuda) struct HeuristicResult {
    pub(in crate::cuda) algorithm: Algorithm,
    pub(in crate::cuda) workspace_bytes: usize,
    pub(in crate::cuda) status: u32,
    pub(in crate::cuda) waves: f32,
    pub(in crate::cuda) reserved: [c_int; 4],
}

pub(in crate::cuda) const OPERATION_NONE: u32 = 0;
pub(in crate::cuda) const OPERATION_TRANSPOSE: u32 = 1;
numbers! { constants_of_cublaslt from cudarc::cublaslt::sys, pub(in crate::cuda) u32 {
    DESCRIPTOR_TRANSPOSE_A = 3, cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
    DESCRIPTOR_TRANSPOSE_B = 4, cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB;
    DESCRIPTOR_EPILOGUE = 7, cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE;
    DESCRIPTOR_BIAS_POINTER = 8, cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
    DESCRIPTOR_EPILOGUE_INPUT_POINTER = 11, cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
    DESCRIPTOR_EPILOGUE_INPUT_LEADING_DIMENSION = 12, cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD;
    DESCRIPTOR_EPILOGUE_INPUT_FORMAT = 22, cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE;
    LAYOUT_BATCH_COUNT = 5, cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
    LAYOUT_BATCH_OFFSET = 6, cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
    PREFERENCE_WORKSPACE_BYTES = 1, cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    PREFERENCE_REDUCTION_SCHEMES = 3, cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
    PREFERENCE_ALIGNMENT_A_BYTES = 5, cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
} }

entry_points! {
    /// libcublasLt.
    BlasTable from cudarc::cublaslt::sys {
        create = cublasLtCreate (handle: *mut usize);
        matmul = cublasLtMatmul (handle: usize, descriptor: usize, alpha: *const c_void, a: u64, a_layout: usize, b: u64,
            b_layout: usize, beta: *const c_void, c: u64, c_layout: usize, d: u64, d_layout: usize, algorithm: *const Algorithm,
            workspace: u64, workspace_bytes: usize, stream: RawStream);
        heuristic = cublasLtMatmulAlgoGetHeuristic (handle: usize, descriptor: usize, a: usize, b: usize, c: usize, d: usize,
            preference: usize, wanted: c_int, results: *mut HeuristicResult, found: *mut c_int);
        algorithm_init = cublasLtMatmulAlgoInit (handle: usize, compute: u32, scale: u32, a: u32, b: u32, c: u32, d: u32,
            id: c_int, algorithm: *mut Algorithm);
        algorithm_set = cublasLtMatmulAlgoConfigSetAttribute (algorithm: *mut Algorithm, attribute: u32, value: *const c_void,
            bytes: usize);
        algorithm_get = cublasLtMatmulAlgoConfigGetAttribute (algorithm: *const Algorithm, attribute: u32, value: *mut c_void,
            bytes: usize, written: *mut usize);
        algorithm_check = cublasLtMatmulAlgoCheck (handle: usize, descriptor: usize, a: usize, b: usize, c: usize, d: usize,
            algorithm: *const Algorithm, result: *mut HeuristicResult);
        descriptor_create = cublasLtMatmulDescCreate (descriptor: *mut usize, compute: u32, scale: u32);
        descriptor_set = cublasLtMatmulDescSetAttribute (descriptor: usize, attribute: u32, value: *const c_void, bytes: usize);
        descriptor_destroy = cublasLtMatmulDescDestroy (descriptor: usize);
        layout_create = cublasLtMatrixLayoutCreate (layout: *mut usize, format: u32, rows: u64, columns: u64,
            leading_dimension: i64);
        layout_set = cublasLtMatrixLayoutSetAttribute (layout: usize, attribute: u32, value: *const c_void, bytes: usize);
        layout_destroy = cublasLtMatrixLayoutDestroy (layout: usize);
        preference_create = cublasLtMatmulPreferenceCreate (preference: *mut usize);
        preference_set = cublasLtMatmulPreferenceSetAttribute (preference: usize, attribute: u32, value: *const c_void,
            bytes: usize);
        preference_destroy = cublasLtMatmulPreferenceDestroy (preference: usize);
    }
}

type StatusName = unsafe extern "C" fn(u32) -> *const c_char;

/// The functions of the library, shared by the plans that it made.
pub(in crate::cuda) struct Api {
    pub(in crate::cuda) table: BlasTable,
    status_name: Option<StatusName>,
    version: u64,
}

impl Api {
    pub(in crate::cuda) fn check(&self, outcome: CallStatus, detail: impl FnOnce() -> String) -> Result<()> {
        if outcome.is_success() {
            return Ok(());
        }
        let detail = detail();
        if outcome.missing.is_some() {
            let detail = format!("{detail}: the installed cuBLASLt has no such call");
            return Err(Error::new(Code::LibraryMissing, outcome.call, detail));
        }
        // SAFETY: the function takes any number and returns a string of the library.
        let name = self.status_name.map(|name| unsafe { text_at(name(outcome.status)) }).unwrap_or_default();
        Err(Error::new(Code::Library, outcome.call, format!("{name} ({}): {detail}", outcome.status)))
    }
}

/// An object of the library that is destroyed when it is dropped.
pub(in crate::cuda) struct Owned {
    api: Arc<Api>,
    pub(in crate::cuda) raw: usize,
    destroy: unsafe fn(&BlasTable, usize) -> CallStatus,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `raw` is an object of the kind that `destroy` destroys, and this is its only owner.
        let _ = unsafe { (self.destroy)(&self.api.table, self.raw) };
    }
}

/// A product in the library's terms.
pub(in crate::cuda) struct Problem {
    pub(in crate::cuda) descriptor: Owned,
    pub(in crate::cuda) a: Owned,
    pub(in crate::cuda) b: Owned,
    pub(in crate::cuda) d: Owned,
}

struct MatmulPlan {
    problem: Problem,
    /// Held from the moment when an epilogue's addresses are written into the descriptor until the library has read them.
    epilogue: Mutex<()>,
    algorithm: Algorithm,
}

/// The number of plans at which the cache is emptied.
const PLANS: usize = 4096;

/// The library, with its handles and plans.
pub(in crate::cuda) struct BlasLt {
    pub(in crate::cuda) api: Arc<Api>,
    /// One handle per device, made in its context.
    handles: Vec<OnceLock<usize>>,
    plans: RwLock<FxHashMap<Key, Arc<MatmulPlan>>>,
    /// The algorithms that the library has named, by [coarse](Key::coarse) keys.
    algorithms: RwLock<FxHashMap<Key, Algorithm>>,
}

fn describe(call: &MatmulCall) -> String {
    let (m, n, k, batch) = (call.m, call.n, call.k, call.batch);
    let turned = |matrix: &Matrix| if matrix.transposed { "ᵀ" } else { "" };
    format!(
        "{batch} products [{m}×{k}]{} · [{k}×{n}]{}{}, element format {}, compute format {}, leading dimensions {}, {}, {}",
        turned(&call.a),
        turned(&call.b),
        epilogue_text(&call.epilogue),
        call.format.0,
        call.compute.0,
        call.a.leading_dimension,
        call.b.leading_dimension,
        call.d.leading_dimension
    )
}

impl BlasLt {
    pub(in crate::cuda) fn load(environment: &SearchEnvironment, devices: usize) -> Result<Self> {
        let library = OpenLibrary::open(Library::CublasLt, environment, "cublasLtCreate")?;
        let symbol = |name: &CStr| library.symbol(name);
        // SAFETY: the signatures are those that `cublasLt.h` declares for these symbols, in versions 12 and 13; an
        // `OpenLibrary` is never unloaded.
        let (table, status_name, version) = unsafe {
            let version = function_at::<unsafe extern "C" fn() -> usize>(symbol(c"cublasLtGetVersion"));
            (
                BlasTable::resolve(|entry| symbol(entry.symbol)),
                function_at(symbol(c"cublasLtGetStatusName")),
                version.map_or(0, |version| version() as u64),
            )
        };
        let handles = (0..devices).map(|_| OnceLock::new()).collect();
        let api = Arc::new(Api { table, status_name, version });
        Ok(Self { api, handles, plans: RwLock::default(), algorithms: RwLock::default() })
    }

    /// Returns the library's version, in its own numbering.
    pub(in crate::cuda) fn version(&self) -> u64 {
        self.api.version
    }

    /// Returns the library's handle for a device whose context is current.
    pub(in crate::cuda) fn handle(&self, device: u32) -> Result<usize> {
        let slot = &self.handles[device as usize];
        if let Some(handle) = slot.get() {
            return Ok(*handle);
        }
        let mut handle = 0_usize;
        // SAFETY: writes one handle.
        let outcome = unsafe { self.api.table.create(&raw mut handle) };
        self.api.check(outcome, || format!("device {device}"))?;
        // Two threads may get here at once; the handle that is not used is small, and leaks.
        Ok(*slot.get_or_init(|| handle))
    }

    fn own(
        &self,
        destroy: unsafe fn(&BlasTable, usize) -> CallStatus,
        create: impl FnOnce(&BlasTable, *mut usize) -> CallStatus,
    ) -> Result<Owned> {
        let mut raw = 0_usize;
        let outcome = create(&self.api.table, &raw mut raw);
        self.api.check(outcome, || "an object of a plan".to_owned())?;
        Ok(Owned { api: Arc::clone(&self.api), raw, destroy })
    }

    fn layout(&self, format: ElementFormat, layout: &Layout, count: i32) -> Result<Owned> {
        // The key has no greater values.
        let (leading, stride) = (layout.leading_dimension as i64, layout.batch_stride as i64);
        let owned = self.own(BlasTable::layout_destroy, |table, raw| {
            // SAFETY: writes one handle.
            unsafe { table.layout_create(raw, format.0, layout.rows, layout.columns, leading) }
        })?;
        // SAFETY: the first attribute is an `int32_t`, the second an `int64_t`; both are read at once.
        unsafe {
            let set = self.api.table.layout_set(owned.raw, LAYOUT_BATCH_COUNT, (&raw const count).cast(), 4);
            self.api.check(set, || format!("a batch of {count}"))?;
            let set =
                self.api.table.layout_set(owned.raw, LAYOUT_BATCH_OFFSET, (&raw const stride).cast(), 8);
            self.api.check(set, || format!("matrices {stride} elements apart"))?;
        }
        Ok(owned)
    }

    fn preference(&self, key: &Key) -> Result<Owned> {
        let owned = self.own(BlasTable::preference_destroy, |table, raw| {
            // SAFETY: writes one handle.
            unsafe { table.preference_create(raw) }
        })?;
        let table = &self.api.table;
        let bytes = key.workspace_bytes;
        // SAFETY: the attribute is a `uint64_t`, read at once.
        let set = unsafe {
            table.preference_set(owned.raw, PREFERENCE_WORKSPACE_BYTES, (&raw const bytes).cast(), 8)
        };
        self.api.check(set, || format!("a workspace of {bytes} bytes"))?;
        let schemes = key.reductions.0;
        // SAFETY: the attribute is a `uint32_t`, read at once.
        let set = unsafe {
            table.preference_set(owned.raw, PREFERENCE_REDUCTION_SCHEMES, (&raw const schemes).cast(), 4)
        };
        self.api.check(set, || format!("reduction schemes {schemes}"))?;
        for (index, layout) in (0..).zip([&key.a, &key.b, &key.d, &key.d]) {
            let alignment = layout.alignment_bytes;
            let attribute = PREFERENCE_ALIGNMENT_A_BYTES + index;
            // SAFETY: the attribute is a `uint32_t`, read at once.
            let set = unsafe { table.preference_set(owned.raw, attribute, (&raw const alignment).cast(), 4) };
            self.api.check(set, || format!("an alignment of {alignment} bytes"))?;
        }
        Ok(owned)
    }

    /// Returns the plan for a key, made at the first call.
    fn plan(
        &self,
        key: Key,
        epilogue: &MatmulEpilogue,
        detail: impl Fn() -> String,
    ) -> Result<Arc<MatmulPlan>> {
        if let Some(plan) = self.plans.read().get(&key) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(self.make_plan(&key, epilogue).map_err(|error| error.with_detail(&detail()))?);
        let mut plans = self.plans.write();
        if plans.len() >= PLANS {
            plans.clear();
        }
        Ok(Arc::clone(plans.entry(key).or_insert(plan)))
    }

    #[cold]
    fn make_plan(&self, key: &Key, epilogue: &MatmulEpilogue) -> Result<MatmulPlan> {
        let problem = self.problem(key, epilogue)?;
        let algorithm = match key.algorithm {
            Some(algorithm) => self.configured(key, &problem, algorithm)?,
            None => self.chosen(key, epilogue, &problem)?,
        };
        Ok(MatmulPlan { problem, epilogue: Mutex::new(()), algorithm })
    }

    /// Returns the algorithm that the library names for the coarse key, or, if the product needs another, the one for its own.
    fn chosen(&self, key: &Key, epilogue: &MatmulEpilogue, problem: &Problem) -> Result<Algorithm> {
        let coarse = key.coarse();
        if coarse != *key
            && let Ok(algorithm) = self.named(coarse, epilogue)
            && self.check(key, problem, &algorithm).is_ok()
        {
            return Ok(algorithm);
        }
        Ok(self.heuristic(key, problem, 1)?[0].algorithm)
    }

    /// Returns the algorithm that the library names for a coarse key, and asks it once.
    fn named(&self, coarse: Key, epilogue: &MatmulEpilogue) -> Result<Algorithm> {
        if let Some(&known) = self.algorithms.read().get(&coarse) {
            return Ok(known);
        }
        let algorithm = self.heuristic(&coarse, &self.problem(&coarse, epilogue)?, 1)?[0].algorithm;
        let mut algorithms = self.algorithms.write();
        if algorithms.len() >= PLANS {
            algorithms.clear();
        }
        algorithms.insert(coarse, algorithm);
        Ok(algorithm)
    }

    /// Returns a product in the library's terms.
    pub(in crate::cuda) fn problem(&self, key: &Key, epilogue: &MatmulEpilogue) -> Result<Problem> {
        let scale = key.scale();
        let descriptor = self.own(BlasTable::descriptor_destroy, |table, raw| {
            // SAFETY: writes one handle.
            unsafe { table.descriptor_create(raw, key.compute.0, scale.0) }
        })?;
        let operations =
            [(DESCRIPTOR_TRANSPOSE_A, key.a.operation()), (DESCRIPTOR_TRANSPOSE_B, key.b.operation())];
        for (attribute, operation) in operations {
            self.set(&descriptor, attribute, &operation.to_ne_bytes(), "a transposition")?;
        }
        self.set_epilogue(&descriptor, key, epilogue)?;
        let a = self.layout(key.format, &key.a, key.batch)?;
        let b = self.layout(key.format, &key.b, key.batch)?;
        let d = self.layout(key.output_format, &key.d, key.batch)?;
        Ok(Problem { descriptor, a, b, d })
    }

    /// Returns at least one and at most `most` algorithms that the library proposes for a product, best guess first.
    pub(in crate::cuda) fn heuristic(
        &self,
        key: &Key,
        problem: &Problem,
        most: u32,
    ) -> Result<Vec<HeuristicResult>> {
        let preference = self.preference(key)?;
        let most = most.clamp(1, 1024);
        let mut results = vec![HeuristicResult::default(); most as usize];
        let mut found: c_int = 0;
        let handle = self.handle(key.device)?;
        let Problem { descriptor, a, b, d } = problem;
        // SAFETY: every object was made above and is alive; there is room for the requested number of results.
        let outcome = unsafe {
            self.api.table.heuristic(
                handle,
                descriptor.raw,
                a.raw,
                b.raw,
                d.raw,
                d.raw,
                preference.raw,
                most as c_int,
                results.as_mut_ptr(),
                &raw mut found,
            )
        };
        let none = || "no algorithm for this product and workspace".to_owned();
        self.api.check(outcome, none)?;
        results.truncate(usize::try_from(found).unwrap_or(0));
        if let Some(first) = results.first() {
            self.api.check(CallStatus { status: first.status, ..outcome }, none)?;
        }
        results.retain(|result| result.status == 0);
        if results.is_empty() {
            return Err(Error::new(Code::Library, outcome.call, none()));
        }
        Ok(results)
    }

    /// Writes the constant part of an epilogue into a plan's descriptor.
    fn set_epilogue(&self, descriptor: &Owned, key: &Key, epilogue: &MatmulEpilogue) -> Result<()> {
        let bias = if epilogue.bias.is_some() { EPILOGUE_BIAS } else { 0 };
        let kind = key.activation.map_or(0, ActivationKey::epilogue) | bias;
        if kind == 0 {
            return Ok(());
        }
        self.set(descriptor, DESCRIPTOR_EPILOGUE, &kind.to_ne_bytes(), "an epilogue")?;
        if let Some(activation) = key.activation {
            let leading_dimension = activation.leading_dimension.to_ne_bytes();
            let attribute = DESCRIPTOR_EPILOGUE_INPUT_LEADING_DIMENSION;
            self.set(descriptor, attribute, &leading_dimension, "the rows of what an activation keeps")?;
            // Bits have no element format.
            if activation.function == Activation::Gelu {
                let format = key.format.0.to_ne_bytes();
                self.set(
                    descriptor,
                    DESCRIPTOR_EPILOGUE_INPUT_FORMAT,
                    &format,
                    "the format of GELU's argument",
                )?;
            }
        }
        self.set_addresses(descriptor, epilogue)
    }

    /// Writes the addresses of an epilogue into a descriptor.
    fn set_addresses(&self, descriptor: &Owned, epilogue: &MatmulEpilogue) -> Result<()> {
        let address = |pointer: DevicePointer| pointer.address().to_ne_bytes();
        if let Some(bias) = epilogue.bias {
            self.set(descriptor, DESCRIPTOR_BIAS_POINTER, &address(bias), "the address of a bias")?;
        }
        if let Some(activation) = epilogue.activation {
            let attribute = DESCRIPTOR_EPILOGUE_INPUT_POINTER;
            self.set(
                descriptor,
                attribute,
                &address(activation.kept),
                "the address of what an activation keeps",
            )?;
        }
        Ok(())
    }

    /// Sets an attribute of a descriptor.
    fn set(&self, descriptor: &Owned, attribute: u32, value: &[u8], what: &str) -> Result<()> {
        // SAFETY: the library reads `value.len()` bytes, at once; an address among them is used by kernels only.
        let set = unsafe {
            self.api.table.descriptor_set(descriptor.raw, attribute, value.as_ptr().cast(), value.len())
        };
        self.api.check(set, || what.to_owned())
    }

    /// Queues a product. The device's context is current.
    pub(in crate::cuda) fn matmul(
        &self,
        device: u32,
        stream: RawStream,
        call: &MatmulCall,
        label: impl Fn() -> String,
    ) -> Result<()> {
        if call.m == 0 || call.n == 0 || call.batch == 0 {
            return Ok(());
        }
        let detail = || format!("{}, for {}", describe(call), label());
        let key = Key::new(device, call).map_err(|why| {
            Error::new(Code::InvalidValue, "cublasLtMatmul", format!("{why}: {}", detail()))
        })?;
        let plan = self.plan(key, &call.epilogue, detail)?;
        let (alpha, beta) = (call.alpha, call.beta);
        let (alpha_32, beta_32) = (alpha as f32, beta as f32);
        // The bits of 0 and 1, the only values of the factors here.
        let [alpha_16, beta_16] = [alpha, beta].map(|factor| if factor == 0.0 { 0_u16 } else { 0x3c00 });
        let (alpha, beta): (*const c_void, *const c_void) = match call.compute {
            ComputeFormat::F64 => ((&raw const alpha).cast(), (&raw const beta).cast()),
            ComputeFormat::F16 => ((&raw const alpha_16).cast(), (&raw const beta_16).cast()),
            _ => ((&raw const alpha_32).cast(), (&raw const beta_32).cast()),
        };
        let (workspace, workspace_bytes) =
            call.workspace.map_or((0, 0), |(start, bytes)| (start.address(), bytes));
        let output = call.d.address.address();
        // Another thread may queue the same product with another bias.
        let has_addresses = call.epilogue != MatmulEpilogue::default();
        let _addresses = has_addresses.then(|| plan.epilogue.lock());
        self.set_addresses(&plan.problem.descriptor, &call.epilogue)?;
        // SAFETY: plan and stream live for the length of the call; the factors are in the type that the plan states and are
        // read before the call returns. The addresses are used by kernels only, and the contract leaves those to the
        // caller.
        let outcome = unsafe {
            self.api.table.matmul(
                self.handle(device)?,
                plan.problem.descriptor.raw,
                alpha,
                call.b.address.address(),
                plan.problem.a.raw,
                call.a.address.address(),
                plan.problem.b.raw,
                beta,
                output,
                plan.problem.d.raw,
                output,
                plan.problem.d.raw,
                &raw const plan.algorithm,
                workspace,
                usize::try_from(workspace_bytes).unwrap_or(usize::MAX),
                stream,
            )
        };
        self.api.check(outcome, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::blaslt::epilogue::{EPILOGUE_RELU_GRADIENT, EPILOGUE_RELU_KEPT};
    use crate::library::{ActivationPass, MatmulActivation, ReductionSchemes};

    fn matrix(leading_dimension: u64, transposed: bool) -> Matrix {
        Matrix { address: DevicePointer::new(0x1000), leading_dimension, batch_stride: 0, transposed }
    }

    fn call(m: u64, n: u64, k: u64) -> MatmulCall {
        MatmulCall {
            m,
            n,
            k,
            batch: 1,
            a: matrix(k, false),
            b: matrix(n, false),
            d: matrix(n, false),
            format: ElementFormat::R_32F,
            output_format: ElementFormat::R_32F,
            compute: ComputeFormat::F32,
            alpha: 1.0,
            beta: 0.0,
            epilogue: MatmulEpilogue::default(),
            workspace: None,
            reductions: ReductionSchemes::ANY,
            algorithm: None,
        }
    }

    /// Computes a key's product as the library does, column-major from its operands.
    fn column_major(key: &Key, m: u64, n: u64, k: u64, a: &[i64], b: &[i64]) -> Vec<i64> {
        let at = |layout: &Layout, data: &[i64], row: u64, column: u64| {
            let (row, column) = if layout.transposed { (column, row) } else { (row, column) };
            assert!(row < layout.rows && column < layout.columns);
            data[(row + column * layout.leading_dimension) as usize]
        };
        let mut d = vec![0; (key.d.leading_dimension * key.d.columns) as usize];
        for (row, column) in (0..n).flat_map(|row| (0..m).map(move |column| (row, column))) {
            let sum = (0..k).map(|inner| at(&key.a, a, row, inner) * at(&key.b, b, inner, column)).sum();
            d[(row + column * key.d.leading_dimension) as usize] = sum;
        }
        d
    }

    #[test]
    fn swapped_operands_give_the_row_major_product() {
        let (m, n, k) = (2, 3, 4);
        for (turn_a, turn_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut call = call(m, n, k);
            // Padded rows, so that leading dimensions matter.
            call.a = matrix(if turn_a { m } else { k } + 1, turn_a);
            call.b = matrix(if turn_b { k } else { n } + 2, turn_b);
            call.d = matrix(n + 3, false);
            let key = Key::new(0, &call).expect("the shapes make sense");
            let (a, b): (Vec<i64>, Vec<i64>) = ((0..40).collect(), (0..60).map(|x| x * x % 17).collect());
            let at = |matrix: &Matrix, data: &[i64], row: u64, column: u64| {
                let (row, column) = if matrix.transposed { (column, row) } else { (row, column) };
                data[(row * matrix.leading_dimension + column) as usize]
            };
            let d = column_major(&key, m, n, k, &b, &a);
            for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
                let expected: i64 =
                    (0..k).map(|i| at(&call.a, &a, row, i) * at(&call.b, &b, i, column)).sum();
                assert_eq!(
                    d[(row * (n + 3) + column) as usize],
                    expected,
                    "{turn_a} {turn_b} [{row}, {column}]"
                );
            }
        }
    }

    #[test]
    fn impossible_products_are_refused_with_the_reason() {
        let refuse = |change: fn(&mut MatmulCall)| {
            let mut call = call(2, 3, 4);
            change(&mut call);
            Key::new(0, &call).expect_err("it is impossible")
        };
        assert!(refuse(|c| c.k = 0).contains("k is 0"));
        assert!(refuse(|c| c.a.leading_dimension = 3).contains("rows of a have 4 elements and are 3 apart"));
        assert!(refuse(|c| c.b.leading_dimension = 2).contains("rows of b"));
        assert!(refuse(|c| c.d.leading_dimension = 2).contains("rows of d"));
        assert!(refuse(|c| c.d.transposed = true).contains("output"));
        assert!(refuse(|c| c.batch = 2).contains("one place"));
        assert!(
            refuse(|c| (c.batch, c.d.batch_stride) = (1 << 31, 6)).contains("a batch of 2147483648 products")
        );
        assert!(
            refuse(|c| c.a.batch_stride = 1 << 63).contains("of a are 9223372036854775808 elements apart")
        );
    }

    #[test]
    fn an_activation_is_of_one_product_of_16_bit_floats() {
        let key = |change: fn(&mut MatmulCall)| {
            let mut call = call(2, 3, 4);
            (call.format, call.output_format) = (ElementFormat::R_16BF, ElementFormat::R_16BF);
            let (function, pass, kept) =
                (Activation::Gelu, ActivationPass::Backward, DevicePointer::new(0x1010));
            call.epilogue.activation = Some(MatmulActivation { function, pass, kept, leading_dimension: 8 });
            change(&mut call);
            Key::new(0, &call)
        };
        let kind = |change: fn(&mut MatmulActivation)| {
            let mut call = call(2, 3, 4);
            (call.format, call.output_format) = (ElementFormat::R_16BF, ElementFormat::R_16BF);
            let (function, pass, kept) =
                (Activation::Relu, ActivationPass::Forward, DevicePointer::new(0x1010));
            let mut activation = MatmulActivation { function, pass, kept, leading_dimension: 128 };
            change(&mut activation);
            call.epilogue.activation = Some(activation);
            Key::new(0, &call).map(|key| key.activation.expect("it has one").epilogue())
        };
        assert_eq!(kind(|_| ()), Ok(EPILOGUE_RELU_KEPT));
        assert_eq!(kind(|activation| activation.pass = ActivationPass::Backward), Ok(EPILOGUE_RELU_GRADIENT));
        assert!(kind(|activation| activation.leading_dimension = 64).unwrap_err().contains("128 elements"));
        let whole = key(|_| ()).expect("it is possible").activation.expect("it has one");
        assert_eq!((whole.alignment, whole.leading_dimension), (16, 8));
        let refuse = |change: fn(&mut MatmulCall)| key(change).expect_err("it is impossible");
        assert!(refuse(|c| c.output_format = ElementFormat::R_32F).contains("of one product"));
        assert!(refuse(|c| c.beta = 1.0).contains("added to nothing"));
        assert!(refuse(|c| c.epilogue.bias = Some(DevicePointer::new(16))).contains("no bias"));
        assert!(
            refuse(|c| c.epilogue.activation.as_mut().unwrap().leading_dimension = 12).contains("8 elements")
        );
        assert!(
            refuse(|c| c.epilogue.activation.as_mut().unwrap().kept = DevicePointer::new(8))
                .contains("16 bytes")
        );
    }

    #[test]
    fn products_whose_rows_differ_a_little_take_one_algorithm() {
        let coarse = |m: u64, n: u64, k: u64, turn_a: bool, turn_b: bool| {
            let mut call = call(m, n, k);
            call.a = matrix(if turn_a { m } else { k }, turn_a);
            call.b = matrix(if turn_b { k } else { n }, turn_b);
            (call.a.batch_stride, call.d.batch_stride) = (m * k, m * n);
            Key::new(0, &call).expect("it is possible").coarse()
        };
        for turn_b in [false, true] {
            let of = |m: u64| coarse(m, 512, 256, false, turn_b);
            assert_eq!((of(3990), of(4090)), (of(4096), of(4096)));
            assert_ne!(of(3900), of(4096));
            assert_ne!(of(127), of(128));
            assert_eq!(coarse(4096, 512, 256, false, turn_b).d.columns, 4096);
        }
        // An extent is rounded only if no matrix has rows of it in memory.
        assert_eq!(coarse(512, 256, 3990, true, false), coarse(512, 256, 4096, true, false));
        assert_ne!(coarse(3990, 512, 256, true, false), coarse(4096, 512, 256, true, false));
        assert_ne!(coarse(512, 3990, 256, false, false), coarse(512, 4096, 256, false, false));
        assert_ne!(coarse(512, 512, 3990, false, false), coarse(512, 512, 4096, false, false));
        let sizes: std::collections::HashSet<u64> = (129..1 << 20).map(key::rounded).collect();
        assert!(sizes.len() <= 16 * 13 && sizes.iter().all(|&size| key::rounded(size) == size));
        assert!((129..1 << 20).all(|size| (size..=size + size / 16 + 1).contains(&key::rounded(size))));
    }

    #[test]
    fn the_alignment_of_addresses_is_part_of_the_key() {
        let aligned = call(2, 3, 4);
        let mut shifted = aligned;
        shifted.a.address = shifted.a.address.offset(4);
        let (one, other) = (Key::new(0, &aligned), Key::new(0, &shifted));
        assert_ne!(one, other);
        assert_eq!(other.expect("it is possible").b.alignment_bytes, 4);
    }
}
