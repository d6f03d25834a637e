//! [`Flow`]: a gradient that flows only where certain branches are taken.

use crate::Value;

use super::algebra::{add, masked, masked_out};

/// A condition, and the truth value for which the branch is taken.
pub(super) type Branch<'b> = (Value<'b>, bool);

/// A gradient that flows where all branches of at least one path are taken. Elsewhere it is 0, whatever its value is there.
/// Factors along a path are never multiplied by a 0 that stands for "not taken", so an infinite or NaN factor of a branch that is
/// not taken has no effect.
#[derive(Clone)]
pub(super) struct Flow<'b> {
    value: Value<'b>,
    paths: Vec<Vec<Branch<'b>>>,
}

fn is_same(a: Branch<'_>, b: Branch<'_>) -> bool {
    a.0.id() == b.0.id() && a.1 == b.1
}

/// Returns the remaining branches of the paths on one side of a condition.
fn on_side<'b>(paths: &[Vec<Branch<'b>>], (condition, side): Branch<'b>) -> Vec<Vec<Branch<'b>>> {
    let is_open = |path: &&Vec<Branch<'b>>| !path.iter().any(|&branch| is_same(branch, (condition, !side)));
    let rest = |path: &Vec<Branch<'b>>| {
        path.iter().copied().filter(|branch| branch.0.id() != condition.id()).collect::<Vec<_>>()
    };
    paths.iter().filter(is_open).map(rest).collect()
}

/// Returns the value where one of the paths is taken, else 0; `None` if there are no paths.
fn bounded<'b>(value: Value<'b>, paths: &[Vec<Branch<'b>>]) -> Option<Value<'b>> {
    if paths.iter().any(Vec::is_empty) {
        return Some(value);
    }
    let condition = paths.first()?[0].0;
    let [yes, no] = [true, false].map(|side| bounded(value, &on_side(paths, (condition, side))));
    Some(match (yes, no) {
        (Some(yes), Some(no)) => condition.select(yes, no),
        (Some(yes), None) => masked(condition, yes),
        (None, Some(no)) => masked_out(condition, no),
        (None, None) => unreachable!("a path is open on one side of its first branch"),
    })
}

impl<'b> Flow<'b> {
    /// Returns a gradient that flows everywhere.
    pub(super) fn new(value: Value<'b>) -> Self {
        Self { value, paths: vec![Vec::new()] }
    }

    /// Returns the value, which is meaningful only where a path is taken.
    pub(super) fn value(&self) -> Value<'b> {
        self.value
    }

    /// Returns a gradient that is computed from this one, and flows only where the given branch is taken, too.
    pub(super) fn through(&self, value: Value<'b>, branch: Option<Branch<'b>>) -> Self {
        let Some(branch) = branch else { return Self { value, paths: self.paths.clone() } };
        let mut paths = on_side(&self.paths, branch);
        for path in &mut paths {
            path.push(branch);
        }
        Self { value, paths }
    }

    /// Returns whether the gradient flows nowhere, because its branches exclude each other.
    pub(super) fn is_nowhere(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the gradient; 0 where it does not flow.
    pub(super) fn bounded(&self) -> Value<'b> {
        bounded(self.value, &self.paths).expect("a gradient that flows nowhere is left out")
    }

    /// Returns the sum of gradients. Gradients that flow on different sides of a condition are joined by a select.
    pub(super) fn sum(flows: &[Self]) -> Option<Self> {
        let (everywhere, bounded): (Vec<&Self>, Vec<&Self>) =
            flows.iter().partition(|flow| flow.paths.iter().any(Vec::is_empty));
        let everywhere = everywhere.into_iter().map(Self::value).reduce(add);
        let Some(first) = bounded.first() else { return everywhere.map(Self::new) };
        let condition = first.paths[0][0].0;
        let [yes, no] = [true, false].map(|side| {
            let on_side =
                |flow: &&Self| Self { value: flow.value, paths: on_side(&flow.paths, (condition, side)) };
            let open: Vec<Self> = bounded.iter().map(on_side).filter(|flow| !flow.is_nowhere()).collect();
            Self::sum(&open)
        });
        let on_sides = Self::of_sides(condition, yes, no);
        Some(match everywhere {
            Some(value) => Self::new(add(value, on_sides.bounded())),
            None => on_sides,
        })
    }

    /// Returns the gradient that is `yes` or `no` by a condition.
    fn of_sides(condition: Value<'b>, yes: Option<Self>, no: Option<Self>) -> Self {
        let value = match (&yes, &no) {
            (Some(yes), Some(no)) if yes.value.id() == no.value.id() => yes.value,
            (Some(yes), Some(no)) => condition.select(yes.value, no.value),
            (Some(one), None) | (None, Some(one)) => one.value,
            (None, None) => unreachable!("a gradient flows on one side of its condition"),
        };
        let is_everywhere =
            |flow: &Option<Self>| flow.as_ref().is_some_and(|flow| flow.paths.iter().any(Vec::is_empty));
        if is_everywhere(&yes) && is_everywhere(&no) {
            return Self::new(value);
        }
        let on = |flow: Option<Self>, side: bool| {
            let paths = flow.map_or(Vec::new(), |flow| flow.paths);
            paths.into_iter().map(move |path| [vec![(condition, side)], path].concat())
        };
        Self { value, paths: on(yes, true).chain(on(no, false)).collect() }
    }
}
