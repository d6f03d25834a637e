"""DLPack: with itself, and with NumPy and PyTorch where they are installed."""

import gc

import thalweg as th
from support import raises


def test_round_trips():
    for dtype in (th.float32, th.float64, th.float16, th.bfloat16, th.int64, th.int32, th.int16, th.int8, th.uint8, th.bool):
        x = th.arange(6).view(2, 3).to(dtype)
        for source in (x, x.t(), x[1:], x[0, 0], x[:0]):
            back = th.from_dlpack(source)
            assert back.dtype is dtype and back.tolist() == source.tolist() and back.shape == source.shape
            plain = th.utils.dlpack.from_dlpack(th.utils.dlpack.to_dlpack(source))
            assert plain.tolist() == source.tolist()


def test_capsules_are_taken_once():
    x = th.ones(3)
    for versioned in (False, True):
        capsule = th._core._to_dlpack(x, versioned)
        assert th.from_dlpack(capsule).tolist() == [1, 1, 1]
        with raises(TypeError, "not taken before"):
            th.from_dlpack(capsule)
        del capsule
        th._core._to_dlpack(x, versioned)
    gc.collect()
    with raises(TypeError):
        th.from_dlpack(3)
    with raises(BufferError, "require gradient"):
        th.from_dlpack(th.ones(1, requires_grad=True))
    with raises(BufferError):
        x.__dlpack__(dl_device=(2, 7))
    with raises(ValueError, "no elements"):
        th.ones(1, device="meta").__dlpack__()
    assert x.__dlpack_device__() == ((2, 0) if x.is_cuda else (1, 0))


def test_other_libraries():
    found = []
    try:
        import numpy
        assert numpy.from_dlpack(th.arange(4)).tolist() == [0, 1, 2, 3]
        assert th.from_dlpack(numpy.arange(6.0).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
        found.append("numpy")
    except ImportError:
        pass
    try:
        import torch
        assert torch.from_dlpack(th.arange(4).float()).tolist() == [0, 1, 2, 3]
        assert th.from_dlpack(torch.arange(6.0).view(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
        assert th.from_dlpack(torch.ones(2, dtype=torch.bfloat16)).dtype is th.bfloat16
        found.append("torch")
    except ImportError:
        pass
    missing = {"numpy", "torch"} - set(found)
    return f"{', '.join(sorted(missing))} not installed" if missing else None
