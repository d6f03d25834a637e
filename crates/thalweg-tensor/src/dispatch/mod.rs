//! The dispatcher: which function runs a call of an operator.
//!
//! A call has a set of [`DispatchKey`]s: the backend of its tensors, and `Autograd` when a gradient may flow. The dispatcher runs
//! the kernel of the highest key for which the operator has one; it does its part and *redispatches* without that key. Autograd
//! is thus a kernel like any other, and so is a function that a user registers.
//!
//! ```text
//! x.add(&y) ─ keys {Autograd, Sim} ─▶ Autograd kernel: redispatch, record a node
//!                                        └─ keys {Sim} ─▶ backend kernel: plan, load, launch
//! ```
//!
//! Kernels of one (operator, key) form a stack: the newest is called, and dropping its [`Registration`] restores the previous
//! one. If an operator has none for a key, the key's *fallback* is called ([`register_fallback`]), one function for all
//! operators. If there is no fallback, or a *fallthrough* was registered, the call continues with the next key.
//!
//! A thread can include keys in its calls ([`IncludeKeyGuard`]) and exclude others ([`ExcludeKeyGuard`]). Keys that no call has
//! on its own ([`DispatchKey::Python`], [`DispatchKey::User1`]) are modes: with a fallback, they receive every call of the
//! thread.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | [`Operator`], [`Call`]: the choice of the kernel |
//! | `definition.rs` | an operator as data: an entry and its body |
//! | `derived.rs` | the kernels that follow from a definition |
//! | `in_place.rs`, `out.rs` | the forms that write into given tensors; `offers.rs`: which memory they may write directly |
//! | `complex_kernel.rs`, `complex_number.rs` | complex numbers in tensors, and as arguments |
//! | `registry.rs` | the operators by name |
//! | `keys.rs`, `trace.rs` | dispatch keys and modes; recorded calls |
//!
//! An operator and its body form a dependency cycle of five files: a body (`definition`) computes a [`Call`], as a loop
//! (`loops::call`) that the call may have resolved already (`loops::resolved`), with a gradient (`autograd::formula`). Everything
//! else here is above that cycle, and the operators themselves are above the dispatcher: `operators::table` passes their entries
//! to the registry.

mod complex_kernel;
mod complex_number;
mod definition;
mod derived;
pub(crate) mod in_place;
mod keys;
mod offers;
mod out;
mod registry;
mod trace;

use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use thalweg_ir::{DType, Scalar};
use thalweg_lock::RwLock;
use thalweg_ops::schema::{Kind, Schema};
use thalweg_profiler::record_operator;
use thalweg_runtime::{Device, Error, Label, Result, invalid, refuse, refuse_if};

pub use crate::argument::{Argument, Arguments, Ints, Value, as_ints};
use crate::argument::{Forms, default_of, describe_call};
use crate::caller::{enter, label_at};
use crate::destination::{First, without_offers};
use crate::loops::{LoopArguments, Resolved};
use crate::tensor::{Tensor, Tensors, check_memory};

pub(crate) use complex_kernel::check_conversion;
pub(crate) use definition::{Body, Complex, OpDef, OutRule, single};
pub(crate) use keys::{
    Anomaly, ModeGuard, anomaly, is_excluded, is_inference, set_anomaly, set_excluded, set_included,
    set_inference,
};
pub use keys::{DispatchKey, DispatchKeySet, ExcludeKeyGuard, IncludeKeyGuard};
pub(crate) use offers::{offer_to_function, over};
pub(crate) use registry::{BuiltIn, Entries, OperatorTable, built_in};
pub use registry::{define_loop, define_operator, find_operator, operators};
pub use trace::{Trace, TracedCall, trace};

/// One call of an operator, as its kernels see it.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The operator.
    pub operator: &'static Operator,
    /// The remaining keys, whose kernels have not run.
    pub keys: DispatchKeySet,
    /// One argument per parameter of the schema, of the parameter's type: defaults are filled in.
    pub arguments: &'a [Argument<'a>],
    /// The tensors among the arguments, in order, including those in lists.
    pub tensors: &'a [&'a Tensor],
    /// The device of the tensors, or the device of the result if there are none.
    pub device: &'a Device,
    /// The operator that was called, and the line that called it.
    pub label: Label,
    /// The resolved loop call, if an earlier kernel has resolved it for these tensors and arguments.
    pub(crate) resolved: Option<&'a Resolved>,
}

/// A kernel: a function that computes the results of a call.
pub type KernelFunction = Arc<dyn Fn(&Call<'_>) -> Result<Tensors> + Send + Sync>;

/// A function that calls an operator with a complex number among its arguments, although no parameter takes one.
type WithComplexNumber = fn(&'static Operator, &[Argument<'_>], Option<&Device>, Label) -> Result<Tensors>;

/// An operator: a schema and, per key, the kernels that may run.
pub struct Operator {
    name: &'static str,
    /// The name without overload, for labels and errors.
    base_name: &'static str,
    schema: Schema,
    /// The documentation, in sentences.
    doc: &'static str,
    /// The method of [`Tensor`] that the entry defines.
    method: Option<&'static str>,
    /// Per parameter: the forms in which kernels read it, and its default.
    parameters: Vec<(Forms, Option<Value>)>,
    /// The way in which the operator is computed.
    body: Body,
    /// The name of the in-place form, if the entry states it.
    in_place: Option<&'static str>,
    /// The name of the `out=` form, if the entry states it.
    out_form: Option<&'static str>,
    /// The conditions on the tensors that the `out=` form writes.
    out: &'static [OutRule],
    /// The way in which the operator treats the first tensor of its in-place form.
    first: First,
    takes_generator: bool,
    /// The computation of complex numbers.
    complex: Complex,
    /// The function for calls with complex numbers that the operator's parameters do not take.
    with_complex_number: WithComplexNumber,
    /// The overload that takes tensors in place of numbers, once it has been looked up.
    of_tensors: OnceLock<Option<&'static Operator>>,
    slots: [Slot; DispatchKey::ALL.len()],
}

/// The kernels of one operator and key, or of a key's fallback.
#[derive(Default)]
struct Slot {
    /// The kernel of a built-in operator, which is called unless others are registered. Reading it takes no lock.
    built_in: OnceLock<KernelFunction>,
    /// Whether `registered` holds any.
    is_registered: AtomicBool,
    /// The registered kernels, the newest last; `None` is a fallthrough.
    registered: RwLock<Vec<(u64, Option<KernelFunction>)>>,
}

/// The kernel of a slot for a call.
enum Found {
    /// The kernel's result.
    Answer(Result<Tensors>),
    /// A fallthrough: the call continues with the next key.
    Fallthrough,
    /// No kernel.
    Nothing,
}

impl Slot {
    const fn new() -> Self {
        Self {
            built_in: OnceLock::new(),
            is_registered: AtomicBool::new(false),
            registered: RwLock::new(Vec::new()),
        }
    }

    /// Adds a kernel or a fallthrough, which takes precedence over the existing ones.
    fn register(&'static self, kernel: Option<KernelFunction>) -> Registration {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        self.change(|registered| registered.push((serial, kernel)));
        Registration { slot: self, serial }
    }

    /// Changes the list of registered kernels.
    fn change(&self, change: impl FnOnce(&mut Vec<(u64, Option<KernelFunction>)>)) {
        let mut registered = self.registered.write();
        change(&mut registered);
        self.is_registered.store(!registered.is_empty(), Ordering::Release);
    }

    /// Runs the newest kernel, if there is one.
    fn answer(&self, call: &Call<'_>) -> Found {
        if self.is_registered.load(Ordering::Acquire) {
            let registered = self.registered.read();
            let newest = registered.last().map(|(_, kernel)| kernel.clone());
            // A kernel may register others.
            drop(registered);
            match newest {
                // A program's kernel may keep tensors that it allocates.
                Some(Some(kernel)) => return Found::Answer(without_offers(|| kernel(call))),
                Some(None) => return Found::Fallthrough,
                None => {}
            }
        }
        self.built_in.get().map_or(Found::Nothing, |kernel| Found::Answer(kernel(call)))
    }
}

/// The kernels for every operator that has none of its own, by key.
static FALLBACKS: [Slot; DispatchKey::ALL.len()] = [const { Slot::new() }; DispatchKey::ALL.len()];

/// Registers a kernel for a key, for every operator that has no kernel under this key. It reads the operator and its arguments
/// from the [`Call`], so one function serves all operators: to count, log or record calls, or to run them elsewhere. The kernel
/// registered last is called.
pub fn register_fallback(key: DispatchKey, kernel: KernelFunction) -> Registration {
    FALLBACKS[key as usize].register(Some(kernel))
}

/// A registered kernel. Dropping it unregisters the kernel; [`Registration::keep`] makes it permanent.
#[must_use = "the kernel is taken back when the registration is dropped"]
pub struct Registration {
    slot: &'static Slot,
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
        self.slot.change(|registered| registered.retain(|(serial, _)| *serial != self.serial));
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operator({})", self.schema)
    }
}

impl Operator {
    /// Returns the name, with the overload.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Registers a kernel for a key. The kernel registered last is called.
    pub fn register(&'static self, key: DispatchKey, kernel: KernelFunction) -> Registration {
        self.slots[key as usize].register(Some(kernel))
    }

    /// Registers that calls of this operator skip a key, including its fallback.
    pub fn register_fallthrough(&'static self, key: DispatchKey) -> Registration {
        self.slots[key as usize].register(None)
    }

    /// Returns the name without overload and namespace: `add` of `add.Tensor`.
    pub fn base_name(&self) -> &'static str {
        self.base_name
    }

    /// Returns whether there is a built-in kernel for a key.
    pub(crate) fn has_built_in(&self, key: DispatchKey) -> bool {
        self.slots[key as usize].built_in.get().is_some()
    }

    /// Returns whether the operator has its own kernel for a key.
    pub fn has_kernel(&self, key: DispatchKey) -> bool {
        self.has_built_in(key) || self.slots[key as usize].is_registered.load(Ordering::Acquire)
    }

    /// Returns the body.
    pub(crate) fn body(&self) -> Body {
        self.body
    }

    /// Returns the conditions on the tensors that the `out=` form writes, in addition to those of every form.
    pub(crate) fn out_rules(&self) -> &'static [OutRule] {
        self.out
    }

    /// Returns the way in which the operator treats the first tensor of its in-place form.
    pub(crate) fn first(&self) -> First {
        self.first
    }

    /// Returns the name of the in-place form, if the entry states it.
    pub(crate) fn in_place_name(&self) -> Option<&'static str> {
        self.in_place
    }

    /// Returns the name of the `out=` form and of the tensors that it writes, if the entry states them.
    pub(crate) fn out_form(&self) -> Option<&'static str> {
        self.out_form
    }

    /// Returns whether the operator draws random numbers from a generator that a caller may choose.
    pub fn takes_generator(&self) -> bool {
        self.takes_generator
    }

    /// Returns the schema, which lists the arguments that a call must pass.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns the default of each parameter, `None` for those that a call must pass.
    pub fn defaults(&self) -> impl Iterator<Item = Option<&Value>> {
        self.parameters.iter().map(|(_, default)| default.as_ref())
    }

    /// Returns the documentation of a built-in operator, in sentences; an empty text for a part of other operators, and for operators
    /// that were defined elsewhere.
    pub fn documentation(&self) -> &'static str {
        self.doc
    }

    /// Returns the name of the method of [`Tensor`] that the table's entry defines; some operators have a handwritten method
    /// instead.
    pub fn method(&self) -> Option<&'static str> {
        self.method
    }

    /// Returns how the operator is computed and the source of its gradient, as text.
    pub fn computed_by(&self) -> &'static str {
        self.body.words()
    }

    /// Returns whether the operator is computed by other operators, which autograd records.
    pub fn is_composite(&self) -> bool {
        matches!(self.body, Body::Composite(_))
    }

    /// Returns whether the operator writes the results of another one into given tensors.
    pub fn writes_by_another(&self) -> bool {
        matches!(self.body, Body::InPlace(_) | Body::InPlaceView(_) | Body::Out(_))
    }

    /// Returns whether a built-in kernel records a gradient of the operator's own. Composite operators get theirs from the
    /// operators that they call; some operators have none.
    pub fn records_gradient(&self) -> bool {
        self.has_built_in(DispatchKey::Autograd)
    }

    /// Calls the operator: with one argument per parameter, in the schema's order; parameters left out at the end take their
    /// defaults. `device` is required if there are no tensors.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the arguments do not fit the schema, or if the tensors are on several devices; and those
    /// of the kernels.
    pub fn call(
        &'static self,
        arguments: &[Argument<'_>],
        device: Option<&Device>,
        label: Label,
    ) -> Result<Tensors> {
        let _recorded = record_operator(self.base_name);
        let run = || {
            if !self.fits(arguments) {
                if arguments.iter().any(|argument| matches!(argument, Argument::Complex(_))) {
                    return (self.with_complex_number)(self, arguments, device, label);
                }
                return self.run(&self.with_defaults(arguments)?, device, label);
            }
            if arguments.len() == self.parameters.len() {
                return self.run(arguments, device, label);
            }
            let mut list: SmallVec<[Argument<'_>; 8]> = SmallVec::from_slice(arguments);
            for (_, default) in &self.parameters[arguments.len()..] {
                match default {
                    Some(default) => list.push(default.as_argument()),
                    None => return self.run(&self.with_defaults(arguments)?, device, label),
                }
            }
            self.run(&list, device, label)
        };
        run().map_err(|error| error.in_call(describe_call(self.base_name, arguments, device), label.location))
    }

    /// Calls the operator with owned values and returns owned values, one per result of the schema, for code that knows nothing
    /// of the operator.
    #[track_caller]
    pub fn call_boxed(&'static self, values: &[Value], device: Option<&Device>) -> Result<Vec<Value>> {
        let arguments: SmallVec<[Argument<'_>; 8]> = values.iter().map(Value::as_argument).collect();
        let results = self.call(&arguments, device, label_at(self.base_name, Location::caller()))?;
        Ok(match self.schema.returns.as_slice() {
            [list] if list.list => vec![Value::Tensors(results.into_vec())],
            types => (results.into_iter().enumerate())
                .map(|(place, result)| match types.get(place) {
                    Some(ty) if ty.kind != Kind::Tensor => as_number(&result),
                    _ => Ok(Value::Tensor(result)),
                })
                .collect::<Result<_>>()?,
        })
    }

    /// Calls an operator whose parameters are tensors, numbers, integers and a dtype, in this order: those of the loop operators.
    pub(crate) fn call_loop(
        &'static self,
        tensors: &[&Tensor],
        arguments: &LoopArguments,
        device: Option<&Device>,
        label: Label,
    ) -> Result<Tensors> {
        let mut list: SmallVec<[Argument<'_>; 8]> = SmallVec::new();
        tensors.iter().for_each(|&tensor| list.push(Argument::Tensor(tensor)));
        arguments.scalars.iter().for_each(|&number| list.push(Argument::Scalar(number)));
        let integers = Argument::Ints(as_ints(arguments.points.integers()));
        if self.parameters.iter().any(|(forms, _)| forms.include(&integers)) {
            list.push(integers);
        }
        if let Some(dtype) = arguments.dtype {
            list.push(Argument::DType(dtype));
        }
        self.call(&list, device, label)
    }

    /// Returns whether each argument is in the form in which kernels read it.
    fn fits(&self, arguments: &[Argument<'_>]) -> bool {
        arguments.len() <= self.parameters.len()
            && arguments.iter().zip(&self.parameters).all(|(argument, (forms, _))| forms.include(argument))
    }

    /// Returns the arguments in the form in which kernels read them, with defaults.
    fn with_defaults<'a>(&'a self, arguments: &[Argument<'a>]) -> Result<SmallVec<[Argument<'a>; 8]>> {
        let parameters = &self.schema.parameters;
        let refused = |why: String| invalid!("the operator takes `{}`: {why}", self.schema);
        if arguments.len() > parameters.len() {
            return Err(refused(format!("{} arguments are too many", arguments.len())));
        }
        let passed = arguments.iter().zip(parameters).map(|(argument, parameter)| {
            argument
                .fit(&parameter.ty)
                .ok_or_else(|| refused(format!("`{}` cannot be {}", parameter.name, argument.kind())))
        });
        let missing = parameters[arguments.len()..].iter().map(|parameter| {
            default_of(parameter).map_err(|_| refused(format!("`{}` is missing", parameter.name)))
        });
        passed.chain(missing).collect()
    }

    fn run(
        &'static self,
        arguments: &[Argument<'_>],
        device: Option<&Device>,
        label: Label,
    ) -> Result<Tensors> {
        let mut tensors: SmallVec<[&Tensor; 8]> = SmallVec::new();
        let mut named = device;
        for argument in arguments {
            match argument {
                Argument::Device(device) => named = Some(device),
                argument => argument.push_tensors(&mut tensors),
            }
        }
        let device = match (tensors.first(), named) {
            (Some(tensor), _) => tensor.device(),
            (None, Some(device)) => device,
            (None, None) if arguments.iter().any(|argument| matches!(argument, Argument::Tensors([]))) => {
                refuse!("expected a non-empty list of tensors");
            }
            (None, None) => return Err(invalid!("a call without tensors must name a device")),
        };
        for tensor in &tensors {
            check_memory(tensor)?;
            refuse_if!(
                tensor.device() != device,
                "tensors are on {}; all of a call are on one device (move some with `to_device`)",
                device.told_apart(tensor.device())
            );
        }
        let mut keys = DispatchKeySet::EMPTY.with(DispatchKey::of_device(device));
        if tensors.iter().any(|tensor| tensor.requires_grad()) {
            keys = keys.with(DispatchKey::Autograd);
        }
        if tensors.iter().any(|tensor| tensor.dtype().is_complex()) {
            keys = keys.with(DispatchKey::Complex);
        }
        let keys = keys.of_thread();
        // Nodes that the call records name the line of the call.
        let _entered =
            (keys.has(DispatchKey::Autograd) && anomaly() != Anomaly::Off).then(|| enter(label.location));
        Call { operator: self, keys, arguments, tensors: &tensors, device, label, resolved: None }.dispatch()
    }
}

impl Arguments for Call<'_> {
    fn schema(&self) -> &Schema {
        &self.operator.schema
    }

    fn argument(&self, place: usize) -> Argument<'_> {
        self.arguments[place]
    }
}

impl Call<'_> {
    fn dispatch(&self) -> Result<Tensors> {
        for key in self.keys.highest_first() {
            let call = Self { keys: self.keys.without(key), ..*self };
            match self.operator.slots[key as usize].answer(&call) {
                Found::Answer(answer) => return answer,
                Found::Fallthrough => {}
                Found::Nothing => {
                    if let Found::Answer(answer) = FALLBACKS[key as usize].answer(&call) {
                        return answer;
                    }
                }
            }
        }
        Err(invalid!("no kernel is registered for a key of {:?}; see `Operator::register`", self.keys))
    }

    /// Calls the operator's next kernel, without the keys already handled, with the same number of other tensors. Not for
    /// operators that take lists of tensors.
    pub(crate) fn redispatch_with(&self, tensors: &[&Tensor]) -> Result<Tensors> {
        let mut rest = tensors.iter();
        let arguments: SmallVec<[Argument<'_>; 8]> = (self.arguments.iter())
            .map(|argument| match argument {
                Argument::Tensor(_) => {
                    Argument::Tensor(rest.next().expect("one tensor per tensor of the call"))
                }
                other => *other,
            })
            .collect();
        Call { arguments: &arguments, tensors, resolved: None, ..*self }.dispatch()
    }

    /// Calls the operator's next kernel, without the keys already handled.
    pub fn redispatch(&self) -> Result<Tensors> {
        self.dispatch()
    }
}

/// Calls an operator that returns one tensor.
pub(crate) fn call(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    device: Option<&Device>,
    location: &'static Location<'static>,
) -> Result<Tensor> {
    let mut results = call_all(operator, arguments, device, location)?;
    Ok(results.swap_remove(0))
}

/// Calls an operator.
pub(crate) fn call_all(
    operator: &'static Operator,
    arguments: &[Argument<'_>],
    device: Option<&Device>,
    location: &'static Location<'static>,
) -> Result<Tensors> {
    operator.call(arguments, device, label_at(operator.base_name(), location))
}

/// Returns a result as a number, as the schema declares it: the only element of a tensor, read by the host.
fn as_number(result: &Tensor) -> Result<Value> {
    Ok(Value::Scalar(match result.dtype() {
        DType::Bool => Scalar::Bool(result.to_dtype(DType::U8)?.item::<u8>()? != 0),
        dtype if dtype.is_floating_point() => Scalar::F64(result.to_dtype(DType::F64)?.item()?),
        dtype if dtype.is_complex() => return result.to_dtype(DType::C128)?.item().map(Value::Complex),
        _ => Scalar::I64(result.to_dtype(DType::I64)?.item()?),
    }))
}
