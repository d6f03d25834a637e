"""Layouts of results and gradients."""

import thalweg as torch
import thalweg.nn.functional as F


def test_gradients_keep_the_order_of_dimensions():
    """Gradients of functions that compute point by point, of norms and of windows have the layout of their input, as PyTorch's have."""
    last = lambda t: t.contiguous(memory_format=torch.channels_last)
    turned = lambda t: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    pointwise = [F.relu, torch.sigmoid, F.gelu, torch.exp, lambda t: t * 2, lambda t: t.add(1), lambda t: t * t, F.leaky_relu, F.silu, F.hardtanh,
                 lambda t: F.dropout(t, 0.5), lambda t: t.to(torch.bfloat16), lambda t: F.relu_(t.clone()), lambda t: t + torch.ones_like(t)]
    windows = [lambda t: F.max_pool2d(t, 2), lambda t: F.avg_pool2d(t, 2), lambda t: F.interpolate(t, scale_factor=2), lambda t: F.batch_norm(t, None, None, training=True)]
    for arranged, functions in ((last, pointwise + windows), (turned, pointwise)):
        for number, function in enumerate(functions):
            x = arranged(torch.randn(2, 16, 8, 4)).requires_grad_()
            y = function(x)
            (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y))
            assert gradient.stride() == x.stride(), (number, x.stride(), gradient.stride())


def test_results_are_in_the_order_of_the_first_operand_that_tells():
    """PyTorch 2.11's strides for operands that are broadcast and permuted."""
    made = lambda sizes, order: torch.ones(sizes).permute(order)
    cases = [
        ([made((1, 4, 1, 2), (0, 1, 2, 3)), made((1, 1, 2, 3), (0, 1, 3, 2))], (24, 6, 1, 3)),
        ([made((2, 3), (1, 0))[:, None, :], torch.ones(1, 4, 1)], (1, 3, 12)),
        ([torch.ones(3, 1), torch.ones(5, 3).t()], (1, 3)),
        ([torch.ones(3, 5), torch.ones(5, 3).t()], (5, 1)),
        ([torch.ones(3, 1).expand(3, 5), torch.ones(5, 3).t()], (1, 3))]
    for operands, strides in cases:
        assert (operands[0] + operands[1]).stride() == strides, (operands[0].stride(), operands[1].stride())
    for equation, shapes, strides in (
            ("nd,bd->bnd", ((2, 4), (16, 4)), (8, 4, 1)), ("ij,kj->ki", ((3, 4), (5, 4)), (3, 1)), ("i,j->ji", ((3,), (4,)), (3, 1)),
            ("bij,bjk->bki", ((2, 3, 4), (2, 4, 5)), (15, 3, 1)), ("ijk,ilm->jlmk", ((2, 3, 4), (2, 5, 6)), (120, 6, 1, 30))):
        assert torch.einsum(equation, *map(torch.ones, shapes)).stride() == strides, equation
