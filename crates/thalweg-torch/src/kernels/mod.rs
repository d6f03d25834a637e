//! Kernels for PyTorch's operators: in eager PyTorch, at the dispatch key CUDA, through libtorch's stable C interface.
//!
//! ```text
//!   torch.softmax(x, -1)            PyTorch: autograd, dispatcher
//!          │ key CUDA, boxed
//!   Operator::call                  arguments off the stack                          operators
//!          │ in the table?          dtype, rows, columns; contiguous                 speeds
//!     yes  │        no
//!     Work::run    at::cuda::_softmax    launches on PyTorch's stream; its own kernel    work, original
//! ```
//!
//! Cross entropy is composed in PyTorch, so Python code at the key AutogradCUDA calls two operators of this library (`loss`).
//!
//! PyTorch keeps tensors, autograd and memory: results are allocated by its `empty_strided`, and launches go to its current
//! stream, captured or not.
//!
//! # Invariants
//! - A call has the results of PyTorch's kernel, up to rounding, or that kernel is called. Calls are never refused here.
//! - Nothing of a call is kept: objects taken off the stack are released when the call ends, also by an exception.
//! - A kernel that cannot be compiled or launched is tried once; after a failure PyTorch's kernel is used for the operator, and
//!   the report has the reason.

mod adam;
mod channels;
mod copies;
mod dispatch;
mod embedding;
mod foreach;
mod libtorch;
mod loss;
mod norms;
mod operators;
mod original;
mod reductions;
mod rows;
mod speeds;
mod table;
#[cfg(test)]
mod tests;
mod work;

use std::ffi::CStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustc_hash::FxHashSet;
use thalweg_lock::{Mutex, MutexGuard};

pub use speeds::{COLUMNS, Form, SPEEDS, Speed};

use crate::allocator::Allocator;
use crate::status::{Error, Result, Status};
use libtorch::{Libtorch, Loaded, Registration};
use original::Originals;
use speeds::Class;
use table::Operator;
use thalweg_runtime::{invalid, refuse, refuse_if};
use work::{HostFunctions, LoweredCalls, Place};

/// The counts of an operator's calls.
#[derive(Default)]
struct Counts {
    taken: AtomicU64,
    passed_on: AtomicU64,
    /// The reason why calls are no longer accepted.
    given_up: OnceLock<String>,
}

/// The kernels of a process.
struct Kernels {
    torch: Libtorch,
    originals: Originals,
    place: Place,
    counts: [Counts; Operator::ALL.len()],
    /// Whether calls outside the measured table are accepted, too.
    everywhere: AtomicBool,
    registered: Mutex<Vec<(Operator, Registration)>>,
    /// The launches of calls.
    lowered: LoweredCalls,
    /// The devices and names of native kernels that were launched, and therefore are loaded.
    loaded: Mutex<FxHashSet<(i32, String)>>,
    /// The host functions of native kernels.
    hosts: HostFunctions,
    /// The kernels of fused optimizers.
    steps: foreach::Steps,
    /// The kernels of running statistics.
    updates: foreach::Updates,
}

/// PyTorch's calls do not identify their owner, so there is only one instance.
static KERNELS: OnceLock<Kernels> = OnceLock::new();

impl Kernels {
    fn new(torch: Libtorch, originals: Originals, place: Place) -> Self {
        let (counts, everywhere) = (Default::default(), AtomicBool::new(false));
        let (registered, lowered, loaded, hosts, steps, updates) = Default::default();
        Self {
            torch,
            originals,
            place,
            counts,
            everywhere,
            registered,
            lowered,
            loaded,
            hosts,
            steps,
            updates,
        }
    }

    fn counts(&self, operator: Operator) -> &Counts {
        &self.counts[operator as usize]
    }

    fn registered(&self) -> MutexGuard<'_, Vec<(Operator, Registration)>> {
        self.registered.lock()
    }

    fn loaded(&self) -> MutexGuard<'_, FxHashSet<(i32, String)>> {
        self.loaded.lock()
    }

    /// Returns whether calls of this class are accepted.
    fn takes(&self, operator: Operator, class: &Class) -> bool {
        self.counts(operator).given_up.get().is_none()
            && (self.everywhere.load(Ordering::Relaxed) || speeds::is_ahead(operator.name(), class))
    }

    /// Tries to run a call and counts it. If it panics, which is a bug, the call is left to PyTorch.
    fn attempt<T>(&self, operator: Operator, attempt: impl FnOnce() -> Option<T>) -> Option<T> {
        let taken = catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|_| {
            self.give_up(
                operator,
                &Error::new(Status::Panic, "a bug of Thalweg; please report what was printed"),
            );
            None
        });
        let Counts { taken: yes, passed_on: no, .. } = self.counts(operator);
        if taken.is_some() { yes } else { no }.fetch_add(1, Ordering::Relaxed);
        taken
    }

    /// Leaves an operator to PyTorch from now on, unless the error is temporary.
    fn give_up(&self, operator: Operator, error: &Error) {
        if matches!(error.status(), Status::Capture | Status::OutOfMemory) {
            return;
        }
        let mut is_first = false;
        self.counts(operator).given_up.get_or_init(|| {
            is_first = true;
            error.message().to_owned()
        });
        if is_first {
            let name = operator.name();
            let _ = writeln!(
                std::io::stderr(),
                "thalweg: `{name}` stays with PyTorch's kernel: {}",
                error.message()
            );
        }
    }

    /// Returns PyTorch's current stream of a device.
    fn current_stream(&self, device: i32) -> Option<u64> {
        let Some(current) = self.torch.current_stream else { return Some(0) };
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the answer.
        (unsafe { current(device, &raw mut stream) } == 0).then_some(stream as u64)
    }

    /// Registers kernels for those of the given operators that have none yet.
    fn register(&self, operators: &[Operator]) -> Result<()> {
        let mut registered = self.registered();
        let key: &CStr = if matches!(self.place, Place::Gpu(_)) { c"CUDA" } else { c"CPU" };
        for &operator in operators {
            if !registered.iter().any(|(other, _)| *other == operator) {
                let (namespace, name) = operator.schema();
                let registration = self.torch.register(namespace, name, key, operator.boxed())?;
                registered.push((operator, registration));
            }
        }
        Ok(())
    }

    /// Returns one line per class of calls: operator, form, dtypes, minimum and maximum of columns, minimum of elements, our
    /// speed and PyTorch's in % of a copy, whether it is registered, the calls taken and passed on, and the reason if no more are
    /// taken. A registered operator without a class has a line without dtypes.
    fn report(&self) -> String {
        let registered = self.registered();
        let mut lines = String::new();
        for operator in Operator::ALL {
            let Counts { taken, passed_on, given_up } = self.counts(operator);
            let [taken, passed_on] = [taken, passed_on].map(|count| count.load(Ordering::Relaxed));
            let is_on = registered.iter().any(|(other, _)| *other == operator);
            let why = given_up.get().map_or("", String::as_str).replace(['\t', '\n'], " ");
            let mut classes: Vec<&Speed> =
                SPEEDS.iter().filter(|speed| speed.operator == operator.name()).collect();
            let unlisted = Speed::unknown(operator.name());
            if classes.is_empty() && is_on {
                classes.push(&unlisted);
            }
            for line in classes.into_iter().map(line) {
                let _ = writeln!(lines, "{line}\t{}\t{taken}\t{passed_on}\t{why}", u8::from(is_on));
            }
        }
        lines
    }
}

fn line(speed: &Speed) -> String {
    let Speed { operator, form, dtypes, columns: [fewest, most], elements, ours, pytorch } = speed;
    let dtypes = dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(",");
    format!("{operator}\t{}\t{dtypes}\t{fewest}\t{most}\t{elements}\t{ours}\t{pytorch}", form.name())
}

/// Returns the operators of a list of names, separated by commas; for an empty list those of the table, or all with `everywhere`.
fn operators_of(names: &str, everywhere: bool) -> Result<Vec<Operator>> {
    if names.is_empty() {
        let is_listed = |operator: &Operator| SPEEDS.iter().any(|speed| speed.operator == operator.name());
        return Ok(Operator::ALL.into_iter().filter(|operator| everywhere || is_listed(operator)).collect());
    }
    let find = |name: &str| {
        Operator::ALL.into_iter().find(|operator| operator.name() == name).ok_or_else(|| {
            let known = Operator::ALL.map(Operator::name).join(", ");
            invalid!("there is no kernel for `{name}`; there are kernels for {known}")
        })
    };
    let mut operators: Vec<Operator> = names.split(',').map(str::trim).map(find).collect::<Result<_>>()?;
    if operators.contains(&Operator::CrossEntropy) {
        operators.push(Operator::CrossEntropyBackward);
    }
    Ok(operators)
}

/// Finds PyTorch's functions in the libraries of a folder.
fn find(folder: &str, place: Place) -> Result<Kernels> {
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        refuse!("kernels inside PyTorch are for Linux on x86-64");
    }
    let cpu = Loaded::find(folder, "libtorch_cpu.so")?;
    Ok(match place {
        Place::Gpu(_) => {
            let cuda = Loaded::find(folder, "libtorch_cuda.so")?;
            Kernels::new(Libtorch::find(&cpu, Some(&cuda))?, Originals::find(&cuda, "4cuda"), place)
        }
        Place::Host => Kernels::new(Libtorch::find(&cpu, None)?, Originals::find(&cpu, "3cpu"), place),
    })
}

/// Registers kernels for the operators of a list inside the PyTorch whose libraries are in a folder; for an empty list those of
/// the table, or all with `everywhere`. Registered kernels stay.
///
/// # Errors
/// If an operator has no kernel here, PyTorch is not loaded or lacks a needed function, or kernels are registered at the other
/// key. Kernels that were registered before the error stay.
pub(crate) fn enable(
    allocator: &'static Allocator,
    folder: &str,
    key: &str,
    operators: &str,
    everywhere: bool,
) -> Result<()> {
    let is_any = operators.is_empty();
    let mut operators = operators_of(operators, everywhere)?;
    let is_on_host = match key {
        "CUDA" => false,
        "CPU" => true,
        _ => return Err(invalid!("there are no kernels for the key `{key}`: CUDA or CPU")),
    };
    let kernels = match KERNELS.get() {
        Some(kernels) => kernels,
        None => {
            let place = if is_on_host { Place::Host } else { Place::Gpu(allocator) };
            let found = find(folder, place)?;
            KERNELS.get_or_init(|| found)
        }
    };
    let fits = match kernels.place {
        Place::Host => is_on_host,
        Place::Gpu(first) => !is_on_host && std::ptr::eq(first, allocator),
    };
    refuse_if!(!fits, "this process has kernels inside PyTorch for another key or another allocator");
    if is_any && is_on_host {
        // `at::cpu` has no kernel for operators that PyTorch composes on the host.
        operators.retain(|operator| operator.is_found(&kernels.originals));
    }
    if let Some(missing) = operators.iter().find(|operator| !operator.is_found(&kernels.originals)) {
        refuse!(
            "this PyTorch does not export its own kernel of `{}`, which calls outside the table need",
            missing.name()
        );
    }
    kernels.everywhere.store(everywhere, Ordering::Relaxed);
    kernels.register(&operators)
}

/// Unregisters all kernels, so that PyTorch's are called again.
pub(crate) fn disable() {
    if let Some(kernels) = KERNELS.get() {
        kernels.registered().clear();
    }
}

/// Returns the table, one class of calls per line, with the counts of the operators' calls.
pub(crate) fn report() -> String {
    match KERNELS.get() {
        Some(kernels) => kernels.report(),
        None => SPEEDS.iter().map(|speed| format!("{}\t0\t0\t0\t\n", line(speed))).collect(),
    }
}
