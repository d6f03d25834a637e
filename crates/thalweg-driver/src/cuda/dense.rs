//! Decompositions of dense matrices through cuSOLVER and cuBLAS.
//!
//! Each device has a handle of both libraries; the stream is set before each call, and one lock per device orders the calls. A
//! batch is one call where the libraries have a batched routine that is good at its sizes, and otherwise one call per matrix.
//! A captured call is refused: some routines wait for the device, or choose by its memory's contents.

use std::ffi::{CStr, c_int, c_void};

use thalweg_lock::Mutex;

use super::search::{Library, OpenLibrary, SearchEnvironment};
use super::sys::RawStream;
use super::table::{CallStatus, entry_points};
use super::workspace::{PART, workspace_of};
use crate::library::dense::{DenseCall, DenseMethod};
use crate::{Code, DevicePointer, Error, Result};

entry_points! {
    /// libcusolver.
    SolverTable from cudarc::cusolver::sys {
        create = cusolverDnCreate (handle: *mut usize);
        set_stream = cusolverDnSetStream (handle: usize, stream: RawStream);
        cholesky_size = cusolverDnDpotrf_bufferSize (handle: usize, triangle: u32, n: c_int, a: u64, leading: c_int,
            size: *mut c_int);
        cholesky = cusolverDnDpotrf (handle: usize, triangle: u32, n: c_int, a: u64, leading: c_int, workspace: u64, size: c_int,
            info: u64);
        cholesky_batched = cusolverDnDpotrfBatched (handle: usize, triangle: u32, n: c_int, a: u64, leading: c_int, info: u64,
            batch: c_int);
        lu_size = cusolverDnDgetrf_bufferSize (handle: usize, rows: c_int, columns: c_int, a: u64, leading: c_int,
            size: *mut c_int);
        lu = cusolverDnDgetrf (handle: usize, rows: c_int, columns: c_int, a: u64, leading: c_int, workspace: u64, pivots: u64,
            info: u64);
        qr_size = cusolverDnDgeqrf_bufferSize (handle: usize, rows: c_int, columns: c_int, a: u64, leading: c_int,
            size: *mut c_int);
        qr = cusolverDnDgeqrf (handle: usize, rows: c_int, columns: c_int, a: u64, leading: c_int, factors: u64, workspace: u64,
            size: c_int, info: u64);
        reflectors_size = cusolverDnDorgqr_bufferSize (handle: usize, rows: c_int, columns: c_int, count: c_int, a: u64,
            leading: c_int, factors: u64, size: *mut c_int);
        reflectors = cusolverDnDorgqr (handle: usize, rows: c_int, columns: c_int, count: c_int, a: u64, leading: c_int,
            factors: u64, workspace: u64, size: c_int, info: u64);
        eigen_size = cusolverDnDsyevd_bufferSize (handle: usize, job: u32, triangle: u32, n: c_int, a: u64, leading: c_int,
            values: u64, size: *mut c_int);
        eigen = cusolverDnDsyevd (handle: usize, job: u32, triangle: u32, n: c_int, a: u64, leading: c_int, values: u64,
            workspace: u64, size: c_int, info: u64);
        parameters_create = cusolverDnCreateParams (parameters: *mut usize);
        eigen_batched_size = cusolverDnXsyevBatched_bufferSize (handle: usize, parameters: usize, job: u32, triangle: u32, n: i64,
            format: u32, a: u64, leading: i64, of_values: u32, values: u64, compute: u32, size: *mut usize, host_size: *mut usize,
            batch: i64);
        eigen_batched = cusolverDnXsyevBatched (handle: usize, parameters: usize, job: u32, triangle: u32, n: i64, format: u32,
            a: u64, leading: i64, of_values: u32, values: u64, compute: u32, workspace: u64, size: usize, host: *mut c_void,
            host_size: usize, info: u64, batch: i64);
        rotations_create = cusolverDnCreateGesvdjInfo (parameters: *mut usize);
        singular_size = cusolverDnDgesvdj_bufferSize (handle: usize, job: u32, economic: c_int, rows: c_int, columns: c_int,
            a: u64, leading: c_int, values: u64, u: u64, of_u: c_int, v: u64, of_v: c_int, size: *mut c_int, parameters: usize);
        singular = cusolverDnDgesvdj (handle: usize, job: u32, economic: c_int, rows: c_int, columns: c_int, a: u64,
            leading: c_int, values: u64, u: u64, of_u: c_int, v: u64, of_v: c_int, workspace: u64, size: c_int, info: u64,
            parameters: usize);
    }
}

entry_points! {
    /// libcublas.
    BlasBatchTable from cudarc::cublas::sys {
        create = cublasCreate as cublasCreate_v2 (handle: *mut usize);
        set_stream = cublasSetStream as cublasSetStream_v2 (handle: usize, stream: RawStream);
        lu_batched = cublasDgetrfBatched (handle: usize, n: c_int, a: u64, leading: c_int, pivots: u64, info: u64, batch: c_int);
        triangular = cublasDtrsm as cublasDtrsm_v2 (handle: usize, side: u32, triangle: u32, operation: u32, diagonal: u32,
            rows: c_int, columns: c_int, alpha: *const f64, a: u64, leading: c_int, b: u64, of_b: c_int);
        triangular_batched = cublasDtrsmBatched (handle: usize, side: u32, triangle: u32, operation: u32, diagonal: u32,
            rows: c_int, columns: c_int, alpha: *const f64, a: u64, leading: c_int, b: u64, of_b: c_int, batch: c_int);
    }
}

/// Triangles (`cublasFillMode_t`).
pub(super) const TRIANGLES: [u32; 2] = [0, 1];
/// The matrix on the right (`CUBLAS_SIDE_RIGHT`).
pub(super) const RIGHT: u32 = 1;
/// Eigenvectors and singular vectors, too (`CUSOLVER_EIG_MODE_VECTOR`).
pub(super) const VECTORS: u32 = 1;
/// Floats of 64 bits (`CUDA_R_64F`).
const R_64F: u32 = 1;

/// Batches up to this size are factorized matrix by matrix by LU.
const FEW: u64 = 8;
/// A batch of triangular systems with at most this many rows is one call, and of Cholesky factors with at most twice as many.
const SMALL: u64 = 256;

#[derive(Clone, Copy, Default)]
struct Handles {
    solver: usize,
    blas: usize,
    parameters: usize,
    rotations: usize,
}

/// The libraries, with their handles.
pub(super) struct Dense {
    solver: SolverTable,
    blas: BlasBatchTable,
    devices: Vec<Mutex<Option<Handles>>>,
}

/// The sizes of the parts of a workspace.
#[derive(Clone, Copy, Default)]
struct Room {
    /// The library's own size: elements, or bytes for the batched eigenvalues.
    size: usize,
    /// Bytes of the library's part.
    bytes: u64,
    /// Bytes in host memory.
    host_bytes: usize,
}

fn check(outcome: CallStatus, detail: impl FnOnce() -> String) -> Result<()> {
    if outcome.is_success() {
        return Ok(());
    }
    let detail = detail();
    if outcome.missing.is_some() {
        return Err(Error::new(
            Code::LibraryMissing,
            outcome.call,
            format!("{detail}: the installed library has no such call"),
        ));
    }
    Err(Error::new(Code::Library, outcome.call, format!("status {}: {detail}", outcome.status)))
}

fn describe(call: &DenseCall) -> String {
    let DenseCall { method, batch, rows, columns, .. } = call;
    format!("{method:?} of {batch} matrices, {rows}×{columns}")
}

/// Returns the name of the routine for a batch, for errors.
const fn name(method: DenseMethod) -> &'static str {
    match method {
        DenseMethod::Cholesky => "cusolverDnDpotrf",
        DenseMethod::Lu => "cusolverDnDgetrf",
        DenseMethod::Triangular { .. } => "cublasDtrsm",
        DenseMethod::Qr => "cusolverDnDgeqrf",
        DenseMethod::Reflectors { .. } => "cusolverDnDorgqr",
        DenseMethod::Eigen => "cusolverDnDsyevd",
        DenseMethod::Singular => "cusolverDnDgesvdj",
    }
}

/// A call in the libraries' types. Its sizes fit, which [`DenseCall::fault`] has checked.
struct Run<'r> {
    dense: &'r Dense,
    handles: Handles,
    call: &'r DenseCall,
    room: Room,
    workspace: u64,
    batch: c_int,
    rows: c_int,
    columns: c_int,
}

impl Dense {
    pub(super) fn load(environment: &SearchEnvironment, devices: usize) -> Result<Self> {
        let solver = OpenLibrary::open(Library::Cusolver, environment, "cusolverDnCreate")?;
        let blas = OpenLibrary::open(Library::Cublas, environment, "cublasCreate")?;
        let find = |library: &OpenLibrary, name: &CStr| library.symbol(name);
        // SAFETY: the signatures are those that `cusolverDn.h` and `cublas_api.h` declare for these symbols in CUDA 12 and 13;
        // an `OpenLibrary` is never unloaded.
        let (solver, blas) = unsafe {
            (
                SolverTable::resolve(|entry| find(&solver, entry.symbol)),
                BlasBatchTable::resolve(|entry| find(&blas, entry.symbol)),
            )
        };
        Ok(Self { solver, blas, devices: (0..devices).map(|_| Mutex::default()).collect() })
    }

    /// Returns a device's handles, made at the first call. They are never destroyed.
    fn handles(&self, slot: &mut Option<Handles>) -> Result<Handles> {
        if let Some(handles) = slot {
            return Ok(*handles);
        }
        let mut made = Handles::default();
        let what = || "a handle".to_owned();
        // SAFETY: each call writes one handle.
        unsafe {
            check(self.solver.create(&raw mut made.solver), what)?;
            check(self.blas.create(&raw mut made.blas), what)?;
            check(self.solver.parameters_create(&raw mut made.parameters), what)?;
            check(self.solver.rotations_create(&raw mut made.rotations), what)?;
        }
        Ok(*slot.insert(made))
    }

    fn run<'r>(&'r self, handles: Handles, call: &'r DenseCall) -> Result<Run<'r>> {
        if let Some(fault) = call.fault() {
            return Err(Error::new(Code::InvalidValue, name(call.method), fault));
        }
        let [batch, rows, columns] = [call.batch, call.rows, call.columns].map(|size| size as c_int);
        let mut run =
            Run { dense: self, handles, call, room: Room::default(), workspace: 0, batch, rows, columns };
        run.room = run.measured()?;
        Ok(run)
    }

    /// Returns the bytes of scratch memory that a call needs. The device's context is current.
    pub(super) fn workspace(&self, device: u32, call: &DenseCall) -> Result<u64> {
        let mut slot = self.devices[device as usize].lock();
        let handles = self.handles(&mut slot)?;
        Ok(self.run(handles, call)?.workspace_bytes())
    }

    /// Queues a batch. The device's context is current.
    pub(super) fn decompose(
        &self,
        device: u32,
        stream: RawStream,
        call: &DenseCall,
        label: impl Fn() -> String,
    ) -> Result<()> {
        let detail = || format!("{}, for {}", describe(call), label());
        let mut slot = self.devices[device as usize].lock();
        let handles = self.handles(&mut slot).map_err(|error| error.with_detail(&detail()))?;
        let mut run = self.run(handles, call).map_err(|error| error.with_detail(&detail()))?;
        let workspace = workspace_of(call.workspace, run.workspace_bytes()).map_err(|why| {
            Error::new(Code::InvalidValue, name(call.method), format!("{why}: {}", detail()))
        })?;
        run.workspace = workspace.address();
        // SAFETY: handles and stream are alive, and the lock is held, so only this thread uses the handles.
        unsafe {
            check(self.solver.set_stream(handles.solver, stream), detail)?;
            check(self.blas.set_stream(handles.blas, stream), detail)?;
        }
        run.queue().map_err(|error| error.with_detail(&detail()))
    }
}

impl Run<'_> {
    /// Returns whether the whole batch is one call.
    fn is_batched(&self) -> bool {
        let DenseCall { method, batch, rows, columns, .. } = *self.call;
        match method {
            DenseMethod::Cholesky => batch > 1 && rows <= 2 * SMALL,
            DenseMethod::Eigen => batch > 1,
            DenseMethod::Lu => batch > FEW && rows == columns,
            DenseMethod::Triangular { .. } => batch > 1 && rows <= SMALL,
            DenseMethod::Qr | DenseMethod::Reflectors { .. } | DenseMethod::Singular => false,
        }
    }

    /// Returns the workspace's bytes: the library's part, and an i32 for the state that routines report without an operand.
    fn workspace_bytes(&self) -> u64 {
        self.room.bytes.next_multiple_of(PART) + PART
    }

    /// Returns the address of the unused report.
    fn unread(&self) -> u64 {
        self.workspace + self.room.bytes.next_multiple_of(PART)
    }

    /// Returns the address of an operand of a matrix of the batch.
    fn at(&self, operand: usize, matrix: c_int) -> u64 {
        let (bytes, _) = self.call.operand_bytes()[operand];
        self.call.operands[operand].address() + matrix as u64 * bytes
    }

    /// Asks the library for the size of its workspace.
    fn measured(&self) -> Result<Room> {
        let (table, handles) = (&self.dense.solver, self.handles);
        let (rows, columns, solver) = (self.rows, self.columns, handles.solver);
        let a = self.at(0, 0);
        let (mut size, mut bytes, mut host_bytes) = (0, 0_usize, 0_usize);
        // SAFETY: the handles are alive; each call writes numbers of its own type, and reads no memory of the device.
        let outcome = unsafe {
            match self.call.method {
                DenseMethod::Cholesky if !self.is_batched() => {
                    table.cholesky_size(solver, TRIANGLES[1], rows, a, rows, &raw mut size)
                }
                DenseMethod::Lu if !self.is_batched() => {
                    table.lu_size(solver, rows, columns, a, rows, &raw mut size)
                }
                DenseMethod::Cholesky | DenseMethod::Lu | DenseMethod::Triangular { .. } => {
                    return Ok(Room::default());
                }
                DenseMethod::Qr => table.qr_size(solver, rows, columns, a, rows, &raw mut size),
                DenseMethod::Reflectors { width } => {
                    let (width, factors) = (width as c_int, self.at(1, 0));
                    table.reflectors_size(solver, rows, width, columns, a, rows, factors, &raw mut size)
                }
                DenseMethod::Eigen if self.is_batched() => table.eigen_batched_size(
                    solver,
                    handles.parameters,
                    VECTORS,
                    TRIANGLES[0],
                    i64::from(rows),
                    R_64F,
                    a,
                    i64::from(rows),
                    R_64F,
                    self.at(1, 0),
                    R_64F,
                    &raw mut bytes,
                    &raw mut host_bytes,
                    i64::from(self.batch),
                ),
                DenseMethod::Eigen => {
                    let values = self.at(1, 0);
                    table.eigen_size(solver, VECTORS, TRIANGLES[0], rows, a, rows, values, &raw mut size)
                }
                DenseMethod::Singular => {
                    let [u, v, values] = [1, 2, 3].map(|place| self.at(place, 0));
                    table.singular_size(
                        solver,
                        VECTORS,
                        1,
                        rows,
                        columns,
                        a,
                        rows,
                        values,
                        u,
                        rows,
                        v,
                        columns,
                        &raw mut size,
                        handles.rotations,
                    )
                }
            }
        };
        check(outcome, || "the size of the workspace".to_owned())?;
        match bytes {
            0 => Ok(Room { size: size.max(0) as usize, bytes: 8 * size.max(0) as u64, host_bytes }),
            _ => Ok(Room { size: bytes, bytes: bytes as u64, host_bytes }),
        }
    }

    fn queue(&self) -> Result<()> {
        let what = || "the call".to_owned();
        if self.is_batched() {
            return check(self.whole(), what);
        }
        (0..self.batch).try_for_each(|matrix| check(self.one(matrix), what))
    }

    /// Returns cuBLAS's arguments for a triangular system: `X · op(M) = B`, where the column-major `M`, `X` and `B` are the transposes of
    /// the row-major ones.
    fn triangle(&self) -> [u32; 3] {
        match self.call.method {
            DenseMethod::Triangular { upper, transposed, unit } => {
                [TRIANGLES[usize::from(!upper)], u32::from(transposed), u32::from(unit)]
            }
            _ => [0; 3],
        }
    }

    /// Queues the batch as one call.
    fn whole(&self) -> CallStatus {
        let (Self { dense, handles, rows, columns, batch, .. }, call) = (self, self.call);
        let (rows, columns, batch) = (*rows, *columns, *batch);
        let [a, b] = call.addresses.map(DevicePointer::address);
        let (one, [triangle, operation, diagonal]) = (1.0, self.triangle());
        let mut host = vec![0_u8; self.room.host_bytes];
        // SAFETY: the handles are alive and used by this thread only. Workspaces have the sizes that the library named; the other
        // addresses are used by kernels only, and the contract leaves those to the caller. The factor is read at once.
        unsafe {
            match call.method {
                DenseMethod::Cholesky => dense.solver.cholesky_batched(
                    handles.solver,
                    TRIANGLES[1],
                    rows,
                    a,
                    rows,
                    self.at(1, 0),
                    batch,
                ),
                DenseMethod::Lu => {
                    let (pivots, info) = (self.at(1, 0), self.at(2, 0));
                    dense.blas.lu_batched(handles.blas, rows, a, rows, pivots, info, batch)
                }
                DenseMethod::Triangular { .. } => dense.blas.triangular_batched(
                    handles.blas,
                    RIGHT,
                    triangle,
                    operation,
                    diagonal,
                    columns,
                    rows,
                    &raw const one,
                    a,
                    rows,
                    b,
                    columns,
                    batch,
                ),
                _ => dense.solver.eigen_batched(
                    handles.solver,
                    handles.parameters,
                    VECTORS,
                    TRIANGLES[0],
                    i64::from(rows),
                    R_64F,
                    self.at(0, 0),
                    i64::from(rows),
                    R_64F,
                    self.at(1, 0),
                    R_64F,
                    self.workspace,
                    self.room.size,
                    host.as_mut_ptr().cast::<c_void>(),
                    self.room.host_bytes,
                    self.at(2, 0),
                    i64::from(batch),
                ),
            }
        }
    }

    /// Queues one matrix.
    fn one(&self, matrix: c_int) -> CallStatus {
        let (table, handles, call) = (&self.dense.solver, self.handles, self.call);
        let (rows, columns, solver) = (self.rows, self.columns, handles.solver);
        let [a, second, third, fourth, fifth] = [0, 1, 2, 3, 4].map(|operand| self.at(operand, matrix));
        let (workspace, size) = (self.workspace, self.room.size as c_int);
        let (factor, [triangle, operation, diagonal]) = (1.0, self.triangle());
        // SAFETY: as in `whole`.
        unsafe {
            match call.method {
                DenseMethod::Cholesky => {
                    table.cholesky(solver, TRIANGLES[1], rows, a, rows, workspace, size, second)
                }
                DenseMethod::Lu => table.lu(solver, rows, columns, a, rows, workspace, second, third),
                DenseMethod::Triangular { .. } => self.dense.blas.triangular(
                    handles.blas,
                    RIGHT,
                    triangle,
                    operation,
                    diagonal,
                    columns,
                    rows,
                    &raw const factor,
                    a,
                    rows,
                    second,
                    columns,
                ),
                DenseMethod::Qr => {
                    table.qr(solver, rows, columns, a, rows, second, workspace, size, self.unread())
                }
                DenseMethod::Reflectors { width } => {
                    let (width, unread) = (width as c_int, self.unread());
                    table.reflectors(solver, rows, width, columns, a, rows, second, workspace, size, unread)
                }
                DenseMethod::Eigen => {
                    table.eigen(solver, VECTORS, TRIANGLES[0], rows, a, rows, second, workspace, size, third)
                }
                DenseMethod::Singular => table.singular(
                    solver,
                    VECTORS,
                    1,
                    rows,
                    columns,
                    a,
                    rows,
                    fourth,
                    second,
                    rows,
                    third,
                    columns,
                    workspace,
                    size,
                    fifth,
                    handles.rotations,
                ),
            }
        }
    }
}
