"""Modules of losses."""

from . import functional as F
from .module import Module


class _Loss(Module):
    """A loss of an input and a target; a subclass says which."""

    def __init__(self, size_average=None, reduce=None, reduction="mean"):
        super().__init__()
        F._reduction(reduction if reduction != "batchmean" else "mean", size_average, reduce)
        self.reduction = reduction


class _WeightedLoss(_Loss):
    """A loss with weights, which are a buffer."""

    def __init__(self, weight=None, size_average=None, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


def _loss(name, function, fields=(), weights=(), by_place=0, tensors=2):
    """Makes a module of a loss.

    `weights` are tensors and `fields` options with their defaults, of which the first `by_place` may be given by their places; `tensors` says
    of how many tensors it is a loss.
    """
    places = [*weights, *(field for field, _ in fields[:by_place])]

    def __init__(self, *args, size_average=None, reduce=None, reduction="mean", **kwargs):
        _Loss.__init__(self, size_average, reduce, reduction)
        if len(args) > len(places):
            raise TypeError(f"{name}() takes its options by name")
        given = {**dict(zip(places, args)), **kwargs}
        for weight in weights:
            self.register_buffer(weight, given.pop(weight, None))
        for field, default in fields:
            setattr(self, field, given.pop(field, default))
        if given:
            raise TypeError(f"{name}.__init__() got an unexpected keyword argument {next(iter(given))!r}")

    def forward(self, input, target, *others):
        if len(others) != tensors - 2:
            raise TypeError(f"{name}.forward() takes {tensors} tensors, not {2 + len(others)}")
        options = {field: getattr(self, field) for field, _ in fields}
        options.update({weight: getattr(self, weight) for weight in weights})
        return function(input, target, *others, reduction=self.reduction, **options)
    base = _WeightedLoss if "weight" in weights else _Loss
    return type(name, (base,), {"__init__": __init__, "forward": forward, "__module__": "thalweg.nn", "__qualname__": name,
                                "__doc__": f"`functional.{function.__name__}` as a module."})


CrossEntropyLoss = _loss("CrossEntropyLoss", F.cross_entropy, [("ignore_index", -100), ("label_smoothing", 0.0)], ["weight"])
NLLLoss = _loss("NLLLoss", F.nll_loss, [("ignore_index", -100)], ["weight"])
MSELoss = _loss("MSELoss", F.mse_loss)
L1Loss = _loss("L1Loss", F.l1_loss)
SmoothL1Loss = _loss("SmoothL1Loss", F.smooth_l1_loss, [("beta", 1.0)])
HuberLoss = _loss("HuberLoss", F.huber_loss, [("delta", 1.0)])
BCELoss = _loss("BCELoss", F.binary_cross_entropy, (), ["weight"])
BCEWithLogitsLoss = _loss("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, (), ["weight", "pos_weight"])
KLDivLoss = _loss("KLDivLoss", F.kl_div, [("log_target", False)])
MarginRankingLoss = _loss("MarginRankingLoss", F.margin_ranking_loss, [("margin", 0.0)], by_place=1, tensors=3)
HingeEmbeddingLoss = _loss("HingeEmbeddingLoss", F.hinge_embedding_loss, [("margin", 1.0)], by_place=1)
SoftMarginLoss = _loss("SoftMarginLoss", F.soft_margin_loss)
CosineEmbeddingLoss = _loss("CosineEmbeddingLoss", F.cosine_embedding_loss, [("margin", 0.0)], by_place=1, tensors=3)
TripletMarginLoss = _loss("TripletMarginLoss", F.triplet_margin_loss, [("margin", 1.0), ("p", 2.0), ("eps", 1e-6), ("swap", False)],
                          by_place=4, tensors=3)
MultiLabelMarginLoss = _loss("MultiLabelMarginLoss", F.multilabel_margin_loss)
MultiLabelSoftMarginLoss = _loss("MultiLabelSoftMarginLoss", F.multilabel_soft_margin_loss, (), ["weight"])
PoissonNLLLoss = _loss("PoissonNLLLoss", F.poisson_nll_loss, [("log_input", True), ("full", False), ("eps", 1e-8)], by_place=2)
GaussianNLLLoss = _loss("GaussianNLLLoss", F.gaussian_nll_loss, [("full", False), ("eps", 1e-6)], tensors=3)


class MultiMarginLoss(_WeightedLoss):
    """`functional.multi_margin_loss` as a module."""

    def __init__(self, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
        super().__init__(weight, size_average, reduce, reduction)
        self.p, self.margin = p, margin

    def forward(self, input, target):
        return F.multi_margin_loss(input, target, self.p, self.margin, self.weight, reduction=self.reduction)


class CTCLoss(_Loss):
    """`functional.ctc_loss` as a module."""

    def __init__(self, blank=0, reduction="mean", zero_infinity=False):
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs, targets, input_lengths, target_lengths):
        return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)
