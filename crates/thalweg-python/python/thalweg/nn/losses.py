"""Modules of losses."""

from . import _parameters
from . import functional as F
from .module import Module


class _Loss(Module):
    """A loss of an input and a target. Subclasses implement it."""

    def __init__(self, size_average=None, reduce=None, reduction="mean"):
        super().__init__()
        if size_average is not None or reduce is not None:
            reduction = F._NAMES[F._reduction("mean", size_average, reduce)]
        F._reduction(reduction if reduction != "batchmean" else "mean")
        self.reduction = reduction


class _WeightedLoss(_Loss):
    """A loss with weights, which are in a buffer."""

    def __init__(self, weight=None, size_average=None, reduce=None, reduction="mean"):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


_PAIR, _TRIPLE = "input1, input2, target", "anchor, positive, negative"
_REDUCED = "size_average=None, reduce=None, reduction='mean'"


def _loss(name, function, parameters=_REDUCED, tensors="input, target"):
    """Creates the module of a loss of these tensors with these parameters: weights are buffers, all others are attributes."""
    names = _parameters.names_of(parameters)
    weights = [one for one in names if one in ("weight", "pos_weight")]
    fields = [one for one in names if one not in ("weight", "pos_weight", "size_average", "reduce", "reduction")]

    def start(self, given):
        if "swap" in fields:
            F._checks.check_margin(given["margin"], f"{name}: expected margin to be greater than 0, got {{}} instead")
        _Loss.__init__(self, given.get("size_average"), given.get("reduce"), given["reduction"])
        for weight in weights:
            self.register_buffer(weight, given[weight])
        for field in fields:
            setattr(self, field, given[field])

    def compute(self, given):
        options = {one: getattr(self, one) for one in fields + weights}
        return getattr(F, function.__name__)(*given.values(), reduction=self.reduction, **options)
    base = _WeightedLoss if "weight" in weights else _Loss
    return type(name, (base,), {
        "__init__": _parameters.initializer(name, parameters, start), "forward": _parameters.method(f"{name}.forward", tensors, compute),
        "__module__": "thalweg.nn", "__qualname__": name,
        "__doc__": f"`functional.{function.__name__}` as a module."})


CrossEntropyLoss = _loss("CrossEntropyLoss", F.cross_entropy,
                         "weight=None, size_average=None, ignore_index=-100, reduce=None, reduction='mean', label_smoothing=0.0")
NLLLoss = _loss("NLLLoss", F.nll_loss, "weight=None, size_average=None, ignore_index=-100, reduce=None, reduction='mean'")
MSELoss = _loss("MSELoss", F.mse_loss)
L1Loss = _loss("L1Loss", F.l1_loss)
SmoothL1Loss = _loss("SmoothL1Loss", F.smooth_l1_loss, f"{_REDUCED}, beta=1.0")
HuberLoss = _loss("HuberLoss", F.huber_loss, "reduction='mean', delta=1.0")
BCELoss = _loss("BCELoss", F.binary_cross_entropy, f"weight=None, {_REDUCED}")
BCEWithLogitsLoss = _loss("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, f"weight=None, {_REDUCED}, pos_weight=None")
KLDivLoss = _loss("KLDivLoss", F.kl_div, f"{_REDUCED}, log_target=False")
MarginRankingLoss = _loss("MarginRankingLoss", F.margin_ranking_loss, f"margin=0.0, {_REDUCED}", tensors=_PAIR)
HingeEmbeddingLoss = _loss("HingeEmbeddingLoss", F.hinge_embedding_loss, f"margin=1.0, {_REDUCED}")
SoftMarginLoss = _loss("SoftMarginLoss", F.soft_margin_loss)
CosineEmbeddingLoss = _loss("CosineEmbeddingLoss", F.cosine_embedding_loss, f"margin=0.0, {_REDUCED}", tensors=_PAIR)
TripletMarginLoss = _loss("TripletMarginLoss", F.triplet_margin_loss, f"margin=1.0, p=2.0, eps=1e-06, swap=False, {_REDUCED}", tensors=_TRIPLE)
TripletMarginWithDistanceLoss = _loss("TripletMarginWithDistanceLoss", F.triplet_margin_with_distance_loss,
                                      "*, distance_function=None, margin=1.0, swap=False, reduction='mean'", tensors=_TRIPLE)
MultiLabelMarginLoss = _loss("MultiLabelMarginLoss", F.multilabel_margin_loss)
MultiLabelSoftMarginLoss = _loss("MultiLabelSoftMarginLoss", F.multilabel_soft_margin_loss, f"weight=None, {_REDUCED}")
PoissonNLLLoss = _loss("PoissonNLLLoss", F.poisson_nll_loss,
                       "log_input=True, full=False, size_average=None, eps=1e-08, reduce=None, reduction='mean'", tensors="log_input, target")
GaussianNLLLoss = _loss("GaussianNLLLoss", F.gaussian_nll_loss, "*, full=False, eps=1e-06, reduction='mean'", tensors="input, target, var")


class MultiMarginLoss(_WeightedLoss):
    """`functional.multi_margin_loss` as a module."""

    def __init__(self, p=1, margin=1.0, weight=None, size_average=None, reduce=None, reduction="mean"):
        F._checks.check_multi_margin(p, weight, "MultiMarginLoss: expected weight to be None or 1D tensor")
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
