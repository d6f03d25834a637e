"""`record_use`: saying where another stream's last use of a tensor is."""

import contextlib

from . import _state


def record_use(tensor, stream=None):
    """Says that what `stream` (the current one, by default) has been given so far is the last that it does with the tensor's
    memory, until the next call. An event is recorded there now, and it is all that the memory waits for once the tensor is gone:
    not for what the stream does later, as after `Tensor.record_stream`. Nothing blocks. On the stream that the tensor was made on
    it does nothing.

    The work must be *behind* the tensor's making, as for `record_stream`, and the call behind the work.
    """
    import torch

    stream = torch.cuda.current_stream(tensor.device) if stream is None else stream
    _state.library().call(
        "thalweg_record_use", tensor.untyped_storage().data_ptr(), stream.device.index, stream.cuda_stream
    )


@contextlib.contextmanager
def record_use_region():
    """In this region, on this thread, `tensor.record_stream(stream)` becomes `record_use`: it says where the last use is *so far*,
    and each later operator of the region that touches the tensor on that stream says so again. So the memory waits for the last of
    them, wherever the tensor is dropped.

    That is safe for whatever goes through PyTorch's dispatcher on this thread: operators, collectives, custom operators. What
    does not (a kernel that is launched by hand, a library that was given a pointer, the backward pass, which runs on a thread of
    its own) is not seen, and has to be followed by a `record_use` of its own, or to stay outside the region.
    """
    with _mode()():
        yield


def _mode():
    # PyTorch is imported when it is first needed, so the class cannot stand at the top of the module.
    global _mode_class
    if _mode_class is None:
        _mode_class = _make_mode()
    return _mode_class


_mode_class = None


def _make_mode():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class RecordUseMode(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            # Storages by address, with the streams that were recorded for them. Weak: whoever drops a tensor frees its memory.
            self.recorded = {}

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if function is torch.ops.aten.record_stream.default:
                self.record(*arguments)
                return None
            result = function(*arguments, **(keywords or {}))
            if self.recorded:
                for value in tree_iter((arguments, keywords)):
                    if isinstance(value, torch.Tensor) and value.is_cuda:
                        self.touch(value)
            return result

        def record(self, tensor, stream):
            stream = torch.cuda.Stream(
                stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
            )
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            if key == 0:
                return
            known = self.recorded.get(key)
            if known is None or known[0].expired():
                known = self.recorded[key] = (torch.multiprocessing.reductions.StorageWeakRef(storage), set())
            known[1].add(stream.cuda_stream)
            record_use(tensor, stream)

        def touch(self, tensor):
            key = tensor.untyped_storage().data_ptr()
            known = self.recorded.get(key)
            if known is None:
                return
            if known[0].expired():
                del self.recorded[key]
                return
            stream = torch.cuda.current_stream(tensor.device)
            if stream.cuda_stream in known[1]:
                record_use(tensor, stream)

    return RecordUseMode
