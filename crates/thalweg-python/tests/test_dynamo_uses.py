"""Features of PyTorch's compiler that the backend takes part in: the cache, captures, the bisector, the minifier, traces, ranks."""

import logging
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parent / "dynamo"
sys.path.insert(0, str(FOLDER))

from running import with_pytorch  # noqa: E402


def process(script, *arguments, **environment):
    """Starts one of the scripts with this package."""
    package = str(FOLDER.parent.parent / "python")
    kept = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen([sys.executable, FOLDER / script, *arguments], env=kept, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def output_of(running):
    """Returns the last line that a process prints, when it has ended."""
    out, error = running.communicate(timeout=300)
    assert running.returncode == 0, error[-2000:]
    return out.strip().splitlines()[-1] if out.strip() else ""


@with_pytorch
def test_a_second_process_compiles_nothing(torch, dynamo):
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        artifacts = os.path.join(first, "artifacts")
        cold = output_of(process("twice.py", artifacts, TORCHINDUCTOR_CACHE_DIR=first))
        warm = output_of(process("twice.py", artifacts, TORCHINDUCTOR_CACHE_DIR=first))
        other = output_of(process("twice.py", artifacts, artifacts, TORCHINDUCTOR_CACHE_DIR=second))
    assert cold.startswith("[('forward', False), ('backward', False)]"), cold
    assert warm.startswith("[('forward', True), ('backward', True)]") and warm.split("] ")[1] == cold.split("] ")[1], warm
    assert other == warm, "a machine with the artifacts of another one compiles nothing either"


@with_pytorch
def test_ranks_train_a_compiled_model(torch, dynamo):
    for kind in ("ddp", "fsdp"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        ranks = [process("ranks.py", kind, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(2)]
        for rank in ranks:
            output_of(rank)


@with_pytorch
def test_what_is_not_captured_runs_and_says_why(torch, dynamo):
    if torch.cuda.is_available():
        return "there is a GPU, on which the graph is captured"
    x = torch.rand(4)
    for request in ({"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}):
        torch._dynamo.reset()
        dynamo.forget()
        torch.testing.assert_close(torch.compile(torch.sin, backend="thalweg", **request)(x), x.sin())
        (graph,) = dynamo.compiled()
        assert "where no CUDA graphs are" in graph.captured and "not captured" in repr(graph), graph


@with_pytorch
def test_the_bisector_finds_a_wrong_call(torch, dynamo):
    from torch._inductor.compiler_bisector import CompilerBisector

    from thalweg.dynamo import _calls

    x, right = torch.rand(4), _calls.with_number

    def function(x):
        return (x.exp() + 1).sin() * 2

    def is_right():
        torch._dynamo.reset()
        return torch.allclose(torch.compile(function, backend=CompilerBisector.get_backend() or "thalweg")(x), function(x))

    _calls.with_number = lambda name, named, is_number: "cos" if name == "sin" else right(name, named, is_number)
    try:
        found = CompilerBisector.do_bisect(is_right)
    finally:
        _calls.with_number = right
    assert (found.backend, found.subsystem) == ("thalweg", "calls") and "sin" in found.debug_info, found


@with_pytorch
def test_errors_fall_back_or_are_minified(torch, dynamo):
    from thalweg.dynamo import _graph

    def function(x):
        return x.cos() + 1

    def failing(importer, node, value):
        if node.target is torch.ops.aten.cos.default:
            raise ValueError("planted")
        return right(importer, node, value)

    x, right = torch.rand(4), _graph.Importer._take
    _graph.Importer._take = failing
    logging.disable(logging.WARNING)
    try:
        with torch._dynamo.config.patch(suppress_errors=True):
            torch.testing.assert_close(torch.compile(function, backend="thalweg")(x), function(x))
        torch._dynamo.reset()
        with tempfile.TemporaryDirectory() as folder, torch._dynamo.config.patch(repro_after="dynamo", repro_level=2, debug_dir_root=folder):
            try:
                torch.compile(function, backend="thalweg")(x)
            except Exception as error:
                assert "planted" in str(error), error
            else:
                raise AssertionError("nothing was raised")
            scripts = list(pathlib.Path(folder).rglob("minifier_launcher.py"))
            assert scripts and "thalweg" in scripts[0].read_text()
    finally:
        logging.disable(logging.NOTSET)
        _graph.Importer._take = right


@with_pytorch
def test_traces_have_the_steps(torch, dynamo):
    payloads, record = [], torch._logging.trace_structured

    def noted(name, metadata_fn=dict, *arguments, payload_fn=lambda: None, **keywords):
        if metadata_fn().get("name", "").startswith("thalweg"):
            payloads.append(payload_fn())

    torch._logging.trace_structured = noted
    try:
        torch.compile(lambda x: x.exp() + 1, backend="thalweg")(torch.rand(3))
    finally:
        torch._logging.trace_structured = record
    assert payloads and "call exp: node `exp` of aten.exp.default, File" in payloads[0], payloads


@with_pytorch
def test_second_gradients_are_refused_by_name(torch, dynamo):
    x = torch.rand(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.compile(lambda x: (x.sin() * x).sum(), backend="thalweg")(x), x, create_graph=True)
    try:
        gradient.sum().backward()
    except RuntimeError as error:
        assert "does not currently support double backward" in str(error), error
    else:
        raise AssertionError("nothing was raised")


@with_pytorch
def test_a_backward_pass_runs_again(torch, dynamo):
    import as_gpu

    def function(x):
        with torch.no_grad():
            mask = x > 0.5
        return (torch.where(mask, x.sin(), x * 2).softmax(-1) * x).sum()

    for backend in ("thalweg", as_gpu.backend):
        torch._dynamo.reset()
        compiled, x = torch.compile(function, backend=backend), torch.rand(5, requires_grad=True)
        (expected,) = torch.autograd.grad(function(x), x)
        for _ in range(2):
            loss = compiled(x)
            for again in (True, True, False):
                torch.testing.assert_close(*torch.autograd.grad(loss, x, retain_graph=again), expected)


@with_pytorch
def test_a_checkpoint_draws_the_same_numbers_again(torch, dynamo):
    from torch.utils.checkpoint import checkpoint

    x = torch.rand(64, requires_grad=True)

    def function(x):
        return checkpoint(lambda y: torch.nn.functional.dropout(y.sin(), 0.5).cos(), x, use_reentrant=False).sum()

    found = []
    for called in (function, torch.compile(function, backend="thalweg")):
        torch.manual_seed(3)
        found += torch.autograd.grad(called(x), x)
    torch.testing.assert_close(*found)
