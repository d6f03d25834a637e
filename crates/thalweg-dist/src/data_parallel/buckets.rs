//! The assignment of parameters to buckets.

use thalweg_ir::DType;

/// The greatest size of the first bucket in bytes.
const FIRST_BUCKET_BYTES: usize = 1 << 20;

/// The dtype and size of a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) dtype: DType,
    pub(super) bytes: usize,
}

/// Returns one bucket per dtype.
pub(super) fn whole(sizes: &[Size]) -> Vec<Vec<usize>> {
    // The last parameters get their gradients first.
    of((0..sizes.len()).rev(), sizes, usize::MAX, usize::MAX)
}

/// Returns the parameters of each bucket, for gradients that become ready in this order. A bucket collects consecutive parameters
/// of one dtype until it reaches its size.
pub(super) fn ordered(order: &[usize], sizes: &[Size], cap_bytes: usize) -> Vec<Vec<usize>> {
    of(order.iter().copied(), sizes, FIRST_BUCKET_BYTES.min(cap_bytes), cap_bytes)
}

fn of(
    order: impl Iterator<Item = usize>,
    sizes: &[Size],
    first_bytes: usize,
    cap_bytes: usize,
) -> Vec<Vec<usize>> {
    let mut done: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<(DType, usize, Vec<usize>)> = Vec::new();
    let mut is_first = true;
    for parameter in order {
        let Size { dtype, bytes } = sizes[parameter];
        let place = open.iter().position(|(other, ..)| *other == dtype).unwrap_or_else(|| {
            open.push((dtype, 0, Vec::new()));
            open.len() - 1
        });
        let (_, filled, parameters) = &mut open[place];
        parameters.push(parameter);
        *filled = filled.saturating_add(bytes);
        if *filled >= if is_first { first_bytes } else { cap_bytes } {
            is_first = false;
            done.push(open.swap_remove(place).2);
        }
    }
    done.extend(open.into_iter().map(|(_, _, parameters)| parameters));
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(list: &[(DType, usize)]) -> Vec<Size> {
        list.iter().map(|&(dtype, bytes)| Size { dtype, bytes }).collect()
    }

    #[test]
    fn the_first_bucket_is_small_and_dtypes_stay_apart() {
        let mib = 1 << 20;
        let list: Vec<_> = (0..6).map(|_| (DType::F32, mib)).collect();
        assert_eq!(
            ordered(&[5, 4, 3, 2, 1, 0], &sizes(&list), 2 * mib),
            [vec![5], vec![4, 3], vec![2, 1], vec![0]]
        );
        assert_eq!(whole(&sizes(&list)), [vec![5, 4, 3, 2, 1, 0]]);
        let mixed = sizes(&[(DType::F32, 8), (DType::Bf16, 4), (DType::F32, 8)]);
        assert_eq!(ordered(&[0, 1, 2], &mixed, 25 * mib), [vec![0, 2], vec![1]]);
        // A parameter that is larger than a bucket has its own.
        assert_eq!(ordered(&[1, 0], &sizes(&[(DType::F32, 8), (DType::F32, 90)]), 16), [vec![1], vec![0]]);
    }
}
