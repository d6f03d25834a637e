//! Fusion of two loops: when it is allowed, when it is not slower, and the loop that results.
//!
//! A loop that reads what another one writes, or what it reads, is fused with it if
//!
//! - one iteration space embeds in the other, of which it has all points, or, in a loop that combines, all rows
//!   (the result of rows is then read at every point, or by what computes with the results of rows). A loop of few points that is
//!   cheap may be repeated at every point of a larger one, if nothing else reads its results;
//! - every element that the second loop reads from the first is the one that the first writes at the same point, and a loop that
//!   writes over what the other reads does so at the same point;
//! - each sum keeps the order of its lanes (a kernel's [`Class`] decides it), and exponentials their accuracy;
//! - the kernel keeps its form: vectors are not narrower than those of both, unless one is a copy in another order, rows that stayed in
//!   registers still do, and the number of operands and expressions is bounded.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_ir::compose::{Part, Source, compose};
use thalweg_ir::{
    Body, Class, DType, Dimension, ExprId, Input, InputKind, Node as Expression, OutputPlace, ReduceOp, Unary,
};
use thalweg_ops::Placement;
use thalweg_ops::lower::{LoopLaunch, Step};

use crate::embedding::{Embedding, Numbers};
use crate::loops::{Loop, canonical, is_cheap, strides};
use crate::machine::Machine;
use crate::segment::{Memory, Operand, Touched, dtypes};

/// The reason why two loops are not fused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// One of the loops scatters, reports an index, or has rows without combining; or one gathers where the other reads coordinates.
    Kind,
    /// Neither space embeds in the other.
    Spaces,
    /// An element is read at a different point than it is written.
    Places,
    /// The smaller loop would be computed again at every point, which is not cheap or leaves nowhere to write its results.
    Repeated,
    /// A sum would combine in another order.
    Order,
    /// An exponential would be more accurate, or less.
    Exponentials,
    /// The rows are few and long, and combined by several launches.
    Staged,
    /// The kernel would lose its form: vectors, or rows in registers.
    Form,
    /// The kernel would have too many operands or expressions.
    Size,
    /// Another loop must run between the two.
    Between,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kind => "a loop of this kind is not fused",
            Self::Spaces => "their iteration spaces differ",
            Self::Places => "an element is read at another point than it is written",
            Self::Repeated => "one would be computed again at every point of the other",
            Self::Order => "a sum would be combined in another order",
            Self::Exponentials => "exponentials would have another accuracy",
            Self::Staged => "few long rows are combined by several launches",
            Self::Form => "the kernel would have narrower vectors, or rows that do not stay in registers",
            Self::Size => "the kernel would have too many operands or expressions",
            Self::Between => "another loop must run between them",
        })
    }
}

/// The most inputs, outputs and expressions of a fused loop.
const MOST_INPUTS: usize = 14;
const MOST_OUTPUTS: usize = 8;
const MOST_NODES: usize = 192;

/// The factor by which a fused loop may access more bytes far apart than a loop that already does so.
const MOST_APART: usize = 2;

/// Fuses two loops of which the second one comes later. `is_kept` says whether anything else reads an output of the first.
///
/// # Errors
/// The reason why they are not fused.
pub(crate) fn fuse(
    first: &Loop,
    second: &Loop,
    is_kept: impl Fn(usize) -> bool,
    memories: &[Memory],
    machine: &Machine,
) -> Result<Loop, Refusal> {
    let bodies = || [first, second].into_iter().map(|of| &of.launch.body);
    let reads_both = bodies().any(|body| body.has_offsets()) && bodies().any(|body| body.uses_coordinates());
    if !first.is_fusable || !second.is_fusable || reads_both {
        return Err(Refusal::Kind);
    }
    let host_is_first = first.combines() || !second.combines() && first.points() > second.points();
    let (host, guest) = if host_is_first { (first, second) } else { (second, first) };
    if host.combines() && host.launch.inner.iter().all(|&extent| extent == 1) {
        return Err(Refusal::Spaces);
    }
    let mut refusal = Refusal::Spaces;
    for embedding in embeddings(host, guest) {
        let pair = Pair { first, second, host_is_first, embedding };
        match pair.fused(&is_kept, memories).and_then(|fused| accepted(fused, [first, second], machine)) {
            Ok(fused) => return Ok(fused),
            Err(reason) => refusal = reason,
        }
    }
    Err(refusal)
}

/// Returns the ways in which a guest's space embeds in a host's, by the operands that both have.
fn embeddings(host: &Loop, guest: &Loop) -> SmallVec<[Embedding; 2]> {
    let mut found: SmallVec<[Embedding; 2]> = SmallVec::new();
    for of_host in 0..host.operand_count() {
        for of_guest in 0..guest.operand_count() {
            if host.operand(of_host) != guest.operand(of_guest) {
                continue;
            }
            let (Some(hosts), Some(guests)) = (host.dims(of_host), guest.dims(of_guest)) else { continue };
            let embedding = Embedding::new(&hosts, host.launch.rows.len(), &guests);
            found.extend(embedding.filter(|embedding| !found.contains(embedding)));
        }
    }
    found
}

/// Two loops with a common space.
struct Pair<'a> {
    first: &'a Loop,
    second: &'a Loop,
    host_is_first: bool,
    embedding: Embedding,
}

/// The points of a host's space that a guest has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Points,
    Rows,
    /// Some points only, so that the first loop would be computed again at the others.
    Repeated,
}

/// The inputs of two loops, together.
struct Read<'p> {
    inputs: Vec<&'p Placed>,
    /// The dtypes and kinds of the inputs.
    described: Vec<Input>,
    /// The source of each input of the second loop.
    sources: Vec<Source>,
}

/// An operand of one of two loops, over the common space.
struct Placed {
    operand: Operand,
    dtype: DType,
    /// The strides over the common space; `None` if it is gathered from.
    strides: Option<SmallVec<[u64; 8]>>,
    placement: Placement,
    touched: Touched,
}

impl Placed {
    /// Returns whether both operands show the same elements at the same points.
    fn is_same(&self, other: &Self, extents: &[u64]) -> bool {
        let (Some(own), Some(others)) = (&self.strides, &other.strides) else { return false };
        let mut dimensions = extents.iter().zip(own.iter().zip(others));
        self.operand == other.operand
            && self.dtype == other.dtype
            && dimensions.all(|(&extent, (own, other))| extent == 1 || own == other)
    }
}

impl Pair<'_> {
    fn level(&self) -> Level {
        let (rows, all) = (self.embedding.rows, self.embedding.extents.len());
        if self.embedding.covers(0..all) {
            Level::Points
        } else if self.has_inner() && self.embedding.covers(0..rows) && !self.embedding.meets(rows..all) {
            Level::Rows
        } else {
            Level::Repeated
        }
    }

    fn has_inner(&self) -> bool {
        let host = if self.host_is_first { self.first } else { self.second };
        !host.launch.inner.is_empty()
    }

    /// Returns whether one of the two loops is the host.
    fn is_host(&self, is_first: bool) -> bool {
        self.host_is_first == is_first
    }

    fn divided(&self, is_first: bool) -> &[Numbers] {
        if self.is_host(is_first) { &self.embedding.host } else { &self.embedding.guest }
    }

    /// Returns the place at which an output is written in the common space.
    fn place(&self, is_first: bool, former: OutputPlace) -> OutputPlace {
        match self.level() {
            _ if self.is_host(is_first) || !self.has_inner() => former,
            Level::Points if !self.loop_of(is_first).combines() => OutputPlace::Point,
            Level::Points => former,
            Level::Rows | Level::Repeated => OutputPlace::Row,
        }
    }

    fn loop_of(&self, is_first: bool) -> &Loop {
        if is_first { self.first } else { self.second }
    }

    /// Returns an operand of a loop over the common space.
    fn placed(&self, is_first: bool, number: usize) -> Placed {
        let of = self.loop_of(is_first);
        let body = &of.launch.body;
        let output = number.checked_sub(body.inputs.len());
        let dtype = output.map_or_else(|| body.inputs[number].dtype, |output| body.outputs[output].dtype);
        let strides = strides(&of.launch, number)
            .map(|strides| self.embedding.strides(self.divided(is_first), strides.iter().copied()));
        let placement = match &strides {
            None => of.launch.placements[number].clone(),
            Some(strides) => {
                let (rows, inner) = strides.split_at(self.embedding.rows);
                let is_of_rows = output.is_some_and(|output| {
                    self.place(is_first, body.outputs[output].place) == OutputPlace::Row
                });
                let inner = if is_of_rows { &[] } else { inner };
                Placement::Strided { rows: rows.into(), inner: inner.into() }
            }
        };
        Placed { operand: of.operand(number), dtype, strides, placement, touched: of.touched[number] }
    }

    fn all_placed(&self, is_first: bool) -> (Vec<Placed>, Vec<Placed>) {
        let of = self.loop_of(is_first);
        let mut inputs: Vec<Placed> =
            (0..of.operand_count()).map(|number| self.placed(is_first, number)).collect();
        let outputs = inputs.split_off(of.inputs.len());
        (inputs, outputs)
    }

    /// Checks that the spaces are common for rows and points, and that both may be computed at one time.
    fn check(&self) -> Result<(), Refusal> {
        let guest = self.loop_of(!self.host_is_first);
        for is_first in [true, false] {
            let has_one_place = self.divided(is_first).iter().all(|numbers| numbers.len() <= 1);
            if self.loop_of(is_first).launch.body.uses_coordinates() && !has_one_place {
                return Err(Refusal::Spaces);
            }
        }
        if guest.combines() && !self.keeps_rows() {
            return Err(Refusal::Spaces);
        }
        Ok(())
    }

    /// Returns whether the guest's rows are the host's rows, and its points are the host's in the same order.
    fn keeps_rows(&self) -> bool {
        let guest = self.loop_of(!self.host_is_first);
        let (rows, all) = (self.embedding.rows, self.embedding.extents.len());
        let (of_rows, of_inner) = self.embedding.guest.split_at(guest.launch.rows.len());
        let inner: Numbers = of_inner.iter().flatten().copied().collect();
        self.level() == Level::Points
            && of_rows.iter().flatten().all(|&number| number < rows)
            && inner.iter().copied().eq(rows..all)
    }

    /// Returns the fused loop.
    fn fused(&self, is_kept: &impl Fn(usize) -> bool, memories: &[Memory]) -> Result<Loop, Refusal> {
        self.check()?;
        let (first_inputs, first_outputs) = self.all_placed(true);
        let (second_inputs, second_outputs) = self.all_placed(false);
        let (first, second) = ((&*first_inputs, &*first_outputs), (&*second_inputs, &*second_outputs));
        let read = self.read(first, &second_inputs)?;
        let mut kept: Vec<bool> = (0..first_outputs.len()).map(is_kept).collect();
        self.check_writes(first, second, &mut kept)?;
        if self.level() == Level::Repeated {
            let reads_it = read.sources.iter().any(|source| matches!(source, Source::Output(_)));
            if self.host_is_first || kept.contains(&true) || !reads_it || !is_cheap(&self.first.launch) {
                return Err(Refusal::Repeated);
            }
        }
        let outputs: Vec<&Placed> = (first_outputs.iter().zip(&kept))
            .filter_map(|(output, kept)| kept.then_some(output))
            .chain(&second_outputs)
            .collect();
        let parts = self.parts(read.sources, &kept);
        Ok(self.assembled(&parts, (&read.inputs[..], &read.described[..]), &outputs, memories))
    }

    /// Returns the inputs of the fused loop, and the source of each input of the second loop.
    fn read<'p>(
        &self,
        (first_inputs, first_outputs): (&'p [Placed], &[Placed]),
        second_inputs: &'p [Placed],
    ) -> Result<Read<'p>, Refusal> {
        let extents = &self.embedding.extents;
        let mut inputs: Vec<&Placed> = first_inputs.iter().collect();
        let mut described: Vec<Input> = self.first.launch.body.inputs.clone();
        let mut sources = Vec::new();
        for (placed, input) in second_inputs.iter().zip(&self.second.launch.body.inputs) {
            let is_written = |(_, output): &(usize, &Placed)| output.touched.overlaps(&placed.touched);
            let mut writers = first_outputs.iter().enumerate().filter(is_written);
            if let Some((number, output)) = writers.next() {
                let is_same = input.kind == InputKind::Strided && output.is_same(placed, extents);
                if !is_same || writers.next().is_some() {
                    return Err(Refusal::Places);
                }
                sources.push(Source::Output(number as u16));
                continue;
            }
            let known = (inputs.iter().zip(&described)).position(|(other, described)| {
                described == input && other.operand == placed.operand && other.placement == placed.placement
            });
            let number = known.unwrap_or_else(|| {
                inputs.push(placed);
                described.push(*input);
                inputs.len() - 1
            });
            sources.push(Source::Input(number as u16));
        }
        Ok(Read { inputs, described, sources })
    }

    /// Checks that memory which is overwritten is not read at another point, and leaves out results that the second loop overwrites.
    fn check_writes(
        &self,
        (first_inputs, first_outputs): (&[Placed], &[Placed]),
        (second_inputs, second_outputs): (&[Placed], &[Placed]),
        kept: &mut [bool],
    ) -> Result<(), Refusal> {
        let extents = &self.embedding.extents;
        let is_repeated = self.level() == Level::Repeated;
        let combines = self.first.combines() || self.second.combines();
        for output in second_outputs {
            for read in first_inputs.iter().filter(|read| read.touched.overlaps(&output.touched)) {
                if combines || is_repeated || !read.is_same(output, extents) {
                    return Err(Refusal::Places);
                }
            }
            for (number, former) in first_outputs.iter().enumerate() {
                if former.touched.overlaps(&output.touched) {
                    if is_repeated || !former.is_same(output, extents) {
                        return Err(Refusal::Places);
                    }
                    kept[number] = false;
                }
            }
        }
        // Loops that combine read a row several times.
        let writes_over = |inputs: &[Placed], outputs: &[Placed]| {
            outputs.iter().any(|output| inputs.iter().any(|input| input.touched.overlaps(&output.touched)))
        };
        match combines
            && (writes_over(first_inputs, first_outputs) || writes_over(second_inputs, second_outputs))
        {
            true => Err(Refusal::Places),
            false => Ok(()),
        }
    }

    fn parts(&self, sources: Vec<Source>, kept: &[bool]) -> [Part<'_>; 2] {
        let own = (0..self.first.inputs.len() as u16).map(Source::Input).collect();
        let all = vec![true; self.second.outputs.len()];
        [(true, own, kept), (false, sources, &all)].map(|(is_first, sources, kept)| {
            let of = self.loop_of(is_first);
            let dimension = |numbers: &Numbers| {
                let &[number] = numbers.as_slice() else { return None };
                Some(match number.checked_sub(self.embedding.rows) {
                    None => Dimension::Row(number as u8),
                    Some(inner) => Dimension::Inner(inner as u8),
                })
            };
            let (rows, inner) = self.divided(is_first).split_at(of.launch.rows.len());
            let outputs = of.launch.body.outputs.iter().enumerate().filter(|(number, _)| kept[*number]);
            Part {
                body: &of.launch.body,
                sources,
                rows: rows.iter().map(dimension).collect(),
                inner: inner.iter().map(dimension).collect(),
                outputs: outputs
                    .map(|(number, output)| (number as u16, self.place(is_first, output.place)))
                    .collect(),
            }
        })
    }

    fn assembled(
        &self,
        parts: &[Part<'_>; 2],
        (inputs, described): (&[&Placed], &[Input]),
        outputs: &[&Placed],
        memories: &[Memory],
    ) -> Loop {
        let id = self.id(parts);
        let composed = composition(id, || self.composed(parts, described));
        let Composition { body, used, name } = &*composed;
        let (rows, inner) = self.embedding.extents.split_at(self.embedding.rows);
        let narrow = |extents: &[u64]| extents.iter().map(|&extent| extent as usize).collect();
        let launch = LoopLaunch {
            id,
            name: name.clone(),
            compute: self.loop_of(self.host_is_first).launch.compute,
            rows: narrow(rows),
            inner: narrow(inner),
            placements: (used.iter().map(|&input| inputs[input]).chain(outputs.iter().copied()))
                .map(|placed| placed.placement.clone())
                .collect(),
            scalars: SmallVec::new(),
            lanes: None,
            body: Arc::clone(body),
        };
        let mut fused = Loop {
            members: self.first.members.iter().chain(&self.second.members).copied().collect(),
            launch: canonical(&launch),
            inputs: used.iter().map(|&input| inputs[input].operand).collect(),
            outputs: outputs.iter().map(|placed| placed.operand).collect(),
            numbers: self.first.numbers.iter().chain(&self.second.numbers).copied().collect(),
            touched: SmallVec::new(),
            alignment_bytes: 1,
            is_fusable: true,
            class: OnceCell::new(),
        };
        fused.members.sort_unstable();
        fused.settle(memories);
        fused
    }

    /// Composes the bodies.
    fn composed(&self, parts: &[Part<'_>; 2], described: &[Input]) -> Composition {
        let mut body = compose(&parts[0], &parts[1], described);
        let used: SmallVec<[usize; 16]> =
            (0..described.len()).filter(|&input| body.uses_input(input)).collect();
        renumber_inputs(&mut body, &used);
        let name = joined_name(&self.first.launch.name, &self.second.launch.name).into();
        Composition { body: body.into(), used, name }
    }

    /// Returns a number that distinguishes the composition from every other one of its dtypes.
    fn id(&self, parts: &[Part<'_>; 2]) -> u64 {
        let mut hash = Hash(0x7468_616c_7765_6721);
        for (part, of) in parts.iter().zip([self.first, self.second]) {
            hash.add(of.launch.id);
            of.launch.dtypes().into_iter().for_each(|dtype| hash.add(dtype as u64));
            for source in &part.sources {
                hash.add(match *source {
                    Source::Input(input) => u64::from(input),
                    Source::Output(output) => u64::from(output) | 1 << 32,
                });
            }
            let places = part
                .outputs
                .iter()
                .map(|&(number, place)| u64::from(number) << 1 | u64::from(place == OutputPlace::Point));
            places.for_each(|place| hash.add(place));
            if part.body.uses_coordinates() {
                for dimension in part.rows.iter().chain(&part.inner) {
                    hash.add(match *dimension {
                        None => 0,
                        Some(Dimension::Row(number)) => 1 + u64::from(number),
                        Some(Dimension::Inner(number)) => (1 + u64::from(number)) << 8,
                    });
                }
            }
            hash.add(u64::MAX);
        }
        hash.0
    }
}

/// The body of two loops that are fused. It does not depend on their sizes.
struct Composition {
    body: Arc<Body>,
    /// The inputs that it reads, of all inputs of the two loops.
    used: SmallVec<[usize; 16]>,
    name: Cow<'static, str>,
}

/// The number of compositions that a thread keeps.
const COMPOSITIONS_KEPT: usize = 1 << 11;

thread_local! {
    /// The compositions that this thread has made, by their ids.
    static COMPOSITIONS: RefCell<FxHashMap<u64, Rc<Composition>>> = RefCell::default();
}

/// Returns the composition with an id, made once.
fn composition(id: u64, make: impl FnOnce() -> Composition) -> Rc<Composition> {
    let known = COMPOSITIONS.try_with(|known| known.borrow().get(&id).cloned());
    if let Ok(Some(known)) = known {
        return known;
    }
    let made = Rc::new(make());
    // A thread whose thread-local variables are already destroyed keeps nothing.
    let _ = COMPOSITIONS.try_with(|known| {
        let mut known = known.borrow_mut();
        if known.len() >= COMPOSITIONS_KEPT {
            known.clear();
        }
        known.insert(id, Rc::clone(&made));
    });
    made
}

/// A hash of words.
struct Hash(u64);

impl Hash {
    fn add(&mut self, word: u64) {
        let mut mixed = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = mixed ^ mixed >> 31;
    }
}

/// Returns the name of a fused loop: the names of its members, cut off after 48 characters.
fn joined_name(first: &str, second: &str) -> String {
    let of = |name: &str| name.strip_prefix("fused_").unwrap_or(name).to_owned();
    let name = format!("{}_{}", of(first), of(second));
    let short: String = name.chars().take(48).collect();
    format!("fused_{short}")
}

/// Removes the inputs of a body that it does not read, and renumbers the others.
fn renumber_inputs(body: &mut Body, used: &[usize]) {
    body.inputs = used.iter().map(|&input| body.inputs[input]).collect();
    for node in &mut body.nodes {
        if let Some(input) = node.input_mut() {
            *input = used.iter().position(|&old| old == usize::from(*input)).expect("it is used") as u16;
        }
    }
}

/// Returns a fused loop if it keeps the bits of its members and is not slower.
fn accepted(mut fused: Loop, members: [&Loop; 2], machine: &Machine) -> Result<Loop, Refusal> {
    let body = Arc::clone(&fused.launch.body);
    let is_large =
        body.inputs.len() > MOST_INPUTS || body.outputs.len() > MOST_OUTPUTS || body.nodes.len() > MOST_NODES;
    if is_large {
        return Err(Refusal::Size);
    }
    let staged: SmallVec<[&Loop; 2]> =
        members.into_iter().filter(|member| member.launch.is_staged()).collect();
    if !staged.is_empty() || fused.launch.is_staged() {
        return match staged[..] {
            [member] if is_staged_alike(&fused, member, machine) => Ok(fused),
            _ => Err(Refusal::Staged),
        };
    }
    let planned = |of: &Loop| of.class(machine).ok_or(Refusal::Kind);
    let members = [(members[0], planned(members[0])?), (members[1], planned(members[1])?)];
    let wanted: SmallVec<[_; 2]> = members
        .iter()
        .filter(|(member, _)| rounds(&member.launch.body))
        .map(|(member, class)| order(&member.launch, class))
        .collect();
    let mut class = planned(&fused)?;
    let mut found = order(&fused.launch, &class);
    if let Some(first) = wanted.iter().find(|wanted| **wanted != found) {
        fused.launch.lanes = Some(first.lanes);
        fused.class = OnceCell::new();
        class = planned(&fused)?;
        found = order(&fused.launch, &class);
    }
    if wanted.iter().any(|wanted| *wanted != found) {
        return Err(Refusal::Order);
    }
    keeps_form(&fused, class, members)?;
    Ok(fused)
}

/// Checks that exponentials keep their accuracy, and the kernel its form.
fn keeps_form(fused: &Loop, class: Class, members: [(&Loop, Class); 2]) -> Result<(), Refusal> {
    let is_fast = fused.launch.body.has_fast_exponentials();
    let changes_exponentials = |(member, _): &(&Loop, Class)| {
        let own = &member.launch.body;
        own.has_fast_exponentials() != is_fast && has_exponentials(own)
    };
    if members.iter().any(changes_exponentials) {
        return Err(Refusal::Exponentials);
    }
    let points = fused.points();
    let is_of_points = class.inner_rank == 0;
    // Neighbouring threads read or write elements that are far apart.
    let is_scattered = !class.contiguous && class.vector == 1 && class.transposed == 0;
    let loses_form = |(member, former): &(&Loop, Class)| {
        let loses_rows =
            former.held > 0 && class.held == 0 || former.streamed.is_some() && class.streamed.is_none();
        let was_vectors = former.contiguous && former.vector > 1;
        let was_coalesced = was_vectors || is_of_points && (former.vector > 1 || former.transposed > 0);
        loses_rows || is_scattered && was_coalesced && member.points() == points
    };
    let keeps_a_vector = members.iter().any(|(_, former)| class.vector >= former.vector);
    let is_form_lost = members.iter().any(loses_form) && !is_as_apart(fused, class, members);
    match keeps_a_vector && !is_form_lost {
        true => Ok(()),
        false => Err(Refusal::Form),
    }
}

/// Returns whether a loop of scattered points accesses little more in this way than one of its members already does: a copy in another
/// order that also does what was done before it or after it.
fn is_as_apart(fused: &Loop, class: Class, members: [(&Loop, Class); 2]) -> bool {
    let is_whole = |(member, former): &(&Loop, Class)| {
        former.inner_rank == 0 && former.transposed == 0 && member.points() == fused.points()
    };
    let most = members.iter().map(|(member, _)| bytes_apart(member)).max().unwrap_or(0);
    class.inner_rank == 0 && members.iter().all(is_whole) && bytes_apart(fused) <= MOST_APART * most
}

/// Returns the bytes that neighbouring threads access far apart for a point, where neighbours in the first output are handled by
/// neighbouring threads.
fn bytes_apart(of: &Loop) -> usize {
    let first = of.inputs.len();
    let Some(written) = of.dims(first) else { return 0 };
    let walked = (0..written.len()).filter(|&dimension| written[dimension].0 > 1);
    let Some(inner) = walked.min_by_key(|&dimension| written[dimension].1) else { return 0 };
    let is_apart = |operand: usize| of.dims(operand).is_none_or(|dims| dims[inner].1 > 1);
    let dtypes = dtypes(&of.launch.body).enumerate();
    dtypes.filter(|(operand, _)| is_apart(*operand)).map(|(_, dtype)| dtype.size_bytes()).sum()
}

/// Returns whether a loop of few long rows is executed by launches like those of one of its members, in the same order. What is written
/// at points would be computed by one more launch, which reads everything again.
fn is_staged_alike(fused: &Loop, member: &Loop, machine: &Machine) -> bool {
    let orders = |of: &Loop| -> Option<Vec<_>> {
        let steps = of.launch.steps().ok()??;
        let order_of = |step: &Step| {
            let plan =
                step.launch.plan(of.alignment_bytes, machine.shared_memory_bytes, machine.has_clusters);
            plan.ok().map(|plan| (order(&step.launch, &plan.class), plan.geometry.inner_shape))
        };
        steps.list.iter().map(order_of).collect()
    };
    let body = &fused.launch.body;
    let is_of_rows = body.outputs.iter().all(|output| output.place == OutputPlace::Row);
    is_of_rows
        && orders(member).is_some_and(|former| orders(fused) == Some(former))
        && !has_exponentials(body)
}

/// Row dimensions: their extents, and their strides modulo a vector.
type Shifts = SmallVec<[(u64, u64); 4]>;

/// The order in which a launch combines the points of a row.
#[derive(PartialEq, Eq, Debug)]
struct Order {
    lanes: u16,
    levels: u8,
    is_online: bool,
    /// For rows that begin within a vector: the elements of a vector, and the row dimensions, as far as they move the begin.
    shift: Option<(u8, Shifts)>,
}

fn order(launch: &LoopLaunch, class: &Class) -> Order {
    let shift = class.shifted.then(|| (class.vector, shifts(launch, u64::from(class.vector))));
    Order { lanes: class.lanes, levels: class.cascade, is_online: class.online, shift }
}

/// Returns the extents of the row dimensions, and their strides modulo a vector, of the operands that are read point by point, which have
/// one distance between rows. Neighbours that move the begin like one are one.
fn shifts(launch: &LoopLaunch, vector: u64) -> Shifts {
    let walks = |strides: &SmallVec<[u64; 6]>| strides[launch.rows.len()..].iter().any(|&stride| stride > 0);
    let inputs = 0..launch.body.inputs.len();
    let of = inputs.filter_map(|input| strides(launch, input).map(SmallVec::from_iter)).find(walks);
    let mut found = Shifts::new();
    for (&extent, stride) in launch.rows.iter().zip(of.unwrap_or_default()).filter(|(extent, _)| **extent > 1)
    {
        match found.last_mut() {
            Some((former, step)) if *step == stride * extent as u64 % vector => {
                (*former, *step) = (*former * extent as u64, stride % vector);
            }
            _ => found.push((extent as u64, stride % vector)),
        }
    }
    found
}

fn has_exponentials(body: &Body) -> bool {
    let is_exponential = |(node, id): (&Expression, u32)| {
        matches!(node, Expression::Unary(Unary::Exp, _)) && body.dtype(ExprId(id)) == DType::F32
    };
    body.nodes.iter().zip(0..).any(is_exponential)
}

/// Returns whether the order in which a reduction combines elements affects its result: sums are rounded, and which zero is the
/// greatest of zeros of both signs depends on the order.
fn rounds(body: &Body) -> bool {
    body.reductions.iter().any(|reduction| {
        matches!(reduction.op, ReduceOp::Sum | ReduceOp::Product | ReduceOp::Max | ReduceOp::Min)
            && body.dtype(reduction.value).is_floating_point()
    })
}
