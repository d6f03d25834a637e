"""Hooks of tensors, graph nodes and modules. All assertions also hold for PyTorch."""

import copy
import threading

import thalweg as th
from support import close, raises
from thalweg import nn


def test_hooks_of_tensors():
    x = th.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    seen = []
    first = y.register_hook(lambda gradient: seen.append(gradient.tolist()))
    y.register_hook(lambda gradient: gradient * 10)
    y.register_hook(lambda gradient: seen.append(gradient.tolist()))
    y.sum().backward()
    assert seen == [[1, 1], [10, 10]] and x.grad.tolist() == [30, 30]
    first.remove()
    x.grad = None
    (x * 3).register_hook(lambda gradient: seen.append("another tensor"))
    y = x * 3
    with y.register_hook(lambda gradient: gradient * 0):
        pass
    y.sum().backward()
    assert len(seen) == 2 and x.grad.tolist() == [3, 3]


def test_hooks_of_leaves():
    x = th.nn.Parameter(th.ones(2))
    order = []
    x.register_hook(lambda gradient: order.append(("arrived", gradient.tolist(), x.grad is None)))
    handle = x.register_post_accumulate_grad_hook(lambda leaf: order.append((leaf is x, leaf.grad.tolist())))
    (x * 2).sum().backward()
    assert order == [("arrived", [2, 2], True), (True, [2, 2])]
    handle.remove()
    (x * 2).sum().backward()
    assert len(order) == 3 and x.grad.tolist() == [4, 4]
    with raises(RuntimeError, "post accumulate grad hooks cannot be registered on non-leaf tensors"):
        (x * 2).register_post_accumulate_grad_hook(print)
    with raises(RuntimeError, "cannot register a hook on a tensor that doesn't require gradient"):
        th.ones(1).register_hook(print)


def test_a_step_within_backward():
    parameters = [th.nn.Parameter(th.ones(2)) for _ in range(3)]
    optimizers = {parameter: th.optim.SGD([parameter], lr=0.5) for parameter in parameters}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(step)
    sum(parameter.sum() * (place + 1) for place, parameter in enumerate(parameters)).backward()
    assert [parameter.tolist() for parameter in parameters] == [[0.5, 0.5], [0.0, 0.0], [-0.5, -0.5]]
    assert all(parameter.grad is None for parameter in parameters)


def test_wrong_hooks():
    x = th.ones(2, requires_grad=True)

    class Own(Exception):
        pass

    def raising(gradient):
        raise Own("as it is", 7)
    for wrong, kind, part in ((raising, Own, "as it is"), (lambda gradient: 3, TypeError, ""),
                              (lambda gradient: th.ones(3), RuntimeError, "has changed the size of value"),
                              (lambda gradient: gradient.double(), RuntimeError, "has changed the type of value")):
        y = x * 2
        y.register_hook(wrong)
        with raises(kind, part):
            y.sum().backward()
    try:
        y = x * 2
        y.register_hook(raising)
        y.sum().backward()
    except Own as error:
        names, trace = [], error.__traceback__
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert error.args == ("as it is", 7) and names[-1] == "raising", names
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_retain_grad():
    x = th.ones(2, requires_grad=True)
    y = x * 2
    assert not y.retains_grad and not x.retains_grad
    y.retain_grad()
    x.retain_grad()
    assert y.retains_grad and not x.retains_grad
    (y * y).sum().backward()
    assert y.grad.tolist() == [4, 4] and x.grad.tolist() == [8, 8]
    with raises(RuntimeError, "can't retain_grad on Tensor that has requires_grad=False"):
        th.ones(1).retain_grad()


def test_nodes():
    x = th.ones(2, requires_grad=True)
    y = (x * th.full((2,), 2.0)).exp()
    node = y.grad_fn
    assert node.name() == "ExpBackward0" and node == y.grad_fn and hash(node) == hash(y.grad_fn)
    (before, place), = node.next_functions
    assert before.name() == "MulBackward0" and place == 0
    assert before.next_functions[0][0].name() == "torch::autograd::AccumulateGrad"
    assert before.next_functions[1] == (None, 0) and before.next_functions[0][0].next_functions == ()
    assert isinstance(node, th.autograd.graph.Node) and "ExpBackward0" in repr(node)
    seen = []
    node.register_prehook(lambda outputs: (outputs[0] * 2,))
    node.register_hook(lambda inputs, outputs: seen.append((len(inputs), outputs[0].tolist())))
    handle = before.register_hook(lambda inputs, outputs: seen.append("taken back"))
    handle.remove()
    y.backward(th.ones(2))
    assert seen == [(1, [2, 2])]
    close(x.grad, [4 * 7.389056] * 2)


def test_hooks_of_modules():
    calls = []
    layer = th.nn.Linear(2, 2, bias=False)
    layer.weight.data = th.eye(2)
    layer.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    layer.register_forward_hook(lambda module, args, output: calls.append((args[0].tolist(), output.tolist())))
    first = layer.register_forward_hook(lambda module, args, output: output * 2, prepend=True)
    assert layer(th.zeros(1, 2)).tolist() == [[2, 2]] and calls == [([[1, 1]], [[2, 2]])]
    first.remove()
    assert layer(th.zeros(1, 2)).tolist() == [[1, 1]]

    class Scaled(th.nn.Module):
        def forward(self, x, scale=1.0):
            if scale == 0:
                raise ValueError("zero")
            return x * scale
    scaled = Scaled()
    scaled.register_forward_pre_hook(lambda module, args, kwargs: (args, {"scale": kwargs["scale"] + 1}), with_kwargs=True)
    scaled.register_forward_hook(lambda module, args, kwargs, output: output + kwargs["scale"], with_kwargs=True)
    assert scaled(th.ones(1), scale=2.0).tolist() == [6.0]
    always = []
    scaled.register_forward_hook(lambda module, args, output: always.append(output), always_call=True)
    with raises(ValueError, "zero"):
        scaled(th.ones(1), scale=-1.0)
    assert always == [None]
    assert copy.deepcopy(scaled)(th.ones(1), scale=2.0).tolist() == [6.0]


def test_backward_hooks_of_modules():
    class Two(th.nn.Module):
        def forward(self, a, factor, b):
            return a * factor, b * 2
    seen = []
    module = Two()

    def hook(module, grad_input, grad_output):
        seen.append(([gradient if gradient is None else gradient.tolist() for gradient in grad_input],
                     [gradient.tolist() for gradient in grad_output]))
        return (grad_input[0] * 10, None, grad_input[2])
    handle = module.register_full_backward_hook(hook)
    pre = module.register_full_backward_pre_hook(lambda module, grad_output: (grad_output[0] * 2, grad_output[1]))
    a, b = th.ones(2, requires_grad=True), th.ones(2, requires_grad=True)
    first, second = module(a, 3, b)
    (first.sum() + second.sum()).backward()
    assert seen == [([[6, 6], None, [2, 2]], [[2, 2], [1, 1]])], seen
    assert a.grad.tolist() == [60, 60] and b.grad.tolist() == [2, 2]
    pre.remove()
    handle.remove()
    seen.clear()
    module(a, 3, b)[0].sum().backward()
    assert seen == [] and a.grad.tolist() == [63, 63]


def test_backward_hooks_of_a_first_layer():
    layer = th.nn.Linear(2, 1)
    seen = []
    handle = layer.register_full_backward_hook(lambda module, grad_input, grad_output: seen.append((grad_input, grad_output[0].tolist())))
    layer(th.ones(1, 2)).sum().backward()
    assert seen == [((None,), [[1]])] and layer.weight.grad.tolist() == [[1, 1]]
    handle.remove()

    def raising(module, grad_input, grad_output):
        raise KeyError("of a module")
    layer.register_full_backward_hook(raising)
    with raises(KeyError, "of a module"):
        layer(th.ones(1, 2, requires_grad=True)).sum().backward()
    with th.no_grad():
        assert not layer(th.ones(1, 2, requires_grad=True)).requires_grad
    with th.inference_mode():
        assert layer(th.ones(1, 2, requires_grad=True)).is_inference()


def test_hooks_in_threads():
    failures = []

    def work(number):
        try:
            for _ in range(20):
                x = th.full((4,), float(number), requires_grad=True)
                y = x * x
                y.register_hook(lambda gradient: gradient * 2)
                y.sum().backward()
                assert x.grad.tolist() == [4.0 * number] * 4
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_hooks_after_a_load_see_the_keys_that_were_found_until_then():
    net, seen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)), []
    state = {name: value for name, value in net.state_dict().items() if name not in ("0.bias", "2.bias")}

    def forgive(module, keys):
        seen.append(list(keys.missing_keys))
        keys.missing_keys.clear()
    handle = net[1].register_load_state_dict_post_hook(forgive)
    assert net.load_state_dict(state, strict=False).missing_keys == ["2.bias"] and seen == [["0.bias"]]
    with raises(RuntimeError, 'Missing key(s) in state_dict: "2.bias".'):
        net.load_state_dict(state)
    net.register_load_state_dict_post_hook(forgive)
    net.load_state_dict(state)
    assert seen[-1] == ["2.bias"]
    handle.remove()
    net.load_state_dict(state)
    assert seen[-1] == ["0.bias", "2.bias"]
