//! Layouts against a plain model: the list of a layout's elements in row-major order.

use proptest::prelude::*;
use thalweg_ir::{Layout, broadcast_shapes};

/// Returns the storage element of each coordinate, row-major.
fn elements(layout: &Layout) -> Vec<usize> {
    layout.shape().iter().zip(layout.strides()).fold(vec![layout.offset()], |places, (&extent, &stride)| {
        places.iter().flat_map(|place| (0..extent).map(move |c| place + c * stride)).collect()
    })
}

/// Returns a coordinate's number in row-major order.
fn number(shape: &[usize], coordinate: &[usize]) -> usize {
    shape.iter().zip(coordinate).fold(0, |number, (extent, c)| number * extent + c)
}

/// Returns the coordinate of a number.
fn coordinate(shape: &[usize], mut number: usize) -> Vec<usize> {
    let mut coordinate: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&extent| {
            let c = number % extent;
            number /= extent;
            c
        })
        .collect();
    coordinate.reverse();
    coordinate
}

/// Returns layouts of views: a contiguous tensor after a few operations.
fn layouts() -> impl Strategy<Value = Layout> {
    let steps = prop::collection::vec((0..6usize, any::<u32>(), any::<u32>()), 0..5);
    (prop::collection::vec(0..5usize, 0..4), steps).prop_map(|(shape, steps)| {
        let mut layout = Layout::contiguous(&shape);
        for (operation, a, b) in steps {
            let (a, b, rank) = (a as usize, b as usize, layout.rank());
            let next = match operation {
                0 if rank > 0 => layout.transpose(a % rank, b % rank),
                1 if rank > 0 => {
                    let dimension = a % rank;
                    let extent = layout.shape()[dimension];
                    let start = b % (extent + 1);
                    layout.narrow(dimension, start, (b / 7) % (extent - start + 1))
                }
                2 if rank < 5 => layout.unsqueeze(a % (rank + 1)),
                3 => {
                    let wanted: Vec<usize> =
                        layout.shape().iter().map(|&e| if e == 1 { 1 + b % 4 } else { e }).collect();
                    layout.expand(&wanted)
                }
                4 if rank > 0 && layout.shape()[a % rank] > 0 => {
                    layout.select(a % rank, b % layout.shape()[a % rank])
                }
                _ => Ok(layout.clone()),
            };
            layout = next.expect("the operation is valid");
        }
        layout
    })
}

/// Returns a shape with a given number of elements, drawn by `choices`.
fn shapes_of(count: usize, choices: &[u32]) -> Vec<usize> {
    if count == 0 {
        return vec![3, 0];
    }
    let mut shape = Vec::new();
    let mut left = count;
    for &choice in choices {
        let divisors: Vec<usize> = (1..=left).filter(|d| left.is_multiple_of(*d)).collect();
        let extent = divisors[choice as usize % divisors.len()];
        shape.push(extent);
        left /= extent;
    }
    shape.push(left);
    shape
}

/// Returns whether there are strides with which a shape lists these elements in this order.
fn is_strided(shape: &[usize], elements: &[usize]) -> bool {
    let Some(&first) = elements.first() else { return true };
    let strides: Vec<Option<usize>> = (0..shape.len())
        .map(|dimension| {
            let mut unit = vec![0; shape.len()];
            unit[dimension] = 1;
            if shape[dimension] == 1 { Some(0) } else { elements[number(shape, &unit)].checked_sub(first) }
        })
        .collect();
    (0..elements.len()).all(|n| {
        let place = coordinate(shape, n)
            .iter()
            .zip(&strides)
            .try_fold(first, |place, (c, stride)| Some(place + c * (*stride)?));
        place == Some(elements[n])
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn predicates_are_those_of_the_elements(layout in layouts()) {
        let list = elements(&layout);
        prop_assert_eq!(layout.elements(), list.len());
        let contiguous: Vec<usize> = (layout.offset()..layout.offset() + list.len()).collect();
        prop_assert_eq!(layout.is_contiguous(), list == contiguous, "{:?}", layout);
        let span = list.iter().max().map_or(0, |last| last - layout.offset() + 1);
        prop_assert_eq!(layout.span(), span);
        let mut distinct = list.clone();
        distinct.sort_unstable();
        distinct.dedup();
        // Views of a contiguous tensor overlap only by repeated dimensions, where the rule is exact.
        prop_assert_eq!(layout.may_overlap(), distinct.len() < list.len(), "{:?}", layout);
    }

    #[test]
    fn a_reshape_is_a_view_where_one_exists(layout in layouts(), choices in prop::collection::vec(any::<u32>(), 0..4)) {
        let shape = shapes_of(layout.elements(), &choices);
        let list = elements(&layout);
        let view = layout.reshape(&shape).expect("as many elements");
        prop_assert_eq!(view.is_some(), is_strided(&shape, &list), "{:?} as {:?}", layout, shape);
        if let Some(view) = view {
            prop_assert_eq!(view.shape(), &shape[..]);
            prop_assert_eq!(elements(&view), list, "{:?} as {:?}", layout, shape);
        }
        prop_assert!(layout.reshape(&[layout.elements() + 1]).is_err());
    }

    #[test]
    fn permutations_move_coordinates(layout in layouts(), seed in any::<u32>()) {
        let mut order: Vec<usize> = (0..layout.rank()).collect();
        for dimension in 1..order.len() {
            order.swap(dimension, seed as usize / dimension % (dimension + 1));
        }
        let permuted = layout.permute(&order).expect("a permutation");
        let (list, moved) = (elements(&layout), elements(&permuted));
        prop_assert_eq!(list.len(), moved.len());
        for (n, element) in moved.iter().enumerate() {
            let place = coordinate(permuted.shape(), n);
            let mut original = vec![0; place.len()];
            for (dimension, c) in order.iter().zip(place) {
                original[*dimension] = c;
            }
            prop_assert_eq!(*element, list[number(layout.shape(), &original)]);
        }
        if layout.rank() > 1 {
            prop_assert!(layout.permute(&vec![0; layout.rank()]).is_err());
        }
    }

    #[test]
    fn narrowing_keeps_a_part(layout in layouts(), dimension in any::<u32>(), start in 0..6usize, length in 0..6usize) {
        prop_assume!(layout.rank() > 0);
        let dimension = dimension as usize % layout.rank();
        let fits = start + length <= layout.shape()[dimension];
        let narrowed = layout.narrow(dimension, start, length);
        prop_assert_eq!(narrowed.is_ok(), fits);
        if let Ok(narrowed) = narrowed {
            let list = elements(&layout);
            let kept: Vec<usize> = (0..list.len())
                .filter(|&n| (start..start + length).contains(&coordinate(layout.shape(), n)[dimension]))
                .map(|n| list[n])
                .collect();
            prop_assert_eq!(elements(&narrowed), kept);
        }
    }

    #[test]
    fn expansion_repeats(layout in layouts(), added in prop::collection::vec(0..4usize, 0..3), repeat in 1..4usize) {
        let shape: Vec<usize> = added
            .iter()
            .copied()
            .chain(layout.shape().iter().map(|&extent| if extent == 1 { repeat } else { extent }))
            .collect();
        let expanded = layout.expand(&shape).expect("the layout broadcasts");
        let (list, repeated) = (elements(&layout), elements(&expanded));
        for (n, element) in repeated.iter().enumerate() {
            let place = &coordinate(&shape, n)[added.len()..];
            let source: Vec<usize> =
                place.iter().zip(layout.shape()).map(|(&c, &extent)| if extent == 1 { 0 } else { c }).collect();
            prop_assert_eq!(*element, list[number(layout.shape(), &source)]);
        }
        let both = broadcast_shapes(layout.shape(), &shape).expect("they broadcast");
        prop_assert_eq!(both.as_slice(), &shape[..]);
    }

    #[test]
    fn shapes_broadcast_as_they_expand(a in prop::collection::vec(0..4usize, 0..4), b in prop::collection::vec(0..4usize, 0..4)) {
        let both = broadcast_shapes(&a, &b);
        prop_assert_eq!(&both, &broadcast_shapes(&b, &a).map_err(|_| both.clone().expect_err("as the other way round")));
        match both {
            Ok(shape) => {
                prop_assert!(Layout::contiguous(&a).expand(&shape).is_ok());
                prop_assert!(Layout::contiguous(&b).expand(&shape).is_ok());
            }
            Err(_) => {
                // Some dimension, counted from the end, has two different extents of which neither is 1.
                let clash = a.iter().rev().zip(b.iter().rev()).any(|(x, y)| x != y && *x != 1 && *y != 1);
                prop_assert!(clash);
            }
        }
    }
}

#[test]
fn a_new_dimension_of_extent_1_is_one_that_unsqueeze_makes() {
    let strides =
        |shape: &[usize], of: &[usize]| Layout::contiguous(of).expand(shape).unwrap().strides().to_vec();
    assert_eq!(strides(&[1, 1, 5], &[5]), [5, 5, 1]);
    assert_eq!(strides(&[1, 3, 5], &[5]), [0, 0, 1]);
    assert_eq!(strides(&[1, 4], &[1]), [0, 0]);
    assert_eq!(strides(&[1], &[]), [1]);
}

#[test]
fn channels_may_be_innermost_with_gaps() {
    let layout = |strides: &[usize]| Layout::new(&[2, 3, 4, 4], strides, 0).unwrap();
    assert!(layout(&[192, 1, 48, 6]).is_like_channels_last());
    assert!(
        !layout(&[48, 16, 4, 1]).is_like_channels_last() && !layout(&[0, 0, 4, 1]).is_like_channels_last()
    );
    assert!(!Layout::contiguous(&[2, 3]).is_like_channels_last());
}
