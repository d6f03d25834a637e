//! Fused Adam and AdamW.
use super::more::view;
use super::*;

const SIZES: [&[i64]; 3] = [&[3, 5], &[0, 4], &[2100]];

/// The tensors of a call, whose objects stay with the test.
struct Call {
    /// Parameters, gradients, first and second moments, the greatest of these: values, and words of tensors.
    values: [Vec<Vec<f32>>; 5],
    words: [Vec<u64>; 5],
    steps: Vec<u64>,
}

/// Returns the word of a tensor of these values.
fn word(sizes: &[i64], values: &[f32]) -> u64 {
    let handle = tensor(sizes, values) as Handle;
    // SAFETY: a handle of the test's.
    let word = unsafe { *handle.cast::<u64>() };
    // SAFETY: it is given up once.
    unsafe { shim::delete_handle(handle) };
    word
}

fn handle(word: u64) -> u64 {
    world(|world| world.handle(word)) as u64
}

fn numbers_of(word: u64) -> Vec<f32> {
    read(handle(word) as Handle).1
}

impl Call {
    fn new() -> Self {
        let count = |sizes: &[i64]| sizes.iter().product::<i64>() as usize;
        let values: [Vec<Vec<f32>>; 5] = std::array::from_fn(|list| {
            let of = |sizes: &&[i64]| {
                let shifted = values(count(sizes) + list).split_off(list);
                // Second moments are not negative.
                shifted.into_iter().map(|value| if list > 2 { value.abs() } else { value }).collect()
            };
            SIZES.iter().map(of).collect()
        });
        let words = std::array::from_fn(|list| {
            SIZES.iter().zip(&values[list]).map(|(sizes, values)| word(sizes, values)).collect()
        });
        Self { values, words, steps: [4.0, 1.0, 9.0].iter().map(|&step| word(&[], &[step])).collect() }
    }

    fn arguments(&self, rate: u64, flags: [bool; 2], optional: [u64; 2]) -> Vec<u64> {
        let handles = |words: &[u64]| list(&words.iter().map(|&word| handle(word)).collect::<Vec<_>>());
        let [parameters, gradients, firsts, seconds, greatest] = self.words.each_ref().map(|list| &list[..]);
        let greatest = if flags[0] { greatest } else { &[] };
        let lists = [parameters, gradients, firsts, seconds, greatest, &self.steps].map(handles);
        let numbers = [0.9_f64, 0.99, 0.1, 1e-3].map(f64::to_bits);
        let flags = flags.map(u64::from);
        lists.into_iter().chain([rate]).chain(numbers).chain(flags).chain(optional).collect()
    }

    /// Computes steps in f64, and returns the resulting lists.
    fn expected(
        &self,
        is_w: bool,
        rate: f64,
        [amsgrad, maximize]: [bool; 2],
        scale: f64,
    ) -> [Vec<Vec<f64>>; 5] {
        let mut all = self.values.each_ref().map(|list| {
            list.iter().map(|values| values.iter().map(|&value| f64::from(value)).collect()).collect()
        });
        let [parameters, gradients, firsts, seconds, greatest]: &mut [Vec<Vec<f64>>; 5] = &mut all;
        for (tensor, step) in [4.0, 1.0, 9.0].into_iter().enumerate() {
            for place in 0..parameters[tensor].len() {
                let [p, g, m, v, most] = [&mut *parameters, gradients, firsts, seconds, greatest]
                    .map(|list| &mut list[tensor][place]);
                *g /= scale;
                let mut slope = if maximize { -*g } else { *g };
                if is_w {
                    *p -= rate * 0.1 * *p
                } else {
                    slope += 0.1 * *p
                }
                *m = 0.9 * *m + 0.1 * slope;
                *v = 0.99 * *v + 0.01 * slope * slope;
                let mut root = *v;
                if amsgrad {
                    *most = most.max(*v);
                    root = *most;
                }
                let root = (root / (1.0 - 0.99_f64.powf(step))).sqrt();
                *p -= rate / (1.0 - 0.9_f64.powf(step)) * *m / (root + 1e-3);
            }
        }
        all
    }

    fn assert_is(&self, expected: &[Vec<Vec<f64>>; 5]) {
        for (words, expected) in self.words.iter().zip(expected) {
            for (&word, expected) in words.iter().zip(expected) {
                assert_near(&numbers_of(word), expected);
            }
        }
    }
}

#[test]
fn parameters_and_states_are_stepped_where_they_lie() {
    let kernels = kernels();
    for operator in [Operator::Adam, Operator::AdamByTensor, Operator::AdamW, Operator::AdamWByTensor] {
        let by_tensor = matches!(operator, Operator::AdamByTensor | Operator::AdamWByTensor);
        let is_w = matches!(operator, Operator::AdamW | Operator::AdamWByTensor);
        for flags in [[false, false], [true, false], [true, true]] {
            for scale in [None, Some(4.0)] {
                let step = Call::new();
                let rate = if by_tensor { tensor(&[], &[0.25]) } else { 0.25_f64.to_bits() };
                let scaled = scale.map_or(0, |scale: f32| optional(tensor(&[1], &[scale])));
                let found_inf = scale.map_or(0, |_| optional(tensor(&[1], &[0.0])));
                call(&kernels, operator, &step.arguments(rate, flags, [scaled, found_inf]), 0);
                step.assert_is(&step.expected(is_w, 0.25, flags, scale.unwrap_or(1.0).into()));
            }
        }
    }
    assert_eq!((asked(), objects()), (vec![], 0));
    assert_eq!(kernels.counts(Operator::AdamW).taken.load(Ordering::Relaxed), 6);
}

#[test]
fn nothing_changes_where_a_gradient_is_not_finite() {
    let (kernels, step) = (kernels(), Call::new());
    let optional = [4.0, 1.0].map(|value| optional(tensor(&[], &[value])));
    call(&kernels, Operator::AdamW, &step.arguments(0.25_f64.to_bits(), [true, false], optional), 0);
    for (words, values) in step.words.iter().zip(&step.values) {
        for (&word, values) in words.iter().zip(values) {
            assert_eq!(numbers_of(word), *values);
        }
    }
    assert_eq!((asked(), objects()), (vec![], 0));
}

#[test]
fn elements_may_lie_in_another_order_if_all_tensors_of_a_parameter_agree() {
    let kernels = kernels();
    let pass_on = |change: &dyn Fn(&mut Call), expected: Option<&str>| {
        let mut step = Call::new();
        change(&mut step);
        call(&kernels, Operator::AdamW, &step.arguments(0.25_f64.to_bits(), [false; 2], [0; 2]), 0);
        let expected: Vec<String> = expected
            .map(|counts| format!("adam {counts} 0.25 0.9 0.99 0.1 0.001 [false, false] [false, false]"))
            .into_iter()
            .collect();
        assert_eq!((asked(), objects()), (expected, 0));
    };
    let turned = |list: usize, step: &mut Call| {
        let other = view(&[3, 5], &[1, 3], &step.values[list][0]) as Handle;
        // SAFETY: a handle of the test's, given up once.
        unsafe {
            step.words[list][0] = *other.cast::<u64>();
            shim::delete_handle(other);
        }
    };
    pass_on(&|step| (0..4).for_each(|list| turned(list, step)), None);
    let all = Some("[3, 3, 3, 3, 0, 3]");
    pass_on(&|step| turned(1, step), all);
    pass_on(&|step| (0..3).for_each(|list| turned(list, step)), all);
    pass_on(&|step| step.words[2][2] = word(&[2099], &values(2099)), all);
    pass_on(&|step| step.words[1][2] = world(|world| world.word(&[2100], F16)), all);
    pass_on(&|step| step.steps[0] = world(|world| world.word(&[], I64)), all);
    pass_on(&|step| step.steps[2] = word(&[2], &[1.0, 1.0]), all);
    pass_on(&|step| step.steps.truncate(2), Some("[3, 3, 3, 3, 0, 2]"));
    pass_on(
        &|step| {
            step.words.iter_mut().for_each(Vec::clear);
            step.steps.clear();
        },
        Some("[0, 0, 0, 0, 0, 0]"),
    );
}
