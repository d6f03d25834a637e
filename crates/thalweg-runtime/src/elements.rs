//! A set of elements of an operand: those that were chosen by data, in one run of a kernel.

/// A set of numbers below a bound, one bit each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Elements(Vec<u64>);

impl Elements {
    /// Creates an empty set of numbers below `bound`.
    pub(crate) fn below(bound: u64) -> Self {
        Self(vec![0; bound.div_ceil(64) as usize])
    }

    /// Adds a number. A number that is not below the bound is ignored.
    pub(crate) fn add(&mut self, number: u64) {
        if let Some(word) = self.0.get_mut((number / 64) as usize) {
            *word |= 1 << (number % 64);
        }
    }

    /// Returns the runs of consecutive numbers in ascending order, each as its first number and its length.
    pub(crate) fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (place, &word) in (0u64..).step_by(64).zip(&self.0) {
            let (mut rest, mut passed) = (word, 0);
            while rest != 0 {
                passed += rest.trailing_zeros();
                let count = (word >> passed).trailing_ones();
                let first = place + u64::from(passed);
                match runs.last_mut() {
                    Some(last) if last.0 + last.1 == first => last.1 += u64::from(count),
                    _ => runs.push((first, u64::from(count))),
                }
                passed += count;
                rest = word.checked_shr(passed).unwrap_or(0);
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_a_sorted_list() {
        let mut random = 1_u64;
        for (bound, count) in [(1, 1), (64, 64), (65, 200), (300, 40), (300, 2000), (1000, 5)] {
            let (mut elements, mut list) = (Elements::below(bound), Vec::new());
            for _ in 0..count {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let number = (random >> 33) % bound;
                elements.add(number);
                list.push(number);
            }
            list.sort_unstable();
            list.dedup();
            let runs = elements.runs();
            let listed: Vec<u64> = runs.iter().flat_map(|&(first, count)| first..first + count).collect();
            assert_eq!(listed, list);
            assert!(
                runs.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0),
                "runs are apart: {runs:?}"
            );
        }
        let mut whole = Elements::below(192);
        (0..192).for_each(|number| whole.add(number));
        whole.add(1 << 40);
        assert_eq!(whole.runs(), [(0, 192)]);
    }
}
