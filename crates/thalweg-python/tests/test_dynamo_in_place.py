"""Programs inside PyTorch whose calls are recorded and repeated, as on a GPU: what a program does between its calls, and between a forward and
its backward pass, changes nothing about the gradients."""

import copy
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "dynamo"))

from running import with_pytorch  # noqa: E402
from test_dynamo_gpu import without_gpu  # noqa: E402


def attend(x, first, last):
    """Computes a function whose backward pass writes over a saved tensor."""
    return (x @ first).tanh().softmax(-1) @ last


def leaves_of(torch):
    return [torch.randn(shape).requires_grad_() for shape in ((12, 8), (8, 30), (30, 4))]


def gradients(torch, function, leaves, times):
    """Returns the result of a function, and its gradients, each as often as the graph is used."""
    result = function(*leaves)
    weight = torch.linspace(-1, 1, result.numel()).view(result.shape)
    return [result, *(one.clone() for time in range(times) for one in torch.autograd.grad(result, leaves, weight, retain_graph=time + 1 < times))]


def is_recorded(programs):
    return all(commands for one in programs for commands, _, _ in one.program._repeats())


@with_pytorch
def test_saved_tensors_that_something_else_holds_are_not_written(torch, dynamo):
    import as_gpu
    from in_place import in_place

    if (reason := without_gpu(torch)) is not None:
        return reason
    lists, memory = [], []

    def listed(tensor):
        lists.append(tensor)
        return len(lists) - 1

    def copied(tensor):
        memory.append(bytearray(tensor.detach().numpy().tobytes()))
        return memory[-1], tensor.shape

    # Hooks that keep saved tensors in a list, or in memory of another library, which PyTorch reads in its place.
    hooks = [
        (lambda tensor: tensor, lambda tensor: tensor),
        (listed, lists.__getitem__),
        (copied, lambda kept: torch.frombuffer(kept[0], dtype=torch.float32).view(kept[1]).detach()),
    ]
    written = 0
    for pack, unpack in hooks:
        torch._dynamo.reset()
        with in_place() as programs:
            compiled = torch.compile(attend, backend=as_gpu.backend, fullgraph=True)
            for call in range(8):
                leaves, times = leaves_of(torch), 1 if call < 4 else 1 + call % 2
                expected = gradients(torch, attend, leaves, times)
                seen = [tensor.clone() for tensor in lists]
                with torch.autograd.graph.saved_tensors_hooks(*((pack, unpack) if call >= 3 else hooks[0])):
                    found = gradients(torch, compiled, leaves, times)
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"call {call}: {text}")
                assert all(map(torch.equal, lists, seen))
            assert is_recorded(programs) and any(one.writes for one in programs)


@with_pytorch
def test_tensors_that_have_other_forms_than_before(torch, dynamo):
    import as_gpu
    from in_place import in_place

    if (reason := without_gpu(torch)) is not None:
        return reason

    def function(x, first, last):
        saved = (x @ first / 8).t().exp()
        return (saved * saved.mean(0)).t() @ last + attend(x, first, last)

    # Hooks that change the strides, the dtype or the sizes of saved tensors.
    unpacks = [
        lambda tensor: tensor.clone(memory_format=torch.contiguous_format),
        lambda tensor: tensor.movedim(0, -1).contiguous().movedim(-1, 0),
        lambda tensor: tensor.double(),
        lambda tensor: tensor[:2],
    ]
    with in_place() as programs:
        compiled = torch.compile(function, backend=as_gpu.backend, fullgraph=True)
        for call in range(12):
            unpack, leaves, found = unpacks[call // 2 - 2] if call >= 4 else torch.clone, leaves_of(torch), []
            for one in (compiled, function):
                with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
                    try:
                        found.append(gradients(torch, one, leaves, 2))
                    except RuntimeError as error:
                        # PyTorch refuses products of two dtypes, and of other sizes, too.
                        assert call >= 8 and ("dtype" in str(error) or "size" in str(error) or "shape" in str(error)), error
                        found.append(None)
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4, msg=lambda text: f"call {call}: {text}")
            assert (found[0] is None) == (call >= 8)
        assert is_recorded(programs)


@with_pytorch
def test_parameters_that_are_changed_in_their_place(torch, dynamo):
    import as_gpu
    from in_place import in_place

    if (reason := without_gpu(torch)) is not None:
        return reason

    def turned(model):
        for parameter in model.parameters():
            parameter.data = parameter.data.mT.contiguous().mT if parameter.dim() > 1 else parameter.data

    def narrow(model):
        model.bfloat16()

    # PyTorch does not compare the parameters of a module while it has the same ones.
    for change in (lambda model: model.to(memory_format=torch.channels_last), turned, narrow):
        torch._dynamo.reset()
        model = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(96, 3))
        other = copy.deepcopy(model)
        with in_place() as programs:
            compiled = torch.compile(model, backend=as_gpu.backend, fullgraph=True)
            for call in range(8):
                x, found = torch.randn(2, 4, 6, 6), []
                for function, one in ((compiled, model), (other, other)):
                    if call == 4:
                        change(one)
                    try:
                        result = function(x)
                    except RuntimeError as error:
                        assert change is narrow and call >= 4 and "type" in str(error), error
                        continue
                    one.zero_grad()
                    result.square().sum().backward()
                    found.append([result, *(parameter.grad for parameter in one.parameters()), *one.buffers()])
                assert len(found) == (0 if change is narrow and call >= 4 else 2), "a call reads parameters of 16 bits as others"
                torch.testing.assert_close(*(found or (0, 0)), rtol=1e-3, atol=1e-3, msg=lambda text: f"call {call}: {text}")
            assert is_recorded(programs) and len(programs) >= 2
