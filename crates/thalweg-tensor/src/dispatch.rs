//! The dispatcher: which function answers a call of an operator.
//!
//! A call has a set of [`DispatchKey`]s: the backend of its tensors, and `Autograd` when a gradient may flow. The kernel of
//! the highest key that the operator has one for is run; it does its part and *redispatches* with that key left out. So
//! autograd is a kernel like any other, and so is what a user registers.
//!
//! ```text
//! x.add(&y) ─ keys {Autograd, Sim} ─▶ Autograd kernel: redispatch, record a node
//!                                        └─ keys {Sim} ─▶ backend kernel: plan, load, launch
//! ```
//!
//! Kernels of one (operator, key) form a stack: the newest answers, and dropping its [`Registration`] restores the former.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar, Shape};
use thalweg_runtime::{Device, Error, Label, Result};

use crate::kernels::loops::Resolved;
use crate::schema::Schema;
use crate::tensor::{Tensor, Tensors, describe, describe_new};

/// What may have a say in a call, from the lowest priority to the highest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DispatchKey {
    /// Tensors on a simulated GPU.
    Sim = 0,
    /// Tensors on a GPU.
    Cuda = 1,
    /// A gradient may flow through the call.
    Autograd = 2,
}

impl DispatchKey {
    /// Every key, lowest priority first.
    pub const ALL: [Self; 3] = [Self::Sim, Self::Cuda, Self::Autograd];

    /// The backend of a device.
    pub fn of_device(device: &Device) -> Self {
        if device.is_simulated() { Self::Sim } else { Self::Cuda }
    }
}

/// A set of keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DispatchKeySet(u64);

impl DispatchKeySet {
    /// No key.
    pub const EMPTY: Self = Self(0);

    /// The set with a key more.
    #[must_use]
    pub const fn with(self, key: DispatchKey) -> Self {
        Self(self.0 | 1 << key as u8)
    }

    /// The set with a key less.
    #[must_use]
    pub const fn without(self, key: DispatchKey) -> Self {
        Self(self.0 & !(1 << key as u8))
    }

    /// Whether the key is in it.
    pub const fn has(self, key: DispatchKey) -> bool {
        self.0 & 1 << key as u8 != 0
    }
}

thread_local! {
    static EXCLUDED: Cell<DispatchKeySet> = const { Cell::new(DispatchKeySet::EMPTY) };
}

/// Leaves a key out of every call of this thread until it is dropped.
#[must_use = "the key is left out only while the guard lives"]
pub struct ExcludeKeyGuard {
    former: DispatchKeySet,
    _not_send: std::marker::PhantomData<*const ()>,
}

impl ExcludeKeyGuard {
    /// Starts leaving the key out.
    pub fn new(key: DispatchKey) -> Self {
        let former = EXCLUDED.get();
        EXCLUDED.set(former.with(key));
        Self { former, _not_send: std::marker::PhantomData }
    }
}

impl Drop for ExcludeKeyGuard {
    fn drop(&mut self) {
        EXCLUDED.set(self.former);
    }
}

/// Whether calls of this thread leave a key out.
pub(crate) fn is_excluded(key: DispatchKey) -> bool {
    EXCLUDED.get().has(key)
}

/// What a call passes beside tensors.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Arguments {
    /// Numbers, in the operator's order.
    pub scalars: SmallVec<[Scalar; 12]>,
    /// Dimensions or extents, in the operator's order.
    pub sizes: Shape,
    /// The dtype that the call asks for.
    pub dtype: Option<DType>,
}

/// One call of an operator, as its kernels see it.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The operator.
    pub operator: &'a Operator,
    /// The keys that are left.
    pub keys: DispatchKeySet,
    /// The tensors.
    pub tensors: &'a [&'a Tensor],
    /// The rest.
    pub arguments: &'a Arguments,
    /// The device of the result where there is no tensor, else the tensors' device.
    pub device: &'a Device,
    /// Who called, from where.
    pub label: Label,
    /// What the call resolves to, where an earlier kernel has worked it out for these tensors and arguments.
    pub(crate) resolved: Option<&'a Resolved>,
}

/// What answers a call.
pub type KernelFunction = Arc<dyn Fn(&Call<'_>) -> Result<Tensors> + Send + Sync>;

/// An operator: a name and, per key, the kernels that may answer.
pub struct Operator {
    name: &'static str,
    /// What a call must pass; of an operator of one's own, its kernels check that.
    schema: Option<Schema>,
    slots: [Slot; DispatchKey::ALL.len()],
}

/// The kernels of one operator and key.
#[derive(Default)]
struct Slot {
    /// The kernel of a built-in operator, which answers unless others were registered. Reading it takes no lock.
    built_in: OnceLock<KernelFunction>,
    /// Whether `registered` holds any.
    is_registered: AtomicBool,
    /// What [`Operator::register`] added, the newest last.
    registered: RwLock<Vec<(u64, KernelFunction)>>,
}

impl Slot {
    /// Changes the list of registered kernels.
    fn change(&self, change: impl FnOnce(&mut Vec<(u64, KernelFunction)>)) {
        let mut registered = self.registered.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut registered);
        self.is_registered.store(!registered.is_empty(), Ordering::Release);
    }

    /// Runs the kernel that answers, if there is one.
    fn answer(&self, call: &Call<'_>) -> Option<Result<Tensors>> {
        if self.is_registered.load(Ordering::Acquire) {
            let registered = self.registered.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(kernel) = registered.last().map(|(_, kernel)| kernel.clone()) {
                // A kernel may register others.
                drop(registered);
                return Some(kernel(call));
            }
        }
        self.built_in.get().map(|kernel| kernel(call))
    }
}

/// A registered kernel. Dropping it takes the kernel back; [`Registration::keep`] leaves it for good.
#[must_use = "the kernel is taken back when the registration is dropped"]
pub struct Registration {
    operator: &'static Operator,
    key: DispatchKey,
    serial: u64,
}

impl Registration {
    /// Leaves the kernel registered for the rest of the process.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.operator.slots[self.key as usize]
            .change(|registered| registered.retain(|(serial, _)| *serial != self.serial));
    }
}

impl Operator {
    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Registers a kernel for a key. The newest answers.
    pub fn register(&'static self, key: DispatchKey, kernel: KernelFunction) -> Registration {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        self.slots[key as usize].change(|registered| registered.push((serial, kernel)));
        Registration { operator: self, key, serial }
    }

    /// Calls the operator. `device` is needed where there are no tensors.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the operator does not take so many tensors, numbers or sizes, such sizes, shapes or
    /// dtypes, or if the tensors are on several devices.
    pub fn call(
        &self,
        tensors: &[&Tensor],
        arguments: &Arguments,
        device: Option<&Device>,
        label: Label,
    ) -> Result<Tensors> {
        let run = || {
            let device = match (tensors.first(), device) {
                (Some(tensor), _) => tensor.device(),
                (None, Some(device)) => device,
                (None, None) => return Err(Error::invalid("a call without tensors must name a device")),
            };
            for tensor in tensors {
                if tensor.device() != device {
                    return Err(Error::invalid(format!(
                        "tensors are on {device} and {}; all of a call are on one device (values go to another through the host, by \
                         `to_vec` and `from_slice` or through a `HostTensor`)",
                        tensor.device()
                    )));
                }
            }
            if let Some(schema) = &self.schema {
                schema.check(tensors, arguments)?;
            }
            let mut keys = DispatchKeySet::EMPTY.with(DispatchKey::of_device(device));
            if tensors.iter().any(|tensor| tensor.requires_grad()) {
                keys = keys.with(DispatchKey::Autograd);
            }
            let keys = DispatchKeySet(keys.0 & !EXCLUDED.get().0);
            Call { operator: self, keys, tensors, arguments, device, label, resolved: None }.dispatch()
        };
        run().map_err(|error| {
            let call = match (tensors, arguments.dtype, device) {
                ([], Some(dtype), Some(device)) => describe_new(self.name, &arguments.sizes, dtype, device),
                _ => describe(self.name, tensors),
            };
            error.in_call(call, label.location)
        })
    }
}

impl Call<'_> {
    fn dispatch(&self) -> Result<Tensors> {
        for key in DispatchKey::ALL.into_iter().rev().filter(|&key| self.keys.has(key)) {
            let call = Self { keys: self.keys.without(key), ..*self };
            if let Some(answer) = self.operator.slots[key as usize].answer(&call) {
                return answer;
            }
        }
        Err(Error::invalid(format!("no kernel is registered for {:?}", self.keys)))
    }

    /// Returns the call with other tensors.
    #[must_use]
    pub fn with_tensors<'b>(&'b self, tensors: &'b [&'b Tensor]) -> Call<'b> {
        Call { tensors, resolved: None, ..*self }
    }

    /// Returns the call with other arguments.
    #[must_use]
    pub fn with_arguments<'b>(&'b self, arguments: &'b Arguments) -> Call<'b> {
        Call { arguments, resolved: None, ..*self }
    }

    /// Calls the operator's next kernel: the keys that were answered are left out.
    pub fn redispatch(&self) -> Result<Tensors> {
        self.dispatch()
    }
}

/// The operators by name. Built-in ones are defined on first use.
struct Registry(RwLock<FxHashMap<&'static str, &'static Operator>>);

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let registry = Registry(RwLock::default());
        crate::kernels::define_all(&mut |name, schema, kernels| {
            let operator = registry.define(name, Some(schema)).expect("built-in names are unique");
            for (key, kernel) in kernels {
                let former = operator.slots[key as usize].built_in.set(kernel);
                debug_assert!(former.is_ok(), "{name}: one built-in kernel per key");
            }
        });
        registry
    })
}

impl Registry {
    fn define(&self, name: &'static str, schema: Option<Schema>) -> Result<&'static Operator> {
        let mut operators = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if operators.contains_key(name) {
            return Err(Error::invalid(format!(
                "operator {name} is defined already; register kernels on it instead"
            )));
        }
        // Operators live as long as the process, like the functions that they name.
        let operator: &'static Operator =
            Box::leak(Box::new(Operator { name, schema, slots: Default::default() }));
        operators.insert(name, operator);
        Ok(operator)
    }
}

/// A built-in operator as one place in the code calls it: looked up by name once.
pub(crate) struct BuiltIn {
    name: &'static str,
    operator: OnceLock<&'static Operator>,
}

impl BuiltIn {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, operator: OnceLock::new() }
    }

    /// Returns the operator.
    pub(crate) fn get(&self) -> Result<&'static Operator> {
        if let Some(operator) = self.operator.get() {
            return Ok(operator);
        }
        let operator = find_operator(self.name)?;
        Ok(self.operator.get_or_init(|| operator))
    }
}

/// The built-in operator of a literal name, found without a look-up after the first time.
macro_rules! built_in {
    ($name:expr) => {{
        static OPERATOR: $crate::dispatch::BuiltIn = $crate::dispatch::BuiltIn::new($name);
        OPERATOR.get()
    }};
}
pub(crate) use built_in;

/// The operator of a name.
pub fn find_operator(name: &str) -> Result<&'static Operator> {
    let operators = registry().0.read().unwrap_or_else(PoisonError::into_inner);
    operators.get(name).copied().ok_or_else(|| {
        Error::invalid(format!("there is no operator {name}; define it with `dispatch::define_operator`"))
    })
}

/// Defines an operator of one's own. Register kernels for the backends, and one for `Autograd` where it has a gradient.
pub fn define_operator(name: &'static str) -> Result<&'static Operator> {
    registry().define(name, None)
}
