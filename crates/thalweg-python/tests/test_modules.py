"""Modules as objects: the order of members, states with their hooks, conversions that change all or nothing, global hooks."""

import collections
import copy
import gc
import io
import pickle
import warnings
import weakref

import thalweg as th
from support import raises
from thalweg import nn


def test_members_keep_their_places():
    net = nn.Module()
    net.first, net.second = nn.Linear(1, 1), nn.Linear(1, 2)
    net.one, net.two = nn.Parameter(th.zeros(1)), nn.Parameter(th.zeros(2))
    net.register_buffer("x", th.ones(1))
    net.register_buffer("y", th.ones(1), persistent=False)
    net.first, net.one, net.x, net.y = nn.ReLU(), nn.Parameter(th.ones(3)), th.zeros(2), th.zeros(3)
    assert [name for name, _ in net.named_children()] == ["first", "second"]
    assert [name for name, _ in net.named_parameters()] == ["one", "two", "second.weight", "second.bias"]
    assert list(net.state_dict()) == ["one", "two", "x", "second.weight", "second.bias"] and list(dict(net.named_buffers())) == ["x", "y"]
    for refused in (lambda: setattr(net, "one", th.zeros(1)), lambda: setattr(net, "first", 3), lambda: setattr(net, "x", 3)):
        with raises(TypeError, "expected"):
            refused()
    assert net.one.shape == (3,) and isinstance(net.first, nn.ReLU)


def test_states_have_metadata_and_more():
    class Counting(nn.Module):
        _version = 3

        def __init__(self, count=0):
            super().__init__()
            self.count, self.layer = count, nn.BatchNorm1d(1)

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    state, other = Counting(5).state_dict(), Counting()
    assert list(state)[0] == "_extra_state" and dict(state._metadata) == {"": {"version": 3}, "layer": {"version": 2}}
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>" and other.count == 5
    # States of the first version lack the number of batches, and a plain dictionary has no version.
    former = {name: value for name, value in nn.BatchNorm1d(1).state_dict().items() if name != "num_batches_tracked"}
    assert nn.BatchNorm1d(1).load_state_dict(former).missing_keys == []
    with raises(RuntimeError, "expected torch.Tensor"):
        nn.BatchNorm1d(1).load_state_dict({**former, "weight": 3})


def test_hooks_of_states():
    log, net = [], nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    net[0].register_state_dict_pre_hook(lambda module, prefix, keep_vars: log.append(("before", prefix)))
    net.register_state_dict_post_hook(lambda module, state, prefix, metadata: log.append(("after", list(state))))
    net[0]._register_load_state_dict_pre_hook(lambda state, prefix, *_: state.pop(prefix + "old", None))
    net[0].register_load_state_dict_pre_hook(lambda module, state, prefix, *_: log.append((type(module).__name__, prefix)))
    net.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    state = net.state_dict()
    del state["0.bias"]
    state["0.old"] = th.ones(1)
    keys = net.load_state_dict(state, strict=False)
    assert log == [("before", "0."), ("after", ["0.weight", "0.bias"]), ("Linear", "0.")] and keys.missing_keys == []
    assert keys.unexpected_keys == ["0.old"] or keys.unexpected_keys == []


def test_loading_by_assignment():
    layer = nn.Linear(2, 2, device="meta")
    state = {"weight": th.ones(2, 2), "bias": nn.Parameter(th.zeros(2))}
    layer.load_state_dict(state, assign=True)
    assert layer.bias is state["bias"] and isinstance(layer.weight, nn.Parameter) and layer.weight.data_ptr() == state["weight"].data_ptr()
    assert layer(th.ones(1, 2)).tolist() == [[2, 2]]


def test_conversions_change_all_or_nothing():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv3d(1, 1, 1), nn.Linear(2, 2))
    weight = net[0].weight
    with raises(RuntimeError, "channels_last"):
        net.to(memory_format=th.channels_last)
    assert net[0].weight.is_contiguous()
    del net[2]
    net.to(memory_format=th.channels_last)
    assert net[0].weight is weight and not weight.is_contiguous() and weight.is_contiguous(memory_format=th.channels_last)
    net.half()
    assert net[0].weight.dtype is th.float16 and net[1].num_batches_tracked.dtype is th.int64
    with raises(TypeError, "floating point or complex"):
        net.to(th.int32)
    tied = nn.Module()
    tied.one, tied.other = nn.Linear(2, 2), nn.Linear(2, 2)
    tied.other.weight = tied.one.weight
    tied.double()
    assert tied.one.weight is tied.other.weight and tied.one.weight.dtype is th.float64

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.values = [th.ones(1)]

        def _apply(self, fn, recurse=True):
            self.values = [fn(value) for value in self.values]
            return super()._apply(fn, recurse)
    own = Own()
    nn.Sequential(own).double()
    assert own.values[0].dtype is th.float64


def test_meta_modules():
    with th.device("meta"):
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        with th.device("cpu"):
            inner = th.ones(1)
    assert net[0].weight.device.type == "meta" and inner.device.type != "meta" and th.ones(1).device.type != "meta"
    weight = net[0].weight
    net.to_empty(device="cpu")
    assert net[0].weight is weight and all(tensor.device.type != "meta" for tensor in net.state_dict().values())
    like = th.empty_like(th.empty_strided((3, 2), (1, 3), device="meta"), device="cpu")
    assert like.stride() == (1, 3) and like.device.type != "meta"
    assert th.zeros_like(th.ones(3, 2, device="meta"), device="cpu", dtype=th.int32).tolist() == [[0, 0]] * 3


def test_hooks_of_all_modules():
    hooks, log = nn.modules.module, []
    handles = [
        hooks.register_module_forward_pre_hook(lambda module, args: log.append(("before", type(module).__name__))),
        hooks.register_module_forward_hook(lambda module, args, output: log.append(("after", type(module).__name__))),
        hooks.register_module_full_backward_hook(lambda module, before, after: log.append(("backward", type(module).__name__))),
        hooks.register_module_parameter_registration_hook(lambda module, name, value: log.append(("parameter", name))),
        hooks.register_module_module_registration_hook(lambda module, name, value: log.append(("module", name)))]
    net = nn.Sequential(nn.Linear(2, 2))
    net(th.ones(3, 2, requires_grad=True)).sum().backward()
    for handle in handles:
        handle.remove()
    net(th.ones(3, 2))
    assert log == [("parameter", "weight"), ("parameter", "bias"), ("module", "0"), ("before", "Sequential"), ("before", "Linear"),
                   ("after", "Linear"), ("after", "Sequential"), ("backward", "Linear"), ("backward", "Sequential")]


def test_containers():
    chain = nn.Sequential(nn.ReLU(), nn.Tanh())
    chain.insert(1, nn.GELU()).append(nn.SiLU()).extend([nn.Mish()])
    taken = chain.pop(0)
    chain += nn.Sequential(taken)
    assert [type(one).__name__ for one in chain] == ["GELU", "Tanh", "SiLU", "Mish", "ReLU"] and list(chain._modules) == list("01234")
    assert len(chain * 2) == 10 and len(chain + chain) == 10
    modules = nn.ModuleList([nn.ReLU()])
    modules += [nn.Tanh()]
    modules.insert(0, nn.GELU())
    del modules[1]
    assert [type(one).__name__ for one in modules] == ["GELU", "Tanh"] and len(modules + [nn.ReLU()]) == 3
    assert repr(nn.ModuleList([nn.ReLU(), nn.ReLU(), nn.Tanh()])) == "ModuleList(\n  (0-1): 2 x ReLU()\n  (2): Tanh()\n)"
    parameters = nn.ParameterList([th.ones(1), "word"])
    parameters += [th.zeros(2)]
    assert isinstance(parameters[0], nn.Parameter) and parameters[1] == "word" and len(list(parameters.parameters())) == 2
    named = nn.ParameterDict({"b": th.ones(1), "a": th.ones(2)})
    typed = "Parameter containing: [torch.{}FloatTensor of size {}{}]"
    place = ("cuda.", f" ({named['a'].device})") if named["a"].is_cuda else ("", "")
    assert f"(a): {typed.format(place[0], 2, place[1])}" in repr(named) and f"[torch.float32 of size 1{place[1]}]" in repr(parameters)
    assert list(named) == ["a", "b"] and list(nn.ParameterDict(collections.OrderedDict(b=th.ones(1), a=th.ones(1)))) == ["b", "a"]
    named |= {"c": th.ones(3)}
    assert named.popitem()[0] == "c" and "c" not in named
    # A subclass is not called before it is ready.
    class Late(nn.ModuleDict):
        def __init__(self):
            super().__init__()
            self.ready = True

        def update(self, modules):
            assert self.ready
            super().update(modules)
    Late().update({"a": nn.ReLU()})


def test_layers_that_draw_or_cluster():
    th.manual_seed(0)
    image = th.arange(64.0).view(1, 1, 8, 8)
    pooled, places = nn.FractionalMaxPool2d(2, output_size=4, return_indices=True)(image)
    assert pooled.shape == (1, 1, 4, 4) and image.flatten()[places.flatten()].tolist() == pooled.flatten().tolist()
    assert nn.FractionalMaxPool3d(2, output_ratio=0.5)(th.ones(1, 1, 4, 4, 4)).shape == (1, 1, 2, 2, 2)
    layer = nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3, 6], div_value=2.0, head_bias=True)
    x, target = th.randn(5, 4), th.tensor([0, 2, 4, 8, 5])
    everything, found = layer.log_prob(x), layer(x, target)
    assert all(abs(total - 1) < 1e-5 for total in everything.exp().sum(1).tolist())
    chosen = everything.gather(1, target.unsqueeze(1)).squeeze(1)
    assert max((found.output - chosen).abs().tolist()) < 1e-5 and abs(found.loss.item() + chosen.mean().item()) < 1e-5
    assert layer.predict(x).tolist() == everything.argmax(1).tolist()
    found.loss.backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    loss = nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(1), margin=2.0)
    assert loss(th.zeros(1, 2), th.ones(1, 2), th.ones(1, 2) * 3).item() == 0.0 and loss(th.zeros(1, 2), th.ones(1, 2), th.ones(1, 2)).item() == 2.0


def test_copies_and_pickles():
    net = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    net[0].register_forward_hook(_doubled)
    other = copy.deepcopy(net).eval()
    assert net.training and not other.training and other(th.ones(1, 1)).tolist() == net.eval()(th.ones(1, 1)).tolist()
    with raises(ValueError, "boolean"):
        net.train(1)


def _doubled(module, args, output):
    return output * 2


def test_generators_in_regions():
    @th.no_grad()
    def numbers(count):
        for number in range(count):
            got = yield (number, th.is_grad_enabled())
            assert got is None or got == "sent"
        return th.is_grad_enabled()
    made = numbers(2)
    assert next(made) == (0, False) and th.is_grad_enabled() and made.send("sent") == (1, False) and th.is_grad_enabled()
    try:
        next(made)
    except StopIteration as end:
        assert end.value is False
    failing = numbers(2)
    next(failing)
    with raises(KeyError, "thrown"):
        failing.throw(KeyError("thrown"))
    assert th.is_grad_enabled()


def test_lazy_modules_find_their_shapes():
    for lazy, eager, shape in (
            (nn.LazyLinear(4), nn.Linear(3, 4), (2, 3)), (nn.LazyConv2d(4, 2, groups=2), nn.Conv2d(6, 4, 2, groups=2), (1, 6, 3, 3)),
            (nn.LazyConvTranspose1d(4, 2), nn.ConvTranspose1d(3, 4, 2), (3, 5)), (nn.LazyBatchNorm1d(), nn.BatchNorm1d(3), (4, 3)),
            (nn.LazyInstanceNorm2d(), nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (3, 4, 4))):
        assert lazy.has_uninitialized_params() and all(map(nn.parameter.is_lazy, lazy.parameters()))
        other = pickle.loads(pickle.dumps(lazy))
        held = list(lazy.double().parameters())
        lazy(th.ones(shape, dtype=th.float64))
        assert type(lazy) is type(eager) and repr(lazy) == repr(eager)
        assert {name: value.shape for name, value in lazy.state_dict().items()} == {name: value.shape for name, value in eager.state_dict().items()}
        # The parameters that the optimizer received are those of the module.
        assert all(one is two and type(one) is nn.Parameter and one.dtype == th.float64 for one, two in zip(held, lazy.parameters()))
        # A loaded state sets the shapes as well, and the first call does not change it.
        other.load_state_dict(eager.state_dict())
        assert not other.has_uninitialized_params()
        other.eval()(th.ones(shape))
        assert repr(other) == repr(eager) and all(th.equal(one, two) for one, two in zip(other.state_dict().values(), eager.state_dict().values()))


def test_tensors_without_shapes_refuse_their_use():
    lazy, file = nn.LazyLinear(2), io.BytesIO()
    weight = lazy.weight
    for use in (lambda: weight + 1, lambda: 1 - weight, lambda: weight.sum(), lambda: weight[0], lambda: -weight, lambda: th.optim.Adagrad([weight])):
        with raises(ValueError, "uninitialized parameter"):
            use()
    for use in (lambda: weight.shape, lambda: nn.Linear(1, 2).load_state_dict(lazy.state_dict()), lambda: th.jit.script(lazy)):
        with raises(RuntimeError, "uninitialized"):
            use()
    with raises(ValueError, "can't have uninitialized parameters"):
        nn.utils.spectral_norm(lazy)
    th.save(lazy.state_dict(), file)
    file.seek(0)
    assert nn.parameter.is_lazy(th.load(file, weights_only=False)["weight"])
    with raises(RuntimeError, "Expected 3D (unbatched) or 4D (batched) input to LazyConv2d"):
        nn.LazyConv2d(1, 1)(th.zeros(2, 2))
    weight.materialize([2, 3])
    assert weight.shape == (2, 3) and lazy.has_uninitialized_params()


def test_hooks_of_the_last_node():
    seen, layer, x = [], nn.Sigmoid(), th.zeros(2, requires_grad=True)
    with layer.register_backward_hook(lambda module, inputs, outputs: seen.append((inputs[0].tolist(), outputs[0].tolist())) or (inputs[0] * 2,)):
        layer(x).sum().backward()
        with raises(RuntimeError, "Cannot use both"):
            layer.register_full_backward_hook(print)
    assert seen == [([0.25, 0.25], [1.0, 1.0])] and x.grad.tolist() == [0.5, 0.5]

    class Twice(nn.Module):
        def forward(self, x):
            return x.sigmoid().sigmoid()
    twice = Twice()
    twice.register_backward_hook(lambda *_: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        twice(x)
    assert any("multiple autograd Nodes" in str(one.message) for one in caught)


def test_hooks_do_not_keep_their_module():
    layer = nn.Linear(1, 1)
    handle = layer.register_load_state_dict_pre_hook(print)
    copied = pickle.loads(pickle.dumps((layer.register_forward_hook(print), layer)))
    assert copied[0].hooks_dict_ref() is copied[1]._forward_hooks
    copied[0].remove()
    assert not copied[1]._forward_hooks and layer._forward_hooks
    alive = weakref.ref(layer)
    gc.disable()
    try:
        del layer
        assert alive() is None and handle.hooks_dict_ref() is None
        handle.remove()
    finally:
        gc.enable()


def test_named_tuples_stay_through_backward_hooks():
    Pair = collections.namedtuple("Pair", "one two")

    class Paired(nn.Module):
        def forward(self, x):
            return Pair(x * 2, x * 3)
    layer, seen = Paired(), []
    layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(len(outputs)))
    found = layer(th.ones(1, requires_grad=True))
    found.two.sum().backward()
    assert type(found) is Pair and seen == [2]


def test_classes_say_where_pytorch_has_them():
    for kind, place in ((nn.Linear, "linear"), (nn.LazyConv2d, "conv"), (nn.LSTM, "rnn"), (nn.GELU, "activation"), (nn.ModuleList, "container"),
                        (nn.TransformerEncoder, "transformer"), (nn.LayerNorm, "normalization"), (nn.L1Loss, "loss"), (nn.ZeroPad2d, "padding")):
        assert kind.__module__ == f"thalweg.nn.modules.{place}" and getattr(getattr(nn.modules, place), kind.__name__) is kind
    assert pickle.loads(pickle.dumps(nn.Sequential(nn.Linear(1, 1), nn.ZeroPad2d(1))))[0].in_features == 1


def test_hooks_of_all_modules_may_be_put_away():
    seen = []
    nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    nn.ReLU()(th.ones(1))
    nn.modules.module._global_forward_hooks = collections.OrderedDict()
    nn.ReLU()(th.ones(1))
    assert seen == [1]


def test_changes_in_place_are_seen_by_graphs():
    layer = nn.Linear(2, 2)
    square = layer.weight * layer.weight
    assert layer._apply(lambda tensor: tensor.add_(1.0)) is layer and isinstance(layer.weight, nn.Parameter)
    with raises(RuntimeError, "modified by an inplace operation"):
        square.sum().backward()


def test_attributes_that_libraries_read():
    convolution, transposed = nn.Conv2d(2, 4, 3, padding=(1, 2)), nn.ConvTranspose1d(2, 4, 3)
    assert not convolution.transposed and convolution.output_padding == (0, 0) and convolution._reversed_padding_repeated_twice == [2, 2, 1, 1]
    assert transposed.transposed and isinstance(transposed, nn.modules.conv._ConvNd) and nn.LSTM(2, 3).mode == "LSTM" and nn.RNN(2, 3).mode == "RNN_TANH"
    assert isinstance(nn.GRU(2, 3), nn.RNNBase) and nn.AvgPool1d(2).kernel_size == (2,) and nn.PReLU(2, 0.5).init == 0.5 and nn.Upsample(2).name == "Upsample"

    class Own(nn.Parameter):
        def __new__(cls, data=None, requires_grad=True, kind=None):
            made = super().__new__(cls, data, requires_grad)
            made.kind = kind
            return made
    assert Own(th.ones(2), kind="a").kind == "a" and isinstance(Own(th.ones(2)), nn.Parameter) and not isinstance(th.ones(2), nn.Parameter)


def test_batches_for_several_devices():
    from thalweg.cuda import comm
    from thalweg.nn.parallel.scatter_gather import gather, scatter_kwargs
    x = th.arange(6.0).view(3, 2)
    places, names = scatter_kwargs((x, {"y": [x]}), {"scale": 2}, ["cpu", "cpu"])
    assert [part[0].tolist() for part in places] == [[[0.0, 1.0], [2.0, 3.0]], [[4.0, 5.0]]] and places[1][1]["y"][0].tolist() == [[4.0, 5.0]]
    assert names == ({"scale": 2}, {"scale": 2}) and gather([{"a": x}, {"a": x}], "cpu")["a"].shape == (6, 2)
    assert comm.reduce_add([x, x], "cpu").tolist() == (x * 2).tolist() and comm.gather(comm.scatter(x, ["cpu"] * 3)).tolist() == x.tolist()
    assert [one[0].tolist() for one in comm.broadcast_coalesced([x], ["cpu"] * 2)] == [x.tolist()] * 2


def test_keys_by_identity():
    from thalweg.utils.weak import WeakIdKeyDictionary
    one, other = th.ones(2), th.ones(2)
    known = WeakIdKeyDictionary({one: 1})
    known[other] = 2
    assert known[one] == 1 and one in known and th.ones(2) not in known and len(known) == 2
    del other
    assert [value for _, value in known.items()] == [1]


def test_tensors_by_device_and_dtype():
    from thalweg.utils._foreach_utils import _group_tensors_by_device_and_dtype
    first = [th.ones(1), th.ones(1, dtype=th.float64), th.ones(2)]
    groups = _group_tensors_by_device_and_dtype([first, []], with_indices=True)
    assert [([one.dtype for one in lists[0]], places) for lists, places in groups.values()] == [([th.float32] * 2, [0, 2]), ([th.float64], [1])]


def test_results_and_containers_by_name():
    x = th.arange(4.0).view(2, 2)
    assert type(x.max(0)) is th.return_types.max and type(th.linalg.qr(x)) is th.return_types.linalg_qr and not hasattr(th.return_types, "nosuch")
    from thalweg.utils import _pytree
    assert _pytree._list_flatten([1, 2])[0] == [1, 2] and _pytree._dict_flatten_with_keys({"a": 1})[0][0][1] == 1
    from thalweg.nn.utils._named_member_accessor import NamedMemberAccessor
    net = nn.Sequential(nn.Linear(2, 2))
    known, other = net[0].weight, th.ones(2, 2)
    accessor = NamedMemberAccessor(net)
    assert accessor.swap_tensor("0.weight", other) is known and accessor.get_tensor("0.weight") is other
    with raises(AttributeError, "has no attribute `nosuch`"):
        accessor.swap_tensor("0.nosuch", other)


def test_sizes_are_integers_of_any_class():
    class Size:
        """An integer that is none of Python's, as those of NumPy."""

        def __init__(self, value):
            self.value = value

        def __index__(self):
            return self.value

        __int__ = __index__
    import numbers
    numbers.Integral.register(Size)
    two, x = Size(2), th.ones(1, 2, 4, 4)
    for module in (nn.MaxPool2d(two), nn.Upsample(size=two), nn.AdaptiveAvgPool2d(two)):
        assert module(x).shape == (1, 2, 2, 2)
    assert nn.ZeroPad2d(two)(x).shape == (1, 2, 8, 8) and nn.Unfold(two)(x).shape == (1, 8, 9)
