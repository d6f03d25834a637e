//! Making a failing plan small.
//!
//! Zeller and Hildebrandt's delta debugging ("Simplifying and isolating failure-inducing input", 2002), over the list of the
//! choices in which the schedule differs from the plain order, and over the list of faults: parts are removed, large ones first,
//! as long as the failure remains. At the end no single entry can be removed.

use super::plan::RunPlan;

/// Returns the smallest plan that was found.
pub(super) fn shrink(plan: RunPlan, fails: &mut impl FnMut(&RunPlan) -> bool) -> RunPlan {
    let faults =
        minimize(plan.faults.clone(), |faults| fails(&RunPlan { faults: faults.to_vec(), ..plan.clone() }));
    let plan = RunPlan { faults, ..plan };
    let deviations = minimize(plan.deviations.clone().unwrap_or_default(), |deviations| {
        fails(&RunPlan { deviations: Some(deviations.to_vec()), ..plan.clone() })
    });
    RunPlan { deviations: Some(deviations), ..plan }
}

/// Returns a part of the list for which `fails` holds, and from which no entry can be removed without changing that. `fails` must
/// hold for `list`.
pub(super) fn minimize<T: Clone>(list: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    if list.is_empty() || fails(&[]) {
        return Vec::new();
    }
    let mut list = list;
    let mut parts = 2;
    while list.len() > 1 {
        let length = list.len().div_ceil(parts);
        let smaller = (0..list.len()).step_by(length).find_map(|start| {
            let end = (start + length).min(list.len());
            let rest: Vec<T> = list[..start].iter().chain(&list[end..]).cloned().collect();
            fails(&rest).then_some(rest)
        });
        match smaller {
            Some(rest) => {
                list = rest;
                parts = (parts - 1).max(2);
            }
            None if length == 1 => break,
            None => parts = (parts * 2).min(list.len()),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::minimize;

    #[test]
    fn what_is_left_is_needed() {
        for needed in [vec![], vec![3], vec![0, 19], vec![4, 5, 6, 17]] {
            let found = minimize((0..20).collect(), |list: &[i32]| needed.iter().all(|n| list.contains(n)));
            assert_eq!(found, needed);
        }
    }

    #[test]
    fn no_entry_can_be_left_out_of_a_failure_that_is_not_monotone() {
        // Fails with an odd number of entries of at least 3, or with none of the odd ones.
        let fails = |list: &[i32]| list.len() >= 3 && list.len() % 2 == 1 && list.contains(&7);
        let found = minimize((0..11).collect(), fails);
        assert!(fails(&found));
        for left_out in 0..found.len() {
            let rest: Vec<i32> =
                found.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, n)| *n).collect();
            assert!(!fails(&rest), "{found:?} without {left_out}");
        }
    }
}
