//! Packed and padded sequences.

use thalweg_ir::DType;
use thalweg_nn::module::*;
use thalweg_tensor::random::Generator;

use crate::support::{assert_close, device, random, values};

const LENGTHS: [usize; 4] = [2, 5, 1, 5];

#[test]
fn a_batch_is_packed_step_by_step_and_padded_again() {
    let x = random(&[4, 6, 3], 1);
    let packed = pack_padded_sequence(&x, &LENGTHS, true, false).unwrap();
    assert_eq!(packed.batch_sizes, [4, 3, 2, 2, 2]);
    let order = packed.sorted_indices.as_ref().unwrap().to_vec::<i64>().unwrap();
    assert_eq!(order, [1, 3, 0, 2]);
    let numbers = values(&x);
    let expected: Vec<f64> = (0..5)
        .flat_map(|step| order.iter().map(move |&sequence| (step, sequence as usize)))
        .filter(|&(step, sequence)| step < LENGTHS[sequence])
        .flat_map(|(step, sequence)| numbers[(sequence * 6 + step) * 3..][..3].to_vec())
        .collect();
    assert_eq!(values(&packed.data), expected);
    for (batch_first, total_length) in [(true, None), (false, Some(7))] {
        let (padded, lengths) = pad_packed_sequence(&packed, batch_first, 9.0, total_length).unwrap();
        assert_eq!(lengths, LENGTHS);
        let padded = if batch_first { padded } else { padded.transpose(0, 1).unwrap() };
        let steps = total_length.unwrap_or(5);
        assert_eq!(padded.shape(), [4, steps, 3]);
        let found = values(&padded);
        for (sequence, &length) in LENGTHS.iter().enumerate() {
            for place in 0..steps * 3 {
                let expected = if place < length * 3 { numbers[sequence * 18 + place] } else { 9.0 };
                assert_eq!(found[sequence * steps * 3 + place], expected);
            }
        }
    }
    let sequences: Vec<_> = LENGTHS
        .iter()
        .enumerate()
        .map(|(n, &length)| x.select(0, n).unwrap().narrow(0, 0, length).unwrap())
        .collect();
    let again = pack_sequence(&sequences, false).unwrap();
    assert_eq!((values(&again.data), &again.batch_sizes), (expected, &packed.batch_sizes));
    assert_eq!(pad_sequence(&sequences, false, 0.0).unwrap().shape(), [5, 4, 3]);
}

#[test]
fn a_packed_batch_gives_what_each_sequence_gives_alone() {
    let mut generator = Generator::new(3);
    let options =
        RecurrentOptions { num_layers: 2, bidirectional: true, batch_first: true, ..Default::default() };
    let mut network = LSTM::new(3, 4, options, &mut generator, &device()).unwrap();
    network.to_dtype(DType::F64).unwrap();
    let x = random(&[4, 6, 3], 1).requires_grad_().unwrap();
    let states = [random(&[4, 4, 4], 2), random(&[4, 4, 4], 3)];
    let packed = pack_padded_sequence(&x, &LENGTHS, true, false).unwrap();
    let (result, last) = network.forward_packed(&packed, Some(&states)).unwrap();
    let (padded, _) = pad_packed_sequence(&result, true, 0.0, None).unwrap();
    let sum = padded.square().unwrap().sum(&[], false).unwrap();
    let sum = sum.add(&last[1].square().unwrap().sum(&[], false).unwrap()).unwrap();
    sum.backward().unwrap();
    let found = values(&x.grad().unwrap());
    x.zero_grad();
    for (n, &length) in LENGTHS.iter().enumerate() {
        let alone = x.narrow(0, n, 1).unwrap().narrow(1, 0, length).unwrap();
        let own = states.each_ref().map(|state| state.narrow(1, n, 1).unwrap());
        let (expected, ends) = network.forward(&alone, Some(&own)).unwrap();
        let part = padded.narrow(0, n, 1).unwrap().narrow(1, 0, length).unwrap();
        assert_close(&values(&part), &values(&expected), 1e-12);
        for (last, end) in last.iter().zip(&ends) {
            assert_close(&values(&last.narrow(1, n, 1).unwrap()), &values(end), 1e-12);
        }
        let sum = expected.square().unwrap().sum(&[], false).unwrap();
        sum.add(&ends[1].square().unwrap().sum(&[], false).unwrap()).unwrap().backward().unwrap();
    }
    assert_close(&found, &values(&x.grad().unwrap()), 1e-12);
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let x = random(&[4, 6, 3], 1);
    for (lengths, enforce_sorted, words) in [
        (&[2, 5, 1, 5][..], true, "sorted in decreasing order"),
        (&[5, 5, 0, 1], false, "greater than 0"),
        (&[7, 1, 1, 1], false, "lengths up to 6"),
        (&[3, 2], false, "batch_size 4"),
    ] {
        let error = pack_padded_sequence(&x, lengths, true, enforce_sorted).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
    }
    let packed = pack_padded_sequence(&x, &[5, 3, 2, 1], true, true).unwrap();
    assert!(packed.sorted_indices.is_none());
    assert!(pad_packed_sequence(&packed, true, 0.0, Some(4)).is_err());
    let network = GRU::new(4, 5, RecurrentOptions::default(), &mut Generator::new(1), &device()).unwrap();
    assert!(network.forward_packed(&packed, None).unwrap_err().to_string().contains("input_size"));
}

#[test]
fn a_packed_sequence_made_by_hand_is_checked() {
    let device = device();
    let lstm = LSTM::new(3, 2, RecurrentOptions::default(), &mut Generator::new(1), &device).unwrap();
    let indices = |list: &[i64]| thalweg_tensor::Tensor::from_slice(list, &[list.len()], &device).unwrap();
    let packed = |sizes: &[usize], order: Option<&[i64]>| PackedSequence {
        data: random(&[6, 3], 2).to_dtype(DType::F32).unwrap(),
        batch_sizes: sizes.to_vec(),
        sorted_indices: order.map(indices),
        unsorted_indices: None,
    };
    for sizes in [&[] as &[usize], &[2, 4], &[3, 3, 0], &[3, 2], &[4, 3], &[usize::MAX, 7]] {
        let wrong = packed(sizes, None);
        assert!(lstm.forward_packed(&wrong, None).unwrap_err().is_invalid_argument(), "{sizes:?}");
        assert!(pad_packed_sequence(&wrong, true, 0.0, None).unwrap_err().is_invalid_argument(), "{sizes:?}");
    }
    for order in [&[0i64, 1] as &[i64], &[0, 0, 1], &[0, 1, 3], &[-1, 0, 1]] {
        let wrong = packed(&[3, 2, 1], Some(order));
        assert!(pad_packed_sequence(&wrong, true, 0.0, None).unwrap_err().is_invalid_argument(), "{order:?}");
    }
    let right = packed(&[3, 2, 1], Some(&[2, 0, 1]));
    assert!(pad_packed_sequence(&right, true, 0.0, Some(usize::MAX)).unwrap_err().is_invalid_argument());
    assert_eq!(pad_packed_sequence(&right, true, 0.0, None).unwrap().1, [2, 1, 3]);
    lstm.forward_packed(&right, None).unwrap();
}

#[test]
fn convolutions_without_a_bias_draw_no_numbers_for_one() {
    let device = device();
    let next = |draws: &dyn Fn(&mut Generator)| {
        let mut generator = Generator::new(7);
        draws(&mut generator);
        let next = thalweg_tensor::Tensor::uniform(&[4], 0.0, 1.0, &mut generator, &device).unwrap();
        values(&next)
    };
    let options = thalweg_nn::functional::ConvOptions::default();
    let weight = next(&|generator| drop(Linear::without_bias(27, 5, generator, &device).unwrap()));
    assert_eq!(weight, next(&|one| drop(Conv2d::without_bias(3, 5, [3, 3], options, one, &device).unwrap())));
    let transposed = |one: &mut Generator| {
        drop(ConvTranspose2d::without_bias(3, 5, [3, 3], options, one, &device).unwrap())
    };
    assert_eq!(weight, next(&transposed));
}
