"""Values in files: those from PyTorch (`goldens/make_values.py`), and the same values written and read here."""

import collections
import copy
import io
import pathlib
import pickle
import tempfile

import thalweg as th
from support import raises

FOLDER = pathlib.Path(__file__).parent / "goldens"


def check(values):
    """Checks the values of `goldens/make_values.py`."""
    values["row"][2] = 9
    assert values["row"].tolist() == [0, 1, 9, 3, 4, 5] and values["view"].tolist() == [1, 9, 3, 4, 5]
    assert values["turned"].tolist() == [[0, 3], [1, 4], [9, 5]] and values["turned"].stride() == (1, 3)
    assert type(values["parameter"]) is th.nn.Parameter and values["parameter"] is values["same"] and values["parameter"].requires_grad
    assert type(values["frozen"]) is th.nn.Parameter and not values["frozen"].requires_grad
    assert values["wants"].requires_grad and values["wants"].is_leaf and not values["row"].requires_grad
    with raises(RuntimeError, "leaf"):
        values["wants"].add_(1)
    assert values["conjugate"].tolist() == [1 - 2j]
    assert values["set"] == {1, 2} and values["bytes"] == b"a\0b" and values["array"] == bytearray(b"x")
    assert list(values["ordered"].items()) == [("b", 1), ("a", 2)] and type(values["ordered"]) is collections.OrderedDict
    assert values["counter"] == {1: 2, 2: 1} and type(values["counter"]) is collections.Counter
    assert values["device"] == th.device("cpu") and values["dtype"] is th.float16 and type(values["size"]) is th.Size
    assert values["meta"].device.type == "meta" and values["meta"].shape == (2, 3)
    assert values["float8"].dtype is th.float8_e5m2 and values["float8"].float().tolist() == [1, 1]
    assert values["large"] == 2**70 and values["complex"] == 1 + 2j and values["none"] is None
    assert values["marked"].note == "kept" and type(values["marked"]) is th.Tensor
    assert values["empty"].shape == (0, 3) and values["expanded"].stride() == (0,) and values["expanded"].tolist() == [1, 1, 1]


def test_a_file_of_pytorch():
    values = th.load(FOLDER / "values.pt")
    file = io.BytesIO()
    th.save({name: value for name, value in values.items()}, file)
    check(copy.deepcopy({name: value for name, value in values.items()}))
    check(values)
    file.seek(0)
    check(th.load(file))


def test_a_file_of_pytorch_before_1_6():
    values = th.load(FOLDER / "stream.pt")
    values["row"][2] = 9
    assert values["view"].tolist() == [1, 9, 3, 4, 5] and type(values["parameter"]) is th.nn.Parameter and values["words"] == ["a", 1.5]
    whole = (FOLDER / "stream.pt").read_bytes()
    with raises(RuntimeError, "cut off"):
        th.load(io.BytesIO(whole[:-3]), weights_only=False)


def test_copies_share_what_they_shared():
    row = th.arange(6.0)
    copied = copy.deepcopy({"row": row, "view": row[1:], "turned": row.view(2, 3).t(), "again": row})
    copied["row"][2] = 9
    assert copied["view"].tolist() == [1, 9, 3, 4, 5] and copied["turned"][2].tolist() == [9, 5] and copied["again"] is copied["row"]
    assert row.tolist() == [0, 1, 2, 3, 4, 5]
    shallow = copy.copy(row)
    shallow[0] = 7
    assert row[0].item() == 7 and shallow is not row
    parameter = th.nn.Parameter(row)
    parameter.grad = th.ones(6)
    other, same = copy.deepcopy(parameter), copy.copy(parameter)
    assert type(other) is type(same) is th.nn.Parameter and other.grad is None and same.data_ptr() == parameter.data_ptr() != other.data_ptr()


def test_what_cannot_be_saved_leaves_the_file_as_it_was():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "values.pt")
        th.save([1, 2], path)
        with raises(pickle.PicklingError):
            th.save({"function": lambda: 0}, path)
        row = th.ones(2)
        with raises(RuntimeError, "as different types"):
            th.save([row, row.view(th.int32)], path)
        assert th.load(path) == [1, 2]


def test_names_that_are_refused():
    file = io.BytesIO()
    th.save({"a": th.nn.Linear(1, 1)}, file)
    file.seek(0)
    names = th.serialization.get_unsafe_globals_in_checkpoint(file)
    assert names and all("Linear" in name for name in names), names
