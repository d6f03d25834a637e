//! Discrete Fourier transforms through cuFFT.
//!
//! A *plan* has everything that a transform needs besides its addresses, tables in device memory among it. It is kept under the
//! shape, per device, and at [`PLANS`] all are dropped; those that became part of a graph are kept, because the graph's kernels
//! read their tables. Stream and workspace are set before each call; one lock per device orders the calls.

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use thalweg_lock::Mutex;

use super::search::{Library, OpenLibrary, SearchEnvironment};
use super::sys::RawStream;
use super::table::{CallStatus, entry_points};
use super::workspace::workspace_of;
use crate::library::ElementFormat;
use crate::library::fourier::{FourierCall, FourierKind, FourierShape};
use crate::{Code, Error, Result};

entry_points! {
    /// libcufft.
    FourierTable from cudarc::cufft::sys {
        version = cufftGetVersion (version: *mut c_int);
        create = cufftCreate (plan: *mut c_int);
        destroy = cufftDestroy (plan: c_int);
        set_auto_allocation = cufftSetAutoAllocation (plan: c_int, allocates: c_int);
        make = cufftMakePlanMany64 (plan: c_int, rank: c_int, sizes: *mut i64, input_embed: *mut i64, input_stride: i64,
            input_distance: i64, output_embed: *mut i64, output_stride: i64, output_distance: i64, kind: u32, batch: i64,
            workspace_bytes: *mut usize);
        set_workspace = cufftSetWorkArea (plan: c_int, workspace: u64);
        set_stream = cufftSetStream (plan: c_int, stream: RawStream);
        c2c = cufftExecC2C (plan: c_int, input: u64, output: u64, direction: c_int);
        r2c = cufftExecR2C (plan: c_int, input: u64, output: u64);
        c2r = cufftExecC2R (plan: c_int, input: u64, output: u64);
        z2z = cufftExecZ2Z (plan: c_int, input: u64, output: u64, direction: c_int);
        d2z = cufftExecD2Z (plan: c_int, input: u64, output: u64);
        z2d = cufftExecZ2D (plan: c_int, input: u64, output: u64);
    }
}

/// Directions (`CUFFT_FORWARD`, `CUFFT_INVERSE`).
const DIRECTIONS: [c_int; 2] = [-1, 1];
/// Statuses (`cufftResult`) that mean "not supported".
const NOT_SUPPORTED: [u32; 3] = [0x8, 0xE, 0x10];

const NAME: &str = "cufftMakePlanMany64";

/// The number of plans of a device at which all are dropped.
const PLANS: usize = 1024;

/// A plan of the library.
struct FourierPlan {
    api: Arc<Api>,
    raw: c_int,
    workspace_bytes: u64,
}

impl Drop for FourierPlan {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the plan. The library waits for kernels that read its tables before it frees them.
        let _ = unsafe { self.api.table.destroy(self.raw) };
    }
}

struct Api {
    table: FourierTable,
    version: c_int,
}

impl Api {
    fn check(&self, outcome: CallStatus, detail: impl FnOnce() -> String) -> Result<()> {
        if outcome.is_success() {
            return Ok(());
        }
        let (detail, version) = (detail(), self.version);
        if outcome.missing.is_some() {
            let detail = format!("{detail}: the installed cuFFT {version} has no such call");
            return Err(Error::new(Code::LibraryMissing, outcome.call, detail));
        }
        let status = outcome.status;
        let code = if NOT_SUPPORTED.contains(&status) { Code::NotSupported } else { Code::Library };
        Err(Error::new(code, outcome.call, format!("status {status:#x} of cuFFT {version}: {detail}")))
    }
}

#[derive(Default)]
struct DeviceState {
    plans: FxHashMap<FourierShape, Arc<FourierPlan>>,
    /// Plans that graphs use.
    captured: FxHashMap<FourierShape, Arc<FourierPlan>>,
}

/// The library, with its plans.
pub(super) struct Fourier {
    api: Arc<Api>,
    devices: Vec<Mutex<DeviceState>>,
}

fn describe(shape: &FourierShape) -> String {
    let FourierShape { kind, batch, input_strides, format, .. } = shape;
    format!(
        "{batch} transforms of {:?} numbers, {kind:?}, strides of the input {input_strides:?}, element format {}",
        shape.extents(),
        format.0
    )
}

/// Returns the number of a transform (`cufftType`).
pub(super) fn number_of(shape: &FourierShape) -> u32 {
    let is_double = shape.format == ElementFormat::R_64F;
    match shape.kind {
        FourierKind::Complex { .. } => [0x29, 0x69][usize::from(is_double)],
        FourierKind::FromReal => [0x2a, 0x6a][usize::from(is_double)],
        FourierKind::ToReal => [0x2c, 0x6c][usize::from(is_double)],
    }
}

impl Fourier {
    pub(super) fn load(environment: &SearchEnvironment, devices: usize) -> Result<Self> {
        let library = OpenLibrary::open(Library::Cufft, environment, "cufftCreate")?;
        let symbol = |name: &CStr| library.symbol(name);
        // SAFETY: the signatures are those that `cufft.h` declares for these symbols in versions 11 and 12; an
        // `OpenLibrary` is never unloaded.
        let table = unsafe { FourierTable::resolve(|entry| symbol(entry.symbol)) };
        let mut version = 0;
        // SAFETY: writes one number.
        let _ = unsafe { table.version(&raw mut version) };
        let devices = (0..devices).map(|_| Mutex::default()).collect();
        Ok(Self { api: Arc::new(Api { table, version }), devices })
    }

    /// Returns the plan for a shape, made at the first call.
    fn plan(&self, state: &mut DeviceState, shape: &FourierShape) -> Result<Arc<FourierPlan>> {
        if let Some(fault) = shape.fault() {
            return Err(Error::new(Code::InvalidValue, NAME, fault));
        }
        if let Some(plan) = state.plans.get(shape).or_else(|| state.captured.get(shape)) {
            return Ok(Arc::clone(plan));
        }
        let plan = Arc::new(self.make_plan(shape)?);
        if state.plans.len() >= PLANS {
            state.plans.clear();
        }
        state.plans.insert(*shape, Arc::clone(&plan));
        Ok(plan)
    }

    #[cold]
    fn make_plan(&self, shape: &FourierShape) -> Result<FourierPlan> {
        let table = &self.api.table;
        let mut raw = 0;
        // SAFETY: writes one plan.
        let outcome = unsafe { table.create(&raw mut raw) };
        self.api.check(outcome, || "a plan".to_owned())?;
        let mut plan = FourierPlan { api: Arc::clone(&self.api), raw, workspace_bytes: 0 };
        // SAFETY: the plan is alive.
        let outcome = unsafe { table.set_auto_allocation(raw, 0) };
        self.api.check(outcome, || "a workspace of our own".to_owned())?;
        // The shape has no greater values.
        let of_counts = |is_half: bool| {
            let mut sizes: Vec<i64> = shape.extents().iter().map(|&size| size as i64).collect();
            if let (true, Some(last)) = (is_half, sizes.last_mut()) {
                *last = *last / 2 + 1;
            }
            sizes
        };
        let mut sizes = of_counts(false);
        let mut input = of_counts(shape.kind == FourierKind::ToReal);
        let mut output = of_counts(shape.kind == FourierKind::FromReal);
        let ([_, of_output], [step, distance]) = (shape.counts(), shape.input_strides);
        let mut bytes = 0_usize;
        // SAFETY: the plan is alive; the three lists have one number for each dimension and are read before the call returns;
        // writes one number.
        let outcome = unsafe {
            table.make(
                raw,
                shape.rank as c_int,
                sizes.as_mut_ptr(),
                input.as_mut_ptr(),
                step as i64,
                distance as i64,
                output.as_mut_ptr(),
                1,
                of_output as i64,
                number_of(shape),
                shape.batch as i64,
                &raw mut bytes,
            )
        };
        self.api.check(outcome, || describe(shape))?;
        plan.workspace_bytes = bytes as u64;
        Ok(plan)
    }

    /// Returns the bytes of scratch memory that a transform needs. The device's context is current.
    pub(super) fn workspace(&self, device: u32, call: &FourierCall) -> Result<u64> {
        let mut state = self.devices[device as usize].lock();
        Ok(self.plan(&mut state, &call.shape)?.workspace_bytes)
    }

    /// Queues a batch of transforms. The device's context is current.
    pub(super) fn transform(
        &self,
        device: u32,
        stream: RawStream,
        call: &FourierCall,
        is_captured: bool,
        label: impl Fn() -> String,
    ) -> Result<()> {
        let detail = || format!("{}, for {}", describe(&call.shape), label());
        let mut state = self.devices[device as usize].lock();
        let plan = self.plan(&mut state, &call.shape).map_err(|error| error.with_detail(&detail()))?;
        let workspace = workspace_of(call.workspace, plan.workspace_bytes).map_err(|why| {
            Error::new(Code::InvalidValue, "cufftSetWorkArea", format!("{why}: {}", detail()))
        })?;
        if is_captured {
            state.captured.insert(call.shape, Arc::clone(&plan));
        }
        let table = &self.api.table;
        // SAFETY: plan and stream are alive, and the lock is held, so only this thread uses the plan. Workspace and operands are
        // used by kernels only, and the contract leaves those to the caller; the workspace is as long as the plan needs.
        unsafe {
            self.api.check(table.set_stream(plan.raw, stream), detail)?;
            if plan.workspace_bytes > 0 {
                self.api.check(table.set_workspace(plan.raw, workspace.address()), detail)?;
            }
            let (input, output) = (call.input.address(), call.output.address());
            let is_double = call.shape.format == ElementFormat::R_64F;
            let outcome = match (call.shape.kind, is_double) {
                (FourierKind::Complex { forward }, false) => {
                    table.c2c(plan.raw, input, output, DIRECTIONS[usize::from(!forward)])
                }
                (FourierKind::Complex { forward }, true) => {
                    table.z2z(plan.raw, input, output, DIRECTIONS[usize::from(!forward)])
                }
                (FourierKind::FromReal, false) => table.r2c(plan.raw, input, output),
                (FourierKind::FromReal, true) => table.d2z(plan.raw, input, output),
                (FourierKind::ToReal, false) => table.c2r(plan.raw, input, output),
                (FourierKind::ToReal, true) => table.z2d(plan.raw, input, output),
            };
            self.api.check(outcome, detail)
        }
    }
}
