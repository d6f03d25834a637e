"""Third-party programs and libraries under PyTorch's name: `python -m thalweg`, `install_as_torch`, names that are left out."""

import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

import thalweg as th
from support import raises

PACKAGE = str(pathlib.Path(__file__).resolve().parent.parent / "python")


def run(*arguments, **environment):
    """Runs `python -m thalweg` in a temporary folder, and returns the printed text."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run([sys.executable, "-m", "thalweg", *arguments], capture_output=True, text=True, cwd=folder, timeout=120,
                                env={**os.environ, "PYTHONPATH": PACKAGE, **environment})
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, result.stderr


def program(text, *arguments, **environment):
    """Runs a program from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "program.py")
        path.write_text(textwrap.dedent(text))
        return run(str(path), *arguments, **environment)


def test_one_identity_of_modules():
    program("""
        import importlib.metadata, importlib.util, sys
        import torch
        import torch.nn.functional as F
        from torch.utils.data import DataLoader
        from torch.nn.modules.conv import _ConvNd
        # Names that libraries take from modules of PyTorch.
        import torch.cuda.comm, warnings
        from torch.cuda import _lazy_call
        from torch.distributed._tensor.experimental import implicit_replication
        from torch.distributed.distributed_c10d import _get_global_rank
        from torch.distributions.constraints import __all__
        from torch.distributions.multivariate_normal import Distribution, _precision_to_scale_tril
        from torch.nn.parallel.scatter_gather import scatter
        from torch.serialization import DEFAULT_PROTOCOL, MAP_LOCATION
        from torch.utils.data.dataloader import _collate_fn_t
        from torch.utils._contextlib import _DecoratorContextManager
        assert torch.__name__ == "torch" and torch.nn.functional.__name__ == "torch.nn.functional" and "positive" in __all__
        assert not torch._C._are_functorch_transforms_active() and torch.func.vmap(lambda x: x * torch._C._are_functorch_transforms_active())(torch.ones(1))[0] == 1
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
        torch._assert_async(torch.tensor(True))
        from functorch import make_functional, vmap
        net = torch.nn.Linear(3, 2)
        function, parameters = make_functional(net)
        x = torch.ones(4, 3)
        assert torch.equal(function(parameters, x), net(x)) and torch.allclose(vmap(lambda row: function(parameters, row))(x), net(x))
        import thalweg
        assert torch is thalweg and F is thalweg.nn.functional and DataLoader is thalweg.utils.data.DataLoader
        assert issubclass(torch.nn.Conv2d, _ConvNd) and thalweg.nn.__spec__.name == "thalweg.nn"
        names = [name for name in sys.modules if name.split(".")[0] == "torch"]
        assert all(sys.modules[name] is sys.modules["thalweg" + name[5:]] for name in names) and len(names) > 50
        assert importlib.util.find_spec("torch") is not None and importlib.metadata.version("torch") == "2.11.0"
        assert torch.Tensor.__module__ == "torch" and torch.nn.Linear.__module__.startswith("torch.nn")
        try:
            import torch.nosuch
        except ModuleNotFoundError as error:
            assert "torch.nosuch" in str(error)
        else:
            raise AssertionError
        assert sys.argv[1:] == ["-x", "1"] and __name__ == "__main__"
        """, "-x", "1")


def test_versions_compare():
    found, _ = run("-c", "import torch; v = torch.__version__; print(v, v >= '2.0', v > (2, 9), v < '2.12.0a0', v == '2.11', v <= '2.2', v < '3')")
    assert found.split() == ["2.11.0", "True", "True", "True", "True", "False", "True"]


def test_devices_are_names():
    found, said = program("""
        import torch
        assert torch.device("cuda").index is None and torch.device("cuda:1") != torch.device("cuda") == torch.device("cuda")
        assert str(torch.device("mps")) == "mps" and torch.device("cuda", 1).index == 1
        if not torch.cuda.is_available():
            x = torch.ones(2)
            y = x.to("cuda").cuda()
            assert x.device == torch.device("cpu") == y.device and x.device.index is None and not y.is_cuda
            assert torch.zeros(2, device=torch.device("cuda")).sum().item() == 0
        try:
            torch.zeros(2, device="mps")
        except RuntimeError as error:
            assert "mps" in str(error)
        else:
            raise AssertionError
        try:
            torch.device("gpu")
        except RuntimeError:
            pass
        else:
            raise AssertionError
        """)
    assert th.cuda.is_available() or said.count("the simulated one") == 1, said


def test_simulated_gpu_is_shown_as_cuda():
    if th._core._cuda._gpu_count():
        return "there is a GPU"
    run("--simulated-as", "cuda", "-c", "import torch; x = torch.ones(2); "
        "assert torch.cuda.is_available() and x.is_cuda and str(x.device) == 'cuda:0' and x.cpu().numpy is not None")
    run("-c", "import torch; assert torch.cuda.is_available()", THALWEG_SIMULATED_AS="cuda")


def test_module_and_code_and_other_torch():
    found, _ = run("-m", "json.tool", "--help")
    assert "usage" in found
    program("""
        import sys, types, thalweg
        del sys.modules["torch"]
        sys.modules["torch"] = types.ModuleType("torch")
        try:
            thalweg.install_as_torch()
        except ImportError as error:
            assert "imported already" in str(error)
        else:
            raise AssertionError
        """)


def test_programs_import_what_is_left_out():
    program("""
        import torch, torch.fx, torch._dynamo
        import torch.distributed.fsdp
        from torch.distributed.tensor import DTensor, Replicate, Shard
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
        from typing import Optional
        torch.fx.wrap("len")
        import torch.onnx
        torch._dynamo.config.suppress_errors = True
        assert not isinstance(torch.ones(1), DTensor) and Shard(0) == Shard(0) != Replicate()
        def typed(x: Optional[DTensor], y: "DTensor | None" = None) -> torch.fx.GraphModule: ...
        class Wrapped(PowerSGDState): ...
        for use in (lambda: torch.onnx.export(1), Wrapped, lambda: torch.sparse_bsr_tensor(1),
                    lambda: torch.distributed.ProcessGroupMPI()):
            try:
                use()
            except NotImplementedError as error:
                assert "is left out: " in str(error)
            else:
                raise AssertionError(use)
        """)


def test_left_out_tables_name_nothing_that_is_there():
    from thalweg import _left_out
    for module, names in _left_out.NAMES.items():
        own = importlib.import_module("thalweg" + (f".{module}" if module else ""))
        there = [name for name in names if name in vars(own)]
        assert not there, (module, there)


def test_marks_of_compilers_leave_functions_as_they_are():
    program("""
        import warnings
        import torch
        def f(x: float) -> float:
            return x + 1
        warnings.simplefilter("ignore")
        for mark in (torch.jit.script, torch.jit.ignore, torch.jit.unused, torch.compiler.disable, torch.compiler.allow_in_graph,
                     torch.jit.export, torch.library.custom_op("a::b", mutates_args=())):
            assert mark(f)(1) == 2
        assert torch.jit.ignore(drop=True)(f) is f and torch.compiler.disable(recursive=False)(f) is f
        assert not torch.compiler.is_compiling() and not torch.jit.is_scripting() and not isinstance(f, torch.jit.ScriptFunction)
        """)


def test_a_library_in_pytorchs_style_runs():
    program("""
        import torch, torch.nn as nn, torch.nn.functional as F
        from torch.distributions import Categorical, Normal, kl_divergence
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils import _pytree as pytree
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.project = nn.Linear(8, 24)
            def forward(self, x):
                q, k, v = self.project(x).chunk(3, -1)
                with sdpa_kernel([SDPBackend.MATH]):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        net = nn.DataParallel(nn.Sequential(Attention(), nn.Linear(8, 4))).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
        x = torch.randn(16, 5, 8, device=device)
        losses = []
        for _ in range(10):
            choice = Categorical(logits=net(x))
            loss = -choice.log_prob(torch.zeros(16, 5, device=device)).mean() + 0 * kl_divergence(Normal(0., 1.), Normal(1., 1.))
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        leaves, spec = pytree.tree_flatten({"a": [x, 1], "b": (2,)})
        assert leaves[1:] == [1, 2] and pytree.tree_unflatten(leaves, spec)["b"] == (2,)
        called = torch.func.functional_call(net, {name: value * 0 for name, value in net.named_parameters()}, (x,))
        assert called.abs().max().item() == 0
        torch.testing.assert_close(torch.func.vmap(lambda row: row.sum())(x), x.sum((1, 2)))
        """)


def test_the_host_uses_addresses():
    program("""
        import ctypes, torch
        x = torch.arange(6.0).view(2, 3)
        row = (ctypes.c_float * 6).from_address(x.untyped_storage().data_ptr())
        x += 1
        row[4] = -1.0
        assert list(row) == [1.0, 2.0, 3.0, 4.0, -1.0, 6.0] and x[1, 1].item() == -1.0 and x[:, 1:].data_ptr() == x.data_ptr() + 4
        """)


def test_multiprocessing_shares_tensors():
    program("""
        import torch, torch.multiprocessing as mp
        def work(number, shared, queue, done):
            shared += 1
            queue.put(torch.full((2,), float(number)))
            done.wait(60)
        if __name__ == "__main__":
            context, shared = mp.get_context("spawn"), torch.zeros(3)
            queue, done = context.Queue(), context.Event()
            running = mp.spawn(work, args=(shared, queue, done), nprocs=1, join=False)
            assert queue.get().tolist() == [0.0, 0.0] and shared.tolist() == [1.0, 1.0, 1.0]
            done.set()
            running.join()
        """)


def test_assert_close_says_where():
    th.testing.assert_close(th.tensor([1.0, 2.0]), th.tensor([1.0, 2.0 + 1e-7]))
    with raises(AssertionError, "Mismatched elements: 1 / 2 (50.0%)\nGreatest absolute difference: 1.0 at index (1,)"):
        th.testing.assert_close(th.tensor([1.0, 2.0]), th.tensor([1.0, 3.0]))
    with raises(AssertionError, "'dtype' do not match"):
        th.testing.assert_close(th.ones(1), th.ones(1, dtype=th.float64))
    with raises(AssertionError, "[1]['a']"):
        th.testing.assert_close([1, {"a": 2}], [1, {"a": 3}])
    th.testing.assert_close(th.tensor([float("nan")]), th.tensor([float("nan")]), equal_nan=True)
    made = th.testing.make_tensor(50, 3, dtype=th.int32, device="sim", low=-2, high=3, noncontiguous=True)
    assert not made.is_contiguous() and set(made.flatten().tolist()) <= {-2, -1, 0, 1, 2}


def test_foreach():
    values = [th.tensor([1.0, 2.0]), th.tensor([3.0])]
    assert [x.tolist() for x in th._foreach_add(values, values, alpha=2)] == [[3.0, 6.0], [9.0]]
    th._foreach_mul_(values, [2.0, 3.0])
    assert [x.tolist() for x in values] == [[2.0, 4.0], [9.0]]
    assert [x.item() for x in th._foreach_norm([th.tensor([3.0, 4.0])])] == [5.0]
    th._foreach_lerp_(values, [th.zeros(2), th.zeros(1)], 0.5)
    assert [x.tolist() for x in values] == [[1.0, 2.0], [4.5]]
    with raises(RuntimeError, "same number of tensors"):
        th._foreach_add(values, [1.0])


def test_names_that_libraries_ask_for_at_import():
    program("""
        import torch
        from torch.distributed.elastic.multiprocessing.errors import record
        from torch.utils.checkpoint import get_device_states, set_device_states
        assert record(len) is len and not torch.distributed.autograd.is_available()
        set_device_states(*get_device_states(torch.ones(1), [torch.ones(1)]))
        layer, x = torch.nn.Linear(2, 1), torch.ones(2)
        own = {"weight": torch.zeros(1, 2), "bias": torch.ones(1)}
        with torch.nn.utils.stateless._reparametrize_module(layer, own):
            assert layer(x).item() == 1.0
        assert torch.nn.utils.stateless.functional_call(layer, own, x).item() == 1.0 and layer.weight is not own["weight"]
        assert issubclass(type(torch.Tensor), torch._C._TensorMeta)
        """)
