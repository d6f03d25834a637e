//! Functions that record gradients: a forward pass whose tensors are separate from its graph of nodes.
//!
//! [`record_forward`] runs a function so that its nodes keep no tensors: what they save becomes further outputs of the call. So a
//! graph can be recorded from the call and replayed, and the outputs of each replay are the saved tensors of that replay. The nodes
//! stay as a [`ForwardPass`], which computes gradients for any such tensors: a function of tensors, of which a graph can be recorded,
//! too. To the program a call is one node ([`attach`]).
//!
//! ```text
//! forward graph    inputs ──▶ results, saved tensors
//! node             keeps the saved tensors, and frees them as any other node does
//! backward graph   saved tensors, gradients of results ──▶ gradients of inputs and leaves
//! ```

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashSet;
use thalweg_ir::Layout;
use thalweg_lock::Mutex;
use thalweg_runtime::{Error, Result, Stream, invalid, refuse, refuse_if};

use crate::autograd::{
    Backpropagation, Backward, BackwardOptions, Edge, Gradients, Saved, reachable, record_function_of_any,
    run_backward, saved_tensors_hooks, with_redirected_leaves,
};
use crate::storage::Storage;
use crate::tensor::Tensor;

const MODIFIED: &str =
    "one of the variables needed for gradient computation has been modified by an inplace operation";

thread_local! {
    /// The tensors that the nodes of the passes of this thread have saved, with the numbers of the passes.
    static SAVED: RefCell<Vec<(u64, Vec<Tensor>)>> = const { RefCell::new(Vec::new()) };
}

/// The tensors that gradients of a call flow to: some of its inputs, by their indices, and leaves that the function reads.
#[derive(Clone, Debug, Default)]
pub struct Differentiable {
    /// The inputs that require a gradient.
    pub inputs: Vec<usize>,
    /// The leaves that require a gradient.
    pub leaves: Vec<Tensor>,
    /// The tensors that stay where they are between calls, such as leaves and buffers. What shares memory with them is not an output.
    pub lasting: Vec<Tensor>,
}

/// The memory of a saved tensor.
enum Source {
    /// Memory that the call allocated: an output after the results, by its index among those.
    Output(usize),
    /// The memory of an input, with the layout of the saved tensor relative to the input's first element.
    Input { input: usize, layout: Layout },
    /// A lasting tensor.
    Lasting(Tensor),
}

/// A tensor that a node saves while a forward pass is recorded.
struct Entry {
    tensor: Tensor,
    version: u32,
}

impl Entry {
    /// Returns the tensor, unless it was written after it was saved.
    fn unchanged(&self) -> Result<Tensor> {
        refuse_if!(
            self.tensor.version() != self.version,
            "{MODIFIED}: the compiled function writes a tensor that a backward pass of its own needs. Hint: compute out of place"
        );
        Ok(self.tensor.clone())
    }
}

/// The nodes of a recorded call, without its tensors.
pub struct ForwardPass {
    number: u64,
    /// The stream on which the call was recorded.
    stream: Stream,
    /// The edges of the results; `None` for those without a gradient.
    results: Vec<Option<Edge>>,
    targets: Vec<Option<Edge>>,
    sources: Vec<Source>,
    /// The number of outputs after the results.
    saved_outputs: usize,
}

/// The function that computes the gradients of a pass from its saved tensors, and from gradients of its results.
pub type RunBackward =
    dyn Fn(&Arc<ForwardPass>, Vec<Tensor>, &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> + Send + Sync;

/// Runs a function of tensors, and returns its results followed by the tensors that its nodes save, with the nodes.
///
/// # Errors
/// Those of the function; [`Error::is_capture`] in a capture if a replay would not do what the function does: it runs a backward
/// pass, its gradients have hooks, or it keeps an input other than as a saved tensor.
pub fn record_forward(
    inputs: &[Tensor],
    differentiable: &Differentiable,
    function: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<(Vec<Tensor>, Arc<ForwardPass>)> {
    let mut given = inputs.to_vec();
    for &input in &differentiable.inputs {
        given[input] = inputs[input].detach().requires_grad_()?;
    }
    let of_inputs = differentiable.inputs.iter().map(|&input| given[input].clone());
    let leaves: Vec<Tensor> = of_inputs.chain(differentiable.leaves.iter().cloned()).collect();
    let entries = Arc::new(Mutex::new(Vec::<Entry>::new()));
    // The saved tensors that the call has written after they were saved.
    let written = Arc::new(OnceLock::<FxHashSet<usize>>::new());
    let number = next_number();
    let pack = {
        let entries = entries.clone();
        move |tensor: &Tensor| -> Result<usize> { Ok(place_of(&mut entries.lock(), tensor)) }
    };
    let unpack = {
        let (entries, written) = (entries.clone(), written.clone());
        move |&place: &usize| match entries.lock().get(place) {
            // The function runs a backward pass itself.
            Some(entry) => entry.unchanged(),
            None => saved_by(number, place, &written),
        }
    };
    let (outcome, accumulates) = with_redirected_leaves(&leaves, |targets| {
        let results = saved_tensors_hooks(pack, unpack, || function(&given))?;
        let edges = results.iter().map(Tensor::gradient_edge).collect::<Vec<_>>();
        Ok::<_, Error>((results, edges, targets.to_vec()))
    });
    let (results, edges, targets) = outcome?;
    if accumulates {
        return Err(Error::capture("it runs a backward pass, whose gradients a replay would not accumulate"));
    }
    let entries = std::mem::take(&mut *entries.lock());
    let changed =
        |(place, entry): (usize, &Entry)| (entry.tensor.version() != entry.version).then_some(place);
    let _ = written.set(entries.iter().enumerate().filter_map(changed).collect());
    let mut outputs: Vec<Tensor> = results.iter().map(Tensor::detach).collect();
    let stream = match leaves.first() {
        Some(leaf) => leaf.device().current_stream(),
        None => return Err(invalid!("a call that records gradients needs a tensor that requires one")),
    };
    if stream.is_capturing()? {
        check_results(&results, &edges)?;
        check_nodes(&edges, &targets)?;
    }
    let sources = sources_of(entries, inputs, &differentiable.lasting, &mut outputs)?;
    let saved_outputs = outputs.len() - results.len();
    let targets = targets.into_iter().map(Some).collect();
    let pass = ForwardPass { number, stream, results: edges, targets, sources, saved_outputs };
    Ok((outputs, Arc::new(pass)))
}

fn next_number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Returns the place of a saved tensor among the entries, which it joins if it is new.
fn place_of(entries: &mut Vec<Entry>, tensor: &Tensor) -> usize {
    let is_same = |entry: &Entry| {
        entry.tensor.shares_storage_with(tensor)
            && entry.tensor.layout() == tensor.layout()
            && entry.tensor.dtype() == tensor.dtype()
            && entry.version == tensor.version()
    };
    entries.iter().position(is_same).unwrap_or_else(|| {
        entries.push(Entry { tensor: tensor.clone(), version: tensor.version() });
        entries.len() - 1
    })
}

/// Returns a tensor that a node of a pass has saved.
fn saved_by(number: u64, place: usize, written: &OnceLock<FxHashSet<usize>>) -> Result<Tensor> {
    refuse_if!(
        written.get().is_some_and(|written| written.contains(&place)),
        "{MODIFIED}: the compiled function writes a tensor that its own backward pass needs. Hint: compute out of place"
    );
    let found = SAVED.with_borrow(|all| {
        let (_, saved) = all.iter().rev().find(|(of, _)| *of == number)?;
        saved.get(place).cloned()
    });
    found.ok_or_else(|| {
        invalid!("a saved tensor of a compiled function can be read in its backward pass only")
    })
}

/// Refuses results that a write in place would connect.
fn check_results(results: &[Tensor], edges: &[Option<Edge>]) -> Result<()> {
    for (second, result) in results.iter().enumerate() {
        let first = results[..second].iter().position(|other| other.shares_storage_with(result));
        if first.is_some_and(|first| edges[first].is_some() || edges[second].is_some()) {
            return Err(Error::capture("two of its results share memory, and gradients flow to them"));
        }
    }
    Ok(())
}

/// Refuses nodes whose backward functions run code of the program.
fn check_nodes(results: &[Option<Edge>], targets: &[Edge]) -> Result<()> {
    for node in reachable(results.iter().flatten().map(|edge| edge.node())) {
        if targets.iter().any(|target| Arc::ptr_eq(target.node(), &node)) {
            continue;
        }
        if node.is_watched() {
            return Err(Error::capture("hooks see its gradients, and a replay would not call them"));
        }
        if node.function.is_of_the_program() {
            let title = node.title();
            return Err(Error::capture(format!(
                "a replay would not run the program's own gradient, {title}"
            )));
        }
    }
    Ok(())
}

/// Finds the memory of each saved tensor. Those that the call allocated become outputs.
fn sources_of(
    entries: Vec<Entry>,
    inputs: &[Tensor],
    lasting: &[Tensor],
    outputs: &mut Vec<Tensor>,
) -> Result<Vec<Source>> {
    let first = outputs.len();
    let source = |Entry { tensor, .. }: Entry| -> Result<Source> {
        let is_seen = |input: &Tensor| input.shares_storage_with(&tensor) && input.dtype() == tensor.dtype();
        if let Some(input) = inputs.iter().position(is_seen) {
            let (layout, start) = (tensor.layout(), inputs[input].layout().offset());
            if let Some(offset) = layout.offset().checked_sub(start) {
                let layout = Layout::new(layout.shape(), layout.strides(), offset)?;
                return Ok(Source::Input { input, layout });
            }
        }
        if lasting.iter().any(|lasting| lasting.shares_storage_with(&tensor)) {
            return Ok(Source::Lasting(tensor));
        }
        outputs.push(tensor);
        Ok(Source::Output(outputs.len() - 1 - first))
    };
    entries.into_iter().map(source).collect()
}

/// Refuses, in a capture, a call that keeps its inputs: they are the graph's own tensors, which the next replay overwrites. `before`
/// are the numbers of holders of the inputs' memory before the call, [`holders`].
///
/// # Errors
/// [`Error::is_capture`] if an input has more holders than before.
pub fn check_kept(inputs: &[Tensor], before: &[usize]) -> Result<()> {
    let Some(first) = inputs.first() else { return Ok(()) };
    let is_kept = holders(inputs).iter().zip(before).any(|(now, before)| now > before);
    if is_kept && first.device().current_stream().is_capturing()? {
        return Err(Error::capture(
            "it keeps an argument for its backward pass other than by `save_for_backward`",
        ));
    }
    Ok(())
}

/// Returns the number of holders of the memory of each input.
pub fn holders(inputs: &[Tensor]) -> Vec<usize> {
    inputs.iter().map(|input| Storage::holders(input.storage())).collect()
}

impl ForwardPass {
    /// Returns the stream on which the call was recorded. Its gradients are computed there.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Computes the gradients of the differentiable inputs, and then of the leaves, from the saved tensors of a call and the
    /// gradients of its results.
    pub fn backward(&self, saved: Vec<Tensor>, gradients: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let roots = (self.results.iter().zip(gradients))
            .filter_map(|(edge, gradient)| Some((edge.clone()?, gradient.clone()?)))
            .collect();
        SAVED.with_borrow_mut(|all| all.push((self.number, saved)));
        let _ended = EndSaved;
        let options = BackwardOptions { retain_graph: true, create_graph: false };
        run_backward(roots, Backpropagation::Gradients(&self.targets), options)
    }

    /// Returns those of the saved tensors that differ between calls, followed by the gradients: the inputs of a backward graph.
    pub fn inputs_of_backward(&self, saved: Vec<Tensor>, gradients: &[Option<Tensor>]) -> Vec<Tensor> {
        let changing = saved.into_iter().zip(&self.sources);
        let changing = changing.filter(|(_, source)| !matches!(source, Source::Lasting(_)));
        changing.map(|(tensor, _)| tensor).chain(gradients.iter().flatten().cloned()).collect()
    }

    /// Computes gradients as [`backward`](Self::backward) does, from the inputs of a backward graph. `is_given` says which results
    /// have a gradient.
    pub fn backward_of(&self, inputs: &[Tensor], is_given: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let mut inputs = inputs.iter().cloned();
        let mut next = || inputs.next().ok_or_else(|| invalid!("a backward graph lacks an input"));
        let saved = |source: &Source| match source {
            Source::Lasting(tensor) => Ok(tensor.clone()),
            Source::Output(_) | Source::Input { .. } => next(),
        };
        let saved = self.sources.iter().map(saved).collect::<Result<Vec<_>>>()?;
        let gradients = is_given.iter().map(|&is_given| is_given.then(&mut next).transpose());
        let gradients = gradients.collect::<Result<Vec<_>>>()?;
        self.backward(saved, &gradients)
    }
}

/// A guard: dropping it forgets the saved tensors of the innermost pass.
struct EndSaved;

impl Drop for EndSaved {
    fn drop(&mut self) {
        let _ended = SAVED.with_borrow_mut(Vec::pop);
    }
}

/// Makes the results of a call part of the caller's graph, as those of one node. `outputs` are the results and the saved tensors of
/// this call or replay, and `given` the caller's inputs. The call's `pending` is dropped once the saved tensors are freed.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the outputs are not those of the pass.
pub fn attach(
    pass: &Arc<ForwardPass>,
    given: &[Tensor],
    differentiable: &Differentiable,
    mut outputs: Vec<Tensor>,
    run: Arc<RunBackward>,
    pending: Arc<()>,
) -> Result<Vec<Tensor>> {
    let results = pass.results.len();
    if outputs.len() != results + pass.saved_outputs {
        refuse!("a compiled function saved other tensors than at the call before");
    }
    let values = outputs.split_off(results);
    let saved = pass.sources.iter().map(|source| match source {
        Source::Output(place) => Saved::new(&values[*place]),
        Source::Input { input, layout } => Saved::new(&of_input(&given[*input], layout)?),
        Source::Lasting(tensor) => Saved::new(tensor),
    });
    let saved = saved.collect::<Result<Vec<_>>>()?;
    let node = CompiledFunction { pass: pass.clone(), saved, run, pending: Mutex::new(Some(pending)) };
    let inputs = differentiable.inputs.iter().map(|&input| &given[input]);
    let inputs: Vec<&Tensor> = inputs.chain(&differentiable.leaves).collect();
    let has_gradient = |(result, edge): (&Tensor, &Option<Edge>)| edge.is_some().then(|| result.clone());
    let recorded = outputs.iter().zip(&pass.results).map(has_gradient).collect();
    let recorded = record_function_of_any(Box::new(node), &inputs, recorded);
    Ok(recorded.into_iter().zip(outputs).map(|(recorded, plain)| recorded.unwrap_or(plain)).collect())
}

/// Returns a view of the memory of a caller's input.
fn of_input(given: &Tensor, layout: &Layout) -> Result<Tensor> {
    let offset = given.layout().offset() + layout.offset();
    Ok(given.detach().with_layout(Layout::new(layout.shape(), layout.strides(), offset)?))
}

/// The node of a call.
struct CompiledFunction {
    pass: Arc<ForwardPass>,
    saved: Vec<Saved>,
    run: Arc<RunBackward>,
    /// A value that is held as long as a backward pass can follow.
    pending: Mutex<Option<Arc<()>>>,
}

impl Backward for CompiledFunction {
    fn name(&self) -> &'static str {
        "compiled_function"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let saved = self.saved.iter().map(Saved::get).collect::<Result<Vec<_>>>()?;
        (self.run)(&self.pass, saved, gradients).map(Gradients::from)
    }

    /// Returns `false`: a second derivative through a call is an error.
    fn is_recorded(&self) -> bool {
        false
    }

    fn release(&self) {
        self.saved.iter().for_each(Saved::release);
        let _dropped = self.pending.lock().take();
    }
}
