"""Computes `cross_entropy_loss` of eager PyTorch by one kernel for the forward pass and one for the backward pass.

PyTorch composes it from log-softmax and a loss: under autocast matrices of the size of the scores are written five times and read
five times, and logarithms of probabilities are rounded to the dtype of the scores in between. Here the scores are read twice
without conversion, their gradient is written once, and nothing is rounded before it. A call that is not taken is composed as
PyTorch does.
"""

# The operators that this module calls; the library registers the kernels.
SCHEMAS = (
    "cross_entropy_rows(Tensor self, Tensor target, int ignore_index) -> (Tensor losses, Tensor log_sums)",
    "cross_entropy_rows_backward(Tensor grad, Tensor self, Tensor target, Tensor log_sums, int ignore_index) -> Tensor",
)
OPERATOR = "cross_entropy_loss"

# The libraries of definitions, which stay, and of the registration, while there is one.
definitions = None
registration = None
# The minimum number of elements for which a call is checked at all.
fewest = 0
_rows = None


def define():
    """Defines the operators that kernels are registered for, once."""
    import torch

    global definitions, _rows
    if definitions is not None:
        return
    definitions = torch.library.Library("thalweg", "FRAGMENT")
    for schema in SCHEMAS:
        definitions.define(schema)

    class Rows(torch.autograd.Function):
        """The loss of every row, in float32."""

        @staticmethod
        def forward(context, losses, log_sums, scores, target, ignore_index):
            context.save_for_backward(scores, target, log_sums)
            context.ignore_index = ignore_index
            context.mark_dirty(losses)
            return losses

        @staticmethod
        def backward(context, gradient):
            scores, target, log_sums = context.saved_tensors
            ignore_index = context.ignore_index
            is_batched = torch._C._functorch.is_functorch_wrapped_tensor(gradient)
            if registration is not None and not torch.is_grad_enabled() and not is_batched:
                of_scores = torch.ops.thalweg.cross_entropy_rows_backward.default(
                    gradient.contiguous(), scores, target, log_sums, ignore_index
                )
                if of_scores.numel() or not scores.numel():
                    return None, None, of_scores, None, None
            return None, None, _composed_gradient(gradient, scores, target, ignore_index), None, None

    _rows = Rows


def _composed_gradient(gradient, scores, target, ignore_index):
    """Returns the gradient by PyTorch's operators, which can be differentiated again."""
    import torch

    counts = target != ignore_index
    shares = torch.softmax(scores, -1, dtype=torch.float32)
    chosen = torch.zeros_like(shares).scatter_(1, target.clamp_min(0).unsqueeze(1), 1.0)
    return ((shares - chosen) * (gradient * counts).unsqueeze(1)).to(scores.dtype)


def _fits(scores, target, weight, label_smoothing):
    """Returns whether a call may be taken: of plain tensors, outside of tracing and of transformations of functions."""
    import torch

    return (
        scores.numel() >= fewest
        and weight is None
        and label_smoothing == 0.0
        and scores.dim() == 2
        and target.dim() == 1
        and target.dtype == torch.int64
        and type(scores) in (torch.Tensor, torch.nn.Parameter)
        and type(target) is torch.Tensor
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._functorch.is_functorch_wrapped_tensor(scores)
        and not torch._C._functorch.is_functorch_wrapped_tensor(target)
        and torch.autograd.forward_ad._current_level < 0
    )


def _losses(scores, target, reduction, ignore_index):
    """Returns the reduced loss in float32, or None if the call is not taken."""
    import torch

    with torch.no_grad():
        losses, log_sums = torch.ops.thalweg.cross_entropy_rows.default(scores, target, ignore_index)
    if not losses.numel():
        return None
    losses = _rows.apply(losses, log_sums, scores, target, ignore_index)
    if reduction == 0:
        return losses
    total = losses.sum()
    return total / (target != ignore_index).sum() if reduction == 1 else total


def _cross_entropy_loss(scores, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    import torch

    if _fits(scores, target, weight, label_smoothing) and reduction in (0, 1, 2):
        loss = _losses(scores, target, reduction, ignore_index)
        if loss is not None:
            return loss if torch.is_autocast_enabled(scores.device.type) else loss.to(scores.dtype)
    composed = torch.ops.aten.cross_entropy_loss.default
    return composed.decompose(scores, target, weight, reduction, ignore_index, label_smoothing)


def enable(key, elements):
    """Registers the loss instead of PyTorch's composition, at the autograd key of `key`."""
    import torch

    global registration, fewest
    fewest = elements
    if registration is None:
        registration = torch.library.Library("aten", "IMPL")
        registration.impl(OPERATOR, _cross_entropy_loss, f"Autograd{key}")


def disable():
    global registration
    if registration is not None:
        registration._destroy()
        registration = None
