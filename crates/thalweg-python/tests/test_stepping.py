"""Optimizers as objects: their states under PyTorch's names, in files of either library, copied, pickled and changed by
programs."""

import copy
import gzip
import io
import pathlib
import pickle

import thalweg as th
from stepping import CASES, made, stepped
from support import close, raises

FOLDER = pathlib.Path(__file__).parent / "goldens"


def goldens():
    return zip(CASES, th.load(io.BytesIO(gzip.decompress((FOLDER / "stepping.pt.gz").read_bytes()))), strict=True)


def test_states_are_pytorchs():
    for (name, options), golden in goldens():
        parameters, optimizer = made(th, name, options)
        assert {number: sorted(own) for number, own in optimizer.state_dict()["state"].items()} == golden["before"], name
        close(stepped(th, parameters, optimizer, range(4)), golden["four"], 1e-6)
        found, wanted = optimizer.state_dict(), golden["state"]
        assert found["param_groups"] == wanted["param_groups"], (name, found["param_groups"])
        assert {number: sorted(own) for number, own in found["state"].items()} == {number: sorted(own) for number, own in golden["order"].items()}
        for number, own in wanted["state"].items():
            for title, value in own.items():
                close(found["state"][number][title], value.tolist(), 1e-6)
                assert optimizer.state[parameters[number]][title].shape == value.shape


def test_going_on_from_pytorchs_states():
    for (name, options), golden in goldens():
        parameters, optimizer = made(th, name, {**options, "lr": 0.9}, golden["four"])
        optimizer.load_state_dict(golden["state"])
        close(stepped(th, parameters, optimizer, range(4, 6)), golden["six"], 1e-6)


def test_copies_pickles_and_files_go_on():
    for (name, options), golden in goldens():
        parameters, optimizer = made(th, name, options)
        stepped(th, parameters, optimizer, range(4))
        file = io.BytesIO()
        th.save((parameters, optimizer), file)
        file.seek(0)
        for others, other in (copy.deepcopy((parameters, optimizer)), pickle.loads(pickle.dumps((parameters, optimizer))),
                              th.load(file, weights_only=False)):
            assert type(other) is type(optimizer) and others[0] is not parameters[0]
            close(stepped(th, others, other, range(4, 6)), golden["six"], 1e-6)
        file = io.BytesIO()
        th.save(optimizer.state_dict(), file)
        file.seek(0)
        others, other = made(th, name, options, golden["four"])
        other.load_state_dict(th.load(file))
        close(stepped(th, others, other, range(4, 6)), golden["six"], 1e-6)
        close(stepped(th, parameters, optimizer, range(4, 6)), golden["six"], 1e-6)


def test_an_optimizer_of_pytorchs():
    optimizer = th.load(FOLDER / "optimizer.pt", weights_only=False)
    assert type(optimizer) is th.optim.Adam and optimizer.param_groups[0]["lr"] == 0.5
    parameter = optimizer.param_groups[0]["params"][0]
    close(parameter, [0.5, 0.5], 1e-6)
    assert optimizer.state[parameter]["step"].item() == 1
    parameter.grad = th.ones(2)
    optimizer.step()
    close(parameter, [0.0, 0.0], 1e-5)


def test_states_that_a_program_changes():
    def stepping(change):
        parameter = th.nn.Parameter(th.ones(2))
        optimizer = th.optim.Adam([parameter], lr=0.1)
        for step in range(3):
            parameter.grad = th.full((2,), 1.0 + step)
            optimizer.step()
            if step == 1:
                change(optimizer, parameter)
        return parameter.tolist(), optimizer
    plain, _ = stepping(lambda optimizer, parameter: None)

    def rename(optimizer, parameter):
        own = optimizer.state[parameter]
        own["exp_avg"] = own["exp_avg"].clone()

    def fill(optimizer, parameter):
        optimizer.state[parameter]["exp_avg"].zero_()

    def put(optimizer, parameter):
        optimizer.state[parameter]["exp_avg"] = th.zeros(2)

    def forget(optimizer, parameter):
        optimizer.state.clear()
    close(stepping(rename)[0], plain, 1e-6)
    assert stepping(fill)[0] == stepping(put)[0] != plain
    assert stepping(forget)[1].state_dict()["state"][0]["step"].item() == 1


def test_options_that_change():
    def stepping(change):
        parameter = th.nn.Parameter(th.ones(2))
        optimizer = th.optim.SGD([parameter], lr=0.1, momentum=0.9)
        for step in range(3):
            change(optimizer.param_groups[0], step)
            parameter.grad = th.ones(2)
            optimizer.step()
        return parameter.tolist()
    # v = 1, 1.5, 1.75 with a momentum of 0.5 from the second step on. The last step ascends the gradient, so v is −0.25 then.
    close(stepping(lambda group, step: group.update(momentum=0.9 if step == 0 else 0.5)), [1 - 0.1 * (1 + 1.5 + 1.75)] * 2)
    close(stepping(lambda group, step: group.update(momentum=0.5, maximize=step == 2)), [1 - 0.1 * (1 + 1.5 - 0.25)] * 2)


def test_any_dense_layout():
    for layout in (th.channels_last, None):
        parameters = []
        for change in (lambda x: x, (lambda x: x.contiguous(memory_format=layout)) if layout else lambda x: x.permute(3, 1, 0, 2)):
            values = th.arange(2 * 3 * 4 * 5).float().view(2, 3, 4, 5) / 10
            parameter = th.nn.Parameter(change(values.clone()))
            optimizer = th.optim.Adam([parameter], lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                (parameter ** 2).sum().backward()
                optimizer.step()
            assert optimizer.state[parameter]["exp_avg"].stride() == parameter.stride()
            parameters.append(parameter.detach())
        close(parameters[1] if layout else parameters[1].permute(2, 1, 3, 0), parameters[0].tolist(), 1e-6)


def test_subclasses():
    class Wrapped(th.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner

        @property
        def param_groups(self):
            return self.inner.param_groups

        def step(self, closure=None):
            self.inner.step(closure)

    p = th.nn.Parameter(th.ones(1))
    wrapped = Wrapped(th.optim.SGD([p], lr=0.5))
    p.grad = th.ones(1)
    wrapped.step()
    assert p.item() == 0.5

    seen = []
    handles = [th.optim.optimizer.register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: seen.append("before")),
               th.optim.optimizer.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: seen.append(args[0] is optimizer))]
    wrapped.inner.register_state_dict_post_hook(lambda optimizer, state: {**state, "note": 1})
    wrapped.inner.register_load_state_dict_pre_hook(lambda optimizer, state: {key: value for key, value in state.items() if key != "note"})
    wrapped.inner.step()
    for handle in handles:
        handle.remove()
    wrapped.inner.step()
    assert seen == ["before", True] and wrapped.inner.state_dict()["note"] == 1
    wrapped.inner.load_state_dict(wrapped.inner.state_dict())


def test_a_refused_load_changes_nothing():
    p = th.nn.Parameter(th.ones(2))
    optimizer = th.optim.Adam([p], lr=0.1)
    p.grad = th.ones(2)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    for groups in ([], [{"params": [0, 1]}]):
        with raises(ValueError, "loaded state dict"):
            optimizer.load_state_dict({"state": {}, "param_groups": groups})
    with raises(ValueError, "appear in more than one"):
        optimizer.add_param_group({"params": [th.nn.Parameter(th.ones(1)), p]})
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(tensor.tolist() == before["state"][0][name].tolist() for name, tensor in after["state"][0].items())
