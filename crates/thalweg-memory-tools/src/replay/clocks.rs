//! Vector clocks that share common parts.
//!
//! If N streams wait for each other, each of them has N points. A table for each stream and each event would be N² numbers; so a
//! clock is an immutable tree. A copy is a pointer, a new point replaces the path to it, and a stream that waits for one with a
//! later clock shares its branches from then on.
//!
//! The inherent cost remains: N streams whose clocks have N different points each have N² numbers between them.

use std::sync::Arc;

/// The number of numbers or branches that a node has.
const WIDTH: usize = 16;

/// The number of passed events of each stream, by the stream's number. See the [module's essay](self).
#[derive(Clone, Default, Debug)]
pub(super) struct Clock {
    root: Option<Arc<Node>>,
    /// The number of levels of branches above the leaves.
    height: u32,
}

#[derive(Debug)]
enum Node {
    Leaf([u64; WIDTH]),
    Branch([Option<Arc<Node>>; WIDTH]),
}

impl Clock {
    /// Returns the number of passed events of a stream.
    pub(super) fn get(&self, stream: usize) -> u64 {
        if stream >= width_of(self.height) * WIDTH {
            return 0;
        }
        let (mut node, mut height) = (self.root.as_ref(), self.height);
        loop {
            match node.map(|node| &**node) {
                None => return 0,
                Some(Node::Leaf(places)) => return places[stream % WIDTH],
                Some(Node::Branch(branches)) => {
                    node = branches[stream / width_of(height) % WIDTH].as_ref();
                    height -= 1;
                }
            }
        }
    }

    /// Sets the number of passed events of a stream.
    pub(super) fn set(&mut self, stream: usize, place: u64) {
        while stream >= width_of(self.height) * WIDTH {
            self.lift();
        }
        self.root = Some(with(self.root.as_ref(), self.height, stream, place));
    }

    /// Raises each number to at least the number of the same index in `other`.
    pub(super) fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        while self.height < other.height {
            self.lift();
        }
        while other.height < self.height {
            other.lift();
        }
        self.root = merged(self.root.as_ref(), other.root.as_ref());
    }

    fn lift(&mut self) {
        self.height += 1;
        self.root = self.root.take().map(|root| {
            let mut branches = [const { None }; WIDTH];
            branches[0] = Some(root);
            Arc::new(Node::Branch(branches))
        });
    }
}

/// Returns the number of streams below one slot of a node of this height.
fn width_of(height: u32) -> usize {
    WIDTH.pow(height)
}

fn with(node: Option<&Arc<Node>>, height: u32, stream: usize, place: u64) -> Arc<Node> {
    let at = stream / width_of(height) % WIDTH;
    Arc::new(if height == 0 {
        let mut places = match node.map(|node| &**node) {
            Some(Node::Leaf(places)) => *places,
            _ => [0; WIDTH],
        };
        places[at] = place;
        Node::Leaf(places)
    } else {
        let mut branches = match node.map(|node| &**node) {
            Some(Node::Branch(branches)) => branches.clone(),
            _ => [const { None }; WIDTH],
        };
        branches[at] = Some(with(branches[at].as_ref(), height - 1, stream, place));
        Node::Branch(branches)
    })
}

/// Returns the maximum of two nodes of one height, number by number. If one of the nodes is nowhere below the other, returns that
/// node itself.
fn merged(a: Option<&Arc<Node>>, b: Option<&Arc<Node>>) -> Option<Arc<Node>> {
    let (Some(a), Some(b)) = (a, b) else { return a.or(b).cloned() };
    if Arc::ptr_eq(a, b) {
        return Some(Arc::clone(a));
    }
    let (is_a, is_b, node) = match (&**a, &**b) {
        (Node::Leaf(left), Node::Leaf(right)) => {
            let places: [u64; WIDTH] = std::array::from_fn(|at| left[at].max(right[at]));
            (places == *left, places == *right, Node::Leaf(places))
        }
        (Node::Branch(left), Node::Branch(right)) => {
            let branches = std::array::from_fn(|at| merged(left[at].as_ref(), right[at].as_ref()));
            (same(&branches, left), same(&branches, right), Node::Branch(branches))
        }
        _ => unreachable!("both have one height"),
    };
    Some(match (is_a, is_b) {
        (true, _) => Arc::clone(a),
        (_, true) => Arc::clone(b),
        _ => Arc::new(node),
    })
}

fn same(left: &[Option<Arc<Node>>], right: &[Option<Arc<Node>>]) -> bool {
    left.iter().zip(right).all(|pair| match pair {
        (Some(left), Some(right)) => Arc::ptr_eq(left, right),
        (left, right) => left.is_none() && right.is_none(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;

    /// The result is compared with a table for each stream.
    #[test]
    fn clocks_are_vector_clocks() {
        let mut random = 7_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % below
        };
        for streams in [3, 16, 40, 5000] {
            let mut clocks = vec![(Clock::default(), BTreeMap::<usize, u64>::new()); 12];
            for place in 1..3000 {
                let at = next(clocks.len());
                if next(3) > 0 {
                    let stream = next(streams);
                    clocks[at].0.set(stream, place);
                    clocks[at].1.insert(stream, place);
                } else {
                    let (other, table) = clocks[next(12)].clone();
                    clocks[at].0.merge(&other);
                    for (stream, place) in table {
                        let known = clocks[at].1.entry(stream).or_default();
                        *known = place.max(*known);
                    }
                }
                let (clock, table) = &clocks[at];
                let stream = next(2 * streams);
                assert_eq!(clock.get(stream), table.get(&stream).copied().unwrap_or(0));
            }
            for (clock, table) in &clocks {
                assert!(
                    (0..streams).all(|stream| clock.get(stream) == table.get(&stream).copied().unwrap_or(0))
                );
            }
        }
    }

    /// All streams wait for one, which waited for all, repeatedly.
    #[test]
    fn streams_that_know_the_same_share_it() {
        const STREAMS: usize = 4000;
        let mut clocks = vec![Clock::default(); STREAMS];
        let mut events = Vec::new();
        for place in 1..4 {
            for stream in 1..STREAMS {
                clocks[stream].set(stream, place);
                events.push(clocks[stream].clone());
                let event = clocks[stream].clone();
                clocks[0].merge(&event);
            }
            clocks[0].set(0, place);
            let main = clocks[0].clone();
            clocks[1..].iter_mut().for_each(|clock| clock.merge(&main));
        }
        let mut nodes = HashSet::new();
        for clock in clocks.iter().chain(&events) {
            let mut open: Vec<&Arc<Node>> = clock.root.iter().collect();
            while let Some(node) = open.pop() {
                if nodes.insert(Arc::as_ptr(node))
                    && let Node::Branch(branches) = &**node
                {
                    open.extend(branches.iter().flatten());
                }
            }
        }
        assert!((1..STREAMS).all(|stream| clocks[7].get(stream) == 3));
        let numbers = nodes.len() * WIDTH;
        assert!(numbers < events.len() * 6 * WIDTH, "{numbers} numbers for {} events", events.len());
    }
}
