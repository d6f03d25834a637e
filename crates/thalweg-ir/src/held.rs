//! [`Held`]: the values that a thread keeps of its points of a row from one pass to the next.
//!
//! A row kernel makes one pass over its points per set of reductions that do not depend on each other, and a last pass for
//! outputs at points. If the points fit into the registers of the row's threads, later passes reuse the values that a pass
//! computed, and nothing is read or computed twice. A value that costs only a few additions is computed again from the loaded
//! element, which takes fewer registers.
//!
//! A block of more than [`MOST_THREADS_WITH_VALUES`] threads has too few registers for that. It keeps only elements, of as many
//! inputs as fit into [`BYTES_OF_A_THREAD`]. Each pass loads the elements of the other inputs again, usually from the
//! second-level cache.
//!
//! This module and `online` use each other: both load points that a single value of a row picks separately.

use crate::body::{Binary, Node, OutputPlace, Unary};
use crate::online::{Picked, is_one_value, picked};
use crate::{Body, Class, ExprId};

/// The most threads of a block that keep computed values. A multiprocessor has 65,536 registers, so that each thread of two blocks of
/// 512 threads has 64. If larger blocks kept values, only one block would fit, and no work would be in progress while its threads
/// wait for each other.
pub const MOST_THREADS_WITH_VALUES: u32 = 256;

/// The bytes of registers per thread that keep elements of a row. As much again is left for computing with them.
pub const BYTES_OF_A_THREAD: usize = 128;

/// The most bytes of registers that a thread uses to keep everything that later passes need: in two blocks of
/// [`MOST_THREADS_WITH_VALUES`] threads, a thread has 512 bytes.
pub const MOST_BYTES_OF_A_THREAD: usize = 384;

/// The values that are read, kept and used in each pass over the points of a row. See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The reductions of each pass.
    pub passes: Vec<Vec<usize>>,
    /// For each reduction, the single point that contributes a value to it, if there is one.
    pub picks: Vec<Option<Picked>>,
    /// The values that each pass computes at points, in the order of `passes`; then the values of the outputs at points.
    pub roots: Vec<Vec<ExprId>>,
    /// The inputs whose elements each pass needs.
    pub loads: Vec<Vec<usize>>,
    /// The values of earlier passes that each pass uses.
    pub uses: Vec<Vec<usize>>,
    /// For each expression, the pass that computes it, if a later pass uses it.
    pub made_in: Vec<Option<usize>>,
    /// The inputs whose elements are loaded for the whole row at once: for the first pass, which benefits from many loads in
    /// flight, or because several passes need them.
    pub kept: Vec<bool>,
}

impl Held {
    /// Returns whether a thread keeps elements or values from one pass to another.
    pub fn keeps(&self) -> bool {
        self.kept.contains(&true) || self.made_in.iter().any(Option::is_some)
    }

    /// Plans a body whose repeated inputs `class` lists. `values` states whether computed values are kept at all. Returns `None`
    /// if a row output or the report depends on single points.
    pub fn of(body: &Body, class: &Class, values: bool) -> Option<Self> {
        let at_points = body.point_dependent(|input| !class.repeats(input));
        let of_rows = body.outputs.iter().filter(|output| output.place == OutputPlace::Row);
        let report = body.report.into_iter().flat_map(|report| report.operands());
        if of_rows.flat_map(|output| output.operands()).chain(report).any(|id| at_points[id.index()]) {
            return None;
        }
        let passes = passes(body);
        let picks: Vec<Option<Picked>> =
            (0..body.reductions.len()).map(|number| picked(body, &at_points, number)).collect();
        let is_combined =
            |number: &usize| picks[*number].is_none() && !is_one_value(body, &at_points, *number);
        let value = |number: usize| body.reductions[number].value;
        let mut roots: Vec<Vec<ExprId>> =
            passes.iter().map(|pass| pass.iter().copied().filter(is_combined).map(value).collect()).collect();
        let written = body.outputs.iter().filter(|output| output.place == OutputPlace::Point);
        roots.push(written.map(|output| output.value).collect());
        let mut computed_in: Vec<Option<usize>> = vec![None; body.nodes.len()];
        let mut made_in = computed_in.clone();
        let (mut loads, mut uses) = (Vec::new(), Vec::new());
        for (pass, roots) in roots.iter().enumerate() {
            let mut needed = vec![false; body.nodes.len()];
            roots.iter().for_each(|root| needed[root.index()] = true);
            let (mut loaded, mut used) = (Vec::new(), Vec::new());
            for index in (0..body.nodes.len()).rev().filter(|&index| at_points[index]) {
                if !needed[index] {
                    continue;
                }
                if let Node::Load { input } = body.nodes[index] {
                    loaded.push(usize::from(input));
                }
                match computed_in[index] {
                    Some(earlier) if values && !is_cheap(body, &at_points, index) => {
                        made_in[index] = Some(earlier);
                        used.push(index);
                        continue;
                    }
                    _ => computed_in[index] = computed_in[index].or(Some(pass)),
                }
                body.nodes[index].operands().for_each(|operand| needed[operand.index()] = true);
            }
            loaded.sort_unstable();
            loads.push(loaded);
            uses.push(used);
        }
        let mut held = Self { passes, picks, roots, loads, uses, made_in, kept: Vec::new() };
        held.kept = match class.streamed {
            // Each pass reads the shared memory.
            Some(_) => vec![false; body.inputs.len()],
            None => held.kept_inputs(body, class),
        };
        Some(held)
    }

    /// Returns the inputs that a thread of this class keeps; for a class that is not planned yet, all inputs that are worth keeping.
    fn kept_inputs(&self, body: &Body, class: &Class) -> Vec<bool> {
        let points = usize::from(class.held - class.shared) * usize::from(class.vector);
        let is_large = class.held > 0 && class.threads_of_a_row() > MOST_THREADS_WITH_VALUES;
        let mut room = if is_large { BYTES_OF_A_THREAD } else { usize::MAX };
        let inputs = 0..body.inputs.len();
        inputs
            .map(|input| {
                let bytes = points * bytes_of_an_element(body, input, class.vector);
                let is_worth_it =
                    self.pass_range(input).is_some_and(|(first, last)| first == 0 || first < last);
                let is_kept = is_worth_it && bytes <= room;
                room -= if is_kept { bytes.min(room) } else { 0 };
                is_kept
            })
            .collect()
    }

    /// Returns the first and the last pass that need an input's elements.
    pub fn pass_range(&self, input: usize) -> Option<(usize, usize)> {
        let needs = |loads: &Vec<usize>| loads.contains(&input);
        Some((self.loads.iter().position(needs)?, self.loads.iter().rposition(needs)?))
    }

    /// Returns the picked reductions whose position is known from this pass on.
    pub(crate) fn places_of<'h>(
        &'h self,
        body: &'h Body,
        pass: usize,
    ) -> impl Iterator<Item = (usize, Picked)> + 'h {
        let pass_of = |reduction| self.passes.iter().position(|pass| pass.contains(&reduction)).unwrap_or(0);
        let known_in = move |place| reduced_by(body, place).map(pass_of).max().unwrap_or(0);
        let picks = self.picks.iter().enumerate().filter_map(|(number, picked)| Some((number, (*picked)?)));
        picks.filter(move |(_, picked)| known_in(picked.place) == pass)
    }

    /// Returns whether threads combine values of their points.
    pub fn combines(&self) -> bool {
        self.roots[..self.passes.len()].iter().any(|roots| !roots.is_empty())
    }

    /// Returns the most bytes of registers that a point takes between two passes, or while elements are loaded. With a `vector`
    /// of 1, each element takes a register.
    pub fn bytes_of_a_point(&self, body: &Body, vector: u8) -> usize {
        let of_input = |&input: &usize| bytes_of_an_element(body, input, vector);
        let first: usize = self.loads[0].iter().filter(|&&input| self.kept[input]).map(of_input).sum();
        let between = (1..self.roots.len()).map(|pass| {
            let inputs = (0..body.inputs.len()).filter(|&input| {
                self.kept[input]
                    && self.pass_range(input).is_some_and(|(first, last)| first < pass && pass <= last)
            });
            let inputs: usize = inputs.map(|input| of_input(&input)).sum();
            let values = self.made_in.iter().enumerate().filter(|(index, made)| {
                made.is_some_and(|made| made < pass)
                    && self.uses[pass..].iter().any(|used| used.contains(index))
            });
            inputs + values.map(|(index, _)| body.dtypes[index].size_bytes().max(4)).sum::<usize>()
        });
        between.chain([first]).max().unwrap_or(0).max(1)
    }
}

/// Returns the bytes of registers that an element of an input takes.
fn bytes_of_an_element(body: &Body, input: usize, vector: u8) -> usize {
    let bytes = body.inputs[input].dtype.size_bytes();
    if vector == 1 { bytes.max(4) } else { bytes }
}

/// The most operations for which a value is computed again instead of being kept in a register: with fewer registers, more rows are
/// in progress.
const CHEAP: usize = 4;

/// Returns whether a value follows from elements, coordinates and values of the row by few operations of one instruction each.
fn is_cheap(body: &Body, at_points: &[bool], index: usize) -> bool {
    after(body, at_points, index, CHEAP).is_some()
}

/// Returns how many of `left` operations remain after computing a value; `None` if they are too few.
fn after(body: &Body, at_points: &[bool], index: usize, left: usize) -> Option<usize> {
    let node = &body.nodes[index];
    let cost = match node {
        _ if !at_points[index] => return Some(left),
        Node::Load { .. } | Node::Index(_) | Node::Detach(_) => return Some(left),
        Node::Cast(_) => 0,
        Node::Unary(Unary::Exp, _) if body.has_fast_exponentials() => 2,
        Node::Fma(..) | Node::Unary(Unary::Neg | Unary::Abs, _) => 1,
        Node::Binary(Binary::Add | Binary::Sub | Binary::Mul, ..) => 1,
        _ => return None,
    };
    // Integers of 64 bits take several instructions.
    let is_one = cost == 0 || body.dtypes[index].is_floating_point();
    let left = left.checked_sub(cost).filter(|_| is_one)?;
    node.operands().try_fold(left, |left, operand| after(body, at_points, operand.index(), left))
}

/// Returns the reductions by passes: each is in the first pass after all results that it needs.
pub(crate) fn passes(body: &Body) -> Vec<Vec<usize>> {
    let mut passes: Vec<Vec<usize>> = Vec::new();
    let mut pass_of: Vec<usize> = Vec::with_capacity(body.reductions.len());
    for reduction in &body.reductions {
        let pass = reduced_by(body, reduction.value).map(|earlier| pass_of[earlier] + 1).max().unwrap_or(0);
        passes.resize_with(passes.len().max(pass + 1), Vec::new);
        passes[pass].push(pass_of.len());
        pass_of.push(pass);
    }
    passes
}

/// Returns the reductions whose results a value needs.
pub(crate) fn reduced_by(body: &Body, root: ExprId) -> impl Iterator<Item = usize> {
    let mut needed = vec![false; body.nodes.len()];
    needed[root.index()] = true;
    for index in (0..body.nodes.len()).rev() {
        if needed[index] {
            body.nodes[index].operands().for_each(|operand| needed[operand.index()] = true);
        }
    }
    body.nodes.iter().zip(needed).filter_map(|(node, needed)| match node {
        Node::Reduced { reduction } if needed => Some(usize::from(*reduction)),
        _ => None,
    })
}
