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
