//! [`Embedding`]: two iteration spaces as one.
//!
//! The *guest's* dimensions become dimensions of the *host*. Which ones follows from an operand that both have: dimensions with the
//! same stride are the same. Where extents differ, the longer one is divided, as `[6, 4]` and `[24]` are both `[6, 4]`.

use smallvec::SmallVec;

/// The numbers of dimensions, outermost first.
pub(crate) type Numbers = SmallVec<[usize; 3]>;

/// A dimension of an operand: an extent and a stride.
pub(crate) type Dim = (u64, u64);

/// A common dimension of two spaces: the numbers of the dimensions that it is a part of, and its extent.
struct Atom {
    host: usize,
    guest: usize,
    extent: u64,
}

/// Two iteration spaces as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Embedding {
    /// The extents of the common space: its rows, then its inner dimensions.
    pub extents: SmallVec<[u64; 8]>,
    /// The number of row dimensions.
    pub rows: usize,
    /// The dimensions of the common space as which each dimension of the host is divided.
    pub host: Vec<Numbers>,
    /// The dimensions of the common space as which each dimension of the guest is divided.
    pub guest: Vec<Numbers>,
}

/// Pairs the dimensions of two operands over the same elements, innermost first. Dimensions that repeat an element are left out.
fn atoms(host: &[Dim], guest: &[Dim]) -> Option<Vec<Atom>> {
    let walked = |dims: &[Dim]| {
        let mut list: Vec<(usize, u64, u64)> = (dims.iter().enumerate())
            .filter(|(_, (extent, stride))| *extent > 1 && *stride > 0)
            .map(|(number, &(extent, stride))| (number, extent, stride))
            .collect();
        list.sort_by_key(|&(_, _, stride)| std::cmp::Reverse(stride));
        list
    };
    let (mut hosts, mut guests) = (walked(host), walked(guest));
    let mut atoms = Vec::new();
    while let (Some(host), Some(guest)) = (hosts.last_mut(), guests.last_mut()) {
        let extent = host.1.min(guest.1);
        if host.2 != guest.2 || !host.1.is_multiple_of(extent) || !guest.1.is_multiple_of(extent) {
            return None;
        }
        atoms.push(Atom { host: host.0, guest: guest.0, extent });
        for list in [&mut hosts, &mut guests] {
            let dim = list.last_mut().expect("both have a dimension");
            *dim = (dim.0, dim.1 / extent, dim.2 * extent);
            if dim.1 == 1 {
                list.pop();
            }
        }
    }
    (hosts.is_empty() && guests.is_empty()).then_some(atoms)
}

impl Embedding {
    /// Embeds a guest's space in a host's, of which the first `rows` dimensions are rows, by an operand of each over the same
    /// elements. Returns `None` if the operands differ, or do not determine every dimension of the guest.
    pub fn new(host: &[Dim], rows: usize, guest: &[Dim]) -> Option<Self> {
        let atoms = atoms(host, guest)?;
        let mut embedding = Self {
            extents: SmallVec::new(),
            rows: 0,
            host: vec![Numbers::new(); host.len()],
            guest: vec![Numbers::new(); guest.len()],
        };
        let mut places = vec![0; atoms.len()];
        for (number, &(extent, _)) in host.iter().enumerate() {
            // Outermost first.
            let of = (0..atoms.len()).rev().filter(|&atom| atoms[atom].host == number);
            for atom in of {
                places[atom] = embedding.extents.len();
                embedding.host[number].push(places[atom]);
                embedding.extents.push(atoms[atom].extent);
            }
            if embedding.host[number].is_empty() && extent > 1 {
                embedding.host[number].push(embedding.extents.len());
                embedding.extents.push(extent);
            }
            if number + 1 == rows {
                embedding.rows = embedding.extents.len();
            }
        }
        for atom in (0..atoms.len()).rev() {
            embedding.guest[atoms[atom].guest].push(places[atom]);
        }
        let is_embedded = |(numbers, &(extent, _)): (&Numbers, &Dim)| extent == 1 || !numbers.is_empty();
        embedding.guest.iter().zip(guest).all(is_embedded).then_some(embedding)
    }

    /// Returns whether the guest has every dimension of the common space in this range.
    pub fn covers(&self, dimensions: std::ops::Range<usize>) -> bool {
        dimensions.into_iter().all(|number| self.guest.iter().any(|numbers| numbers.contains(&number)))
    }

    /// Returns whether the guest has any dimension of the common space in this range.
    pub fn meets(&self, dimensions: std::ops::Range<usize>) -> bool {
        self.guest.iter().flatten().any(|number| dimensions.contains(number))
    }

    /// Returns an operand's strides over the common space from those over a space that is divided like this.
    pub fn strides(&self, divided: &[Numbers], strides: impl Iterator<Item = u64>) -> SmallVec<[u64; 8]> {
        let mut result = SmallVec::from_elem(0, self.extents.len());
        for (numbers, mut stride) in divided.iter().zip(strides) {
            for &number in numbers.iter().rev() {
                result[number] = stride;
                stride *= self.extents[number];
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_with_the_same_stride_are_the_same() {
        // Rows [6, 4] of [5] points against [5, 24], whose columns are the rows.
        let embedding = Embedding::new(&[(6, 20), (4, 5), (5, 1)], 2, &[(5, 1), (24, 5)]).unwrap();
        assert_eq!((embedding.extents.as_slice(), embedding.rows), (&[6, 4, 5][..], 2));
        assert_eq!(embedding.guest, [Numbers::from_slice(&[2]), Numbers::from_slice(&[0, 1])]);
        assert_eq!(embedding.strides(&embedding.guest, [7, 100].into_iter()).as_slice(), [400, 100, 7]);
        assert!(embedding.covers(0..3));

        let divided = Embedding::new(&[(24, 5), (5, 1)], 1, &[(6, 20), (4, 5), (5, 1)]).unwrap();
        assert_eq!((divided.extents.as_slice(), divided.rows), (&[6, 4, 5][..], 2));
        assert_eq!(divided.strides(&divided.host, [1, 24].into_iter()).as_slice(), [4, 1, 24]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(Embedding::new(&[(6, 4), (4, 1)], 2, &[(4, 6), (6, 1)]), None, "not the same elements");
        assert_eq!(Embedding::new(&[(6, 1)], 1, &[(4, 1)]), None, "6 is not a multiple of 4");
        assert_eq!(Embedding::new(&[(6, 1)], 1, &[(3, 1)]), None, "a part of the elements");
        assert_eq!(Embedding::new(&[(6, 1)], 1, &[(2, 0), (6, 1)]), None, "the guest repeats");
    }

    #[test]
    fn a_host_may_have_more_dimensions() {
        let rows = Embedding::new(&[(6, 1), (5, 0)], 1, &[(1, 9), (6, 1)]).unwrap();
        assert_eq!((rows.extents.as_slice(), rows.rows), (&[6, 5][..], 1));
        assert!(rows.covers(0..1) && !rows.meets(1..2));
        let point = Embedding::new(&[(6, 0)], 1, &[]).unwrap();
        assert!(!point.covers(0..1) && point.guest.is_empty());
    }
}
