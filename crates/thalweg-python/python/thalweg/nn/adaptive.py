"""Softmax over many classes, with the rare ones in clusters (`torch.nn.AdaptiveLogSoftmaxWithLoss`)."""

import collections

from .. import _core
from . import functional as F
from .containers import ModuleList, Sequential
from .layers import Linear
from .module import Module

_ASMoutput = collections.namedtuple("_ASMoutput", ["output", "loss"])


class AdaptiveLogSoftmaxWithLoss(Module):
    """The log-softmax over classes, of which the frequent ones have scores of their own and the others are in clusters whose
    scores are computed in fewer dimensions."""

    def __init__(self, in_features, n_classes, cutoffs, div_value=4.0, head_bias=False, device=None, dtype=None):
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("cutoffs should be a sequence of length larger than 0")
        if (cutoffs != sorted(set(cutoffs)) or cutoffs[0] <= 0 or cutoffs[-1] > n_classes - 1
                or any(int(cutoff) != cutoff for cutoff in cutoffs)):
            raise ValueError("cutoffs should be a sequence of unique, positive integers sorted in an increasing order, where each value is between "
                             "1 and n_classes-1")
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, [*cutoffs, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = cutoffs[0], len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, device=device, dtype=dtype)
        self.tail = ModuleList()
        for place, (first, last) in enumerate(zip(self.cutoffs, self.cutoffs[1:])):
            width = int(in_features // div_value ** (place + 1))
            self.tail.append(Sequential(Linear(in_features, width, bias=False, device=device, dtype=dtype),
                                        Linear(width, last - first, bias=False, device=device, dtype=dtype)))

    def reset_parameters(self):
        """Draws new initial values."""
        for layer in (self.head, *(layer for cluster in self.tail for layer in cluster)):
            layer.reset_parameters()

    def forward(self, input_, target_):
        """Returns the log-probabilities of the targets, and their negative mean."""
        if target_.dim() == 1:
            if input_.shape[0] != target_.shape[0]:
                raise RuntimeError("Input and target should have the same size in the batch dimension.")
            if input_.dim() != 2:
                raise RuntimeError("1D target tensor expects 2D input tensors, but found inputs with size", input_.size())
        elif target_.dim() == 0:
            if input_.dim() != 1:
                raise RuntimeError("0D target tensor expects 1D input tensors, but found inputs with size", input_.size())
        else:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        is_batched = target_.dim() > 0
        input, target = (input_, target_) if is_batched else (input_.unsqueeze(0), target_.unsqueeze(0))
        if target.numel():
            low, high = target.min().item(), target.max().item()
            if low < 0 or high >= self.n_classes:
                raise RuntimeError(f"Target values should be in [0, {self.n_classes - 1}], but values in range [{low}, {high}] were found. ")
        output = self._of_targets(input, target)
        return _ASMoutput(output if is_batched else output.squeeze(0), -output.mean())

    def _of_targets(self, input, target):
        """Returns the log-probability of each row's target."""
        head, shortlist = F.log_softmax(self.head(input), 1), self.shortlist_size
        output = head.gather(1, target.clamp_max(shortlist - 1).unsqueeze(1)).squeeze(1)
        for place, (first, last) in enumerate(zip(self.cutoffs, self.cutoffs[1:])):
            rows = ((target >= first) & (target < last)).nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            cluster = F.log_softmax(self.tail[place](input.index_select(0, rows)), 1)
            within = cluster.gather(1, (target.index_select(0, rows) - first).unsqueeze(1)).squeeze(1)
            output = output.index_copy(0, rows, head.index_select(0, rows)[:, shortlist + place] + within)
        return output

    def log_prob(self, input):
        """Returns the log-probabilities of all classes."""
        head, shortlist = F.log_softmax(self.head(input), 1), self.shortlist_size
        parts = [head[:, :shortlist]]
        for place, cluster in enumerate(self.tail):
            parts.append(F.log_softmax(cluster(input), 1) + head[:, shortlist + place].unsqueeze(1))
        return _core.cat(parts, 1)

    def predict(self, input):
        """Returns the most probable class of each row."""
        return self.log_prob(input).argmax(1)
