"""`save` and `load` of objects other than tensors: modules, objects of a program's classes, and the limits of loading without
running code."""

import argparse
import io
import os
import pathlib
import pickle
import random
import re
import tempfile
import zipfile

import thalweg as th
from support import close, raises, saved
from thalweg import _objects, nn
from thalweg.serialization import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals

# Written by PyTorch 2.11: Sequential(Linear(2, 3), GELU(), BatchNorm1d(3)), whose parameters are arange / 4.
OF_PYTORCH = str(pathlib.Path(__file__).parent / "files/module.pt")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.activation = nn.Embedding(3, 4), nn.functional.relu
        self.decoder = nn.Linear(4, 3, bias=False)
        self.decoder.weight = self.embedding.weight
        self.register_buffer("mask", th.ones(4), persistent=False)
        self.mode = "text"

    def forward(self, x):
        return self.decoder(self.activation(self.embedding(x)) * self.mask)


def test_a_module_comes_back():
    net, x = Net(), th.tensor([0, 2])
    found = th.load(saved(net), weights_only=False)
    assert type(found) is Net and found.mode == "text" and found(x).tolist() == net(x).tolist()
    assert found.decoder.weight is found.embedding.weight and list(found.state_dict()) == list(net.state_dict())
    assert found.decoder.weight.requires_grad and isinstance(found.decoder.weight, nn.Parameter)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "net.pt")
        th.save(net, path)
        assert th.load(path, map_location="cpu", weights_only=False)(x).tolist() == net(x).tolist()


def test_classes_have_to_be_named():
    file = saved({"net": Net(), "arguments": argparse.Namespace(rate=0.5)})
    with raises(pickle.UnpicklingError, "weights_only=False"):
        th.load(file)
    file.seek(0)
    with safe_globals([argparse.Namespace]):
        with raises(pickle.UnpicklingError, "test_serialization.Net"):
            th.load(file)
    assert not get_safe_globals()
    file.seek(0)
    add_safe_globals([Net, argparse.Namespace, nn.functional.relu, nn.modules.linear.Linear, nn.modules.sparse.Embedding])
    try:
        found = th.load(file)
    finally:
        clear_safe_globals()
    assert found["arguments"].rate == 0.5 and found["net"](th.tensor([1])).shape == (1, 3)


def test_other_values():
    value = {"float8": th.tensor([0.5, 2.0]).to(th.float8_e4m3fn), "dtype": th.bfloat16, "shape": th.ones(2, 3).shape, "set": {1, 2},
             "complex": th.tensor([1 + 2j]), "none": th.empty(0), "large": 2**80, "bytes": b"a\0b"}
    found = th.load(saved(value), weights_only=False)
    assert found["float8"].dtype is th.float8_e4m3fn and found["float8"].float().tolist() == [0.5, 2.0]
    assert found["dtype"] is th.bfloat16 and found["shape"] == (2, 3) and isinstance(found["shape"], th.Size)
    assert found["set"] == {1, 2} and found["complex"].tolist() == [1 + 2j] and found["none"].shape == (0,)
    assert found["large"] == 2**80 and found["bytes"] == b"a\0b"


def test_a_module_of_pytorch():
    x = th.tensor([[1.0, -2.0]])
    expected = [[0.0, 0.20750758051872253, 0.42067277431488037]]
    net = th.load(OF_PYTORCH, weights_only=False)
    assert type(net) is nn.Sequential and type(net[2]) is nn.BatchNorm1d and not net.training
    close(net(x), expected)
    with raises(pickle.UnpicklingError, "torch.nn.modules.container.Sequential"):
        th.load(OF_PYTORCH)
    with safe_globals([nn.Sequential, nn.Linear, (nn.GELU, "torch.nn.modules.activation.GELU")]):
        with raises(pickle.UnpicklingError, "torch.nn.modules.batchnorm.BatchNorm1d"):
            th.load(OF_PYTORCH)
    with safe_globals([nn.Sequential, nn.Linear, nn.BatchNorm1d, nn.GELU]):
        close(th.load(OF_PYTORCH)(x), expected)
    names = ("container.Sequential", "linear.Linear", "activation.GELU", "batchnorm.BatchNorm1d")
    with safe_globals([(None, f"torch.nn.modules.{name}") for name in names]):
        close(th.load(OF_PYTORCH)(x), expected)


def archive(pickled, **files):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        written.writestr("archive/data.pkl", pickled)
        for name, content in files.items():
            written.writestr(f"archive/{name}", content)
    file.seek(0)
    return file


class Harmful:
    def __reduce__(self):
        return os.path.join, ("a", "b")


def test_places_of_loaded_tensors():
    file = saved({"x": th.ones(2)})
    for place in (lambda storage, location: storage, lambda storage, location: storage.cpu(), {"cuda:0": "cpu", "cuda:1": "cpu"}, None):
        file.seek(0)
        assert th.load(file, map_location=place)["x"].tolist() == [1, 1]
    with raises(NotImplementedError, "these are 2"):
        th.load(file, map_location={"cuda:0": "cpu", "cuda:1": "meta"})


def test_files_that_are_wrong():
    with raises(RuntimeError, "Invalid magic number"):
        th.load(io.BytesIO(pickle.dumps(1)), weights_only=False)
    with raises(pickle.UnpicklingError, "invalid load key"):
        th.load(io.BytesIO(b"no pickle"))
    with raises(EOFError, "Ran out of input"):
        th.load(io.BytesIO(b""))
    with raises(RuntimeError, "big-endian"):
        th.load(archive(pickle.dumps(1), byteorder=b"big"), weights_only=False)
    with safe_globals([Net]):
        with raises(pickle.UnpicklingError, "posixpath.join"):
            th.load(archive(pickle.dumps(Harmful())))
        # A tensor beyond its storage, one whose storage is missing, and storages of other kinds.
        tensor = "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'{key}'\nS'cpu'\nI{count}\ntQI0\n(I9\nt(I1\nt"
        end = "I00\nNtR."
        for key, count, kind in (("1", 4, pickle.UnpicklingError), ("0", 4, RuntimeError), ("0", 9, RuntimeError)):
            with raises(kind):
                th.load(archive((tensor.format(key=key, count=count) + end).encode(), **{"data/0": b"\0" * 16}))
        with raises(pickle.UnpicklingError, "describes no tensor"):
            th.load(archive(b"I1\nQ."))


def test_damaged_files_are_called_damaged():
    whole = saved({"x": th.arange(400.0), "y": [th.ones(3, 2), "text"]}).getvalue()
    for seed in range(100):
        draw = random.Random(seed)
        place, change = draw.randrange(len(whole)), draw.randrange(3)
        damaged = (whole[:place], whole[:place] + whole[place + draw.randrange(1, 90):], whole[:place] + b"\xff" * 8 + whole[place + 8:])[change]
        try:
            found = th.load(io.BytesIO(damaged))
            assert found["x"].tolist() == list(range(400)), (seed, place, change)
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            assert re.search("damaged|describes no tensor|cut off|no data.pkl", str(error)), (seed, place, change, error)


def test_an_old_file_cannot_ask_for_more_memory_than_it_has():
    file = io.BytesIO()
    for part in (_objects._MAGIC, _objects._VERSION, {}):
        pickle.dump(part, file, protocol=2)
    tensor = "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nL{0}L\ntQI0\n(I9\nt(I1\ntI00\nNtR."
    file.write(tensor.format(1 << 40).encode())
    with raises(pickle.UnpicklingError, "damaged or cut off"):
        th.load(io.BytesIO(file.getvalue()))


def test_storages_are_saved_with_the_tensors_that_share_them():
    x, y = th.arange(4.0), th.arange(3)
    file = io.BytesIO()
    th.save([x, x.storage(), {"kept": y.storage()}, x[1:]], file)
    file.seek(0)
    whole, storage, more, part = th.load(file)
    assert isinstance(storage, th.storage.TypedStorage) and storage.tolist() == [0.0, 1.0, 2.0, 3.0] and more["kept"].dtype is th.int64
    whole.fill_(5)
    assert storage[2] == 5 and part.tolist() == [5.0] * 3


def test_pickle_reads_storages_that_pytorch_has_pickled():
    from thalweg.storage import _load_from_bytes
    file = io.BytesIO()
    th.save(th.arange(4.0).untyped_storage(), file)
    storage = _load_from_bytes(file.getvalue())
    assert th.tensor([], dtype=th.float32).set_(storage.untyped() if hasattr(storage, "untyped") else storage, 1, (2,)).tolist() == [1.0, 2.0]
