//! Fusion of two loops: when it is legal, when it is not slower, and the loop that results.
//!
//! A loop that reads what another one writes, or what it reads, is fused with it if
//!
//! - one iteration space [embeds](crate::embedding) in the other, of which it has all points, or, in a loop that combines, all rows
//!   (the result of rows is then read at every point, or by what computes with the results of rows). A loop of few points that is
//!   cheap may be repeated at every point of a larger one, if nothing else reads its results;
//! - every element that the second loop reads from the first is the one that the first writes at the same point, and a loop that
//!   writes over what the other reads does so at the same point;
//! - each sum keeps the order of its lanes (a kernel's [`Class`] decides it), and exponentials their accuracy;
//! - the kernel keeps its form: vectors are not narrower than those of both, rows that stayed in registers still do, and the number of
//!   operands and expressions is bounded.

use std::fmt;

use smallvec::{SmallVec, smallvec};
use thalweg_ir::compose::{Part, Source, compose};
use thalweg_ir::{
    Binary, Body, Class, DType, Dimension, Dimensions, ExprId, Input, InputKind, Node as Expression,
    OutputPlace, ReduceOp, Shape, Unary,
};
use thalweg_ops::Placement;
use thalweg_ops::lower::LoopLaunch;

use crate::embedding::{Dim, Embedding, Numbers};
use crate::segment::{Memory, Node, Operand, Touched, dtypes, touched};

/// The properties of a device that its plans depend on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Machine {
    /// The shared memory available to a block, in bytes.
    pub shared_memory_bytes: u32,
    /// Whether blocks may form clusters.
    pub has_clusters: bool,
}

/// The reason why two loops are not fused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// One of the loops scatters, reports an index, or has rows without combining.
    Kind,
    /// Neither space embeds in the other.
    Spaces,
    /// An element is read at another point than it is written.
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
            Self::Spaces => "their points are different ones",
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

/// The most primitives of a loop that is repeated at every point of another one, and of one that is a single point.
const CHEAP: usize = 6;
const CHEAP_FOR_A_POINT: usize = 12;

/// A loop of a segment: a node, or several that are fused.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    /// The numbers of the nodes, in program order.
    pub members: SmallVec<[u32; 4]>,
    pub launch: LoopLaunch,
    pub inputs: SmallVec<[Operand; 8]>,
    pub outputs: SmallVec<[Operand; 4]>,
    /// The node and the slot from which each number comes.
    pub numbers: SmallVec<[(u32, u32); 8]>,
    /// The ranges that are touched: those of the inputs, then those of the outputs.
    pub touched: SmallVec<[Touched; 8]>,
    /// The alignment of all addresses, in bytes.
    pub alignment_bytes: u64,
    /// Whether it may become a part of another loop.
    is_fusable: bool,
}

impl Loop {
    /// Returns a node as a loop.
    pub fn of(number: u32, node: &Node, memories: &[Memory]) -> Self {
        let body = &node.launch.body;
        let numbers = (0..body.scalars.len() as u32).map(|slot| (number, slot)).collect();
        let launch = canonical(&node.launch);
        let body = &launch.body;
        let scatters = body.outputs.iter().any(|output| output.scatter.is_some());
        let is_empty = launch.rows.iter().chain(&launch.inner).any(|&extent| extent == 0);
        let has_idle_inner = body.reductions.is_empty() && !launch.inner.is_empty();
        let mut made = Self {
            members: smallvec![number],
            inputs: SmallVec::from_slice(&node.inputs),
            outputs: SmallVec::from_slice(&node.outputs),
            numbers,
            touched: SmallVec::new(),
            alignment_bytes: 1,
            is_fusable: !scatters && body.report.is_none() && !is_empty && !has_idle_inner,
            launch,
        };
        made.is_fusable &= (body_outputs(&made.launch)).all(|(_, strides)| is_injective(&strides));
        made.settle(memories);
        made
    }

    /// Derives ranges and alignment from the operands.
    fn settle(&mut self, memories: &[Memory]) {
        let operands = || self.inputs.iter().chain(&self.outputs);
        self.touched = (operands().zip(&self.launch.placements).zip(dtypes(&self.launch.body)))
            .map(|((&operand, placement), dtype)| touched(&self.launch, operand, placement, dtype))
            .collect();
        let bits = operands().fold(0, |bits, operand| {
            bits | memories[operand.memory as usize].alignment_bytes | operand.offset
        });
        self.alignment_bytes = 1 << bits.trailing_zeros().min(8);
    }

    /// Returns the ranges that are read.
    pub fn reads(&self) -> &[Touched] {
        &self.touched[..self.inputs.len()]
    }

    /// Returns the ranges that are written.
    pub fn writes(&self) -> &[Touched] {
        &self.touched[self.inputs.len()..]
    }

    /// Returns whether the order of two loops affects what memory contains.
    pub fn conflicts(&self, other: &Self) -> bool {
        let meet = |a: &[Touched], b: &[Touched]| a.iter().any(|a| b.iter().any(|b| a.overlaps(b)));
        meet(self.writes(), &other.touched) || meet(self.reads(), other.writes())
    }

    /// Returns whether the loop combines points.
    pub fn combines(&self) -> bool {
        !self.launch.body.reductions.is_empty()
    }

    fn points(&self) -> u64 {
        self.launch.rows.iter().chain(&self.launch.inner).map(|&extent| extent as u64).product()
    }

    /// Returns extent and stride of each dimension of an operand: the inputs are counted first. `None` if it is gathered from.
    fn dims(&self, operand: usize) -> Option<SmallVec<[Dim; 6]>> {
        let extents = self.launch.rows.iter().chain(&self.launch.inner).map(|&extent| extent as u64);
        strides(&self.launch, operand).map(|strides| extents.zip(strides).collect())
    }

    fn operand(&self, operand: usize) -> Operand {
        match operand.checked_sub(self.inputs.len()) {
            None => self.inputs[operand],
            Some(output) => self.outputs[output],
        }
    }

    fn operand_count(&self) -> usize {
        self.inputs.len() + self.outputs.len()
    }

    /// Returns whether computing the loop again at every point of another one costs little.
    fn is_cheap(&self) -> bool {
        let body = &self.launch.body;
        let costs = |node: &&Expression| {
            !matches!(
                node,
                Expression::Constant(_)
                    | Expression::Load { .. }
                    | Expression::Scalar { .. }
                    | Expression::Cast(_)
            )
        };
        let is_dear = |node: &Expression| match node {
            Expression::Unary(op, _) => op.cuda_name().is_some(),
            Expression::Binary(op, ..) => matches!(op, Binary::Pow | Binary::Atan2 | Binary::Rem),
            Expression::Random(..) | Expression::Gather { .. } => true,
            _ => false,
        };
        let count = body.nodes.iter().filter(costs).count();
        match self.points() {
            1 => count <= CHEAP_FOR_A_POINT,
            _ => count <= CHEAP && !body.nodes.iter().any(is_dear),
        }
    }

    /// Returns the class for which the planner would compile the loop.
    fn class(&self, machine: &Machine) -> Option<Class> {
        let plan = self.launch.plan(self.alignment_bytes, machine.shared_memory_bytes, machine.has_clusters);
        plan.ok().map(|plan| plan.class)
    }
}

/// Returns the strides of an operand over rows and inner dimensions; `None` if it is gathered from.
fn strides(launch: &LoopLaunch, operand: usize) -> Option<Dimensions> {
    match &launch.placements[operand] {
        Placement::Gathered(_) => None,
        Placement::Strided { rows, inner } => {
            let mut strides = rows.clone();
            strides.extend_from_slice(inner);
            strides.resize(launch.rows.len() + launch.inner.len(), 0);
            Some(strides)
        }
    }
}

/// Returns extent and stride of each dimension over which an output is written, with the output's number.
fn body_outputs(launch: &LoopLaunch) -> impl Iterator<Item = (usize, SmallVec<[Dim; 6]>)> + '_ {
    let first = launch.body.inputs.len();
    launch.placements[first..].iter().enumerate().map(|(number, placement)| match placement {
        Placement::Gathered(_) => (number, SmallVec::new()),
        Placement::Strided { rows, inner } => {
            let extents = launch.rows.iter().take(rows.len()).chain(launch.inner.iter().take(inner.len()));
            (number, extents.map(|&extent| extent as u64).zip(rows.iter().chain(inner).copied()).collect())
        }
    })
}

/// Returns whether every point has an element of its own.
fn is_injective(dims: &[Dim]) -> bool {
    let mut dims: SmallVec<[Dim; 6]> = dims.iter().copied().filter(|&(extent, _)| extent > 1).collect();
    dims.sort_by_key(|&(_, stride)| stride);
    let mut span = 0;
    dims.iter().all(|&(extent, stride)| {
        let is_apart = stride > span;
        span += (extent - 1) * stride;
        is_apart
    })
}

/// Returns a launch with as few dimensions as possible, whose points are all rows if it does not combine them.
fn canonical(launch: &LoopLaunch) -> LoopLaunch {
    let mut result = launch.clone();
    if launch.body.uses_coordinates() {
        return result;
    }
    let at_points = launch
        .body
        .outputs
        .iter()
        .all(|output| output.place == OutputPlace::Point && output.scatter.is_none());
    if launch.body.reductions.is_empty() && launch.body.report.is_none() && at_points {
        result.rows.extend(result.inner.drain(..));
        for placement in &mut result.placements {
            if let Placement::Strided { rows, inner } = placement {
                rows.extend(inner.drain(..));
            }
        }
    }
    merge(&mut result.rows, &mut result.placements, true);
    let has_inner = !result.inner.is_empty();
    merge(&mut result.inner, &mut result.placements, false);
    if has_inner && result.inner.is_empty() {
        result.inner.push(1);
        let at_points = |number: usize| {
            let output = number.checked_sub(launch.body.inputs.len());
            output.is_none_or(|output| launch.body.outputs[output].place == OutputPlace::Point)
        };
        for (number, placement) in result.placements.iter_mut().enumerate() {
            if let (Placement::Strided { inner, .. }, true) = (placement, at_points(number)) {
                inner.push(0);
            }
        }
    }
    result
}

/// Merges neighbouring dimensions, rows or inner ones, that every operand traverses like one, and drops those of a single index.
fn merge(extents: &mut Shape, placements: &mut [Placement], is_rows: bool) {
    let of = |placement: &Placement| match placement {
        Placement::Strided { rows, inner } => Some(if is_rows { rows.clone() } else { inner.clone() }),
        Placement::Gathered(_) => None,
    };
    let former: SmallVec<[Option<Dimensions>; 8]> = placements.iter().map(of).collect();
    let walked = || former.iter().flatten().filter(|strides| !strides.is_empty());
    // Per new dimension: the innermost former one, and the extent.
    let mut kept: SmallVec<[(usize, usize); 6]> = SmallVec::new();
    for (number, &extent) in extents.iter().enumerate().filter(|(_, extent)| **extent != 1) {
        match kept.last_mut() {
            Some((last, merged))
                if walked().all(|strides| strides[*last] == strides[number] * extent as u64) =>
            {
                (*last, *merged) = (number, *merged * extent);
            }
            _ => kept.push((number, extent)),
        }
    }
    *extents = kept.iter().map(|&(_, extent)| extent).collect();
    for (placement, former) in placements.iter_mut().zip(&former) {
        let (Placement::Strided { rows, inner }, Some(former)) = (placement, former) else { continue };
        if former.is_empty() {
            continue;
        }
        let strides = kept.iter().map(|&(number, _)| former[number]).collect();
        *(if is_rows { rows } else { inner }) = strides;
    }
}

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
    if !first.is_fusable || !second.is_fusable {
        return Err(Refusal::Kind);
    }
    if first.launch.is_staged() || second.launch.is_staged() {
        return Err(Refusal::Staged);
    }
    let host_is_first = first.combines() || !second.combines() && first.points() > second.points();
    let (host, guest) = if host_is_first { (first, second) } else { (second, first) };
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
    /// Some, so that it is repeated at others.
    Repeated,
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
    /// Returns whether both are the same elements at the same points.
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
        match () {
            () if self.embedding.covers(0..all) => Level::Points,
            () if self.has_inner() && self.embedding.covers(0..rows) && !self.embedding.meets(rows..all) => {
                Level::Rows
            }
            () => Level::Repeated,
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
        let extents = &self.embedding.extents;
        let is_repeated = self.level() == Level::Repeated;
        let combines = self.first.combines() || self.second.combines();

        // What the second loop reads.
        let mut inputs: Vec<&Placed> = first_inputs.iter().collect();
        let mut described: Vec<Input> = self.first.launch.body.inputs.clone();
        let mut sources = Vec::new();
        for (placed, input) in second_inputs.iter().zip(&self.second.launch.body.inputs) {
            let mut writers = first_outputs
                .iter()
                .enumerate()
                .filter(|(_, output)| output.touched.overlaps(&placed.touched));
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
            sources.push(Source::Input(known.unwrap_or_else(|| {
                inputs.push(placed);
                described.push(*input);
                inputs.len() - 1
            }) as u16));
        }

        // What the second loop writes over.
        let mut kept: Vec<bool> = (0..first_outputs.len()).map(is_kept).collect();
        for output in &second_outputs {
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
        let writes_over = |inputs: &[Placed], outputs: &[Placed]| {
            outputs.iter().any(|output| inputs.iter().any(|input| input.touched.overlaps(&output.touched)))
        };
        if combines
            && (writes_over(&first_inputs, &first_outputs) || writes_over(&second_inputs, &second_outputs))
        {
            return Err(Refusal::Places);
        }
        let guest_is_kept = if self.host_is_first { true } else { kept.contains(&true) };
        if is_repeated {
            let reads_it = sources.iter().any(|source| matches!(source, Source::Output(_)));
            if self.host_is_first || guest_is_kept || !reads_it || !self.first.is_cheap() {
                return Err(Refusal::Repeated);
            }
        }
        let mut outputs: Vec<&Placed> =
            first_outputs.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(output, _)| output).collect();
        outputs.extend(&second_outputs);
        let parts = self.parts(sources, &kept);
        Ok(self.assembled(&parts, &inputs, &described, &outputs, memories))
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
        inputs: &[&Placed],
        described: &[Input],
        outputs: &[&Placed],
        memories: &[Memory],
    ) -> Loop {
        let mut body = compose(&parts[0], &parts[1], described);
        let used: Vec<usize> = (0..inputs.len()).filter(|&input| body.uses_input(input)).collect();
        renumber_inputs(&mut body, &used);
        let (rows, inner) = self.embedding.extents.split_at(self.embedding.rows);
        let narrow = |extents: &[u64]| extents.iter().map(|&extent| extent as usize).collect();
        let launch = LoopLaunch {
            id: self.id(parts, &used),
            name: joined_name(&self.first.launch.name, &self.second.launch.name).into(),
            compute: self.loop_of(self.host_is_first).launch.compute,
            rows: narrow(rows),
            inner: narrow(inner),
            placements: (used.iter().map(|&input| inputs[input]).chain(outputs.iter().copied()))
                .map(|placed| placed.placement.clone())
                .collect(),
            scalars: SmallVec::new(),
            body: body.into(),
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
        };
        fused.members.sort_unstable();
        fused.settle(memories);
        fused
    }

    /// Returns a number that distinguishes the composition from every other one of its dtypes.
    fn id(&self, parts: &[Part<'_>; 2], used: &[usize]) -> u64 {
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
                        Some(Dimension::Inner(number)) => 1 + u64::from(number) << 8,
                    });
                }
            }
            hash.add(u64::MAX);
        }
        used.iter().for_each(|&input| hash.add(input as u64));
        hash.0
    }
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

/// Returns the name of a fused loop: the names of its members, at most three.
fn joined_name(first: &str, second: &str) -> String {
    let of = |name: &str| name.strip_prefix("fused_").unwrap_or(name).to_owned();
    let name = format!("{}_{}", of(first), of(second));
    let short: String = name.chars().take(48).collect();
    format!("fused_{short}")
}

/// Keeps these inputs of a body, which are all that it reads.
fn renumber_inputs(body: &mut Body, used: &[usize]) {
    body.inputs = used.iter().map(|&input| body.inputs[input]).collect();
    for node in &mut body.nodes {
        if let Expression::Load { input } | Expression::Gather { input, .. } = node {
            *input = used.iter().position(|&old| old == usize::from(*input)).expect("it is used") as u16;
        }
    }
}

/// Returns a fused loop if it keeps the bits of its members and is not slower.
fn accepted(fused: Loop, members: [&Loop; 2], machine: &Machine) -> Result<Loop, Refusal> {
    let body = &fused.launch.body;
    let is_large =
        body.inputs.len() > MOST_INPUTS || body.outputs.len() > MOST_OUTPUTS || body.nodes.len() > MOST_NODES;
    if is_large {
        return Err(Refusal::Size);
    }
    if fused.launch.is_staged() {
        return Err(Refusal::Staged);
    }
    let class = fused.class(machine).ok_or(Refusal::Kind)?;
    let mut keeps_a_vector = false;
    for member in members {
        let former = member.class(machine).ok_or(Refusal::Kind)?;
        let own = &member.launch.body;
        if own.has_fast_exponentials() != body.has_fast_exponentials() && has_exponentials(own) {
            return Err(Refusal::Exponentials);
        }
        let order = |class: &Class| (class.lanes, class.cascade, class.online);
        if rounds(own) && order(&former) != order(&class) {
            return Err(Refusal::Order);
        }
        keeps_a_vector |= class.vector >= former.vector;
        let loses_rows =
            former.held > 0 && class.held == 0 || former.streamed.is_some() && class.streamed.is_none();
        if loses_rows
            || former.contiguous
                && member.points() == fused.points()
                && !class.contiguous
                && class.vector == 1
                && former.vector > 1
        {
            return Err(Refusal::Form);
        }
    }
    if keeps_a_vector { Ok(fused) } else { Err(Refusal::Form) }
}

fn has_exponentials(body: &Body) -> bool {
    let is_exponential = |(node, id): (&Expression, u32)| {
        matches!(node, Expression::Unary(Unary::Exp, _)) && body.dtype(ExprId(id)) == DType::F32
    };
    body.nodes.iter().zip(0..).any(is_exponential)
}

/// Returns whether the order in which a reduction combines elements affects its result.
fn rounds(body: &Body) -> bool {
    body.reductions.iter().any(|reduction| {
        matches!(reduction.op, ReduceOp::Sum | ReduceOp::Product)
            && body.dtype(reduction.value).is_floating_point()
    })
}
