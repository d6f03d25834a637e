"""DLPack: with this package itself, and with NumPy and PyTorch if they are installed."""

import ctypes
import gc

import thalweg as th
from support import raises
from thalweg import _dlpack
from thalweg import testing


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


# DLPack's codes and bits of dtypes, as PyTorch 2.11 writes them.
CODES = {
    "bool": (6, 8), "uint8": (1, 8), "int8": (0, 8), "int16": (0, 16), "uint16": (1, 16), "int32": (0, 32), "int64": (0, 64),
    "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8), "float16": (2, 16), "bfloat16": (4, 16), "float32": (2, 32), "float64": (2, 64),
    "complex64": (5, 64), "complex128": (5, 128)}


def test_every_dtype_is_handed_out():
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    for dtype in th._core._dtypes():
        capsule = th._core._to_dlpack(th.tensor([0, 1]).to(dtype), False)
        # After the address, the device and the rank.
        assert tuple(ctypes.string_at(pointer(capsule, b"dltensor") + 20, 2)) == CODES[dtype._name], dtype
        back = th.from_dlpack(capsule)
        assert back.dtype is dtype and back.to(th.float32).tolist() == [0, 1], dtype


def test_other_libraries():
    found = []
    try:
        import numpy
        assert numpy.from_dlpack(th.arange(4, device="sim")).tolist() == [0, 1, 2, 3]
        assert th.from_dlpack(numpy.arange(6.0).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
        found.append("numpy")
    except ImportError:
        pass
    try:
        import torch
        assert torch.from_dlpack(th.arange(4).float()).tolist() == [0, 1, 2, 3]
        assert th.from_dlpack(torch.arange(6.0).view(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
        for dtype in th._core._dtypes():
            theirs = torch.tensor([0, 1]).to(getattr(torch, dtype._name))
            assert th.from_dlpack(theirs).dtype is dtype and torch.from_dlpack(th.from_dlpack(theirs)).dtype is theirs.dtype
        found.append("torch")
    except ImportError:
        pass
    missing = {"numpy", "torch"} - set(found)
    return f"{', '.join(sorted(missing))} not installed" if missing else None


def test_streams_of_consumers():
    # For a GPU tensor: None and 1 are the legacy default stream, 2 the thread's own, others are CUDA's numbers, and −1 requests
    # no ordering.
    assert [_dlpack._stream_of(True, stream) for stream in (None, 1, 2, 0x7F00, -1)] == [1, 1, 2, 0x7F00, None]
    for stream in (0, -2):
        with raises(ValueError, "is not a stream"):
            _dlpack._stream_of(True, stream)
    for stream in (1.0, True, "1"):
        with raises(TypeError, "must be an int or None"):
            _dlpack._stream_of(True, stream)
    x = th.ones(2)
    if not x.is_cuda:
        x.__dlpack__(stream=-1)
        for stream in (1, 2, 0x7F00):
            with raises(BufferError, "has no streams"):
                x.__dlpack__(stream=stream)


def test_streams_are_ordered_and_the_host_waits_for_nothing():
    def handed(to_consumer, is_ordered):
        """Writes numbers on one stream and reads them on another, which a library knows by its number."""
        producer, consumer = th.cuda.Stream(), th.cuda.Stream()
        with th.cuda.stream(producer):
            x = th.arange(64) * 2
            number = th._core._cuda._stream_number(x.device)
            assert number == producer.cuda_stream
            if is_ordered and to_consumer:
                th._core._cuda._let_wait(x.device, consumer.cuda_stream)
        with th.cuda.stream(consumer):
            if is_ordered and not to_consumer:
                th._core._cuda._wait_for(x.device, number)
            y = x + 1
        consumer.synchronize()
        x.record_stream(consumer)
        assert not is_ordered or y[-1].item() == 127

    for to_consumer in (False, True):
        testing.check(lambda: handed(to_consumer, True), seeds=10)
        with raises(testing.CheckFailed, "data race"):
            testing.check(lambda: handed(to_consumer, False), seeds=10)


def test_cuda_array_interface():
    x = th.arange(6.0).view(2, 3)
    if not x.is_cuda:
        assert not hasattr(x, "__cuda_array_interface__")
    # The interface of a GPU tensor, independent of the actual device.
    told = _dlpack._interface(x, 7)
    assert told == {"shape": (2, 3), "typestr": "<f4", "strides": None, "data": (x.data_ptr(), False), "version": 3, "stream": 7}
    assert _dlpack._interface(x.t(), 1)["strides"] == (4, 12) and _dlpack._interface(x[:0], 1)["data"] == (0, False)
    for dtype, typestr in ((th.bool, "|b1"), (th.int8, "|i1"), (th.float16, "<f2"), (th.complex64, "<c8"), (th.bfloat16, "<V2")):
        told = _dlpack._interface(x.to(dtype), 1)
        assert told["typestr"] == typestr
        address, shape, strides, found, stream, is_read_only = _dlpack._parts(told)
        assert (shape, strides, found, stream, is_read_only) == ((2, 3), None, dtype, 1, False)
    with raises(RuntimeError, "requires grad"):
        _dlpack._interface(th.ones(1, requires_grad=True), 1)
    told = _dlpack._interface(x, 1)
    assert _dlpack._parts({**told, "version": 2})[4] is None and _dlpack._parts({**told, "stream": None})[4] is None
    with raises(NotImplementedError, "mask"):
        _dlpack._parts({**told, "mask": 1})
    with raises(ValueError, "ambiguous"):
        _dlpack._parts({**told, "stream": 0})
    with raises(TypeError, "has no dtype here"):
        _dlpack._parts({**told, "typestr": ">f4"})


class External:
    """An object of another GPU library, as far as the protocols see it."""

    def __init__(self, **parts):
        self.__cuda_array_interface__ = {"shape": (2,), "typestr": "<f4", "data": (4096, False), "version": 3, "stream": None, **parts}
        self.streams = []

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream, max_version=None):
        self.streams.append(stream)
        raise AssertionError("nothing is taken where there is no GPU")


def test_memory_of_a_gpu_needs_a_gpu():
    if th.cuda.is_available():
        return
    for take in (lambda: th.as_tensor(External()), lambda: th.from_dlpack(External()), lambda: th.asarray(External(stream=1))):
        try:
            take()
        except RuntimeError as error:
            assert "CUDA" in str(error) or "driver" in str(error), error
        else:
            raise AssertionError("a GPU's memory was taken without a GPU")
    x = th.ones(2)
    th.from_dlpack(x, copy=False).add_(1)
    assert th.from_dlpack(x, copy=True).mul_(2).tolist() == [4, 4] and x.tolist() == [2, 2]


def test_memory_of_a_gpu_is_shared_with_pytorch():
    if not th.cuda.is_available():
        return "there is no GPU"
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch is built without CUDA"
    side = torch.cuda.Stream()
    theirs = torch.zeros(1 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(200):
            theirs.add_(1)
        # The producer makes this package's stream wait for its own.
        ours = [th.from_dlpack(theirs), th.from_dlpack(theirs.view(1024, 1024).t())]
    assert [x.data_ptr() for x in ours] == [theirs.data_ptr()] * 2 and ours[1].stride() == (1, 1024)
    assert (ours[0] * 2).min().item() == 400.0 and ours[1].max().item() == 200.0
    ours[0].fill_(7.0)
    back = torch.from_dlpack(ours[0])
    assert back.data_ptr() == theirs.data_ptr() and theirs.sum().item() == 7.0 * (1 << 20)
    viewed = torch.as_tensor(th.arange(8, device="cuda"), device="cuda")
    assert viewed.tolist() == list(range(8))
    taken = th.as_tensor(External(data=(theirs.data_ptr(), False), shape=(2, 3), strides=(4, 8), stream=1))
    assert taken.data_ptr() == theirs.data_ptr() and taken.shape == (2, 3) and taken.tolist() == [[7.0] * 3] * 2
    del ours, back, taken
    assert theirs.sum().item() == 7.0 * (1 << 20)
