"""Names from PyTorch's internals by which libraries query the regions around a call, operators of libraries, and
assignments of data, under PyTorch's name."""

import itertools
import math
import os
import pathlib
import subprocess
import sys

import thalweg as th
from support import close


def test_an_assignment_of_data_keeps_the_place_in_the_graph():
    x = th.ones(3, requires_grad=True)
    seen, y = [], x * 2
    y.data = th.zeros(3)
    assert y.tolist() == [0.0] * 3 and not y.is_leaf
    x.register_hook(lambda gradient: seen.append(gradient.tolist()))
    x.data = th.full((3,), 5.0)
    (y + x).sum().backward()
    assert x.grad.tolist() == [3.0] * 3 and seen and th.tensor(seen).sum(0).tolist() == [3.0] * 3
    x.data = th.ones(2)
    assert x.grad.tolist() == [3.0] * 3 and x.requires_grad
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0] and seen[-1] == [3.0, 3.0]


def _transducer(scores, target, blank):
    """Returns minus the logarithm of the sum over all ways through the grid of a transducer, one by one."""
    times, total = len(scores), 0.0
    for labels in itertools.combinations(range(times - 1 + len(target)), len(target)):
        time = place = 0
        chance = 1.0
        for step in range(times - 1 + len(target)):
            row = scores[time][place]
            if step in labels:
                chance *= math.exp(row[target[place]])
                place += 1
            else:
                chance *= math.exp(row[blank])
                time += 1
        total += chance * math.exp(scores[-1][-1][blank])
    return -math.log(total)


def test_operators_of_torchaudio():
    from thalweg._compiled_libraries.audio import forced_align, rnnt_loss_forward
    logits = (th.arange(2 * 4 * 3 * 5.0) * 0.61).sin().view(2, 4, 3, 5).mul(2).double().float()
    targets, lengths, ends = th.tensor([[0, 2], [3, 3]]), th.tensor([4, 3]), th.tensor([2, 1])
    costs, gradient = rnnt_loss_forward(logits, targets, lengths, ends, 4, -1.0, True)
    scores = logits.log_softmax(-1)
    wanted = [_transducer(scores[row, :time, :end + 1].tolist(), targets[row, :end].tolist(), 4)
              for row, (time, end) in enumerate(zip(lengths.tolist(), ends.tolist()))]
    close(costs.tolist(), wanted, 1e-5)
    moved = logits.clone()
    moved[0, 1, 1, 2] += 1e-2
    close(gradient[0, 1, 1, 2].item(), (rnnt_loss_forward(moved, targets, lengths, ends, 4, -1.0, True)[0] - costs)[0].item() / 1e-2, 2e-2)
    assert gradient[1, 3].abs().sum().item() == 0.0
    for target in ([1, 2], [1, 1], [3]):
        rows = (th.arange(5 * 4.0) * 0.83).cos().view(5, 4).mul(2).log_softmax(-1)
        path = forced_align(rows[None], th.tensor([target]), None, None, 0)[0][0].tolist()
        fits = [way for way in itertools.product(range(4), repeat=5) if [one for one, _ in itertools.groupby(way) if one] == target]
        close(sum(rows[time, one].item() for time, one in enumerate(path)), max(sum(rows[time, one].item() for time, one in enumerate(way)) for way in fits), 1e-5)
        assert tuple(path) in fits


def test_what_libraries_ask_of_the_inside():
    program = """if True:
        import torch
        from torch.fx.experimental.proxy_tensor import get_proxy_mode
        from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true, free_symbols
        from torch._guards import detect_fake_mode, TracingContext
        from torch._subclasses.fake_tensor import is_fake
        from torch._C._functorch import is_functorch_wrapped_tensor, maybe_current_level
        from torch.distributed.elastic.multiprocessing.errors import record
        from torch._utils import _get_device_index, ExceptionWrapper
        from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AvgPoolNd
        x = torch.ones(2)
        assert get_proxy_mode() is None and detect_fake_mode(x) is None and TracingContext.try_get() is None and not is_fake(x)
        assert guard_or_false(3 > 2) and not statically_known_true(2 > 3) and free_symbols(x.shape) == set()
        seen = []
        torch.func.vmap(lambda row: seen.append((is_functorch_wrapped_tensor(row), maybe_current_level())) or row)(torch.ones(2, 2))
        assert seen == [(True, 1)] and not is_functorch_wrapped_tensor(x) and maybe_current_level() is None
        assert record(len) is len and _get_device_index("cuda:1") == 1 and torch.random.default_generator.initial_seed() == torch.initial_seed()
        assert isinstance(torch.nn.AdaptiveAvgPool2d(1), _AdaptiveAvgPoolNd) and not isinstance(torch.nn.AdaptiveMaxPool2d(1), _AdaptiveAvgPoolNd)
        assert isinstance(torch.nn.AvgPool3d(1), _AvgPoolNd) and not hasattr(torch.Tensor, "copy") and not hasattr(torch.optim, "Lion")
        try:
            raise KeyError("lost")
        except KeyError:
            wrapped = ExceptionWrapper(where="in a worker")
        try:
            wrapped.reraise()
        except KeyError as error:
            assert "in a worker" in str(error) and "lost" in str(error)

        class Both(torch.distributions.transforms.ExpTransform, torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = torch.nn.Parameter(torch.ones(1))
        assert len(list(Both().parameters())) == 1
        print("done")
    """
    package = str(pathlib.Path(th.__file__).parent.parent)
    run = subprocess.run([sys.executable, "-m", "thalweg", "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": package}, timeout=60)
    assert run.stdout == "done\n", run.stdout + run.stderr
