//! The tuning state of the process.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustc_hash::FxHashMap;
use thalweg_driver::{Label, ReductionSchemes};
use thalweg_kernels::matmul::Matmul;
use thalweg_lock::{Mutex, MutexGuard, RwLock};

use super::results::{Entry, PYTORCH_VERSION, Results, Validators};
use super::settings::{Effective, Settings, Variables, results_file, untuned_file};
use super::signature::{Shape, Signature, Solution};
use super::trial::{Timed, Trial, all_close, file_error};
use super::{OfflineOutcome, TuningResult};
use crate::products::Precision;
use crate::strips::Operands;
use thalweg_runtime::{Device, Error, Result, Stream};

/// The key of a decision: a device, a product, and the reductions that it allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Question {
    device: u64,
    shape: Shape,
    reductions: ReductionSchemes,
}

#[derive(Debug, Default)]
struct Inner {
    settings: Settings,
    results: Results,
    /// The devices whose file was read.
    read: HashSet<u64>,
    /// The products that are listed in the files of untuned products.
    untuned: HashSet<(PathBuf, Signature)>,
}

/// The tuning state. There is one per process, created at first use.
#[derive(Debug)]
pub(super) struct State {
    pub(super) variables: Variables,
    pub(super) enabled: AtomicBool,
    pub(super) tuning: AtomicBool,
    pub(super) record_untuned: AtomicBool,
    pub(super) wildcards: AtomicBool,
    /// The version of PyTorch that results are for; `None` for Thalweg.
    pytorch: RwLock<Option<String>>,
    inner: Mutex<Inner>,
    decisions: RwLock<FxHashMap<Question, Solution>>,
    /// Held by the thread that tunes.
    turn: Mutex<()>,
}

/// Returns the state of the process.
#[inline]
pub(super) fn state() -> &'static State {
    static STATE: OnceLock<State> = OnceLock::new();
    STATE.get_or_init(|| State::new(Variables::read(|name| std::env::var(name).ok())))
}

/// Returns the solution for a product of a stream, possibly after tuning it.
pub(crate) fn solution_of(
    stream: &Stream,
    product: &Matmul,
    precision: Precision,
    operands: &Operands,
    label: Label,
) -> Result<Solution> {
    state().solution_of(stream, product, precision, operands, label)
}

/// Removes a result that the library refuses to run.
pub(crate) fn forget_refused(
    device: &Device,
    product: &Matmul,
    precision: Precision,
    operands: &Operands,
    why: &Error,
) {
    let shape = Shape::of(product, operands, precision);
    let question = Question { device: device.number(), shape, reductions: precision.1 };
    let state = state();
    if let Some(signature) = shape.signature() {
        let kind = state.validators(device);
        state.inner().results.remove(&kind, &signature);
        state.log(1, &format!("{signature}: the result is left out: {why}"));
    }
    state.decide(question, Solution::Default);
}

impl State {
    fn new(variables: Variables) -> Self {
        Self {
            enabled: AtomicBool::new(variables.enabled),
            tuning: AtomicBool::new(variables.tuning.unwrap_or(true)),
            record_untuned: AtomicBool::new(variables.record_untuned.unwrap_or(false)),
            wildcards: AtomicBool::new(variables.wildcard_fallback.unwrap_or(false)),
            variables,
            pytorch: RwLock::default(),
            inner: Mutex::default(),
            decisions: RwLock::default(),
            turn: Mutex::new(()),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Changes something that decisions depend on.
    pub(super) fn change(&self, change: impl FnOnce(&Self)) {
        change(self);
        self.decisions.write().clear();
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.inner().settings);
    }

    pub(super) fn effective(&self) -> Effective {
        Effective::of(&self.variables, &self.inner().settings)
    }

    pub(super) fn read_files_again(&self) {
        self.change(|state| state.inner().read.clear());
    }

    pub(super) fn results_file(&self, device: &Device) -> PathBuf {
        results_file(&self.variables, &self.inner().settings, device.index())
    }

    /// Sets the version of PyTorch that results are for.
    pub(super) fn set_pytorch_version(&self, version: Option<&str>) {
        *self.pytorch.write() = version.map(str::to_owned);
        self.read_files_again();
    }

    pub(super) fn pytorch_version(&self) -> Option<String> {
        self.pytorch.read().clone()
    }

    /// Returns the values that results of a device depend on. It takes the lock of the version, so callers must not hold it.
    pub(super) fn validators(&self, device: &Device) -> Validators {
        let properties = device.properties();
        let pair = |key: &str, value: String| (key.to_owned(), value);
        vec![
            match self.pytorch_version() {
                Some(version) => pair(PYTORCH_VERSION, version),
                None => pair("THALWEG_VERSION", env!("CARGO_PKG_VERSION").to_owned()),
            },
            pair("CUBLASLT_VERSION", properties.libraries.matmul_version.to_string()),
            pair("CUDA_DEVICE", format!("{}:{}", properties.compute_capability, properties.name)),
        ]
    }

    pub(super) fn results_of(&self, device: &Device) -> Vec<TuningResult> {
        let kind = self.validators(device);
        let inner = self.inner();
        inner.results.of(&kind).map(|(signature, entry)| result_of(signature, entry)).collect()
    }

    fn decide(&self, question: Question, solution: Solution) {
        self.decisions.write().insert(question, solution);
    }

    fn solution_of(
        &self,
        stream: &Stream,
        product: &Matmul,
        precision: Precision,
        operands: &Operands,
        label: Label,
    ) -> Result<Solution> {
        let device = stream.device();
        let shape = Shape::of(product, operands, precision);
        let question = Question { device: device.number(), shape, reductions: precision.1 };
        let known = self.decisions.read().get(&question).copied();
        if let Some(solution) = known {
            return Ok(solution);
        }
        let is_empty = product.m == 0 || product.n == 0 || product.k == 0 || product.batch == 0;
        let Some(signature) = shape.signature().filter(|_| !device.is_meta() && !is_empty) else {
            self.decide(question, Solution::Default);
            return Ok(Solution::Default);
        };
        self.read_once(device);
        if let Some(entry) = self.find(device, &signature) {
            self.decide(question, entry.solution);
            return Ok(entry.solution);
        }
        if !self.tuning.load(Ordering::Relaxed) {
            if self.record_untuned.load(Ordering::Relaxed) {
                self.record(device, &signature);
            }
            self.decide(question, Solution::Default);
            return Ok(Solution::Default);
        }
        // A stream whose state is unknown is treated as capturing; the query may be forbidden by another stream's capture.
        if stream.is_capturing().unwrap_or(true) {
            return Ok(Solution::Default);
        }
        let Some(_turn) = self.turn.try_lock() else { return Ok(Solution::Default) };
        let tuned = self.tune(stream, shape, precision, Some(operands), &signature, label)?;
        let solution = tuned.map_or(Solution::Default, |(entry, _)| entry.solution);
        self.decide(question, solution);
        Ok(solution)
    }

    fn find(&self, device: &Device, signature: &Signature) -> Option<Entry> {
        let wildcards = self.wildcards.load(Ordering::Relaxed);
        let kind = self.validators(device);
        self.inner().results.find(&kind, signature, wildcards)
    }

    /// Tunes a product and keeps the result; also returns the default's time in milliseconds. `None` if there is not enough
    /// memory.
    fn tune(
        &self,
        stream: &Stream,
        shape: Shape,
        precision: Precision,
        operands: Option<&Operands>,
        signature: &Signature,
        label: Label,
    ) -> Result<Option<(Entry, f64)>> {
        let device = stream.device();
        let settings = self.effective();
        let rotating = settings.rotating_bytes(device.properties().l2_cache_bytes);
        let Some(mut trial) = Trial::new(stream, shape, precision, operands, rotating, label)? else {
            self.log(1, &format!("{signature}: not tuned, for lack of memory for a copy of the operands"));
            return Ok(None);
        };
        let reference = match settings.numerical_check {
            Some(tolerances) => Some((trial.result(Solution::Default)?, tolerances)),
            None => None,
        };
        let mut best: Option<(Solution, f32)> = None;
        let mut default = 0.0;
        for solution in trial.candidates(settings.requested_algorithms, self.pytorch_version().is_none())? {
            let timed = trial.measure(solution, best.map(|(_, time)| time), &settings)?;
            self.log(3, &format!("{signature}: {solution}: {timed:?}"));
            let Timed::Median(time) = timed else { continue };
            if solution == Solution::Default {
                default = f64::from(time);
            }
            if best.is_some_and(|(_, best)| time >= best) {
                continue;
            }
            if let Some((expected, tolerances)) = &reference
                && !all_close(&trial.result(solution)?, expected, *tolerances)
            {
                self.log(2, &format!("{signature}: {solution} is left out: its result is too far off"));
                continue;
            }
            best = Some((solution, time));
        }
        let (solution, time) = best.unwrap_or((Solution::Default, 0.0));
        let entry = Entry { solution, milliseconds: f64::from(time) };
        self.log(2, &format!("{signature}: {solution}, {time:.4} ms, the default {default:.4} ms"));
        self.keep(device, signature, entry);
        Ok(Some((entry, default)))
    }

    /// Keeps a result, in memory and in the device's file.
    fn keep(&self, device: &Device, signature: &Signature, entry: Entry) {
        let (path, kind) = (self.results_file(device), self.validators(device));
        let mut inner = self.inner();
        inner.results.insert(&kind, signature.clone(), entry);
        let written = inner.results.append(&path, &kind, signature, &entry);
        drop(inner);
        if let Err(error) = written {
            self.log(0, &format!("{}: a result was not written: {error}", path.display()));
        }
    }

    /// Appends a product to the file of untuned products, once.
    fn record(&self, device: &Device, signature: &Signature) {
        let path = untuned_file(&self.variables, device.index());
        let mut inner = self.inner();
        if !inner.untuned.iter().any(|(known, _)| *known == path)
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            inner.untuned.extend(signatures_of(&text).map(|signature| (path.clone(), signature)));
        }
        if !inner.untuned.insert((path.clone(), signature.clone())) {
            return;
        }
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{signature}\n").as_bytes()));
        drop(inner);
        if let Err(error) = written {
            self.log(0, &format!("{}: a product was not recorded: {error}", path.display()));
        }
    }

    /// Reads the device's file, if it exists and was not read yet.
    fn read_once(&self, device: &Device) {
        if !self.inner().read.insert(device.number()) {
            return;
        }
        let path = self.results_file(device);
        if path.exists()
            && let Err(error) = self.read_file(device, Some(&path))
        {
            self.log(0, &error.to_string());
        }
    }

    pub(super) fn read_file(&self, device: &Device, name: Option<&Path>) -> Result<bool> {
        let path = name.map_or_else(|| self.results_file(device), Path::to_owned);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| file_error(&path, "the results cannot be read", &error))?;
        let kind = self.validators(device);
        let taken = self.inner().results.read(&text, &kind);
        self.change(|state| {
            state.inner().read.insert(device.number());
        });
        self.log(
            1,
            &format!(
                "{}: {} results; {} of another device or library, and {} lines that cannot be read, are left out",
                path.display(),
                taken.results,
                taken.external,
                taken.unread
            ),
        );
        Ok(taken.results > 0 || taken.external + taken.unread == 0)
    }

    pub(super) fn write_file(&self, device: &Device, name: Option<&Path>) -> Result<()> {
        let path = name.map_or_else(|| self.results_file(device), Path::to_owned);
        let written = self.inner().results.write(&path);
        written.map_err(|error| file_error(&path, "the results cannot be written", &error))
    }

    pub(super) fn tune_file(
        &self,
        device: &Device,
        name: &Path,
        progress: &mut dyn FnMut(&OfflineOutcome, usize, usize),
    ) -> Result<()> {
        let text = std::fs::read_to_string(name)
            .map_err(|error| file_error(name, "the products cannot be read", &error))?;
        let mut seen = HashSet::new();
        let products: Vec<Signature> =
            signatures_of(&text).filter(|signature| seen.insert(signature.clone())).collect();
        self.read_once(device);
        let _turn = self.turn.lock();
        for (number, signature) in products.iter().enumerate() {
            let outcome = self.tune_offline(device, signature)?;
            progress(&outcome, number + 1, products.len());
        }
        self.change(|_| {});
        Ok(())
    }

    fn tune_offline(&self, device: &Device, signature: &Signature) -> Result<OfflineOutcome> {
        if let Some(entry) = self.find(device, signature) {
            return Ok(OfflineOutcome::Known(result_of(signature, &entry)));
        }
        let skipped = |why: String| Ok(OfflineOutcome::Skipped(signature.to_string(), why));
        let shape = match Shape::parse(signature) {
            Ok(shape) => shape,
            Err(why) => return skipped(why.to_string()),
        };
        let (_, reductions) = crate::backends::precision_of(&shape.product);
        let stream = device.current_stream();
        let label = Label::here("tune_gemm_in_file");
        match self.tune(&stream, shape, (shape.compute, reductions), None, signature, label) {
            Ok(Some((entry, default))) => Ok(OfflineOutcome::Tuned(result_of(signature, &entry), default)),
            Ok(None) => skipped("there is no memory for its operands".to_owned()),
            Err(error) if error.is_device_lost() || error.is_asynchronous() => Err(error),
            Err(error) => skipped(error.to_string()),
        }
    }

    /// Reports a message, if the verbosity is at least `level`.
    fn log(&self, level: u32, text: &str) {
        if self.variables.verbose < level {
            return;
        }
        match self.variables.verbose_filename.as_deref() {
            None | Some("err") => eprintln!("TunableOp: {text}"),
            Some("out") => println!("TunableOp: {text}"),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                // A report that cannot be written is not an error.
                let _ = file.and_then(|mut file| writeln!(file, "TunableOp: {text}"));
            }
        }
    }
}

fn result_of(signature: &Signature, entry: &Entry) -> TuningResult {
    TuningResult {
        operator: signature.operator.clone(),
        parameters: signature.parameters.clone(),
        solution: entry.solution.to_string(),
        milliseconds: entry.milliseconds,
    }
}

/// Returns the products named at the beginnings of a file's lines.
fn signatures_of(text: &str) -> impl Iterator<Item = Signature> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(',');
        let (operator, parameters) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        operator.contains("TunableOp_").then_some(Signature { operator, parameters })
    })
}
