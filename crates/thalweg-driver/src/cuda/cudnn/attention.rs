//! Attention as a graph of cuDNN's operations.
//!
//! cuDNN recognises attention by its pattern, so the operations and their order are fixed. They are those that
//! [cudnn-frontend](https://github.com/NVIDIA/cudnn-frontend) documents for cuDNN up to 9.20 (there, as the composite
//! node). The row sums of the backward pass and all scratch memory are contiguous: engines accept other strides without an
//! error and compute wrong gradients.

use super::graph::{Extents, Format, Graph, Overrides, Pointwise, Reduction, Role, TensorIndex, transposed};
use crate::library::ElementFormat;
use crate::library::attention::AttentionShape;

/// The strides of an operand: from one batch, head and position to the next. The elements of a head are contiguous.
pub(super) type Strides = [i64; 3];

/// A cache key: everything that a graph of attention depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Recipe {
    pub(super) shape: AttentionShape,
    pub(super) query: Strides,
    pub(super) key: Strides,
    pub(super) value: Strides,
    /// The strides of the mask; 0 repeats.
    pub(super) mask: Option<Strides>,
    pub(super) output: Strides,
    /// The strides of the gradients of output, query, key and value, in a backward pass.
    pub(super) gradients: Option<[Strides; 4]>,
    /// Whether the query's gradient is computed as one product in a fixed order, instead of a sum in f32 that blocks add
    /// to.
    pub(super) deterministic: bool,
    /// Whether the lengths of the sequences are also passed in memory: see [`Recipe::reports_lengths`].
    pub(super) lengths: bool,
}

/// Converts a size to the library's type. The sizes of a shape fit `i64`, which a [`Recipe`] has checked.
const fn size(value: u64) -> i64 {
    value as i64
}

impl Recipe {
    fn format(&self) -> Format {
        if self.shape.format == ElementFormat::R_16F { Format::F16 } else { Format::Bf16 }
    }

    const fn query_sizes(&self) -> Extents {
        let AttentionShape { batch, heads, queries, head_size, .. } = self.shape;
        [size(batch), size(heads), size(queries), size(head_size)]
    }

    const fn key_sizes(&self) -> Extents {
        let AttentionShape { batch, kv_heads, keys, head_size, .. } = self.shape;
        [size(batch), size(kv_heads), size(keys), size(head_size)]
    }

    const fn score_sizes(&self) -> Extents {
        let AttentionShape { batch, heads, queries, keys, .. } = self.shape;
        [size(batch), size(heads), size(queries), size(keys)]
    }

    const fn row_sizes(&self) -> Extents {
        let [batch, heads, queries, _] = self.query_sizes();
        [batch, heads, queries, 1]
    }

    fn operand(&self, graph: &mut Graph, role: Role, sizes: Extents, strides: Strides) -> TensorIndex {
        let [batch, head, position] = strides;
        graph.tensor(role, sizes, [batch, head, position, 1], self.format())
    }

    /// Adds keys or values as the second operand of a product over the head.
    fn transposed(&self, graph: &mut Graph, role: Role, strides: Strides) -> TensorIndex {
        let [batch, head, position] = strides;
        let strides = transposed([batch, head, position, 1]);
        graph.tensor(role, transposed(self.key_sizes()), strides, self.format())
    }

    /// Adds the lengths of queries and keys in memory, if they are passed.
    fn lengths(&self, graph: &mut Graph) -> Option<[TensorIndex; 2]> {
        let sizes = [size(self.shape.batch), 1, 1, 1];
        let mut length = |role| graph.tensor(role, sizes, [1; 4], Format::I32);
        self.lengths.then(|| [length(Role::QueryLengths), length(Role::KeyLengths)])
    }

    /// Adds a mask of the positions beyond the lengths.
    fn pad(&self, graph: &mut Graph, scores: TensorIndex, lengths: [TensorIndex; 2]) -> TensorIndex {
        let (row, column) = (graph.index(scores, 2), graph.index(scores, 3));
        let row = graph.decide(Pointwise::Less, &[row, lengths[0]]);
        let column = graph.decide(Pointwise::Less, &[column, lengths[1]]);
        let inside = graph.decide(Pointwise::And, &[row, column]);
        let masked = graph.number(Role::Masked);
        graph.map(Pointwise::Select, &[scores, masked, inside])
    }

    /// Adds the mask to the scores, if there is one. Along dimensions that it repeats (batches, heads) its size is one.
    fn mask(&self, graph: &mut Graph, scores: TensorIndex) -> TensorIndex {
        let Some(mut strides) = self.mask else { return scores };
        let mut sizes = self.score_sizes();
        for dimension in [1, 0] {
            if strides[dimension] == 0 {
                sizes[dimension] = 1;
                strides[dimension] = super::graph::contiguous(sizes)[dimension];
            }
        }
        let mask = self.operand(graph, Role::Mask, sizes, strides);
        graph.map(Pointwise::Add, &[scores, mask])
    }

    /// Adds the causal mask, if there is one.
    fn causal(&self, graph: &mut Graph, scores: TensorIndex) -> TensorIndex {
        if !self.shape.causal {
            return scores;
        }
        let (row, column) = (graph.index(scores, 2), graph.index(scores, 3));
        let seen = graph.decide(Pointwise::GreaterOrEqual, &[row, column]);
        let masked = graph.number(Role::Masked);
        graph.map(Pointwise::Select, &[scores, masked, seen])
    }

    /// Adds the scaled products of queries and keys, masked beyond the lengths.
    fn scores(
        &self,
        graph: &mut Graph,
        query: TensorIndex,
        key: TensorIndex,
        lengths: Option<[TensorIndex; 2]>,
    ) -> TensorIndex {
        let products = graph.between(self.score_sizes(), Format::F32);
        graph.multiply(query, key, products, of_scores(lengths));
        let scale = graph.number(Role::Scale);
        let scores = graph.map(Pointwise::Multiply, &[products, scale]);
        let scores = self.mask(graph, scores);
        match lengths {
            Some(lengths) => self.pad(graph, scores, lengths),
            None => scores,
        }
    }

    /// Returns the graph of this pass.
    pub(super) fn graph(&self) -> Graph {
        match self.gradients {
            None => self.forward(),
            Some(gradients) => self.backward(gradients),
        }
    }

    fn forward(&self) -> Graph {
        let graph = &mut Graph::default();
        let query = self.operand(graph, Role::Query, self.query_sizes(), self.query);
        let key = self.transposed(graph, Role::Key, self.key);
        let value = self.operand(graph, Role::Value, self.key_sizes(), self.value);
        let output = self.operand(graph, Role::Output, self.query_sizes(), self.output);
        let rows = self.row_sizes();
        let log_sum_exp = graph.tensor(Role::LogSumExp, rows, super::graph::contiguous(rows), Format::F32);
        let lengths = self.lengths(graph);
        let scores = self.scores(graph, query, key, lengths);
        let scores = self.causal(graph, scores);
        let maximum = graph.between(rows, Format::F32);
        graph.reduce(Reduction::Maximum, scores, maximum);
        let shifted = graph.map(Pointwise::Subtract, &[scores, maximum]);
        let exponentials = graph.map(Pointwise::Exponential, &[shifted]);
        let sum = graph.between(rows, Format::F32);
        graph.reduce(Reduction::Add, exponentials, sum);
        let logarithm = graph.map(Pointwise::Logarithm, &[sum]);
        graph.point(Pointwise::Add, &[maximum, logarithm], log_sum_exp);
        let probabilities = graph.between(self.score_sizes(), self.format());
        graph.point(Pointwise::Divide, &[exponentials, sum], probabilities);
        graph.multiply(probabilities, value, output, of_rows(lengths));
        std::mem::take(graph)
    }

    fn backward(
        &self,
        [output_gradient, query_gradient, key_gradient, value_gradient]: [Strides; 4],
    ) -> Graph {
        let graph = &mut Graph::default();
        let (queries, keys, rows) = (self.query_sizes(), self.key_sizes(), self.row_sizes());
        let dense = super::graph::contiguous;
        let query = self.operand(graph, Role::Query, queries, self.query);
        let key = self.transposed(graph, Role::Key, self.key);
        let value = self.transposed(graph, Role::Value, self.value);
        let output = self.operand(graph, Role::Output, queries, self.output);
        let log_sum_exp = graph.tensor(Role::LogSumExp, rows, dense(rows), Format::F32);
        let output_gradient = self.operand(graph, Role::OutputGradient, queries, output_gradient);
        let query_gradient = self.operand(graph, Role::QueryGradient, queries, query_gradient);
        let key_gradient = self.operand(graph, Role::KeyGradient, keys, key_gradient);
        let value_gradient = self.operand(graph, Role::ValueGradient, keys, value_gradient);
        let row_products = graph.tensor(Role::RowProducts, rows, dense(rows), Format::F32);
        let lengths = self.lengths(graph);

        let products = graph.map(Pointwise::Multiply, &[output_gradient, output]);
        let sums = graph.between(rows, Format::F32);
        graph.reduce(Reduction::Add, products, sums);
        let one = graph.number(Role::One);
        graph.point(Pointwise::Multiply, &[sums, one], row_products);

        let scores = self.scores(graph, query, key, lengths);
        let shifted = graph.map(Pointwise::Subtract, &[scores, log_sum_exp]);
        let shifted = self.causal(graph, shifted);
        let probabilities = graph.map(Pointwise::Exponential, &[shifted]);
        self.over_queries(graph, probabilities, output_gradient, value_gradient, lengths);

        let gradients = graph.between(self.score_sizes(), Format::F32);
        graph.multiply(output_gradient, value, gradients, of_scores(lengths));
        let centred = graph.map(Pointwise::Subtract, &[gradients, row_products]);
        let gradients = graph.map(Pointwise::Multiply, &[centred, probabilities]);
        let scale = graph.number(Role::Scale);
        let gradients = graph.map(Pointwise::Multiply, &[gradients, scale]);
        self.over_queries(graph, gradients, query, key_gradient, lengths);

        let key = graph.transpose(key, self.format());
        if self.deterministic {
            graph.multiply(gradients, key, query_gradient, of_rows(lengths));
        } else {
            let sums = graph.tensor(Role::QuerySums, queries, dense(queries), Format::F32);
            graph.multiply(gradients, key, sums, of_rows(lengths));
            graph.point(Pointwise::Identity, &[sums], query_gradient);
        }
        std::mem::take(graph)
    }

    /// Adds `scoresᵀ · operand`, summed over the heads that share keys and values.
    fn over_queries(
        &self,
        graph: &mut Graph,
        scores: TensorIndex,
        operand: TensorIndex,
        output: TensorIndex,
        lengths: Option<[TensorIndex; 2]>,
    ) {
        let transposed = graph.transpose(scores, self.format());
        let overrides = lengths.map_or([None; 3], |[queries, keys]| [Some(keys), None, Some(queries)]);
        if self.shape.heads == self.shape.kv_heads {
            return graph.multiply(transposed, operand, output, overrides);
        }
        let [batch, _, keys, head_size] = self.key_sizes();
        let each = graph.between([batch, size(self.shape.heads), keys, head_size], self.format());
        graph.multiply(transposed, operand, each, overrides);
        graph.reduce(Reduction::Add, each, output);
    }
}

/// Returns the sizes of a product whose output is the scores.
fn of_scores(lengths: Option<[TensorIndex; 2]>) -> Overrides {
    lengths.map_or([None; 3], |[queries, keys]| [Some(queries), Some(keys), None])
}

/// Returns the sizes of a product of the scores' rows.
fn of_rows(lengths: Option<[TensorIndex; 2]>) -> Overrides {
    lengths.map_or([None; 3], |[queries, keys]| [Some(queries), None, Some(keys)])
}
